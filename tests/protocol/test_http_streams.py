"""When an answer streams, what keeps it alive, and what its end means for the work."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from kb_server.tool import Call, NoArguments
from tests.protocol.conftest import BOUND, Serve
from tests.support.fake_toolset import Empty, Fake
from tests.support.mcp_messages import BOTH, PLAIN, call, events, modern, modern_headers

TOKEN = {"progressToken": "p1"}
SHORT = 0.01
"""A keep-alive interval that passes at once."""


def steps(era: str) -> tuple[dict[str, Any], dict[str, str]]:
    """A call that asks for progress, and its headers."""
    message = call("steps", meta=TOKEN)
    if era == "modern":
        message = modern(message)
        return message, modern_headers(message)
    return message, BOTH


@pytest.mark.parametrize("era", ["handshake", "modern"])
async def test_progress_turns_the_answer_into_a_stream(
    http: aiohttp.ClientSession, serve: Serve, era: str
) -> None:
    served = await serve()
    message, headers = steps(era)
    async with http.post(served.mcp, json=message, headers=headers) as response:
        assert response.content_type == "text/event-stream"
        assert response.headers["Cache-Control"] == "no-cache, no-transform"
        half, whole, answer = events(await response.text())
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
    http: aiohttp.ClientSession, serve: Serve, accept: str | None, streams: bool
) -> None:
    """JSON alone is enough for every answer; its progress is then left out."""
    served = await serve()
    headers = {**PLAIN, **({"Accept": accept} if accept else {})}
    skip = None if accept else ["Accept"]
    async with http.post(
        served.mcp, data=json.dumps(call("steps", meta=TOKEN)), headers=headers, skip_auto_headers=skip
    ) as response:
        assert response.status == 200
        assert response.content_type == ("text/event-stream" if streams else "application/json")


async def test_a_token_that_is_none_is_not_used(http: aiohttp.ClientSession, serve: Serve) -> None:
    """A boolean is an integer to Python, not to the protocol: the request is refused."""
    served = await serve()
    async with http.post(
        served.mcp, json=call("steps", meta={"progressToken": []}), headers=BOTH
    ) as response:
        assert response.content_type == "application/json"
        assert (await response.json())["error"]["code"] == -32602


@pytest.mark.parametrize("era", ["handshake", "modern"])
async def test_a_silent_call_is_kept_alive_with_comments(
    http: aiohttp.ClientSession, serve: Serve, fake: Fake, era: str
) -> None:
    """After a while the answer becomes a stream, so that no proxy takes it for dead."""
    served = await serve(keep_alive=SHORT)
    message = call("slow")
    headers = BOTH
    if era == "modern":
        message = modern(message)
        headers = modern_headers(message)
    async with http.post(served.mcp, json=message, headers=headers) as response:
        assert response.content_type == "text/event-stream"
        seen = [await response.content.readuntil(b"\n\n") for _ in range(3)]
        assert seen == [b": keep-alive\n\n"] * 3
        fake.slow.release.set()
        assert events(await response.text())[-1]["result"]["isError"] is False


async def test_a_client_that_did_not_name_the_stream_gets_plain_json_however_long_it_takes(
    http: aiohttp.ClientSession, serve: Serve, fake: Fake
) -> None:
    """curl sends `*/*` and cannot read events."""
    served = await serve(keep_alive=SHORT)
    posted = asyncio.ensure_future(
        http.post(served.mcp, json=call("slow"), headers={**PLAIN, "Accept": "*/*"})
    )
    await fake.slow.started.wait()
    await asyncio.wait({posted}, timeout=5 * SHORT)
    fake.slow.release.set()
    async with await posted as response:
        assert response.content_type == "application/json"


async def test_a_fault_after_the_stream_began_is_its_last_event(
    http: aiohttp.ClientSession, serve: Serve, fake: Fake
) -> None:
    """The status has been sent; the error has not."""
    served = await serve(keep_alive=SHORT)

    async def broken_late(arguments: NoArguments, call: Call) -> Empty:
        await fake.slow.release.wait()
        raise RuntimeError("late")

    fake.slow.run = broken_late  # type: ignore[method-assign]
    async with http.post(served.mcp, json=call("slow"), headers=BOTH) as response:
        await response.content.readuntil(b"\n\n")
        fake.slow.release.set()
        assert events(await response.text())[-1]["error"]["code"] == -32603


@pytest.mark.parametrize("streaming", [True, False])
async def test_closing_a_modern_answer_cancels_the_work(
    http: aiohttp.ClientSession, serve: Serve, fake: Fake, streaming: bool
) -> None:
    served = await serve(keep_alive=SHORT if streaming else 15.0)
    message = modern(call("slow"))
    posted = asyncio.ensure_future(http.post(served.mcp, json=message, headers=modern_headers(message)))
    await fake.slow.started.wait()
    if streaming:
        (await posted).close()
    else:
        posted.cancel()
    await asyncio.wait_for(fake.slow.cancelled.wait(), BOUND)
    async with http.post(served.mcp, json=call("echo", text="on"), headers=PLAIN) as response:
        assert response.status == 200


@pytest.mark.parametrize("streaming", [True, False])
async def test_progress_with_nobody_left_to_hear_it_hurts_nothing(
    http: aiohttp.ClientSession, serve: Serve, fake: Fake, streaming: bool
) -> None:
    """A disconnect says nothing in the handshake era: the work goes on without its client."""
    served = await serve(keep_alive=SHORT if streaming else 15.0)
    ended = asyncio.Event()

    async def reporting(arguments: NoArguments, call: Call) -> Empty:
        fake.slow.started.set()
        await fake.slow.release.wait()
        for step in range(20):
            await call.progress(step, 20, "x" * 10_000)
        ended.set()
        return Empty()

    fake.slow.run = reporting  # type: ignore[method-assign]
    posted = asyncio.ensure_future(http.post(served.mcp, json=call("slow", meta=TOKEN), headers=BOTH))
    await fake.slow.started.wait()
    if streaming:
        (await posted).close()
    else:
        posted.cancel()
        await asyncio.gather(posted, return_exceptions=True)
    async with http.post(served.mcp, json=call("echo", text="on"), headers=PLAIN) as response:
        assert response.status == 200
    fake.slow.release.set()
    await asyncio.wait_for(ended.wait(), BOUND)


async def test_a_client_that_stops_reading_holds_up_no_work(
    serve: Serve, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts as gone after a while: a tool's reports must not wait for it for ever."""
    monkeypatch.setattr("mcp_aiohttp.transport.endpoint.STALLED_SECONDS", 0.05)
    served = await serve()
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
    await asyncio.wait_for(ended.wait(), BOUND)
    writer.close()


async def test_calls_without_listeners_end_before_the_server_does(
    http: aiohttp.ClientSession, serve: Serve, fake: Fake
) -> None:
    """Stopping waits for them, and cancels what does not end; the lifespan is left last."""
    served = await serve(serve_options={"drain_seconds": 0.1})
    posted = asyncio.ensure_future(http.post(served.mcp, json=call("slow"), headers=BOTH))
    await fake.slow.started.wait()
    posted.cancel()
    await asyncio.gather(posted, return_exceptions=True)
    served.stop.set()
    await asyncio.wait_for(asyncio.shield(served.task), BOUND)
    assert fake.slow.cancelled.is_set()
    assert fake.left == 1
