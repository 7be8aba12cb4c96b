"""Promises on earlier versions: kept when replaced or removed, read, restored, purged."""

from __future__ import annotations

from typing import Any

from kb_contracts.api import models as m
from kb_contracts.api import operations as ops
from kb_verify.client import Client, decode, fresh_key
from kb_verify.files import FILE

SOURCE: dict[str, Any] = {"tags": ["collection:documents"], "dedup_scope": "collection:documents"}
ABSENT = "00000000-0000-4000-8000-00000000ffff"


def restored(kb: Client, key: int | str, version: int) -> m.Document:
    return kb.call(ops.RESTORE_VERSION, key, version)


def versions(kb: Client, key: int | str) -> list[int]:
    return [each.version for each in kb.call(ops.LIST_VERSIONS, key).versions]


def text_of(kb: Client, key: int) -> str:
    text = kb.document(key, text="true").text
    assert isinstance(text, str)
    return text


def test_a_replaced_text_is_kept(kb: Client) -> None:
    """With all its properties, under its version; other changes keep no version."""
    before = kb.stored_note("granite  quarry\n\n", title="Stone", tags=["a"], metadata={"n": 1})
    kb.call(ops.ADD_TAGS, before.id, json={"tags": ["b"]})
    assert kb.call(ops.LIST_VERSIONS, before.id).total == 0
    standing = kb.document(before.id)
    kb.patched(before.id, text="basalt columns")
    (kept,) = kb.call(ops.LIST_VERSIONS, before.uid).versions
    assert (kept.document_id, kept.uid, kept.version) == (before.id, before.uid, standing.version)
    assert (kept.removed, kept.title, kept.tags) == (False, "Stone", ["a", "b"])
    assert (kept.sha256, kept.size_bytes, kept.chunk_count) == (before.sha256, before.size_bytes, 1)
    assert kept.updated_at == standing.updated_at < kept.kept_at < kept.expires_at
    detail = kb.call(ops.GET_VERSION, before.id, kept.version)
    assert (detail.text, detail.text_length, detail.metadata) == ("granite  quarry\n\n", 17, {"n": 1})
    assert kb.found("granite") == []


def test_a_part_of_a_version_is_read(kb: Client) -> None:
    document = kb.note("granite quarry")
    kb.patched(document, text="basalt")
    (version,) = versions(kb, document)
    query = {"text_offset": 8, "text_limit": 3}
    part = kb.call(ops.GET_VERSION, document, version, params=query)
    assert (part.text, part.text_offset, part.text_length) == ("qua", 8, 14)
    assert kb.call(ops.GET_VERSION, document, version, params={"text_offset": 99}).text == ""


def test_a_version_is_restored_in_its_document(kb: Client) -> None:
    """Text and title, found in every mode; id, tags and metadata remain, and the replaced text is kept."""
    before = kb.stored_note("granite quarry", title="Stone")
    kb.patched(before.id, text="basalt columns", title="Lava")
    kb.call(ops.ADD_TAGS, before.id, json={"tags": ["later"]})
    kb.call(ops.SET_METADATA, before.id, json={"metadata": {"n": 2}})
    replaced = kb.document(before.id)
    after = restored(kb, before.id, before.version)
    assert (after.id, after.uid, after.created_at) == (before.id, before.uid, before.created_at)
    assert after.version > replaced.version
    assert (after.title, after.sha256, after.chunk_count) == ("Stone", before.sha256, before.chunk_count)
    assert (after.tags, after.metadata) == (["later"], {"n": 2})
    assert text_of(kb, before.id) == "granite quarry"
    assert (kb.found("granite"), kb.found("basalt")) == ([before.id], [])
    assert kb.search("granite quarry", mode="vector").results[0].chunk.text == "granite quarry"
    assert versions(kb, before.id) == [replaced.version, before.version]


def test_what_stands_already_is_not_restored_again(kb: Client) -> None:
    before = kb.stored_note("granite", title="Stone")
    kb.patched(before.id, text="basalt", title="Lava")
    after = restored(kb, before.id, before.version)
    assert restored(kb, before.id, before.version) == after
    assert kb.document(before.id).version == after.version
    assert len(versions(kb, before.id)) == 2


