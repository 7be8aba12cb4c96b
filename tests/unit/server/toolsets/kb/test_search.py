"""`kb_search`: its request to the engine, and its result from the response."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import UNSET, UnsetType

from kb_contracts.api import models as m
from kb_server.toolsets.kb.search import DESCRIPTION
from kb_simulator import Stuck
from tests.support.contract_objects import chunk_with, explanation_with, response_with, result_of
from tests.support.server_fixtures import ToolCaller
from tests.support.simulated_engine import MakeCall, SimulatedEngine

DEFAULTS = {"min_score": 0.0, "max_chars": 20_000, "collapse": True, "per_document": 3, "citations": True}
"""Members sent with every search."""


def posted(engine: SimulatedEngine) -> dict[str, Any]:
    (request,) = engine.journal.requests("search")
    assert (request.method, request.path) == ("POST", "/api/v1/search")
    body: dict[str, Any] = msgspec.json.decode(request.body)
    return body


def respond(
    tools: ToolCaller,
    *found: m.SearchResult,
    total: int | None = None,
    weak: bool = False,
    total_exact: bool | UnsetType = UNSET,
    incomplete: str | UnsetType = UNSET,
) -> None:
    """Make searches return these results; `total` is by default their number."""

    async def searches(_search: MakeCall) -> m.SearchResponse:
        return response_with(found, total=total, weak=weak, total_exact=total_exact, incomplete=incomplete)

    tools.around["search"] = searches


@pytest.mark.requirement("K15", "K16", "K17", "K18", "E2")
@pytest.mark.parametrize(("given", "top"), [({"top": 5}, 5), ({"top_n": 3, "top": 3}, 3), ({"top_n": 4}, 4)])
async def test_a_search_is_posted_to_the_engine(
    engine: SimulatedEngine, tools: ToolCaller, given: dict[str, int], top: int
) -> None:
    await tools.ok("kb_search", query="pension revaluation", **given)
    assert posted(engine) == {"query": "pension revaluation", "top": top, **DEFAULTS}


@pytest.mark.requirement("K20", "K21", "K23", "E12")
@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        ({"collection": "memory"}, {"tags": ["collection:memory"]}),
        ({"tags": ["email"], "collection": "memory"}, {"tags": ["email", "collection:memory"]}),
        ({"fts_only": True}, {"fts_only": True}),
        ({"mode": "fts", "fts_only": True}, {"mode": "fts", "fts_only": True}),
        ({"mode": "fts", "fts_only": False}, {"mode": "fts"}),
    ],
)
async def test_a_collection_becomes_a_tag_and_modes_are_passed_on(
    engine: SimulatedEngine, tools: ToolCaller, arguments: dict[str, Any], body: dict[str, Any]
) -> None:
    """A collection is sent as a tag, because the engine's search has no parameter for it."""
    await tools.ok("kb_search", query="x", **arguments)
    assert posted(engine) == {"query": "x", **DEFAULTS, **body}


@pytest.mark.requirement("E2")
async def test_doc_type_mode_and_filters_are_passed_on(engine: SimulatedEngine, tools: ToolCaller) -> None:
    await tools.ok(
        "kb_search",
        query="x",
        doc_type="pdf",
        mode="vector",
        min_score=0.5,
        format=["pdf"],
        source_type=["mail"],
        date_from="2025-01-01",
        date_to="2025-12-31",
        source_path_prefix="reports/",
        neighbors=1,
        explain=True,
        max_chars=500,
        max_tokens=100,
        detail="locations",
        per_document=100,
    )
    assert posted(engine) == {
        "query": "x",
        "doc_type": "pdf",
        "mode": "vector",
        "min_score": 0.5,
        "filters": {
            "format": ["pdf"],
            "source_type": ["mail"],
            "date_from": "2025-01-01",
            "date_to": "2025-12-31",
            "source_path_prefix": "reports/",
        },
        "neighbors": 1,
        "explain": True,
        "max_chars": 500,
        "max_tokens": 100,
        "detail": "locations",
        "collapse": True,
        "per_document": 100,
        "citations": True,
    }


@pytest.mark.requirement("K19")
async def test_a_result_has_text_score_document_and_tags(engine: SimulatedEngine, tools: ToolCaller) -> None:
    document = engine.add(
        "insurance",
        doc_type="pdf",
        title="Report",
        format="pdf",
        filename="report.pdf",
        source_path="in/report.pdf",
        metadata={"author": "A"},
    )
    respond(
        tools,
        result_of(
            document, chunk_with(index=7, text="Pensions are revalued.", page=3, heading="Revaluation")
        ),
    )
    answer = await tools.ok("kb_search", query="pension revaluation")
    assert answer["total"] == 1
    assert "mode" not in answer
    (result,) = answer["results"]
    assert result == {
        "text": "Pensions are revalued.",
        "score": 0.75,
        "page": 3,
        "heading": "Revaluation",
        "chunk_id": 8,
        "chunk_index": 7,
        "document_id": document.id,
        "title": "Report",
        "doc_type": "pdf",
        "format": "pdf",
        "source_path": "in/report.pdf",
        "filename": "report.pdf",
        "tags": ["insurance"],
        "metadata": {"author": "A"},
        "version": 1,
        "updated_at": document.updated_at,
    }


