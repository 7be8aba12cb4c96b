"""Operations over HTTP on aiohttp, and the bounds that every server of ours keeps on its connections."""
