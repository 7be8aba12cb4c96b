"""The file formats that `knowledge-add` takes: of the contract's those that the toolset's document names."""

from __future__ import annotations

from pathlib import PurePath

from kb_contracts.api import formats
from kb_server.tool import ToolError

FORMATS = ("pdf", "docx", "pptx", "xlsx", "html", "jpg", "png", "svg")

TAKE_OCR = tuple(name for name in FORMATS if formats.FORMATS[name].takes_ocr)
"""Those that have pages or pixels to look at."""

_NAMES = {extension[1:]: each.name for each in formats.FORMATS.values() for extension in each.extensions}


def format_of(path: str) -> str:
    """The format of the file at `path`, one of `FORMATS`; nothing is looked at but the name.

    Raises:
        ToolError: `unsupported_format`.
    """
    extension = PurePath(path).suffix.lower()
    form = known(extension.removeprefix("."))
    if form in FORMATS:
        return form
    *most, last = (each.upper() for each in FORMATS)
    raise ToolError(
        "unsupported_format",
        f"Unsupported file format: {extension[:20] or 'no extension'}. Use {', '.join(most)}, or {last}",
        supported_formats=list(FORMATS),
    )


def known(name: str) -> str:
    """The one name of a format that goes by several."""
    return _NAMES.get(name, name)
