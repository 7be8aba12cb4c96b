"""Arguments that a caller repeats in headers: `Mcp-Param-*`, by which a proxy routes (2026-07-28).

A tool asks for them with `x-mcp-header` in its input schema. A header that tells a proxy one thing
while the body tells the tool another is refused, before the tool runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS, validate_mcp_param_headers, x_mcp_header_map

from mcp_aiohttp.protocol.jsonrpc import Request
from mcp_aiohttp.protocol.refusal import Refusal

SchemaLookup = Callable[[str], Mapping[str, Any] | None]
"""The input schema of a tool by name; None where there is nothing to compare."""


def declared_in(listing: list[dict[str, Any]]) -> SchemaLookup:
    """The lookup for the tools that `tools/list` shows; it knows only those that ask for headers."""
    schemas = {tool["name"]: tool["inputSchema"] for tool in listing if x_mcp_header_map(tool["inputSchema"])}
    return schemas.get


def check_parameter_headers(
    request: Request, headers: Mapping[str, str], lookup: SchemaLookup | None
) -> None:
    """Let a call pass whose headers agree with its arguments.

    Raises:
        Refusal: 400, they do not.
    """
    params = request.params or {}
    name, arguments = params.get("name"), params.get("arguments") or {}
    if request.method != "tools/call" or lookup is None:
        return
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return  # malformed: refused by the call itself, in its own words
    schema = lookup(name)
    rejection = validate_mcp_param_headers(schema, arguments, headers) if schema is not None else None
    if rejection is not None:
        status = ERROR_CODE_HTTP_STATUS.get(rejection.code, 400)
        raise Refusal(status, rejection.code, "header_mismatch", rejection.message)
