"""Conditions under which an answer streams, its keep-alive, and the effect of a disconnect on the work."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from kb_server.tool import Call, NoArguments
from tests.protocol.conftest import Serve, Served
from tests.support.fake_toolset import Empty, Fake
from tests.support.loop_clock import advance_loop, turns
from tests.support.mcp_messages import BOTH, call, events, modern, modern_headers
from tests.support.patience import ANSWER_SECONDS, SILENCE

TOKEN = {"progressToken": "p1"}


def shaped(message: dict[str, Any], era: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the message in the form of its era, and headers that accept a stream."""
    if era == "modern":
        message = modern(message)
        return message, modern_headers(message)
    return message, BOTH


@asynccontextmanager
async def streamed(
    served: Served, message: dict[str, Any], headers: dict[str, str]
) -> AsyncIterator[tuple[httpx.Response, AsyncIterator[str]]]:
    """Yield a response with an unread body, and the lines of that body."""
    async with served.http.stream("POST", "/mcp", json=message, headers=headers) as response:
        yield response, response.aiter_lines()


async def left(served: Served, fake: Fake, message: dict[str, Any], headers: dict[str, str], at: str) -> None:
    """Disconnect the client of a call: `before` the answer starts, or `within` its stream."""
    if at == "within":
        async with streamed(served, message, headers):
            await fake.slow.started.wait()  # the keep-alive may start before the work
            return
    posted = asyncio.ensure_future(served.post(message, headers))
    await fake.slow.started.wait()
    posted.cancel()
    await asyncio.gather(posted, return_exceptions=True)


@pytest.mark.parametrize("era", ["handshake", "modern"])
async def test_progress_turns_the_answer_into_a_stream(served: Served, era: str) -> None:
    message, headers = shaped(call("steps", meta=TOKEN), era)
    response = await served.post(message, headers)
    assert response.headers["Content-Type"] == "text/event-stream"
    assert response.headers["Cache-Control"] == "no-cache, no-transform"
    half, whole, answer = events(response.text)
    assert half == {
        "jsonrpc": "2.0",
        "method": "notifications/progress",
        "params": {"progressToken": "p1", "progress": 0.5, "total": 1.0, "message": "half way"},
    }
    assert whole["params"]["progress"] == 1.0
    assert answer["id"] == message["id"]
    assert answer["result"]["isError"] is False


@pytest.mark.parametrize(
    ("accept", "streams"),
    [
        (None, True),
        ("*/*", True),
        ("text/*", True),
        ("application/json, text/event-stream;q=0.5", True),
        ("TEXT/EVENT-STREAM", True),
        ("application/json", False),
        ("application/*", False),
    ],
)
async def test_an_answer_streams_only_where_the_client_takes_a_stream(
    served: Served, accept: str | None, streams: bool
) -> None:
    """JSON is sufficient for every answer; progress is then omitted."""
    del served.http.headers["Accept"]
    response = await served.post(call("steps", meta=TOKEN), {"Accept": accept} if accept else {})
    assert response.status_code == 200
    assert response.headers["Content-Type"] == ("text/event-stream" if streams else "application/json")


async def test_a_token_that_is_none_is_not_used(served: Served) -> None:
    """A boolean is an integer in Python but not in the protocol: the request is refused."""
    response = await served.post(call("steps", meta={"progressToken": []}), BOTH)
    assert response.headers["Content-Type"] == "application/json"
    assert response.json()["error"]["code"] == -32602


@pytest.mark.parametrize("era", ["handshake", "modern"])
async def test_a_silent_call_is_kept_alive_with_comments(serve: Serve, fake: Fake, era: str) -> None:
    """After a while the answer becomes a stream, so that a proxy does not time out."""
    served = await serve(keep_alive=SILENCE)
    async with streamed(served, *shaped(call("slow"), era)) as (response, lines):
        assert response.headers["Content-Type"] == "text/event-stream"
        assert [await anext(lines) for _ in range(6)] == [": keep-alive", ""] * 3
        fake.slow.release.set()
        rest = [line async for line in lines]
    assert events("\n".join(rest))[-1]["result"]["isError"] is False


