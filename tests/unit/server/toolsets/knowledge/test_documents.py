"""`knowledge-show`, `knowledge-remove`, `knowledge-clear` and `knowledge-search`."""

from __future__ import annotations

import re
from itertools import product
from typing import Any
from uuid import UUID, uuid4

import pytest

from kb_simulator import Stuck
from tests.support.knowledge import Knowledge
from tests.support.pdfs import pdf_of

HTML = "<h1>Bees</h1><p>Bees keep warm in a cluster.</p>"
NOBODY = "3f0c5d7e-9a53-4f1c-8e2b-0b8f3f2f9b11"


# --- knowledge-show -------------------------------------------------------------------------------


@pytest.mark.requirement("N42", "N43")
async def test_a_document_is_shown_with_its_metadata(knowledge: Knowledge) -> None:
    document = await knowledge.added("bees.html", "<p>Bees</p>")
    told = await knowledge.ok("knowledge-show")
    assert set(told) == {"success", "documents", "total_count", "limit", "offset"}
    assert (told["success"], told["total_count"], told["limit"], told["offset"]) == (True, 1, 100, 0)
    (shown,) = told["documents"]
    assert shown.pop("date_added").startswith("2026-01-01T")
    assert shown == {
        "id": document,
        "filename": "bees.html",
        "format": "html",
        "size_bytes": 11,
        "chunk_count": 1,
        "processing_status": "completed",
        "processing_method": "text_extraction",
    }


async def test_documents_added_by_other_tools_are_shown(knowledge: Knowledge) -> None:
    await knowledge.note("Bees", title="On bees")
    (shown,) = (await knowledge.ok("knowledge-show"))["documents"]
    assert (shown["filename"], shown["format"]) == ("On bees", "note")


async def test_a_document_without_text_does_not_read_as_success(knowledge: Knowledge) -> None:
    path = knowledge.file("empty.html", "<p></p>")
    added = await knowledge.ok("knowledge-add", file_path=path, async_=False)
    assert added["chunks_created"] == 0
    assert added["message"]
    (shown,) = (await knowledge.ok("knowledge-show"))["documents"]
    assert shown["processing_status"] == "empty"


@pytest.mark.requirement("N45")
async def test_an_empty_base_is_a_success_that_says_so(knowledge: Knowledge) -> None:
    told = await knowledge.ok("knowledge-show")
    assert (told["success"], told["documents"], told["total_count"]) == (True, [], 0)
    assert told["message"] == "Knowledge base is empty"


@pytest.mark.requirement("N38", "N39")
async def test_documents_come_page_by_page(knowledge: Knowledge) -> None:
    ids = [await knowledge.note(name) for name in "abc"]
    first = await knowledge.ok("knowledge-show", limit=2)
    rest = await knowledge.ok("knowledge-show", limit=2, offset=2)
    beyond = await knowledge.ok("knowledge-show", offset=3)
    assert [each["id"] for each in first["documents"] + rest["documents"]] == ids[::-1]
    assert {page["total_count"] for page in (first, rest, beyond)} == {3}
    assert beyond["documents"] == []
    assert "message" not in beyond


@pytest.mark.requirement("N40", "N41")
async def test_documents_are_sorted(knowledge: Knowledge) -> None:
    for name, size in (("b", 30), ("c", 10), ("a", 20)):
        await knowledge.added(f"{name}.html", f"<p>{name * size}</p>")

    async def names(**arguments: str) -> str:
        shown = (await knowledge.ok("knowledge-show", **arguments))["documents"]
        return "".join(each["filename"].removesuffix(".html") for each in shown)

    assert await names() == await names(sort_by="date_added", sort_order="desc") == "acb"
    assert await names(sort_by="date_added", sort_order="asc") == "bca"
    assert await names(sort_by="filename", sort_order="asc") == "abc"
    assert await names(sort_by="filename") == "cba"
    assert await names(sort_by="size", sort_order="asc") == "cab"
    assert await names(sort_by="size") == "bac"


async def test_the_longest_page_is_taken(knowledge: Knowledge) -> None:
    assert (await knowledge.ok("knowledge-show", limit=1000))["limit"] == 1000


# --- knowledge-remove -----------------------------------------------------------------------------


