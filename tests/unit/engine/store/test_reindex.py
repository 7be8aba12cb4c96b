"""A base changes its embedder at once, after every chunk is embedded; on PostgreSQL engines keep working."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_engine.embed.context import Passage
from kb_engine.index.port import Vectors
from kb_engine.store import port
from kb_engine.store.port import BaseInUse, BaseTooNew, EmbedderIdentity, EmbedderMismatch, NotABase
from kb_engine.store.postgres import opening as postgres
from kb_engine.store.postgres.schema import MIGRATIONS
from kb_engine.store.repository import documents
from kb_engine.store.sqlite import opening as sqlite
from tests.support.patience import ANSWER_SECONDS
from tests.support.postgres import Database, give_back, new_database
from tests.support.remote_index import RemoteIndex, Server
from tests.support.stores import EMBEDDER, Place, axis, new_note, opened, prepared, visit

OTHER = EmbedderIdentity("other", 3)


def by_length(texts: Sequence[str]) -> Vectors:
    """Embed a text by its length, in three dimensions."""
    return np.eye(3, dtype=np.float32)[[len(text) % 3 for text in texts]]


def embed_passages(passages: Sequence[Passage]) -> Vectors:
    return by_length([passage.text for passage in passages])


async def reindex(
    place: Place, *, embedder: EmbedderIdentity = OTHER, embed: Any = embed_passages, **more: Any
) -> int:
    if isinstance(place, Path):
        return sqlite.reindex_sqlite(place, embedder=embedder, embed=embed, **more)
    return await postgres.reindex_postgres(place.address, embedder=embedder, embed=embed, **more)


async def fill(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Add two documents of three chunks in all, by the test embedder; reindex in batches of two."""
    monkeypatch.setattr(port, "REINDEX_BATCH", 2)
    async with opened(place) as base:
        await base.note("a", "bb", vectors=[axis(0), axis(1)])
        await base.note("ccc")


