"""Searches that wait for their turn are scanned together, and a cancelled one leaves the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kb_contracts.api.models import Mode, SearchRequest
from kb_engine.api.search import selection_of
from kb_engine.index.embedded.vectors import QuantisedQuery, QuantisedVectors
from kb_engine.store.port import Found, Query
from kb_engine.store.sqlite.sqlite_store import SqliteStore
from tests.support.loop_clock import turns
from tests.support.stores import SCORING, Base, meaning, new_place, opened

TEXTS = ["bees keep warm", "warm hands", "a hive of bees", "cold hands"]


@pytest.fixture
async def base(tmp_path: Path) -> AsyncIterator[Base]:
    async with opened(await new_place("sqlite", tmp_path)) as base:
        yield base


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of searches in each shared scan from now on."""
    counts: list[int] = []
    products = QuantisedVectors.shared_products

    def noted(self: QuantisedVectors, some: Sequence[QuantisedQuery], rows: slice) -> Iterator[Any]:
        counts.append(len(some))
        return products(self, some, rows)

    monkeypatch.setattr(QuantisedVectors, "shared_products", noted)
    return counts


async def test_a_cancelled_search_leaves_those_that_wait_with_it(base: Base, together: list[int]) -> None:
    assert isinstance(base.store, SqliteStore)
    for number, text in enumerate(TEXTS):
        await base.note(text, title=str(number), tags=[] if number else ["a"])
    queries = [*(query_of(text, "hybrid") for text in TEXTS), query_of("bees", "hybrid", "a")]
    alone = [ranking(await base.store.search(query)) for query in queries]
    async with one_at_a_time(base.store) as begin:
        cancelled = asyncio.create_task(base.store.search(queries[1]))
        searches = [asyncio.create_task(base.store.search(query)) for query in queries]
        await turns(5)
        assert len(base.store._turns.waiting) == 1 + len(queries)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        begin()
        assert list(map(ranking, await asyncio.gather(*searches))) == alone
    assert together == [4]
    assert base.store._turns.waiting == ()


async def test_searches_in_the_only_collection_are_scanned_together(base: Base, together: list[int]) -> None:
    """A filter that all chunks pass excludes nothing, which the store knows after its first use."""
    assert isinstance(base.store, SqliteStore)
    for number, text in enumerate(TEXTS):
        await base.note(text, title=str(number), tags=["collection:memory"])
    queries = [query_of(text, "vector", "collection:memory") for text in TEXTS]
    alone = [ranking(await base.store.search(query)) for query in queries]
    assert together == []
    assert [ranking(found) for found in await at_once(base.store, queries)] == alone
    assert together == [len(TEXTS)]
    await base.note("elsewhere", title="elsewhere", tags=["collection:other"])
    await base.store.search(queries[0])
    together.clear()
    assert [ranking(found)[0] for found in await at_once(base.store, queries)] == [each[0] for each in alone]
    assert together == [], "the collection is now a part of the base"


def query_of(text: str, mode: Mode, *tags: str) -> Query:
    selection = selection_of(SearchRequest(query=text, tags=list(tags)))
    return Query(text=text, mode=mode, vector=meaning(text), scoring=SCORING, top=10, selection=selection)


@asynccontextmanager
async def one_at_a_time(store: SqliteStore) -> AsyncIterator[Callable[[], None]]:
    """Hold the turns of all searches; yield a function that lets them run, one at a time."""
    turn, held = store._searching, 0
    while not turn.locked():
        await turn.acquire()
        held += 1
    yield turn.release
    for _ in range(held - 1):
        turn.release()


async def at_once(store: SqliteStore, queries: Sequence[Query]) -> list[Found]:
    """Search while each search waits for its turn, then let them run one at a time."""
    async with one_at_a_time(store) as begin:
        searches = [asyncio.create_task(store.search(query)) for query in queries]
        await turns(5)
        assert len(store._turns.waiting) == len(queries)
        begin()
        return await asyncio.gather(*searches)


def ranking(found: Found) -> Any:
    return [(each.chunk.id, each.score) for each in found.results], found.total, found.weak
