"""What a commit makes of a submission: a new document, or the standing one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_engine.store.repository import documents, jobs
from tests.support.stores import Base, Place, all_documents, new_file, new_note, opened, prepared


@pytest.fixture
async def base(place: Place) -> AsyncIterator[Base]:
    """An empty base."""
    async with opened(place) as base:
        yield base


async def again(base: Base, text: str, **changes: object) -> m.Job:
    """The same note once more."""
    return await base.ingest(new_note(text, **changes), prepared(text))


async def test_the_same_text_twice_is_one_document(base: Base) -> None:
    """The second job ends with the id of the first."""
    document = await base.note("same")
    job = await again(base, "same")
    assert (job.document_id, job.document_uid, job.deduplicated) == (document.id, document.uid, True)
    assert (await all_documents(base)).total == 1
    assert (await base.find("same")).total == 1


async def test_a_duplicate_that_says_nothing_new_changes_nothing(base: Base) -> None:
    document = await base.note("same", tags=["t"], source_path="/a")
    await again(base, "same", tags=["t"], source_path="/a")
    assert (await base.store.read(documents.detail, document.id)).version == document.version


async def test_a_duplicate_brings_its_tags_and_its_source(base: Base) -> None:
    """The document is then found by both paths; the first stays its own."""
    document = await base.note("same", tags=["a"], source_path="/first")
    await again(base, "same", tags=["b", "a"], source_path="/second")
    standing = await base.store.read(documents.detail, document.id)
    assert (standing.tags, standing.source_path) == (["a", "b"], "/first")
    assert standing.source_paths == ["/first", "/second"]
    assert (standing.version, standing.updated_at > document.updated_at) == (2, True)
    assert [one.id for one in (await all_documents(base, source_path="/second")).documents] == [document.id]


async def test_uniting_tags_never_gives_a_second_collection(base: Base) -> None:
    """The standing document stays where it is."""
    document = await base.note("same", tags=["collection:a"])
    await again(base, "same", tags=["collection:b", "t"])
    assert (await base.store.read(documents.detail, document.id)).tags == ["collection:a", "t"]


async def test_a_document_without_a_collection_takes_the_first_of_a_duplicate(base: Base) -> None:
    """There is nothing to be kept."""
    document = await base.note("same")
    await again(base, "same", tags=["collection:b", "collection:c"])
    assert (await base.store.read(documents.detail, document.id)).tags == ["collection:b"]


@pytest.mark.parametrize(
    "other",
    [new_note("same", dedup_scope="elsewhere"), new_note("different"), new_file("same")],
    ids=["another scope", "another text", "another kind"],
)
async def test_what_differs_is_another_document(base: Base, other: object) -> None:
    """Kind, content and scope all have to agree."""
    await base.note("same")
    job = await base.ingest(other, prepared("same"))  # type: ignore[arg-type]
    assert (job.deduplicated, job.document_id) == (False, 2)


async def test_forced_ocr_is_a_duplicate_of_what_was_read_by_ocr(base: Base) -> None:
    """Whoever forces it wants it read in that way; whoever does not takes either."""
    plain, forced = new_file("same"), new_file("same", force_ocr=True)
    first = await base.ingest(plain, prepared("words", extraction_method="text_extraction"))
    assert await base.store.read(documents.duplicate_of, forced) is None
    second = await base.ingest(forced, prepared("seen", extraction_method="image_analysis"))
    assert (second.deduplicated, second.document_id) == (False, 2)
    again = await base.ingest(new_file("same", force_ocr=True), prepared("seen"))
    assert (again.deduplicated, again.document_id) == (True, 2)
    assert await base.store.read(documents.duplicate_of, new_file("same")) == first.document_id


async def test_a_scan_is_read_by_ocr_once(base: Base) -> None:
    await base.ingest(new_file("same"), prepared("seen", extraction_method="image_analysis"))
    assert await base.store.read(documents.duplicate_of, new_file("same", force_ocr=True)) == 1
    await base.ingest(new_file("other", force_ocr=True), prepared("x", extraction_method="image_analysis"))
    assert await base.store.read(documents.duplicate_of, new_file("other")) == 2


async def test_a_worker_is_told_that_ocr_is_forced(base: Base) -> None:
    for forced in (True, False):
        leased = await base.lease(new_file(str(forced), force_ocr=forced))
        assert leased.job.force_ocr is forced


async def test_a_searchable_document_tells_what_was_not_read(base: Base) -> None:
    """A reason does not make it empty."""
    await base.ingest(new_file("x"), prepared("words", status_reason="Page 3 was not read."))
    document = await base.store.read(documents.detail, 1)
    assert (document.status, document.status_reason) == ("searchable", "Page 3 was not read.")


async def test_a_document_moved_out_of_the_scope_is_no_duplicate_in_it(base: Base) -> None:
    """Or the submission would vanish into another collection."""
    scope = {"dedup_scope": "collection:a", "tags": ["collection:a"]}
    moved = await base.note("same", **scope)
    await base.store.once(None, documents.remove_tag, moved.id, "collection:a", None)
    await base.store.once(None, documents.add_tags, moved.id, ["collection:b"], None)
    job = await again(base, "same", **scope)
    assert (job.deduplicated, job.document_id) == (False, 2)
    assert (await again(base, "same", **scope)).document_id == 2


async def test_a_duplicate_is_foreseen_as_the_commit_will_see_it(base: Base) -> None:
    """So that its work can be spared."""
    document = await base.note("same")
    assert await base.store.read(documents.duplicate_of, new_note("same")) == document.id
    assert await base.store.read(documents.duplicate_of, new_note("same", dedup_scope="x")) is None


async def test_a_duplicate_deleted_meanwhile_means_ordinary_ingestion(base: Base) -> None:
    """The commit decides, not the submission."""
    document = await base.note("same")
    leased = await base.lease(new_note("same"))
    assert await base.store.read(documents.duplicate_of, leased.job) == document.id
    await base.store.once(None, documents.delete, document.id)
    job = await base.store.write(documents.commit, leased, prepared("same"))
    assert job is not None
    assert (job.deduplicated, job.document_id) == (False, 2)


async def test_a_duplicate_is_committed_without_being_prepared(base: Base) -> None:
    """Tags and sources are united as by any commit, and nothing is stored twice."""
    document = await base.note("same", tags=["a"])
    leased = await base.lease(new_note("same", tags=["b"], source_path="/second"))
    job = await base.store.write(documents.commit_duplicate, leased)
    assert job is not None
    assert (job.status, job.document_id, job.deduplicated) == ("completed", document.id, True)
    standing = await base.store.read(documents.detail, document.id)
    assert (standing.tags, standing.source_paths) == (["a", "b"], ["/second"])
    assert (await all_documents(base)).total == 1


async def test_where_the_duplicate_is_gone_nothing_is_committed_in_its_place(base: Base) -> None:
    """The job runs on, and is committed like any other once it is prepared."""
    document = await base.note("same")
    leased = await base.lease(new_note("same"))
    await base.store.once(None, documents.delete, document.id)
    assert await base.store.write(documents.commit_duplicate, leased) is None
    assert (await base.store.read(jobs.find, leased.job.id)).status == "running"
    assert (await all_documents(base)).total == 0
    assert await base.store.write(documents.commit, leased, prepared("same")) is not None


async def test_a_duplicate_of_a_job_that_was_cancelled_changes_nothing(base: Base) -> None:
    """Its lease is void: its tags do not come to the standing document."""
    document = await base.note("same")
    leased = await base.lease(new_note("same", tags=["late"]))
    await base.store.once(None, jobs.cancel, leased.job.id)
    assert await base.store.write(documents.commit_duplicate, leased) is None
    assert (await base.store.read(documents.detail, document.id)).tags == []


async def test_a_replaced_note_is_no_longer_its_old_text_but_its_new_one(base: Base) -> None:
    """The hash follows the text."""
    document = await base.note("old")
    await base.update(document.id, "new", prepared("new"), version=1)
    assert (await again(base, "new")).document_id == document.id
    assert (await again(base, "old")).deduplicated is False


async def test_a_preparation_that_does_not_fit_stores_nothing(base: Base) -> None:
    """The document appears whole or not at all, and the job runs on."""
    leased = await base.lease(new_note("a"))
    short = prepared("a", "b")
    broken = type(short)(
        title="t", extraction_method="x", pages=None, chunks=short.chunks, vectors=short.vectors[:1]
    )
    with pytest.raises(ValueError, match="2 chunks, but 1 vectors"):
        await base.store.write(documents.commit, leased, broken)
    assert (await all_documents(base)).total == 0
    assert (await base.find("a")).total == 0
    assert await base.store.write(documents.commit, leased, short) is not None
    found = await base.find("", "vector", vector=short.vectors[0])
    assert [result.chunk.text for result in found.results] == ["a", "b"]


async def test_vectors_of_another_length_are_refused_whole(base: Base) -> None:
    """The index and the rows never part ways. On PostgreSQL another engine may have bound the base."""
    leased = await base.lease(new_note("a"))
    made = prepared("a")
    broken = type(made)(
        title="t", extraction_method="x", pages=None, chunks=made.chunks, vectors=made.vectors[:, :3]
    )
    with pytest.raises((ValueError, EngineError), match=r"shape|filled by test \(8 .* vectors of 3"):
        await base.store.write(documents.commit, leased, broken)
    assert (await all_documents(base)).total == 0
