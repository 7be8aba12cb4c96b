"""What documents promise: read, listed, changed in place, tagged, removed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.contract.caller import LONG, Caller, answered, problem

ABSENT_UID = "00000000-0000-4000-8000-000000000000"
GRANITE = " ".join(f"granite{number}" for number in range(2_000))


async def test_a_document_is_read_with_its_chunks_by_number_and_uid(kb: Caller) -> None:
    """Both keys give the same document."""
    document = await kb.document(await kb.note("granite"))
    assert [chunk["text"] for chunk in document["chunks"]] == ["granite"]
    assert await kb.document(document["uid"]) == document


async def test_chunks_come_slice_by_slice(kb: Caller) -> None:
    """In order, without a gap; their offsets cut the text out of the note."""
    document = await kb.note(GRANITE)
    whole = await kb.document(document)
    assert len(whole["chunks"]) == whole["chunk_count"] > 3
    middle = await kb.document(document, chunk_offset=1, chunk_limit=2)
    assert [chunk["index"] for chunk in middle["chunks"]] == [1, 2]
    assert all(GRANITE[chunk["start"] : chunk["end"]] == chunk["text"] for chunk in whole["chunks"])


async def test_a_document_is_read_without_chunks(kb: Caller) -> None:
    """`chunks=false` spares them; their number is still told."""
    document = await kb.document(await kb.note("granite"), chunks="false")
    assert (document["chunks"], document["chunk_count"]) == ([], 1)


@pytest.mark.requirement("K45")
@pytest.mark.parametrize("key", ["7", ABSENT_UID, "9223372036854775807", "9999999999999999999"])
async def test_an_absent_document_is_not_found(kb: Caller, key: str) -> None:
    """By every operation that takes a document."""
    path = f"/api/v1/documents/{key}"
    problem(await kb.http.get(path), "document_not_found")
    problem(await kb.http.delete(path), "document_not_found")
    problem(await kb.http.post(f"{path}/tags", json={"tags": ["a"]}), "document_not_found")
    problem(await kb.http.delete(f"{path}/tags/a"), "document_not_found")
    if key == "7":
        problem(await kb.patch(7, text="x"), "document_not_found")


@pytest.mark.parametrize("key", ["0", "-1", "007", "abc", "1e3", "%00", ABSENT_UID.upper() + "F"])
async def test_what_is_no_document_key_is_refused(kb: Caller, key: str) -> None:
    """It names the parameter."""
    problem(await kb.http.get(f"/api/v1/documents/{key}"), "invalid_parameter")


async def test_documents_are_filtered(kb: Caller) -> None:
    """By exact source path, by tag, by type."""
    note = await kb.note("granite", tags=["stone"], source_path="memory/feedback_testing.md")
    file = await kb.file("b.md", b"# Basalt", source_path="memory/feedback_testing.md.bak")

    async def ids(**query: Any) -> list[int]:
        return [document["id"] for document in (await kb.documents(**query))["documents"]]

    assert await ids(source_path="memory/feedback_testing.md") == [note]
    assert await ids(tag="stone") == [note]
    assert await ids(doc_type="markdown") == [file]
    assert await ids(tag="absent") == []


async def test_documents_are_sorted_and_paged(kb: Caller) -> None:
    """`total` counts all on every page; newest first where nothing is asked."""
    ids = [await kb.note(text, title=title) for text, title in (("aaa", "b"), ("aa", "c"), ("a", "a"))]
    page = await kb.documents(sort_by="title", sort_order="asc", limit=2)
    assert [document["title"] for document in page["documents"]] == ["a", "b"]
    rest = await kb.documents(sort_by="title", sort_order="asc", limit=2, offset=2)
    assert ([document["title"] for document in rest["documents"]], rest["total"]) == (["c"], 3)
    sizes = await kb.documents(sort_by="size_bytes", sort_order="desc")
    assert [document["size_bytes"] for document in sizes["documents"]] == [3, 2, 1]
    assert [document["id"] for document in (await kb.documents())["documents"]] == ids[::-1]


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 1001}, "limit"),
        ({"offset": -1}, "offset"),
        ({"offset": "x"}, "offset"),
        ({"sort_by": "colour"}, "sort_by"),
        ({"doc_type": "song"}, "doc_type"),
    ],
)
async def test_a_list_refuses_what_does_not_fit(kb: Caller, query: dict[str, Any], parameter: str) -> None:
    """Refused, not clamped."""
    response = await kb.http.get("/api/v1/documents", params=query)
    assert problem(response, "invalid_parameter")["parameter"] == parameter


async def test_a_removed_document_is_gone(kb: Caller) -> None:
    """From the list and from every search; the answer counts what went."""
    document = await kb.note("granite")
    removed = answered(await kb.http.delete(f"/api/v1/documents/{document}"))
    assert (removed["documents"], removed["chunks"], removed["bytes"]) == (1, 1, 7)
    for mode in ("hybrid", "fts", "vector"):
        assert await kb.found("granite", mode=mode) == []
    problem(await kb.http.delete(f"/api/v1/documents/{document}"), "document_not_found")


async def test_clearing_wants_to_be_confirmed(kb: Caller) -> None:
    """Without `confirm`, and with it false, nothing is removed."""
    await kb.note("granite")
    problem(await kb.http.delete("/api/v1/documents"), "confirmation_required")
    problem(await kb.http.delete("/api/v1/documents", params={"confirm": "false"}), "confirmation_required")
    assert (await kb.documents())["total"] == 1


async def test_clearing_removes_all_and_cancels_what_was_accepted_before(kb: Caller) -> None:
    """The running job too; what is accepted afterwards is taken in."""
    await kb.note("granite")
    running = await kb.submit(LONG)
    await kb.started(running)
    waiting = await kb.submit("basalt")
    removed = answered(await kb.http.delete("/api/v1/documents", params={"confirm": "true"}))
    assert (removed["documents"], removed["jobs_cancelled"]) == (1, 2)
    later = await kb.note("marble")
    assert [document["id"] for document in (await kb.documents())["documents"]] == [later]
    for job in (running, waiting):
        assert (await kb.job(job["id"]))["status"] == "cancelled"


@pytest.mark.requirement("E7", "E16", "E20")
async def test_a_patched_note_keeps_its_identity(kb: Caller) -> None:
    """Number, uid, tags, metadata and source path stay."""
    before = await kb.document(await kb.note("granite", tags=["a"], metadata={"k": 1}, source_path="p"))
    after = answered(await kb.patch(before["id"], text="basalt columns"))
    kept = ("id", "uid", "tags", "metadata", "source_path", "source_paths", "doc_type")
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    assert after["size_bytes"] == len("basalt columns")
    assert after["sha256"] != before["sha256"]


@pytest.mark.requirement("E18", "E19")
async def test_a_patched_note_keeps_created_at_and_raises_updated_at(kb: Caller) -> None:
    """And its version."""
    before = await kb.document(await kb.note("granite"))
    after = answered(await kb.patch(before["id"], text="basalt"))
    assert after["created_at"] == before["created_at"]
    assert after["updated_at"] > before["updated_at"]
    assert after["version"] > before["version"]


@pytest.mark.requirement("E17")
async def test_a_patched_note_is_found_by_its_new_text_alone(kb: Caller) -> None:
    """By words and by meaning; it is split anew."""
    document = await kb.note("granite quarry")
    await kb.patch(document, text=GRANITE.replace("granite", "basalt"))
    assert await kb.found("quarry") == []
    assert set(await kb.found("basalt7")) == {document}
    assert (await kb.document(document))["chunk_count"] > 3
    answer = await kb.search("basalt1 basalt2", mode="vector")
    assert "basalt" in answer["results"][0]["chunk"]["text"]


async def test_a_title_from_the_old_text_goes_with_it(kb: Caller) -> None:
    """A title that was given stays."""
    untitled = await kb.note("granite")
    titled = await kb.note("granite quarry", title="Stones")
    assert answered(await kb.patch(untitled, text="basalt"))["title"] == "basalt"
    assert answered(await kb.patch(titled, text="basalt columns"))["title"] == "Stones"


async def test_a_title_alone_is_patched(kb: Caller) -> None:
    """The text stays as it is."""
    document = await kb.note("granite")
    assert answered(await kb.patch(document, title="Stone"))["title"] == "Stone"
    assert (await kb.document(document))["chunks"][0]["text"] == "granite"


@pytest.mark.requirement("K46")
async def test_only_notes_are_patched(kb: Caller) -> None:
    """A file is not."""
    document = await kb.file("a.txt", b"granite")
    problem(await kb.patch(document, text="basalt"), "not_a_note")
    assert await kb.found("granite") == [document]


async def test_a_patch_of_another_version_is_a_conflict(kb: Caller) -> None:
    """It names the current one, with which it goes."""
    document = await kb.document(await kb.note("granite"))
    stale = document["version"] + 5
    conflict = problem(
        await kb.patch(document["id"], text="basalt", expected_version=stale), "version_conflict"
    )
    assert conflict["current_version"] == document["version"]
    answered(await kb.patch(document["id"], text="basalt", expected_version=document["version"]))


async def test_of_patches_at_once_with_a_version_one_wins(kb: Caller) -> None:
    """The others are conflicts, and the note has the winner's text."""
    document = await kb.document(await kb.note("granite"))
    responses = await asyncio.gather(
        *(
            kb.patch(document["id"], text=f"basalt{number}", expected_version=document["version"])
            for number in range(5)
        )
    )
    won = [number for number, response in enumerate(responses) if response.status_code == 200]
    assert len(won) == 1
    assert {response.status_code for response in responses} == {200, 409}
    assert (await kb.document(document["id"]))["chunks"][0]["text"] == f"basalt{won[0]}"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "missing_parameter"),
        ({"text": " \n "}, "invalid_parameter"),
        ({"text": ""}, "invalid_parameter"),
        ({"title": ""}, "invalid_parameter"),
        ({"tags": ["a"]}, "unknown_parameter"),
        ({"text": "x", "expected_version": 0}, "invalid_parameter"),
    ],
)
async def test_a_patch_that_does_not_fit_is_refused(kb: Caller, body: dict[str, Any], code: str) -> None:
    """And changes nothing."""
    document = await kb.document(await kb.note("granite"))
    problem(await kb.patch(document["id"], **body), code)
    assert await kb.document(document["id"]) == document