async def test_a_client_that_did_not_name_the_stream_gets_plain_json_however_long_it_takes(
    serve: Serve, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Example: curl sends `*/*` and cannot parse events."""
    advance = advance_loop(monkeypatch)
    served = await serve(keep_alive=1.0)
    posted = asyncio.ensure_future(served.post(call("slow"), {"Accept": "*/*"}))
    await fake.slow.started.wait()
    advance(5.0)
    await turns()
    fake.slow.release.set()
    assert (await posted).headers["Content-Type"] == "application/json"


async def test_a_fault_after_the_stream_began_is_its_last_event(serve: Serve, fake: Fake) -> None:
    """The status was already sent, so the error must be in the stream."""
    served = await serve(keep_alive=SILENCE)

    async def broken_late(arguments: NoArguments, call: Call) -> Empty:
        await fake.slow.release.wait()
        raise RuntimeError("late")

    fake.slow.run = broken_late  # type: ignore[method-assign]
    async with streamed(served, call("slow"), BOTH) as (_, lines):
        await anext(lines)
        fake.slow.release.set()
        rest = [line async for line in lines]
    assert events("\n".join(rest))[-1]["error"]["code"] == -32603


@pytest.mark.parametrize("at", ["before", "within"])
async def test_closing_a_modern_answer_cancels_the_work(serve: Serve, fake: Fake, at: str) -> None:
    served = await serve(keep_alive=SILENCE if at == "within" else ANSWER_SECONDS)
    await left(served, fake, *shaped(call("slow"), "modern"), at)
    await asyncio.wait_for(fake.slow.cancelled.wait(), ANSWER_SECONDS)
    assert (await served.post(call("echo", text="on"))).status_code == 200


@pytest.mark.parametrize("at", ["before", "within"])
async def test_progress_with_nobody_left_to_hear_it_hurts_nothing(serve: Serve, fake: Fake, at: str) -> None:
    """A disconnect does not cancel in the handshake era: the work continues without its client."""
    served = await serve(keep_alive=SILENCE if at == "within" else ANSWER_SECONDS)
    ended = asyncio.Event()

    async def reporting(arguments: NoArguments, call: Call) -> Empty:
        fake.slow.started.set()
        await fake.slow.release.wait()
        for step in range(20):
            await call.progress(step, 20, "x" * 10_000)
        ended.set()
        return Empty()

    fake.slow.run = reporting  # type: ignore[method-assign]
    await left(served, fake, call("slow", meta=TOKEN), BOTH, at)
    assert (await served.post(call("echo", text="on"))).status_code == 200
    fake.slow.release.set()
    await asyncio.wait_for(ended.wait(), ANSWER_SECONDS)


async def test_a_client_that_stops_reading_holds_up_no_work(
    served: Served, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts as disconnected after a time-out, so that a tool's progress reports do not wait for ever."""
    monkeypatch.setattr("mcp_aiohttp.transport.endpoint.STALLED_SECONDS", 0.05)
    ended = asyncio.Event()

    async def chatting(arguments: NoArguments, call: Call) -> Empty:
        for step in range(1000):
            await call.progress(step, 1000, "x" * 100_000)
        ended.set()
        return Empty()

    fake.slow.run = chatting  # type: ignore[method-assign]
    body = json.dumps(call("slow", meta=TOKEN)).encode()
    head = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    _, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1024)
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await asyncio.wait_for(ended.wait(), ANSWER_SECONDS)
    writer.close()


async def test_calls_without_listeners_end_before_the_server_does(serve: Serve, fake: Fake) -> None:
    """Shutdown waits for them and cancels unfinished ones; the lifespan ends last."""
    served = await serve(serve_options={"drain_seconds": 0.1})
    await left(served, fake, call("slow"), BOTH, "before")
    served.stop.set()
    await asyncio.wait_for(asyncio.shield(served.task), ANSWER_SECONDS)
    assert fake.slow.cancelled.is_set()
    assert fake.left == 1
