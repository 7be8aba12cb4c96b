"""A file as a response: browsers save it, and never display or run it in the origin of the server."""

from __future__ import annotations

import unicodedata
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from urllib.parse import quote

from aiohttp import web

from kb_contracts.api.content import OCTETS, FileContent

SAFE_HEADERS = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "default-src 'none'; sandbox"}

_MOST_CHARS = 150
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 !#$&+-.^_`~(),=@")


def content_disposition(filename: str) -> str:
    """Return the header (RFC 6266) for saving a file under its name.

    Folders and invisible characters are removed. The header has an ASCII version of the name for old clients.
    """
    last = filename.replace("\\", "/").rpartition("/")[2]
    visible = "".join(sign for sign in last if unicodedata.category(sign)[0] != "C").strip()
    if len(visible) > _MOST_CHARS:  # keep the end, which has the extension
        visible = visible[: _MOST_CHARS // 2] + visible[-_MOST_CHARS // 2 :]
    visible = visible if visible.strip(".") else "file"
    plain = "".join(sign if sign in _PLAIN else "_" for sign in visible)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(visible, safe='')}"


class FileResponse(web.Response):
    """A response whose body is a file; callers in the same process read its `blocks` instead."""

    def __init__(self, blocks: AsyncGenerator[bytes, None], headers: Mapping[str, str]) -> None:
        super().__init__(body=blocks, headers=headers, content_type=OCTETS)
        self.blocks = blocks


async def file_response(content: FileContent) -> FileResponse:
    """Return the response once the first block is there; it is aborted if a later block is missing.

    Raises the exceptions of the first block.
    """
    first = await anext(content.blocks, b"")
    headers = {
        **SAFE_HEADERS,
        "Content-Disposition": content_disposition(content.filename),
        "Content-Length": str(content.size),
        "ETag": f'"{content.sha256}"',
    }
    return FileResponse(_whole(first, content), headers)


async def _whole(first: bytes, content: FileContent) -> AsyncGenerator[bytes, None]:
    sent = len(first)
    async with aclosing(content.blocks) as blocks:
        yield first
        async for block in blocks:
            sent += len(block)
            yield block
    if sent != content.size:
        raise ConnectionAbortedError(f"a file of {content.size} bytes has {sent}")
