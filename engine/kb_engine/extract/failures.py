"""The failures that only reading by OCR has."""

from __future__ import annotations

from kb_config.installing import install_command
from kb_readers import ExtractionFailed


def no_ocr(package: str) -> ExtractionFailed:
    """The extra `ocr` is not installed."""
    return ExtractionFailed(
        "ocr_failed",
        f"This engine cannot read pictures: the package {package} is missing. "
        f"Install it with {install_command('ocr')}, then send the file again.",
    )


def too_many_pages(pages: int, most: int) -> ExtractionFailed:
    """More pages than are read by OCR."""
    return ExtractionFailed(
        "extraction_failed",
        f"{pages:,} pages would have to be read by OCR; {most:,} are the most of one file. "
        "Split it and add the parts.",
    )
