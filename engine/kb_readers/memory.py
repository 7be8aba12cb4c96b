"""A common limit on the memory of all readers: a reader waits until its share is free."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class MemoryBudget:
    """`total` bytes for all readers of a process. Waiting readers start in the order of arrival."""

    def __init__(self, total: int) -> None:
        self._free = total
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def reserved(self, size: int) -> AsyncIterator[None]:
        """Wait for `size` bytes, at most the total, and hold them until the block ends."""
        async with self._turn:
            while self._free < size:
                self._freed.clear()
                await self._freed.wait()
            self._free -= size
        try:
            yield
        finally:
            self._free += size
            self._freed.set()
