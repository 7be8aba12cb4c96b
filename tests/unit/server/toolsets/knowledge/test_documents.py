"""`knowledge-show`, `knowledge-remove` and `knowledge-clear`."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from kb_contracts.api.models import NoteRequest
from kb_contracts.api.operations import CREATE_JOB
from kb_simulator import Stuck
from tests.support.knowledge import Knowledge

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


async def test_what_other_tools_have_added_is_shown_too(knowledge: Knowledge) -> None:
    await knowledge.services.engine.call(CREATE_JOB, body=NoteRequest(text="Bees", title="On bees"))
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
    ids = [await knowledge.added(f"{name}.html") for name in "abc"]
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


@pytest.mark.requirement("N38", "N39", "N40", "N41", "N84")
@pytest.mark.parametrize(
    ("arguments", "parameter"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 1001}, "limit"),
        ({"limit": "10"}, "limit"),
        ({"offset": -1}, "offset"),
        ({"offset": 1.5}, "offset"),
        ({"sort_by": "title"}, "sort_by"),
        ({"sort_by": 1}, "sort_by"),
        ({"sort_order": "up"}, "sort_order"),
        ({"page": 1}, "page"),
    ],
)
async def test_what_a_list_does_not_take_is_refused(
    knowledge: Knowledge, arguments: dict[str, Any], parameter: str
) -> None:
    refused = await knowledge.refused("knowledge-show", **arguments)
    assert (refused["error"], refused["parameter"]) == ("invalid_parameter", parameter)


async def test_the_longest_page_is_taken(knowledge: Knowledge) -> None:
    assert (await knowledge.ok("knowledge-show", limit=1000))["limit"] == 1000


# --- knowledge-remove -----------------------------------------------------------------------------


@pytest.mark.requirement("N33")
async def test_a_document_is_removed(knowledge: Knowledge) -> None:
    other = await knowledge.added("other.html")
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
@pytest.mark.parametrize("document_id", [NOBODY, "uuid-v4-doc-id", "1", " "])
@pytest.mark.parametrize("confirm", [True, False])
async def test_a_document_that_is_not_there_is_not_found(
    knowledge: Knowledge, document_id: str, confirm: bool
) -> None:
    """By its id, which is a UUID: the engine's own numbers are none."""
    await knowledge.added("bees.html")
    assert await knowledge.refused("knowledge-remove", document_id=document_id, confirm=confirm) == {
        "success": False,
        "error": "document_not_found",
        "message": f"Document with ID '{document_id}' not found",
        "document_id": document_id,
    }


@pytest.mark.requirement("N31", "N32", "N84")
@pytest.mark.parametrize(
    ("arguments", "error", "parameter"),
    [
        ({}, "missing_required_parameter", "document_id"),
        ({"document_id": 5}, "invalid_parameter", "document_id"),
        ({"document_id": ""}, "invalid_parameter", "document_id"),
        ({"document_id": "x" * 101}, "invalid_parameter", "document_id"),
        ({"document_id": NOBODY, "confirm": "yes"}, "invalid_parameter", "confirm"),
        ({"document_id": NOBODY, "force": True}, "invalid_parameter", "force"),
    ],
)
async def test_what_a_removal_does_not_take_is_refused(
    knowledge: Knowledge, arguments: dict[str, Any], error: str, parameter: str
) -> None:
    refused = await knowledge.refused("knowledge-remove", **arguments)
    assert (refused["error"], refused["parameter"]) == (error, parameter)


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
    """Nothing comes into a base after it was cleared that was on its way before."""
    knowledge.engine.set_policy(Stuck())
    task = await knowledge.ok("knowledge-add", file_path=knowledge.file("a.html"))
    await knowledge.ok("knowledge-clear", confirm=True, confirmation_phrase="DELETE ALL")
    told = await knowledge.ok("knowledge-task-status", task_id=task["task_id"])
    assert told["status"] == "cancelled"


@pytest.mark.requirement("N47", "N48", "N50", "N51")
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"confirm": True},
        {"confirmation_phrase": "DELETE ALL"},
        {"confirm": False, "confirmation_phrase": "DELETE ALL"},
        {"confirm": True, "confirmation_phrase": "delete all"},
        {"confirm": True, "confirmation_phrase": "DELETE ALL "},
        {"confirm": True, "confirmation_phrase": ""},
    ],
)
async def test_nothing_is_cleared_without_both_confirmations(
    knowledge: Knowledge, arguments: dict[str, Any]
) -> None:
    await knowledge.added("a.html")
    assert await knowledge.refused("knowledge-clear", **arguments) == {
        "success": False,
        "error": "confirmation_required",
        "message": (
            "This action will delete ALL documents. Set confirm=true and confirmation_phrase='DELETE ALL' to "
            "proceed"
        ),
        "current_document_count": 1,
    }
    assert (await knowledge.ok("knowledge-show"))["total_count"] == 1


@pytest.mark.requirement("N47", "N48", "N84")
@pytest.mark.parametrize(
    ("arguments", "parameter"),
    [
        ({"confirm": "true", "confirmation_phrase": "DELETE ALL"}, "confirm"),
        ({"confirm": True, "confirmation_phrase": True}, "confirmation_phrase"),
        ({"confirm": True, "confirmation_phrase": "DELETE ALL", "collection": "memory"}, "collection"),
    ],
)
async def test_a_confirmation_of_another_type_is_none(
    knowledge: Knowledge, arguments: dict[str, Any], parameter: str
) -> None:
    """Refused by name; nothing is guessed where all is at stake."""
    refused = await knowledge.refused("knowledge-clear", **arguments)
    assert (refused["error"], refused["parameter"]) == ("invalid_parameter", parameter)


async def test_ids_are_those_of_other_answers(knowledge: Knowledge) -> None:
    task = await knowledge.ok("knowledge-add", file_path=knowledge.file("a.html", f"<p>{uuid4()}</p>"))
    made = (await knowledge.ok("knowledge-task-status", task_id=task["task_id"]))["result"]["document_id"]
    assert [each["id"] for each in (await knowledge.ok("knowledge-show"))["documents"]] == [made]
