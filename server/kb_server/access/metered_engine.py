"""The engine for callers with quotas: what they add is counted on its way, whichever tool sends it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec

from kb_contracts.api import models as m
from kb_contracts.api.operations import Operation
from kb_server.access.grants import GRANT
from kb_server.engine_client.errors import EngineFault
from kb_server.engine_client.port import Engine, FileSource

B = TypeVar("B")
R = TypeVar("R", bound=msgspec.Struct)


class MeteredEngine:
    """An `Engine` that counts what its callers add; all else is the engine's own. Raises ToolError, too."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.original = engine.original
        self.wait_for_job = engine.wait_for_job
        self.unready = engine.unready

    @property
    def longest_wait(self) -> float:
        """As `Engine` has it."""
        return self._engine.longest_wait

    def call(
        self, operation: Operation[B, R], *, body: B | None = None, **request: Any
    ) -> Coroutine[Any, Any, R]:
        """As `Engine` has it."""
        if GRANT.get().meter is not None and isinstance(body, m.NoteRequest | m.NotePatch):
            return self._counted(operation, body, request)
        return self._engine.call(operation, body=body, **request)

    async def send_file(
        self, file: FileSource, fields: m.FileFields, *, idempotency_key: str | None = None
    ) -> m.Job:
        """As `Engine` has it."""
        async with _taken(1, file.size):
            return await self._engine.send_file(file, fields, idempotency_key=idempotency_key)

    async def _counted(self, operation: Operation[B, R], body: B, request: Mapping[str, Any]) -> R:
        text = getattr(body, "text", None)
        size = len(text.encode(errors="replace")) if isinstance(text, str) else 0
        async with _taken(1 if isinstance(body, m.NoteRequest) else 0, size):
            return await self._engine.call(operation, body=body, **request)


@asynccontextmanager
async def _taken(documents: int, size: int) -> AsyncIterator[None]:
    """Counted as taken in, unless the engine does not take it."""
    grant = GRANT.get()
    grant.take(documents, size)
    try:
        yield
    except EngineFault:
        grant.give_back(documents, size)
        raise
