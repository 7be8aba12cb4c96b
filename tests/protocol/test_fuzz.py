"""For arbitrary input, each message gets its required number of answers, and the server keeps working."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kb_server.hosting.http import build_app
from kb_server.hosting.toolset_server import mount
from kb_server.settings import ServerSettings
from mcp_aiohttp.options import BodyLimits, HostingOptions
from mcp_aiohttp.protocol import jsonrpc
from tests.protocol.conftest import Served, serving
from tests.protocol.sockets import Bare, frame
from tests.support.fake_toolset import Fake
from tests.support.mcp_messages import ENVELOPE, MODERN
from tests.support.patience import ANSWER_SECONDS

text = st.text(max_size=12)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)
methods = st.sampled_from(
    [
        "initialize",
        "ping",
        "tools/list",
        "tools/call",
        "server/discover",
        "prompts/list",
        "notifications/cancelled",
    ]
)
meta = st.fixed_dictionaries(
    {},
    optional={
        "progressToken": json_values,
        "correlation_id": json_values,
        "traceparent": json_values,
        **{key: st.just(value) | json_values for key, value in ENVELOPE.items()},
    },
)
params = json_values | st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["echo", "steps", "refusing", "broken"]) | json_values,
        "arguments": st.dictionaries(
            st.sampled_from(["text", "times", "tone", "tags"]) | text, json_values, max_size=4
        )
        | json_values,
        "cursor": json_values,
        "protocolVersion": json_values,
        "capabilities": json_values,
        "clientInfo": json_values,
        "_meta": meta | json_values,
    },
)
messages = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | json_values,
        "id": st.integers() | text | json_values,
        "method": methods | json_values,
        "params": params,
        "result": json_values,
    },
)
header_text = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)
headers = st.fixed_dictionaries(
    {},
    optional={
        "MCP-Protocol-Version": st.sampled_from([MODERN, "2025-11-25", "2025-06-18", "2025-03-26"])
        | header_text,
        "Mcp-Method": methods | header_text,
        "Mcp-Name": st.sampled_from(["echo", "=?base64?ZWNobw==?=", "=?base64?x?="]) | header_text,
        "Accept": st.sampled_from(["*/*", "application/json", "text/event-stream"]) | header_text,
        "Authorization": header_text,
        "traceparent": header_text,
        "X-Correlation-ID": header_text,
        "Origin": st.sampled_from(["http://localhost", "null"]) | header_text,
    },
)


FUZZ = settings(max_examples=2 * settings().max_examples, suppress_health_check=list(HealthCheck))


class Server:
    """A server on its own event loop, called from synchronous code, because Hypothesis is synchronous."""

    served: Served
    session: aiohttp.ClientSession

    def __init__(self, runner: asyncio.Runner) -> None:
        self.run = runner.run

    def post(self, body: bytes, sent: dict[str, str]) -> tuple[int, bytes]:
        return self.run(self._post(body, sent))

    async def _post(self, body: bytes, sent: dict[str, str]) -> tuple[int, bytes]:
        fields = {"Content-Type": "application/json", **sent}
        async with self.session.post(self.served.mcp, data=body, headers=fields) as response:
            return response.status, await response.read()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """The fake toolset, on one server for all examples."""
    options = HostingOptions(body=BodyLimits(max_bytes=100_000))
    with asyncio.Runner() as runner:
        server = Server(runner)

        async def start() -> AsyncExitStack:
            async with AsyncExitStack() as stack:
                app = build_app(ServerSettings(), mount([Fake().toolset], ["fake"]), options=options)
                server.served = await stack.enter_async_context(serving(app))
                timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
                server.session = await stack.enter_async_context(aiohttp.ClientSession(timeout=timeout))
                return stack.pop_all()

        stack = runner.run(start())
        yield server
        runner.run(stack.aclose())


def check(status: int, answer: bytes) -> None:
    """Check that the status is not a server error, and that the answer is JSON-RPC."""
    assert status in (200, 202, 400, 403, 404), (status, answer)
    if status == 202:
        assert answer == b""
        return
    text = answer.decode()
    found = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")] or [text]
    for each in found:
        told = json.loads(each)
        for message in told if isinstance(told, list) else [told]:
            assert message["jsonrpc"] == "2.0"
            assert "ours alone" not in each


@FUZZ
@given(body=st.binary(max_size=300), sent=headers)
def test_any_bytes_are_answered(server: Server, body: bytes, sent: dict[str, str]) -> None:
    check(*server.post(body, sent))


@FUZZ
@given(message=messages | st.lists(messages, max_size=4) | json_values, sent=headers)
def test_any_message_is_answered(server: Server, message: Any, sent: dict[str, str]) -> None:
    check(*server.post(json.dumps(message).encode(), sent))


@FUZZ
@given(head=st.binary(max_size=80))
def test_any_bytes_on_the_wire_leave_the_server_standing(server: Server, head: bytes) -> None:
    async def send() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", server.served.port)
        writer.write(b"POST /mcp HTTP/1.1\r\n" + head + b"\r\n\r\n")
        writer.close()

    server.run(send())
    assert server.post(b'{"jsonrpc":"2.0","id":1,"method":"ping"}', {})[0] == 200


END = "the last one"


async def exchange(server: Server, texts: list[str]) -> list[dict[str, Any]]:
    """Return all answers on one connection; a last request makes sure that none is still missing."""
    async with server.session.ws_connect(server.served.mcp) as socket, asyncio.timeout(ANSWER_SECONDS):
        for text in texts:
            await socket.send_str(text)
        owed = sum(_is_answered(text) for text in texts)
        answers: list[dict[str, Any]] = []
        while len(answers) < owed:
            message = json.loads((await socket.receive()).data)
            if "method" not in message:
                answers.append(message)
        await socket.send_str(json.dumps({"jsonrpc": "2.0", "id": END, "method": "nothing"}))
        while "method" in (last := json.loads((await socket.receive()).data)):
            pass
        assert last["id"] == END
        return answers


async def throw(server: Server, data: bytes) -> None:
    """Send bytes after the upgrade, and read until the server closes the connection."""
    bare = await Bare.open(server.served)
    bare.writer.write(data + frame(8, b"\x03\xe8"))
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        bare.writer.write_eof()
        await asyncio.wait_for(bare.reader.read(), ANSWER_SECONDS)
    bare.writer.close()


def _is_answered(text: str) -> bool:
    """True if a message must be answered: a request, or text that is not a message."""
    try:
        message = jsonrpc.as_message(jsonrpc.parse(text.encode()))
    except (jsonrpc.ParseError, jsonrpc.InvalidRequestError):
        return True
    return isinstance(message, jsonrpc.Request)


def _is_plain(message: dict[str, Any]) -> bool:
    """True if the message cancels no call and does not use the id of the last one."""
    return message.get("method") != "notifications/cancelled" and message.get("id") != END


texts = st.lists(messages.filter(_is_plain).map(json.dumps) | st.text(max_size=30), max_size=12)


@FUZZ
@given(texts=texts)
def test_every_message_that_is_owed_an_answer_gets_one(
    server: Server, texts: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    answers = server.run(exchange(server, texts))
    assert all(("result" in answer) != ("error" in answer) for answer in answers)
    assert not [record for record in caplog.records if "WebSocket failed unexpectedly" in record.message]


frames = st.builds(
    lambda kind, payload, final, reserved: frame(kind, payload, final=final, reserved=reserved),
    st.sampled_from([0, 1, 2, 8, 9, 10]) | st.integers(0, 15),
    st.binary(max_size=200) | messages.map(lambda message: json.dumps(message).encode()),
    st.booleans(),
    st.sampled_from([0, 0, 0, 0, 1, 4]),
)
thrown = st.lists(frames | st.binary(max_size=50), max_size=8).map(b"".join)


@FUZZ
@given(data=thrown)
def test_whatever_comes_after_the_upgrade_breaks_nothing(
    server: Server, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    server.run(throw(server, data))
    assert server.run(exchange(server, [])) == []
    assert not [record for record in caplog.records if "broke" in record.message]
