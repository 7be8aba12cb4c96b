"""Requests are answered equally by the fast path and by the kernel, over HTTP and over WebSocket.

Each request is sent both ways, and the answers are compared. One application serves the same toolset twice:
at `/mcp/<name>` with the fast path, and at `/kernel/<name>` without. Calls are made in a separate thread, so
that Hypothesis can drive them.

Inherent differences between HTTP and WebSocket are not generated: routing headers, which only HTTP has, agree
with the message, and a handshake precedes the requests of its version.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from websockets.sync.client import ClientConnection, connect

from kb_contracts.api import models as m
from kb_contracts.api.operations import GET_DOCUMENT, LIST_DOCUMENTS, SEARCH, AnyOperation
from kb_contracts.api.ragler import VectorSearchRequest
from kb_server.engine_client.errors import RateLimited, Refused
from kb_server.engine_client.ragler import Collection, CollectionDetail, Passage, Passages, Statistics
from kb_server.hosting.http import build_app
from kb_server.hosting.toolset_server import hosted, mount
from kb_server.observability.metrics import Metrics
from kb_server.schema import input_schema
from kb_server.services import Services
from kb_server.settings import ServerSettings
from kb_server.tool import Tool, Toolset
from kb_server.toolsets import TOOLSETS, build_toolset
from mcp_aiohttp.fastpath import FastPath
from tests.protocol.conftest import serving
from tests.protocol.sockets import INITIALIZED
from tests.support.contract_objects import (
    chunk_with,
    detail_of,
    document_with,
    response_with,
    result_with,
    summary_with,
)
from tests.support.fake_toolset import Fake
from tests.support.mcp_messages import (
    BOTH,
    ENVELOPE,
    MODERN,
    events,
    initialize,
    modern,
    modern_headers,
    request,
)
from tests.support.patience import ANSWER_SECONDS


def _call_of(tool: Tool[Any, Any]) -> dict[str, Any]:
    """Return arguments with only the required parameters: an example of each, or a minimal value."""
    schema = input_schema(tool.arguments)
    return {name: _least(schema["properties"][name]) for name in schema.get("required", ())}


def _least(schema: dict[str, Any]) -> Any:
    least = {"integer": schema.get("minimum", 1), "string": "x", "boolean": True, "object": {}}
    given = UUID if schema.get("format") == "uuid" else least[schema["type"]]
    return schema.get("examples", [given])[0]


LINKED = 2
"""The number of the existing document."""
UUID = "8f0c5d7e-9a53-5f1c-8e2b-0b8f3f2f9b11"
GOOD: dict[str, dict[str, Any]] = {
    "echo": {"text": 'say "ä\u2028\U0001f41d\\"', "times": 2},
    "steps": {},
    "refusing": {},
    "broken": {},
    **{
        tool.name: _call_of(tool)
        for name in TOOLSETS
        for tool in build_toolset(name, Services(ServerSettings())).tools
    },
    "kb_search": {"query": "bees", "neighbors": 1, "explain": True},
    "kb_get": {"document_id": 2},
    "kb_upload_start": {"filename": "a.txt", "total_size": 2**60},
    "kb_upload_chunk": {"upload_id": "x", "chunk_index": 0, "data": "eA=="},
    "search_knowledge": {"query": "bees", "collection_id": UUID},
}
"""A call of each tool that reaches the tool, or nearly does."""
NOT_COMPARED = {"slow"}
"""The tool `slow`, which waits until a test releases it."""

_NEW_EVERY_TIME = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32}|/uploads/[\w-]+"
    r"|\d{4}-\d\d-\d\dT[\d:.]+(Z|\+00:00)"
)


class _Engine:
    """Finds two passages and refuses all further operations, always with equal answers."""

    longest_wait = 20.0

    async def call(self, operation: AnyOperation, **request: Any) -> Any:
        if operation is GET_DOCUMENT and request["path"] == {"document_id": LINKED}:
            return detail_of(_document(LINKED, 'Bees \u2028 keep "warm" \\ \x7f'))
        if operation is LIST_DOCUMENTS and request["query"].source_path is not None:
            found = [_document(number, None) for number in (1, 2)]
            return m.DocumentList(documents=found, total=2, limit=100, offset=0)
        if operation is not SEARCH:
            raise Refused("document_not_found", "There is none.")
        results = [_hit(1, 'Bees \u2028 keep "warm" \\ \x7f'), _hit(2, "\u00fcber \U0001f41d \u0000\n")]
        return response_with(results)

    async def wait_for_job(self, _job_id: str, _seconds: float) -> m.Job:
        raise Refused("job_not_found", "There is none.")

    async def send_file(self, *_arguments: Any, **_more: Any) -> m.Job:
        raise Refused("storage_full", "No space.")


class _Ragler:
    """Finds one passage in its one collection and has no list, always with equal answers."""

    async def search(self, _request: VectorSearchRequest) -> Passages:
        passage = Passage(content='Bees \u2028 keep "warm" \\ \x7f', score=1 / 3)
        return Passages(results=[passage], total=1, execution_time=0.5)

    async def collection(self, collection_id: str) -> CollectionDetail:
        return CollectionDetail(id=collection_id, name="\u00fcber", statistics=Statistics(total_tokens=2**40))

    async def collections(self) -> list[Collection]:
        raise RateLimited("Enough.", retry_after=12.5)


def _document(number: int, text: str | None) -> m.Document:
    return document_with(id=number, title=text or "Bees", source_path=text)


def _hit(number: int, text: str) -> m.SearchResult:
    metadata: dict[str, Any] = {"none": None, "deep": {"list": [None, 1.0, 2**62, True, {}]}, text: [text]}
    document = summary_with(id=number, title=text, metadata=metadata)
    chunk = chunk_with(index=number, text=text)
    return result_with(chunk, document, score=1 / 3, tags=["collection:memory"])


@dataclass
class Both:
    """The application in its own thread, with a connection to it."""

    toolsets: dict[str, Toolset]
    port: int = 0
    taken: int = 0
    """Number of requests that the fast path took."""
    connection: HTTPConnection = field(default_factory=lambda: HTTPConnection("unused"))

    def answers(self, toolset: str, headers: list[tuple[str, str]], body: bytes) -> list[tuple[Any, ...]]:
        """Status, media type and body, from the fast path and from the kernel."""
        return [self._answer(path, headers, body) for path in (f"/mcp/{toolset}", f"/kernel/{toolset}")]

    def _answer(self, path: str, headers: list[tuple[str, str]], body: bytes) -> tuple[Any, ...]:
        self.connection.putrequest("POST", path)
        for name, value in [*headers, ("Content-Length", str(len(body)))]:
            self.connection.putheader(name, value.encode("latin-1"))
        self.connection.endheaders(body)
        response = self.connection.getresponse()
        text = _NEW_EVERY_TIME.sub("NEW", response.read().decode())
        kind = response.headers["Content-Type"]
        return response.status, kind, json.loads(text) if kind.startswith("application/json") else text


@contextmanager
def standing(toolsets: dict[str, Toolset], configured: ServerSettings | None = None) -> Iterator[Both]:
    """Serve `toolsets` with and without the fast path."""
    both, ready, loop = Both(toolsets), threading.Event(), asyncio.new_event_loop()
    stop = asyncio.Event()

    async def main() -> None:
        kernels = {f"/kernel/{name}": hosted(toolset, fast_path=False) for name, toolset in toolsets.items()}
        mounts = mount(list(toolsets.values()), list(toolsets)[:1])
        app = build_app(configured or ServerSettings(), mounts, servers=kernels, metrics=Metrics())
        async with serving(app) as served:
            both.port = served.port
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
    thread.start()
    assert ready.wait(ANSWER_SECONDS)
    both.connection = HTTPConnection("127.0.0.1", both.port, timeout=ANSWER_SECONDS)
    try:
        yield both
    finally:
        both.connection.close()
        loop.call_soon_threadsafe(stop.set)
        thread.join(ANSWER_SECONDS)
        loop.close()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    """All toolsets, and the fake one, which shows each possible course of a call."""
    home: Path = tmp_path_factory.mktemp("fast_path")
    text = home / "text.txt"
    text.write_text("Bees keep warm.\nThey cluster.\n")
    engine: Any = _Engine()
    ragler: Any = _Ragler()
    configured = ServerSettings(home=home, text_file=str(text), ragler_api_key="key", resource_links=True)
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

words = st.text(max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(allow_nan=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
).filter(lambda value: "inf" not in repr(value))
capabilities = st.sampled_from(
    [{}, {"roots": {"listChanged": True}}, {"sampling": {}}, {"roots": 5}, {"elicitation": {"form": {}}}]
)
client_info = st.sampled_from([{"name": "a", "version": "1"}, {"name": "a"}, {"name": 1, "version": "1"}])
beside = st.fixed_dictionaries(
    {},
    optional={
        "correlation_id": st.just("abc") | json_values,
        "traceparent": st.just("00-" + "1" * 32 + "-" + "2" * 16 + "-01") | json_values,
        "progressToken": st.just("token") | json_values,
        "progress_token": json_values,
        "other": json_values,
        "io.modelcontextprotocol/logLevel": st.sampled_from(["info", "loud", 3]),
    },
)
envelopes = st.fixed_dictionaries(
    {},
    optional={
        "io.modelcontextprotocol/protocolVersion": st.sampled_from(
            [MODERN, MODERN, "2025-11-25", "x", 1, None]
        ),
        "io.modelcontextprotocol/clientCapabilities": capabilities | json_values,
        "io.modelcontextprotocol/clientInfo": client_info | json_values,
    },
)
metas = (
    st.none()
    | st.builds(lambda more: {**ENVELOPE, **more}, beside)
    | st.builds(lambda envelope, more: {**envelope, **more}, envelopes, beside)
    | st.builds(lambda envelope: {**ENVELOPE, **envelope}, envelopes)
    | json_values
)
ids = st.sampled_from(["1", 1, 0, -5, 'ä\u2028"', 2**62]) | words


@dataclass
class Sent:
    """A request, ready to be posted to a toolset."""

    toolset: str
    headers: list[tuple[str, str]]
    body: bytes


@st.composite
def plain(draw: st.DrawFn, names: dict[str, list[str]]) -> Sent:
    """A regular client's request, in most cases one for the fast path."""
    toolset = draw(st.sampled_from(sorted(names)))
    name = draw(st.sampled_from(names[toolset]))
    arguments = draw(
        st.just(GOOD[name]) | st.dictionaries(st.sampled_from(_parameters()), json_values, max_size=3)
    )
    message = draw(
        st.sampled_from(
            [request("tools/call", {"name": name, "arguments": arguments}), request("tools/list")]
        )
    )
    message["id"] = draw(ids)
    version = draw(st.sampled_from([MODERN, None, *HANDSHAKE_PROTOCOL_VERSIONS]))
    if version == MODERN:
        return _sent(toolset, modern_headers(message), modern(message))
    return _sent(toolset, {**BOTH, **({"MCP-Protocol-Version": version} if version else {})}, message)


