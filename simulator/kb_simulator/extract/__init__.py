"""Files into text: small honest readers, each loaded when its first file comes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from kb_contracts.models import DocType
from kb_simulator.extract.model import METHOD, Extracted, ExtractionFailed

__all__ = ["FORMATS", "METHOD", "Extracted", "ExtractionFailed", "Format", "extract", "format_of"]

FormatName = Literal["txt", "md", "html", "pdf", "docx"]


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of file; `label` is its name for people, `extensions` are in lower case, with the dot."""

    name: FormatName
    label: str
    doc_type: DocType
    extensions: tuple[str, ...]


FORMATS = (
    Format("pdf", "PDF", "pdf", (".pdf",)),
    Format("docx", "DOCX", "docx", (".docx",)),
    Format("html", "HTML", "html", (".html", ".htm")),
    Format("md", "Markdown", "markdown", (".md", ".markdown")),
    Format("txt", "text", "text", (".txt", ".text", ".log")),
)
"""What is taken."""

_BY_EXTENSION = {extension: known for known in FORMATS for extension in known.extensions}


def format_of(filename: str) -> Format:
    """The format that the end of the name tells, whatever its case.

    Raises:
        ExtractionFailed: `unsupported_format`, with what is taken.
    """
    extension = PurePath(filename).suffix.lower()
    if (known := _BY_EXTENSION.get(extension)) is None:
        taken = ", ".join(f"{each.label} ({', '.join(each.extensions)})" for each in FORMATS)
        raise ExtractionFailed(
            "unsupported_format",
            f"Unsupported file format: {extension or 'no extension'}. Use one of {taken}.",
        )
    return known


def extract(data: bytes, kind: Format) -> Extracted:
    """The text of a file.

    Raises:
        ExtractionFailed: `file_corrupt`, `undecodable_text`, `extraction_failed` or `extraction_memory`.
    """
    # Each reader is imported when it is needed: the standard library's parsers would double the start-up.
    if kind.name == "pdf":
        from kb_simulator.extract.pdf import read_pdf

        return read_pdf(data)
    if kind.name == "docx":
        from kb_simulator.extract.docx import read_docx

        return read_docx(data)
    if kind.name == "html":
        from kb_simulator.extract.html import read_html

        return read_html(data)
    from kb_simulator.extract.plain import read_plain

    return read_plain(data, markdown=kind.name == "md")
