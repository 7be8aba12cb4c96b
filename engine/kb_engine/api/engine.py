"""The parts of a running engine, shared by its handlers, and its state: `/status`, `/healthz`, `/readyz`."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_contracts.api.operations import API_VERSION
from kb_contracts.semantics.history import growth_of
from kb_engine.api.reranking import Reranker
from kb_engine.care.scan import Scan
from kb_engine.encoder import Encoder
from kb_engine.ingest.failed_jobs import FailedJobs
from kb_engine.ingest.pipeline import Pipeline
from kb_engine.ingest.workers import JobWaiters, Workers
from kb_engine.pictures import Pictures
from kb_engine.questions import Questions
from kb_engine.settings import EngineSettings
from kb_engine.spool import Spool
from kb_engine.store.port import Counts
from kb_engine.store.repository import jobs, state
from kb_engine.store.repository.transaction import Write
from kb_engine.store.store import Store, utc_now
from kb_http.requests import Incoming
from kb_readers.failures import no_sandbox
from kb_readers.probe import sandbox_info

A = TypeVar("A", bound=msgspec.Struct)
P = ParamSpec("P")

logger = logging.getLogger(__name__)

_NEARLY_FULL_BYTES = 512 * 1024 * 1024
_RETRY_SECONDS = 1.0
# Public endpoints reveal no address; `/status` has the reason.
_WITHOUT_MODEL = "The embedding model cannot be used; searches by words can"
_WITHOUT_INDEX = "The search index cannot be asked; searches are refused until it can"
# Before the first reading.
_NO_COUNTS = Counts(
    documents=m.DocumentCounts(total=0, searchable=0, empty=0, by_type={}),
    chunks=0,
    queue=m.QueueState(queued=0, running=0, completed=0, failed=0, cancelled=0),
    open_failures=0,
    originals_bytes=0,
    kept_originals_bytes=0,
    database_bytes=0,
    last_updated=None,
)

_NO_STORAGE = m.StorageInfo(path="", bytes=0, free_bytes=0, originals_bytes=0)


class Phase(StrEnum):
    """Phase in the life of the engine."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


@dataclass
class Engine:
    """The parts of an engine, assembled by `kb_engine.composition`. `started_at` is RFC 3339."""

    settings: EngineSettings
    store: Store
    spool: Spool
    encoder: Encoder
    pipeline: Pipeline
    workers: Workers
    waiters: JobWaiters
    failed_jobs: FailedJobs
    scan: Scan
    pictures: Pictures
    questions: Questions
    reranker: Reranker | None
    started_at: str
    phase: Phase = Phase.STARTING
    searched_at: float = field(default_factory=time.monotonic)
    """Monotonic time of the latest search; background work waits for a pause between searches."""


