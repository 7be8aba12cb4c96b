"""Files into text: the readers of `kb_readers`, and those of the engine's own, which read pictures by OCR."""

from kb_engine.extract.reading import extract
from kb_readers import (
    DEFAULT_LIMITS,
    Extraction,
    ExtractionFailed,
    FailureCode,
    Limits,
    OnProgress,
    Page,
    PageBegun,
    PagesCounted,
    Progress,
    format_of,
)

__all__ = [
    "DEFAULT_LIMITS",
    "Extraction",
    "ExtractionFailed",
    "FailureCode",
    "Limits",
    "OnProgress",
    "Page",
    "PageBegun",
    "PagesCounted",
    "Progress",
    "extract",
    "format_of",
]