async def test_tags_are_added_and_taken_off(kb: Caller) -> None:
    """Each change raises the version, and searches follow."""
    document = await kb.document(await kb.note("granite", tags=["a"]))
    path = f"/api/v1/documents/{document['id']}/tags"
    added = answered(await kb.http.post(path, json={"tags": ["b", "collection:memory"]}))
    assert sorted(added["tags"]) == ["a", "b", "collection:memory"]
    assert added["version"] > document["version"]
    assert await kb.found("granite", tags=["b"]) == [document["id"]]
    taken = answered(await kb.http.delete(f"{path}/a"))
    assert sorted(taken["tags"]) == ["b", "collection:memory"]
    assert await kb.found("granite", tags=["a"]) == []


async def test_adding_tags_that_stand_changes_nothing(kb: Caller) -> None:
    """Not even the version."""
    document = await kb.document(await kb.note("granite", tags=["a"]))
    again = answered(await kb.http.post(f"/api/v1/documents/{document['id']}/tags", json={"tags": ["a"]}))
    assert again["version"] == document["version"]


async def test_a_tag_that_is_not_there_cannot_be_taken_off(kb: Caller) -> None:
    """The document is there, the tag is not."""
    document = await kb.note("granite")
    problem(await kb.http.delete(f"/api/v1/documents/{document}/tags/a"), "tag_not_found")