@st.composite
def odd(draw: st.DrawFn, names: dict[str, list[str]]) -> Sent:
    """A request with any number of errors, usually few."""
    toolset = draw(st.sampled_from(sorted(names)))
    name = draw(st.sampled_from(names[toolset]) | st.sampled_from(["nothing", "", None, 1]) | words)
    members: dict[str, Any] = draw(
        st.fixed_dictionaries(
            {"name": st.just(name)},
            optional={
                "arguments": st.just(GOOD.get(str(name), {})) | json_values,
                "_meta": metas,
                "task": json_values,
                "cursor": json_values,
                "inputResponses": json_values,
                "requestState": json_values,
                "other": json_values,
            },
        )
    )
    method = draw(
        st.sampled_from(["tools/call", "tools/call", "tools/list", "ping", "server/discover", "none"])
    )
    if method == "tools/list" and draw(st.booleans()):
        members = {key: value for key, value in members.items() if key in ("_meta", "cursor")}
    versions = st.sampled_from([MODERN, MODERN, None, "2025-11-25", "2025-03-26", "2024-11-05", "1999-01-01"])
    headers = {**BOTH, "Mcp-Method": draw(st.sampled_from([method, method, "ping", ""])), "Mcp-Name": ""}
    headers["Mcp-Name"] = draw(st.sampled_from([str(name), "other", f"=?base64?{name}?="]))
    if (version := draw(versions)) is not None:
        headers["MCP-Protocol-Version"] = version
    headers = {
        key: value for key, value in headers.items() if value and value.isascii() and value.isprintable()
    }
    message = request(method, draw(st.just(members) | st.none()), draw(ids))
    sent = _sent(toolset, headers, message)
    if draw(st.integers(0, 9)) == 0 and len(sent.headers) > 2:
        sent.headers.append(sent.headers[-1])
    return sent


