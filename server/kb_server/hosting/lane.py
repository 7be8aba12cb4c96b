"""The short way of `tools/call` and `tools/list`: the kernel's answer without the kernel.

The SDK's kernel validates a request twice, builds a context and a session for it, and sieves the result
through pydantic; for a plain call all of that ends where it began. The lane takes the requests of which
this is known beforehand, and only those: a known tool, no members but `name`, `arguments` and `_meta`, no
progress to report, an envelope that the SDK's own models accept (asked once for each that is seen). All
others are the kernel's. That both answer alike is held by `tests/protocol/test_lane.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mcp_types as types
import msgspec
from mcp.server.lowlevel.server import Server
from mcp.shared.inbound import MCP_METHOD_HEADER, MCP_NAME_HEADER
from mcp_types import PROTOCOL_VERSION_META_KEY, SERVER_INFO_META_KEY
from mcp_types.methods import validate_client_request
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from kb_server.hosting.caller import Caller, new_call
from kb_server.hosting.calls import BrokenToolError, Calls, Outcome
from kb_server.hosting.jsonrpc import INTERNAL_ERROR, Request, RequestId, error_bytes

CALL, LIST = "tools/call", "tools/list"

_CALL_MEMBERS = frozenset({"name", "arguments", "_meta"})
_LIST_MEMBERS = frozenset({"_meta"})
_OURS = ("correlation_id", "traceparent")
"""Members of `_meta` that change with every call, and that no model of the SDK's looks at."""
_PROGRESS = frozenset({"progressToken", "progress_token"})
_MAX_ENVELOPES = 512
_MAX_ENVELOPE_BYTES = 4096
_PARAMS: dict[str, tuple[dict[str, Any], type[types.RequestParams]]] = {
    CALL: ({"name": "any"}, types.CallToolRequestParams),
    LIST: ({}, types.PaginatedRequestParams),
}


@dataclass(frozen=True, slots=True)
class Passage:
    """A request that the lane takes."""

    id: RequestId
    modern: bool
    meta: Mapping[str, Any] | None = None
    tool: str = ""
    arguments: Mapping[str, Any] | None = None
    listing: bytes | None = None
    """The result, where the list of tools is asked for."""


class Lane:
    """Answers the plain requests to one toolset."""

    def __init__(self, calls: Calls, sdk: Server[None]) -> None:
        self._calls = calls
        self._asks_for_headers = sdk.get_tool_input_schema or _none
        stamp = msgspec.json.encode({SERVER_INFO_META_KEY: sdk.server_info_stamp})
        self._modern_end = b',"resultType":"complete","_meta":' + stamp + b"}}"
        self._listings: dict[str, bytes] = {}
        self._accepted: set[tuple[str, str, bytes]] = set()

    def remember(self, version: str, listing: Mapping[str, Any]) -> None:
        """Keep the kernel's answer to `tools/list` at `version`; it never changes."""
        if version not in self._listings:
            self._listings[version] = msgspec.json.encode(listing)

    def admits(self, request: Request, version: str, headers: Mapping[str, str]) -> Passage | None:
        """The way of `request`, sent at `version`; None: it is not for the lane.

        A routing header that comes twice was refused before.
        """
        modern = version in MODERN_PROTOCOL_VERSIONS
        if not modern and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            return None
        params = request.params or {}
        meta = params.get("_meta")
        if not self._is_plain(request.method, version, params, meta):
            return None
        if modern and (meta is None or not _routed(request.method, version, meta, headers)):
            return None
        if request.method == LIST:
            return self._listing(request, version, params, modern=modern)
        return self._call(request, params, headers, modern=modern)

    async def answer(self, passage: Passage, caller: Caller) -> bytes:
        """The JSON-RPC response to a call that was admitted."""
        try:
            call = new_call(passage.meta, caller)
            outcome = await self._calls.outcome(passage.tool, passage.arguments or {}, call)
        except BrokenToolError as fault:
            return error_bytes(passage.id, INTERNAL_ERROR, str(fault), fault.data)
        return self._body(passage, outcome)

    def listed(self, passage: Passage) -> bytes:
        """The JSON-RPC response to a question for the tools."""
        return _head(passage.id) + (passage.listing or b"") + b"}"

    def _body(self, passage: Passage, outcome: Outcome) -> bytes:
        encoded = outcome.encoded
        return b"".join(
            (
                _head(passage.id),
                b'{"content":[{"type":"text","text":',
                msgspec.json.encode(encoded.decode()),
                b'}],"isError":true' if outcome.is_error else b'}],"isError":false,"structuredContent":',
                b"" if outcome.is_error else encoded,
                self._modern_end if passage.modern else b"}}",
            )
        )

    def _listing(
        self, request: Request, version: str, params: Mapping[str, Any], *, modern: bool
    ) -> Passage | None:
        listing = self._listings.get(version)
        if listing is None or not params.keys() <= _LIST_MEMBERS:
            return None
        return Passage(request.id, modern, listing=listing)

    def _call(
        self, request: Request, params: Mapping[str, Any], headers: Mapping[str, str], *, modern: bool
    ) -> Passage | None:
        name, arguments = params.get("name"), params.get("arguments", _NO_ARGUMENTS)
        if request.method != CALL or not params.keys() <= _CALL_MEMBERS:
            return None
        if type(name) is not str or name not in self._calls or type(arguments) is not dict:
            return None
        if modern and (headers.get(MCP_NAME_HEADER) != name or self._asks_for_headers(name) is not None):
            return None
        return Passage(request.id, modern, params.get("_meta"), name, arguments)

    def _is_plain(self, method: str, version: str, params: Mapping[str, Any], meta: Any) -> bool:
        """Whether `_meta` asks for nothing beside the answer, and is one that the SDK's models accept."""
        if method not in _PARAMS:
            return False
        if meta is None:
            return "_meta" not in params
        if type(meta) is not dict or not _PROGRESS.isdisjoint(meta):
            return False
        known = {key: value for key, value in meta.items() if key not in _OURS or type(value) is not str}
        seen = (method, version, msgspec.json.encode(known))
        return seen in self._accepted or self._accepts(seen, known)

    def _accepts(self, seen: tuple[str, str, bytes], meta: dict[str, Any]) -> bool:
        method, version, encoded = seen
        if version not in MODERN_PROTOCOL_VERSIONS and PROTOCOL_VERSION_META_KEY in meta:
            return False
        if len(encoded) > _MAX_ENVELOPE_BYTES or not _is_valid(method, version, meta):
            return False
        if len(self._accepted) >= _MAX_ENVELOPES:
            self._accepted.clear()  # clients are few; what fills the set is not worth an order of eviction
        self._accepted.add(seen)
        return True


_NO_ARGUMENTS: dict[str, Any] = {}


def _none(_name: str) -> None:
    return None


def _head(request_id: RequestId) -> bytes:
    return b'{"jsonrpc":"2.0","id":' + msgspec.json.encode(request_id) + b',"result":'


def _routed(method: str, version: str, meta: Mapping[str, Any], headers: Mapping[str, str]) -> bool:
    """Whether the envelope and the routing headers agree, to the letter."""
    return meta.get(PROTOCOL_VERSION_META_KEY) == version and headers.get(MCP_METHOD_HEADER) == method


def _is_valid(method: str, version: str, meta: dict[str, Any]) -> bool:
    """Whether the kernel would let a request with this `_meta` through."""
    others, model = _PARAMS[method]
    params = {**others, "_meta": meta}
    try:
        validate_client_request(method, version, params)
        model.model_validate(params, by_name=False)
    except (ValidationError, KeyError):
        return False
    return True
