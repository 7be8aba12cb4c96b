"""Whatever is sent over HTTP, the server answers with a status that blames the sender or succeeds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kb_server.hosting.http import build_app
from kb_server.hosting.toolset_server import mount
from kb_server.settings import ServerSettings
from mcp_aiohttp.options import BodyLimits, HostingOptions
from tests.protocol.conftest import BOUND, serving
from tests.support.fake_toolset import Fake
from tests.support.mcp_messages import ENVELOPE, MODERN

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


class Server:
    """A server on a loop of its own, asked from synchronous code: what Hypothesis drives."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.statuses: set[int] = set()

    def post(self, body: bytes, sent: dict[str, str]) -> tuple[int, bytes]:
        """What is answered to `body`."""
        return self.runner.run(self._post(body, sent))

    async def _post(self, body: bytes, sent: dict[str, str]) -> tuple[int, bytes]:
        fields = {"Content-Type": "application/json", **sent}
        async with self.session.post(self.url, data=body, headers=fields) as response:
            self.statuses.add(response.status)
            return response.status, await response.read()

    async def start(self) -> None:
        """Listen."""
        app = build_app(
            ServerSettings(),
            mount([Fake().toolset], ["fake"]),
            options=HostingOptions(body=BodyLimits(max_bytes=100_000)),
        )
        self.context = serving(app)
        served = await self.context.__aenter__()
        self.url = served.mcp
        self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=BOUND))

    async def stop(self) -> None:
        """Stop listening."""
        await self.session.close()
        await self.context.__aexit__(None, None, None)


@pytest.fixture(scope="module")
def server() -> Any:
    """One server for all examples."""
    server = Server()
    with server.runner:
        server.runner.run(server.start())
        yield server
        server.runner.run(server.stop())


def fuzzing(test: Callable[..., None]) -> Callable[..., None]:
    """Enough examples to matter, few enough to wait for."""
    return settings(max_examples=2 * settings.default.max_examples, suppress_health_check=list(HealthCheck))(
        test
    )


def check(status: int, answer: bytes) -> None:
    """The status is not a fault of the server's, and what is answered is JSON-RPC."""
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


@fuzzing
@given(body=st.binary(max_size=300), sent=headers)
def test_any_bytes_are_answered(server: Server, body: bytes, sent: dict[str, str]) -> None:
    check(*server.post(body, sent))


@fuzzing
@given(message=messages | st.lists(messages, max_size=4) | json_values, sent=headers)
def test_any_message_is_answered(server: Server, message: Any, sent: dict[str, str]) -> None:
    check(*server.post(json.dumps(message).encode(), sent))


@fuzzing
@given(
    arguments=st.dictionaries(
        st.sampled_from(["text", "times", "tone", "tags"]) | text, json_values, max_size=5
    )
)
def test_any_arguments_are_answered(server: Server, arguments: dict[str, Any]) -> None:
    call = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "echo", "arguments": arguments},
    }
    status, answer = server.post(json.dumps(call).encode(), {})
    check(status, answer)
    told = json.loads(answer)
    if status == 200 and told["result"]["isError"]:
        error = json.loads(told["result"]["content"][0]["text"])
        assert error["error"] in ("invalid_parameter", "missing_required_parameter")


@fuzzing
@given(head=st.binary(max_size=80))
def test_any_bytes_on_the_wire_leave_the_server_standing(server: Server, head: bytes) -> None:
    """What is no HTTP is answered by the HTTP parser, and the next request as ever."""

    async def send() -> None:
        port = int(server.url.split(":")[2].split("/")[0])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /mcp HTTP/1.1\r\n" + head + b"\r\n\r\n")
        writer.close()

    server.runner.run(send())
    assert server.post(b'{"jsonrpc":"2.0","id":1,"method":"ping"}', {})[0] == 200
