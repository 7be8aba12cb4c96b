"""Messages as clients of both protocol eras send them."""

from __future__ import annotations

import json
from typing import Any

MODERN = "2026-07-28"
LATEST_HANDSHAKE = "2025-11-25"
PLAIN = {"Content-Type": "application/json"}
BOTH = {**PLAIN, "Accept": "application/json, text/event-stream"}

ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
}


def request(method: str, params: dict[str, Any] | None = None, request_id: Any = "1") -> dict[str, Any]:
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": request_id, "method": method}
    if params is not None:
        message["params"] = params
    return message


def call(
    tool: str, request_id: Any = "1", *, meta: dict[str, Any] | None = None, **arguments: Any
) -> dict[str, Any]:
    params: dict[str, Any] = {"name": tool, "arguments": arguments}
    if meta is not None:
        params["_meta"] = meta
    return request("tools/call", params, request_id)


def modern(message: dict[str, Any], **meta: Any) -> dict[str, Any]:
    """`message` with the `_meta` envelope of protocol version 2026-07-28."""
    params = message.get("params") or {}
    return {**message, "params": {**params, "_meta": {**ENVELOPE, **params.get("_meta", {}), **meta}}}


def for_the_kernel(message: dict[str, Any]) -> dict[str, Any]:
    """`message` with a member that no version defines: the fast path leaves it to the kernel."""
    return {**message, "params": {**message["params"], "other": 1}}


def modern_headers(message: dict[str, Any], **more: str) -> dict[str, str]:
    """The HTTP headers that protocol version 2026-07-28 wants with `message`."""
    headers = {**BOTH, "MCP-Protocol-Version": MODERN, "Mcp-Method": message["method"]}
    params = message.get("params") or {}
    name = params.get("uri" if message["method"] == "resources/read" else "name")
    if isinstance(name, str):
        headers["Mcp-Name"] = name
    return {**headers, **more}


def initialize(version: str) -> dict[str, Any]:
    info = {"name": "test", "version": "1"}
    return request("initialize", {"protocolVersion": version, "capabilities": {}, "clientInfo": info})


def events(body: str) -> list[dict[str, Any]]:
    """The messages of an event stream, without comments."""
    lines = [line for line in body.splitlines() if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]
