"""`list_collections` and `get_collection_info`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kb_server.toolsets.ragler import MAX_CHARS, MAX_DESCRIPTION_CHARS
from tests.support.ragler import (
    API_DOCS,
    COLLECTION,
    DETAIL,
    NOWHERE,
    Backend,
    RaglerTools,
    backend_running,
    tools_before,
)

LIST, INFO = "/collections", f"/collections/{API_DOCS}"


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    async with backend_running() as running:
        yield running


@pytest.fixture
async def tools(backend: Backend, tmp_path: Path) -> AsyncIterator[RaglerTools]:
    async with tools_before(backend.url, tmp_path) as made:
        yield made


@pytest.mark.requirement("R16", "R17", "R18")
async def test_the_list_is_the_backends(tools: RaglerTools, backend: Backend) -> None:
    assert await tools.ok("list_collections") == {"collections": [COLLECTION]}
    (asked,) = backend.asked
    assert (asked.method, asked.path, asked.body) == ("GET", LIST, None)


@pytest.mark.requirement("R20", "R21", "R22", "R23")
async def test_the_info_is_the_backends(tools: RaglerTools, backend: Backend) -> None:
    assert await tools.ok("get_collection_info", collection_id=API_DOCS) == DETAIL
    (asked,) = backend.asked
    assert (asked.method, asked.path, asked.body) == ("GET", INFO, None)
    assert tools.last.log == {"collection_id": API_DOCS}


@pytest.mark.requirement("R22")
async def test_what_the_backend_leaves_out_is_left_out(tools: RaglerTools, backend: Backend) -> None:
    sparse = {
        "id": API_DOCS,
        "name": "API",
        "description": None,
        "statistics": {"total_tokens": 5},
        "acl": [],
    }
    backend.answers(INFO, sparse)
    backend.answers(LIST, {"collections": [sparse], "page": 1})
    assert await tools.ok("list_collections") == {"collections": [{"id": API_DOCS, "name": "API"}]}
    assert await tools.ok("get_collection_info", collection_id=API_DOCS) == {
        "id": API_DOCS,
        "name": "API",
        "statistics": {"total_tokens": 5},
    }


async def test_no_collections_are_an_empty_list(tools: RaglerTools, backend: Backend) -> None:
    backend.answers(LIST, {"collections": []})
    assert await tools.ok("list_collections") == {"collections": []}


async def test_a_list_that_is_too_long_says_what_is_not_here(tools: RaglerTools, backend: Backend) -> None:
    long = {**COLLECTION, "description": "x" * (MAX_CHARS // 4)}
    backend.answers(LIST, {"collections": [long] * 10})
    told = await tools.ok("list_collections")
    assert (len(told["collections"]), told["omitted"]) == (3, 7)
    assert "7 more collections were left out" in told["hint"]


async def test_a_description_that_is_too_long_is_cut_and_says_so(
    tools: RaglerTools, backend: Backend
) -> None:
    backend.answers(INFO, {**DETAIL, "description": "x" * (MAX_DESCRIPTION_CHARS + 1)})
    told = await tools.ok("get_collection_info", collection_id=API_DOCS)
    assert told == {**DETAIL, "description": "x" * MAX_DESCRIPTION_CHARS, "truncated": True}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, "missing_required_parameter"),
        ({"collection_id": "uuid-api-docs"}, "invalid_parameter"),
        ({"collection_id": None}, "invalid_parameter"),
        ({"collection_id": API_DOCS, "more": 1}, "invalid_parameter"),
    ],
)
async def test_an_id_is_required_and_a_uuid(
    tools: RaglerTools, backend: Backend, arguments: dict[str, Any], error: str
) -> None:
    assert (await tools.refused("get_collection_info", **arguments))["error"] == error
    assert backend.asked == []


async def test_a_list_takes_nothing(tools: RaglerTools) -> None:
    assert (await tools.refused("list_collections", page=2))["error"] == "invalid_parameter"


@pytest.mark.requirement("R67")
async def test_a_collection_that_is_not_there_is_not_found(tools: RaglerTools) -> None:
    told = await tools.refused("get_collection_info", collection_id=NOWHERE)
    assert (told["error"], told["collection_id"]) == ("not_found", NOWHERE)
    assert "list_collections" in told["message"]
    counted = 'mcp_errors_total{tool="get_collection_info",error_type="not_found"} 1'
    assert counted in tools.metrics.render()
