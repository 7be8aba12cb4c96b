"""The end of background tasks."""

from __future__ import annotations

import asyncio
from typing import Any


async def end(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel the tasks that have not ended, and wait until they have. None stands for no task."""
    running = [task for task in tasks if task is not None and not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)
