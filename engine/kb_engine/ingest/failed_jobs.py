"""Retention of failed jobs with their files, so that they can be retried: bounded by age and total size.
Over a bound the oldest failures are removed first. If the disk of uploads lacks room for one, files of old
versions and removed documents are deleted first, then the oldest failures. Uploads in a database are on the
disk of its server, whose room is unknown: nothing is deleted for them.
The file is deleted before the database row: on a full disk nothing can be written until space is freed.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from kb_contracts.api import models as m
from kb_contracts.semantics.requests import Idempotency
from kb_engine.spool import Spool
from kb_engine.store.clock import parse
from kb_engine.store.port import FailedJob
from kb_engine.store.repository import jobs, versions
from kb_engine.store.store import Store
from kb_engine.tasks import end, repeat

logger = logging.getLogger(__name__)

_SWEEP_SECONDS = 600.0
_MARGIN_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FailedJobBounds:
    """Maximum age, in seconds, and maximum total size, in bytes, of failed jobs."""

    seconds: float
    bytes: int

    def exceeded(self, kept: Sequence[FailedJob], now: datetime) -> list[FailedJob]:
        """Return the jobs to remove; `kept` has the oldest failure first."""
        young = [one for one in kept if now - parse(one.finished_at) <= timedelta(seconds=self.seconds)]
        left = self.bytes
        stay = set()
        for one in reversed(young):
            left -= one.size_bytes
            if left < 0:
                break
            stay.add(one.id)
        return [one for one in kept if one.id not in stay]


class FailedJobs:
    """Enforces the bounds, and queues failed jobs again."""

    def __init__(
        self,
        store: Store,
        spool: Spool,
        bounds: FailedJobBounds,
        *,
        free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free,
    ) -> None:
        self._store = store
        self._spool = spool
        self._free_bytes = free_bytes
        self._lock = asyncio.Lock()
        self._sweeping: asyncio.Task[None] | None = None
        self.bounds = bounds

    def start(self) -> None:
        sweeping = repeat(self.sweep, _SWEEP_SECONDS, "the sweep of failed jobs failed", at_once=True)
        self._sweeping = asyncio.create_task(sweeping, name="kept-jobs")

    async def stop(self) -> None:
        await end(self._sweeping)

    async def retry(self, job_id: str, idempotency: Idempotency | None) -> m.Job:
        """Queue a failed job again. Raises as `jobs.retry`, and also if its file is lost."""
        async with self._lock:
            job = await self._store.read(jobs.find, job_id)
            if job.retryable and job.kind == "file" and not await self._spool.has(job_id):
                await self._store.write(jobs.let_go, [job_id])
            return await self._store.once(idempotency, jobs.retry, job_id)

    async def sweep(self) -> int:
        """Remove failed jobs over a bound and expired document versions; return the number of jobs."""
        await self._store.write(versions.forget_expired)
        async with self._lock:
            over = self.bounds.exceeded(await self._store.read(jobs.failed), datetime.now(UTC))
            await self._let_go(over)
        return len(over)

    async def make_room(self, size: int) -> None:
        """Delete files of versions, then the oldest failures, until the disk has room for `size` bytes."""
        if (folder := self._spool.folder) is None:
            return

        async def is_enough() -> bool:
            return await asyncio.to_thread(self._free_bytes, folder) >= size + _MARGIN_BYTES

        if await is_enough() or (await self._store.make_room() and await is_enough()):
            return
        async with self._lock:
            for one in await self._store.read(jobs.failed):
                if await is_enough():
                    return
                await self._let_go([one])

    async def _let_go(self, failed: Sequence[FailedJob]) -> None:
        if not failed:
            return
        for one in failed:
            if one.spool is not None:
                await self._spool.remove(one.spool)
        await self._store.write(jobs.let_go, [one.id for one in failed])
        logger.info(
            "removed the input of failed jobs",
            extra={"jobs": len(failed), "bytes": sum(one.size_bytes for one in failed)},
        )
