"""Past versions of documents: their number and age, and complete restoration after any changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kb_engine.store.port import Bounds, EmbedderIdentity
from kb_engine.store.repository import arrivals, documents, versions
from kb_engine.store.repository.versions import Past
from tests.support.stores import (
    Base,
    Place,
    TestClock,
    died,
    direct,
    meaning,
    new_file,
    new_note,
    opened,
    prepared,
    refused,
)
from tests.unit.engine.store.test_reindex import OTHER, by_length, reindex


async def kept(base: Base, document: int) -> list[int]:
    return [each.version for each in (await base.store.read(versions.page, document, 100, 0)).versions]


async def rewritten(base: Base, document: int, text: str) -> int:
    """Replace the text of a note; return its new version."""
    return (await base.update(document, text, prepared(text))).version


async def test_the_newest_versions_are_kept(place: Place) -> None:
    async with opened(place, bounds=Bounds(versions=2)) as base:
        note = await base.note("one")
        for text in ("two", "three", "four"):
            await rewritten(base, note.id, text)
        assert await kept(base, note.id) == [3, 2]
        await base.store.write(documents.delete, note.id)
        assert await kept(base, note.id) == [4, 3]


async def test_versions_and_trash_are_kept_so_long(place: Place) -> None:
    """After their retention they are neither listed nor restored, and the next sweep deletes them."""
    clock = TestClock()
    async with opened(place, clock, bounds=Bounds(version_days=2)) as base:
        changed, gone = await base.note("granite"), await base.note("basalt")
        await rewritten(base, changed.id, "marble")
        await base.store.write(documents.delete, gone.id)
        clock.move(days=2, seconds=-1)
        assert (await base.store.read(versions.trash, 10, 0)).total == 1
        assert await base.store.write(versions.forget_expired) == 0
        clock.move(seconds=1)
        assert (await base.store.read(versions.trash, 10, 0)).total == 0
        assert await kept(base, changed.id) == []
        for document, code in ((changed, "version_not_found"), (gone, "document_not_found")):
            restoring = base.store.write(arrivals.restore, document.id, 1, None)
            assert (await refused(restoring)).code == code
        assert await base.count("versions") == 2
        assert await base.store.write(versions.forget_expired) == 2
        assert await base.count("versions") == 0


async def test_without_a_bound_nothing_is_kept(place: Place) -> None:
    """Versions kept under an earlier setting are removed when their document changes or is removed."""
    async with opened(place) as base:
        note = await base.note("granite")
        await rewritten(base, note.id, "basalt")
    async with opened(place, bounds=Bounds(versions=0)) as base:
        assert await base.count("versions") == 1
        await rewritten(base, note.id, "marble")
        assert await base.count("versions") == 0
        await base.store.write(documents.delete, note.id)
        assert await base.count("versions") == 0


async def test_a_document_is_found_again_as_it_was(base: Base) -> None:
    """By its words and its vectors, with the chunks at their old positions."""
    before = await base.note("granite is hard. ", "rivers are wet.", title="Stone")
    found = await base.find("granite", "hybrid", vector=meaning("rivers are wet."))
    await base.store.write(documents.delete, before.id)
    assert (await base.find("granite", "hybrid", vector=meaning("rivers are wet."))).results == []
    await base.store.write(arrivals.restore, before.uid, 1, None)
    again = await base.find("granite", "hybrid", vector=meaning("rivers are wet."))
    assert [(each.chunk.text, each.score) for each in again.results] == [
        (each.chunk.text, pytest.approx(each.score)) for each in found.results
    ]
    after = await base.detail(before.id)
    assert [(each.start, each.end, each.page) for each in after.chunks] == [
        (each.start, each.end, each.page) for each in before.chunks
    ]


async def test_a_file_is_restored_as_it_was_read_before(base: Base) -> None:
    """Also if the file and its title are the same; restoring the current state changes nothing."""
    scan = {"source_path": "/scan.pdf", "filename": "scan.pdf"}
    read = await base.ingest(
        new_file("scan", **scan), prepared("granite", extraction_method="text_extraction")
    )
    number = read.document_id
    assert number is not None
    ocr: dict[str, Any] = {"extraction_method": "image_analysis"}
    await base.ingest(new_file("scan", force_ocr=True, **scan), prepared("gran1te", **ocr))
    for _ in range(2):
        restored = await base.store.write(arrivals.restore, number, 1, None)
        assert (restored.version, restored.extraction_method) == (3, "text_extraction")
    assert [each.text for each in (await base.detail(number)).chunks] == ["granite"]
    renewed = await base.ingest(new_file("scan", force_ocr=True, **scan), prepared("granitc", **ocr))
    assert renewed.document_id == number
    assert (await base.store.write(arrivals.restore, number, 2, None)).version == 5
    assert [each.text for each in (await base.detail(number)).chunks] == ["gran1te"]


async def test_a_text_with_control_characters_is_read_as_it_was(base: Base) -> None:
    text = "a\0b\x01c"
    note = await base.note(text)
    await rewritten(base, note.id, "granite")
    whole = await base.store.read(versions.detail, note.id, 1, 0, 100)
    assert (whole.text, whole.text_length) == (text, len(text))
    part = await base.store.read(versions.detail, note.id, 1, 2, 2)
    assert (part.text, part.text_offset) == ("b\x01", 2)


async def test_an_empty_document_is_brought_back(base: Base) -> None:
    before = await base.note("granite")
    await base.update(before.id, " ", prepared())
    await base.store.write(documents.delete, before.id)
    assert (await base.store.write(arrivals.restore, before.id, 2, None)).status == "empty"
    assert (await base.store.write(arrivals.restore, before.id, 1, None)).status == "searchable"


async def test_a_moved_document_stays_where_it_is(base: Base) -> None:
    """Its text is restored in its current collection, where the same text is a duplicate of it again."""
    one, two = "collection:one", "collection:two"
    note = await base.note("granite", tags=[one], dedup_scope=one)
    await base.store.write(documents.remove_tag, note.id, one, None)
    await base.store.write(documents.add_tags, note.id, [two], None)
    await rewritten(base, note.id, "basalt")
    assert (await base.store.write(arrivals.restore, note.id, 3, None)).tags == [two]
    again = await base.ingest(new_note("granite", tags=[two], dedup_scope=two), prepared("granite"))
    assert (again.document_id, again.deduplicated) == (note.id, True)


async def test_an_older_version_comes_back_to_where_the_document_was_removed(base: Base) -> None:
    """It has the tags, metadata and sources of its removal, and that collection's deduplication scope."""
    shared, own = "collection:shared", "collection:own"
    note = await base.note(
        "granite", tags=[shared], dedup_scope=shared, metadata={"n": 1}, source_path="/a.md"
    )
    await rewritten(base, note.id, "basalt")
    await base.store.write(documents.remove_tag, note.id, shared, None)
    await base.store.write(documents.add_tags, note.id, [own, "later"], None)
    await base.store.write(documents.set_metadata, note.id, {"n": 2}, None)
    gone = await base.store.read(documents.find, note.id)
    await base.store.write(documents.delete, note.id)
    back = await base.store.write(arrivals.restore, note.id, 1, None)
    assert (back.tags, back.metadata, back.source_paths) == (gone.tags, {"n": 2}, ["/a.md"])
    assert (back.sha256, back.version) == (note.sha256, gone.version + 1)
    again = await base.ingest(new_note("granite", tags=[own], dedup_scope=own), prepared("granite"))
    assert (again.document_id, again.deduplicated) == (note.id, True)