def test_a_file_is_restored_as_it_was_read(kb: Client) -> None:
    """Its passages, with headings and offsets, without sending the file again."""
    source = {**FILE, "source_path": "a.md"}
    document = kb.file("a.md", b"# Stone\n\nGranite is hard.\n\n# Water\n\nRivers are wet.\n", **source)
    before = kb.document(document)
    other = {**source, "tags": '["collection:documents", "new"]', "metadata": '{"n": 1}'}
    assert kb.file("a.md", b"# Lava\n\nBasalt flows.\n", **other) == document
    kept = kb.call(ops.GET_VERSION, document, before.version)
    assert (kept.filename, kept.source_paths, kept.chunk_count) == ("a.md", ["a.md"], before.chunk_count)
    assert (kept.tags, kept.metadata) == (before.tags, before.metadata)
    texts = [each.text for each in before.chunks]
    assert [kept.text[each.start : each.end] for each in before.chunks] == texts
    restored(kb, document, before.version)
    after = kb.document(document)

    def read(found: m.DocumentDetail) -> list[Any]:
        return [(each.text, each.heading, each.start, each.end) for each in found.chunks]

    assert read(after) == read(before)
    assert (after.title, after.format, after.size_bytes) == (before.title, before.format, before.size_bytes)
    assert kb.found("granite") == [document]


def test_a_note_that_became_a_file_of_the_same_bytes_is_a_note_again(kb: Client) -> None:
    text = "granite quarry"
    note = kb.stored_note(text, title="a.md", source_path="a.md", **SOURCE)
    assert kb.file("a.md", text.encode(), source_path="a.md", title="a.md", **FILE) == note.id
    after = restored(kb, note.id, note.version)
    assert (after.doc_type, after.format, after.filename) == ("note", note.format, note.filename)
    assert text_of(kb, note.id) == text


def test_a_removed_document_is_brought_back(kb: Client) -> None:
    """Under its number and uid, with its tags, metadata and source; until then no search finds it."""
    note = {**SOURCE, "source_path": "a.md", "metadata": {"n": 1}}
    before = kb.stored_note("granite quarry", title="Stone", **note)
    kb.call(ops.DELETE_DOCUMENT, before.id)
    (gone,) = kb.call(ops.LIST_TRASH).versions
    assert (gone.document_id, gone.uid, gone.version, gone.removed) == (
        before.id,
        before.uid,
        before.version,
        True,
    )
    assert kb.call(ops.LIST_VERSIONS, before.uid).versions == [gone]
    assert kb.call(ops.GET_VERSION, before.uid, gone.version).text == "granite quarry"
    kb.refused("document_not_found", ops.GET_DOCUMENT, before.uid)
    assert kb.found("granite") == kb.listed() == []
    after = restored(kb, before.uid, gone.version)
    same = ("id", "uid", "title", "tags", "metadata", "source_path", "source_paths", "sha256", "created_at")
    assert [getattr(after, name) for name in same] == [getattr(before, name) for name in same]
    assert after.version > before.version
    assert after.updated_at > before.updated_at
    assert text_of(kb, before.id) == "granite quarry"
    assert kb.found("granite") == kb.listed(source_path="a.md") == [before.id]
    assert (kb.call(ops.LIST_TRASH).total, versions(kb, before.id)) == (0, [])


def test_an_earlier_version_of_a_removed_document_is_brought_back(kb: Client) -> None:
    """With collection, tags and metadata at the removal; the removed state becomes a version, not trash."""
    source = {**SOURCE, "source_path": "a.md"}
    before = kb.stored_note("granite", title="Stone", metadata={"n": 1}, **source)
    kb.patched(before.id, text="basalt", title="Lava")
    kb.call(ops.REMOVE_TAG, before.id, "collection:documents")
    kb.call(ops.SET_METADATA, before.id, json={"metadata": {"n": 2}})
    last = kb.call(ops.ADD_TAGS, before.id, json={"tags": ["collection:own", "later"]})
    kb.call(ops.DELETE_DOCUMENT, before.id)
    back = restored(kb, before.id, before.version)
    assert (back.title, back.tags, back.metadata) == ("Stone", last.tags, {"n": 2})
    assert (back.source_paths, back.version) == (["a.md"], last.version + 1)
    assert kb.listed(tag="collection:own") == [before.id]
    assert (kb.found("granite"), kb.call(ops.LIST_TRASH).total) == ([before.id], 0)
    assert restored(kb, before.id, last.version).title == "Lava"
    assert kb.found("basalt") == [before.id]


