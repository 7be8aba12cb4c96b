"""From a source to a `Prepared` for the store: extract, split, embed. Nothing here is stored.

file ── extract (a child process) ──▶ pages ─┐
                                             ├─▶ chunks ──▶ vectors ──▶ Prepared
note ────────────────────────────────────────┘
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np

from kb_config import tracing
from kb_contracts.api.errors import EngineError
from kb_contracts.api.formats import Format
from kb_engine.chunk import chunks
from kb_engine.embed.context import Passage, in_context
from kb_engine.encoder import RETRY_SECONDS, EmbedderOutage, Encoder, Owner
from kb_engine.extract import extract
from kb_engine.index.languages import PASSAGES, language_of
from kb_engine.index.port import Vectors
from kb_engine.store.port import Prepared, PreparedChunk
from kb_engine.turns import lane_of
from kb_readers.fidelity import fidelity_of
from kb_readers.memory import MemoryBudget
from kb_readers.model import Extraction, Limits, PageBegun, PagesCounted

Progress = Callable[[str, int, int], Awaitable[None]]
"""Called with the step, the parts done and the total; raises `LeaseVoid` to stop the work."""

T = TypeVar("T")

_MOST_WAIT_SECONDS = 30.0
_SLICE = 64  # chunks split off at a time: their tokens are counted within a tenth of a second
_BLAMED = 5  # failures of a batch while the embedder accepts other texts; after that the batch is at fault
_AROUND = 3  # steps of a job with pages, beside the pages: see `Steps`


class Pipeline:
    """Prepares notes and files.

    During an outage of the embedder a job waits without a limit: it was accepted, and its client would not
    send it again. `pause` waits, in seconds. With `context`, passages are embedded with titles and headings.
    The file readers share `memory`.
    """

    def __init__(
        self,
        encoder: Encoder,
        limits: Limits,
        *,
        context: bool = True,
        memory: MemoryBudget | None = None,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._encoder = encoder
        self._limits = limits
        self._context = context
        self._pause = pause
        self._at_once = encoder.device.threads + 1
        self._memory = memory

    async def note(self, text: str, title: str, progress: Progress, *, caller: str = "") -> Prepared:
        """Return a note's chunks and vectors. Raises EngineError: `embedder_unavailable`."""
        owner = Owner(caller, short=lane_of("note", len(text.encode())) == "short")
        return await self._index(Extraction.of_note(text), title, Steps(progress), owner)

    async def file(
        self,
        path: Path,
        kind: Format,
        filename: str,
        title: str | None,
        progress: Progress,
        *,
        caller: str = "",
        force_ocr: bool = False,
        most_pages: int | None = None,
    ) -> Prepared:
        """Return the text, chunks and vectors of a file. The title defaults to the file's own, then its name.

        Raises:
            ManyPages: before the first of more than `most_pages` is read by OCR.
            ExtractionFailed: with a code of the contract.
                EngineError: `embedder_unavailable` if the embedder refuses this text but accepts other texts.
        """
        steps = Steps(progress)

        async def on_progress(pages: PagesCounted | PageBegun) -> None:
            if most_pages is not None and isinstance(pages, PageBegun) and pages.wanted > most_pages:
                raise ManyPages
            await steps.page(pages)

        await steps.extracting()
        with tracing.step("extract text"):
            extraction = await extract(
                path,
                kind,
                force_ocr=force_ocr,
                limits=self._limits,
                on_progress=on_progress,
                memory=self._memory,
            )
        return await self._index(extraction, title or extraction.title or filename, steps, Owner(caller))

    async def embed(self, title: str, chunks: Sequence[PreparedChunk], *, caller: str) -> Vectors:
        """Return the vectors of existing chunks. Raises EngineError: `embedder_unavailable`."""
        owner, embedder = Owner(caller), self._encoder.embedder
        await self._encoder.load()
        vectors = np.empty((len(chunks), embedder.dimensions), dtype=np.float32)
        count_context = lru_cache(embedder.count_tokens)

        def texts_of(some: Sequence[PreparedChunk]) -> list[str]:
            return [self._in_context(title, chunk, count_context) for chunk in some]

        for start in range(0, len(chunks), embedder.batch_size):
            some = chunks[start : start + embedder.batch_size]
            texts = await self._encoder.in_background(owner, partial(texts_of, some))
            vectors[start : start + len(some)] = await self._encoder.passages(texts, owner)
        return vectors

    async def _index(self, extraction: Extraction, title: str, steps: Steps, owner: Owner) -> Prepared:
        await steps.splitting()
        await self._retry_on_outage(self._encoder.load, steps)
        with tracing.step("split"):
            pieces, texts = await self._split(extraction, title, owner)
        vectors = await self._vectors(pieces, texts, steps, owner)
        first = [piece.text for piece in pieces[:PASSAGES]]
        return Prepared(
            title=title,
            extraction_method=extraction.method,
            pages=extraction.page_count,
            chunks=pieces,
            vectors=vectors,
            status_reason=extraction.remark or (None if pieces else _why_empty(extraction)),
            fidelity=None if extraction.is_note else fidelity_of(extraction),
            language=await asyncio.to_thread(language_of, title, first),
        )

    async def _split(
        self, extraction: Extraction, title: str, owner: Owner
    ) -> tuple[list[PreparedChunk], list[str]]:
        """Return the chunks, and the text to embed for each."""
        stopped = threading.Event()

        def count_tokens(passage: str) -> int:
            # A thread cannot be cancelled, so it checks the flag at each passage.
            if stopped.is_set():
                raise LeaseVoid
            return self._encoder.embedder.count_tokens(passage)

        max_tokens = self._encoder.embedder.max_tokens
        found = chunks(extraction, count_tokens=count_tokens, max_tokens=max_tokens)
        pieces: list[PreparedChunk] = []
        texts: list[str] = []
        count_context = lru_cache(count_tokens)  # many passages have the same headings

        def next_pieces() -> list[PreparedChunk]:
            some = list(islice(found, _SLICE))
            texts.extend(self._in_context(title, piece, count_context) for piece in some)
            return some

        try:
            while some := await self._encoder.in_background(owner, next_pieces):
                pieces += some
            return pieces, texts
        finally:
            stopped.set()

    def _in_context(self, title: str, piece: PreparedChunk, count: Callable[[str], int]) -> str:
        """Return the text to embed for a chunk: with its context, as far as the model's window allows."""
        if not self._context:
            return piece.text
        room = self._encoder.embedder.max_tokens - piece.tokens
        passage = Passage(title, piece.heading, piece.text)
        return in_context(passage, lambda context: count(context) <= room)

    async def _vectors(
        self, chunks: Sequence[PreparedChunk], texts: Sequence[str], steps: Steps, owner: Owner
    ) -> Vectors:
        """Return the vectors of the texts, computed in batches.

        Batches are awaited in document order, so that progress never goes back. `_at_once` batches are in
        progress together: enough to keep each thread busy, and few enough that another caller's work has its
        turn soon.
        """
        vectors = np.empty((len(texts), self._encoder.model.dimensions), dtype=np.float32)
        size = self._encoder.embedder.batch_size
        starts = range(0, len(texts), size)
        batches = (_Batch(self._encoder, texts[start : start + size], owner) for start in starts)
        under_way: deque[_Batch] = deque()
        try:
            for start in starts:
                await steps.embedding(start, len(texts), chunks[start].page)
                for batch in islice(batches, self._at_once - len(under_way)):
                    batch.begin()
                    under_way.append(batch)
                oldest = under_way[0]
                vectors[start : start + size] = await self._retry_on_outage(oldest.embed, steps)
                under_way.popleft()
        finally:
            await asyncio.gather(*(batch.give_up() for batch in under_way))
        await steps.storing(len(texts))
        return vectors

    async def _retry_on_outage(self, work: Callable[[], Awaitable[T]], steps: Steps) -> T:
        """Repeat `work` after each outage of the embedder, with a growing pause; the job reports the wait."""
        wait = RETRY_SECONDS
        while True:
            try:
                return await work()
            except EmbedderOutage as error:
                await steps.waiting()
                await self._pause(max(wait, error.seconds))
                wait = min(2 * wait, _MOST_WAIT_SECONDS)


