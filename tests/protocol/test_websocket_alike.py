"""A request is answered alike over HTTP and over WebSocket: each goes both ways, and answers are compared.

What differs by nature is left out of what is generated: routing headers, which only HTTP has, agree with the
message, and a handshake goes before the requests of its version.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import Any, BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from tests.protocol.sockets import INITIALIZED, TEXT, frame, upgrade
from tests.protocol.test_fast_path import (
    _NEW_EVERY_TIME,
    FEW,
    GOOD,
    Both,
    _named,
    beside,
    capabilities,
    client_info,
    ids,
    json_values,
    words,
)
from tests.protocol.test_fast_path import both as both
from tests.support.mcp_messages import BOTH, MODERN, events, initialize, modern, modern_headers, request

VERSIONS = (MODERN, *HANDSHAKE_PROTOCOL_VERSIONS)


class Blocking:
    """A WebSocket for code that does not run in a loop."""

    def __init__(self, port: int, path: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self._file: BinaryIO = self._socket.makefile("rb")
        self._socket.sendall(upgrade(path))
        assert self._file.readline().startswith(b"HTTP/1.1 101 ")
        while self._file.readline() != b"\r\n":
            pass

    def send(self, message: Any) -> None:
        """Send `message` as a text."""
        self._socket.sendall(frame(TEXT, json.dumps(message).encode()))

    def receive(self) -> str:
        """The next text."""
        first, size = self._file.read(2)
        assert first == 0x80 | TEXT, self._file.read(size)
        if size >= 126:
            size = struct.unpack("!H", self._file.read(2))[0] if size == 126 else _long(self._file.read(8))
        return self._file.read(size).decode()

    def close(self) -> None:
        """Hang up."""
        self._file.close()
        self._socket.close()


def _long(size: bytes) -> int:
    return int.from_bytes(size, "big")


@dataclass
class Sent:
    """A request of `version` to a toolset."""

    toolset: str
    version: str
    message: dict[str, Any]


@dataclass
class Ways:
    """The two ways to the same application; a connection of each kind for each toolset and version."""

    port: int
    http: HTTPConnection
    sockets: dict[tuple[str, str], Blocking] = field(default_factory=dict)

    def posted(self, sent: Sent) -> list[Any]:
        """The messages that come back over HTTP."""
        modern_ = sent.version == MODERN
        headers = modern_headers(sent.message) if modern_ else {**BOTH, "MCP-Protocol-Version": sent.version}
        self.http.request("POST", f"/mcp/{sent.toolset}", json.dumps(sent.message), headers)
        response = self.http.getresponse()
        text = _NEW_EVERY_TIME.sub("NEW", response.read().decode())
        streamed = response.headers["Content-Type"].startswith("text/event-stream")
        return events(text) if streamed else [json.loads(text)]

    def framed(self, sent: Sent) -> list[Any]:
        """The messages that come back over WebSocket, up to the answer."""
        wire = self._socket(sent.toolset, sent.version)
        wire.send(sent.message)
        told = [self._message(wire)]
        while "method" in told[-1]:
            told.append(self._message(wire))
        return told

    def _socket(self, toolset: str, version: str) -> Blocking:
        if (toolset, version) not in self.sockets:
            wire = self.sockets[toolset, version] = Blocking(self.port, f"/mcp/{toolset}")
            first = request("tools/list")
            wire.send(modern(first) if version == MODERN else initialize(version))
            assert "result" in json.loads(wire.receive())
            if version != MODERN:
                wire.send(INITIALIZED)
        return self.sockets[toolset, version]

    def _message(self, wire: Blocking) -> Any:
        return json.loads(_NEW_EVERY_TIME.sub("NEW", wire.receive()))


@pytest.fixture(scope="module")
def ways(both: Both) -> Iterator[Ways]:
    """Both ways to every toolset there is, and to one that shows each way in which a call can go."""
    made = Ways(both.port, HTTPConnection("127.0.0.1", both.port, timeout=20))
    yield made
    made.http.close()
    for wire in made.sockets.values():
        wire.close()


# --- what is sent ---------------------------------------------------------------------------------

envelope_members = st.fixed_dictionaries(
    {},
    optional={
        "io.modelcontextprotocol/clientCapabilities": capabilities | json_values,
        "io.modelcontextprotocol/clientInfo": client_info | json_values,
    },
)


@st.composite
def plain(draw: st.DrawFn, names: dict[str, list[str]]) -> Sent:
    """A request as clients send it, and calls whose arguments may be anything."""
    toolset = draw(st.sampled_from(sorted(names)))
    name = draw(st.sampled_from(names[toolset]))
    parameters = sorted({parameter for arguments in GOOD.values() for parameter in arguments} | {"nothing"})
    arguments = draw(
        st.just(GOOD[name]) | st.dictionaries(st.sampled_from(parameters), json_values, max_size=3)
    )
    call = request("tools/call", {"name": name, "arguments": arguments})
    message = draw(st.sampled_from([call, call, request("tools/list")]))
    message["id"] = draw(ids)
    version = draw(st.sampled_from(VERSIONS))
    return Sent(toolset, version, modern(message) if version == MODERN else message)


@st.composite
def odd(draw: st.DrawFn, names: dict[str, list[str]]) -> Sent:
    """A request in which much may be wrong."""
    toolset = draw(st.sampled_from(sorted(names)))
    version = draw(st.sampled_from(VERSIONS))
    method = draw(
        st.sampled_from(
            [
                "tools/call",
                "tools/call",
                "tools/list",
                "ping",
                "server/discover",
                "prompts/list",
                "tools/cancel",
            ]
        )
        | words.filter(lambda word: word.isascii() and word.isprintable() and word.strip() == word and word)
    )
    name = draw(st.sampled_from([*names[toolset], "nothing"]))
    members: dict[str, Any] = draw(
        st.fixed_dictionaries(
            {"name": st.just(name)} if method == "tools/call" else {},
            optional={
                "arguments": st.just(GOOD.get(name, {})) | json_values,
                "task": json_values,
                "cursor": json_values,
                "taskId": json_values,
                "inputResponses": json_values,
                "requestState": json_values,
                "other": json_values,
            },
        )
    )
    meta = draw(beside)
    if version == MODERN:
        return Sent(
            toolset, version, modern(request(method, members, draw(ids)), **meta, **draw(envelope_members))
        )
    members["_meta"] = draw(st.just(meta) | json_values)
    return Sent(toolset, version, request(method, draw(st.just(members) | st.none()), draw(ids)))


# --- and compared -----------------------------------------------------------------------------------


@pytest.mark.requirement("N80")
@FEW
@given(data=st.data())
def test_a_plain_request_is_answered_alike(both: Both, ways: Ways, data: st.DataObject) -> None:
    sent = data.draw(plain(_named(both)))
    assert ways.framed(sent) == ways.posted(sent)


@FEW
@given(data=st.data())
def test_an_odd_request_is_answered_alike(both: Both, ways: Ways, data: st.DataObject) -> None:
    sent = data.draw(odd(_named(both)))
    assert ways.framed(sent) == ways.posted(sent)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_good_call_is_answered_alike(both: Both, ways: Ways, version: str) -> None:
    """None is left to chance; with progress too."""
    for toolset, names in _named(both).items():
        for name in names:
            params = {"name": name, "arguments": GOOD[name], "_meta": {"progressToken": "p"}}
            message = request("tools/call", params)
            sent = Sent(toolset, version, modern(message) if version == MODERN else message)
            assert ways.framed(sent) == ways.posted(sent), name
