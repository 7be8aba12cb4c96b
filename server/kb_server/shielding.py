"""Work that is not left half done when the one who waits for it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def to_its_end(work: Awaitable[T]) -> T:
    """Await `work`; a caller that is cancelled meanwhile is let go only after it has ended."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):  # however often: a deadline, a client that left, the end
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # looked at, so that it is not reported as lost
        raise
