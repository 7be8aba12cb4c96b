"""Changes of different documents run concurrently; conflicting ones wait, and then see the other's result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from kb_contracts.api.errors import EngineError
from kb_contracts.api.ragler import CollectionRequest
from kb_engine.embed.context import Passage
from kb_engine.index.port import Vectors
from kb_engine.store.port import EmbedderIdentity, LeasedJob
from kb_engine.store.postgres import postgres_store
from kb_engine.store.postgres.connection import connect
from kb_engine.store.postgres.opening import reindex_postgres
from kb_engine.store.postgres.schema import MIGRATIONS, migrate
from kb_engine.store.postgres.transaction import layout_version, set_embedder
from kb_engine.store.repository import collections, documents, jobs, state
from kb_engine.store.repository.transaction import Read
from tests.support.patience import ANSWER_SECONDS
from tests.support.postgres import Database, new_database
from tests.support.remote_index import RemoteIndex, Server
from tests.support.side_by_side import in_flight, waiting
from tests.support.stores import EMBEDDER, Base, all_documents, axis, key, new_note, opened, prepared, visit

pytestmark = pytest.mark.process

ID = "00000000-0000-4000-8000-000000000000"


@pytest.fixture
async def one(database: Database) -> AsyncIterator[Base]:
    async with opened(database) as base:
        yield base


@pytest.fixture
async def other(database: Database) -> AsyncIterator[Base]:
    async with opened(database) as base:
        yield base


async def test_notes_that_wait_together_share_a_transaction(one: Base) -> None:
    async def transactions(read: Read) -> int:
        return int(await read.value("SELECT count(DISTINCT xmin::text) FROM documents"))

    leased = [await one.lease(new_note(str(number))) for number in range(12)]
    committing = (one.store.write(documents.commit_note, each, prepared("n")) for each in leased)
    assert all(await asyncio.gather(*committing))
    assert await one.store.read(transactions) <= 3


async def test_groups_of_two_engines_with_the_same_contents_do_not_block_each_other(
    one: Base, other: Base
) -> None:
    texts = [f"t{number}" for number in range(10)]
    here = [await one.lease(new_note(text)) for text in texts]
    there = [await other.lease(new_note(text)) for text in reversed(texts)]
    committing = [
        base.store.write(documents.commit_note, leased, prepared("x"))
        for base, leases in ((one, here), (other, there))
        for leased in leases
    ]
    done = await asyncio.gather(*committing)
    assert sorted(job.deduplicated for job in done if job) == [False] * 10 + [True] * 10


async def test_notes_that_wait_for_another_engine_do_not_hold_up_others(
    one: Base, other: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are as many as there may be groups."""
    monkeypatch.setattr(postgres_store, "GROUP_LOCK_MS", 100)
    held = await other.lease(new_note("same"))
    same = [await one.lease(new_note("same", tags=[str(number)])) for number in range(2)]
    different = [await one.lease(new_note(str(number))) for number in range(4)]

    def committing(leased: LeasedJob) -> asyncio.Future[Any]:
        return asyncio.ensure_future(one.store.write(documents.commit_note, leased, prepared("n")))

    async with in_flight(other, documents.commit, held, prepared("n")):
        blocked = [committing(leased) for leased in same]
        assert all(await asyncio.gather(*map(committing, different[:2])))
        assert all(await asyncio.gather(*map(committing, different[2:])))
        assert not any(each.done() for each in blocked)
    assert all(job.deduplicated for job in await asyncio.gather(*blocked))


async def test_groups_of_two_engines_with_the_same_keys_do_not_block_each_other(database: Database) -> None:
    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    before = await database.value(deadlocks)
    async with opened(database) as one, opened(database) as other:
        accepting = (
            base.store.once(key(str(number)), jobs.accept, new_note(str(number)))
            for base, numbers in ((one, range(30)), (other, reversed(range(30))))
            for number in numbers
        )
        accepted = await asyncio.gather(*accepting)
    assert len({job.id for job in accepted}) == 30
    assert await database.value(deadlocks) == before


async def test_changes_of_other_documents_go_on_beside_a_commit(one: Base, other: Base) -> None:
    """Changes of any kind are committed while the other commit is open."""
    standing = [await one.note(text) for text in ("a", "b", "c")]
    leased = await one.lease(new_note("d"))
    async with in_flight(one, documents.commit, leased, prepared("d")) as commit:
        await other.note("e")
        await other.update(standing[0].id, "aa", prepared("aa"))
        await other.store.once(key(), documents.add_tags, standing[1].id, ["t"], 1)
        await other.store.once(None, documents.delete, standing[2].id)
        await other.store.once(None, collections.put, ID, CollectionRequest(name="n", description="d"))
        same = await other.lease(new_note("b"))
        assert await other.store.write(documents.commit_duplicate, same) is not None
        assert [each.title for each in (await all_documents(other)).documents] == ["A note"] * 3
        assert not commit.done()
    assert (await all_documents(other)).total == 4
    assert (await other.find("d")).total == 1