async def test_an_odd_tag_travels_in_a_path(kb: Caller) -> None:
    """Percent-encoded, it is the tag it was."""
    document = await kb.note("granite", tags=["größe 100% & ?"])
    answered(await kb.http.delete(f"/api/v1/documents/{document}/tags/gr%C3%B6%C3%9Fe%20100%25%20%26%20%3F"))
    assert (await kb.document(document))["tags"] == []


async def test_tag_changes_honour_if_match(kb: Caller) -> None:
    """Another version is a conflict that names the current one."""
    document = await kb.document(await kb.note("granite", tags=["a"]))
    path = f"/api/v1/documents/{document['id']}/tags"
    stale = {"If-Match": f'"{document["version"] + 1}"'}
    for response in (
        await kb.http.post(path, json={"tags": ["b"]}, headers=stale),
        await kb.http.delete(f"{path}/a", headers=stale),
    ):
        assert problem(response, "version_conflict")["current_version"] == document["version"]
    current = {"If-Match": f'"{document["version"]}"'}
    moved = await kb.http.delete(f"{path}/a", headers=current)
    assert answered(moved)["tags"] == []
    assert moved.headers["ETag"] == f'"{moved.json()["version"]}"'


@pytest.mark.parametrize("value", ["*", 'W/"1"', "x", "", "0", "-1", "1" * 30])
async def test_an_if_match_that_is_no_version_is_refused(kb: Caller, value: str) -> None:
    """It names the header."""
    document = await kb.note("granite")
    response = await kb.http.post(
        f"/api/v1/documents/{document}/tags", json={"tags": ["a"]}, headers={"If-Match": value}
    )
    assert problem(response, "invalid_parameter")["parameter"] == "If-Match"


