"""The fast path of `tools/call` and `tools/list`: the answer of the SDK's kernel, without the kernel.

The kernel validates a request twice, builds a context and a session for it, and filters the result through
pydantic; for a plain call none of this changes the answer. The fast path takes only requests for which this
is known beforehand: a known tool, no members but `name`, `arguments` and `_meta`, no progress to report, an
envelope that the SDK's own models accept (each distinct envelope is validated once). Common clients send a
progress token, and members of their own in `_meta`, with every call; a token matters only to tools that
report progress. The kernel handles all other requests. A server offers its tools to the fast path as
`PlainTools`, and must prove with a differential test that both paths give the same answers.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import Any, Protocol

import mcp_types as types
import msgspec
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_METHOD_HEADER, MCP_NAME_HEADER
from mcp_types import CLIENT_CAPABILITIES_META_KEY, PROTOCOL_VERSION_META_KEY, SERVER_INFO_META_KEY
from mcp_types.methods import validate_client_request
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from mcp_aiohttp.protocol.caller import Caller
from mcp_aiohttp.protocol.jsonrpc import Request, RequestId, error_bytes

CALL, LIST = "tools/call", "tools/list"

_CALL_MEMBERS = frozenset({"name", "arguments", "_meta"})
_LIST_MEMBERS = frozenset({"_meta"})
_PROGRESS = "progressToken"
_PROGRESS_NAMES = frozenset({_PROGRESS, "progress_token"})
_READ = ("io.modelcontextprotocol/", *_PROGRESS_NAMES)
"""Beginnings of the members of `_meta` that a model of the SDK reads; others may have any value."""
_MAX_ENVELOPES = 512
_MAX_LISTINGS = 256
_MAX_ENVELOPE_BYTES = 4096
_PARAMS: dict[str, tuple[dict[str, Any], type[types.RequestParams]]] = {
    CALL: ({"name": "any"}, types.CallToolRequestParams),
    LIST: ({}, types.PaginatedRequestParams),
}


class ToolOutcome(msgspec.Struct, frozen=True):
    """The outcome of a tool: `encoded` is the JSON of its result, or of an error on which the caller can act.

    `meta` is the `_meta` of the result.
    """

    encoded: bytes
    is_error: bool = False
    meta: Mapping[str, Any] | None = None

    def as_result(self) -> dict[str, Any]:
        """Return the result of `tools/call`: the JSON as text, and as structured content."""
        # `resultType` belongs to 2026-07-28; the SDK removes it for earlier versions.
        result: dict[str, Any] = {
            "content": [{"type": "text", "text": self.encoded.decode()}],
            "isError": self.is_error,
            "resultType": "complete",
        }
        if not self.is_error:
            result["structuredContent"] = msgspec.json.decode(self.encoded)
        if self.meta is not None:
            result["_meta"] = dict(self.meta)
        return result


def _end(meta: Mapping[str, Any], *, modern: bool) -> bytes:
    """Return the end of a response, which follows the outcome."""
    begun = b',"resultType":"complete","_meta":' if modern else b',"_meta":'
    return begun + msgspec.json.encode(meta) + b"}}"


class PlainTools(Protocol):
    """Tools whose answer is one JSON object. A view of their list never changes."""

    @property
    def names(self) -> Collection[str]:
        """The tools that answer in this form for every client; read once. The kernel handles other calls."""
        ...

    @property
    def reporting(self) -> Collection[str]:
        """The tools that report progress; read once. The kernel handles their calls with a progress token."""
        ...

    def view(self, caller: Caller) -> Hashable:
        """Return the key of the caller's list: callers with the same key get the same list."""
        ...

    async def call(
        self, name: str, arguments: Mapping[str, Any], meta: Mapping[str, Any] | None, caller: Caller
    ) -> ToolOutcome:
        """Call a tool; `meta` is `_meta` of the request.
        Raises MCPError: the call is answered with this error of the protocol.
        """
        ...


class FastRequest(msgspec.Struct, frozen=True):
    id: RequestId
    modern: bool
    meta: Mapping[str, Any] | None = None
    tool: str = ""
    arguments: Mapping[str, Any] | None = None
    listing: bytes | None = None
    """The result, if the request is for the list of tools."""