async def test_a_second_change_of_one_version_sees_the_first(
    database: Database, one: Base, other: Base
) -> None:
    note = await one.note("a")
    second = other.store.once(None, documents.add_tags, note.id, ["u"], 1)
    async with in_flight(one, documents.add_tags, note.id, ["t"], 1), waiting(database, second) as refused:
        pass
    with pytest.raises(EngineError, match="version"):
        await refused
    assert (await other.detail(note.id)).tags == ["t"]


async def test_the_same_content_in_one_scope_is_one_document_and_in_another_a_second(
    database: Database, one: Base, other: Base
) -> None:
    leased = [await one.lease(new_note("a", dedup_scope=scope)) for scope in ("s", "s", "t")]
    async with in_flight(one, documents.commit, leased[0], prepared("a")):
        assert not (await other.commit(leased[2], prepared("a"))).deduplicated  # type: ignore[union-attr]
        async with waiting(database, other.commit(leased[1], prepared("a"))) as second:
            pass
    assert (await second).deduplicated
    assert (await all_documents(one)).total == 2


async def test_a_note_that_is_being_deleted_is_no_duplicate(
    database: Database, one: Base, other: Base
) -> None:
    """The younger of two duplicates counts, once the older one is gone."""
    scoped: dict[str, Any] = {"dedup_scope": "s", "tags": ["s"]}
    older = await one.note("a", **scoped)
    leased = await one.lease(new_note("a", **scoped))
    async with (
        in_flight(one, documents.delete, older.id),
        waiting(database, other.commit(leased, prepared("a"))) as commit,
    ):
        pass
    added = await commit
    assert (added.deduplicated, added.document_id > older.id) == (False, True)


async def test_a_note_that_is_leaving_its_scope_is_no_duplicate(
    database: Database, one: Base, other: Base
) -> None:
    scoped: dict[str, Any] = {"dedup_scope": "s", "tags": ["s"]}
    moved = await one.note("a", **scoped)
    leased = await one.lease(new_note("a", **scoped))
    async with (
        in_flight(one, documents.remove_tag, moved.id, "s", None),
        waiting(database, other.commit(leased, prepared("a"))) as commit,
    ):
        pass
    assert not (await commit).deduplicated


async def test_clearing_waits_for_a_commit_and_removes_its_document(
    database: Database, one: Base, other: Base
) -> None:
    leased = await one.lease(new_note("a"))
    async with (
        in_flight(one, documents.commit, leased, prepared("a")),
        waiting(database, other.store.once(None, documents.clear)) as cleared,
    ):
        pass
    assert (await cleared).documents == 1
    counts = await one.store.read(state.counts)
    assert (counts.documents.total, await database.value("SELECT chunks FROM totals")) == (0, 0)


async def test_totals_are_counted_while_another_transaction_holds_a_counter(
    database: Database, one: Base
) -> None:
    """A row of counters that another transaction holds is skipped."""
    await one.note("a b")
    db = await connect(database.address)
    try:
        async with asyncio.timeout(ANSWER_SECONDS), db.transaction():
            await db.execute("SELECT FROM counters FOR UPDATE")
            await one.note("c d e")
            note = await one.note("f")
            await one.store.once(None, documents.delete, note.id)
    finally:
        await db.close()
    counted = await database.ask(lambda db: db.fetchrow("SELECT chunks, words FROM totals"))
    assert counted == await database.ask(lambda db: db.fetchrow("SELECT count(*), sum(words) FROM chunks"))
    assert await one.store.read(state.generation) == 5
    assert (await one.store.read(state.counts)).last_updated is not None
    assert await one.count("counters") == 2


async def test_a_beat_brings_the_totals_to_where_engines_of_before_look(
    database: Database, one: Base, other: Base
) -> None:
    """They read the base's row while engines are upgraded."""
    await one.note("a b")
    leased = await one.lease(new_note("c"))
    async with in_flight(one, documents.commit, leased, prepared("c")):
        await other.store.beat()
    base = "SELECT chunks, words, changes FROM base"
    first = await database.ask(lambda db: db.fetchrow(base))
    await other.store.beat()
    assert first["chunks"] == 1
    totals = await database.ask(lambda db: db.fetchrow("SELECT chunks, words, changes FROM totals"))
    assert await database.ask(lambda db: db.fetchrow(base)) == totals
    assert (totals["chunks"], await one.count("counters")) == (2, 0)


async def test_engines_of_layout_5_do_no_harm_while_their_base_is_migrated() -> None:
    """They lock the base's row, which counts ids, and then read the layout's version again."""
    database = await new_database(empty=True)
    earlier, later = await connect(database.address), await connect(database.address)
    try:
        await earlier.execute("CREATE EXTENSION vector")
        await migrate(earlier, database.address, MIGRATIONS[:5])
        await set_embedder(earlier, EMBEDDER)
        async with asyncio.timeout(ANSWER_SECONDS), later.transaction():
            assert await layout_version(later) == 5
            async with earlier.transaction():
                await earlier.execute("UPDATE base SET last_document = 4, last_chunk = 9")
                async with waiting(database, visit(database)) as migrated:
                    pass
            await migrated
            await later.execute("SELECT FROM base FOR UPDATE")
            assert await layout_version(later) == len(MIGRATIONS)
    finally:
        await earlier.close()
        await later.close()
    async with opened(database) as base:
        note = await base.note("a")
        assert (note.id, [each.id for each in (await base.detail(note.id)).chunks]) == (5, [10])