async def test_after_another_embedder_passages_are_embedded_anew(place: Place) -> None:
    """The kept version then has no vectors; the caller of restore supplies them."""
    async with opened(place) as base:
        note = await base.note("granite")
        await rewritten(base, note.id, "basalt")
    await reindex(place)
    async with opened(place, embedder=EmbedderIdentity(OTHER.name, OTHER.dimensions)) as base:
        with pytest.raises(arrivals.VectorsMissing) as missing:
            await base.store.write(arrivals.restore, note.id, 1, None)
        past: Past = missing.value.past
        assert [each.text for each in past.chunks] == ["granite"]
        vectors = by_length(["granite"])
        await base.store.write(arrivals.restore, note.id, 1, None, vectors)
        assert await base.titles("granite", "vector", vector=vectors[0]) == ["A note"]


async def test_a_removal_is_kept_or_has_not_been_where_the_engine_died(base: Base, tmp_path: Path) -> None:
    note = await base.note("granite")
    await base.store.write(documents.delete, note.id)
    place = await died(base, tmp_path / "left")
    async with opened(place) as after:
        await after.store.write(arrivals.restore, note.id, 1, None)
        assert await after.titles("granite") == [note.title]


async def test_a_version_with_lost_vectors_is_restored_with_new_ones(base: Base) -> None:
    """For example, the document was damaged when it was replaced."""
    if not isinstance(base.place, Path):
        pytest.skip("damaged by hand in SQLite alone")
    note = await base.note("granite")
    with direct(base.path) as db:
        db.execute("DELETE FROM vectors")
    await rewritten(base, note.id, "basalt")
    with pytest.raises(arrivals.VectorsMissing):
        await base.store.write(arrivals.restore, note.id, 1, None)
    vectors = np.array([meaning("granite")])
    assert (await base.store.write(arrivals.restore, note.id, 1, None, vectors)).chunk_count == 1
