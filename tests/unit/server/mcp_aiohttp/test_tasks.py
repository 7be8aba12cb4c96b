"""Tasks of a connection that has ended are not followed."""

from __future__ import annotations

from typing import Any, cast

import pytest
from mcp_types.version import LATEST_HANDSHAKE_VERSION

from mcp_aiohttp.protocol.caller import Caller, Connected
from mcp_aiohttp.protocol.tasks import Context, ServedTasks, TaskCreated, TaskState

WORKING = TaskState("t", "working", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z")


async def test_a_task_created_after_the_end_of_its_connection_is_not_followed() -> None:
    connection, tasks = Connected(), ServedTasks(cast("Any", None))
    connection.end()
    context = Context(
        session=cast("Any", None),
        lifespan_context=None,
        protocol_version=LATEST_HANDSHAKE_VERSION,
        method="tools/call",
        request=Caller(connection=connection),
    )
    with pytest.raises(TaskCreated):
        tasks.created(context, WORKING)
    assert tasks._followed == {}
