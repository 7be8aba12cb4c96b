"""Promises on documents: read, listed, changed in place, tagged, removed."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest

from kb_contracts.api import models as m
from kb_contracts.api import operations as ops
from kb_verify.client import Client, decode, long_note, problem, skip_as_too_fast, together

ABSENT_UID = "00000000-0000-4000-8000-000000000000"
GRANITE = " ".join(f"granite{number}" for number in range(2_000))


def test_a_document_is_read_with_its_chunks_by_number_and_uid(kb: Client) -> None:
    document = kb.stored_note("granite")
    assert [chunk.text for chunk in document.chunks] == ["granite"]
    assert kb.document(document.uid) == document


def test_chunks_come_slice_by_slice(kb: Client) -> None:
    """In order, without a gap; their offsets match the text of the note."""
    document = kb.note(GRANITE)
    whole = kb.document(document, chunk_limit=1000)
    assert len(whole.chunks) == whole.chunk_count > 3
    assert [chunk.index for chunk in whole.chunks] == list(range(whole.chunk_count))
    middle = kb.document(document, chunk_offset=1, chunk_limit=2)
    assert [chunk.index for chunk in middle.chunks] == [1, 2]
    texts = [chunk.text for chunk in whole.chunks]
    assert [GRANITE[chunk.start : chunk.end] for chunk in whole.chunks] == texts


def test_a_document_is_read_without_chunks(kb: Client) -> None:
    """`chunks=false` omits them; their number is still in the response."""
    document = kb.document(kb.note("granite"), chunks="false")
    assert (document.chunks, document.chunk_count) == ([], 1)


def test_a_note_is_read_as_it_was_sent(kb: Client) -> None:
    """If `text` is requested: with the white space that chunks omit, and current after a change."""
    sent = f"\n  granite\n\n\n{GRANITE}\r\n\tbasalt \n"
    note, file = kb.note(sent), kb.file("b.md", b"# Basalt")
    params = {"text": "true", "chunk_limit": 1}
    assert kb.document(note, **params).text == sent
    assert kb.document(note).text is msgspec.UNSET
    assert kb.document(file, **params).text is msgspec.UNSET
    kb.refused("document_not_found", ops.GET_DOCUMENT, 7_000_000, params=params)
    kb.patched(note, text="\ngneiss\n")
    assert kb.document(note, **params).text == "\ngneiss\n"


def test_similar_notes_are_named_with_a_note(kb: Client) -> None:
    """If `similar` asks for it: the most similar first, without the note itself, files or other subjects."""
    text = "Granite is quarried in the north of the valley"
    first = kb.note(text, dedup_scope="first")
    kb.file("granite.md", text.encode())
    kb.note("basalt columns stand beside a lighthouse")
    note = kb.note(f"{text}\n", dedup_scope="second")
    found = kb.document(note, similar=3, chunks="false").similar
    assert found is not msgspec.UNSET
    assert [(each.id, each.first_line) for each in found] == [(first, text)]
    assert found[0].score == pytest.approx(1, abs=1e-3)
    kb.note(text, dedup_scope="third")
    found = kb.document(note, similar=1).similar
    assert found is not msgspec.UNSET
    assert [each.id for each in found] == [first]
    assert kb.document(note).similar is msgspec.UNSET


def test_a_file_has_no_similar_notes(kb: Client) -> None:
    kb.note("granite")
    file = kb.file("granite.md", b"granite")
    assert kb.document(file, similar=3).similar is msgspec.UNSET
    refused = kb.refused("invalid_parameter", ops.GET_DOCUMENT, file, params={"similar": 11})
    assert refused.parameter == "similar"


@pytest.mark.requirement("K45")
@pytest.mark.parametrize("key", ["7", ABSENT_UID, "9223372036854775807", "9999999999999999999"])
def test_an_absent_document_is_not_found(kb: Client, key: str) -> None:
    kb.refused("document_not_found", ops.GET_DOCUMENT, key)
    kb.refused("document_not_found", ops.DELETE_DOCUMENT, key)
    kb.refused("document_not_found", ops.ADD_TAGS, key, json={"tags": ["a"]})
    kb.refused("document_not_found", ops.REMOVE_TAG, key, "a")
    if key == "7":
        problem(kb.patch(7, text="x"), "document_not_found")


@pytest.mark.parametrize("key", ["0", "-1", "007", "abc", "1e3", "%00", ABSENT_UID.upper() + "F"])
def test_what_is_no_document_key_is_refused(kb: Client, key: str) -> None:
    response = kb.http.get(f"/api/v1/documents/{key}")
    assert problem(response, "invalid_parameter").parameter == "document_id"


def test_documents_are_filtered(kb: Client) -> None:
    note = kb.note("granite", tags=["stone"], source_path="memory/feedback_testing.md")
    file = kb.file("b.md", b"# Basalt", source_path="memory/feedback_testing.md.bak")
    assert kb.listed(source_path="memory/feedback_testing.md") == [note]
    assert kb.listed(tag="stone") == [note]
    assert kb.listed(doc_type="markdown") == [file]
    assert kb.listed(tag="absent") == []


def test_documents_are_sorted(kb: Client) -> None:
    """By title and size in both directions; newest first by default."""
    ids = [kb.note(text, title=title) for text, title in (("aaa", "b"), ("aa", "c"), ("a", "a"))]
    by_title = kb.call(ops.LIST_DOCUMENTS, params={"sort_by": "title", "sort_order": "asc"}).documents
    assert [document.title for document in by_title] == ["a", "b", "c"]
    by_size = kb.call(ops.LIST_DOCUMENTS, params={"sort_by": "size_bytes", "sort_order": "desc"}).documents
    assert [document.size_bytes for document in by_size] == [3, 2, 1]
    assert kb.listed(sort_by="created_at", sort_order="asc") == ids
    assert kb.listed() == ids[::-1]


def test_documents_are_sorted_by_filename(kb: Client) -> None:
    """A note has no filename and is sorted among the files by its title."""
    last, first = kb.file("c.md", b"# Basalt"), kb.file("a.md", b"# Granite", title="z")
    note = kb.note("slate", title="b")
    assert kb.listed(sort_by="filename", sort_order="asc") == [first, note, last]
    assert kb.listed(sort_by="filename", sort_order="desc") == [last, note, first]


def test_documents_are_listed_by_several_tags(kb: Client) -> None:
    """Separated by commas, all must match; so also by a tag within a collection."""
    both = kb.note("granite one", tags=["collection:memory", "stone"])
    kb.note("granite two", tags=["collection:memory"])
    kb.note("granite three", tags=["stone"])
    assert kb.listed(tag="collection:memory,stone") == [both]
    assert kb.listed(tag="stone,collection:memory,stone") == [both]
    kb.refused("invalid_parameter", ops.LIST_DOCUMENTS, params={"tag": "stone,"})


def test_documents_come_page_by_page(kb: Client) -> None:
    """`total` counts all on every page, and no page repeats a document of another."""
    ids = [kb.note(f"granite {number}") for number in range(3)]
    first = kb.call(ops.LIST_DOCUMENTS, params={"sort_by": "created_at", "sort_order": "asc", "limit": 2})
    rest = kb.call(
        ops.LIST_DOCUMENTS, params={"sort_by": "created_at", "sort_order": "asc", "limit": 2, "offset": 2}
    )
    assert [document.id for document in first.documents + rest.documents] == ids
    assert (first.total, rest.total) == (3, 3)
    assert (first.limit, first.offset, rest.offset) == (2, 0, 2)


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
def test_a_list_refuses_what_does_not_fit(kb: Client, query: dict[str, Any], parameter: str) -> None:
    """Refused, not clamped."""
    kb.refused("invalid_parameter", ops.LIST_DOCUMENTS, params=query, parameter=parameter)


def test_a_removed_document_is_gone(kb: Client) -> None:
    """From the list and from every search; the response counts the removed documents."""
    document = kb.note("granite")
    removed = kb.call(ops.DELETE_DOCUMENT, document)
    assert (removed.documents, removed.chunks, removed.bytes) == (1, 1, 7)
    for mode in ("hybrid", "fts", "vector"):
        assert kb.found("granite", mode=mode) == []
    assert kb.listed() == []
    kb.refused("document_not_found", ops.DELETE_DOCUMENT, document)


def test_a_document_is_removed_by_its_uid(kb: Client) -> None:
    stays, goes = kb.note("granite"), kb.stored_note("basalt")
    assert kb.call(ops.DELETE_DOCUMENT, goes.uid).documents == 1
    assert kb.listed() == [stays]


def test_a_removal_honours_if_match(kb: Client) -> None:
    document = kb.stored_note("granite")
    stale, current = ({"If-Match": f'"{document.version + more}"'} for more in (1, 0))
    refused = kb.request(ops.DELETE_DOCUMENT, document.id, headers=stale)
    assert problem(refused, "version_conflict").current_version == document.version
    assert kb.document(document.id) == document
    assert kb.call(ops.DELETE_DOCUMENT, document.id, headers=current).documents == 1


@pytest.mark.parametrize("name", ["id", "uid"])
def test_a_removal_names_its_document(kb: Client, name: str) -> None:
    """By number and uid, for both kinds of address; an earlier engine omits both."""
    one, other = kb.stored_note("granite"), kb.stored_note("basalt", source_path="a.md")
    path = {"source_path": "a.md"}
    for document, removed in (
        (one, kb.call(ops.DELETE_DOCUMENT, getattr(one, name))),
        (other, kb.call(ops.REMOVE_SOURCE, getattr(other, name), params=path)),
    ):
        assert removed.document_id in (document.id, msgspec.UNSET)
        assert removed.document_uid in (document.uid, msgspec.UNSET)


def test_clearing_wants_to_be_confirmed(kb: Client) -> None:
    kb.note("granite")
    kb.refused("confirmation_required", ops.CLEAR_DOCUMENTS)
    kb.refused("confirmation_required", ops.CLEAR_DOCUMENTS, params={"confirm": "false"})
    assert kb.call(ops.LIST_DOCUMENTS).total == 1


def test_clearing_removes_all(kb: Client) -> None:
    """The response counts the removed documents; later submissions are accepted."""
    kb.note("granite")
    kb.note("basalt quarry")
    removed = kb.clear()
    assert (removed.documents, removed.chunks, removed.bytes) == (2, 2, len("granite" + "basalt quarry"))
    later = kb.note("marble")
    assert kb.listed() == [later]
    assert kb.found("granite") == []


def test_clearing_cancels_what_was_accepted_before(kb: Client) -> None:
    """A job that was accepted before and had not ended makes no document."""
    jobs = [kb.submit(long_note(number)) for number in range(3)]
    removed = kb.clear()
    states = [kb.ended(job).status for job in jobs]
    assert states.count("cancelled") == removed.jobs_cancelled
    assert kb.call(ops.LIST_DOCUMENTS).total == 0
    if not removed.jobs_cancelled:
        skip_as_too_fast("three long notes were taken in before the base could be cleared")


@pytest.mark.requirement("E7", "E16", "E20")
def test_a_patched_note_keeps_its_identity(kb: Client) -> None:
    before = kb.stored_note("granite", tags=["a"], metadata={"k": 1}, source_path="p")
    after = kb.patched(before.id, text="basalt columns")
    kept = ("id", "uid", "tags", "metadata", "source_path", "source_paths", "doc_type")
    assert {name: getattr(after, name) for name in kept} == {name: getattr(before, name) for name in kept}
    assert after.size_bytes == len("basalt columns")
    assert after.sha256 != before.sha256
    assert kb.call(ops.LIST_DOCUMENTS).total == 1


@pytest.mark.requirement("E18")
def test_a_patched_note_keeps_created_at(kb: Client) -> None:
    before = kb.stored_note("granite")
    assert kb.patched(before.id, text="basalt").created_at == before.created_at
    assert kb.document(before.id).created_at == before.created_at


@pytest.mark.requirement("E19")
def test_a_patched_note_renews_updated_at_and_its_version(kb: Client) -> None:
    before = kb.stored_note("granite")
    after = kb.patched(before.id, text="basalt")
    assert after.updated_at > before.updated_at
    assert after.version > before.version


@pytest.mark.requirement("E17")
def test_a_patched_note_is_found_by_its_new_text_alone(kb: Client) -> None:
    """The new text is chunked and embedded at once; reading and searching agree."""
    document = kb.note("granite quarry")
    kb.patched(document, text="basalt columns")
    assert kb.found("basalt") == [document]
    assert kb.found("granite") == []
    (result,) = kb.search("basalt columns", mode="vector").results
    assert result.chunk.text == "basalt columns"
    assert [chunk.text for chunk in kb.document(document).chunks] == ["basalt columns"]


def test_a_title_alone_is_patched(kb: Client) -> None:
    document = kb.note("granite")
    assert kb.patched(document, title="Stone").title == "Stone"
    assert kb.document(document).chunks[0].text == "granite"


@pytest.mark.requirement("K46")
def test_only_notes_are_patched(kb: Client) -> None:
    document = kb.file("a.txt", b"granite")
    problem(kb.patch(document, text="basalt"), "not_a_note")
    assert kb.found("granite") == [document]


def test_a_patch_of_another_version_is_a_conflict(kb: Client) -> None:
    """The error has the current version, and a patch with that version succeeds."""
    document = kb.stored_note("granite")
    stale = kb.patch(document.id, text="basalt", expected_version=document.version + 5)
    assert problem(stale, "version_conflict").current_version == document.version
    assert kb.found("granite") == [document.id]
    kb.patched(document.id, text="basalt", expected_version=document.version)


def test_a_patch_honours_if_match(kb: Client) -> None:
    """`If-Match` works like `expected_version`; if both are sent, both must match."""
    document = kb.stored_note("granite")
    stale, current = document.version + 1, document.version
    for if_match, body in (
        (stale, {}),
        (stale, {"expected_version": current}),
        (current, {"expected_version": stale}),
    ):
        refused = kb.patch(document.id, {"If-Match": f'"{if_match}"'}, text="basalt", **body)
        assert problem(refused, "version_conflict").current_version == current
    assert kb.document(document.id) == document
    taken = kb.patch(document.id, {"If-Match": f'"{current}"'}, text="basalt", expected_version=current)
    assert decode(taken, m.Document).version == current + 1


def test_of_patches_at_once_with_a_version_one_wins(kb: Client) -> None:
    document = kb.stored_note("granite")
    patch = [
        partial(kb.patch, document.id, text=f"basalt{number}", expected_version=document.version)
        for number in range(5)
    ]
    responses = together(*patch)
    won = [number for number, response in enumerate(responses) if response.status_code == 200]
    assert len(won) == 1
    for number, response in enumerate(responses):
        if number != won[0]:
            problem(response, "version_conflict")
    assert kb.document(document.id).chunks[0].text == f"basalt{won[0]}"


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
def test_a_patch_that_does_not_fit_is_refused(kb: Client, body: dict[str, Any], code: str) -> None:
    document = kb.stored_note("granite")
    problem(kb.patch(document.id, **body), code)
    assert kb.document(document.id) == document


def test_every_document_comes_with_its_version_as_etag(kb: Client) -> None:
    """After reading, patching and tagging the header can be sent back as If-Match."""
    document = kb.note("granite", tags=["a"])
    for response in (
        kb.request(ops.GET_DOCUMENT, document),
        kb.patch(document, text="basalt"),
        kb.request(ops.ADD_TAGS, document, json={"tags": ["b"]}),
        kb.request(ops.REMOVE_TAG, document, "a"),
    ):
        assert response.headers["ETag"] == f'"{decode(response, m.Document).version}"'


def test_metadata_are_replaced_whole(kb: Client) -> None:
    """A change raises the version and affects filters; the same metadata change nothing."""
    document = kb.stored_note("granite", metadata={"source_type": "wiki", "author": "a"})
    changed = kb.call(
        ops.SET_METADATA, document.id, json={"metadata": {"source_type": "mail", "n": [1, None]}}
    )
    assert changed.metadata == {"source_type": "mail", "n": [1, None]}
    assert changed.version > document.version
    assert changed.updated_at > document.updated_at
    assert kb.found("granite", filters={"source_type": ["mail"]}) == [document.id]
    assert kb.found("granite", filters={"source_type": ["wiki"]}) == []
    assert kb.call(ops.SET_METADATA, document.id, json={"metadata": changed.metadata}) == changed
    assert kb.document(document.id).version == changed.version
    assert kb.call(ops.SET_METADATA, document.id, json={"metadata": {}}).metadata == {}
    assert kb.found("granite", filters={"source_type": ["mail"]}) == []


def test_metadata_are_replaced_in_the_version_that_was_read(kb: Client) -> None:
    document = kb.stored_note("granite", metadata={"author": "a"})
    body = {"metadata": {"author": "b"}}
    stale = kb.request(
        ops.SET_METADATA, document.id, json=body, headers={"If-Match": f'"{document.version + 1}"'}
    )
    problem(stale, "version_conflict")
    kb.refused("document_not_found", ops.SET_METADATA, 999_999, json=body)
    kb.refused("invalid_parameter", ops.SET_METADATA, document.id, json={"metadata": ["a"]})
    kb.refused("missing_parameter", ops.SET_METADATA, document.id, json={})
    long = {"metadata": {"author": "a" * 65_536}}
    kb.refused("invalid_parameter", ops.SET_METADATA, document.id, json=long)
    assert kb.document(document.id) == document


def test_tags_are_added_and_taken_off(kb: Client) -> None:
    """Each change raises the version and affects searches."""
    document = kb.stored_note("granite", tags=["a"])
    added = kb.call(ops.ADD_TAGS, document.id, json={"tags": ["b", "collection:memory"]})
    assert sorted(added.tags) == ["a", "b", "collection:memory"]
    assert added.version > document.version
    assert kb.found("granite", tags=["b"]) == [document.id]
    taken = kb.call(ops.REMOVE_TAG, document.id, "a")
    assert sorted(taken.tags) == ["b", "collection:memory"]
    assert taken.version > added.version
    assert kb.found("granite", tags=["a"]) == []


def test_adding_tags_that_stand_changes_nothing(kb: Client) -> None:
    document = kb.stored_note("granite", tags=["a"])
    assert kb.call(ops.ADD_TAGS, document.id, json={"tags": ["a"]}).version == document.version


def test_a_document_has_as_many_tags_as_it_may(kb: Client) -> None:
    """A request with too many tags adds none of them; a request that fits is accepted."""
    tags = [f"t{number}" for number in range(m.MAX_TAGS - 1)]
    document = kb.stored_note("granite", tags=tags)
    refused = kb.request(ops.ADD_TAGS, document.id, json={"tags": ["one", "two"]})
    assert problem(refused, "invalid_parameter").parameter == "tags"
    assert kb.document(document.id) == document
    full = kb.call(ops.ADD_TAGS, document.id, json={"tags": ["one", "t0"]})
    assert sorted(full.tags) == sorted([*tags, "one"])
    assert kb.call(ops.ADD_TAGS, document.id, json={"tags": tags}).version == full.version


def test_a_tag_that_is_not_there_cannot_be_taken_off(kb: Client) -> None:
    kb.refused("tag_not_found", ops.REMOVE_TAG, kb.note("granite"), "a")


def test_an_odd_tag_travels_in_a_path(kb: Client) -> None:
    document = kb.note("granite", tags=["größe 100% & ?"])
    assert kb.call(ops.REMOVE_TAG, document, "größe 100% & ?").tags == []


def test_tag_changes_honour_if_match(kb: Client) -> None:
    document = kb.stored_note("granite", tags=["a"])
    stale = {"If-Match": f'"{document.version + 1}"'}
    for response in (
        kb.request(ops.ADD_TAGS, document.id, json={"tags": ["b"]}, headers=stale),
        kb.request(ops.REMOVE_TAG, document.id, "a", headers=stale),
    ):
        assert problem(response, "version_conflict").current_version == document.version
    current = {"If-Match": f'"{document.version}"'}
    assert kb.call(ops.REMOVE_TAG, document.id, "a", headers=current).tags == []


@pytest.mark.parametrize("value", ["*", 'W/"1"', "x", "", "0", "-1", "1" * 30])
def test_an_if_match_that_is_no_version_is_refused(kb: Client, value: str) -> None:
    response = kb.request(ops.ADD_TAGS, kb.note("granite"), json={"tags": ["a"]}, headers={"If-Match": value})
    assert problem(response, "invalid_parameter").parameter == "If-Match"


def test_of_moves_at_once_with_if_match_one_wins(kb: Client) -> None:
    """Two concurrent moves cannot leave a document in two collections."""
    document = kb.stored_note("granite")
    headers = {"If-Match": str(document.version)}
    move = [
        partial(
            kb.request, ops.ADD_TAGS, document.id, json={"tags": [f"collection:c{number}"]}, headers=headers
        )
        for number in range(5)
    ]
    assert sorted(response.status_code for response in together(*move)) == [200, 409, 409, 409, 409]
    assert len(kb.document(document.id).tags) == 1


def test_tags_are_listed_with_their_counts(kb: Client) -> None:
    """In alphabetical order, by prefix, page by page."""
    kb.note("granite", tags=["a", "collection:memory"])
    kb.note("basalt", tags=["a"])
    counted = [(tag.tag, tag.documents, tag.chunks) for tag in kb.call(ops.LIST_TAGS).tags]
    assert counted == [("a", 2, 2), ("collection:memory", 1, 1)]
    by_prefix = kb.call(ops.LIST_TAGS, params={"prefix": "collection:"})
    assert ([tag.tag for tag in by_prefix.tags], by_prefix.total) == (["collection:memory"], 1)
    second = kb.call(ops.LIST_TAGS, params={"limit": 1, "offset": 1})
    assert ([tag.tag for tag in second.tags], second.total) == (["collection:memory"], 2)


@pytest.mark.parametrize("prefix", ["%", "_", "*", "[", "'"])
def test_a_prefix_is_not_a_pattern(kb: Client, prefix: str) -> None:
    kb.note("granite", tags=["abc"])
    assert kb.call(ops.LIST_TAGS, params={"prefix": prefix}).tags == []
