"""Files read as engine and simulator read them."""

from __future__ import annotations

from pathlib import Path

from kb_contracts.api.formats import Format
from kb_readers import DEFAULT_LIMITS, Extraction, Limits, read_file


async def read_path(path: Path, fmt: Format, limits: Limits = DEFAULT_LIMITS) -> Extraction:
    """The text of the file at a path, read in a child but for plain text."""
    with path.open("rb") as source:
        return await read_file(source, fmt, limits)