class Api:
    """Handlers of operations, over the parts of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._store = engine.store

    async def _once(
        self,
        incoming: Incoming,
        operation: Callable[Concatenate[Write, P], Coroutine[Any, Any, A]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> A:
        """Write; a repetition of the request with the same idempotency key gets the first response."""
        return await self._store.once(incoming.idempotency(), operation, *args, **kwargs)


class StateApi:
    """Handlers of `getStatus`, `getHealth` and `getReadiness`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        settings = engine.settings
        path = str(settings.address or settings.folder)
        self._base = settings.address or settings.database
        self._counts = _NO_COUNTS
        self._storage = m.StorageInfo(path=path, bytes=0, free_bytes=0, originals_bytes=0, accessible=False)

    async def get_status(self, incoming: Incoming) -> m.Status:
        """Return the status; storage and the causes of issues for unrestricted administrators only."""
        engine, access = self._engine, incoming.access
        engine.encoder.begin_recovery()
        is_open = access.reach is None and "administer" in access.rights
        if is_open:
            status = await self.whole()
        else:
            counts = await engine.store.read(state.counts)
            status = self._status(counts, _NO_STORAGE, self._out_of_order(), UNSET)
        if incoming.query.history:
            created, languages = await engine.store.read(state.growth)
            status.history = m.History(
                growth=growth_of(created, utc_now().date()),
                languages=languages,
                questions=await engine.questions.by_day() if is_open else UNSET,
                unanswered=await engine.questions.texts() if is_open else UNSET,
            )
        return status

    async def whole(self) -> m.Status:
        """Return the status of the whole base, with storage and the causes of issues."""
        engine, issues = self._engine, list[str]()
        if (failure := engine.encoder.failure) is not None:
            issues.append(f"The embedding model cannot be used: {failure}")
        if (failure := engine.store.index_failure) is not None:
            why = " ".join(failure.splitlines())
            issues.append(f"The search index cannot be asked: {why}. Searches are refused until it can")
        issues += await self._read()
        sandbox = await sandbox_info(engine.settings.sandbox)
        if sandbox.setting == "require" and sandbox.missing:
            issues.append(no_sandbox(sandbox.missing).message)
        return self._status(self._counts, self._storage, issues, sandbox)

    async def oldest_queued(self) -> str | None:
        """Return the time at which the oldest queued job was accepted; None without one."""
        try:
            return await self._engine.store.read(jobs.oldest_queued)
        except EngineError:
            return None

    def _status(
        self, counts: Counts, storage: m.StorageInfo, issues: list[str], sandbox: m.SandboxInfo | UnsetType
    ) -> m.Status:
        engine = self._engine
        return m.Status(
            version=API_VERSION,
            model=engine.encoder.model,
            device=engine.encoder.device,
            documents=counts.documents,
            chunks=counts.chunks,
            queue=counts.queue,
            storage=storage,
            issues=issues,
            started_at=engine.started_at,
            last_updated=counts.last_updated,
            sandbox=sandbox,
            features=["access"],
            open_failures=counts.open_failures,
        )

    async def get_health(self, _incoming: Incoming) -> m.Health:
        return m.Health(status="ok")

    async def get_readiness(self, _incoming: Incoming) -> m.Health:
        """Return if requests can be served, even in part for lack of model or index; raises `not_ready`."""
        if self._engine.phase is not Phase.READY:
            raise EngineError("not_ready", f"The engine is {self._engine.phase}.", retry_after=_RETRY_SECONDS)
        try:
            await self._engine.store.ping()
        except EngineError as error:
            raise EngineError(
                "not_ready", f"The store does not answer: {error.detail}", retry_after=_RETRY_SECONDS
            ) from error
        self._engine.encoder.begin_recovery()
        return m.Health(status="ready", issues=self._out_of_order() or UNSET)

    def _out_of_order(self) -> list[str]:
        """Return the current outages, without internal details."""
        engine = self._engine
        issues = [_WITHOUT_MODEL] if engine.encoder.failure is not None else []
        return issues + [_WITHOUT_INDEX] * (engine.store.index_failure is not None)

    async def _read(self) -> list[str]:
        """Refresh counts and storage figures; return the issues of the storage."""
        engine = self._engine
        try:
            engine.store.check_file()
            counts, kept = await engine.store.read(state.counts), await engine.store.read(jobs.failed)
            uploads = await engine.spool.size()
            lost = await engine.store.lost_vectors()
            free, folder = await asyncio.to_thread(_least_free, engine.settings.data_folders)
        except Exception as error:  # boundary: the status must report whatever fails here
            logger.warning("the base cannot be read", exc_info=True)
            self._storage = msgspec.structs.replace(self._storage, accessible=False)
            why = error.detail if isinstance(error, EngineError) else str(error) or type(error).__name__
            return [" ".join(f"The base {self._base} cannot be read: {why}".splitlines())]
        self._counts = counts
        keeps, kept_bytes = engine.store.keeps_originals, counts.kept_originals_bytes
        self._storage = msgspec.structs.replace(
            self._storage,
            bytes=counts.database_bytes + uploads,
            free_bytes=free,
            originals_bytes=counts.originals_bytes,
            kept_originals_bytes=kept_bytes if keeps or kept_bytes else UNSET,
            accessible=True,
            failed_bytes=sum(job.size_bytes for job in kept),
            failed_bytes_limit=engine.failed_jobs.bounds.bytes,
            failed_seconds_limit=engine.failed_jobs.bounds.seconds,
        )
        issues = engine.store.issues + engine.scan.issues
        if lost:
            issues.append(
                f"{lost} passages have no vector, and searches by meaning leave them out. "
                "Stop the engine and run kb check --repair"
            )
        if free < _NEARLY_FULL_BYTES:
            issues.append(f"The disk of {folder} is nearly full: {free} bytes are free")
        return issues


def _least_free(folders: Iterable[Path]) -> tuple[int, Path]:
    """Return the free bytes of the disk that has the least, and its folder."""
    return min((shutil.disk_usage(folder).free, folder) for folder in folders)
