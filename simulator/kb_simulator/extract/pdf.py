"""PDF into page texts, as far as can be honestly said with the standard library alone.

Read are uncompressed and Flate streams, object streams, and strings in fonts of one byte a character.
Text that was drawn with composite fonts, or scanned, is not read: its page is empty, never wrong.

    pdf_file     objects, streams, the tree of pages
    pdf_content  what a page's content stream shows
"""

from __future__ import annotations

from kb_simulator.engine.chunking import Page
from kb_simulator.extract.model import MAX_TEXT_CHARS, Extracted, too_much_text
from kb_simulator.extract.pdf_content import shown
from kb_simulator.extract.pdf_file import PdfFile


def read_pdf(data: bytes) -> Extracted:
    """The text of each page.

    Raises:
        ExtractionFailed: `file_corrupt`, `file_encrypted` or `extraction_memory`.
    """
    pages: list[Page] = []
    size = 0
    for number, content in enumerate(PdfFile(data).page_contents(), start=1):
        pages.append(Page(number, shown(content)))
        size += len(pages[-1].text)
        if size > MAX_TEXT_CHARS:
            raise too_much_text()
    return Extracted(pages, headings=False)
