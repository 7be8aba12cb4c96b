"""The protocol era of a request.

2026-07-28 is stateless: each request carries its envelope in `params._meta`, repeated in routing headers that
must agree with it. The handshake versions negotiate once and name the version in a header afterwards; here
they are served without sessions, so any replica answers any request.

| `MCP-Protocol-Version` | envelope in the body | served as |
|---|---|---|
| 2026-07-28 | any | 2026-07-28, by the SDK's ladder of checks |
| 2025-11-25 | 2026-07-28 | 2026-07-28: claude.ai's connectors send exactly this pair |
| other handshake version or absent | any | refused, -32020 |
| handshake version or absent | absent | that version; without a header 2025-03-26, as its transport says |
| any other version | | refused, -32022 |

In 2026-07-28 a tool can request with `x-mcp-header` in its input schema that callers repeat arguments in
headers, `Mcp-Param-*`, by which a proxy routes. A header that tells a proxy one thing while the body tells
the tool another is refused, before the tool runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mcp.shared import inbound
from mcp_types import HEADER_MISMATCH, PROTOCOL_VERSION_META_KEY
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcp_aiohttp.protocol.jsonrpc import Refusal, Request

_CONNECTOR_HEADER, _CONNECTOR_BODY = "2025-11-25", "2026-07-28"

SchemaLookup = Callable[[str], Mapping[str, Any] | None]
"""Returns the input schema of a tool by name, or None if there is nothing to compare."""


def declared_in(listing: list[dict[str, Any]]) -> SchemaLookup:
    """Return the lookup for the tools that `tools/list` shows; it holds only tools that declare headers."""
    schemas = {
        tool["name"]: tool["inputSchema"] for tool in listing if inbound.x_mcp_header_map(tool["inputSchema"])
    }
    return schemas.get


def era_of(
    request: Request, version: str, headers: Mapping[str, str], schema_of: SchemaLookup | None
) -> inbound.InboundModernRoute | str:
    """Return the route of `request`, sent at `version`: its checked envelope, or a handshake version.
    Raises Refusal: the envelope is incomplete, or body and headers disagree.
    """
    routing = headers
    if version not in MODERN_PROTOCOL_VERSIONS:
        if request.method == "initialize" or (claimed := envelope_version(request)) is None:
            return version
        if (version, claimed) != (_CONNECTOR_HEADER, _CONNECTOR_BODY):
            raise header_mismatch("The MCP-Protocol-Version header and the version in params._meta disagree.")
        routing = _connector_headers(request, headers)
    verdict = inbound.classify_inbound_request(
        {"method": request.method, "params": request.params}, headers=routing
    )
    if isinstance(verdict, inbound.InboundLadderRejection):
        refusal = _refusal(verdict, "invalid_envelope")
        if isinstance(verdict.data, dict):
            refusal.data |= verdict.data
        raise refusal
    params = request.params or {}
    name, arguments = params.get("name"), params.get("arguments") or {}
    # The call itself refuses malformed ones, with its own message.
    if request.method == "tools/call" and isinstance(name, str) and isinstance(arguments, dict):
        schema = schema_of(name) if schema_of is not None else None
        rejection = (
            inbound.validate_mcp_param_headers(schema, arguments, headers) if schema is not None else None
        )
        if rejection is not None:
            raise _refusal(rejection, "header_mismatch")
    return verdict


def _refusal(rejection: inbound.InboundLadderRejection, error_type: str) -> Refusal:
    status = inbound.ERROR_CODE_HTTP_STATUS.get(rejection.code, 400)
    return Refusal(status, rejection.code, error_type, rejection.message)


def envelope_version(request: Request) -> object | None:
    """Return the version in the envelope of 2026-07-28, or None without an envelope."""
    meta = request.params.get("_meta") if request.params else None
    return meta.get(PROTOCOL_VERSION_META_KEY) if isinstance(meta, dict) else None


def _connector_headers(request: Request, headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that 2026-07-28 requires: absent ones from the body, present ones unchanged."""
    wanted: dict[str, str] = {inbound.MCP_PROTOCOL_VERSION_HEADER: _CONNECTOR_BODY}
    wanted[inbound.MCP_METHOD_HEADER] = headers.get(inbound.MCP_METHOD_HEADER, request.method)
    name: Any = (request.params or {}).get(inbound.NAME_BEARING_METHODS.get(request.method, ""))
    if isinstance(name, str):
        wanted[inbound.MCP_NAME_HEADER] = headers.get(
            inbound.MCP_NAME_HEADER, inbound.encode_header_value(name)
        )
    return wanted


def header_mismatch(message: str) -> Refusal:
    """Return the refusal of a request whose headers disagree with its body or among themselves."""
    return Refusal(400, HEADER_MISMATCH, "header_mismatch", message)
