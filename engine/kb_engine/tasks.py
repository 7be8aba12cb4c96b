"""Background tasks: their repetition and their end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from kb_contracts.api.errors import EngineError

logger = logging.getLogger(__name__)


async def repeat(
    work: Callable[[], Awaitable[object]], seconds: float, failure: str, *, at_once: bool = False
) -> None:
    """Run `work` with pauses of `seconds` for ever, the first time before the first pause if `at_once`.

    A failed run is logged as `failure`, and does not end the task.
    """
    if not at_once:
        await asyncio.sleep(seconds)
    while True:
        try:
            await work()
        except EngineError as error:  # for instance an unreachable database, or a full disk
            logger.warning(failure, extra={"code": error.code, "detail": error.detail})
        except Exception:  # boundary: the next run tries again
            logger.exception(failure)
        await asyncio.sleep(seconds)


async def end(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel the tasks that have not ended, and wait until they have. None stands for no task."""
    running = [task for task in tasks if task is not None and not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)
