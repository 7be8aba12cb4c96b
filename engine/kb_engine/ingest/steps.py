"""How far a job is, in steps that never go back.

    no pages          Extracting text 0 of 1, Splitting 0 of 1, Generating 0..n of n + 1, Storing
    n pages of text   Extracting text 0 of 1, then 1 of n + 3, Splitting 2, Generating 2..n + 2, Storing
    n pages by OCR    Extracting text 0 of 1, Processing page 1..n of n + 3, Splitting, Generating, Storing

Where pages are read by OCR they are most of the work, so that what follows counts as two steps more, however
many passages come of it. Where their text is taken, most of the work is in its vectors: a page is done when
its passages have them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from kb_engine.extract import PageBegun, PagesCounted

Progress = Callable[[str, int, int], Awaitable[None]]
"""Called with the step, and how many parts of how many are done; raises `LeaseVoid` to stop the work."""

_AROUND = 3  # steps of a job with pages beside these: see above


class Steps:
    """The steps of one job, told to `progress`."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._pages = 0
        self._text_pages = 0
        self._at = (0, 1)

    async def extracting(self) -> None:
        """The text is being taken out of a file."""
        await self._report("Extracting text", 0, 1)

    async def page(self, page: PagesCounted | PageBegun) -> None:
        """The pages have been counted, or one is about to be read by OCR."""
        if isinstance(page, PagesCounted):
            self._text_pages = page.pages
            await self._report("Extracting text", 1, _AROUND + page.pages)
            return
        self._pages = page.wanted
        step = f"Processing page {page.number} of {page.pages}"
        await self._report(step, 1 + page.done, _AROUND + page.wanted)

    async def splitting(self) -> None:
        """How much there is to do is known only afterwards; until then progress stays where it is."""
        await self._after_pages("Splitting into chunks", 0, 0, (0, 1))

    async def embedding(self, done: int, passages: int, page: int | None = None) -> None:
        """So many passages have their vectors; the next one begins on this page."""
        await self._after_pages("Generating embeddings", 0, (page or 1) - 1, (done, passages + 1))

    async def storing(self, passages: int) -> None:
        """All passages have."""
        await self._after_pages("Storing", 1, self._text_pages, (passages, passages + 1))

    async def waiting(self) -> None:
        """The embedder is out of order; the job stays where it is."""
        await self._report("Waiting for the embedding model", *self._at)

    async def _after_pages(self, step: str, later: int, done: int, alone: tuple[int, int]) -> None:
        """So many steps after the pages by OCR, or pages of text done; else as far as it is `alone`."""
        if self._pages:
            at = (1 + self._pages + later, self._pages + _AROUND)
        elif self._text_pages:
            at = (2 + min(done, self._text_pages), self._text_pages + _AROUND)
        else:
            at = alone
        await self._report(step, *at)

    async def _report(self, step: str, done: int, total: int) -> None:
        self._at = (done, total)
        await self._progress(step, done, total)