class FastPath:
    def __init__(self, tools: PlainTools, sdk: Server[Any]) -> None:
        self._tools = tools
        self._names = frozenset(tools.names)
        self._reporting = frozenset(tools.reporting)
        self._schema_with_headers = sdk.get_tool_input_schema or (lambda _name: None)
        self._stamp = {SERVER_INFO_META_KEY: sdk.server_info_stamp}
        self._extensions = frozenset(sdk.extensions)
        self._modern_end = _end(self._stamp, modern=True)
        self._listings: dict[tuple[str, Hashable], bytes] = {}
        self._accepted: set[tuple[str, str, bytes]] = set()

    def remember_listing(self, version: str, caller: Caller, listing: Mapping[str, Any]) -> None:
        """Keep the kernel's answer to a `tools/list` of the caller at `version`."""
        key = (version, self._tools.view(caller))
        if key not in self._listings and len(self._listings) < _MAX_LISTINGS:
            self._listings[key] = msgspec.json.encode(listing)

    def match(
        self, request: Request, version: str, headers: Mapping[str, str], caller: Caller
    ) -> FastRequest | None:
        """Return `request`, sent by the caller at `version`, as a fast request; None: the kernel handles it.

        The endpoint has already refused requests in which a routing header occurs twice.
        """
        modern = version in MODERN_PROTOCOL_VERSIONS
        if not modern and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            return None
        params = request.params or {}
        meta = params.get("_meta")
        if not self._is_plain(request.method, version, params, meta):
            return None
        if modern and (
            meta is None
            or meta.get(PROTOCOL_VERSION_META_KEY) != version
            or headers.get(MCP_METHOD_HEADER) != request.method
        ):
            return None  # the envelope and the routing headers must agree to the letter
        if request.method == LIST:
            listing = self._listings.get((version, self._tools.view(caller)))
            if listing is None or not params.keys() <= _LIST_MEMBERS:
                return None
            return FastRequest(request.id, modern, listing=listing)
        name, arguments = params.get("name"), params.get("arguments", {})
        if not params.keys() <= _CALL_MEMBERS or type(arguments) is not dict:
            return None
        if type(name) is not str or name not in self._names:
            return None
        if name in self._reporting and meta is not None and not _PROGRESS_NAMES.isdisjoint(meta):
            return None
        if modern and (headers.get(MCP_NAME_HEADER) != name or self._schema_with_headers(name) is not None):
            return None
        return FastRequest(request.id, modern, meta, name, arguments)

    async def answer(self, request: FastRequest, caller: Caller) -> bytes:
        head = b'{"jsonrpc":"2.0","id":' + msgspec.json.encode(request.id) + b',"result":'
        if request.listing is not None:
            return head + request.listing + b"}"
        try:
            outcome = await self._tools.call(request.tool, request.arguments or {}, request.meta, caller)
        except MCPError as fault:
            return error_bytes(request.id, fault.error.code, fault.error.message, fault.error.data)
        encoded = outcome.encoded
        return b"".join(
            (
                head,
                b'{"content":[{"type":"text","text":',
                msgspec.json.encode(encoded.decode()),
                b'}],"isError":true' if outcome.is_error else b'}],"isError":false,"structuredContent":',
                b"" if outcome.is_error else encoded,
                self._end_of(outcome, modern=request.modern),
            )
        )

    def _end_of(self, outcome: ToolOutcome, *, modern: bool) -> bytes:
        if outcome.meta is not None:
            return _end({**self._stamp, **outcome.meta} if modern else outcome.meta, modern=modern)
        return self._modern_end if modern else b"}}"

    def _extends(self, capabilities: Any) -> bool:
        """True if client and server share an extension: the answer may then have another shape."""
        declared = capabilities.get("extensions") if type(capabilities) is dict else None
        return type(declared) is dict and not self._extensions.isdisjoint(declared)

    def _is_plain(self, method: str, version: str, params: Mapping[str, Any], meta: Any) -> bool:
        """True if `_meta` requests nothing beside the answer, and the SDK's models accept it."""
        if method not in _PARAMS:
            return False
        if meta is None:
            return "_meta" not in params
        if type(meta) is not dict:
            return False
        known = {key: value for key, value in meta.items() if key.startswith(_READ)}
        if type(known.get(_PROGRESS)) in (str, int):  # valid, and changes with every call
            del known[_PROGRESS]
        if self._extends(meta.get(CLIENT_CAPABILITIES_META_KEY)):
            return False
        encoded = msgspec.json.encode(known)
        seen = (method, version, encoded)
        if seen in self._accepted:
            return True
        if version not in MODERN_PROTOCOL_VERSIONS and PROTOCOL_VERSION_META_KEY in known:
            return False
        if len(encoded) > _MAX_ENVELOPE_BYTES:
            return False
        others, model = _PARAMS[method]
        enveloped = {**others, "_meta": known}
        try:  # would the kernel accept a request with this `_meta`?
            validate_client_request(method, version, enveloped)
            model.model_validate(enveloped, by_name=False)
        except (ValidationError, KeyError):
            return False
        if len(self._accepted) >= _MAX_ENVELOPES:
            self._accepted.clear()  # clients are few: an eviction order is not worth its cost
        self._accepted.add(seen)
        return True
