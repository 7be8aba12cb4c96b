"""The pages of a PDF that show words without holding them, such as scans, read by OCR.

    all pages ─▶ those with next to no text ─▶ those that show something more ─▶ rendered ─▶ read
                 (all, where OCR is forced)

A page takes 3 to 25 seconds on one core, by the number of its lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from kb_contracts.api.formats import FORMATS
from kb_engine.extract.failures import too_many_pages
from kb_engine.extract.listing import pages_listed
from kb_engine.extract.pdfium import Pages, open_pages
from kb_engine.extract.picture import Seen, illegible, load_recognizer
from kb_engine.extract.recognized import Pixels
from kb_readers import Extraction, Method, Page, PageBegun
from kb_readers.failures import damaged
from kb_readers.messages import Context
from kb_readers.text import count_letters, has_few_letters

_FORMAT = FORMATS["pdf"]
_COVERED = 0.5  # the part of a page that a picture takes where the page is a scan
_TIMES_THE_TEXT = 2  # what OCR must find to stand for the text of a page


def read_scans(data: bytes, context: Context) -> Extraction:
    """What is known, with the words of pages that hold next to none; where nothing is, all pages by OCR.

    Each page that is read is reported before. Raises ExtractionFailed.
    """
    known = context.known
    with open_pages(data) as pages:
        texts = [] if known is None else [page.text for page in known.pages]
        scans = _Scans(pages, texts + [""] * (len(pages) - len(texts)), forced=known is None)
        wanted = scans.wanted()
        if len(wanted) > context.limits.ocr_pages:
            raise too_many_pages(len(wanted), context.limits.ocr_pages)
        for number, seen in _read(pages, wanted, context.report_progress):
            scans.add(number, seen)
        return scans.extraction(pages.title if known is None else known.title)


def _read(
    pages: Pages, wanted: Sequence[int], report_progress: Callable[[PageBegun], None]
) -> Iterator[tuple[int, Seen | None]]:
    """What is seen on each page; None of one that cannot be shown."""
    read: Callable[[Pixels], Seen] | None = None
    for done, number in enumerate(wanted):
        report_progress(PageBegun(number, len(pages), done, len(wanted)))
        pixels = pages.pixels(number)
        if pixels is None:
            yield number, None
        elif (pixels == pixels[0, 0]).all():
            yield number, Seen("", is_legible=True)  # one colour
        else:
            read = read or load_recognizer()
            yield number, read(pixels)


@dataclass
class _Scans:
    """What is known of the pages of a file. `texts` are theirs, by their number less one."""

    pages: Pages
    texts: list[str]
    forced: bool
    seen: dict[int, str] = field(default_factory=dict)
    hidden: list[int] = field(default_factory=list)
    illegible: list[int] = field(default_factory=list)

    def wanted(self) -> list[int]:
        """The pages to read; those that cannot be shown are noted."""
        numbers = range(1, len(self.pages) + 1)
        few = [number for number in numbers if self.forced or has_few_letters(self.texts[number - 1])]
        return [number for number in few if self._shows_more(number)]

    def _shows_more(self, number: int) -> bool:
        """Whether there is more to see on a page than its text says."""
        look = self.pages.look(number)
        if look is None:
            self.hidden.append(number)
            return False
        return look.covered >= _COVERED if count_letters(self.texts[number - 1]) else not look.is_bare

    def add(self, number: int, seen: Seen | None) -> None:
        """Note what was read on a page."""
        if seen is None:
            self.hidden.append(number)
            return
        self.seen[number] = seen.text
        if not seen.is_legible:
            self.illegible.append(number)

    def extraction(self, title: str | None) -> Extraction:
        """All pages, each with what says more: its text, or what was read on it."""
        found = [self._chosen(number, text) for number, text in enumerate(self.texts, 1)]
        if self.hidden and not any(found):
            raise damaged(_FORMAT.label, f"{pages_listed(self.hidden)} cannot be shown")
        pages = [Page(number, text) for number, text in enumerate(found, 1)]
        return Extraction(pages, title, self._method(found), _FORMAT.mime_type, self._remark())

    def _chosen(self, number: int, text: str) -> str:
        seen = self.seen.get(number, "")
        return seen if count_letters(seen) > _TIMES_THE_TEXT * count_letters(text) else text

    def _method(self, found: Sequence[str]) -> Method:
        if self.forced:
            return "image_analysis"
        by_text = any(chosen and chosen == text for chosen, text in zip(found, self.texts, strict=True))
        by_ocr = any(chosen and chosen != text for chosen, text in zip(found, self.texts, strict=True))
        if by_text:
            return "mixed_extraction" if by_ocr else "text_extraction"
        return "image_analysis" if self.seen else "text_extraction"

    def _remark(self) -> str | None:
        remarks = []
        if self.hidden:
            remarks.append(f"{pages_listed(self.hidden)} cannot be shown and were not read.")
        if self.illegible:
            remarks.append(illegible(f"On {pages_listed(self.illegible).lower()}"))
        return " ".join(remarks) or None
