"""`search` and `fetch` as ChatGPT's connectors call them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.server_fixtures import ToolCaller, calling
from tests.support.simulated_engine import SimulatedEngine
from tests.support.simulated_engine import engine as engine


@pytest.fixture
async def tools(engine: SimulatedEngine, tmp_path: Path) -> AsyncIterator[ToolCaller]:
    async with calling(engine, tmp_path, names=("chatgpt",)) as tools:
        yield tools


async def test_search_answers_with_each_document_once(engine: SimulatedEngine, tools: ToolCaller) -> None:
    first = engine.add("collection:memory", text="Granite.\n\n" + "Granite is old. " * 300)
    second = engine.add(text="Chalk and granite.")
    results = (await tools.ok("search", query="granite"))["results"]
    assert {result["id"]: result["title"] for result in results} == {
        str(first.id): first.title,
        str(second.id): second.title,
    }
    assert all(result.keys() == {"id", "title", "url"} for result in results)
    assert results[0]["url"] == f"kb://documents/{results[0]['id']}"


async def test_search_answers_with_ten_documents_at_the_most(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    for number in range(15):
        engine.add(text=f"Granite {number}.")
    assert len((await tools.ok("search", query="granite"))["results"]) == 10


async def test_fetch_reads_what_search_found(engine: SimulatedEngine, tools: ToolCaller) -> None:
    engine.add("collection:memory", text="Granite is old.", source_path="a.md", metadata={"author": "A"})
    (found,) = (await tools.ok("search", query="granite"))["results"]
    fetched = await tools.ok("fetch", id=found["id"])
    assert fetched["text"] == "Granite is old."
    assert {name: fetched[name] for name in ("id", "title", "url")} == found
    assert fetched["metadata"] == {
        "author": "A",
        "collection": "memory",
        "doc_type": "note",
        "source_path": "a.md",
        "updated_at": engine.document().updated_at,
    }


async def test_fetch_gives_the_continuation_of_a_long_text(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    engine.add(text="Granite is old. " * 20_000)
    fetched = await tools.ok("fetch", id="1")
    assert len(fetched["text"]) < 201_000
    assert fetched["metadata"]["continued_at"].startswith("kb://documents/1?from=")


@pytest.mark.parametrize(
    ("key", "parameter", "message"),
    [
        ("7", None, "No document has this id; search returns the ids."),
        ("document_7", "id", "Path parameter 'id' takes the document's number or its uid."),
        ("../status", "id", "Path parameter 'id' takes the document's number or its uid."),
    ],
)
async def test_an_id_of_nothing_is_refused(
    tools: ToolCaller, key: str, parameter: str | None, message: str
) -> None:
    refused = await tools.refused("fetch", id=key)
    assert refused.get("parameter") == parameter
    assert refused["message"].endswith(message)
