"""`/status`, `/healthz` and `/readyz`: how the engine is."""

from __future__ import annotations

import asyncio
import shutil

from msgspec import UNSET

from kb_contracts import models as m
from kb_contracts.errors import EngineError
from kb_contracts.mount import Incoming
from kb_contracts.operations import API_VERSION
from kb_engine.api.engine import Engine, Phase

_NEARLY_FULL_BYTES = 512 * 1024 * 1024
_RETRY_SECONDS = 1.0
# What is open to everybody names no address; `/status` says why.
_WITHOUT_MODEL = "The embedding model cannot be used; searches by words can"


class StateApi:
    """Handlers of `getStatus`, `getHealth` and `getReadiness`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def status(self, _incoming: Incoming) -> m.Status:
        """Counts, model, queue, storage, and what is wrong."""
        engine = self._engine
        engine.encoder.begin_recovery()
        counts = await engine.store.counts()
        kept = await engine.store.kept()
        free = (await asyncio.to_thread(shutil.disk_usage, engine.settings.folder)).free
        return m.Status(
            version=API_VERSION,
            model=engine.encoder.model,
            device=engine.encoder.device,
            documents=counts.documents,
            chunks=counts.chunks,
            queue=counts.queue,
            storage=m.StorageInfo(
                path=str(engine.settings.address or engine.settings.folder),
                bytes=counts.database_bytes + await engine.spool.size(),
                free_bytes=free,
                originals_bytes=counts.originals_bytes,
                failed_bytes=sum(job.size_bytes for job in kept),
                failed_bytes_limit=engine.kept.bounds.bytes,
                failed_seconds_limit=engine.kept.bounds.seconds,
            ),
            issues=self._issues(free),
            started_at=engine.started_at,
            last_updated=counts.last_updated,
        )

    async def health(self, _incoming: Incoming) -> m.Health:
        """The process lives, or this would not be answered."""
        return m.Health(status="ok")

    async def readiness(self, _incoming: Incoming) -> m.Health:
        """Whether requests can be served; raises `not_ready`. Without its model some still can."""
        if self._engine.phase is not Phase.READY:
            raise EngineError("not_ready", f"The engine is {self._engine.phase}.", retry_after=_RETRY_SECONDS)
        try:
            await self._engine.store.ping()
        except EngineError as error:
            raise EngineError(
                "not_ready", f"The store does not answer: {error.detail}", retry_after=_RETRY_SECONDS
            ) from error
        encoder = self._engine.encoder
        encoder.begin_recovery()
        return m.Health(status="ready", issues=UNSET if encoder.failure is None else [_WITHOUT_MODEL])

    def _issues(self, free_bytes: int) -> list[str]:
        issues = []
        if self._engine.encoder.failure is not None:
            issues.append(f"The embedding model cannot be used: {self._engine.encoder.failure}")
        if free_bytes < _NEARLY_FULL_BYTES:
            issues.append(f"The disk is nearly full: {free_bytes} bytes are free")
        return issues
