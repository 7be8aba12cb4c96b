"""A bare MCP client over HTTP, for tests of requests that no correct client sends."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import httpx

from tests.support.mcp_messages import call
from tests.support.patience import ANSWER_SECONDS

_ids = count(1)


class Caller:
    """Posts JSON-RPC to one endpoint and keeps every response status."""

    def __init__(self, url: str, key: str = "") -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.http = httpx.Client(headers=headers, timeout=ANSWER_SECONDS, verify=False)
        self.url = url
        self.statuses: list[int] = []

    def post(self, content: bytes, **headers: str) -> httpx.Response:
        """Send bytes unchanged."""
        response = self.http.post(
            self.url, content=content, headers={"Content-Type": "application/json", **headers}
        )
        self.statuses.append(response.status_code)
        return response

    def send(self, message: Any, **headers: str) -> httpx.Response:
        return self.post(json.dumps(message).encode(), **headers)

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        response = self.send(call(tool, next(_ids), **arguments))
        assert response.status_code == 200, response.text
        answer = response.json()
        assert "result" in answer, answer
        return dict(answer["result"])

    def ok(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Return the structured content of a call that must succeed."""
        result = self.call(tool, **arguments)
        assert not result.get("isError"), result
        return dict(result["structuredContent"])

    def refused(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Return the error object of a call that must be refused."""
        result = self.call(tool, **arguments)
        assert result.get("isError") is True, result
        assert "structuredContent" not in result
        return dict(json.loads(result["content"][0]["text"]))
