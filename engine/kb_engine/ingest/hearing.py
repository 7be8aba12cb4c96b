"""What other engines on the same base have done, told to the workers and to who waits for a job here."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from kb_engine.ingest.waiting import JobEnds
from kb_engine.ingest.workers import Workers
from kb_engine.store.port import News


class Hearing:
    """Passes news on; an instance is what `Store.listen` is given."""

    def __init__(self, workers: Workers, ends: JobEnds) -> None:
        self._workers = workers
        self._ends = ends
        self._stopping: set[asyncio.Task[None]] = set()

    def __call__(self, news: News) -> None:
        """One piece of news."""
        if news.kind in {"queued", "resumed"}:
            self._workers.wake()
        if news.job_id is not None:
            self._ends.announce(news.job_id)
            if news.kind == "cancelled":
                self._workers.wake()  # an update behind it may be taken now
                self._stop(self._workers.cancel(news.job_id))
        elif news.kind in {"cleared", "resumed"}:
            self._ends.announce_all()
            self._stop(self._workers.cancel_void())

    def _stop(self, stopping: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(stopping)
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)
