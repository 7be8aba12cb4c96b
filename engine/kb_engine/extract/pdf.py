"""The text of a PDF, page by page. A page that holds a picture only, such as a scan, has an empty text."""

from __future__ import annotations

from collections.abc import Callable

from kb_engine.extract.formats import FORMATS
from kb_engine.extract.headings import title_of
from kb_engine.extract.ligatures import with_words_of
from kb_engine.extract.model import Extraction, Page
from kb_engine.extract.page_tree import check_page_tree
from kb_engine.extract.pdf_frame import check_frame
from kb_engine.extract.report import PagesCounted
from kb_engine.extract.xberg_reader import read_markdown, read_plain_pages

_FORMAT = FORMATS["pdf"]


def _nobody(_counted: PagesCounted) -> None:
    """Whom a reading is told that nobody watches."""


def read_pdf(data: bytes, tell: Callable[[PagesCounted], None] = _nobody) -> Extraction:
    """Pages numbered from 1; `tell` is called when they have been counted. Raises ExtractionFailed."""
    check_frame(data)
    check_page_tree(data)
    # First what is quick: whoever follows the work then knows how much there is.
    words = read_plain_pages(data, _FORMAT.mime_type, _FORMAT.label)
    if words:
        tell(PagesCounted(len(words)))
    reading = read_markdown(data, _FORMAT.mime_type, _FORMAT.label)
    texts = with_words_of(words, reading.pages)
    pages = [Page(number, text) for number, text in enumerate(texts, start=1)]
    title = reading.title or (title_of(pages[0].text) if pages else None)
    return Extraction(pages, title, "text_extraction", _FORMAT.mime_type)
