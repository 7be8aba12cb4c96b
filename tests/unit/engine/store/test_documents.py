"""Documents: read, listed, tagged, changed in place and removed."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any
from uuid import UUID

import pytest

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_contracts.semantics.documents import text_digest
from kb_engine.store.repository import documents, jobs, sources, state
from tests.support.stores import Base, all_documents, axis, new_file, new_note, opened, prepared, refused


async def replace(base: Base, document: m.Document, text: str, **changes: Any) -> m.Document:
    return await base.update(
        document.id, text, prepared(text, title=document.title), **{"version": document.version, **changes}
    )


# --- reading


async def test_a_document_tells_what_was_submitted(base: Base) -> None:
    job = new_file(
        "x",
        title="Given",
        tags=["b", "a"],
        metadata={"author": "me", "n": 2**70},
        source_path="/in/x.pdf",
        filename="x.pdf",
        format="pdf",
        doc_type="pdf",
        size_bytes=99,
    )
    done = await base.ingest(job, prepared("p1", "p2", title="Found", extraction_method="ocr", pages=2))
    document = await base.detail(done.document_id or 0)
    assert (document.title, document.doc_type, document.format, document.filename) == (
        "Found", "pdf", "pdf", "x.pdf",
    )  # fmt: skip
    assert (document.tags, document.metadata) == (["b", "a"], {"author": "me", "n": 2**70})
    assert (document.source_path, document.source_paths) == ("/in/x.pdf", ["/in/x.pdf"])
    assert (document.size_bytes, document.sha256, document.extraction_method) == (99, job.sha256, "ocr")
    assert (document.pages, document.chunk_count, document.status, document.version) == (
        2,
        2,
        "searchable",
        1,
    )
    assert document.created_at == document.updated_at
    assert UUID(document.uid).version == 4


async def test_a_document_is_read_by_number_by_its_text_and_by_uid(base: Base) -> None:
    document = await base.note("a")
    again = [await base.detail(key) for key in (document.id, str(document.id), document.uid)]
    assert [one.uid for one in again] == [document.uid] * 3


@pytest.mark.parametrize("key", [7, "7", "0b0e7d0c-0000-4000-8000-000000000000", 2**80, "9" * 19])
async def test_an_unknown_document_is_not_found(base: Base, key: int | str) -> None:
    assert (await refused(base.detail(key))).code == "document_not_found"


async def test_chunks_come_in_order_and_in_slices(base: Base) -> None:
    document = await base.note("one ", "two ", "three")
    page = await base.store.read(documents.detail, document.id, chunk_offset=1, chunk_limit=1)
    assert [(c.text, c.index, c.start, c.end) for c in page.chunks] == [("two ", 1, 4, 8)]
    assert (page.chunk_count, page.chunk_offset, page.chunk_limit) == (3, 1, 1)
    assert (await base.store.read(documents.detail, document.id, chunk_limit=0)).chunks == []
    assert (await base.store.read(documents.detail, document.id, chunk_offset=2**62)).chunks == []


@pytest.mark.parametrize(
    ("texts", "reason", "status"),
    [((), "A scan without text.", "empty"), (("words",), "Page 3 was not read.", "searchable")],
)
async def test_a_document_tells_what_was_not_read_and_is_empty_without_any_text(
    base: Base, texts: tuple[str, ...], reason: str, status: str
) -> None:
    report = m.Fidelity(pages_without_text=[3])
    await base.ingest(new_file("scan"), prepared(*texts, status_reason=reason, fidelity=report))
    document = await base.detail(1)
    assert (document.status, document.status_reason, document.fidelity) == (status, reason, report)
    assert document.chunk_count == len(document.chunks) == len(texts)


@pytest.mark.parametrize("text", ["a\0b", "\0", "tail\0", "𝔘𝔫𝔦 é e\u0301", "line\r\nline\u2028"])
async def test_text_comes_back_to_the_letter(base: Base, text: str) -> None:
    document = await base.note(text, title=text, source_path=text, metadata={text: text})
    detail = await base.detail(document.id)
    assert (detail.chunks[0].text, detail.title, detail.metadata) == (text, text, {text: text})
    assert (detail.source_path, detail.source_paths) == (text, [text])
    assert (await base.store.read(documents.note, document.id))[1] == text
    assert (await all_documents(base, source_path=text)).total == 1


# --- listing


async def test_documents_are_filtered_by_source_tag_and_type(base: Base) -> None:
    await base.note("n", title="note", tags=["t"], source_path="/a")
    await base.file("f", title="file", tags=["t", "u"], source_path="/a/b")

    async def titles(**filters: Any) -> list[str]:
        return [document.title for document in (await all_documents(base, **filters)).documents]

    assert await titles(source_path="/a") == ["note"]
    assert await titles(tag="t") == ["note", "file"]
    assert await titles(doc_type="text") == ["file"]
    assert await titles(tag="t", doc_type="note", source_path="/a") == ["note"]
    assert await titles(tag="T") == []


async def test_documents_are_sorted_both_ways_with_ties_by_id(base: Base) -> None:
    for title in ("b", "a", "b"):
        base.clock.move(seconds=1)
        await base.note(f"{title}{base.clock.now}", title=title)
    ascending = await all_documents(base, sort_by="title")
    descending = await all_documents(base, sort_by="title", sort_order="desc")
    assert [document.id for document in ascending.documents] == [2, 1, 3]
    assert [document.id for document in descending.documents] == [3, 1, 2]
    newest = await all_documents(base, sort_by="created_at", sort_order="desc", limit=2, offset=1)
    assert ([document.id for document in newest.documents], newest.total) == ([2, 1], 3)


# --- tags


async def test_a_stale_version_is_refused_with_the_current_one(base: Base) -> None:
    document = await base.note("a", tags=["t"])
    await base.store.once(None, documents.add_tags, document.id, ["u"], None)
    adding = await refused(base.store.once(None, documents.add_tags, document.id, ["v"], 1))
    removing = await refused(base.store.once(None, documents.remove_tag, document.id, "t", 1))
    assert [adding.code, removing.code] == ["version_conflict"] * 2
    assert adding.members == {"current_version": 2}


async def test_tags_are_counted_and_listed_by_prefix(base: Base) -> None:
    await base.note("a", "b", tags=["collection:x", "col%"])
    await base.note("c", tags=["collection:x", "collection:y"])
    listed = await base.store.read(documents.tag_page, "", 10, 0)
    assert [(one.tag, one.documents, one.chunks) for one in listed.tags] == [
        ("col%", 1, 2), ("collection:x", 2, 3), ("collection:y", 1, 1),
    ]  # fmt: skip
    assert [one.tag for one in (await base.store.read(documents.tag_page, "col%", 10, 0)).tags] == ["col%"]
    page = await base.store.read(documents.tag_page, "collection:", 1, 1)
    assert ([one.tag for one in page.tags], page.total) == (["collection:y"], 2)


@pytest.mark.parametrize("prefix", ["\ud7ff", "\U0010ffff", "a\U0010ffff", "z"])
async def test_a_prefix_at_the_edge_of_unicode_matches_itself(base: Base, prefix: str) -> None:
    """The end of the range is always a valid string."""
    await base.note("a", tags=[prefix + "x", "other"])
    assert [one.tag for one in (await base.store.read(documents.tag_page, prefix, 10, 0)).tags] == [
        prefix + "x"
    ]


# --- notes in place


@pytest.mark.requirement("E16", "E17", "E18", "E19", "E20")
async def test_a_replaced_note_keeps_its_identity_and_is_found_by_its_new_text_alone(base: Base) -> None:
    document = await base.note("old words here", vectors=[axis(0)])
    made = prepared("new ", "saying", vectors=[axis(1), axis(1)], title="T")
    changed = await base.update(document.id, "new saying", made, version=1)
    assert (changed.id, changed.uid, changed.created_at) == (document.id, document.uid, document.created_at)
    assert changed.updated_at > document.updated_at
    assert (changed.version, changed.title, changed.chunk_count, changed.size_bytes) == (2, "T", 2, 10)
    assert changed.sha256 == hashlib.sha256(b"new saying").hexdigest()
    assert (await base.store.read(documents.note, document.id))[1] == "new saying"
    assert (await base.find("old words")).results == []
    assert [result.chunk.text for result in (await base.find("saying")).results] == ["saying"]
    by_meaning = await base.find("", "vector", vector=axis(0))
    assert [result.score for result in by_meaning.results] == [0.0, 0.0]


async def test_a_file_and_a_missing_note_cannot_be_read_or_replaced_as_a_note(base: Base) -> None:
    file, gone = await base.file("a"), await base.note("b")
    await base.store.once(None, documents.delete, gone.id)
    for document, code in ((file, "not_a_note"), (gone, "document_not_found")):
        assert (await refused(base.store.read(documents.note, document.id))).code == code
        assert (await refused(replace(base, document, "c"))).code == code


async def test_time_goes_on_although_the_clock_went_back(base: Base) -> None:
    document = await base.note("a")
    base.clock.move(hours=-1)
    assert (await replace(base, document, "b")).updated_at > document.updated_at


# --- removal


async def test_a_deleted_document_is_gone_from_everywhere(base: Base) -> None:
    document = await base.note("gone words", "more", tags=["t"], source_path="/p", size_bytes=77)
    removed = await base.store.once(None, documents.delete, document.uid)
    assert (removed.documents, removed.chunks, removed.bytes) == (1, 2, 77)
    assert (await refused(base.detail(document.id))).code == "document_not_found"
    assert (await base.store.read(documents.tag_page, "", 10, 0)).total == 0
    assert (await base.find("gone")).results == []
    assert (await base.find("", "vector", vector=axis(0))).results == []
    assert (await refused(base.store.once(None, documents.delete, document.id))).code == "document_not_found"


async def test_ids_are_never_given_twice(base: Base) -> None:
    first = await base.note("a", "b")
    await base.store.once(None, documents.delete, first.id)
    second = await base.note("c")
    await base.store.once(None, documents.clear)
    await base.store.close()
    async with opened(base.place, base.clock) as again:
        third = await again.note("d")
        chunk = (await again.detail(third.id)).chunks[0]
    assert (second.id, third.id, chunk.id) == (2, 3, 4)


async def test_clearing_removes_all_documents_and_cancels_all_jobs(base: Base) -> None:
    """A job leased before cannot commit afterwards."""
    await base.note("a", "b", size_bytes=5)
    await base.file("c", size_bytes=6)
    running = await base.lease(new_note("d"))
    queued = await base.accept(new_note("e"))
    removed = await base.store.once(None, documents.clear)
    assert (removed.documents, removed.chunks, removed.bytes, removed.jobs_cancelled) == (2, 3, 11, 2)
    assert await base.commit(running, prepared("d")) is None
    assert (await base.store.read(jobs.find, queued.id)).status == "cancelled"
    assert (await all_documents(base)).total == 0
    assert (await base.find("a")).total == 0


# --- totals


async def test_the_counts_tell_what_is_there(base: Base) -> None:
    await base.note("a", "b", size_bytes=10)
    await base.file("c", size_bytes=20)
    await base.ingest(new_file("scan", doc_type="pdf", size_bytes=30), prepared())
    base.clock.move(seconds=9)
    await base.store.once(None, documents.delete, 2)
    await base.accept(new_note("waits"))
    counts = await base.store.read(state.counts)
    assert (counts.documents.total, counts.documents.searchable, counts.documents.empty) == (2, 1, 1)
    assert counts.documents.by_type == {"note": 1, "pdf": 1}
    assert (counts.chunks, counts.originals_bytes) == (2, 40)
    assert (counts.queue.queued, counts.queue.running, counts.queue.completed) == (1, 0, 3)
    assert counts.database_bytes > 4096
    assert counts.last_updated == "2026-03-01T12:00:09.000000Z"


async def again(base: Base, text: str, **changes: object) -> m.Job:
    return await base.ingest(new_note(text, **changes), prepared(text))


async def test_the_text_of_a_note_may_end_in_other_white_space(base: Base) -> None:
    document = await base.note("same\n")
    assert (await again(base, "same \u2028")).document_id == document.id
    standing, text = await base.store.read(documents.note, document.id)
    assert (standing.sha256, text) == (document.sha256, "same\n")
    changed = await base.update(document.id, "other ", prepared("other "), version=1)
    assert (changed.sha256, (await again(base, "other")).document_id) == (
        text_digest("other ")[0],
        document.id,
    )
    assert (await again(base, "same")).deduplicated is False


async def test_a_duplicate_that_says_nothing_new_changes_nothing(base: Base) -> None:
    document = await base.note("same", tags=["t"], source_path="/a")
    await again(base, "same", tags=["t"], source_path="/a")
    assert (await base.detail(document.id)).version == document.version


async def test_forced_ocr_is_a_duplicate_of_what_was_read_by_ocr(base: Base) -> None:
    """A forced job wants OCR; an unforced one accepts either."""
    plain, forced = new_file("same"), new_file("same", force_ocr=True)
    first = await base.ingest(plain, prepared("words", extraction_method="text_extraction"))
    assert await base.store.read(sources.duplicate_of, forced) is None
    second = await base.ingest(forced, prepared("seen", extraction_method="image_analysis"))
    assert (second.deduplicated, second.document_id) == (False, 2)
    again = await base.ingest(new_file("same", force_ocr=True), prepared("seen"))
    assert (again.deduplicated, again.document_id) == (True, 2)
    assert await base.store.read(sources.duplicate_of, new_file("same")) == first.document_id


async def test_a_scan_is_read_by_ocr_once(base: Base) -> None:
    await base.ingest(new_file("same"), prepared("seen", extraction_method="image_analysis"))
    assert await base.store.read(sources.duplicate_of, new_file("same", force_ocr=True)) == 1
    await base.ingest(new_file("other", force_ocr=True), prepared("x", extraction_method="image_analysis"))
    assert await base.store.read(sources.duplicate_of, new_file("other")) == 2


async def test_a_document_moved_out_of_the_scope_is_no_duplicate_in_it(base: Base) -> None:
    """Otherwise the submission would vanish into another collection."""
    scope: dict[str, Any] = {"dedup_scope": "collection:a", "tags": ["collection:a"]}
    moved = await base.note("same", **scope)
    await base.store.once(None, documents.remove_tag, moved.id, "collection:a", None)
    await base.store.once(None, documents.add_tags, moved.id, ["collection:b"], None)
    job = await again(base, "same", **scope)
    assert (job.deduplicated, job.document_id) == (False, 2)
    assert (await again(base, "same", **scope)).document_id == 2


async def test_a_document_taken_out_of_a_second_collection_is_the_duplicate_in_the_first(base: Base) -> None:
    scope: dict[str, Any] = {"dedup_scope": "collection:a", "tags": ["collection:a"]}
    standing = await base.note("same", **scope)
    for add in (None, "collection:a"):
        await base.store.once(None, documents.add_tags, standing.id, ["collection:b"], None)
        await base.store.once(None, documents.remove_tag, standing.id, "collection:b", None, add)
        assert (await again(base, "same", **scope)).document_id == standing.id


async def test_a_duplicate_is_committed_without_being_prepared(base: Base) -> None:
    document = await base.note("same", tags=["a"])
    leased = await base.lease(new_note("same", tags=["b"], source_path="/second"))
    job = await base.store.write(documents.commit_duplicate, leased)
    assert job is not None
    assert (job.status, job.document_id, job.deduplicated) == ("completed", document.id, True)
    standing = await base.detail(document.id)
    assert (standing.tags, standing.source_paths) == (["a", "b"], ["/second"])
    assert (await all_documents(base)).total == 1


async def test_a_duplicate_that_was_deleted_meanwhile_is_not_committed(base: Base) -> None:
    document = await base.note("same")
    leased = await base.lease(new_note("same"))
    await base.store.once(None, documents.delete, document.id)
    assert await base.store.write(documents.commit_duplicate, leased) is None
    assert (await base.store.read(jobs.find, leased.job.id)).status == "running"
    assert (await all_documents(base)).total == 0
    job = await base.commit(leased, prepared("same"))
    assert job is not None
    assert (job.deduplicated, job.document_id) == (False, 2)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE note_texts SET text = 'other'",
        "DELETE FROM note_texts",
        "UPDATE chunks SET text = 'other'",
        "DELETE FROM chunks",
    ],
)
async def test_a_damaged_duplicate_gets_its_content_again(base: Base, damage: str) -> None:
    """It keeps its number and tags; the damaged text is not kept as a version."""
    document = await base.note("same", tags=["a"], source_path="/a")
    await base.store.write(lambda write: write.rows(damage))
    leased = await base.lease(new_note("same", source_path="/a"))
    assert await base.store.write(documents.commit_duplicate, leased) is None
    job = await base.commit(leased, prepared("same"))
    assert job is not None
    assert (job.document_id, job.deduplicated, job.outcome) == (document.id, False, "replaced")
    mended = await base.detail(document.id)
    assert (mended.tags, mended.source_paths, [each.text for each in mended.chunks]) == (
        ["a"], ["/a"], ["same"],
    )  # fmt: skip
    assert (await base.store.read(documents.note, document.id))[1] == "same"
    assert (await base.titles("same"), await base.count("versions")) == ([document.title], 0)
    assert (await again(base, "same", source_path="/a")).deduplicated


async def test_a_duplicate_of_a_job_that_was_cancelled_changes_nothing(base: Base) -> None:
    """Its lease is void, so its tags are not added to the existing document."""
    document = await base.note("same")
    leased = await base.lease(new_note("same", tags=["late"]))
    await base.store.once(None, jobs.cancel, leased.job.id)
    assert await base.store.write(documents.commit_duplicate, leased) is None
    assert (await base.detail(document.id)).tags == []


async def test_a_preparation_that_does_not_fit_stores_nothing(base: Base) -> None:
    leased = await base.lease(new_note("a"))
    short = prepared("a", "b")
    broken = dataclasses.replace(short, vectors=short.vectors[:1])
    with pytest.raises(ValueError, match="2 chunks, but 1 vectors"):
        await base.commit(leased, broken)
    assert (await all_documents(base)).total == 0
    assert (await base.find("a")).total == 0
    assert await base.commit(leased, short) is not None
    found = await base.find("", "vector", vector=short.vectors[0])
    assert [result.chunk.text for result in found.results] == ["a", "b"]


async def test_vectors_of_another_length_are_refused_whole(base: Base) -> None:
    """Index and rows stay consistent. On PostgreSQL another engine may have set the base's embedder."""
    leased = await base.lease(new_note("a"))
    made = prepared("a")
    broken = dataclasses.replace(made, vectors=made.vectors[:, :3])
    with pytest.raises((ValueError, EngineError), match=r"shape|filled by test \(8 .* vectors of 3"):
        await base.commit(leased, broken)
    assert (await all_documents(base)).total == 0
