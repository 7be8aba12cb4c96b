"""The embedder put to work off the event loop: queries at once, passages when nobody else wants the core.

    search ──▶ query threads (normal priority) ─────┐
                                                    ├──▶ embedder
    ingestion ─▶ background threads (low priority) ─┘

Two pools, so that a query never stands in a line behind a book.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from kb_contracts import models as m
from kb_contracts.errors import EngineError
from kb_engine.embed import Embedder, EmbedderUnavailable, Vectors
from kb_engine.store.port import Scoring

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)

RETRY_SECONDS = 5.0
_NICENESS = 10
_MOST_QUERY_THREADS = 4


class Encoder:
    """Runs one embedder. Every failure of it is an `embedder_unavailable`; loading is tried again later."""

    def __init__(
        self, embedder: Embedder, *, workers: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._embedder = embedder
        self._clock = clock
        self._queries = ThreadPoolExecutor(
            min(_MOST_QUERY_THREADS, os.cpu_count() or 1), thread_name_prefix="query"
        )
        self._background = ThreadPoolExecutor(
            workers, thread_name_prefix="ingest", initializer=_lower_priority
        )
        self._workers = workers
        self._loading: asyncio.Task[None] | None = None
        self._failed_at: float | None = None
        self.failure: str | None = None

    @property
    def model(self) -> m.ModelInfo:
        """The model, whether or not it is loaded."""
        return m.ModelInfo(
            name=self._embedder.name,
            dimensions=self._embedder.dimensions,
            max_tokens=self._embedder.max_tokens,
            loaded=self._embedder.loaded,
        )

    @property
    def device(self) -> m.DeviceInfo:
        """What it runs on; `threads` is how many passages are embedded at once."""
        return m.DeviceInfo(type=self._embedder.device, threads=self._workers)

    @property
    def scoring(self) -> Scoring:
        """The constants of the score, which belong to the embedder."""
        weights = self._embedder.weights
        return Scoring(
            weight=weights.w,
            saturation=weights.k,
            floor=weights.floor,
            cosine_floor=weights.cosine_floor,
        )

    def count_tokens(self, text: str) -> int:
        """The embedder's own count; blocks."""
        return self._embedder.count_tokens(text)

    @property
    def max_tokens(self) -> int:
        """How many tokens of a passage the model reads."""
        return self._embedder.max_tokens

    async def load(self) -> None:
        """Have the model in memory; callers at the same time share one attempt.

        Raises:
            EngineError: `embedder_unavailable`; for some seconds after a failure without trying again.
        """
        if self._embedder.loaded:
            return
        if self._failed_at is not None and self._clock() - self._failed_at < RETRY_SECONDS:
            raise self._unavailable()
        self.begin_loading()
        if self._loading is not None:
            await asyncio.shield(self._loading)  # who waits may give up; the load goes on for the others
        if self.failure is not None:
            raise self._unavailable()

    def begin_loading(self) -> None:
        """Start to load the model and return at once; who needs it later joins the attempt."""
        if not self._embedder.loaded and (self._loading is None or self._loading.done()):
            self._loading = asyncio.create_task(self._load())

    async def query(self, text: str) -> NDArray[np.float32]:
        """The vector of a query, shape (dimensions,). Raises `embedder_unavailable`."""
        await self.load()
        vectors = await self._embed(self._queries, [text])
        vector: NDArray[np.float32] = vectors[0]
        return vector

    async def passages(self, texts: Sequence[str]) -> Vectors:
        """The vectors of passages, shape (n, dimensions). Raises `embedder_unavailable`."""
        await self.load()
        return await self._embed(self._background, texts)

    async def in_background(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run other work of an ingestion on the threads of low priority."""
        return await asyncio.get_running_loop().run_in_executor(
            self._background, lambda: work(*args, **kwargs)
        )

    async def close(self) -> None:
        """Let the threads end; what has not begun never does."""
        if self._loading is not None:
            await asyncio.wait([self._loading])
        await asyncio.to_thread(self._queries.shutdown, cancel_futures=True)
        await asyncio.to_thread(self._background.shutdown, cancel_futures=True)

    async def _load(self) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._queries, self._embedder.load)
        except EmbedderUnavailable as error:
            self._failed(error)
        except Exception as error:  # a broken model can raise anything; the engine serves words without it
            logger.exception("the embedding model failed to load")
            self._failed(error)
        else:
            self.failure = self._failed_at = None

    async def _embed(self, pool: ThreadPoolExecutor, texts: Sequence[str]) -> Vectors:
        try:
            vectors = await asyncio.get_running_loop().run_in_executor(pool, self._embedder.embed, texts)
        except EmbedderUnavailable as error:
            self._failed(error)
            raise self._unavailable() from error
        self.failure = None
        return vectors

    def _failed(self, error: Exception) -> None:
        self.failure = str(error)
        self._failed_at = self._clock()

    def _unavailable(self) -> EngineError:
        return EngineError(
            "embedder_unavailable",
            f"The embedding model cannot be used: {self.failure}. Searches with mode fts still work.",
            retry_after=RETRY_SECONDS,
        )


def _lower_priority() -> None:
    # On Linux a thread has a priority of its own, by its native id; elsewhere this would slow the process.
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
