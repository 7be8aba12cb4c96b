"""The environment of a worker: the real store and spool, and an embedder that a test can hold or break."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

from kb_contracts.api import models as m
from kb_engine.embed.hashing import HashEmbedder
from kb_engine.embed.protocol import EmbedderUnavailable
from kb_engine.encoder import Encoder
from kb_engine.index.port import Vectors
from kb_engine.ingest.pipeline import Pipeline
from kb_engine.ingest.workers import JobWaiters, StoreEventHandler, Workers
from kb_engine.spool import FolderSpool
from kb_engine.store.port import DEFAULT_BOUNDS, Bounds, EmbedderIdentity, NewJob
from kb_engine.store.repository import jobs
from kb_engine.store.sqlite.sqlite_store import SqliteStore, open_sqlite
from kb_engine.turns import LANES
from kb_readers.model import Limits
from tests.support.patience import ANSWER_SECONDS
from tests.support.stores import new_file, new_note

HELD = "held"


class TestEmbedder(HashEmbedder):
    """A hashing embedder that a test can hold or break.

    Texts with the word `held` wait until `release` or `close`. Calls fail while `failures` is above 0, and
    calls with a text that contains `poison` always fail.
    """

    __test__ = False
    quick_chars = 0

    def __init__(self) -> None:
        self.release = threading.Event()
        self.entered = threading.Event()
        self.texts: list[str] = []
        self.failures = 0
        self.rest = 0.0
        self.poison: str | None = None
        self.error: type[Exception] = EmbedderUnavailable

    def embed(self, texts: Sequence[str]) -> Vectors:
        self.texts += texts
        if self.failures:
            self.failures -= 1
            raise self._failure()
        if self.poison is not None and any(self.poison in text for text in texts):
            raise self._failure()
        if any(HELD in text for text in texts):
            self.entered.set()
            assert self.release.wait(ANSWER_SECONDS)
        return super().embed(texts)

    def close(self) -> None:
        self.release.set()

    def _failure(self) -> Exception:
        if self.error is EmbedderUnavailable:
            return EmbedderUnavailable("out of order", retry_after=self.rest)
        return self.error("out of order")


@dataclass
class Parts:
    """Workers and everything that they use."""

    store: SqliteStore
    spool: FolderSpool
    embedder: TestEmbedder
    encoder: Encoder
    waiters: JobWaiters
    workers: Workers
    pauses: list[float]

    async def accept(self, text: str, **changes: Any) -> str:
        """Queue a note; return the job's id."""
        return await self._queue(note(text, **changes))

    async def accept_file(self, name: str, data: bytes, *, caller: str = "") -> str:
        job_id = str(uuid4())
        async with self.spool.receive(job_id) as file:
            await file.write(data)
        job = new_file(
            name,
            id=job_id,
            title=name,
            tags=[],
            sha256=sha256(data).hexdigest(),
            size_bytes=len(data),
            spool=job_id,
            filename=name,
            caller=caller,
        )
        return await self._queue(job)

    async def hold(self) -> str:
        """Queue a note that is held during its embedding, and wait for that; return the job's id."""
        job_id = await self.accept(HELD)
        await self.embedding()
        return job_id

    async def embedding(self) -> None:
        """Wait until a held text is being embedded."""
        assert await asyncio.to_thread(self.embedder.entered.wait, ANSWER_SECONDS)

    async def cancel(self, job_id: str) -> None:
        await self.store.once(None, jobs.cancel, job_id)
        await self.workers.cancel(job_id)

    async def done(self, text: str) -> m.Job:
        """Queue a note; return its job after the end."""
        return await self.ended(await self.accept(text))

    async def job(self, job_id: str) -> m.Job:
        return await self.store.read(jobs.find, job_id)

    async def ended(self, job_id: str) -> m.Job:
        job = await self.waiters.wait(job_id, ANSWER_SECONDS, self.job)
        assert job.finished_at is not None, job
        return job

    async def _queue(self, job: NewJob) -> str:
        await self.store.once(None, jobs.accept, job)
        return job.id


def note(text: str, **changes: Any) -> NewJob:
    return new_note(text, **{"title": text[:20], "tags": [], **changes})


@asynccontextmanager
async def parts_in(
    folder: Path,
    *,
    count: int = 1,
    bounds: Bounds = DEFAULT_BOUNDS,
    store: Callable[[SqliteStore], SqliteStore] = lambda store: store,
) -> AsyncIterator[Parts]:
    """Yield the parts, with `count` jobs of one caller in each lane; all is stopped afterwards."""
    embedder = TestEmbedder()
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)  # and the encoder's clock advances by the same time

    identity = EmbedderIdentity(embedder.name, embedder.dimensions)
    base = store(await open_sqlite(folder / "kb.sqlite", embedder=identity, bounds=bounds))
    (folder / "spool").mkdir(exist_ok=True)
    spool, waiters = FolderSpool(folder / "spool"), JobWaiters()
    encoder = Encoder(embedder, workers=count, clock=lambda: sum(pauses))
    pipeline = Pipeline(encoder, Limits(), pause=pause)
    lane_slots = dict.fromkeys(LANES, 1 if count == 1 else count + 1)
    workers = Workers(
        store=base, spool=spool, pipeline=pipeline, waiters=waiters, lane_slots=lane_slots, pause=pause
    )
    base.subscribe(StoreEventHandler(workers, waiters))
    workers.start()
    try:
        yield Parts(base, spool, embedder, encoder, waiters, workers, pauses)
    finally:
        await workers.stop()
        await encoder.close()
        await base.close()
