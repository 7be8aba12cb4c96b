"""`kb stdio` without a running engine: the first process starts it, and processes end independently."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from kb_config.rendezvous import Rendezvous
from kb_load.processes import clean_environment, free_port
from tests.protocol.conftest import Process, Start
from tests.support.eventually import eventually, eventually_async
from tests.support.mcp_messages import call, initialize, request
from tests.support.patience import ANSWER_SECONDS, COMMAND_SECONDS, JOB_SECONDS
from tests.support.stack import Process as Command
from tests.support.stack import wait_until_ready

pytestmark = pytest.mark.process


def environment(home: Path, **more: str) -> dict[str, str]:
    settings = {"KB_HOME": str(home), "KB_EMBEDDER": "hash", "KB_ENGINE_LINGER": "1"}
    return dict(clean_environment(**settings | more))


def engines(home: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            line = process.cmdline()
        except psutil.Error:
            continue
        if "--linger" in line and str(home) in line and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Path]:
    """A data folder; the test fails if an engine is still running at its end."""
    yield tmp_path / "home"
    try:
        await eventually_async(lambda: not engines(tmp_path / "home"), what="the end of the engine")
    finally:
        for process in engines(tmp_path / "home"):
            process.kill()


async def connected(start: Start, home: Path, **more: str) -> Process:
    process = await start(
        command=("-P", "-m", "kb_cli.main", "stdio"),
        environment=environment(home, **more),
        stderr=asyncio.subprocess.DEVNULL,
    )
    await process.ask(initialize("2025-11-25"))
    await process.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
    return process


async def noted(client: Process, text: str) -> None:
    answer = await client.ask(call("kb_addnote", text=text, collection="memory", wait_seconds=JOB_SECONDS))
    assert not answer["result"]["isError"], answer


async def found(client: Process, words: str) -> set[str]:
    answer = await client.ask(call("kb_search", query=words))
    results: list[dict[str, Any]] = answer["result"]["structuredContent"]["results"]
    return {result["text"] for result in results}


async def an_unused_engine_has_ended(start: Start, home: Path) -> None:
    """Wait until an engine of another folder, which loses its only client now, has ended."""
    other = home.parent / "other"
    client = await connected(start, other)
    await client.ask(call("kb_status"))
    assert len(engines(other)) == 1
    await client.end()
    await eventually_async(lambda: not engines(other), what="the end of the other engine")


async def test_clients_that_start_at_once_share_one_engine_which_ends_after_the_last(
    home: Path, start: Start
) -> None:
    clients = await asyncio.gather(*(connected(start, home) for _ in range(3)))
    stones = [f"stone {name}" for name in ("granite", "basalt", "slate")]
    await asyncio.gather(*(noted(client, stone) for client, stone in zip(clients, stones, strict=True)))
    for client in clients:
        assert await found(client, "stone") == set(stones)
    (engine,) = engines(home)
    for client in clients[1:]:
        assert (await client.end())[0] == 0
    await an_unused_engine_has_ended(start, home)
    assert engines(home) == [engine]
    assert await found(clients[0], "stone") == set(stones)
    await clients[0].end()
    await eventually_async(lambda: not engines(home), what="the end of the engine")


async def test_whatever_is_killed_nothing_is_lost_and_no_process_is_left(home: Path, start: Start) -> None:
    first, second, third = await asyncio.gather(*(connected(start, home) for _ in range(3)))
    await noted(first, "stone granite")
    first.process.kill()
    await noted(second, "stone basalt")
    for process in engines(home):
        process.kill()
    answers = await asyncio.gather(noted(second, "stone slate"), noted(third, "stone chalk"))
    assert len(answers) == 2
    assert len(engines(home)) == 1
    stones = {f"stone {name}" for name in ("granite", "basalt", "slate", "chalk")}
    assert await found(third, "stone") == stones
    left: list[asyncio.subprocess.Process | psutil.Process] = [second.process, third.process, *engines(home)]
    for each in left:
        each.kill()
    again = await connected(start, home)
    assert await found(again, "stone") == stones
    await again.end()


async def test_tools_are_listed_and_a_call_says_why_there_is_no_engine(home: Path, start: Start) -> None:
    client = await connected(start, home, KB_EMBEDDER="nothing")
    listed = await client.ask(request("tools/list"))
    assert "kb_search" in {tool["name"] for tool in listed["result"]["tools"]}
    answer = await client.ask(call("kb_search", query="stone"))
    assert answer["result"]["isError"]
    assert "KB_EMBEDDER" in str(answer["result"]["content"])
    await client.end()


async def test_a_toolset_without_an_engine_starts_none(home: Path, start: Start, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("granite")
    client = await connected(start, home, KB_TOOLSETS="textfile", KB_TEXT_FILE=str(tmp_path / "notes.txt"))
    answer = await client.ask(call("get_kb_content"))
    assert "granite" in str(answer["result"])
    assert engines(home) == []
    assert not home.exists()
    await client.end()


async def test_commands_and_kb_up_find_the_engine_and_keep_it(home: Path, start: Start) -> None:
    client = await connected(start, home)
    await noted(client, "stone granite")
    command = [sys.executable, "-P", "-m", "kb_cli.main", "search", "stone", "--json"]
    done = await asyncio.to_thread(
        subprocess.run,
        command,
        env=environment(home),
        capture_output=True,
        text=True,
        check=True,
        timeout=COMMAND_SECONDS,
    )
    assert "stone granite" in done.stdout
    port = free_port()
    up = Command.start("-m", "kb_cli.main", "up", **environment(home, KB_MCP_PORT=str(port)))
    try:
        await asyncio.to_thread(wait_until_ready, f"http://127.0.0.1:{port}/readyz", up)
        assert "already running" in up.output()
        await client.end()
        await an_unused_engine_has_ended(start, home)
        message = call("kb_search", query="stone")
        answer = await asyncio.to_thread(
            httpx.post, f"http://127.0.0.1:{port}/mcp", json=message, timeout=ANSWER_SECONDS
        )
        assert "stone granite" in answer.text
    finally:
        assert await asyncio.to_thread(up.stop) == 0


async def test_an_engine_finishes_its_jobs_before_it_ends(home: Path, start: Start) -> None:
    client = await connected(start, home, KB_ENGINE_LINGER="0")
    await client.ask(call("kb_status"))
    url = Rendezvous(home / "engine").url()
    assert url is not None
    long = "\n\n".join(f"Stone {number} lies in the quarry beside the river." * 20 for number in range(800))
    posted = await asyncio.to_thread(
        httpx.post, f"{url}/api/v1/jobs", json={"text": long}, timeout=ANSWER_SECONDS
    )
    assert posted.status_code == 202, posted.text
    client.process.kill()
    eventually(lambda: not engines(home), what="the end of the engine")
    log = (home / "engine" / "engine.log").read_text()
    assert "the engine is no longer in use" in log
    again = await connected(start, home)
    answer = await again.ask(call("kb_status"))
    assert answer["result"]["structuredContent"]["queue"]["completed"] == 1, answer
    assert (home / "engine" / "kb.sqlite").stat().st_size > 1 << 20
    await again.end()
