"""The client of RAGler's backend: its requests, and the result of every failure."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.support.loop_clock import advance_loop
from tests.support.patience import ANSWER_SECONDS
from tests.support.ragler import API_DOCS, KEY, Backend, RaglerTools, tools_before

SEARCH, LIST, INFO = "/vector/search", "/collections", f"/collections/{API_DOCS}"
CALLS: dict[str, dict[str, Any]] = {
    "search_knowledge": {"query": "x"},
    "list_collections": {},
    "get_collection_info": {"collection_id": API_DOCS},
}
PATHS = {"search_knowledge": SEARCH, "list_collections": LIST, "get_collection_info": INFO}
HTML = {"Content-Type": "text/html"}
PROBLEM = {"Content-Type": "application/problem+json"}


@pytest.mark.requirement("R41", "R42", "R43", "R45")
@pytest.mark.parametrize("name", CALLS)
async def test_every_call_says_who_asks_and_in_which_role(
    tools: RaglerTools, backend: Backend, name: str
) -> None:
    await tools.ok(name, **CALLS[name])
    await tools.ok("search_knowledge", query="x", collection_id=API_DOCS)
    for asked in backend.asked:
        assert asked.headers["Authorization"] == f"Bearer {KEY}"
        assert asked.headers["X-User-ID"] == "mcp-server"
        assert asked.headers["X-User-Role"] == "service"


@pytest.mark.parametrize("route", [SEARCH, INFO])
async def test_a_missing_route_is_not_a_missing_collection(
    tools: RaglerTools, backend: Backend, route: str
) -> None:
    """The backend lists the collection, so the 404 means that the operation is missing."""
    backend.answers(route, {"statusCode": 404, "message": f"Cannot GET {route}"}, 404)
    name = "search_knowledge" if route == SEARCH else "get_collection_info"
    refused = await tools.refused(name, **{**CALLS[name], "collection_id": API_DOCS})
    assert refused["error"] == "backend_bad_answer"
    assert "404" in refused["message"]


async def test_members_in_camel_case_are_read_as_well(tools: RaglerTools, backend: Backend) -> None:
    """Backends of this API return `createdBy` although its document has `created_by`."""
    backend.answers(
        LIST,
        {
            "collections": [
                {
                    "id": API_DOCS,
                    "name": "API",
                    "chunkCount": 3,
                    "createdBy": "a@company.com",
                    "createdAt": "2026-02-01",
                }
            ]
        },
    )
    (collection,) = (await tools.ok("list_collections"))["collections"]
    assert (collection["created_by"], collection["created_at"]) == ("a@company.com", "2026-02-01")
    assert collection["chunk_count"] == 3


@pytest.mark.requirement("R35")
async def test_a_base_url_may_have_a_path_and_credentials(backend: Backend, tmp_path: Path) -> None:
    async with tools_before(f"{backend.url}/base/", tmp_path) as tools:
        backend.answers("/base/collections", {"collections": []})
        await tools.ok("list_collections")
    async with tools_before("http://me:secret@127.0.0.1:1", tmp_path) as tools:
        told = await tools.refused("list_collections")
    assert "http://127.0.0.1:1" in told["message"]
    assert "secret" not in json.dumps(told)


FAULTS: dict[str, tuple[int, Any, dict[str, str], str]] = {
    "unknown key": (401, {"message": "Unauthorized"}, {}, "unauthorized"),
    "forbidden": (403, {"message": "Forbidden resource"}, {}, "forbidden"),
    "rate limit": (429, {"message": "ThrottlerException"}, {"Retry-After": "37"}, "rate_limited"),
    "too busy": (503, b"<html>", HTML, "backend_busy"),
    "broken": (500, {"message": "Internal server error"}, {}, "backend_failed"),
    "gateway": (502, b"<html>", HTML, "backend_failed"),
    "gateway timeout": (504, b"<html>", HTML, "backend_failed"),
    "teapot": (418, {"message": "I am"}, {}, "backend_refused"),
    "bad request": (400, {"message": ["filters must not be"], "error": "Bad Request"}, {}, "backend_refused"),
    "problem": (
        422,
        {"type": "x", "title": "x", "status": 422, "code": "contradiction", "detail": "Two names."},
        PROBLEM,
        "contradiction",
    ),
    "no such route": (
        404,
        {"type": "x", "title": "x", "status": 404, "code": "route_not_found", "detail": "None."},
        PROBLEM,
        "backend_bad_answer",
    ),
    "redirect": (302, b"", {"Location": "https://login"}, "backend_bad_answer"),
    "page": (200, b"<html>", HTML, "backend_bad_answer"),
    "no JSON": (200, b"{oops", {}, "backend_bad_answer"),
    "empty": (200, b"", {}, "backend_bad_answer"),
    "list": (200, [1], {}, "backend_bad_answer"),
    "null": (200, None, {}, "backend_bad_answer"),
    "other members": (200, {"data": {}}, {}, "backend_bad_answer"),
    "other types": (
        200,
        {"results": [{"content": 5}], "collections": [{"id": 1}], "id": 1, "name": []},
        {},
        "backend_bad_answer",
    ),
    "deep": (200, b'{"x":' * 100_000, {}, "backend_bad_answer"),
    "deep and whole": (200, b'{"x":' * 900 + b"1" + b"}" * 900, {}, "backend_bad_answer"),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("fault", FAULTS)
async def test_every_answer_that_is_none_has_an_error_of_ours(
    tools: RaglerTools, backend: Backend, name: str, fault: str
) -> None:
    status, body, headers, code = FAULTS[fault]
    backend.answers(PATHS[name], body, status, headers=headers)
    assert (await tools.refused(name, **CALLS[name]))["error"] == code


@pytest.mark.requirement("R40", "R67")
@pytest.mark.parametrize("name", CALLS)
async def test_a_backend_that_keeps_silent_is_given_up_after_the_timeout(
    backend: Backend, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance, asked = advance_loop(monkeypatch), asyncio.Semaphore(0)

    async def silent(request: web.Request) -> web.Response:
        asked.release()
        await asyncio.Event().wait()
        raise AssertionError("an event that nobody sets")

    backend.does(PATHS[name], silent)
    allowed = round(ANSWER_SECONDS * 1000)
    async with tools_before(backend.url, tmp_path, request_timeout_ms=allowed) as tools:
        asking = asyncio.create_task(tools.refused(name, **CALLS[name]))
        await asyncio.wait_for(asked.acquire(), ANSWER_SECONDS)
        advance(ANSWER_SECONDS)
        assert (await asking)["error"] == "timeout"
        assert asked.locked(), "it was asked once"
        assert f'mcp_errors_total{{tool="{name}",error_type="timeout"}} 1' in tools.metrics.render()


async def test_a_backend_that_is_down_is_told_with_its_address(tmp_path: Path) -> None:
    async with tools_before("http://127.0.0.1:1", tmp_path) as tools:
        told = await tools.refused("list_collections")
        assert told["error"] == "backend_unreachable"
        for words in ("http://127.0.0.1:1", "RAGLER_API_URL"):
            assert words in told["message"]
        for _ in range(2):
            told = await tools.refused("list_collections")
        assert told["retry_after"] >= 1


class TestRateLimit:
    @pytest.mark.parametrize(
        ("headers", "seconds"), [({"Retry-After": "37"}, 37), ({"Retry-After": "0.2"}, 1), ({}, 60)]
    )
    async def test_the_seconds_to_wait_are_told(
        self, tools: RaglerTools, backend: Backend, headers: dict[str, str], seconds: int
    ) -> None:
        backend.answers(SEARCH, {"message": "Too Many Requests"}, 429, headers=headers)
        told = await tools.refused("search_knowledge", query="x")
        assert (told["error"], told["retry_after"]) == ("rate_limited", seconds)
        assert f"{seconds} s" in told["message"]
        assert len(backend.asked) == 1
        assert tools.time.sleeps == []

    async def test_a_name_that_may_not_be_asked_for_is_the_searchs_limit(
        self, tools: RaglerTools, backend: Backend
    ) -> None:
        backend.answers(INFO, {"message": "Too Many Requests"}, 429)
        told = await tools.refused("search_knowledge", query="x", collection_id=API_DOCS)
        assert told["error"] == "rate_limited"
        assert backend.of(SEARCH) == []


class TestRetries:
    @pytest.mark.parametrize("name", CALLS)
    @pytest.mark.parametrize("status", [502, 503, 504])
    async def test_transient_failures_of_the_backend_are_retried(
        self, tools: RaglerTools, backend: Backend, name: str, status: int
    ) -> None:
        backend.fails_once(PATHS[name], status)
        await tools.ok(name, **CALLS[name])
        assert len(backend.asked) == 2


class TestReadiness:
    @pytest.mark.parametrize(("status", "ready"), [(200, True), (404, True), (401, True), (503, False)])
    async def test_a_backend_is_ready_unless_its_probe_denies_it(
        self, tools: RaglerTools, backend: Backend, status: int, ready: bool
    ) -> None:
        backend.answers("/readyz", {}, status)
        assert await tools.services.ragler.reachable() is ready
        assert [asked.path for asked in backend.asked] == ["/readyz"]

    async def test_an_unreachable_backend_is_not_ready(self, tmp_path: Path) -> None:
        async with tools_before("http://127.0.0.1:1", tmp_path) as tools:
            assert not await tools.services.ragler.reachable()