def _sent(toolset: str, headers: dict[str, str], message: dict[str, Any]) -> Sent:
    return Sent(toolset, list(headers.items()), json.dumps(message).encode())


def _parameters() -> list[str]:
    return sorted({parameter for arguments in GOOD.values() for parameter in arguments} | {"nothing"})


FEW = settings(
    max_examples=3 * settings().max_examples,
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


def test_a_plain_request_is_for_the_fast_path(both: Both) -> None:
    """All but calls of tools that may ask a person, which need the kernel."""
    wanted = both.taken
    ask = {tool.name for toolset in both.toolsets.values() for tool in toolset.tools if tool.asks}
    assert ask == {"kb_delete", "knowledge-remove", "knowledge-clear"}
    for toolset, named in _named(both).items():
        names = [name for name in named if name not in ask]
        messages = [request("tools/call", {"name": name, "arguments": GOOD[name]}) for name in names]
        for message in [request("tools/list"), request("tools/list"), *messages]:
            handshake = _sent(toolset, {**BOTH, "MCP-Protocol-Version": "2025-11-25"}, message)
            envelope = _sent(toolset, modern_headers(message), modern(message))
            for sent in (handshake, envelope):
                both.answers(toolset, sent.headers, sent.body)
        wanted += 2 * (1 + len(names))
    assert both.taken >= wanted


@pytest.mark.parametrize("version", [MODERN, None, *HANDSHAKE_PROTOCOL_VERSIONS])
def test_links_follow_the_text_where_the_version_has_them(both: Both, version: str | None) -> None:
    message = request("tools/call", {"name": "kb_get", "arguments": GOOD["kb_get"]})
    headers = modern_headers(message) if version == MODERN else dict(BOTH)
    if version not in (None, MODERN):
        headers["MCP-Protocol-Version"] = str(version)
    sent = _sent("kb", headers, modern(message) if version == MODERN else message)
    wanted = both.taken
    [fast, kernel] = both.answers(sent.toolset, sent.headers, sent.body)
    assert fast == kernel
    assert both.taken == wanted + 1
    first, *links = fast[2]["result"]["content"]
    assert json.loads(first["text"]) == fast[2]["result"]["structuredContent"]
    due = {"uri": f"kb://documents/{LINKED}", "type": "resource_link", "mimeType": "text/markdown"}
    has_links = version in (MODERN, "2025-11-25", "2025-06-18")
    assert [{name: link[name] for name in due} for link in links] == ([due] if has_links else [])


@FEW
@given(data=st.data())
def test_an_odd_request_is_answered_as_by_the_kernel(both: Both, data: st.DataObject) -> None:
    sent = data.draw(odd(_named(both)))
    fast, kernel = both.answers(sent.toolset, sent.headers, sent.body)
    assert fast == kernel


def test_each_tool_is_compared(both: Both) -> None:
    """Fails when a tool was added or removed and this table was not updated."""
    tools = {tool.name for toolset in both.toolsets.values() for tool in toolset.tools}
    assert tools == GOOD.keys() | NOT_COMPARED


def test_without_the_fast_path_the_kernel_answers_everything(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With `KB_FAST_PATH=false` no request is matched at all."""
    monkeypatch.setattr(FastPath, "match", lambda *_arguments: pytest.fail("it was looked for"))
    message = request("tools/call", {"name": "echo", "arguments": GOOD["echo"]})
    configured = ServerSettings.read({"KB_FAST_PATH": "false", "KB_HOME": str(tmp_path)})
    with standing({"fake": Fake().toolset}, configured) as served:
        sent = _sent("fake", modern_headers(message), modern(message))
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
        text = _NEW_EVERY_TIME.sub("NEW", response.read().decode())
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
        return json.loads(_NEW_EVERY_TIME.sub("NEW", str(wire.recv(ANSWER_SECONDS))))


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
def plain_message(draw: st.DrawFn, names: dict[str, list[str]]) -> Message:
    """A regular client's request, and calls with arbitrary arguments."""
    toolset = draw(st.sampled_from(sorted(names)))
    name = draw(st.sampled_from(names[toolset]))
    arguments = draw(
        st.just(GOOD[name]) | st.dictionaries(st.sampled_from(_parameters()), json_values, max_size=3)
    )
    call = request("tools/call", {"name": name, "arguments": arguments})
    message = draw(st.sampled_from([call, call, request("tools/list")]))
    message["id"] = draw(ids)
    version = draw(st.sampled_from(VERSIONS))
    return Message(toolset, version, modern(message) if version == MODERN else message)


@st.composite
def odd_message(draw: st.DrawFn, names: dict[str, list[str]]) -> Message:
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
    sent = data.draw(plain_message(_named(both)))
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
