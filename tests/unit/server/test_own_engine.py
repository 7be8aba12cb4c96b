"""An engine that ends while it is started for a call is started again, and its own reason is reported."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kb_contracts.api.operations import GET_STATUS
from kb_server.engine_client.errors import EngineUnreachable
from kb_server.own_engine import OwnEngine
from kb_server.settings import ServerSettings
from tests.support.eventually import eventually_async
from tests.support.loop_clock import advance_loop

STARTED = 'echo started >> "$0"; [ $(wc -l < "$0") = 1 ] && kill -9 $$; '


@pytest.mark.parametrize(
    ("then", "reason"),
    [
        ("kill -9 $$", "it was killed by signal 9"),
        ("exit 3", "it ended with status 3"),
        ("echo the base is damaged; exit 1", "the base is damaged"),
    ],
)
async def test_an_engine_that_is_killed_at_its_start_is_started_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str, reason: str
) -> None:
    folder, starts = tmp_path / "engine", tmp_path / "starts"
    folder.mkdir()
    (folder / "engine.log").write_text("the last words of an earlier engine\n")
    engine = OwnEngine(ServerSettings(home=tmp_path), ["sh", "-c", STARTED + then, str(starts)])
    advance = advance_loop(monkeypatch)
    calling = asyncio.ensure_future(engine.call(GET_STATUS))

    def has_failed() -> bool:
        if starts.exists() and starts.read_text().count("started") == 2:
            advance(1)  # towards the time limit of an engine in another process
        return calling.done()

    await eventually_async(has_failed, what="the refusal of the call")
    with pytest.raises(EngineUnreachable, match=reason):
        await calling
    assert starts.read_text().count("started") == 2
