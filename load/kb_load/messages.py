"""MCP messages as clients of both protocol eras put them on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

Era = Literal["2025-11-25", "2026-07-28"]

HANDSHAKE: Era = "2025-11-25"
MODERN: Era = "2026-07-28"
ERAS: tuple[Era, ...] = (HANDSHAKE, MODERN)

CLIENT = {"name": "kb-load", "version": "1"}
_ENVELOPE: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": CLIENT,
}


@dataclass(frozen=True, slots=True)
class Message:
    """A request ready to be posted."""

    headers: Mapping[str, str]
    body: bytes


class CallFailed(Exception):
    """A call was answered, but not with a result."""


def request(
    era: Era, method: str, params: Mapping[str, Any], *, request_id: int = 1, key: str = ""
) -> Message:
    """A request of `era`; `key` is the bearer key, empty: none."""
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": era,
    }
    if key:
        headers["Authorization"] = f"Bearer {key}"
    members = dict(params)
    if era == MODERN:
        members["_meta"] = _ENVELOPE
        headers["Mcp-Method"] = method
        if isinstance(name := params.get("name"), str):
            headers["Mcp-Name"] = name
    message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": members}
    return Message(headers, msgspec.json.encode(message))


def tool_call(
    era: Era, tool: str, arguments: Mapping[str, Any], *, request_id: int = 1, key: str = ""
) -> Message:
    """A call of `tool`."""
    return request(era, "tools/call", {"name": tool, "arguments": arguments}, request_id=request_id, key=key)


def result_of(body: bytes) -> dict[str, Any]:
    """The result in the JSON-RPC response `body`, plain or as a stream of events.

    Raises:
        CallFailed: it holds an error, or a tool's result with `isError`.
    """
    try:
        answer = msgspec.json.decode(_last_event(body))
    except msgspec.DecodeError as error:
        raise CallFailed(f"no JSON: {body[:200]!r}") from error
    if not isinstance(answer, dict) or "result" not in answer:
        raise CallFailed(_shortened(answer))
    result: dict[str, Any] = answer["result"]
    if result.get("isError"):
        raise CallFailed(_shortened(result.get("content")))
    return result


def structured(body: bytes) -> dict[str, Any]:
    """The structured content of a tool's result. Raises `CallFailed` as `result_of`."""
    content = result_of(body).get("structuredContent")
    if not isinstance(content, dict):
        raise CallFailed("the result has no structuredContent")
    return content


def _last_event(body: bytes) -> bytes:
    if body.lstrip().startswith(b"{"):
        return body
    events = [line[5:].strip() for line in body.splitlines() if line.startswith(b"data:")]
    return events[-1] if events else body


def _shortened(value: object) -> str:
    return msgspec.json.encode(value).decode()[:300]