@pytest.fixture
async def filled(place: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    await fill(place, monkeypatch)
    return place


@pytest.fixture
async def database(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Database]:
    database = await new_database()
    await fill(database, monkeypatch)
    yield database
    give_back(database)


async def test_all_chunks_are_embedded_anew_and_found(filled: Place) -> None:
    told: list[tuple[int, int]] = []
    count = await reindex(filled, progress=lambda *step: told.append(step))
    assert (count, told) == (3, [(0, 3), (2, 3), (3, 3)])
    async with opened(filled, embedder=OTHER) as base:
        found = await base.find("", "vector", vector=by_length(["bb"])[0])
        assert [(result.chunk.text, result.score) for result in found.results][:1] == [("bb", 1.0)]
        assert (await base.find("ccc")).total == 1
    with pytest.raises(EmbedderMismatch):
        await visit(filled)
    if isinstance(filled, Database):
        assert await filled.value("SELECT count(*) FROM next_vectors") == 0


async def test_an_index_that_keeps_its_data_for_itself_is_built_again(place: Place) -> None:
    """Its generation alone would not show that all vectors have changed."""
    server = Server()
    async with opened(place, index=RemoteIndex(server)) as base:
        await base.note("a", "bb", vectors=[axis(0), axis(1)])
        assert (await base.find("bb")).total == 1
    await reindex(place)
    async with opened(place, embedder=OTHER, index=RemoteIndex(server)) as base:
        found = await base.find("", "vector", vector=by_length(["bb"])[0])
        assert [(result.chunk.text, result.score) for result in found.results][:1] == [("bb", 1.0)]
    assert server.created == 2


class Recorded:
    """An embedder that records its input, and is interrupted after a number of batches."""

    def __init__(self, batches: int = 9) -> None:
        self.passages: list[Passage] = []
        self._batches = batches

    def __call__(self, passages: Sequence[Passage]) -> Vectors:
        if not self._batches:
            raise ZeroDivisionError
        self._batches -= 1
        self.passages += passages
        return embed_passages(passages)


async def test_an_interrupted_run_goes_on_where_it_stopped(filled: Place) -> None:
    """Until the end the base is unchanged; documents added and removed meanwhile are considered."""
    with pytest.raises(ZeroDivisionError):
        await reindex(filled, embed=Recorded(1))
    async with opened(filled) as base:
        assert (await base.find("", "vector", vector=axis(1))).results[0].chunk.text == "bb"
        await base.store.once(None, documents.delete, 1)
        await base.note("dddd")
    again = Recorded()
    assert await reindex(filled, embed=again) == 2
    assert [passage.text for passage in again.passages] == ["ccc", "dddd"]
    async with opened(filled, embedder=OTHER) as base:
        assert (await base.find("", "vector", vector=by_length(["dddd"])[0])).results[0].chunk.text == "dddd"


async def test_an_interrupted_reindex_for_another_embedder_is_discarded(filled: Place) -> None:
    with pytest.raises(ZeroDivisionError):
        await reindex(filled, embed=Recorded(1))
    again = Recorded()
    assert await reindex(filled, embedder=EmbedderIdentity("third", 3), embed=again) == 3
    assert len(again.passages) == 3


async def test_titles_and_headings_come_with_embedding_anew(filled: Place) -> None:
    """A base of an earlier version works without them until then, and is never mixed."""
    async with opened(filled, embedder=replace(EMBEDDER, context=True)) as base:
        assert not base.store.context
        assert (await base.find("", "vector", vector=axis(1))).results[0].chunk.text == "bb"
    again, wanted = Recorded(), replace(OTHER, context=True)
    await reindex(filled, embedder=wanted, embed=again)
    assert again.passages[0] == Passage("A note", None, "a")
    async with opened(filled, embedder=wanted) as base:
        assert base.store.context
    stored = EmbedderIdentity.noted(wanted.note, wanted.dimensions)
    assert (stored, wanted.fits(stored), OTHER.fits(stored)) == (wanted, True, False)


async def test_a_new_base_has_them_from_the_start(place: Place) -> None:
    for _ in range(2):
        async with opened(place, embedder=replace(EMBEDDER, context=True)) as base:
            assert base.store.context
            assert base.store.dimensions == EMBEDDER.dimensions


async def test_an_embedder_of_another_size_than_it_says_is_refused(filled: Place) -> None:
    with pytest.raises(ValueError, match="shape"):
        await reindex(filled, embedder=EmbedderIdentity("other", 4))
    await visit(filled)


async def test_a_file_in_use_is_not_touched(tmp_path: Path) -> None:
    async with opened(tmp_path / "kb.db"):
        with pytest.raises(BaseInUse):
            await reindex(tmp_path / "kb.db")


async def test_reindexing_a_missing_base_creates_none(tmp_path: Path) -> None:
    """Otherwise a mistyped name would succeed."""
    with pytest.raises(NotABase, match="there is none"):
        await reindex(tmp_path / "kb.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
async def test_where_no_engine_was_in_a_database_no_base_is_made() -> None:
    empty = await new_database()
    with pytest.raises(NotABase, match="no engine has used it"):
        await reindex(empty)
    give_back(empty)


@pytest.mark.process
async def test_a_layout_that_a_newer_engine_made_meanwhile_is_left_alone(database: Database) -> None:
    """The check is before the switch, which is the only visible change."""
    loop = asyncio.get_running_loop()

    def embed(passages: Sequence[Passage]) -> Vectors:
        migrated = database.execute(f"UPDATE layout SET version = {len(MIGRATIONS) + 1}")
        asyncio.run_coroutine_threadsafe(migrated, loop).result(ANSWER_SECONDS)
        return embed_passages(passages)

    with pytest.raises(BaseTooNew):
        await reindex(database, embed=embed)
    await database.execute(f"UPDATE layout SET version = {len(MIGRATIONS)}")
    async with opened(database) as base:
        assert (await base.find("", "vector", vector=axis(1))).results[0].chunk.text == "bb"
    await reindex(database)


@pytest.mark.process
async def test_an_engine_may_work_until_the_switch(database: Database) -> None:
    """Documents ingested during the run are embedded too; after the switch vectors are not mixed."""
    async with opened(database) as base:
        loop = asyncio.get_running_loop()
        written: list[m.Job] = []
        leased = await base.lease(new_note("late"))

        def embed(passages: Sequence[Passage]) -> Vectors:
            if not written:
                # Called on a thread: the engine's loop ingests a note before this batch is done.
                job = new_note("meanwhile", title="meanwhile")
                ingest = base.ingest_among_others(job, prepared("meanwhile", title=job.title))
                written.append(asyncio.run_coroutine_threadsafe(ingest, loop).result(ANSWER_SECONDS))
            return embed_passages(passages)

        assert await reindex(database, embed=embed) == 4
        for refused in (
            base.commit(leased, prepared("late")),
            base.find("ccc"),
            base.store.once(None, documents.add_tags, 1, ["t"], None),
        ):
            with pytest.raises(
                EngineError, match=r"filled by the embedder other \(3.*started with test"
            ) as caught:
                await refused
            assert caught.value.code == "not_ready"
        assert (await base.detail(3)).title == "meanwhile"
    async with opened(database, embedder=OTHER) as base:
        assert (await base.find("meanwhile")).total == 1
        near = await base.find("", "vector", vector=by_length(["meanwhile"])[0], top=10)
        assert "meanwhile" in [result.chunk.text for result in near.results]
        assert await base.count("vectors") == await base.count("chunks") == 4


async def test_languages_are_found_and_words_made_again(place: Place) -> None:
    """Until then a base of an earlier version gives the same results as before."""
    text = "Die alten Häuser am Fluss wurden im Frühling verkauft."
    async with opened(place) as base:
        await base.note(text, title="-")
        assert [await base.titles(word) for word in ("Häuser", "Haus")] == [["-"], []]
        before = (await base.find("Häuser")).results[0].score
    assert await reindex(place) == 1
    async with opened(place, embedder=OTHER) as base:
        assert [await base.titles(word) for word in ("Häuser", "Haus", "Hauses")] == [["-"]] * 3
        assert (await base.find("Häuser")).results[0].score == pytest.approx(before)
