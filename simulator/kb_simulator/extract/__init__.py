"""Files into text: small honest readers, each loaded when its first file comes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import Literal

from kb_contracts.models import DocType
from kb_simulator.extract.model import METHOD, Extracted, ExtractionFailed

__all__ = ["FORMATS", "METHOD", "Extracted", "ExtractionFailed", "Format", "extract", "format_of"]

FormatName = Literal["txt", "md", "html", "pdf", "docx", "pptx", "xlsx", "svg", "jpg", "png"]


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of file; `label` is its name for people, `extensions` are in lower case, with the dot.

    `takes_ocr`: whether it has pages or pixels to look at, so that OCR may be forced.
    """

    name: FormatName
    label: str
    doc_type: DocType
    extensions: tuple[str, ...]
    takes_ocr: bool = False


FORMATS = (
    Format("pdf", "PDF", "pdf", (".pdf",), takes_ocr=True),
    Format("docx", "DOCX", "docx", (".docx",)),
    Format("pptx", "PPTX", "pptx", (".pptx",)),
    Format("xlsx", "XLSX", "xlsx", (".xlsx",)),
    Format("html", "HTML", "html", (".html", ".htm")),
    Format("svg", "SVG", "image", (".svg",)),
    Format("jpg", "JPG", "image", (".jpg", ".jpeg"), takes_ocr=True),
    Format("png", "PNG", "image", (".png",), takes_ocr=True),
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


def extract(data: bytes, kind: Format, *, force_ocr: bool = False) -> Extracted:
    """The text of a file.

    Raises:
        ExtractionFailed: `file_corrupt`, `file_encrypted`, `undecodable_text`, `extraction_failed`,
            `extraction_memory` or `ocr_failed`, which every picture gives, and every PDF of which OCR is
            forced.
    """
    if force_ocr:
        raise _no_ocr()
    # Each reader is imported when it is needed: the standard library's parsers would double the start-up.
    match kind.name:
        case "pdf":
            from kb_simulator.extract.pdf import read_pdf as read
        case "docx":
            from kb_simulator.extract.docx import read_docx as read
        case "pptx":
            from kb_simulator.extract.pptx import read_pptx as read
        case "xlsx":
            from kb_simulator.extract.xlsx import read_xlsx as read
        case "html":
            from kb_simulator.extract.html import read_html as read
        case "svg":
            from kb_simulator.extract.svg import read_svg as read
        case "jpg" | "png":
            raise _no_ocr()
        case _:
            from kb_simulator.extract.plain import read_plain

            read = partial(read_plain, markdown=kind.name == "md")
    return read(data)


def _no_ocr() -> ExtractionFailed:
    return ExtractionFailed(
        "ocr_failed", "The simulator reads no pictures, nor does an engine without the extra `ocr`."
    )