async def test_only_one_learns_at_a_time_how_long_work_takes(one: Base, other: Base) -> None:
    """A commit that would have to wait skips the measurement."""
    leased = [await one.lease(new_note(text)) for text in ("a", "b")]
    async with in_flight(one, documents.commit, leased[0], prepared("a")):
        assert await other.commit(leased[1], prepared("b")) is not None
    assert await one.count("measures") == 1


# A document with lower ids than another one is committed after it, by another engine.


@asynccontextmanager
async def overtaken(one: Base, other: Base) -> AsyncIterator[None]:
    """Within the block only the second of two documents is committed, and after it the first too."""
    leased = await one.lease(new_note("apple a"))
    async with in_flight(one, documents.commit, leased, prepared("apple a")):
        second = await other.note("apple b", "apple c")
        assert (second.id, [each.id for each in (await other.detail(second.id)).chunks]) == (2, [2, 3])
        yield


async def found(base: Base) -> list[tuple[int, float]]:
    return [(each.chunk.id, each.score) for each in (await base.find("apple")).results]


async def test_searches_score_what_was_overtaken_as_if_it_had_been_there_first(
    database: Database, one: Base, other: Base
) -> None:
    """An engine's cache of words between two searches is of one state of the base."""
    async with overtaken(one, other):
        assert [chunk for chunk, _ in await found(other)] == [2, 3]
    async with opened(database) as fresh:
        assert await found(other) == await found(fresh)
    assert [chunk for chunk, _ in await found(other)] == [1, 2, 3]


async def test_a_list_by_id_has_what_was_overtaken_in_its_place(one: Base, other: Base) -> None:
    async with overtaken(one, other):
        assert [each.id for each in (await all_documents(other)).documents] == [2]
    assert [each.id for each in (await all_documents(other)).documents] == [1, 2]


async def test_a_reindex_embeds_what_was_overtaken(database: Database, one: Base, other: Base) -> None:
    embedded: list[str] = []

    def embed(passages: Sequence[Passage]) -> Vectors:
        embedded.extend(passage.text for passage in passages)
        return np.array([axis(1)] * len(passages))

    again = EmbedderIdentity("again", EMBEDDER.dimensions)
    async with overtaken(one, other):
        reindexing = reindex_postgres(database.address, embedder=again, embed=embed)
        async with waiting(database, reindexing) as reindexed:
            pass
    assert (await reindexed, embedded) == (3, ["apple b", "apple c", "apple a"])
    assert await one.count("vectors") == 3


async def test_an_index_that_is_built_meanwhile_gets_what_was_overtaken_from_the_log(
    database: Database,
) -> None:
    server = Server()
    async with opened(database, index=RemoteIndex(server)) as one:
        assert await found(one) == []
        await server.lose_everything()
        async with overtaken(one, one):
            assert [chunk for chunk, _ in await found(one)] == [2, 3]
        assert [chunk for chunk, _ in await found(one)] == [1, 2, 3]
        assert server.created == 2


@pytest.fixture
def index() -> RemoteIndex:
    """An index out of service, so that the log is kept."""
    return RemoteIndex(Server(out_of_service=True))


async def test_the_log_grows_with_the_commits_of_all_engines(database: Database, index: RemoteIndex) -> None:
    """A reader up to a generation has missed no earlier one, however the changes overlap."""
    async with opened(database, index=index) as one, opened(database, index=index) as other:
        seen: set[int] = set()

        async def follow() -> None:
            applied = 1
            while len(seen) < 20:
                pending = await one.store.read(state.changes_since, applied, 100)
                assert pending is not None, "a gap in the log"
                changes, applied = pending
                seen.update(document.id for document in changes.upserts)

        writing = [
            base.ingest_among_others(new_note(f"{number}"), prepared(f"{number}"))
            for number, base in enumerate((one, other) * 10)
        ]
        async with asyncio.timeout(ANSWER_SECONDS):
            await asyncio.gather(follow(), *writing)
        assert len(seen) == 20


async def test_changes_by_an_engine_without_the_index_make_a_gap_in_the_log(
    database: Database, index: RemoteIndex, one: Base
) -> None:
    """At any time: before, during and after a logged change."""
    async with opened(database, index=index) as logging:
        leased = await logging.lease(new_note("a"))
        async with in_flight(logging, documents.commit, leased, prepared("a")):
            await one.note("b")
        assert await logging.store.read(state.changes_since, 1, 100) is None
        latest = await logging.store.read(state.generation)
        await logging.note("c")
        changes, applied = await logging.store.read(state.changes_since, latest, 100)
        assert ([document.title for document in changes.upserts], applied) == (["A note"], latest + 1)
        await one.note("d")
        assert await logging.store.read(state.changes_since, applied, 100) is None
