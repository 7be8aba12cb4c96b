"""How far a job is, in steps that never go back.

    no page by OCR    Extracting text 0 of 1, Splitting 0 of 1, Generating embeddings 0..n of n + 1, Storing
    n pages by OCR    Extracting text 0 of 1, Processing page 1..n of n + 3, Splitting, Generating, Storing

Pages are most of the work where there are any, so that what follows counts as two steps more, however many
passages come of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from kb_engine.extract import PageBegun

Progress = Callable[[str, int, int], Awaitable[None]]
"""Called with the step, and how many parts of how many are done; raises `LeaseVoid` to stop the work."""

_AROUND = 3  # steps of a job that reads pages by OCR: its text before them, its vectors and storing after


class Steps:
    """The steps of one job, told to `progress`."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._pages = 0
        self._at = (0, 1)

    async def extracting(self) -> None:
        """The text is being taken out of a file."""
        await self._tell("Extracting text", 0, 1)

    async def page(self, page: PageBegun) -> None:
        """A page is about to be read by OCR."""
        self._pages = page.wanted
        step = f"Processing page {page.number} of {page.pages}"
        await self._tell(step, 1 + page.done, _AROUND + page.wanted)

    async def splitting(self) -> None:
        """How much there is to do is known only afterwards; until then progress stays where it is."""
        await self._after_pages("Splitting into chunks", 0, (0, 1))

    async def embedding(self, done: int, passages: int) -> None:
        """So many passages have their vectors."""
        await self._after_pages("Generating embeddings", 0, (done, passages + 1))

    async def storing(self, passages: int) -> None:
        """All passages have."""
        await self._after_pages("Storing", 1, (passages, passages + 1))

    async def waiting(self) -> None:
        """The embedder is out of order; the job stays where it is."""
        await self._tell("Waiting for the embedding model", *self._at)

    async def _after_pages(self, step: str, later: int, alone: tuple[int, int]) -> None:
        """So many steps after the pages; where there are none, as far as it is `alone`."""
        after = (1 + self._pages + later, self._pages + _AROUND)
        await self._tell(step, *(after if self._pages else alone))

    async def _tell(self, step: str, done: int, total: int) -> None:
        self._at = (done, total)
        await self._progress(step, done, total)
