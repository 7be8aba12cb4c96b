"""`kb_get`, and the document tools of `kb-extra`."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

import pytest

from kb_simulator.engine.commits import NO_TEXT
from tests.support.server_fixtures import ToolCaller
from tests.support.simulated_engine import SimulatedEngine

LONG = "\n\n".join(f"# Part {part}\n\n" + f"word{part} " * 200 for part in range(25))


def texts(engine: SimulatedEngine) -> list[str]:
    return [chunk.text for chunk in engine.state.documents.by_id[1].chunks]


@pytest.mark.requirement("K47", "K48", "E8")
async def test_by_id_it_answers_with_details_and_chunks(engine: SimulatedEngine, tools: ToolCaller) -> None:
    engine.add("collection:memory", text="# One\n\ntext\n\n# Two\n\ntext")
    answer = await tools.ok("kb_get", document_id=1)
    (request,) = engine.journal.requests("getDocument")
    assert (request.method, request.target) == ("GET", "/api/v1/documents/1")
    assert answer["id"] == 1
    assert [chunk["text"] for chunk in answer["chunks"]] == texts(engine)
    assert len(answer["chunks"]) == 2
    assert "next_chunk_offset" not in answer


@pytest.mark.requirement("K49", "E8")
async def test_by_source_path_it_lists_the_documents(engine: SimulatedEngine, tools: ToolCaller) -> None:
    path = "memory/feedback_testing.md"
    engine.add("collection:memory", source_path=path)
    engine.add(source_path="other.md")
    answer = await tools.ok("kb_get", source_path=path)
    (request,) = engine.journal.requests("listDocuments")
    assert (request.path, parse_qs(request.query)) == ("/api/v1/documents", {"source_path": [path]})
    assert [document["source_path"] for document in answer["documents"]] == [path]
    assert answer["total"] == 1
    assert "chunks" not in answer


async def test_by_collection_it_lists_the_documents_newest_first(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    first = engine.add("collection:memory", source_path="a.md")
    second = engine.add("collection:memory")
    engine.add("collection:workspace", source_path="a.md")
    answer = await tools.ok("kb_get", collection="memory")
    assert [document["id"] for document in answer["documents"]] == [second.id, first.id]
    assert answer["total"] == 2
    assert "text" not in answer["documents"][0]
    narrowed = await tools.ok("kb_get", collection="memory", source_path="a.md")
    assert [document["id"] for document in narrowed["documents"]] == [first.id]
    short = await tools.ok("kb_get", collection="memory", max_chars=100)
    assert (len(short["documents"]), short["next_offset"]) == (1, 1)
    rest = await tools.ok("kb_get", collection="memory", offset=1)
    assert [document["id"] for document in rest["documents"]] == [first.id]


@pytest.mark.parametrize("other", [{"document_id": 1}, {"citation": "x"}])
async def test_a_collection_beside_a_document_is_a_contradiction(
    tools: ToolCaller, other: dict[str, Any]
) -> None:
    assert (await tools.refused("kb_get", collection="memory", **other))["error"] == "contradiction"


async def test_an_unknown_collection_lists_the_existing_ones(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    engine.add("collection:memory")
    answer = await tools.ok("kb_get", collection="memories")
    assert answer["documents"] == []
    assert "There is no collection 'memories'. Collections: memory." in answer["hint"]


async def test_by_source_path_it_pages_and_stays_within_its_bound(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    """Omissions are reported, and every page has at least one document."""
    for number in range(150):
        engine.add(f"collection:c{number}", source_path="p", title="x" * 200)
    first = await tools.ok("kb_get", source_path="p", max_chars=2_000)
    shown = len(first["documents"])
    assert 1 <= shown < 10
    assert (first["total"], first["next_offset"]) == (150, shown)
    assert f"offset={shown}" in first["hint"]
    second = await tools.ok("kb_get", source_path="p", offset=shown, max_chars=100)
    assert [document["id"] for document in second["documents"]] == [150 - shown]
    last = await tools.ok("kb_get", source_path="p", offset=149)
    assert len(last["documents"]) == 1
    assert "next_offset" not in last


@pytest.mark.requirement("K50")
@pytest.mark.parametrize("by", [{"document_id": 1}, {"source_path": "p"}])
@pytest.mark.parametrize("collection", ["memory", None])
async def test_the_collection_stands_beside_the_tags(
    engine: SimulatedEngine, tools: ToolCaller, by: dict[str, Any], collection: str | None
) -> None:
    engine.add(*([f"collection:{collection}"] if collection else []), "feedback", source_path="p")
    answer = await tools.ok("kb_get", **by)
    shown = answer["documents"][0] if "documents" in answer else answer
    assert (shown["collection"], shown["tags"]) == (collection, ["feedback"])


async def cited(tools: ToolCaller, query: str) -> str:
    (result,) = (await tools.ok("kb_search", query=query, top=1))["results"]
    citation: str = result["citation"]
    return citation


async def test_a_citation_of_kb_search_is_checked(engine: SimulatedEngine, tools: ToolCaller) -> None:
    """It survives changes elsewhere in the text, and is renewed if the quote has moved."""
    document = engine.add(text="Pensions are revalued.")
    citation = await cited(tools, "pensions")
    answer = await tools.ok("kb_get", citation=citation)
    assert (answer["citation_status"], answer["citation"]) == ("there", citation)
    assert (answer["id"], answer["version"], answer["text"]) == (1, 1, "Pensions are revalued.")
    await tools.ok("kb_update_note", document_id=document.id, text="In spring: Pensions are revalued.")
    moved = await tools.ok("kb_get", citation=citation)
    assert (moved["citation_status"], moved["text"]) == ("moved", "Pensions are revalued.")
    assert moved["citation"] != citation
    assert "this citation" in moved["hint"]
    await tools.ok("kb_update_note", document_id=document.id, text="Pensions are paid.")
    changed = await tools.ok("kb_get", citation=citation)
    assert (changed["citation_status"], "citation" in changed, "text" in changed) == ("changed", False, False)
    await tools.ok("kb_delete", document_id=document.id)
    gone = await tools.ok("kb_get", citation=citation)
    assert (gone["citation_status"], "id" in gone) == ("gone", False)


async def test_an_invalid_citation_is_refused_with_advice(engine: SimulatedEngine, tools: ToolCaller) -> None:
    refused = await tools.refused("kb_get", citation="[1]")
    assert (refused["error"], refused["parameter"]) == ("invalid_parameter", "citation")
    assert "exactly as kb_search returned it" in refused["message"]
    assert engine.journal.requests() == []


async def test_a_source_path_of_nothing_is_an_empty_list(tools: ToolCaller) -> None:
    """With a hint instead of an error, because the question is whether a document exists."""
    answer = await tools.ok("kb_get", source_path="none.md")
    assert (answer["documents"], answer["total"]) == ([], 0)
    assert "kb_search" in answer["hint"]


async def test_a_long_document_comes_in_parts(engine: SimulatedEngine, tools: ToolCaller) -> None:
    engine.add(text=LONG)
    read: list[str] = []
    arguments: dict[str, Any] = {}
    while True:
        answer = await tools.ok("kb_get", document_id=1, max_chars=5_000, chunk_limit=20, **arguments)
        read += [chunk["text"] for chunk in answer["chunks"]]
        if "next_chunk_offset" not in answer:
            break
        assert f"chunk_offset={answer['next_chunk_offset']}" in answer["hint"]
        arguments = {"chunk_offset": answer["next_chunk_offset"]}
    assert len(read) > 20
    assert read == texts(engine)


async def test_an_offset_beyond_the_end_is_answered_with_the_number(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    engine.add("collection:memory", text="granite")
    for offset in (1, 7):
        beyond = await tools.ok("kb_get", document_id=1, chunk_offset=offset)
        assert (beyond["chunks"], "next_chunk_offset" in beyond) == ([], False)
        assert f"ends before chunk_offset={offset}; its number of chunks is 1." in beyond["hint"]
        beyond = await tools.ok("kb_get", collection="memory", offset=offset)
        assert (beyond["documents"], beyond["total"], "next_offset" in beyond) == ([], 1, False)
        assert f"ends before offset={offset}; its number of documents is 1." in beyond["hint"]


async def test_a_chunk_over_the_bound_is_cut_and_says_so(engine: SimulatedEngine, tools: ToolCaller) -> None:
    """A result without text would be requested again and again."""
    engine.add(text="x" * 500)
    answer = await tools.ok("kb_get", document_id=1, max_chars=100)
    (chunk,) = answer["chunks"]
    assert (len(chunk["text"]), chunk["truncated"]) == (100, True)
    assert "raise max_chars" in answer["hint"]


async def test_a_document_without_text_says_why(engine: SimulatedEngine, tools: ToolCaller) -> None:
    """A scan without recognized text never looks like a success."""
    engine.add(text=" ", doc_type="pdf")
    answer = await tools.ok("kb_get", document_id=1)
    assert NO_TEXT in answer["hint"]


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("kb_get", {"document_id": 1}),
        ("kb_get", {"source_path": "p"}),
        ("kb_update_note", {"document_id": 1, "text": "x"}),
    ],
)
async def test_a_document_in_several_collections_is_repaired_on_sight(
    engine: SimulatedEngine, tools: ToolCaller, tool: str, arguments: dict[str, Any]
) -> None:
    """The last added one stays; the result shows the current state, with its version."""
    engine.add("collection:a", "x", "collection:b", source_path="p")
    answer = await tools.ok(tool, **arguments)
    shown = answer["documents"][0] if "documents" in answer else answer
    document = engine.document()
    assert (shown["collection"], shown["tags"], shown["version"]) == ("b", ["x"], document.version)
    assert document.tags == ["x", "collection:b"]


@pytest.mark.requirement("K59")
async def test_any_document_can_be_moved(engine: SimulatedEngine, tools: ToolCaller) -> None:
    engine.add("collection:documents", "insurance", doc_type="pdf")
    answer = await tools.ok("kb_move", document_id=1, collection="memory")
    assert (answer["collection"], answer["tags"]) == ("memory", ["insurance"])
    assert [method for method, _ in engine.journal.changes()] == ["DELETE", "POST"]


async def test_a_document_can_be_deleted(engine: SimulatedEngine, tools: ToolCaller) -> None:
    engine.add(text="hello")
    answer = await tools.ok("kb_delete", document_id=1)
    assert answer == {"document_id": 1, "documents": 1, "chunks": 1, "bytes": 5}
    assert (await tools.refused("kb_delete", document_id=1))["error"] == "document_not_found"


async def test_collections_are_listed_apart_from_tags(engine: SimulatedEngine, tools: ToolCaller) -> None:
    engine.add("collection:memory", "feedback")
    engine.add("collection:memory")
    answer = await tools.ok("kb_tags")
    assert answer["collections"] == [{"collection": "memory", "documents": 2, "chunks": 2}]
    assert answer["tags"] == [{"tag": "feedback", "documents": 1, "chunks": 1}]
