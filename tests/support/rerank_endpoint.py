"""A reranking endpoint on loopback that fails on command: the `/rerank` of TEI, Jina and Cohere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.support.serving import serving_app

Json = dict[str, Any]
Fault = Callable[[web.Request], Awaitable[web.StreamResponse]]
"""Replaces the response of an endpoint."""


def shared_words(query: str, text: str) -> float:
    words = query.lower().split()
    return sum(word in text.lower() for word in words) / len(words)


@dataclass
class RerankEndpoint:
    """Scores texts by `relevance` under `url`; `requests` holds the bodies received.

    `key`: the required bearer key. `fault`: replaces the response. `shape` changes a response before it is
    sent.
    """

    url: str = ""
    key: str = ""
    requests: list[Json] = field(default_factory=list)
    fault: Fault | None = None
    relevance: Callable[[str, str], float] = shared_words
    shape: Callable[[list[Json]], Any] = list

    def texts(self) -> list[str]:
        return [text for asked in self.requests for text in asked.get("texts") or asked.get("documents", [])]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        self.requests.append(asked)
        if self.fault is not None:
            return await self.fault(request)
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "unauthorized"}, status=401)
        is_tei = "texts" in asked
        texts = asked["texts" if is_tei else "documents"]
        name = "score" if is_tei else "relevance_score"
        scores = [{"index": i, name: self.relevance(asked["query"], text)} for i, text in enumerate(texts)]
        scores.sort(key=lambda each: -each[name])
        shaped = self.shape(scores)
        body = shaped if is_tei or not isinstance(shaped, list) else {"id": "1", "results": shaped}
        return web.Response(text=json.dumps(body), content_type="application/json")


@asynccontextmanager
async def rerank_endpoint() -> AsyncIterator[RerankEndpoint]:
    endpoint = RerankEndpoint()
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/rerank", endpoint.answer)
    async with serving_app(app) as url:
        endpoint.url = f"{url}/rerank"
        yield endpoint


def answering(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Fault:
    async def fault(_request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, status=status, headers=headers)

    return fault


async def hanging(_request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError("an event that nobody sets")


async def cutting_off(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.close()
    return web.Response()
