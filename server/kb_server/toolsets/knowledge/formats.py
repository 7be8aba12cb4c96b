"""The file formats that `knowledge-add` takes, told by the end of a name."""

from __future__ import annotations

from pathlib import PurePath

from kb_server.tool import ToolError

FORMATS = ("pdf", "docx", "pptx", "xlsx", "html", "jpg", "png", "svg")

TAKE_OCR = ("pdf", "jpg", "png")
"""Those that have pages or pixels to look at."""

_ALSO = {"htm": "html", "jpeg": "jpg"}


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
    """The one name of a format that goes by two."""
    return _ALSO.get(name, name)
