"""What an open store does beside its requests: it renews its leases, frees those of the dead, and listens.

every third of a lease   leases and unaccepted files of this engine ─▶ their end moved on
                         lapsed leases of any engine ─▶ queued again, or given up
                         files that nobody receives any more ─▶ removed
LISTEN                   events of other engines ─▶ this one's workers and who waits here
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

import asyncpg

from kb_contracts.api.errors import EngineError
from kb_engine.address import Address
from kb_engine.store.port import StoreEvent, StoreEventCallback
from kb_engine.store.postgres.connection import GONE, Db, connect
from kb_engine.store.postgres.write import CHANNEL

logger = logging.getLogger(__name__)

_FIRST_WAIT, _LONGEST_WAIT = 0.2, 5.0


class Heartbeat:
    """Does `work` every `seconds`, whatever becomes of it, until it is stopped."""

    def __init__(self, work: Callable[[], Awaitable[None]], seconds: float) -> None:
        self._work = work
        self._seconds = seconds
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, with the first beat after the first pause."""
        self._task = asyncio.create_task(self._beat(), name="kb-store-heartbeat")

    async def stop(self) -> None:
        await _cancelled(self._task)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            try:
                await self._work()
            except EngineError as error:
                logger.warning(
                    "the store could not be kept", extra={"code": error.code, "detail": error.detail}
                )
            except Exception:  # the boundary: the next beat tries again
                logger.exception("the store could not be kept")


class NotificationListener:
    """A connection of its own that listens, opened again whenever it is lost."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._callback: StoreEventCallback | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, callback: StoreEventCallback) -> None:
        """Call back with what comes; after a gap with `resumed`."""
        self._callback = callback
        self._task = asyncio.create_task(self._listen(), name="kb-store-listener")

    async def stop(self) -> None:
        await _cancelled(self._task)

    async def _listen(self) -> None:
        wait = _FIRST_WAIT
        while True:
            try:
                await self._listen_once()
                wait = _FIRST_WAIT
            except (*GONE, asyncpg.PostgresError) as error:
                logger.warning("no events from the database", extra={"error": type(error).__name__})
                wait = min(wait * 2, _LONGEST_WAIT)
            await asyncio.sleep(wait)

    async def _listen_once(self) -> None:
        lost = asyncio.Event()
        db: Db = await connect(self._address)
        try:
            db.add_termination_listener(lambda _: lost.set())
            await db.add_listener(CHANNEL, self._receive)
            self._deliver(StoreEvent("resumed"))
            if not db.is_closed():
                await lost.wait()
        finally:
            with suppress(*GONE, asyncpg.PostgresError):
                await db.close(timeout=1.0)

    def _receive(self, _db: Db, _pid: int, _channel: str, payload: str) -> None:
        kind, _, job_id = payload.partition(" ")
        if kind in {"queued", "ended", "cancelled", "cleared"}:  # not what a later engine may have to say
            self._deliver(StoreEvent(kind, job_id or None))  # type: ignore[arg-type]

    def _deliver(self, event: StoreEvent) -> None:
        if self._callback is not None:
            self._callback(event)


async def _cancelled(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.wait([task])
