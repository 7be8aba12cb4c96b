"""What other engines on the same base do reaches the workers and who waits for a job here."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from kb_engine.ingest.waiting import JobEnds
from kb_engine.ingest.workers import Workers
from kb_engine.store.port import StoreEvent


class StoreEventHandler:
    """Passes events on; an instance is the callback of `Store.subscribe`."""

    def __init__(self, workers: Workers, ends: JobEnds) -> None:
        self._workers = workers
        self._ends = ends
        self._stopping: set[asyncio.Task[None]] = set()

    def __call__(self, event: StoreEvent) -> None:
        if event.kind in {"queued", "resumed"}:
            self._workers.wake()
        if event.job_id is not None:
            self._ends.announce(event.job_id)
            if event.kind == "cancelled":
                self._workers.wake()  # an update behind it may be taken now
                self._stop(self._workers.cancel(event.job_id))
        elif event.kind in {"cleared", "resumed"}:
            self._ends.announce_all()
            self._stop(self._workers.cancel_void())

    def _stop(self, stopping: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(stopping)
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)
