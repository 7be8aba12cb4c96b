"""Files into text: which formats are taken, and how one file is read within limits."""

from kb_engine.extract.child import OnPage
from kb_engine.extract.failures import ExtractionFailed, FailureCode
from kb_engine.extract.formats import FORMATS, Format, format_of
from kb_engine.extract.model import DEFAULT_LIMITS, Extraction, Limits, Page
from kb_engine.extract.reading import extract
from kb_engine.extract.report import PageBegun, PagesCounted, Reading

__all__ = [
    "DEFAULT_LIMITS",
    "FORMATS",
    "Extraction",
    "ExtractionFailed",
    "FailureCode",
    "Format",
    "Limits",
    "OnPage",
    "Page",
    "PageBegun",
    "PagesCounted",
    "Reading",
    "extract",
    "format_of",
]
