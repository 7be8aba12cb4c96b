"""Who waits for a job to end, woken by its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from kb_contracts.api import models as m


class JobEnds:
    """Long polls on jobs. Every end in this process is announced here; nobody asks in a loop."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._closed = False

    def announce(self, job_id: str) -> None:
        """Wake who waits for this job."""
        for event in self._waiting.get(job_id, ()):
            event.set()

    def announce_all(self) -> None:
        """Wake everybody: many jobs may have ended at once."""
        for job_id in self._waiting:
            self.announce(job_id)

    def close(self) -> None:
        """Answer everybody now, and from now on nobody waits."""
        self._closed = True
        self.announce_all()

    async def wait(self, job_id: str, seconds: float, read: Callable[[str], Awaitable[m.Job]]) -> m.Job:
        """The job as `read` tells it, once it has ended or after `seconds`."""
        deadline = asyncio.get_running_loop().time() + seconds
        changed = asyncio.Event()
        self._waiting.setdefault(job_id, set()).add(changed)
        try:
            while True:
                changed.clear()  # before reading, so that an end in between is not missed
                job = await read(job_id)
                left = deadline - asyncio.get_running_loop().time()
                if job.status in m.FINAL_STATUSES or left <= 0 or self._closed:
                    return job
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await changed.wait()
        finally:
            self._leave(job_id, changed)

    def _leave(self, job_id: str, event: asyncio.Event) -> None:
        events = self._waiting[job_id]
        events.discard(event)
        if not events:
            del self._waiting[job_id]
