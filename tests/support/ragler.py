"""The toolset `ragler` called as hosting calls it, with a backend that is not kb's, on a real port.

The backend implements RAGler's document and nothing more: it has neither problem documents nor the fields
that kb's engine adds. Tests replace its responses, and read the requests it received.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from kb_server.engine_client.ragler_http import HttpRagler
from kb_server.services import Services, ragler_key
from kb_server.settings import ServerSettings
from kb_server.toolsets import build_toolset
from tests.support.patience import ANSWER_SECONDS
from tests.support.server_fixtures import JumpingClock, ToolCaller
from tests.support.tool_table import TOOLS

THREE = tuple(TOOLS["ragler"])
DESCRIPTIONS = {
    "search_knowledge": "Search across knowledge collections with semantic + hybrid filtering",
    "list_collections": "List all available knowledge collections",
    "get_collection_info": "Get detailed information about a specific collection",
}
KEY = "ragler-key"
API_DOCS = "0b6c1f6e-52ad-4c4b-9d0c-6a1f4b1f2a01"
NOWHERE = "3f0c5d7e-9a53-4f1c-8e2b-0b8f3f2f9b11"

COLLECTION: dict[str, Any] = {
    "id": API_DOCS,
    "name": "API Documentation",
    "description": "Internal API guides",
    "chunk_count": 45,
    "created_by": "dev@company.com",
    "created_at": "2026-02-01T10:00:00Z",
}
DETAIL: dict[str, Any] = {
    **COLLECTION,
    "updated_at": "2026-02-02T10:00:00Z",
    "target_audience": ["developers"],
    "usage_scenarios": ["onboarding"],
    "statistics": {"total_tokens": 12_000, "avg_chunk_size": 266.7, "last_published": "2026-02-02T10:00:00Z"},
}
PASSAGE: dict[str, Any] = {
    "content": "Requests carry a bearer token.",
    "source_url": "https://wiki.company.com/auth",
    "score": 0.87,
    "metadata": {
        "source_type": "confluence",
        "context_breadcrumbs": "API > Security",
        "heading": "Authentication",
        "tags": ["api", "authentication"],
        "last_modified_by": "dev@company.com",
        "last_modified_at": "2026-02-01T10:00:00Z",
    },
}
FOUND: dict[str, Any] = {"results": [PASSAGE], "total": 12, "executionTime": 41}


@dataclass(frozen=True)
class Asked:
    """One received request; `body` is its JSON."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Backend:
    """Responds as in the document, unless a test has set a response for the path."""

    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    _answers: dict[str, Answer] = field(default_factory=dict)

    def of(self, path: str) -> list[Asked]:
        return [asked for asked in self.asked if asked.path == path]

    def answers(
        self, path: str, body: Any, status: int = 200, *, headers: dict[str, str] | None = None
    ) -> None:
        """Set the response of a path from now on; `body` is sent as JSON, or unchanged if it is bytes."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()

        async def answer(_request: web.Request) -> web.Response:
            return web.Response(
                body=data, status=status, headers={"Content-Type": "application/json", **(headers or {})}
            )

        self._answers[path] = answer

    def does(self, path: str, answer: Answer) -> None:
        self._answers[path] = answer

    def fails_once(self, path: str, status: int) -> None:
        """Fail the next request; later ones get the response of the document."""

        async def answer(_request: web.Request) -> web.Response:
            del self._answers[path]
            return web.Response(status=status)

        self.does(path, answer)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = json.loads(raw) if raw else None
        self.asked.append(Asked(request.method, request.path, dict(request.headers), body))
        if request.path in self._answers:
            return await self._answers[request.path](request)
        known = {
            "/vector/search": FOUND,
            "/collections": {"collections": [COLLECTION]},
            f"/collections/{API_DOCS}": DETAIL,
        }
        if request.path in known:
            return web.json_response(known[request.path])
        missing = {"statusCode": 404, "message": "Collection not found", "error": "Not Found"}
        return web.json_response(missing, status=404)


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    backend, app = Backend(), web.Application()
    app.router.add_route("*", "/{path:.*}", backend.handle)
    server = TestServer(app)
    await server.start_server()
    backend.url = str(server.make_url("")).rstrip("/")
    yield backend
    await server.close()


class RaglerTools(ToolCaller):
    """The three tools, and the clock of their services."""

    def __init__(self, services: Services, time: JumpingClock) -> None:
        super().__init__(build_toolset("ragler", services))
        self.services, self.time = services, time


@asynccontextmanager
async def tools_before(url: str, home: Path, **settings: Any) -> AsyncIterator[RaglerTools]:
    """Yield the toolset for the backend at `url`; waits take no time, and the jitter is always full."""
    configured = ServerSettings(
        **{
            "ragler_api_url": url,
            "ragler_api_key": KEY,
            "home": home,
            "request_timeout_ms": round(1_000 * ANSWER_SECONDS),
            **settings,
        }
    )
    time = JumpingClock()
    client = HttpRagler(
        configured.ragler_api_url,
        ragler_key(configured),
        read_timeout=configured.request_timeout_ms / 1000,
        clock=time.clock(),
        jitter=lambda: 1.0,
    )
    async with Services(configured, ragler=client, clock=time.clock()) as services:
        yield RaglerTools(services, time)
    await client.close()


@pytest.fixture
async def tools(backend: Backend, tmp_path: Path) -> AsyncIterator[RaglerTools]:
    async with tools_before(backend.url, tmp_path) as made:
        yield made
