"""Which files are taken, told by the end of their names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from types import MappingProxyType

import msgspec

from kb_engine.extract.failures import ExtractionFailed


class Format(msgspec.Struct, frozen=True):
    """One kind of file."""

    name: str
    """The canonical name, the key in FORMATS."""
    label: str
    """The name for people."""
    extensions: tuple[str, ...]
    """Lower case, with the dot."""
    mime_type: str
    doc_type: str
    """What a document made of such a file is said to be in a search's filter."""
    takes_ocr: bool = False
    """Whether it has pages or pixels to look at, so that OCR may be forced."""


_ALL = (
    Format("pdf", "PDF", (".pdf",), "application/pdf", "pdf", takes_ocr=True),
    Format(
        "docx",
        "DOCX",
        (".docx",),
        "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "docx",
    ),
    Format(
        "pptx",
        "PPTX",
        (".pptx",),
        "application/vnd.openxmlformats-officedocument.presentationml.presentation",
        "pptx",
    ),
    Format(
        "xlsx",
        "XLSX",
        (".xlsx",),
        "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        "xlsx",
    ),
    Format("html", "HTML", (".html", ".htm"), "text/html", "html"),
    Format("svg", "SVG", (".svg",), "image/svg+xml", "image"),
    Format("jpg", "JPG", (".jpg", ".jpeg"), "image/jpeg", "image", takes_ocr=True),
    Format("png", "PNG", (".png",), "image/png", "image", takes_ocr=True),
    Format("md", "Markdown", (".md", ".markdown"), "text/markdown", "markdown"),
    Format("txt", "text", (".txt", ".text", ".log"), "text/plain", "text"),
)

FORMATS: Mapping[str, Format] = MappingProxyType({each.name: each for each in _ALL})
"""Every format that is taken, by its canonical name."""

_BY_EXTENSION = {extension: each for each in _ALL for extension in each.extensions}


def format_of(filename: str) -> Format:
    """The format that the end of the name tells, whatever its case.

    Raises ExtractionFailed "unsupported_format" with the list of what is taken.
    """
    extension = PurePath(filename).suffix.lower()
    if (known := _BY_EXTENSION.get(extension)) is not None:
        return known
    raise ExtractionFailed(
        "unsupported_format", f"Unsupported file format: {extension or 'no extension'}. Use {_listing()}"
    )


def _listing() -> str:
    *most, last = (f"{each.label} ({', '.join(each.extensions)})" for each in _ALL)
    return f"{', '.join(most)} or {last}"
