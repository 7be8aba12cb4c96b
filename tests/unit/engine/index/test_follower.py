"""An index without access to the store follows it through outages, losses and crashes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kb_config import tracing
from kb_contracts.api.errors import EngineError
from kb_engine.index.port import Changes, Index, IndexStats, Selection
from kb_engine.store import store
from kb_engine.store.port import Found, Query
from kb_engine.store.repository import documents
from kb_engine.store.sqlite.sqlite_store import SqliteStore
from tests.support.documents_to_index import document
from tests.support.far_indexes import FAR, QDRANT, FarServer, far_away, stats_of
from tests.support.stores import (
    SCORING,
    Base,
    Place,
    all_documents,
    left_by_a_crash,
    meaning,
    new_note,
    opened,
    prepared,
)

WORDS = ("apple", "pear", "plum", "fig", "kiwi", "中国")


each_pair = pytest.mark.parametrize(
    ("place", "server"),
    [
        pytest.param("sqlite", "remote"),
        *(pytest.param("sqlite", *each.values, marks=each.marks) for each in QDRANT),
        pytest.param("postgres", "remote", marks=pytest.mark.process),
    ],
    indirect=True,
)
"""SQLite with each index, and PostgreSQL with one: a store does not know which index follows it."""


@pytest.fixture(params=FAR)
async def server(request: pytest.FixtureRequest) -> AsyncIterator[FarServer]:
    async with far_away(request.param) as server:
        yield server


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "BATCH", 3)
    monkeypatch.setattr(store, "_LONGEST_PAUSE", 0.1)


@asynccontextmanager
async def followed(place: Place, server: FarServer) -> AsyncIterator[Base]:
    async with opened(place, index=server.index()) as base:
        yield base


@pytest.fixture
async def base(place: Place, server: FarServer) -> AsyncIterator[Base]:
    async with followed(place, server) as base:
        yield base


async def refusal(base: Base, monkeypatch: pytest.MonkeyPatch) -> str:
    with monkeypatch.context() as impatient:
        impatient.setattr(store, "MAX_INDEX_WAIT_SECONDS", 0.05)
        with pytest.raises(EngineError) as caught:
            await base.find("apple")
    assert caught.value.code == "not_ready"
    return caught.value.detail


async def notes(base: Base, count: int) -> None:
    """Add documents 1 to `count`, of two chunks each."""
    for number in range(count):
        await base.note(f"apple {number}", "pear", dedup_scope=str(number))


async def found(base: Base, text: str = "apple", **filters: Any) -> list[int]:
    """Return the ids of the documents found, ascending, with one entry for each hit."""
    return sorted(result.document.id for result in (await base.find(text, top=100, **filters)).results)


@each_pair
async def test_a_completed_job_is_found_and_a_deleted_document_is_not(base: Base) -> None:
    """The next search waits for the index."""
    document = await base.note("apple", tags=["a"])
    assert await found(base, tags=["a"]) == [document.id]
    await base.store.once(None, documents.add_tags, document.id, ["b"], None)
    assert await found(base, tags=["b"]) == [document.id]
    await base.store.once(None, documents.remove_tag, document.id, "a", None)
    assert await found(base, tags=["a"]) == []
    await base.update(document.id, "pear", prepared("pear"))
    assert (await found(base), await found(base, "pear")) == ([], [document.id])
    await base.store.once(None, documents.delete, document.id)
    assert await found(base, "pear") == []


@each_pair
async def test_after_everything_was_removed_only_what_is_new_is_found(base: Base, server: FarServer) -> None:
    await notes(base, 2)
    assert await found(base) == [1, 2]
    server.out_of_service = True
    await base.note("apple before", dedup_scope="before")
    await base.store.once(None, documents.clear)
    await base.note("apple after")
    server.out_of_service = False
    assert await found(base) == [4]
    assert (await stats_of(server)).documents == 1


@each_pair
async def test_an_outage_delays_writes_and_refuses_searches(
    base: Base, server: FarServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older state is never searched; when the index is back it has every document once."""
    await base.note("apple")
    server.out_of_service = True
    await notes(base, 5)
    assert "nobody answers" in await refusal(base, monkeypatch)
    server.out_of_service = False
    assert await found(base) == [1, 2, 3, 4, 5, 6]


