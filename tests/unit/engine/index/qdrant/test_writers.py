"""Several engines follow one base: one writes at a time, and no engine undoes another's work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, replace

import pytest
from qdrant_client.models import PointStruct

from kb_engine.index.port import Changes, IndexQuery, IndexStats, IndexUnavailable
from kb_engine.index.qdrant import mark
from kb_engine.index.qdrant.index import QdrantIndex
from tests.support.documents_to_index import document
from tests.support.qdrant import QdrantServer, serving
from tests.support.qdrant_cores import EdgeCore
from tests.support.stores import SCORING

pytestmark = pytest.mark.process


@pytest.fixture
async def server() -> AsyncIterator[QdrantServer]:
    async with serving(EdgeCore()) as server:
        yield server


@asynccontextmanager
async def engines(server: QdrantServer, count: int = 2) -> AsyncIterator[list[QdrantIndex]]:
    """Yield several indexes; the first has created the collection."""
    indexes = [server.index() for _ in range(count)]
    await indexes[0].create(8)
    await indexes[0].apply(Changes(), 1)
    yield indexes
    for each in indexes:
        await each.close()


async def texts(index: QdrantIndex, word: str) -> int:
    return (await index.search(IndexQuery(word, "fts", None, SCORING, top=10))).total


async def test_changes_of_several_at_once_come_one_after_the_other(server: QdrantServer) -> None:
    """Each applies the changes that it has read; the state of the highest generation remains."""
    async with engines(server, 3) as indexes:
        for generation in range(2, 8):
            text = "apple" if generation % 2 else "pear"
            old = "pear" if generation % 2 else "apple"
            overtaken = Changes(upserts=[document(1, old, first=generation - 1)])
            newer = Changes(upserts=[document(1, text, first=generation)])
            await asyncio.gather(
                indexes[generation % 3].apply(newer, generation),
                indexes[(generation + 1) % 3].apply(overtaken, generation - 1),
                indexes[(generation + 2) % 3].apply(newer, generation),
            )
            assert (await texts(indexes[0], text), await texts(indexes[0], old)) == (1, 0)
        assert await indexes[1].stats() == IndexStats(1, 1, 7)


@pytest.mark.parametrize(
    ("member", "value"),
    [("analyser", "earlier"), ("reference", "long"), *((each, None) for each in asdict(mark.Mark()))],
)
async def test_an_index_of_an_earlier_analyser_or_with_an_incomplete_mark_is_rebuilt(
    server: QdrantServer, member: str, value: str | None
) -> None:
    """Without a value the mark lacks the member."""
    async with engines(server, 1) as (earlier,):
        written = {**(await earlier._collection.payload(mark.MARK_ID) or {}), member: value}
        if value is None:
            del written[member]
        await earlier._collection.put([PointStruct(id=mark.MARK_ID, vector={}, payload=written)])
    index = server.index()
    assert await index.generation() == 0
    await index.create(8)
    await index.apply(Changes(), 2)
    assert await index.generation() == 2
    await index.close()


async def test_another_engine_takes_over_from_a_dead_writer(
    server: QdrantServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mark, "LEASE", 0.01)
    async with engines(server) as (dead, living):
        server.breaks_after = 1
        with pytest.raises(IndexUnavailable):
            await dead.apply(Changes(upserts=[document(1, "apple")]), 2)
        await living.apply(Changes(upserts=[document(1, "pear")]), 2)
        assert await living.stats() == IndexStats(1, 1, 2)


async def test_a_closed_writer_releases_the_lease_at_once(
    server: QdrantServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also during the creation of the index, which another engine then starts again."""
    monkeypatch.setattr(mark, "LEASE", 1_000)
    ending, other = server.index(), server.index()
    await ending.create(8)
    await ending.apply(Changes(upserts=[document(1, "apple")]), 0)
    await ending.close()
    assert await other.generation() == 0
    await other.create(8)
    await other.apply(Changes(upserts=[document(2, "pear")]), 3)
    assert await other.stats() == IndexStats(1, 1, 3)
    await other.close()


