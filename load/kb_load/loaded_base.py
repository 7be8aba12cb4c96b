"""The base that a load run meets and leaves: refused where it holds anything, and left as it was found.

A run writes hundreds of made-up documents. In somebody's own base they would be found by the next search, so
a run wants an empty one, or a word that any will do; what its agents added is removed at its end either way.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import httpx

from kb_load.messages import HANDSHAKE, CallFailed, structured, tool_call

ANYWAY = "KB_LOAD_ANYWAY"
"""The environment variable that allows a base which is not empty."""

_TIMEOUT = httpx.Timeout(30.0, connect=5.0)
_WAIT_SECONDS = 20


class LoadedBase:
    """The base behind the MCP server at `url`, asked by the tools that every kb server has.

    Every method raises `CallFailed` where a call is not answered with a result.
    """

    def __init__(self, url: str, key: str = "") -> None:
        self._url = url.rstrip("/")
        self._key = key

    def documents(self) -> int:
        """How many documents it holds."""
        with self._connected() as http:
            return int(self._call(http, "/mcp/kb", "kb_status", {})["documents"]["total"])

    def remove(self, documents: Iterable[int], jobs: Iterable[str]) -> None:
        """Remove documents, and those that jobs have made; what is gone already is passed over."""
        with self._connected() as http:
            made = {found for job in jobs if (found := self._made_by(http, job)) is not None}
            for document_id in made.union(documents):
                try:
                    self._call(http, "/mcp/kb-extra", "kb_delete", {"document_id": document_id})
                except CallFailed as failed:
                    if "document_not_found" not in str(failed):
                        raise

    def _made_by(self, http: httpx.Client, job_id: str) -> int | None:
        found = self._call(http, "/mcp/kb", "kb_jobs", {"job_id": job_id, "wait_seconds": _WAIT_SECONDS})
        (job,) = found["jobs"]
        document_id: int | None = job["document_id"]
        return document_id

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
    """Why this base is not to be loaded; empty where it may be."""
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