@each_pair
async def test_the_wait_for_the_index_is_a_step_of_the_trace(
    base: Base, server: FarServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider, kept = TracerProvider(shutdown_on_exit=False), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(tracing, "step", (made := tracing.Tracing(provider)).step)
    server.out_of_service = True
    await notes(base, 1)
    with made.begin("search", "SERVER", {}):
        await refusal(base, monkeypatch)
    assert [span.name for span in kept.get_finished_spans()] == [
        "store read languages",
        "store read generation",
        "wait for index",
        "search index",
        "search",
    ]
    server.out_of_service = False


@each_pair
async def test_changes_of_which_a_part_arrived_are_applied_again(base: Base, server: FarServer) -> None:
    assert await found(base) == []
    server.out_of_service = True
    await notes(base, 7)
    server.out_of_service, server.breaks_after = False, 2
    assert (await found(base), server.breaks_after) == (list(range(1, 8)), None)
    stats = await stats_of(server)
    assert (stats.documents, stats.chunks) == (7, await base.count("chunks"))


@each_pair
async def test_a_lost_index_is_built_again(base: Base, server: FarServer) -> None:
    """Also if it breaks during the rebuild; until the end no search uses the incomplete index."""
    await notes(base, 7)
    assert await found(base) == list(range(1, 8))
    await server.lose_everything()
    server.breaks_after = 4
    assert await found(base) == list(range(1, 8))
    assert server.created >= 2


@each_pair
async def test_searches_during_a_loss_answer_all_or_nothing(base: Base, server: FarServer) -> None:
    """Each search gets all results once the index is complete again, or is refused."""
    await notes(base, 7)
    assert await found(base) == list(range(1, 8))

    searches = [asyncio.create_task(found(base)) for _ in range(5)]
    await server.lose_everything()
    searches += [asyncio.create_task(found(base)) for _ in range(5)]
    for answer in await asyncio.gather(*searches, return_exceptions=True):
        refused = isinstance(answer, EngineError) and answer.code == "not_ready"
        assert refused or answer == list(range(1, 8))
    assert await found(base) == list(range(1, 8))


@each_pair
async def test_the_log_is_forgotten_once_it_is_applied(base: Base) -> None:
    await notes(base, 5)
    assert await found(base) == [1, 2, 3, 4, 5]
    assert await base.count("index_changes") == 0


async def test_changes_committed_before_a_crash_are_applied_after_it(
    tmp_path: Path, server: FarServer
) -> None:
    async with followed(tmp_path / "kb.db", server) as base:
        await base.note("apple")
        assert await found(base) == [1]
        server.out_of_service = True
        await notes(base, 4)
        await base.store.once(None, documents.delete, 1)
        left = left_by_a_crash(base, tmp_path / "after")
    server.out_of_service = False
    async with followed(left, server) as later:
        assert await found(later) == [2, 3, 4, 5]
        assert server.created == 1


@each_pair
async def test_changes_by_engines_without_the_index_are_not_overlooked(
    place: Place, server: FarServer
) -> None:
    """The index is rebuilt, because the changes were not recorded."""
    async with followed(place, server) as base:
        await notes(base, 2)
        assert await found(base) == [1, 2]
    async with opened(place) as base:
        await base.note("apple of others")
        assert await found(base) == [1, 2, 3]
        await base.store.once(None, documents.delete, 1)
    async with followed(place, server) as base:
        assert await found(base) == [2, 3]
        assert server.created == 2


@each_pair
async def test_the_index_of_another_base_is_not_searched(place: Place, server: FarServer) -> None:
    """Its generation is ahead of this base's."""
    index = server.index()
    await index.create(8)
    await index.apply(Changes(), 1_000)
    await index.close()
    async with followed(place, server) as base:
        await base.note("apple")
        assert await found(base) == [1]


@pytest.mark.requirement("R84")
async def test_applying_again_changes_nothing_and_the_overtaken_are_left_out(server: FarServer) -> None:
    index: Index = server.index()
    await index.create(8)
    assert await index.stats() == IndexStats(0, 0, 0)
    for _ in range(2):
        await index.apply(Changes(deletes=[7], upserts=[document(1, "apple", "pear")]), 3)
        assert await index.stats() == IndexStats(1, 2, 3)
    await index.apply(Changes(cleared=True), 2)
    assert await index.stats() == IndexStats(1, 2, 3)
    await index.apply(Changes(deletes=[1], upserts=[document(2, "fig")]), 4)
    assert await index.stats() == IndexStats(1, 1, 4)
    await index.drop()
    await index.drop()
    assert await index.generation() == 0
    await index.close()


@pytest.mark.parametrize("seed", range(4))
async def test_any_history_with_faults_leads_to_the_answers_of_the_base_itself(
    tmp_path: Path, server: FarServer, seed: int
) -> None:
    """The same chunks with the same scores and totals, across outages and losses of the index."""
    chance = random.Random(seed)
    async with followed(tmp_path / "kb.db", server) as base:
        for number in range(40):
            await change(base, chance, number)
            if chance.random() < 0.2:
                server.out_of_service = not server.out_of_service
            if chance.random() < 0.1:
                server.breaks_after = chance.randint(0, 2)
            if chance.random() < 0.05:
                await server.lose_everything()
            if chance.random() < 0.3:
                server.out_of_service = False
                await same_answers(base, chance)
        server.out_of_service = False
        await same_answers(base, chance)


async def change(base: Base, chance: random.Random, number: int) -> None:
    there = (await all_documents(base)).documents
    what = chance.choice(["add", "add", "add", "tag", "delete", "clear" if chance.random() < 0.2 else "add"])
    if what == "add" or not there:
        texts = [" ".join(chance.choices(WORDS, k=4)) for _ in range(chance.randint(0, 3))]
        job = new_note(f"{number}", title="untitled", tags=chance.sample("abc", k=1), dedup_scope=str(number))
        await base.ingest(job, prepared(*texts, title="untitled"))
    elif what == "tag":
        await base.store.once(
            None, documents.add_tags, chance.choice(there).id, [chance.choice("abcd")], None
        )
    elif what == "delete":
        await base.store.once(None, documents.delete, chance.choice(there).id)
    else:
        await base.store.once(None, documents.clear)


async def in_the_base(base: Base, query: Query) -> Found:
    """Return the results of the embedded index, which is not used while there is a remote one."""
    store = base.store
    assert isinstance(store, SqliteStore)
    follower, store._follower = store._follower, None
    try:
        return await store.search(query)
    finally:
        store._follower = follower


async def same_answers(base: Base, chance: random.Random) -> None:
    text = " ".join(chance.choices(WORDS, k=2))
    query = Query(text=text, mode="hybrid", vector=meaning(text), scoring=SCORING, top=100, explain=True)
    for selection in (Selection(), Selection(tags=["a"])):
        for mode in ("fts", "vector", "hybrid"):
            chosen = replace(query, mode=mode, selection=selection)
            near = await in_the_base(base, chosen)
            far = await base.store.search(chosen)
            assert far.total == near.total
            assert [one.chunk.id for one in far.results] == [one.chunk.id for one in near.results]
            assert [one.score for one in far.results] == pytest.approx(
                [one.score for one in near.results], abs=2e-6
            )
