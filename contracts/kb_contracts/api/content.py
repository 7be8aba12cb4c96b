"""What an operation answers in place of JSON: a file."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec

OCTETS = "application/octet-stream"
"""Its content type, whatever it is: no reader is to try its luck with what somebody else has sent."""


class FileContent(msgspec.Struct, kw_only=True):
    """The bytes of a file, `size` of them, in `blocks` that are read once; close them where not all is read.

    It is the model of operations that answer a file, and never encoded.
    """

    filename: str
    size: int
    sha256: str
    blocks: AsyncGenerator[bytes, None]