def test_a_source_that_has_another_document_stays_with_it(kb: Client) -> None:
    note = {**SOURCE, "source_path": "a.md"}
    before = kb.stored_note("granite", **note)
    kb.call(ops.DELETE_DOCUMENT, before.id)
    other = kb.note("basalt", **note)
    back = restored(kb, before.id, before.version)
    assert (back.source_path, back.source_paths) == (None, [])
    assert kb.listed(source_path="a.md") == [other]
    assert sorted(kb.listed()) == sorted([before.id, other])


def test_a_document_that_goes_with_its_source_is_kept(kb: Client) -> None:
    note = {**SOURCE, "source_path": "a.md"}
    document = kb.note("granite", **note)
    kb.call(ops.REMOVE_SOURCE, document, params={"source_path": "a.md"})
    assert [each.document_id for each in kb.call(ops.LIST_TRASH).versions] == [document]


def test_the_trash_has_what_was_removed_last_first(kb: Client) -> None:
    notes = [kb.note(text) for text in ("granite", "basalt", "chalk")]
    for document in notes:
        kb.call(ops.DELETE_DOCUMENT, document)
    listed = kb.call(ops.LIST_TRASH)
    assert ([each.document_id for each in listed.versions], listed.total) == (notes[::-1], 3)
    page = kb.call(ops.LIST_TRASH, params={"limit": 1, "offset": 1})
    assert ([each.document_id for each in page.versions], page.total, page.offset) == ([notes[1]], 3, 1)


def test_what_is_purged_cannot_be_restored(kb: Client) -> None:
    """A single version, the versions of a removed document, or all of them."""
    document = kb.stored_note("granite")
    kb.patched(document.id, text="basalt")
    assert kb.call(ops.PURGE_VERSIONS, document.id).versions == 1
    kb.refused("version_not_found", ops.RESTORE_VERSION, document.id, document.version)
    kb.patched(document.id, text="chalk")
    kb.call(ops.DELETE_DOCUMENT, document.id, params={"purge": "true"})
    assert kb.call(ops.LIST_TRASH).total == 0
    for key in (document.id, document.uid):
        kb.refused("document_not_found", ops.LIST_VERSIONS, key)
        kb.refused("document_not_found", ops.RESTORE_VERSION, key, document.version)
    gone = kb.stored_note("marble")
    kb.call(ops.DELETE_DOCUMENT, gone.id)
    assert kb.call(ops.PURGE_VERSIONS, gone.uid).versions == 1
    kb.refused("document_not_found", ops.PURGE_VERSIONS, gone.uid)
    cleared = kb.stored_note("slate")
    kb.patched(cleared.id, text="sand")
    kb.clear()
    assert kb.call(ops.LIST_TRASH).total == 0
    kb.refused("document_not_found", ops.GET_VERSION, cleared.id, cleared.version)


def test_an_unknown_version_is_an_error(kb: Client) -> None:
    """The error names the kept versions."""
    before = kb.stored_note("granite")
    kb.patched(before.id, text="basalt")
    for operation in (ops.GET_VERSION, ops.RESTORE_VERSION):
        error = kb.refused("version_not_found", operation, before.id, before.version + 7)
        assert f": {before.version}." in error.detail
        kb.refused("document_not_found", operation, ABSENT, 1)


def test_a_restore_of_another_version_than_expected_is_refused(kb: Client) -> None:
    before = kb.stored_note("granite")
    after = kb.patched(before.id, text="basalt")
    stale = {ops.IF_MATCH: f'"{before.version}"'}
    place = (ops.RESTORE_VERSION, before.id, before.version)
    refused = kb.refused("version_conflict", *place, headers=stale)
    assert refused.current_version == after.version
    assert kb.found("basalt") == [before.id]
    fresh = {ops.IF_MATCH: f'"{after.version}"'}
    decode(kb.request(*place, headers=fresh), m.Document)
    assert kb.found("granite") == [before.id]


def test_a_retried_restore_happens_once(kb: Client) -> None:
    before, key = kb.stored_note("granite"), fresh_key()
    kb.call(ops.DELETE_DOCUMENT, before.id)
    place = (ops.RESTORE_VERSION, before.id, before.version)
    first = decode(kb.request(*place, headers=key), m.Document)
    kb.patched(before.id, text="basalt")
    assert decode(kb.request(*place, headers=key), m.Document) == first
    assert kb.found("basalt") == [before.id]
