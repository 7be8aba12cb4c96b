"""PDF, page by page. A page that holds a picture only, such as a scan, has an empty text."""

from __future__ import annotations

from kb_engine.extract.failures import ExtractionFailed
from kb_engine.extract.formats import FORMATS
from kb_engine.extract.headings import title_of
from kb_engine.extract.ligatures import with_words_of
from kb_engine.extract.model import Extraction, Page
from kb_engine.extract.xberg_reader import read_markdown, read_plain_pages

_FORMAT = FORMATS["pdf"]
# Where readers look for the marks of beginning and end.
_HEAD_BYTES = 1024
_TAIL_BYTES = 2048
_PADDING = b"\0 \t\r\n"


def read_pdf(data: bytes) -> Extraction:
    """Pages numbered from 1. Raises ExtractionFailed."""
    if b"%PDF-" not in data[:_HEAD_BYTES]:
        raise ExtractionFailed("file_corrupt", "The file is not a PDF, although its name says so.")
    # Readers mend a file that was cut off as well as they can, and what is lost is lost in silence.
    if b"%%EOF" not in data[-_TAIL_BYTES:] and b"%%EOF" not in data.rstrip(_PADDING)[-_TAIL_BYTES:]:
        raise ExtractionFailed(
            "file_corrupt",
            "The PDF is cut off: its end is missing. Copy or download it again and try once more.",
        )
    reading = read_markdown(data, _FORMAT.mime_type, _FORMAT.label)
    words = read_plain_pages(data, _FORMAT.mime_type, _FORMAT.label)
    texts = with_words_of(words, reading.pages)
    pages = [Page(number, text) for number, text in enumerate(texts, start=1)]
    title = reading.title or (title_of(pages[0].text) if pages else None)
    return Extraction(pages, title, "text_extraction", _FORMAT.mime_type)
