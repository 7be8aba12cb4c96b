"""The response of operations that return a file in place of JSON."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec

OCTETS = "application/octet-stream"
"""Content type of every file, so that no client interprets content that another user has sent."""


class FileContent(msgspec.Struct, kw_only=True):
    """The bytes of a file, `size` of them, in `blocks` that can be read once; close them if not all are read.

    It is the response model of operations that return a file, and is never encoded.
    """

    filename: str
    size: int
    sha256: str
    blocks: AsyncGenerator[bytes, None]
