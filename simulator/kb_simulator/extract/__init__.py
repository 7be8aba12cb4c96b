"""Files into text: small honest readers, each loaded when its first file comes."""

from __future__ import annotations

from functools import partial

from kb_contracts.api import formats
from kb_contracts.api.formats import FORMATS, Format
from kb_simulator.extract.model import METHOD, Extracted, ExtractionFailed

__all__ = ["FORMATS", "METHOD", "Extracted", "ExtractionFailed", "Format", "extract", "format_of"]


def format_of(filename: str) -> Format:
    """The format that the end of the name tells, whatever its case.

    Raises:
        ExtractionFailed: `unsupported_format`, with what is taken.
    """
    try:
        return formats.format_of(filename)
    except formats.UnsupportedFormat as error:
        raise ExtractionFailed("unsupported_format", error.message) from error


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
