"""Collections: descriptions, counts, names and ids."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kb_contracts.api import ragler as r
from kb_engine.store.clock import stamp
from kb_engine.store.repository import collections, documents
from kb_engine.store.sqlite.reading import SqliteRead
from kb_engine.store.sqlite.schema import migrate
from tests.support.stores import START, Base, Place, direct, new_note, opened, prepared, refused

GUIDES = r.collection_id("guides")
ID = "00000000-0000-4000-8000-000000000000"
UNUSED = "00000000-0000-4000-8000-000000000001"


async def put(base: Base, id_: str, name: str, **said: Any) -> r.CollectionDetail:
    return await base.store.once(None, collections.put, id_, r.CollectionRequest(name=name, **said))


async def listed(base: Base) -> list[tuple[str, str, int]]:
    return [
        (each.name, each.id, each.chunk_count)
        for each in (await base.store.read(collections.every)).collections
    ]


# --- without a description ------------------------------------------------------------------------


async def test_each_collection_tag_in_use_is_a_collection(base: Base) -> None:
    """In the order of code points; the prefix alone names no collection, and other tags are ignored."""
    await base.note("1", tags=["collection:b", "collection:a", "x"])
    await base.note("2", "3", tags=["collection:a", "collection:"])
    await base.note("4", tags=["collection:Ä", "collection:Z", "collections", "collection"])
    assert await listed(base) == [
        (name, r.collection_id(name), n) for name, n in zip("ZabÄ", (1, 3, 1, 1), strict=True)
    ]


async def test_a_collection_adds_up_its_documents(base: Base) -> None:
    """Chunks, tokens, first creation and last change; a document without text counts as empty."""
    first = await base.note("a b c", "d", tags=["collection:guides"])
    base.clock.move(hours=1)
    job = new_note("empty", tags=["collection:guides"])
    await base.ingest(job, prepared())
    await base.note("e f", tags=["collection:other"])
    found = await base.store.read(collections.detail, GUIDES)
    assert (found.chunk_count, found.statistics.total_tokens, found.statistics.avg_chunk_size) == (2, 4, 2.0)
    assert (found.created_at, found.updated_at) == (first.created_at, stamp(START + timedelta(hours=1)))
    assert found.statistics.last_published == found.updated_at
    assert (found.id, found.description, found.created_by) == (GUIDES, "", r.ENGINE_USER)


async def test_an_update_changes_the_token_count_of_the_collection(base: Base) -> None:
    note = await base.note("a b c", tags=["collection:guides"])
    base.clock.move(hours=1)
    await base.update(note.id, "a", prepared("a"), version=1)
    found = await base.store.read(collections.detail, GUIDES)
    assert (found.statistics.total_tokens, found.created_at) == (1, note.created_at)
    assert found.updated_at > note.updated_at


# --- with a description ---------------------------------------------------------------------------


async def test_a_described_collection_keeps_what_was_said(place: Place) -> None:
    said: dict[str, Any] = {
        "description": "d",
        "created_by": "a@b",
        "target_audience": ["x"],
        "usage_scenarios": [],
    }
    async with opened(place) as base:
        put_ = await put(base, ID, "guides", **said)
    async with opened(place) as base:
        found = await base.store.read(collections.detail, ID)
        assert await listed(base) == [("guides", ID, 0)]
    assert found == put_
    assert {name: getattr(found, name) for name in said} == said
    assert found.created_at == found.updated_at == found.statistics.last_published == stamp(START)


async def test_every_description_is_later_than_what_was_before(base: Base) -> None:
    await base.note("1", tags=["collection:guides"])
    moments = [(await base.store.read(collections.detail, GUIDES)).updated_at]
    for text, hours in (("a", 0.0), ("b", 0.0), ("c", -2.0)):
        base.clock.move(hours=hours)
        moments.append((await put(base, GUIDES, "guides", description=text)).updated_at)
    assert moments == sorted(set(moments))


async def test_the_same_words_again_are_no_change(base: Base) -> None:
    first = await put(base, ID, "guides", description="d", created_by="a@b", target_audience=["x"])
    base.clock.move(hours=1)
    assert await put(base, ID, "guides", description="d", target_audience=["x"]) == first
    assert await put(base, ID, "guides", description="d", created_by="a@b", target_audience=["x"]) == first
    later = await put(base, ID, "guides", description="d", created_by="c@d", target_audience=["x"])
    assert (later.created_by, later.created_at) == ("c@d", first.created_at)
    assert later.updated_at > first.updated_at


async def test_a_described_collection_outlives_its_documents(base: Base) -> None:
    """Deleted singly or all at once; the collection goes if descriptions are cleared too."""
    await put(base, ID, "guides", description="d")
    note = await base.note("1", tags=["collection:guides", "collection:stones"])
    await base.store.once(None, documents.delete, note.id)
    assert await listed(base) == [("guides", ID, 0)]
    await base.note("2", tags=["collection:guides", "collection:stones"])
    await base.store.once(None, documents.clear)
    assert await listed(base) == [("guides", ID, 0)]
    assert (await base.store.read(collections.detail, ID)).description == "d"
    await base.note("3", tags=["collection:guides"])
    assert await listed(base) == [("guides", ID, 1)]
    await base.store.once(None, documents.clear, collections=True)
    assert await listed(base) == []


# --- names and ids --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("id_", "name", "named"),
    [
        (ID, "handbook", "guides"),
        (UNUSED, "guides", ID),
        (GUIDES, "guides", ID),
        (UNUSED, "stones", r.collection_id("stones")),
        (ID, "stones", "guides"),
        (r.collection_id("later"), "handbook", r.collection_id("handbook")),
    ],
)
async def test_names_and_ids_belong_together(base: Base, id_: str, name: str, named: str) -> None:
    await put(base, ID, "guides", description="d")
    await base.note("1", tags=["collection:stones"])
    before = await base.store.read(collections.every)
    error = await refused(put(base, id_, name))
    assert (error.code, named in error.detail) == ("collection_exists", True)
    assert await base.store.read(collections.every) == before


async def test_an_id_leads_to_one_name_and_a_name_to_one_id(base: Base) -> None:
    """A described collection's default id belongs to no collection."""
    await put(base, ID, "guides")
    await base.note("1", tags=["collection:guides", "collection:stones"])
    stones = r.collection_id("stones")
    assert [await base.store.read(collections.name_of, id_) for id_ in (ID, stones)] == ["guides", "stones"]
    assert await base.store.read(collections.ids, ["stones", "guides", "none", "stones"]) == {
        "stones": stones,
        "guides": ID,
    }
    assert await base.store.read(collections.ids, []) == {}
    assert (await refused(base.store.read(collections.name_of, GUIDES))).code == "collection_not_found"


