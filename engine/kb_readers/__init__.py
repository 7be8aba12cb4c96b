"""Files into text, for the engine and for its simulator.

    file ── format ──▶ txt, md     decoded in a thread
                       the others  read in a child process with limits: `child` starts it, `worker` runs in it
                       jpg, png    no reader here: the engine brings its own, by OCR

A reader is a function from the bytes of one file to an `Extraction`. What it is given may be hostile, so it
runs where it can be ended: a file that breaks a limit, or its reader, fails alone. The readers stand on the
standard library, but for PDF, which PDFium reads (package pypdfium2).
"""

from kb_readers.child import OnProgress, read_in_child
from kb_readers.failures import ExtractionFailed, FailureCode
from kb_readers.model import (
    DEFAULT_LIMITS,
    Extraction,
    Limits,
    Method,
    Page,
    PageBegun,
    PagesCounted,
    Progress,
    Reader,
)
from kb_readers.readers import READERS, format_of, ignore_progress, read_file, require_reader

__all__ = [
    "DEFAULT_LIMITS",
    "READERS",
    "Extraction",
    "ExtractionFailed",
    "FailureCode",
    "Limits",
    "Method",
    "OnProgress",
    "Page",
    "PageBegun",
    "PagesCounted",
    "Progress",
    "Reader",
    "format_of",
    "ignore_progress",
    "read_file",
    "read_in_child",
    "require_reader",
]