class LeaseVoid(Exception):
    """The job was cancelled or its lease lost: stop, and store nothing."""


class ManyPages(Exception):
    """More pages need OCR than the caller allows."""


class Steps:
    """Progress of a job in steps that never go back, reported to `progress`.

        no pages          Extracting text 0 of 1, Splitting 0 of 1, Generating 0..n of n + 1, Storing
        n pages of text   Extracting text 0 of 1, then 1 of n + 3, Splitting 2, Generating 2..n + 2, Storing
        n pages by OCR    Extracting text 0 of 1, Processing page 1..n of n + 3, Splitting, Generating ...

    OCR of pages is most of the work of a job, so the rest counts as two more steps, regardless of the number
    of passages. For pages with a text layer, embedding is most of the work: a page is done when its passages
    have vectors.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._pages = 0
        self._text_pages = 0
        self._at = (0, 1)

    async def extracting(self) -> None:
        await self._report("Extracting text", 0, 1)

    async def page(self, page: PagesCounted | PageBegun) -> None:
        if isinstance(page, PagesCounted):
            self._text_pages = page.pages
            await self._report("Extracting text", 1, _AROUND + page.pages)
            return
        self._pages = page.wanted
        step = f"Processing page {page.number} of {page.pages}"
        await self._report(step, 1 + page.done, _AROUND + page.wanted)

    async def splitting(self) -> None:
        """Report splitting. The number of chunks is known only afterwards, so progress does not advance."""
        await self._after_pages("Splitting into chunks", 0, 0, (0, 1))

    async def embedding(self, done: int, passages: int, page: int | None = None) -> None:
        """Report `done` embedded passages; the next one begins on `page`."""
        await self._after_pages("Generating embeddings", 0, (page or 1) - 1, (done, passages + 1))

    async def storing(self, passages: int) -> None:
        await self._after_pages("Storing", 1, self._text_pages, (passages, passages + 1))

    async def waiting(self) -> None:
        """Report an outage of the embedder; progress does not change."""
        await self._report("Waiting for the embedding model", *self._at)

    async def _after_pages(self, step: str, later: int, done: int, alone: tuple[int, int]) -> None:
        """Report `later` steps after OCR, or `done` pages of text; without pages, the progress `alone`."""
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


class _Batch:
    """Passages to embed, retried until the passages themselves are known to be the cause of failures."""

    def __init__(self, encoder: Encoder, texts: Sequence[str], owner: Owner) -> None:
        self._encoder = encoder
        self._owner = owner
        self._texts = texts
        self._begun: asyncio.Task[Vectors] | None = None
        self._blamed = 0

    def begin(self) -> None:
        """Start embedding now; `embed` waits for the result."""
        self._begun = asyncio.create_task(self._attempt())

    async def give_up(self) -> None:
        """Cancel the batch; work that has not started is skipped."""
        if self._begun is not None:
            self._begun.cancel()
            await asyncio.gather(self._begun, return_exceptions=True)

    async def embed(self) -> Vectors:
        """Return the vectors. Raises EmbedderOutage, or EngineError if the passages are at fault."""
        begun, self._begun = self._begun, None
        if begun is not None and begun.done() and isinstance(begun.exception(), EmbedderOutage):
            begun = None  # it failed earlier, in the background, and may succeed by now
        return await (begun or self._attempt())

    async def _attempt(self) -> Vectors:
        try:
            return await self._encoder.passages(self._texts, self._owner)
        except EmbedderOutage as error:
            if await self._encoder.probe():
                self._blamed += 1
            if self._blamed < _BLAMED:
                raise
            why = f"It failed {_BLAMED} times on one passage of this, and answered others in between."
            raise EngineError("embedder_unavailable", f"{error.detail} {why}") from error


def _why_empty(extraction: Extraction) -> str:
    pages = extraction.page_count
    if extraction.method == "image_analysis":
        return f"No words were recognized {f'on its pages ({pages:,})' if pages else 'in the picture'}."
    if pages is None:
        return "There is no text in it."
    return f"There is no text on its pages ({pages:,}), and nothing to be seen that could be read."
