"""MCP messages of both protocol eras, and access to the base before and after a load run.

A run adds hundreds of generated documents, which searches of a real base would find. It therefore requires an
empty base, or explicit permission. Documents that it added are removed at its end in both cases.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import httpx
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
    """Headers and body of a POST request."""

    headers: Mapping[str, str]
    body: bytes


class CallFailed(Exception):
    """The response of a call is not a successful result."""


def request(
    era: Era, method: str, params: Mapping[str, Any], *, request_id: int = 1, key: str = ""
) -> Message:
    """Return a request of `era`; `key` is the bearer key, or empty."""
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": era,
    }
    if key:
        headers["Authorization"] = f"Bearer {key}"
    members = dict(params)
    if era == MODERN:
        members["_meta"] = {**members.get("_meta", {}), **_ENVELOPE}
        headers["Mcp-Method"] = method
        if isinstance(name := params.get("name"), str):
            headers["Mcp-Name"] = name
    message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": members}
    return Message(headers, msgspec.json.encode(message))


def tool_call(
    era: Era, tool: str, arguments: Mapping[str, Any], *, request_id: int = 1, key: str = ""
) -> Message:
    """Return a call of a tool; like common clients, it carries a progress token."""
    params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": request_id}}
    return request(era, "tools/call", params, request_id=request_id, key=key)


def result_of(body: bytes) -> dict[str, Any]:
    """Return the result of the JSON-RPC response `body`, plain JSON or an event stream.
    Raises CallFailed: the body has an error, or a tool result with `isError`.
    """
    try:
        events = [line[5:].strip() for line in body.splitlines() if line.startswith(b"data:")]
        plain = body.lstrip().startswith(b"{") or not events
        answer = msgspec.json.decode(body if plain else events[-1])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CallFailed(f"no JSON: {body[:200]!r}") from error
    if not isinstance(answer, dict) or "result" not in answer:
        raise CallFailed(_shortened(answer))
    result: dict[str, Any] = answer["result"]
    if result.get("isError"):
        raise CallFailed(_shortened(result.get("content")))
    return result


def structured(body: bytes) -> dict[str, Any]:
    """Return the structured content of a tool result. Raises `CallFailed` as `result_of`."""
    content = result_of(body).get("structuredContent")
    if not isinstance(content, dict):
        raise CallFailed("the result has no structuredContent")
    return content


def _shortened(value: object) -> str:
    return msgspec.json.encode(value).decode()[:300]


ANYWAY = "KB_LOAD_ANYWAY"
"""Environment variable that allows a base that is not empty."""

_TIMEOUT = httpx.Timeout(30.0, connect=5.0)
_WAIT_SECONDS = 20


class LoadedBase:
    """The base of the MCP server at `url`, accessed by tools of the toolset `kb`.

    Every method raises `CallFailed` if a call fails.
    """

    def __init__(self, url: str, key: str = "") -> None:
        self._url = url.rstrip("/")
        self._key = key

    def documents(self) -> int:
        with self._connected() as http:
            return int(self._call(http, "/mcp/kb", "kb_status", {})["documents"]["total"])

    def remove(self, documents: Iterable[int], jobs: Iterable[str]) -> None:
        """Remove the documents, and the documents made by the jobs; skip documents already removed."""
        with self._connected() as http:
            made = set(documents)
            for job_id in jobs:
                waiting = {"job_id": job_id, "wait_seconds": _WAIT_SECONDS}
                (job,) = self._call(http, "/mcp/kb", "kb_jobs", waiting)["jobs"]
                made.add(job["document_id"])
            for document_id in made - {None}:
                try:
                    self._call(http, "/mcp/kb-extra", "kb_delete", {"document_id": document_id})
                except CallFailed as failed:
                    if "document_not_found" not in str(failed):
                        raise

    def _call(self, http: httpx.Client, path: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        message = tool_call(HANDSHAKE, tool, arguments, key=self._key)
        try:
            response = http.post(f"{self._url}{path}", content=message.body, headers=dict(message.headers))
        except httpx.HTTPError as error:
            raise CallFailed(f"{self._url} does not answer: {error}") from error
        if response.status_code != httpx.codes.OK:
            raise CallFailed(f"{self._url} answers {response.status_code}: {response.text[:200]}")
        return structured(response.content)

    @staticmethod
    def _connected() -> httpx.Client:
        return httpx.Client(timeout=_TIMEOUT, trust_env=False)


def refusal(base: LoadedBase, *, anyway: bool) -> str:
    """Return the reason not to load this base, or an empty string."""
    try:
        documents = base.documents()
    except CallFailed as failed:
        return f"the base cannot be looked at: {failed}"
    if not documents or anyway:
        return ""
    return (
        f"the base holds {documents} documents, and a load adds made-up ones, which searches find while it "
        f"lasts. Load an empty base, or allow this one with --anyway or {ANYWAY}=1; what is added is removed "
        "afterwards."
    )
