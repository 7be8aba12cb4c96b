"""From a source to what the store takes: extract, split, embed. Nothing here is stored.

file ── extract (a child process) ──▶ pages ─┐
                                             ├─▶ chunks ──▶ vectors ──▶ Prepared
note ────────────────────────────────────────┘
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from kb_contracts.errors import EngineError
from kb_engine.chunk import chunk
from kb_engine.embed import Vectors
from kb_engine.encoder import RETRY_SECONDS, Encoder
from kb_engine.extract import Extraction, Limits, Page, extract, format_of
from kb_engine.store.port import Prepared, PreparedChunk

T = TypeVar("T")

Progress = Callable[[str, int, int], Awaitable[None]]
"""Called with the step, and how many parts of how many are done; raises `LeaseVoid` to stop the work."""

_BATCH = 4  # passages a call: a stop is heard in between, and no thread is gone for long
_ATTEMPTS = 3


class LeaseVoid(Exception):
    """The job was cancelled, or another worker has it: stop, and store nothing."""


async def no_progress(_step: str, _done: int, _total: int) -> None:
    """The `Progress` of work that nobody watches."""


class Pipeline:
    """Prepares notes and files. `pause` waits out an embedder that is down, in seconds."""

    def __init__(
        self,
        encoder: Encoder,
        limits: Limits,
        *,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._encoder = encoder
        self._limits = limits
        self._pause = pause

    async def note(self, text: str, title: str, progress: Progress = no_progress) -> Prepared:
        """A note's chunks and vectors. Raises EngineError: `embedder_unavailable`."""
        return await self._index(_as_pages(text), title, progress)

    async def file(self, path: Path, filename: str, title: str | None, progress: Progress) -> Prepared:
        """A file's text, chunks and vectors; without a `title`, its own or its name.

        Raises:
            ExtractionFailed: with a code of the contract.
            EngineError: `embedder_unavailable`.
        """
        await progress("Extracting text", 0, 1)
        extraction = await extract(path, format_of(filename), limits=self._limits)
        return await self._index(extraction, title or extraction.title or filename, progress)

    async def _index(self, extraction: Extraction, title: str, progress: Progress) -> Prepared:
        # How much there is to do is known only now; until then progress stays at nought, never falls.
        await progress("Splitting into chunks", 0, 1)
        chunks = await self._split(extraction)
        vectors = await self._vectors([piece.text for piece in chunks], progress)
        return Prepared(
            title=title,
            extraction_method=extraction.method,
            pages=_count_pages(extraction),
            chunks=chunks,
            vectors=vectors,
            status_reason=None if chunks else _why_empty(extraction),
        )

    async def _split(self, extraction: Extraction) -> list[PreparedChunk]:
        await self._patiently(self._encoder.load)
        stopped = threading.Event()

        def count_tokens(passage: str) -> int:
            # A thread cannot be cancelled: it asks with every passage whether anybody still wants it.
            if stopped.is_set():
                raise LeaseVoid
            return self._encoder.count_tokens(passage)

        try:
            return await self._encoder.in_background(
                _chunks, extraction, count_tokens, self._encoder.max_tokens
            )
        finally:
            stopped.set()

    async def _vectors(self, texts: Sequence[str], progress: Progress) -> Vectors:
        vectors = np.empty((len(texts), self._encoder.model.dimensions), dtype=np.float32)
        for start in range(0, len(texts), _BATCH):
            await progress("Generating embeddings", start, len(texts) + 1)
            batch = texts[start : start + _BATCH]
            vectors[start : start + len(batch)] = await self._patiently(
                partial(self._encoder.passages, batch)
            )
        await progress("Storing", len(texts), len(texts) + 1)
        return vectors

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """Wait for an embedder that is out of order, but not for ever."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return await work()
            except EngineError:
                await self._pause(RETRY_SECONDS)
        return await work()


def _as_pages(text: str) -> Extraction:
    # Agents write Markdown: a note's headings are worth keeping, and plain text loses nothing by it.
    return Extraction([Page(None, text)], None, "text_extraction", "text/markdown")


def _count_pages(extraction: Extraction) -> int | None:
    numbers = [page.number for page in extraction.pages if page.number is not None]
    return max(numbers, default=None)


def _why_empty(extraction: Extraction) -> str:
    if extraction.method == "image_analysis":
        return "No words were recognized in the picture."
    if (pages := _count_pages(extraction)) is None:
        return "There is no text in it."
    return f"No text was found on its pages ({pages}). Scanned pages need a text layer to be found."


def _chunks(
    extraction: Extraction, count_tokens: Callable[[str], int], max_tokens: int
) -> list[PreparedChunk]:
    return [
        PreparedChunk(
            text=piece.text,
            page=piece.page,
            heading=piece.heading,
            start=piece.start,
            end=piece.end,
            tokens=piece.tokens,
        )
        for piece in chunk(extraction, count_tokens=count_tokens, max_tokens=max_tokens)
    ]
