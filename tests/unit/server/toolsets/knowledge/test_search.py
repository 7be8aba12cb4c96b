"""`knowledge-search`: what is asked of the engine, and what is told of its answer."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

import pytest

from kb_load.pdf import pdf_of
from tests.support.knowledge import Knowledge

HTML = "<h1>Bees</h1><p>Bees keep warm in a cluster.</p>"


async def test_the_search_is_the_whole_base(knowledge: Knowledge) -> None:
    """Whatever the collection: what other tools have added is found as well."""
    await knowledge.added("bees.html", HTML)
    assert (await knowledge.ok("knowledge-search", query="cluster"))["total_results"] == 1


@pytest.mark.requirement("N24", "N25", "N26")
async def test_an_answer_has_the_passages_with_their_documents(knowledge: Knowledge) -> None:
    """UUIDs for ids, a score from 0 to 1, the page where there are pages, and when it was added."""
    page = ["Bees keep warm in a cluster."]
    document = await knowledge.added("bees.pdf", pdf_of([["Wasps do not."], page]))
    told = await knowledge.ok("knowledge-search", query="bees cluster")
    assert set(told) == {"success", "query", "results", "total_results", "search_time_ms"}
    assert (told["success"], told["query"]) == (True, "bees cluster")
    assert told["total_results"] == len(told["results"])
    assert isinstance(told["search_time_ms"], int)
    best = told["results"][0]
    assert set(best) == {
        "document_id",
        "chunk_id",
        "chunk_index",
        "filename",
        "format",
        "processing_method",
        "chunk_text",
        "relevance_score",
        "metadata",
    }
    assert best["document_id"] == document
    assert UUID(best["chunk_id"]).version == 4
    assert best["filename"] == "bees.pdf"
    assert (best["chunk_index"], best["format"], best["processing_method"]) == (1, "pdf", "text_extraction")
    assert "cluster" in best["chunk_text"]
    assert 0 < best["relevance_score"] <= 1
    assert (best["metadata"]["format"], best["metadata"]["page_num"]) == ("pdf", 2)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", best["metadata"]["date_added"])


async def test_tags_narrow_the_search_to_documents_that_carry_all_of_them(knowledge: Knowledge) -> None:
    """The tags that their metadata gave them."""
    both = await knowledge.added("bees.html", HTML, metadata={"tags": ["insects", "winter"]})
    await knowledge.added(
        "wasps.html", "<p>Wasps keep warm in a cluster.</p>", metadata={"tags": ["insects"]}
    )
    found = await knowledge.ok("knowledge-search", query="cluster", filters={"tags": ["insects", "winter"]})
    assert [result["document_id"] for result in found["results"]] == [both]
    assert (await knowledge.ok("knowledge-search", query="cluster", filters={"tags": ["insects"]}))[
        "total_results"
    ] == 2


@pytest.mark.requirement("N27")
async def test_no_match_is_a_success_without_results(knowledge: Knowledge) -> None:
    """It says so."""
    await knowledge.added("bees.html", HTML)
    told = await knowledge.ok("knowledge-search", query="xylophone", min_relevance=0.9)
    assert told.pop("search_time_ms") >= 0
    assert told == {
        "success": True,
        "query": "xylophone",
        "results": [],
        "total_results": 0,
        "message": "No documents found matching your query",
    }


@pytest.mark.requirement("N28")
async def test_an_empty_base_is_an_error_that_says_what_to_do(knowledge: Knowledge) -> None:
    assert await knowledge.refused("knowledge-search", query="bees") == {
        "success": False,
        "error": "empty_knowledge_base",
        "message": "Knowledge base is empty. Add documents with knowledge-add first",
        "document_count": 0,
    }


@pytest.mark.requirement("N20", "N21", "N22", "N23", "N84")
@pytest.mark.parametrize(
    ("arguments", "parameter"),
    [
        ({"query": ""}, "query"),
        ({"query": "  \t"}, "query"),
        ({"query": "x" * 501}, "query"),
        ({"query": 5}, "query"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": 51}, "top_k"),
        ({"top_k": "10"}, "top_k"),
        ({"min_relevance": -0.1}, "min_relevance"),
        ({"min_relevance": 1.1}, "min_relevance"),
        ({"min_relevance": "high"}, "min_relevance"),
        ({"filters": "pdf"}, "filters"),
        ({"filters": {"author": "x"}}, "filters.author"),
        ({"filters": {"format": ["pdf"]}}, "filters.format"),
        ({"filters": {"format": ""}}, "filters.format"),
        ({"filters": {"date_range": "2025"}}, "filters.date_range"),
        ({"filters": {"date_range": {"from": "2025-01-01"}}}, "filters.date_range.from"),
        ({"filters": {"date_range": {"start": "yesterday"}}}, "filters.date_range.start"),
        ({"filters": {"date_range": {"end": "2025-02-30"}}}, "filters.date_range.end"),
        (
            {"filters": {"date_range": {"start": "2025-02-01", "end": "2025-01-31"}}},
            "filters.date_range.end",
        ),
        ({"limit": 5}, "limit"),
    ],
)
async def test_arguments_that_do_not_fit_are_refused(
    knowledge: Knowledge, arguments: dict[str, Any], parameter: str
) -> None:
    """Out of range is refused, not clamped; the parameter is named."""
    refused = await knowledge.refused("knowledge-search", **{"query": "bees", **arguments})
    assert (refused["error"], refused["parameter"]) == ("invalid_parameter", parameter)


@pytest.mark.requirement("N18")
async def test_there_must_be_a_query(knowledge: Knowledge) -> None:
    """The error says which parameter is missing."""
    refused = await knowledge.refused("knowledge-search")
    assert (refused["error"], refused["parameter"]) == ("missing_required_parameter", "query")


@pytest.mark.requirement("N20", "N21", "N22")
async def test_the_bounds_belong_to_what_is_taken(knowledge: Knowledge) -> None:
    """The longest query, the most and the fewest results, both ends of the relevance."""
    await knowledge.added("bees.html", HTML)
    for arguments in (
        {"query": "bees " * 100},
        {"query": "b"},
        {"query": "bees", "top_k": 1},
        {"query": "bees", "top_k": 50},
        {"query": "bees", "min_relevance": 0},
        {"query": "bees", "min_relevance": 1.0},
        {"query": "bees", "filters": {}},
        {"query": "bees", "filters": {"date_range": {}}},
    ):
        await knowledge.ok("knowledge-search", **arguments)


@pytest.mark.requirement("N21")
async def test_ten_results_unless_told_otherwise(knowledge: Knowledge) -> None:
    """The best ones."""
    for number in range(12):
        await knowledge.added(f"{number}.html", f"<p>Bees number {number}</p>")
    assert len((await knowledge.ok("knowledge-search", query="bees"))["results"]) == 10
    assert len((await knowledge.ok("knowledge-search", query="bees", top_k=12))["results"]) == 12
    assert len((await knowledge.ok("knowledge-search", query="bees", top_k=3))["results"]) == 3


@pytest.mark.requirement("N29")
async def test_results_under_the_relevance_are_dropped(knowledge: Knowledge) -> None:
    """Those at it stay."""
    await knowledge.added("bees.html", HTML)
    await knowledge.added("warm.html", "<p>It is warm in many a summer, and in some autumns too.</p>")
    scores = [
        result["relevance_score"]
        for result in (await knowledge.ok("knowledge-search", query="bees keep warm"))["results"]
    ]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] > scores[1]
    kept = await knowledge.ok("knowledge-search", query="bees keep warm", min_relevance=scores[0])
    assert [result["relevance_score"] for result in kept["results"]] == [scores[0]]


@pytest.mark.requirement("N23", "N29")
@pytest.mark.parametrize("form", ["pdf", "PDF", ".pdf"])
async def test_a_format_is_a_filter(knowledge: Knowledge, form: str) -> None:
    await knowledge.added("bees.html", HTML)
    pdf = await knowledge.added("bees.pdf", pdf_of([["Bees keep warm in a cluster."]]))
    told = await knowledge.ok("knowledge-search", query="bees", filters={"format": form})
    assert [result["document_id"] for result in told["results"]] == [pdf]


@pytest.mark.requirement("N23", "N29")
@pytest.mark.parametrize(
    ("days", "found"),
    [
        ({"start": "2026-01-01", "end": "2026-01-01"}, True),
        ({"start": "2026-01-01"}, True),
        ({"end": "2026-01-01"}, True),
        ({"end": "2025-12-31"}, False),
        ({"start": "2026-01-02"}, False),
    ],
)
async def test_the_range_of_dates_has_both_its_days(
    knowledge: Knowledge, days: dict[str, str], found: bool
) -> None:
    """Added on the evening of 1 January, in UTC: the last day is all of it."""
    knowledge.engine.clock.advance(23 * 3600 - knowledge.engine.clock.elapsed())
    await knowledge.added("bees.html", HTML)
    told = await knowledge.ok("knowledge-search", query="bees", filters={"date_range": days})
    assert bool(told["results"]) is found


async def test_an_engine_out_of_reach_is_an_error_in_this_toolset_too(knowledge: Knowledge) -> None:
    """With `success: false`, like all its errors, and in the terms of these tools."""
    knowledge.engine.faults.arm("embedder_unavailable", operation="search")
    refused = await knowledge.refused("knowledge-search", query="bees")
    assert refused["error"] in ("embedder_unavailable", "engine_busy")
    assert "kb_" not in refused["message"]
