"""Work on a PostgreSQL base that is held at the point where it meets other work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from kb_engine.store.repository.transaction import Write
from tests.support.eventually import eventually_async
from tests.support.patience import ANSWER_SECONDS
from tests.support.postgres import Database
from tests.support.stores import Base

_WAITING = (
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
)


@asynccontextmanager
async def in_flight(
    base: Base, operation: Callable[..., Coroutine[Any, Any, Any]], *args: Any
) -> AsyncIterator[asyncio.Future[Any]]:
    """Yield a change that has done its work and commits when the block ends."""
    done, end = asyncio.Event(), asyncio.Event()

    async def held(write: Write) -> Any:
        answer = await operation(write, *args)
        done.set()
        await end.wait()
        return answer

    async with asyncio.timeout(ANSWER_SECONDS):
        change = asyncio.ensure_future(base.store.write(held))
        await done.wait()
        try:
            yield change
        finally:
            end.set()
            await change


@asynccontextmanager
async def waiting(database: Database, work: Coroutine[Any, Any, Any]) -> AsyncIterator[asyncio.Future[Any]]:
    """Yield a task of `work` that waits for another transaction's lock."""
    task = asyncio.ensure_future(work)
    await eventually_async(lambda: database.value(_WAITING), lambda count: count == 1, what="the wait")
    assert not task.done()
    yield task
