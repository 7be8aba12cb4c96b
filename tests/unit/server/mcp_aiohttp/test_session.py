"""A session of messages in both directions, without a connection: requests in flight, and their limits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import pytest
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCResponse

from kb_server.hosting.toolset_server import hosted
from kb_server.tool import Call
from mcp_aiohttp.options import Bounds
from mcp_aiohttp.protocol.session import Session, session
from tests.support.fake_toolset import Fake
from tests.support.loop_clock import turns
from tests.support.mcp_messages import call, initialize, modern, request
from tests.support.patience import ANSWER_SECONDS, SILENCE


@dataclass
class Written:
    """A write stream that keeps its items, and blocks unless `let` is set."""

    items: list[Any] = field(default_factory=list)
    more: asyncio.Event = field(default_factory=asyncio.Event)
    let: asyncio.Event = field(default_factory=asyncio.Event)
    broken: bool = False
    closed: bool = False

    async def send(self, item: SessionMessage, /) -> None:
        await self.let.wait()
        if self.broken:
            raise anyio.BrokenResourceError
        self.items.append(item.message)
        self.more.set()

    async def answers(self, count: int) -> list[JSONRPCResponse | JSONRPCError]:
        """Return the first `count` responses, once they are there."""
        async with asyncio.timeout(ANSWER_SECONDS):
            while len(found := [item for item in self.items if hasattr(item, "id")]) < count:
                self.more.clear()
                await self.more.wait()
        return found[:count]

    async def aclose(self) -> None:
        self.closed = True

    async def __aenter__(self) -> Written:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.aclose()


@pytest.fixture
def fake() -> Fake:
    return Fake()


@pytest.fixture
def written() -> Written:
    """A stream that does not block."""
    made = Written()
    made.let.set()
    return made


@asynccontextmanager
async def beginning(fake: Fake, written: Written, **options: Any) -> AsyncIterator[Session]:
    server = hosted(options.pop("toolset", fake.toolset))
    async with session(server, written, **options) as client:
        yield client


def sent(message: Any) -> bytes:
    return json.dumps(message).encode()


async def test_leaving_the_block_cancels_what_runs(fake: Fake, written: Written) -> None:
    """The write stream is closed; the caller gets an error if it can still be written."""
    async with beginning(fake, written) as client:
        await client.take(sent(call("slow", 1)))
        await asyncio.wait_for(fake.slow.started.wait(), ANSWER_SECONDS)
    assert fake.slow.cancelled.is_set()
    assert written.closed
    (answer,) = await written.answers(1)
    assert isinstance(answer, JSONRPCError)
    assert (answer.id, answer.error.code) == (1, -32000)


async def test_settled_waits_for_answers_and_no_longer_than_it_may(fake: Fake, written: Written) -> None:
    """Without a request in flight it returns at once."""
    async with beginning(fake, written) as client:
        await asyncio.wait_for(client.settled(10 * ANSWER_SECONDS), ANSWER_SECONDS)
        await client.take(sent(call("slow", 1)))
        await asyncio.wait_for(client.settled(SILENCE), ANSWER_SECONDS)
        assert written.items == []
        fake.slow.release.set()
        await asyncio.wait_for(client.settled(10 * ANSWER_SECONDS), ANSWER_SECONDS)
        assert [item.id for item in written.items] == [1]


async def test_a_cancelled_call_is_in_flight_until_its_work_has_ended(
    fake: Fake, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The response waits for the cancellation: the call may still clean up."""
    cleaning, clean = asyncio.Event(), asyncio.Event()

    async def tidy(*_arguments: Any) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            with anyio.CancelScope(shield=True):
                await clean.wait()

    monkeypatch.setattr(fake.slow, "run", tidy)
    bounds = Bounds(calls=1, bytes=10_000)
    async with beginning(fake, written, bounds=bounds) as client:
        await client.take(sent(call("slow", 1)))
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        await client.take(sent(cancel))
        await asyncio.wait_for(cleaning.wait(), ANSWER_SECONDS)
        await client.take(sent(request("ping", request_id=2)))
        clean.set()
        await client.settled(ANSWER_SECONDS)
        await client.take(sent(request("ping", request_id=3)))
        refused, answered = await written.answers(2)
    assert isinstance(refused, JSONRPCError)
    assert (refused.id, refused.error.code) == (2, -32017)
    assert isinstance(answered, JSONRPCResponse)
    assert answered.id == 3


async def test_a_call_is_in_flight_until_its_answer_is_written(fake: Fake, written: Written) -> None:
    """A client that does not read has at most as many pending responses as allowed calls."""
    written.let.clear()
    async with beginning(fake, written, bounds=Bounds(calls=2, bytes=10_000)) as client:
        for number in (1, 2):
            await client.take(sent(call("echo", number, text="x")))
        third = asyncio.ensure_future(client.take(sent(call("echo", 3, text="x"))))
        await turns()
        assert not third.done()  # even the refusal waits for its turn
        written.let.set()
        await asyncio.wait_for(third, ANSWER_SECONDS)
        codes = {answer.id: getattr(answer, "error", None) for answer in await written.answers(3)}
        assert codes[1] is None
        assert codes[2] is None
        assert codes[3] is not None
        assert codes[3].code == -32017


async def test_an_answer_that_cannot_be_written_ends_its_call_all_the_same(
    fake: Fake, written: Written
) -> None:
    """Otherwise its place would never be free again."""
    written.broken = True
    async with beginning(fake, written, bounds=Bounds(calls=1, bytes=10_000)) as client:
        await client.take(sent(call("echo", 1, text="x")))
        await asyncio.wait_for(client.settled(10 * ANSWER_SECONDS), ANSWER_SECONDS)
        written.broken = False
        await client.take(sent(call("echo", 2, text="x")))
        (answer,) = await written.answers(1)
    assert isinstance(answer, JSONRPCResponse)


async def test_one_message_over_the_bound_of_bytes_is_refused_alone(fake: Fake, written: Written) -> None:
    """The limit is for all messages in flight together, including this one."""
    async with beginning(fake, written, bounds=Bounds(calls=10, bytes=200)) as client:
        await client.take(sent(call("echo", 1, text="x" * 200)))
        await client.take(sent(call("echo", 2, text="x")))
        first, second = await written.answers(2)
    assert isinstance(first, JSONRPCError)
    assert isinstance(second, JSONRPCResponse)


@pytest.mark.parametrize(
    "opening", [request("tools/list"), initialize("2025-06-18"), modern(request("tools/list"))]
)
async def test_a_client_may_open_with_any_request(
    fake: Fake, written: Written, opening: dict[str, Any]
) -> None:
    async with session(hosted(fake.toolset), written) as client:
        await client.take(sent(opening))
        (answer,) = await written.answers(1)
    assert isinstance(answer, JSONRPCResponse)


async def test_a_task_that_is_being_cancelled_is_in_flight(fake: Fake, written: Written) -> None:
    told: list[str] = []

    async def cancel(task_id: str, _call: Call) -> None:
        told.append(task_id)

    toolset = replace(fake.toolset, cancel=cancel)
    async with beginning(fake, written, toolset=toolset) as client:
        await client.take(sent({"jsonrpc": "2.0", "method": "tools/cancel", "params": {"taskId": "t"}}))
        await client.settled(ANSWER_SECONDS)
        assert told == ["t"]
        assert written.items == []
