"""Qdrant's omissions are bounded: an answer marked exact is exact, and a total is never too high."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from dataclasses import replace

import numpy as np
import pytest

from kb_contracts.api import models as m
from kb_engine.index.port import Changes, IndexedDocument, IndexQuery, Selection
from kb_engine.index.qdrant import querying
from kb_engine.index.qdrant.index import QdrantIndex
from tests.support.documents_to_index import document
from tests.support.qdrant import QdrantServer, serving
from tests.support.qdrant_cores import EdgeCore
from tests.support.remote_index import RemoteIndex, Server
from tests.support.stores import SCORING, between, meaning

pytestmark = pytest.mark.process

WORDS = ("apple", "pear", "plum", "fig", "kiwi", "lime", "nut", "rice")
SHALLOW = 4
"""Number of hits of each kind in the first requests."""


@pytest.fixture
async def server() -> AsyncIterator[QdrantServer]:
    async with serving(EdgeCore()) as server:
        yield server


@pytest.fixture
async def index(server: QdrantServer) -> AsyncIterator[QdrantIndex]:
    index = server.index()
    await index.create(8)
    yield index
    await index.close()


@pytest.fixture
def shallow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(querying, "FIRST_DEPTH", SHALLOW)
    monkeypatch.setattr(querying, "MOST_DEPTH", SHALLOW * querying.DEEPER)


def documents(seed: int, count: int = 60) -> list[IndexedDocument]:
    chance = random.Random(seed)
    return [
        document(
            number,
            *(" ".join(chance.choices(WORDS, k=chance.randint(1, 9))) for _ in range(chance.randint(1, 2))),
            tags=chance.sample("abc", k=1),
        )
        for number in range(1, count + 1)
    ]


@pytest.mark.usefixtures("shallow")
@pytest.mark.parametrize("seed", range(3))
async def test_results_marked_exact_equal_those_of_an_exhaustive_search(
    index: QdrantIndex, seed: int
) -> None:
    """Compared with an index that scores every chunk."""
    reference = RemoteIndex(Server())
    await reference.create(8)
    for each in (index, reference):
        await each.apply(Changes(upserts=documents(seed)), 1)
    chance, exact = random.Random(seed), 0
    for _ in range(40):
        text = " ".join(chance.choices(WORDS, k=chance.randint(1, 3)))
        query = IndexQuery(
            text,
            chance.choice(["fts", "vector", "hybrid"]),
            meaning(text),
            SCORING,
            top=chance.randint(1, 5),
            selection=Selection(tags=chance.sample("ab", k=chance.randint(0, 1))),
            min_score=chance.choice([0.0, 0.0, 0.5]),
        )
        found, expected = await index.search(query), await reference.search(query)
        assert found.total == expected.total if found.total_exact else found.total <= expected.total
        if not found.exact:
            continue
        exact += 1
        assert [one.chunk_id for one in found.best] == [one.chunk_id for one in expected.best]
        for one, other in zip(found.best, expected.best, strict=True):
            assert one.cosine == pytest.approx(other.cosine, abs=1e-6)
            assert one.bm25 == pytest.approx(other.bm25, abs=1e-6)
    assert exact > 5, "a bound that proves nothing is none"


@pytest.mark.usefixtures("shallow")
async def test_more_matches_than_came_are_counted_by_their_words(index: QdrantIndex) -> None:
    """Only if no other chunk is near."""
    far = [document(number, "apple", vectors=[between(0, 1, -0.5)]) for number in range(1, 41)]
    near = document(41, "pear", vectors=[between(0, 1, 0.9)])
    await index.apply(Changes(upserts=[*far, near]), 1)
    query = IndexQuery("apple", "hybrid", between(0, 1, 1.0), SCORING, top=2)
    assert (await index.search(query)).total == 41
    assert (await index.search(replace(query, mode="fts"))).total == 40
    assert (await index.search(replace(query, mode="vector"))).total == 1


@pytest.mark.usefixtures("shallow")
async def test_a_total_of_many_near_chunks_is_a_lower_bound(index: QdrantIndex) -> None:
    await index.apply(
        Changes(upserts=[document(n, "x", vectors=[between(0, 1, 1 - n / 100)]) for n in range(1, 41)]), 1
    )
    found = await index.search(IndexQuery("", "vector", between(0, 1, 1.0), SCORING, top=2))
    assert [one.chunk_id for one in found.best] == [100, 200]
    assert (found.exact, found.total_exact, found.total) == (True, False, SHALLOW)


@pytest.mark.parametrize("mode", ["fts", "vector", "hybrid"])
async def test_results_of_an_approximate_search_are_not_marked_exact(
    server: QdrantServer, mode: m.Mode
) -> None:
    index = server.index(exact_up_to=0)
    await index.create(8)
    await index.apply(Changes(upserts=documents(0)), 1)
    found = await index.search(IndexQuery("apple", mode, meaning("apple"), SCORING, top=2))
    assert found.exact == found.total_exact == (mode == "fts")
    assert len(found.best) == 2
    await index.close()


async def test_few_that_filters_leave_are_compared_all(server: QdrantServer) -> None:
    index = server.index(exact_up_to=10)
    await index.create(8)
    await index.apply(Changes(upserts=[*documents(0), document(99, "fig", tags=["rare"])]), 1)
    query = IndexQuery(
        "apple", "hybrid", meaning("apple"), SCORING, top=2, selection=Selection(tags=["rare"])
    )
    found = await index.search(query)
    assert (found.exact, [one.chunk_id for one in found.best]) == (True, [9900])
    await index.close()


async def test_built_segments_answer_as_the_new_ones(server: QdrantServer, index: QdrantIndex) -> None:
    """A server rewrites grown segments, and those with deletions, in the background."""
    await index.apply(Changes(upserts=documents(3)), 1)
    await index.apply(Changes(deletes=list(range(1, 50))), 2)
    query = IndexQuery("apple fig", "hybrid", meaning("apple fig"), SCORING, top=50)
    before = await index.search(query)
    assert isinstance(server.core, EdgeCore)
    server.core.optimize()
    after = await index.search(query)
    assert [one.chunk_id for one in after.best] == [one.chunk_id for one in before.best]
    assert np.allclose([one.bm25 or 0 for one in after.best], [one.bm25 or 0 for one in before.best])


async def test_texts_that_have_become_longer_are_bounded_too(
    index: QdrantIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sparse vectors date from when texts were short, so a long text would rank too low."""
    await index.apply(Changes(upserts=[document(1, "apple")]), 1)
    monkeypatch.setattr(querying, "FIRST_DEPTH", 1)
    monkeypatch.setattr(querying, "MOST_DEPTH", 1)
    long = [document(n, " ".join(["apple"] * n + ["pear"] * 90)) for n in range(2, 6)]
    await index.apply(Changes(upserts=long), 2)
    found = await index.search(IndexQuery("apple", "fts", None, SCORING, top=1))
    reference = RemoteIndex(Server())
    await reference.create(8)
    await reference.apply(Changes(upserts=[document(1, "apple"), *long]), 2)
    expected = await reference.search(IndexQuery("apple", "fts", None, SCORING, top=1))
    assert not found.exact or found.best[0].chunk_id == expected.best[0].chunk_id
