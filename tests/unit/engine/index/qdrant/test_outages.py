"""For any response of Qdrant, the index gives the reason of a failure and raises no other error."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from kb_engine.index.port import Changes, IndexQuery, IndexUnavailable
from kb_engine.index.qdrant.index import QdrantIndex
from tests.support.qdrant import API_KEY, Fault, QdrantServer, serving
from tests.support.qdrant_cores import LocalCore
from tests.support.stores import SCORING, axis

pytestmark = pytest.mark.process

QUERY = IndexQuery("apple", "hybrid", axis(0), SCORING, top=3)


@pytest.fixture
async def server() -> AsyncIterator[QdrantServer]:
    async with serving(LocalCore(), key=API_KEY) as server:
        yield server


@pytest.fixture
async def index(server: QdrantServer) -> AsyncIterator[QdrantIndex]:
    index = server.index()
    await index.create(8)
    await index.apply(Changes(), 5)
    yield index
    await index.close()


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("unavailable", "answered 503 Service Unavailable: .*nobody answers"),
        ("cut", "cannot be reached"),
        ("torn", "cannot be reached"),
        ("garbage", "none of its protocol"),
        ("empty", "none of its protocol"),
        ("busy", "takes no more requests now"),
        ("denied", "does not accept QDRANT_API_KEY"),
    ],
)
async def test_a_fault_has_its_reason(
    index: QdrantIndex, server: QdrantServer, fault: Fault, why: str
) -> None:
    server.fault = fault
    with pytest.raises(IndexUnavailable, match=why) as caught:
        await index.search(QUERY)
    assert server.url in str(caught.value)
    assert API_KEY not in str(caught.value)
    server.fault = None
    assert (await index.search(QUERY)).generation == 5


async def test_silence_ends_with_the_time_of_a_request(server: QdrantServer) -> None:
    server.fault = "silent"
    shortest = 1  # in seconds
    index = server.index(timeout=shortest)
    with pytest.raises(IndexUnavailable, match=f"{server.url} did not answer within {shortest} s"):
        await index.search(QUERY)
    await index.close()


@pytest.mark.parametrize("fault", ["unavailable", "cut", "torn"])
async def test_each_call_says_so(index: QdrantIndex, server: QdrantServer, fault: Fault) -> None:
    server.fault = fault
    calls: list[Callable[[], Awaitable[object]]] = [
        index.generation,
        index.stats,
        index.drop,
        lambda: index.apply(Changes(), 6),
        lambda: index.create(8),
    ]
    for call in calls:
        with pytest.raises(IndexUnavailable):
            await call()


async def test_an_unreachable_qdrant_is_reported_with_its_address(server: QdrantServer) -> None:
    index = server.index(url="http://127.0.0.1:9")
    with pytest.raises(IndexUnavailable, match=r"Qdrant at http://127.0.0.1:9 cannot be reached"):
        await index.generation()
    await index.close()


async def test_an_index_that_wants_a_pause_says_how_long(index: QdrantIndex, server: QdrantServer) -> None:
    server.fault = "busy"
    with pytest.raises(IndexUnavailable) as caught:
        await index.generation()
    assert caught.value.retry_after == 7


async def test_a_wrong_key_is_told_from_an_outage(server: QdrantServer) -> None:
    index = server.index(api_key="another")
    with pytest.raises(IndexUnavailable, match="does not accept QDRANT_API_KEY"):
        await index.generation()
    await index.close()


async def test_a_collection_that_is_gone_has_no_generation(index: QdrantIndex, server: QdrantServer) -> None:
    await server.lose_everything()
    assert await index.generation() == 0
    assert (await index.search(QUERY)).generation == 0
    with pytest.raises(IndexUnavailable, match="is not there"):
        await index.apply(Changes(), 6)


async def test_a_broken_write_is_marked_only_when_it_was_repeated(
    index: QdrantIndex, server: QdrantServer
) -> None:
    server.breaks_after = 1  # the mark is held by then
    with pytest.raises(IndexUnavailable):
        await index.apply(Changes(deletes=[1]), 6)
    assert await index.generation() == 5
    await index.apply(Changes(deletes=[1]), 6)
    assert await index.generation() == 6
