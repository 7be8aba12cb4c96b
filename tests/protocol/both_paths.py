"""One application that serves toolsets with the fast path and without, and generated requests for both."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import Any

from hypothesis import strategies as st
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

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
from tests.protocol.conftest import serving
from tests.support.contract_objects import (
    chunk_with,
    detail_of,
    document_with,
    response_with,
    result_with,
    summary_with,
)
from tests.support.mcp_messages import BOTH, ENVELOPE, MODERN, modern, modern_headers, request
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
NEW_EVERY_TIME = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32}|/uploads/[\w-]+"
    r"|\d{4}-\d\d-\d\dT[\d:.]+(Z|\+00:00)"
)


class Engine:
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


class Ragler:
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
        text = NEW_EVERY_TIME.sub("NEW", response.read().decode())
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
client_metas = st.sampled_from(
    [
        {},
        {"progressToken": 7},
        {"progressToken": "9d1f", "vscode.requestId": "5e"},
        {"progressToken": 2, "claudecode/toolUseId": "toolu_1"},
    ]
)
"""`_meta` of calls, as common clients send it."""
ids = st.sampled_from(["1", 1, 0, -5, 'ä\u2028"', 2**62]) | words


@dataclass
class Sent:
    """A request, ready to be posted to a toolset."""

    toolset: str
    headers: list[tuple[str, str]]
    body: bytes


@st.composite
def plain_message(draw: st.DrawFn, names: dict[str, list[str]]) -> tuple[str, dict[str, Any]]:
    """A regular client's request to a toolset, and calls with arbitrary arguments."""
    toolset = draw(st.sampled_from(sorted(names)))
    name = draw(st.sampled_from(names[toolset]))
    arguments = draw(
        st.just(GOOD[name]) | st.dictionaries(st.sampled_from(parameters()), json_values, max_size=3)
    )
    call = {"name": name, "arguments": arguments, "_meta": draw(client_metas)}
    message = draw(st.sampled_from([request("tools/call", call), request("tools/list")]))
    message["id"] = draw(ids)
    return toolset, message


@st.composite
def plain(draw: st.DrawFn, names: dict[str, list[str]]) -> Sent:
    """A regular client's request, in most cases one for the fast path."""
    toolset, message = draw(plain_message(names))
    version = draw(st.sampled_from([MODERN, None, *HANDSHAKE_PROTOCOL_VERSIONS]))
    if version == MODERN:
        return sent_of(toolset, modern_headers(message), modern(message))
    return sent_of(toolset, {**BOTH, **({"MCP-Protocol-Version": version} if version else {})}, message)


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
    sent = sent_of(toolset, headers, message)
    if draw(st.integers(0, 9)) == 0 and len(sent.headers) > 2:
        sent.headers.append(sent.headers[-1])
    return sent


def sent_of(toolset: str, headers: dict[str, str], message: dict[str, Any]) -> Sent:
    return Sent(toolset, list(headers.items()), json.dumps(message).encode())


def parameters() -> list[str]:
    return sorted({parameter for arguments in GOOD.values() for parameter in arguments} | {"nothing"})