async def test_document_members_stand_with_the_first_passage_only(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    document = engine.add("collection:memory", source_path="a.md", metadata={"author": "A"})
    first, second = chunk_with(index=4, text="Chalk."), chunk_with(index=5, text="Granite.")
    respond(tools, result_of(document, first), result_of(document, second))
    told, again = (await tools.ok("kb_search", query="x"))["results"]
    assert told.keys() - again.keys() == {"title", "source_path", "metadata", "updated_at"}
    always = {"text", "score", "document_id", "chunk_id", "chunk_index", "collection", "tags", "version"}
    assert again.keys() == {*always, "doc_type"}


async def test_a_title_that_the_text_begins_with_is_not_repeated(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    document = engine.add("collection:memory")
    respond(tools, result_of(document, chunk_with(text=f"{document.title}, and more.")))
    assert "title" not in (await tools.ok("kb_search", query="x"))["results"][0]


@pytest.mark.requirement("K22", "K60")
async def test_the_collection_stands_above_the_tags(engine: SimulatedEngine, tools: ToolCaller) -> None:
    document = engine.add("collection:memory", "feedback", "email")
    respond(tools, result_of(document))
    (result,) = (await tools.ok("kb_search", query="x"))["results"]
    assert (result["collection"], result["tags"]) == ("memory", ["feedback", "email"])


async def test_a_document_in_several_collections_is_repaired_on_sight(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    document = engine.add("collection:a", "x", "collection:b")
    respond(tools, result_of(document), result_of(document, chunk_with(index=1)))
    answer = await tools.ok("kb_search", query="x")
    assert {result["collection"] for result in answer["results"]} == {"b"}
    assert engine.document().tags == ["x", "collection:b"]
    engine.journal.expect(operation="removeTag", exactly=1)


async def test_a_repair_that_fails_does_not_spoil_the_search(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    respond(tools, result_of(engine.add("collection:a", "collection:b")))
    engine.arm("internal_error", "removeTag")
    assert len((await tools.ok("kb_search", query="x"))["results"]) == 1


async def test_collapsed_duplicates_and_merged_neighbours_are_listed(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    """Merged neighbours come with their texts, even if no neighbours were requested."""
    merged = msgspec.structs.replace(
        result_of(engine.add(), chunk_with(index=3)),
        before=[chunk_with(index=2, text="before")],
        duplicates=[m.Duplicate(document_id=7, chunk_id=70)],
    )
    respond(tools, merged)
    (result,) = (await tools.ok("kb_search", query="x"))["results"]
    assert result["duplicates"] == [{"document_id": 7, "chunk_id": 70}]
    assert result["before"] == [{"chunk_id": 3, "index": 2, "text": "before"}]
    assert result["after"] == []


async def test_weak_results_come_with_a_hint(engine: SimulatedEngine, tools: ToolCaller) -> None:
    respond(tools, result_of(engine.add()), weak=True)
    answer = await tools.ok("kb_search", query="x")
    assert answer["weak"] is True
    assert "variant phrasings" in answer["hint"]


async def test_results_omitted_by_max_chars_are_counted(engine: SimulatedEngine, tools: ToolCaller) -> None:
    """Also if the engine exceeds the limit, by the same rule."""
    document = engine.add()
    respond(tools, *(result_of(document, chunk_with(index=index, text="x" * 60)) for index in range(5)))
    answer = await tools.ok("kb_search", query="x", max_chars=130)
    texts = [(len(result["text"]), result.get("truncated", False)) for result in answer["results"]]
    assert texts == [(60, False), (60, False), (10, True)]
    assert answer["omitted"] == 2
    assert all(words in answer["hint"] for words in ("2 more results", "max_chars", "kb_get"))


async def test_locations_have_no_text_and_say_how_to_read_one(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    document = engine.add(metadata={"author": "A"})
    respond(tools, result_of(document, chunk_with(index=3, text="", page=2)))
    answer = await tools.ok("kb_search", query="x", detail="locations", max_tokens=50)
    (result,) = answer["results"]
    assert (result["text"], result["page"], result["title"]) == ("", 2, document.title)
    assert ("metadata" in result, result["metadata_omitted"], "before" in result) == (False, True, False)
    assert "chunk_offset=chunk_index" in answer["hint"]


async def test_a_total_that_was_not_counted_to_its_end_is_told(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    respond(tools, result_of(engine.add()), total=70, total_exact=False)
    assert "70 is the minimum number of matches" in (await tools.ok("kb_search", query="x"))["hint"]


async def test_an_incomplete_search_has_a_hint(engine: SimulatedEngine, tools: ToolCaller) -> None:
    respond(tools, result_of(engine.add()), incomplete="2 passages have no vector.")
    assert "Incomplete: 2 passages have no vector." in (await tools.ok("kb_search", query="x"))["hint"]


async def test_metadata_that_would_flood_the_answer_is_left_to_kb_get(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    respond(tools, result_of(engine.add(metadata={"long": "x" * 5_000})))
    (result,) = (await tools.ok("kb_search", query="x"))["results"]
    assert ("metadata" in result, result["metadata_omitted"]) == (False, True)


async def test_neighbours_and_an_explanation_are_added_when_asked_for(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    explained = explanation_with(cosine=0.5)
    near = [chunk_with(index=9, text="y" * 60)]
    respond(
        tools, msgspec.structs.replace(result_of(engine.add()), explain=explained, before=near, after=near)
    )
    (result,) = (await tools.ok("kb_search", query="x", explain=True, neighbors=1))["results"]
    assert result["explain"]["cosine"] == 0.5
    assert result["before"] == result["after"] == [{"chunk_id": 10, "index": 9, "text": "y" * 60}]


@pytest.mark.parametrize(
    ("arguments", "code", "parameter"),
    [
        ({"date_from": "yesterday"}, "invalid_parameter", "date_from"),
        ({"date_from": "2026-02-01", "date_to": "2026-01-01"}, "contradiction", "date_to"),
        ({"mode": "vector", "fts_only": True}, "contradiction", "fts_only"),
    ],
)
async def test_an_engines_refusal_is_passed_on_with_its_parameter(
    tools: ToolCaller, arguments: dict[str, Any], code: str, parameter: str
) -> None:
    refused = await tools.refused("kb_search", query="x", **arguments)
    assert (refused["error"], refused["parameter"]) == (code, parameter)
    assert all(name in refused["message"] for name in arguments)
    assert "filters" not in refused["message"]


async def test_an_empty_search_names_each_filter_that_was_set(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    """Each set filter may be the reason; unset filters are not listed."""
    narrowing: dict[str, Any] = {
        "collection": "memory",
        "tags": ["a"],
        "doc_type": "pdf",
        "format": ["pdf"],
        "source_type": ["web"],
        "date_from": "2026-01-01",
        "date_to": "2026-01-31",
        "source_path_prefix": "a/",
        "min_score": 0.5,
        "fts_only": True,
    }
    hint = (await tools.ok("kb_search", query="x", **narrowing))["hint"]
    assert hint.startswith("Nothing found with ")
    named = hint.removeprefix("Nothing found with ").partition(":")[0].split(", ")
    assert sorted(named) == sorted(narrowing)
    hint = (await tools.ok("kb_search", query="x", format=["pdf"]))["hint"]
    assert hint.startswith("Nothing found with format: search without them")
    assert "kb_status" in (await tools.ok("kb_search", query="x"))["hint"]


async def test_a_search_in_a_missing_collection_lists_the_collections(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    none = (await tools.ok("kb_search", query="x", collection="memories"))["hint"]
    assert "There is no collection 'memories', nor any other." in none
    engine.add("collection:memory")
    engine.add("collection:workspace")
    hint = (await tools.ok("kb_search", query="x", collection="memories", mode="fts"))["hint"]
    assert "There is no collection 'memories'. Collections: memory, workspace." in hint
    hint = (await tools.ok("kb_search", query="none", collection="memory", mode="fts"))["hint"]
    assert "There is no" not in hint


async def test_an_empty_search_mentions_pending_jobs(engine: SimulatedEngine, tools: ToolCaller) -> None:
    engine.state.policy = Stuck()
    await tools.ok("kb_addnote", text="granite", wait_seconds=0)
    hint = (await tools.ok("kb_search", query="granite"))["hint"]
    assert "1 job is not done yet: their documents are found once they have completed (kb_jobs)." in hint


async def test_an_empty_search_for_a_phrase_suggests_a_search_without_it(tools: ToolCaller) -> None:
    for query in ('"old mine"', "granite -copper"):
        hint = (await tools.ok("kb_search", query=query))["hint"]
        assert hint.startswith("Nothing found with quotation marks or a minus in query: search without them")
    assert "quotation" not in (await tools.ok("kb_search", query='well-known 5" pipe'))["hint"]


async def test_results_without_a_phrase_are_marked_and_named_in_the_hint(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    await tools.ok("kb_addnote", text="granite quarry")
    answer = await tools.ok("kb_search", query='"quarry granite"')
    assert [hit["without_phrase"] for hit in answer["results"]] == [True]
    assert answer["total"] == 0
    assert answer["hint"].startswith("No passage holds the phrase")
    assert not (await tools.ok("kb_search", query='"quarry granite"', strict=True))["results"]


async def test_more_results_than_match_are_said_to_be_the_nearest(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    respond(tools, result_of(engine.add()), result_of(engine.add()), total=1)
    answer = await tools.ok("kb_search", query="x")
    assert (len(answer["results"]), answer["total"]) == (2, 1)
    assert "Only 1 match" in answer["hint"]


@pytest.mark.requirement("E22", "E23", "E36")
@pytest.mark.parametrize(
    "words",
    [
        *("2-3 variant phrasings", "merge", "deduplicate", "complex questions in natural language"),
        *("top 10-20", "reorder", "own judgement"),
    ],
)
def test_the_description_teaches_query_expansion_and_reranking(words: str) -> None:
    assert words in " ".join(DESCRIPTION.split())
