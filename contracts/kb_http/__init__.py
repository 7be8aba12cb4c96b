"""Operations over HTTP on aiohttp, and the connection limits of all servers."""