@pytest.mark.requirement("N33")
async def test_a_document_is_removed(knowledge: Knowledge) -> None:
    other = await knowledge.note("other")
    document = await knowledge.added("bees.html", "<p>Bees</p>")
    told = await knowledge.ok("knowledge-remove", document_id=document.upper(), confirm=True)
    assert told == {
        "success": True,
        "document_id": document,
        "filename": "bees.html",
        "chunks_removed": 1,
        "message": "Document removed successfully",
    }
    assert [each["id"] for each in (await knowledge.ok("knowledge-show"))["documents"]] == [other]


@pytest.mark.requirement("N32", "N34", "N35")
@pytest.mark.parametrize("arguments", [{}, {"confirm": False}])
async def test_without_a_confirmation_it_is_only_shown(
    knowledge: Knowledge, arguments: dict[str, bool]
) -> None:
    document = await knowledge.added("bees.html", "<p>Bees</p>")
    assert await knowledge.refused("knowledge-remove", document_id=document, **arguments) == {
        "success": False,
        "error": "confirmation_required",
        "message": "Set confirm=true to remove this document",
        "document": {"id": document, "filename": "bees.html", "chunks": 1},
    }
    assert (await knowledge.ok("knowledge-show"))["total_count"] == 1


@pytest.mark.requirement("N31", "N36")
async def test_a_document_that_is_not_there_is_not_found(
    knowledge: Knowledge, subtests: pytest.Subtests
) -> None:
    """By its id, which is a UUID; the engine's own numbers are not accepted."""
    await knowledge.note("bees")
    for document_id, confirm in product((NOBODY, "uuid-v4-doc-id", "1", " "), (True, False)):
        with subtests.test(document_id=document_id, confirm=confirm):
            assert await knowledge.refused("knowledge-remove", document_id=document_id, confirm=confirm) == {
                "success": False,
                "error": "document_not_found",
                "message": f"Document with ID '{document_id}' not found",
                "document_id": document_id,
            }


# --- knowledge-clear ------------------------------------------------------------------------------


@pytest.mark.requirement("N49")
async def test_the_base_is_cleared(knowledge: Knowledge) -> None:
    await knowledge.added("a.html", b"<p>bees</p>" + b" " * (1024 * 1024 - 11))
    await knowledge.added("b.html", b"<p>ants</p>" + b" " * (512 * 1024 - 11))
    told = await knowledge.ok("knowledge-clear", confirm=True, confirmation_phrase="DELETE ALL")
    assert told == {
        "success": True,
        "documents_removed": 2,
        "embeddings_removed": 2,
        "storage_freed_mb": 1.5,
        "message": "Knowledge base cleared successfully",
    }
    assert (await knowledge.ok("knowledge-show"))["total_count"] == 0


async def test_tasks_under_way_are_cancelled_with_it(knowledge: Knowledge) -> None:
    """Pending jobs add no documents to a cleared base."""
    knowledge.engine.set_policy(Stuck())
    task = await knowledge.ok("knowledge-add", file_path=knowledge.file("a.html"))
    await knowledge.ok("knowledge-clear", confirm=True, confirmation_phrase="DELETE ALL")
    told = await knowledge.ok("knowledge-task-status", task_id=task["task_id"])
    assert told["status"] == "cancelled"


@pytest.mark.requirement("N47", "N48", "N50", "N51")
async def test_clearing_needs_both_confirmations(knowledge: Knowledge, subtests: pytest.Subtests) -> None:
    await knowledge.note("a")
    unconfirmed: tuple[dict[str, Any], ...] = (
        {},
        {"confirm": True},
        {"confirmation_phrase": "DELETE ALL"},
        {"confirm": False, "confirmation_phrase": "DELETE ALL"},
        {"confirm": True, "confirmation_phrase": "delete all"},
        {"confirm": True, "confirmation_phrase": "DELETE ALL "},
        {"confirm": True, "confirmation_phrase": ""},
    )
    for arguments in unconfirmed:
        with subtests.test(arguments=arguments):
            assert await knowledge.refused("knowledge-clear", **arguments) == {
                "success": False,
                "error": "confirmation_required",
                "message": (
                    "This action will delete ALL documents. Set confirm=true and "
                    "confirmation_phrase='DELETE ALL' to proceed"
                ),
                "current_document_count": 1,
            }
    assert (await knowledge.ok("knowledge-show"))["total_count"] == 1


async def test_ids_are_those_of_other_answers(knowledge: Knowledge) -> None:
    task = await knowledge.ok("knowledge-add", file_path=knowledge.file("a.html", f"<p>{uuid4()}</p>"))
    made = (await knowledge.ok("knowledge-task-status", task_id=task["task_id"]))["result"]["document_id"]
    assert [each["id"] for each in (await knowledge.ok("knowledge-show"))["documents"]] == [made]


