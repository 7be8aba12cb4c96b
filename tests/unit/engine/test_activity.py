"""Whether anybody wants something of the engine."""

from __future__ import annotations

import asyncio
from typing import cast

from kb_contracts.api import models as m
from kb_contracts.http.mount import Incoming
from kb_engine.activity import Activity

INCOMING = cast("Incoming", None)


async def test_probes_wake_nobody_and_requests_count_to_their_end() -> None:
    now = 0.0
    finish = asyncio.Event()

    async def handler(_incoming: Incoming) -> m.Health:
        await finish.wait()
        return m.Health(status="ok")

    activity = Activity(lambda: now)
    handlers = activity.noting({"search": handler, "getStatus": handler})
    now = 20.0
    probe = asyncio.ensure_future(handlers["getStatus"](INCOMING))
    await asyncio.sleep(0)
    assert activity.idle_seconds == 20
    request = asyncio.ensure_future(handlers["search"](INCOMING))
    await asyncio.sleep(0)
    assert activity.idle_seconds == 0
    now = 30.0
    finish.set()
    await asyncio.gather(request, probe)
    now = 35.0
    assert activity.idle_seconds == 5
