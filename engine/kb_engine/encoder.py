"""Runs the embedder off the event loop: queries at once, passages on threads of low priority.

    search ───────────▶ query threads (normal priority) ──────┐
    short notes ──────▶ short threads (a lower one) ──────────┼──▶ embedder
    all other work ───▶ background threads (the lowest) ──────┘

There are three pools, so that a query never waits behind a note, nor a note behind a book. Work comes in
slices, and within a pool the callers take turns slice by slice (`turns.py`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kb_config import tracing
from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_engine.embed.protocol import Embedder, EmbedderUnavailable, TextRefused
from kb_engine.index.port import Vectors
from kb_engine.priority import lower_priority
from kb_engine.turns import Turns

A = TypeVar("A")
T = TypeVar("T")

logger = logging.getLogger(__name__)

RETRY_SECONDS = 5.0
_SHORT_NICENESS = 5
_NICENESS = 10
_PROBE = "kb"
_KEPT_QUERIES, _KEPT_CHARS = 512, 1_000
"""Number of queries whose vectors are kept, and their maximum length in characters."""


class EmbedderOutage(EngineError):
    """The embedder is temporarily unavailable; retry after `seconds`."""

    def __init__(self, why: str, seconds: float) -> None:
        super().__init__(
            "embedder_unavailable",
            f"The embedding model cannot be used: {why}. Searches with mode fts still work.",
            retry_after=seconds,
        )
        self.seconds = seconds


@dataclass(frozen=True, slots=True)
class Owner:
    """The caller of a slice of work; `short` work has a pool of its own."""

    caller: str = ""
    short: bool = False


class Encoder:
    """Runs one embedder. `failure` is the reason of an outage, or None."""

    def __init__(
        self, embedder: Embedder, *, workers: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.embedder = embedder
        self._clock = clock
        self._queries = ThreadPoolExecutor(embedder.queries_at_once, thread_name_prefix="query")
        self._short = _TurnsPool(workers, "short", _SHORT_NICENESS)
        self._background = _TurnsPool(workers, "ingest", _NICENESS)
        self._workers = workers
        self._loading: asyncio.Task[object] | None = None
        self._backoff_until: float | None = None
        self._kept: OrderedDict[str, NDArray[np.float32]] = OrderedDict()
        """The vectors of the last queries, the latest at the end."""
        self.failure: str | None = None

    @property
    def model(self) -> m.ModelInfo:
        """The model's properties, loaded or not."""
        return m.ModelInfo(
            name=self.embedder.name,
            dimensions=self.embedder.dimensions,
            max_tokens=self.embedder.max_tokens,
            loaded=self.embedder.loaded,
        )

    @property
    def device(self) -> m.DeviceInfo:
        """The embedder's device; `threads` is the number of concurrent passage batches."""
        return m.DeviceInfo(type=self.embedder.device, threads=self._workers)

    async def load(self) -> None:
        """Load the model unless it is loaded; concurrent callers share one attempt.
        Raises EmbedderOutage: loading failed, or failed less than the backoff ago (then without a new
        attempt).
        """
        if self._backing_off:
            raise self._unavailable()
        if self.embedder.loaded:
            return
        self.begin_loading()
        if self._loading is not None:
            await asyncio.shield(self._loading)  # a cancelled caller must not cancel the load for the rest
        if self.failure is not None:
            raise self._unavailable()

    def begin_loading(self) -> None:
        """Start loading the model and return at once; later callers of `load` join the attempt."""
        if not self.embedder.loaded and (self._loading is None or self._loading.done()):
            self._loading = asyncio.create_task(self._load())

    def begin_recovery(self) -> None:
        """During an outage, start a check whether the embedder works again, and return at once."""
        if (
            self.failure is None
            or self._backing_off
            or (self._loading is not None and not self._loading.done())
        ):
            return
        self._loading = asyncio.create_task(self.probe() if self.embedder.loaded else self._load())

    async def query(self, text: str) -> NDArray[np.float32]:
        """Return the vector of a query, shape (dimensions,). It is kept, for the query may come again.

        Raises:
            EmbedderOutage: the embedder is unavailable.
            EngineError: `embedder_unavailable`, it refuses this text but accepts other texts.
        """
        with tracing.step("embed query"):
            await self.load()
            if len(text) <= self.embedder.quick_chars:
                return await self._run(_here, self.embedder.embed_query, text)
            if (kept := self._kept.pop(text, None)) is None:
                kept = await self._run(self._queries.submit, self.embedder.embed_query, text)
                kept.flags.writeable = False
            if len(text) <= _KEPT_CHARS:
                self._kept[text] = kept
                if len(self._kept) > _KEPT_QUERIES:
                    self._kept.popitem(last=False)
            return kept

    async def passages(self, texts: Sequence[str], owner: Owner) -> Vectors:
        """Return the vectors of passages, shape (n, dimensions), as one slice. Raises as `query`."""
        with tracing.step("embed passages"):
            await self.load()
            submit = partial(self._pool(owner).submit, owner.caller)
            return await self._run(submit, self.embedder.embed, texts)

    async def with_tokenizer(self, work: Callable[[Callable[[str], int]], T]) -> T:
        """Call `work` with the token counter, at the priority of queries. Raises as `query`."""
        await self.load()
        return await self._run(self._queries.submit, work, self.embedder.count_tokens)

    async def probe(self) -> bool:
        """True if the embedder accepts a short plain text."""
        try:
            await self.load()
            await self._run(self._queries.submit, self.embedder.embed_query, _PROBE)
        except EngineError:
            return False
        return True

    async def in_background(self, owner: Owner, work: Callable[[], T]) -> T:
        """Run a slice of other ingestion work on the low-priority threads."""
        return await asyncio.wrap_future(self._pool(owner).submit(owner.caller, work))

    async def close(self) -> None:
        """Shut down the threads; pending work is cancelled, and no remote endpoint is waited for."""
        await asyncio.to_thread(self.embedder.close)
        if self._loading is not None:
            await asyncio.wait([self._loading])
        await asyncio.to_thread(self._queries.shutdown, cancel_futures=True)
        await asyncio.to_thread(self._short.close)
        await asyncio.to_thread(self._background.close)

    async def _load(self) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._queries, self.embedder.load)
        except EmbedderUnavailable as error:
            self._failed(error, max(RETRY_SECONDS, error.retry_after))
        except Exception as error:  # a broken model can raise anything; full-text search works without it
            logger.exception("the embedding model failed to load")
            self._failed(error, RETRY_SECONDS)
        else:
            self._succeeded()

    def _pool(self, owner: Owner) -> _TurnsPool:
        return self._short if owner.short else self._background

    async def _run(
        self, submit: Callable[[Callable[[], T]], Future[T]], work: Callable[[A], T], argument: A
    ) -> T:
        try:
            future = submit(partial(work, argument))
            # To await a future that is done would take a turn of the event loop.
            answer = future.result() if future.done() else await asyncio.wrap_future(future)
        except EmbedderUnavailable as error:
            self._failed(error, error.retry_after)
            raise self._unavailable() from error
        except TextRefused as error:
            self._succeeded()
            raise EngineError("embedder_unavailable", f"{error}.") from error
        self._succeeded()
        return answer

    @property
    def _backing_off(self) -> bool:
        """True during the backoff after a failure."""
        return self._backoff_until is not None and self._clock() < self._backoff_until

    def _succeeded(self) -> None:
        if self.failure is not None:
            logger.info("the embedding model works again")
        self.failure = self._backoff_until = None

    def _failed(self, error: Exception, pause: float) -> None:
        if self.failure != str(error):
            logger.warning("the embedding model does not work", extra={"why": str(error)})
        self.failure = str(error)
        self._backoff_until = self._clock() + pause

    def _unavailable(self) -> EmbedderOutage:
        left = 0.0 if self._backoff_until is None else self._backoff_until - self._clock()
        return EmbedderOutage(self.failure or "it is not loaded", left if left > 0 else RETRY_SECONDS)


def _here(work: Callable[[], T]) -> Future[T]:
    """Call `work` on this thread."""
    done: Future[T] = Future()
    done.set_result(work())
    return done


class _TurnsPool:
    """Threads of a lower priority; the callers take turns after each slice of work."""

    def __init__(self, threads: int, name: str, niceness: int) -> None:
        self._threads = ThreadPoolExecutor(
            threads, thread_name_prefix=name, initializer=lower_priority, initargs=(niceness,)
        )
        self._turns: Turns[tuple[Future[Any], Callable[[], Any]]] = Turns()
        self._lock = threading.Lock()

    def submit(self, caller: str, work: Callable[[], T]) -> Future[T]:
        """Queue a slice; it is skipped if its future is cancelled before its turn."""
        future: Future[T] = Future()
        with self._lock:
            self._turns.add(caller, (future, work))
        self._threads.submit(self._do_next)
        return future

    def close(self) -> None:
        """Wait for the running slices and cancel the pending ones."""
        self._threads.shutdown(cancel_futures=True)
        while self._turns:
            self._turns.next()[0].cancel()

    def _do_next(self) -> None:
        with self._lock:
            future, work = self._turns.next()
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again from the future
            future.set_exception(error)