async def test_of_moves_at_once_with_if_match_one_wins(kb: Caller) -> None:
    """Two moves cannot leave two collections."""
    document = await kb.document(await kb.note("granite"))
    headers = {"If-Match": str(document["version"])}
    path = f"/api/v1/documents/{document['id']}/tags"
    responses = await asyncio.gather(
        *(
            kb.http.post(path, json={"tags": [f"collection:c{number}"]}, headers=headers)
            for number in range(5)
        )
    )
    assert sorted(response.status_code for response in responses) == [200, 409, 409, 409, 409]
    assert len((await kb.document(document["id"]))["tags"]) == 1


async def test_tags_are_listed_with_their_counts(kb: Caller) -> None:
    """In alphabetical order, by prefix, page by page."""
    await kb.note("granite", tags=["a", "collection:memory"])
    await kb.note("basalt", tags=["a"])
    tags = answered(await kb.http.get("/api/v1/tags"))
    assert [(tag["tag"], tag["documents"], tag["chunks"]) for tag in tags["tags"]] == [
        ("a", 2, 2),
        ("collection:memory", 1, 1),
    ]
    by_prefix = answered(await kb.http.get("/api/v1/tags", params={"prefix": "collection:"}))
    assert ([tag["tag"] for tag in by_prefix["tags"]], by_prefix["total"]) == (["collection:memory"], 1)
    second = answered(await kb.http.get("/api/v1/tags", params={"limit": 1, "offset": 1}))
    assert ([tag["tag"] for tag in second["tags"]], second["total"]) == (["collection:memory"], 2)


@pytest.mark.parametrize("prefix", ["%", "_", "*", "[", "'"])
async def test_a_prefix_is_not_a_pattern(kb: Caller, prefix: str) -> None:
    """No character of it stands for others."""
    await kb.note("granite", tags=["abc"])
    assert answered(await kb.http.get("/api/v1/tags", params={"prefix": prefix}))["tags"] == []
