"""Web pages saved with their resources (MHTML), in the format of a mail: the page alone, read as HTML.

Pictures and styles are not read. Frames are, if the page has no text of its own.
"""

from __future__ import annotations

import codecs

from msgspec.structs import replace

from kb_contracts.api.formats import FORMATS
from kb_readers.failures import damaged
from kb_readers.html import read_html
from kb_readers.mail import pages_in
from kb_readers.model import Extraction, Page

_FORMAT = FORMATS["mhtml"]


def read_mhtml(data: bytes) -> Extraction:
    """Return the text as one page without a number, with the title of the HTML. Raises ExtractionFailed."""
    pages = list(pages_in(data, _FORMAT))
    if not any(page.strip() for page in pages):
        raise damaged(_FORMAT.label, "it has no HTML")
    first = _extraction(pages[0])
    text, remark, left_out = first.pages[0].text, None, list[str]()
    if not text:
        text = "\n\n".join(_extraction(page).pages[0].text for page in pages[1:] if page.strip())
    elif len(pages) > 1:
        left_out = [f"frame {number}" for number in range(1, len(pages))]
        remark = f"Frames of the page are not read: {len(left_out):,}"
    return replace(
        first, pages=[Page(None, text)], mime_type=_FORMAT.mime_type, remark=remark, left_out=left_out
    )


def _extraction(page: str) -> Extraction:
    return read_html(codecs.BOM_UTF8 + page.encode("utf-8", "replace"))
