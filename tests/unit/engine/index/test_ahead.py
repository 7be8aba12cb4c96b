"""The words of a query are looked up while its vector is computed, and changes meanwhile count."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kb_contracts.access.reach import REACH, Reach
from kb_contracts.api.errors import EngineError
from kb_engine.index.embedded import vectors
from kb_engine.index.embedded.selection import Lookup
from kb_engine.index.port import Selection, Vector
from kb_engine.store.port import Found, Query
from kb_engine.store.repository import documents
from kb_engine.store.sqlite.sqlite_store import SqliteStore
from tests.support.stores import SCORING, Base, all_documents, meaning, new_place, opened

TEXT = "bees keep warm"
HYBRID = Query(text=TEXT, mode="hybrid", vector=None, scoring=SCORING, top=10)
Change = Callable[[Base], Awaitable[Any]]


@pytest.fixture
async def base(base: Base, monkeypatch: pytest.MonkeyPatch) -> Base:
    monkeypatch.setattr(vectors, "BESIDE_ROWS", 0)
    await fill(base)
    return base


async def number_of(base: Base, title: str) -> int:
    return next(each.id for each in (await all_documents(base)).documents if each.title == title)


async def fill(base: Base) -> None:
    await base.note("bees keep warm by shivering", title="1", tags=["a"])
    await base.note("warm hands", title="2", tags=["a", "b"])
    await base.note("bees live in a hive", title="3")


async def tagged(base: Base) -> None:
    await base.store.once(None, documents.add_tags, await number_of(base, "3"), ["a"], None)


async def untagged(base: Base) -> None:
    await base.store.once(None, documents.remove_tag, await number_of(base, "1"), "a", None)


async def deleted(base: Base) -> None:
    await base.store.once(None, documents.delete, await number_of(base, "2"))


async def added(base: Base) -> None:
    await base.note("more bees that keep warm", title="4", tags=["a", "b"])


async def cleared(base: Base) -> None:
    await base.store.once(None, documents.clear)


async def nothing(_base: Base) -> None:
    pass


CHANGES = (tagged, untagged, deleted, added, cleared, nothing)


async def test_a_change_while_the_vector_is_made_counts(base: Base, subtests: pytest.Subtests) -> None:
    await compare_after_each(base, subtests, replace(HYBRID, selection=Selection(tags=["a"])))


@pytest.mark.parametrize(
    "query", [HYBRID, replace(HYBRID, mode="vector", selection=Selection(tags=["a"]))], ids=["all", "vector"]
)
async def test_a_change_counts_in_each_mode_and_selection(
    embedded: Base, monkeypatch: pytest.MonkeyPatch, query: Query, subtests: pytest.Subtests
) -> None:
    monkeypatch.setattr(vectors, "BESIDE_ROWS", 0)
    await compare_after_each(embedded, subtests, query)


async def compare_after_each(base: Base, subtests: pytest.Subtests, query: Query) -> None:
    for change in CHANGES:
        with subtests.test(change=change.__name__):
            await cleared(base)
            await fill(base)
            await compare(base, change, query)


async def compare(base: Base, change: Change, query: Query) -> None:
    """Check that a search during which the base changes gives the results of a search afterwards."""

    async def vector() -> Vector:
        await change(base)
        return meaning(TEXT)

    assert answers(await base.store.search(query, vector())) == answers(
        await base.store.search(replace(query, vector=meaning(TEXT)))
    )


async def test_a_reach_that_is_lost_while_the_vector_is_made_is_lost(base: Base) -> None:
    async def by_somebody_else() -> None:
        REACH.set(None)
        await untagged(base)

    async def vector() -> Vector:
        await asyncio.create_task(by_somebody_else())
        return meaning(TEXT)

    token = REACH.set(Reach(frozenset({"a"})))
    try:
        found = await base.store.search(replace(HYBRID, selection=Selection()), vector())
    finally:
        REACH.reset(token)
    assert [each.document.title for each in found.results] == ["2"]


async def test_a_text_without_a_word_of_the_index_is_searched_by_its_vector(
    base: Base, subtests: pytest.Subtests
) -> None:
    async def vector() -> Vector:
        return meaning(TEXT)

    for text in ("", "?!", "\u200b", "unheard-of"):
        with subtests.test(text=text):
            query = replace(HYBRID, text=text)
            found = await base.store.search(query, vector())
            assert answers(found) == answers(await base.store.search(replace(query, vector=meaning(TEXT))))
            assert found.results


async def test_an_embedder_error_fails_the_search_and_not_the_store(base: Base) -> None:
    async def vector() -> Vector:
        raise EngineError("embedder_unavailable", "The model cannot be used.")

    with pytest.raises(EngineError, match="cannot be used"):
        await base.store.search(HYBRID, vector())
    assert await base.titles(TEXT)


class TestSqlite:
    """The number and the time of word lookups."""

    @pytest.fixture
    async def base(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Base]:
        monkeypatch.setattr(vectors, "BESIDE_ROWS", 0)
        async with opened(await new_place("sqlite", tmp_path)) as base:
            await fill(base)
            yield base

    @pytest.fixture
    def lookups(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        made: list[str] = []
        begin = Lookup.__init__

        def noted(self: Lookup, *args: Any, **more: Any) -> None:
            made.append("words")
            begin(self, *args, **more)

        monkeypatch.setattr(Lookup, "__init__", noted)
        return made

    @pytest.mark.parametrize("changes", [False, True])
    async def test_they_are_looked_up_before_the_vector_is_there_and_again_after_a_change(
        self, base: Base, lookups: list[str], changes: bool
    ) -> None:
        async def vector() -> Vector:
            while not lookups:
                await base.store.read(documents.find, 1)
            lookups.append("vector")
            if changes:
                await tagged(base)
            return meaning(TEXT)

        await base.store.search(HYBRID, vector())
        assert lookups == ["words", "vector", *["words"] * changes]

    async def test_not_where_nothing_is_won(self, base: Base, lookups: list[str]) -> None:
        await base.store.search(replace(HYBRID, mode="vector"), late_vector(base, lookups))
        assert lookups[0] == "vector"

    async def test_not_of_a_small_index(
        self, base: Base, lookups: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(vectors, "BESIDE_ROWS", 4)

        await base.store.search(HYBRID, late_vector(base, lookups))
        assert lookups == ["vector", "words"]

    async def test_not_where_another_search_would_wait(self, base: Base, lookups: list[str]) -> None:
        assert isinstance(base.store, SqliteStore)
        turn = base.store._searching

        async def vector() -> Vector:
            for _ in range(5):
                await base.store.read(documents.find, 1)
            assert not lookups
            turn.release()
            return meaning(TEXT)

        while not turn.locked():
            await turn.acquire()
        await base.store.search(HYBRID, vector())
        assert lookups == ["words"]


async def late_vector(base: Base, lookups: list[str]) -> Vector:
    """Return a vector that takes long enough for a lookup to begin first."""
    for _ in range(5):
        await base.store.read(documents.find, 1)
    lookups.append("vector")
    return meaning(TEXT)


def answers(found: Found) -> Any:
    return [(each.chunk.id, each.score, each.tags) for each in found.results], found.total, found.weak