async def test_a_writer_whose_lease_was_taken_over_causes_a_rebuild(
    server: QdrantServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have written a document older than the one it replaced."""
    async with engines(server) as (paused, other):
        held = await paused._marker.take()
        other._marker._watched = held.holder, held.beat
        other._marker._since = time.monotonic() - other._marker._lease_seconds
        await other.apply(Changes(upserts=[document(1, "apple")]), 3)

        async def take(_known: mark.Mark | None) -> mark.Mark:
            return held

        monkeypatch.setattr(paused._marker, "take", take)
        with pytest.raises(IndexUnavailable, match="taken over"):
            await paused.apply(Changes(upserts=[document(1, "pear")]), 2)
        assert await other.generation() == 0


async def test_a_mark_is_not_carried_into_a_collection_that_was_made_since(server: QdrantServer) -> None:
    """Otherwise the generation would claim that an empty index is complete."""
    async with engines(server) as (index, other):
        held = await index._marker.take()
        await server.lose_everything()
        await other._collection.make(8)
        with pytest.raises(IndexUnavailable, match="taken over"):
            await index._marker.change(held, generation=9)
        assert await other.generation() == 0
        await other._marker.begin(mark.Mark(build="another", dimensions=8, generation=3))
        with pytest.raises(IndexUnavailable, match="taken over"):
            await index._marker.change(replace(held, beat=1), generation=9)
        assert await other.generation() == 3


async def test_a_mean_length_of_many_digits_is_not_taken_for_another_engine(server: QdrantServer) -> None:
    """Qdrant returns 217.04528301886793 as 217.0452830188679, and some one in eight means like it."""
    async with engines(server, 1) as (index,):
        held = await index._marker.take()
        means = [57_517 / 265, *(words / chunks for words in (9_413, 15_227) for chunks in range(90, 100))]
        returned = []
        for mean in means:
            held = await index._marker.change(held, reference=mean)
            returned.append(held.reference)
        assert returned == pytest.approx(means, rel=1e-14)
        assert returned != means, "none of these has a last bit that changes"


async def test_only_one_of_two_makes_the_index(server: QdrantServer) -> None:
    first, second = server.index(), server.index()
    assert (await first.generation(), await second.generation()) == (0, 0)
    made = await asyncio.gather(first.create(8), second.create(8), return_exceptions=True)
    makers = [index for index, how in zip((first, second), made, strict=True) if how is None]
    for index in makers:
        try:
            await index.apply(Changes(upserts=[document(1, "apple")]), 0)
            await index.apply(Changes(), 9)
        except IndexUnavailable:
            continue
    if await first.generation() == 0:  # each undid the other's work: the next attempt is alone
        await first.create(8)
        await first.apply(Changes(upserts=[document(1, "apple")]), 9)
    assert await second.stats() == IndexStats(1, 1, 9)
    await first.close()
    await second.close()


async def test_an_engine_that_waited_for_the_creation_does_not_create_again(server: QdrantServer) -> None:
    first, second = server.index(), server.index()
    await second.generation()
    await first.create(8)
    waiting = asyncio.create_task(second.create(8))
    await first.apply(Changes(upserts=[document(1, "apple")]), 0)
    await first.apply(Changes(), 9)
    with pytest.raises(IndexUnavailable, match="meanwhile"):
        await waiting
    assert await second.stats() == IndexStats(1, 1, 9)
    await first.close()
    await second.close()


async def test_half_an_index_is_written_by_its_maker_alone(
    server: QdrantServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mark, "LEASE", 0.01)
    maker, other = server.index(), server.index()
    await maker.create(8)
    await maker.apply(Changes(upserts=[document(1, "apple")]), 0)
    with pytest.raises(IndexUnavailable, match="makes the search index"):
        await other.apply(Changes(), 9)
    assert await other.generation() == 0
    await maker.close()
    await other.close()


async def test_vectors_of_another_size_have_the_index_made_again(server: QdrantServer) -> None:
    async with engines(server) as (index, _):
        await index.apply(Changes(upserts=[document(1, "apple")]), 2)
        with pytest.raises(IndexUnavailable, match="of 8 numbers, and these have 4"):
            await index.apply(Changes(upserts=[document(2, "pear", dimensions=4)]), 3)
        assert await index.generation() == 0


async def test_the_first_vectors_say_how_long_they_are(server: QdrantServer) -> None:
    index = server.index()
    await index.create(0)
    await index.apply(Changes(), 4)
    assert (await index.search(IndexQuery("a", "hybrid", None, SCORING, top=1))).generation == 4
    await index.apply(Changes(upserts=[document(1, "apple", dimensions=4)]), 5)
    assert await index.stats() == IndexStats(1, 1, 5)
    assert await texts(index, "apple") == 1
    await index.close()
