"""Which protocol era a request belongs to.

2026-07-28 is stateless: each request carries its envelope in `params._meta`, repeated in routing
headers that must agree with it. The handshake versions negotiate once and name the version in a header
afterwards; here they are served without sessions, so any replica answers any request.

| `MCP-Protocol-Version` | envelope in the body | served as |
|---|---|---|
| 2026-07-28 | any | 2026-07-28, by the SDK's ladder of checks |
| 2025-11-25 | 2026-07-28 | 2026-07-28: claude.ai's connectors send exactly this pair |
| other handshake version or none | any | refused, -32020 |
| handshake version or none | none | that version; without a header 2025-03-26, as its transport says |
| anything else | | refused, -32022 |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    InboundLadderRejection,
    InboundModernRoute,
    classify_inbound_request,
    encode_header_value,
)
from mcp_types import HEADER_MISMATCH, PROTOCOL_VERSION_META_KEY, UNSUPPORTED_PROTOCOL_VERSION
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from multidict import CIMultiDictProxy

from mcp_aiohttp.protocol.jsonrpc import Request
from mcp_aiohttp.protocol.refusal import Refusal

DEFAULT_VERSION = "2025-03-26"
"""The version of a request that names none, as the transport of 2025-06-18 and later says."""

_SERVED: tuple[str, ...] = (*MODERN_PROTOCOL_VERSIONS, *reversed(HANDSHAKE_PROTOCOL_VERSIONS))
_CONNECTOR_HEADER, _CONNECTOR_BODY = "2025-11-25", "2026-07-28"


@dataclass(frozen=True, slots=True)
class Modern:
    """A 2026-07-28 request that passed every check."""

    route: InboundModernRoute


@dataclass(frozen=True, slots=True)
class Handshake:
    """A request of a handshake version."""

    version: str


def header_version(headers: CIMultiDictProxy[str], request: Request | None = None) -> str | None:
    """The value of `MCP-Protocol-Version`, None without one; it came with `request`, or with no request.

    Raises:
        Refusal: 400, the version is none that this server speaks, or a routing header comes twice.
    """
    for name in (MCP_PROTOCOL_VERSION_HEADER, MCP_METHOD_HEADER, MCP_NAME_HEADER):
        if len(headers.getall(name, ())) > 1:
            raise _mismatch(f"The header {name} comes more than once.")
    version = headers.get(MCP_PROTOCOL_VERSION_HEADER)
    served = _SERVED
    if version is not None and version not in served:
        if request is not None and _envelope_version(request) is not None:
            served = MODERN_PROTOCOL_VERSIONS  # as `server/discover` tells such a caller
        refusal = Refusal(
            400, UNSUPPORTED_PROTOCOL_VERSION, "unsupported_protocol_version", "Unsupported protocol version"
        )
        refusal.data |= {"supported": list(served), "requested": version[:64]}
        raise refusal
    return version


def era_of(request: Request, version: str | None, headers: Mapping[str, str]) -> Modern | Handshake:
    """The era of `request`, sent with the header value `version`.

    Raises:
        Refusal: the envelope is incomplete, or body and headers disagree.
    """
    if version in MODERN_PROTOCOL_VERSIONS:
        return _modern(request, headers)
    if request.method != "initialize" and (claimed := _envelope_version(request)) is not None:
        if (version, claimed) != (_CONNECTOR_HEADER, _CONNECTOR_BODY):
            raise _mismatch("The MCP-Protocol-Version header and the version in params._meta disagree.")
        return _modern(request, _connector_headers(request, headers))
    return Handshake(version or DEFAULT_VERSION)


def _modern(request: Request, headers: Mapping[str, str]) -> Modern:
    verdict = classify_inbound_request({"method": request.method, "params": request.params}, headers=headers)
    if isinstance(verdict, InboundLadderRejection):
        status = ERROR_CODE_HTTP_STATUS.get(verdict.code, 400)
        refusal = Refusal(status, verdict.code, "invalid_envelope", verdict.message)
        if isinstance(verdict.data, dict):
            refusal.data |= verdict.data
        raise refusal
    return Modern(verdict)


def _envelope_version(request: Request) -> object | None:
    meta = request.params.get("_meta") if request.params else None
    return meta.get(PROTOCOL_VERSION_META_KEY) if isinstance(meta, dict) else None


def _connector_headers(request: Request, headers: Mapping[str, str]) -> dict[str, str]:
    """The headers as 2026-07-28 wants them: absent ones taken from the body, present ones left to agree."""
    wanted: dict[str, str] = {MCP_PROTOCOL_VERSION_HEADER: _CONNECTOR_BODY}
    wanted[MCP_METHOD_HEADER] = headers.get(MCP_METHOD_HEADER, request.method)
    name: Any = (request.params or {}).get(NAME_BEARING_METHODS.get(request.method, ""))
    if isinstance(name, str):
        wanted[MCP_NAME_HEADER] = headers.get(MCP_NAME_HEADER, encode_header_value(name))
    return wanted


def _mismatch(message: str) -> Refusal:
    return Refusal(400, HEADER_MISMATCH, "header_mismatch", message)
