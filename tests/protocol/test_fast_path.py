"""Requests are answered equally by the fast path and by the kernel, over HTTP and over WebSocket.

Each request is sent both ways, and the answers are compared. One application serves the same toolset twice:
at `/mcp/<name>` with the fast path, and at `/kernel/<name>` without. Calls are made in a separate thread, so
that Hypothesis can drive them.

Inherent differences between HTTP and WebSocket are not generated: routing headers, which only HTTP has, agree
with the message, and a handshake precedes the requests of its version.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcp_types.methods import validate_client_request
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from websockets.sync.client import ClientConnection, connect

from kb_server.services import Services
from kb_server.settings import ServerSettings
from kb_server.toolsets import TOOLSETS, build_toolset
from mcp_aiohttp.fastpath import FastPath
from tests.protocol.both_paths import (
    GOOD,
    NEW_EVERY_TIME,
    Both,
    Engine,
    Ragler,
    beside,
    capabilities,
    client_info,
    ids,
    json_values,
    odd,
    plain,
    plain_message,
    sent_of,
    standing,
    words,
)
from tests.protocol.sockets import INITIALIZED
from tests.support.fake_toolset import Fake
from tests.support.mcp_messages import BOTH, MODERN, events, initialize, modern, modern_headers, request
from tests.support.patience import ANSWER_SECONDS

NOT_COMPARED = {"slow"}
"""The tool `slow`, which waits until a test releases it."""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    """All toolsets, and the fake one, which shows each possible course of a call."""
    home: Path = tmp_path_factory.mktemp("fast_path")
    text = home / "text.txt"
    text.write_text("Bees keep warm.\nThey cluster.\n")
    engine: Any = Engine()
    ragler: Any = Ragler()
    configured = ServerSettings(home=home, text_file=str(text), ragler_api_key="key")
    services = Services(configured, engine=engine, ragler=ragler)
    toolsets = {name: build_toolset(name, services) for name in TOOLSETS}
    match = FastPath.match
    with pytest.MonkeyPatch.context() as patch, standing({"fake": Fake().toolset, **toolsets}) as served:

        def counted(*arguments: Any) -> Any:
            matched = match(*arguments)
            served.taken += matched is not None
            return matched

        patch.setattr(FastPath, "match", counted)
        yield served


# --- generated requests ---------------------------------------------------------------------------


FEW = settings(
    derandomize=True,
    database=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    ],
)


@FEW
@given(data=st.data())
def test_a_plain_request_is_answered_as_by_the_kernel(both: Both, data: st.DataObject) -> None:
    sent = data.draw(plain(_named(both)))
    fast, kernel = both.answers(sent.toolset, sent.headers, sent.body)
    assert fast == kernel


@pytest.mark.parametrize(
    "meta", [{}, {"progressToken": "p", "other": 1}], ids=["no progress", "progress token"]
)
def test_a_plain_request_is_for_the_fast_path(both: Both, meta: dict[str, Any]) -> None:
    """All but calls of tools that may ask a person or report progress to one who wants it: they need the
    kernel.
    """
    wanted = both.taken
    ask = {tool.name for toolset in both.toolsets.values() for tool in toolset.tools if tool.asks}
    assert ask == {"kb_delete", "knowledge-remove", "knowledge-clear"}
    for toolset, named in _named(both).items():
        reporting = {tool.name for tool in both.toolsets[toolset].tools if tool.reports and meta}
        names = [name for name in named if name not in ask | reporting]
        calls = [{"name": name, "arguments": GOOD[name], "_meta": meta} for name in names]
        messages = [request("tools/call", call) for call in calls]
        for message in [request("tools/list"), request("tools/list"), *messages]:
            handshake = sent_of(toolset, {**BOTH, "MCP-Protocol-Version": "2025-11-25"}, message)
            envelope = sent_of(toolset, modern_headers(message), modern(message))
            for sent in (handshake, envelope):
                both.answers(toolset, sent.headers, sent.body)
        wanted += 2 * (1 + len(names))
    assert both.taken >= wanted


@pytest.mark.parametrize("version", [MODERN, "2025-11-25"])
def test_members_that_change_with_every_call_are_not_validated_each_time(
    both: Both, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    validated: list[str] = []

    def noted(method: str, *arguments: Any) -> None:
        validated.append(method)
        validate_client_request(method, *arguments)

    monkeypatch.setattr("mcp_aiohttp.fastpath.validate_client_request", noted)
    wanted = both.taken + 3
    for number in range(3):
        meta = {"progressToken": number, "correlation_id": f"c{number}", "a/toolUseId": f"t{number}"}
        message = request("tools/call", {**ECHO, "_meta": meta})
        shaped, headers = message, {**BOTH, "MCP-Protocol-Version": version}
        if version == MODERN:
            info = {"io.modelcontextprotocol/clientInfo": {"name": "changing", "version": version}}
            shaped, headers = modern(message, **info), modern_headers(message)
        both.answers("fake", list(headers.items()), json.dumps(shaped).encode())
    assert both.taken == wanted
    assert len(validated) <= 1


ECHO = {"name": "echo", "arguments": GOOD["echo"]}
STEPS = {"name": "steps", "arguments": {}}
FOR_THE_KERNEL: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, str]]] = {
    "an envelope of another version": (
        "tools/call", ECHO, {"io.modelcontextprotocol/protocolVersion": "2025-11-25"}, {}
    ),
    "another method in the header": ("tools/call", ECHO, {}, {"Mcp-Method": "tools/list"}),
    "another tool in the header": ("tools/call", ECHO, {}, {"Mcp-Name": "steps"}),
    "a cursor": ("tools/list", {"cursor": "x"}, {}, {}),
    "a further member of a call": ("tools/call", {**ECHO, "task": {}}, {}, {}),
    "arguments in a list": ("tools/call", {**ECHO, "arguments": []}, {}, {}),
    "an unknown tool": ("tools/call", {**ECHO, "name": "nothing"}, {}, {}),
    "a name that is no text": ("tools/call", {**ECHO, "name": 1}, {}, {}),
    "a token for progress that is reported": ("tools/call", STEPS, {"progressToken": "p"}, {}),
    "a token that is none": ("tools/call", ECHO, {"progressToken": []}, {}),
    "capabilities that are no object": (
        "tools/call", ECHO, {"io.modelcontextprotocol/clientCapabilities": 1}, {}
    ),
    "another method": ("ping", {}, {}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", FOR_THE_KERNEL)
def test_an_odd_request_is_left_to_the_kernel(both: Both, name: str) -> None:
    method, params, meta, headers = FOR_THE_KERNEL[name]
    for usual in (request("tools/list"), request("tools/call", ECHO)):
        both.answers("fake", list(modern_headers(usual).items()), json.dumps(modern(usual)).encode())
    wanted = both.taken
    message = request(method, params)
    sent = sent_of("fake", modern_headers(message, **headers), modern(message, **meta))
    fast, kernel = both.answers(sent.toolset, sent.headers, sent.body)
    assert fast == kernel
    assert both.taken == wanted


@FEW
@given(data=st.data())
def test_an_odd_request_is_answered_as_by_the_kernel(both: Both, data: st.DataObject) -> None:
    sent = data.draw(odd(_named(both)))
    fast, kernel = both.answers(sent.toolset, sent.headers, sent.body)
    assert fast == kernel


def test_each_tool_is_compared(both: Both) -> None:
    tools = {tool.name for toolset in both.toolsets.values() for tool in toolset.tools}
    assert tools == GOOD.keys() | NOT_COMPARED


def test_without_the_fast_path_the_kernel_answers_everything(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(FastPath, "match", lambda *_arguments: pytest.fail("it was looked for"))
    message = request("tools/call", {"name": "echo", "arguments": GOOD["echo"]})
    configured = ServerSettings.read({"KB_FAST_PATH": "false", "KB_HOME": str(tmp_path)})
    with standing({"fake": Fake().toolset}, configured) as served:
        sent = sent_of("fake", modern_headers(message), modern(message))
        [answer, kernel] = served.answers(sent.toolset, sent.headers, sent.body)
    assert answer == kernel
    assert answer[0] == 200


def _named(both: Both) -> dict[str, list[str]]:
    return {
        name: [tool.name for tool in toolset.tools if tool.name not in NOT_COMPARED]
        for name, toolset in both.toolsets.items()
    }


# --- over HTTP and over WebSocket ------------------------------------------------------------------

VERSIONS = (MODERN, *HANDSHAKE_PROTOCOL_VERSIONS)


@dataclass
class Message:
    """A request of `version` to a toolset."""

    toolset: str
    version: str
    message: dict[str, Any]


@dataclass
class Ways:
    """Connections over HTTP and WebSocket to one application, a socket for each toolset and version."""

    port: int
    http: HTTPConnection
    sockets: dict[tuple[str, str], ClientConnection] = field(default_factory=dict)

    def posted(self, sent: Message) -> list[Any]:
        modern_ = sent.version == MODERN
        headers = modern_headers(sent.message) if modern_ else {**BOTH, "MCP-Protocol-Version": sent.version}
        self.http.request("POST", f"/mcp/{sent.toolset}", json.dumps(sent.message), headers)
        response = self.http.getresponse()
        text = NEW_EVERY_TIME.sub("NEW", response.read().decode())
        streamed = response.headers["Content-Type"].startswith("text/event-stream")
        return events(text) if streamed else [json.loads(text)]

    def framed(self, sent: Message) -> list[Any]:
        """Return the messages received over WebSocket, up to and including the answer."""
        wire = self._socket(sent.toolset, sent.version)
        wire.send(json.dumps(sent.message))
        told = [self._message(wire)]
        while "method" in told[-1]:
            told.append(self._message(wire))
        return told

    def _socket(self, toolset: str, version: str) -> ClientConnection:
        if (toolset, version) not in self.sockets:
            url = f"ws://127.0.0.1:{self.port}/mcp/{toolset}"
            wire = self.sockets[toolset, version] = connect(
                url, compression=None, max_size=None, ping_interval=None
            )
            first = modern(request("tools/list")) if version == MODERN else initialize(version)
            wire.send(json.dumps(first))
            assert "result" in json.loads(wire.recv(ANSWER_SECONDS))
            if version != MODERN:
                wire.send(json.dumps(INITIALIZED))
        return self.sockets[toolset, version]

    def _message(self, wire: ClientConnection) -> Any:
        return json.loads(NEW_EVERY_TIME.sub("NEW", str(wire.recv(ANSWER_SECONDS))))


@pytest.fixture(scope="module")
def ways(both: Both) -> Iterator[Ways]:
    """Both transports to all toolsets and the fake one, which shows each possible course of a call."""
    made = Ways(both.port, HTTPConnection("127.0.0.1", both.port, timeout=ANSWER_SECONDS))
    yield made
    made.http.close()
    for wire in made.sockets.values():
        wire.close()


# --- generated messages ---------------------------------------------------------------------------

envelope_members = st.fixed_dictionaries(
    {},
    optional={
        "io.modelcontextprotocol/clientCapabilities": capabilities | json_values,
        "io.modelcontextprotocol/clientInfo": client_info | json_values,
    },
)


@st.composite
def odd_message(draw: st.DrawFn, names: dict[str, list[str]]) -> Message:
    toolset = draw(st.sampled_from(sorted(names)))
    version = draw(st.sampled_from(VERSIONS))
    method = draw(
        st.sampled_from(["tools/call", "tools/call", "tools/list", "ping", "server/discover"])
        | st.sampled_from(["prompts/list", "tools/cancel"])
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
        return Message(
            toolset, version, modern(request(method, members, draw(ids)), **meta, **draw(envelope_members))
        )
    members["_meta"] = draw(st.just(meta) | json_values)
    return Message(toolset, version, request(method, draw(st.just(members) | st.none()), draw(ids)))


# --- comparison -------------------------------------------------------------------------------------


@pytest.mark.requirement("N80")
@FEW
@given(data=st.data())
def test_a_plain_request_is_answered_alike(both: Both, ways: Ways, data: st.DataObject) -> None:
    toolset, message = data.draw(plain_message(_named(both)))
    version = data.draw(st.sampled_from(VERSIONS))
    sent = Message(toolset, version, modern(message) if version == MODERN else message)
    assert ways.framed(sent) == ways.posted(sent)


@FEW
@given(data=st.data())
def test_an_odd_request_is_answered_alike(both: Both, ways: Ways, data: st.DataObject) -> None:
    sent = data.draw(odd_message(_named(both)))
    assert ways.framed(sent) == ways.posted(sent)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_good_call_is_answered_alike(both: Both, ways: Ways, version: str) -> None:
    for toolset, names in _named(both).items():
        for name in names:
            params = {"name": name, "arguments": GOOD[name], "_meta": {"progressToken": "p"}}
            message = request("tools/call", params)
            sent = Message(toolset, version, modern(message) if version == MODERN else message)
            assert ways.framed(sent) == ways.posted(sent), name
