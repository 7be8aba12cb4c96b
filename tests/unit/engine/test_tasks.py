"""Background tasks of the engine."""

from __future__ import annotations

import asyncio
import logging

import pytest

from kb_contracts.api.errors import EngineError
from kb_engine.tasks import end, repeat


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_failure_is_logged_and_does_not_end_the_repetition(
    at_once: bool, caplog: pytest.LogCaptureFixture
) -> None:
    failures = [EngineError("not_ready", "The store is away."), KeyError("unexpected")]
    done = asyncio.Event()

    async def work() -> None:
        if failures:
            raise failures.pop(0)
        done.set()

    task = asyncio.create_task(repeat(work, 0.0, "the work failed", at_once=at_once))
    await done.wait()
    assert not task.done()
    await end(task)
    said = [(each.levelno, each.getMessage()) for each in caplog.records if each.name == "kb_engine.tasks"]
    assert said == [(logging.WARNING, "the work failed"), (logging.ERROR, "the work failed")]
