"""Whatever is sent over WebSocket, each message is answered as often as it must be, and nothing breaks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
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
from tests.protocol.conftest import BOUND, Served, serving
from tests.protocol.sockets import Bare, frame
from tests.protocol.test_http_fuzz import messages
from tests.support.fake_toolset import Fake

END = "the last one"
FUZZ = settings(
    max_examples=2 * settings.default.max_examples,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class Server:
    """A server on a loop of its own, and what it logged as broken."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()

    async def start(self) -> None:
        """Listen."""
        app = build_app(
            ServerSettings(),
            mount([Fake().toolset], ["fake"]),
            options=HostingOptions(body=BodyLimits(max_bytes=5000)),
        )
        self.context = serving(app)
        self.served: Served = await self.context.__aenter__()
        self.session = aiohttp.ClientSession()

    async def stop(self) -> None:
        """Stop."""
        await self.session.close()
        await self.context.__aexit__(None, None, None)

    async def exchange(self, texts: list[str]) -> list[dict[str, Any]]:
        """What comes back on one connection, up to the answer to a last request that waits for the others."""
        async with self.session.ws_connect(self.served.mcp) as socket, asyncio.timeout(2 * BOUND):
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

    async def throw(self, data: bytes) -> None:
        """Send bytes after the upgrade, and read until the server has had enough or nothing more comes."""
        bare = await Bare.open(self.served)
        bare.writer.write(data + frame(8, b"\x03\xe8"))
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            bare.writer.write_eof()
            await asyncio.wait_for(bare.reader.read(), BOUND)
        bare.writer.close()


def _is_answered(text: str) -> bool:
    """Whether a message is owed an answer: a request is, and so is what is no message."""
    try:
        message = jsonrpc.as_message(jsonrpc.parse(text.encode()))
    except (jsonrpc.ParseError, jsonrpc.InvalidRequestError):
        return True
    return isinstance(message, jsonrpc.Request)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server for the tests of this module."""
    made = Server()
    made.runner.run(made.start())
    yield made
    made.runner.run(made.stop())
    made.runner.close()


def _is_plain(message: dict[str, Any]) -> bool:
    """Whether the message gives no other up, and does not take the last one's id."""
    return message.get("method") != "notifications/cancelled" and message.get("id") != END


texts = st.lists(messages.filter(_is_plain).map(json.dumps) | st.text(max_size=30), max_size=12)


@FUZZ
@given(texts=texts)
def test_every_message_that_is_owed_an_answer_gets_one(
    server: Server, texts: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Requests and what is no message; notifications and responses get none. The connection goes on."""
    answers = server.runner.run(server.exchange(texts))
    assert all(("result" in answer) != ("error" in answer) for answer in answers)
    assert not [record for record in caplog.records if "WebSocket broke" in record.message]


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
    """The connection ends in time, no fault is logged, and the next one is served."""
    server.runner.run(server.throw(data))
    assert server.runner.run(server.exchange([])) == []
    assert not [record for record in caplog.records if "broke" in record.message]