# --- knowledge-search -----------------------------------------------------------------------------


@pytest.mark.requirement("N24", "N25", "N26")
async def test_an_answer_has_the_passages_with_their_documents(knowledge: Knowledge) -> None:
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
    both = await knowledge.added("bees.html", HTML, metadata={"tags": ["insects", "winter"]})
    await knowledge.note("Wasps keep warm in a cluster.", tags=["insects"])
    found = await knowledge.ok("knowledge-search", query="cluster", filters={"tags": ["insects", "winter"]})
    assert [result["document_id"] for result in found["results"]] == [both]
    assert (await knowledge.ok("knowledge-search", query="cluster", filters={"tags": ["insects"]}))[
        "total_results"
    ] == 2


@pytest.mark.requirement("N27")
async def test_no_match_is_a_success_without_results(knowledge: Knowledge) -> None:
    await knowledge.note("bees")
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
async def test_searching_an_empty_base_is_an_error_with_advice(knowledge: Knowledge) -> None:
    assert await knowledge.refused("knowledge-search", query="bees") == {
        "success": False,
        "error": "empty_knowledge_base",
        "message": "Knowledge base is empty. Add documents with knowledge-add first",
        "document_count": 0,
    }


@pytest.mark.requirement("N20", "N21", "N22")
async def test_the_bounds_belong_to_what_is_taken(knowledge: Knowledge) -> None:
    await knowledge.note("bees")
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
    for number in range(12):
        await knowledge.note(f"Bees number {number}")
    assert len((await knowledge.ok("knowledge-search", query="bees"))["results"]) == 10
    assert len((await knowledge.ok("knowledge-search", query="bees", top_k=12))["results"]) == 12
    assert len((await knowledge.ok("knowledge-search", query="bees", top_k=3))["results"]) == 3


@pytest.mark.requirement("N29")
async def test_results_under_the_relevance_are_dropped(knowledge: Knowledge) -> None:
    await knowledge.note("Bees keep warm in a cluster.")
    await knowledge.note("It is warm in many a summer, and in some autumns too.")
    scores = [
        result["relevance_score"]
        for result in (await knowledge.ok("knowledge-search", query="bees keep warm"))["results"]
    ]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] > scores[1]
    kept = await knowledge.ok("knowledge-search", query="bees keep warm", min_relevance=scores[0])
    assert [result["relevance_score"] for result in kept["results"]] == [scores[0]]


@pytest.mark.requirement("N23", "N29")
async def test_a_format_is_a_filter(knowledge: Knowledge, subtests: pytest.Subtests) -> None:
    await knowledge.added("bees.html", HTML)
    pdf = await knowledge.added("bees.pdf", pdf_of([["Bees keep warm in a cluster."]]))
    for form in ("pdf", "PDF", ".pdf"):
        with subtests.test(form=form):
            told = await knowledge.ok("knowledge-search", query="bees", filters={"format": form})
            assert [result["document_id"] for result in told["results"]] == [pdf]


@pytest.mark.requirement("N23", "N29")
async def test_the_range_of_dates_has_both_its_days(knowledge: Knowledge, subtests: pytest.Subtests) -> None:
    """The document was added on the evening of 1 January, in UTC; a range includes all of its last day."""
    knowledge.engine.clock.advance(23 * 3600 - knowledge.engine.clock.elapsed())
    await knowledge.note("Bees keep warm in a cluster.")
    for days, found in (
        ({"start": "2026-01-01", "end": "2026-01-01"}, True),
        ({"start": "2026-01-01"}, True),
        ({"end": "2026-01-01"}, True),
        ({"end": "2025-12-31"}, False),
        ({"start": "2026-01-02"}, False),
    ):
        with subtests.test(days=days):
            told = await knowledge.ok("knowledge-search", query="bees", filters={"date_range": days})
            assert bool(told["results"]) is found


async def test_an_engine_out_of_reach_is_an_error_in_this_toolset_too(knowledge: Knowledge) -> None:
    knowledge.engine.faults.arm("embedder_unavailable", operation="search")
    refused = await knowledge.refused("knowledge-search", query="bees")
    assert refused["error"] in ("embedder_unavailable", "engine_busy")
    assert "kb_" not in refused["message"]