@pytest.mark.parametrize("name", ["a'b", 'a"b', "%", "_", "collection:", "日本語", "API Documentation", " x"])
async def test_any_name_that_a_tag_carries_is_one(base: Base, name: str) -> None:
    await base.note("1", tags=[f"collection:{name}"])
    await base.note("2", tags=["collection:another"])
    id_ = r.collection_id(name)
    assert (await put(base, id_, name, description="d")).chunk_count == 1
    assert await base.store.read(collections.name_of, id_) == name
    assert (await base.store.read(collections.detail, id_)).description == "d"


def plan(tmp_path: Path, sql: str, values: Sequence[str]) -> list[str]:
    """Return SQLite's plan for a statement."""
    path = tmp_path / "kb.db"
    with direct(path) as db:
        migrate(db, path)
        return [row[3] for row in db.execute("EXPLAIN QUERY PLAN " + sql, values)]


@pytest.mark.parametrize("condition", ["tag > ? AND tag < ?", "tag = ?"])
def test_the_figures_come_from_indexes_alone(tmp_path: Path, condition: str) -> None:
    sql = collections.STATISTICS.format(index=SqliteRead.statistics_index, condition=condition)
    steps = plan(tmp_path, sql, ("collection:", "collection;")[: condition.count("?")])
    assert [step.split("(")[0].strip() for step in steps] == [
        "SEARCH document_tags USING COVERING INDEX document_tags_by_tag",
        "SEARCH d USING COVERING INDEX documents_figures",
    ]


def test_names_are_found_from_one_to_the_next(tmp_path: Path) -> None:
    """Each collection costs one lookup, for any number of documents."""
    steps = plan(tmp_path, collections.NAMES, ("a", "b", "b"))
    assert all("COVERING INDEX document_tags_by_tag" in step for step in steps if "document_tags" in step)
    assert not any(step.startswith("SCAN document_tags") for step in steps)
