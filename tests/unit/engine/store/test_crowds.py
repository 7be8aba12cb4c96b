"""Concurrent work: no partial document is visible, and of several requests for the same thing one succeeds.

On SQLite the callers share one engine, on PostgreSQL they use two.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_engine.store.port import Bounds
from kb_engine.store.repository import documents, jobs, state
from tests.support.postgres import Database
from tests.support.stores import Base, Place, all_documents, key, meaning, new_note, opened, prepared

pytestmark = pytest.mark.process

Engines = tuple[Base, Base]


@pytest.fixture
async def engines(base: Base, place: Place) -> AsyncIterator[Engines]:
    if isinstance(place, Database):
        async with opened(place) as other:
            yield base, other
    else:
        yield base, base


async def test_many_at_once_ingest_search_and_delete_without_a_torn_view(base: Base) -> None:
    """Each search sees whole documents, with all of their chunks."""
    texts = ["common one ", "common two ", "common three "]

    async def writer(number: int) -> None:
        job = await base.ingest_among_others(new_note(f"{number}"), prepared(*texts))
        if number % 3 == 0:
            await base.store.once(None, documents.delete, job.document_id)

    async def reader() -> None:
        found = await base.find("common", "hybrid", vector=meaning("common"), top=100)
        seen = [result.document.id for result in found.results]
        assert all(seen.count(document) == 3 for document in seen)

    await asyncio.gather(*(writer(number) for number in range(30)), *(reader() for _ in range(60)))
    assert await base.count("chunks") == 60
    assert (await base.find("common", top=100)).total == 60


async def test_every_job_is_taken_by_one_worker_only(engines: Engines) -> None:
    accepted = [await engines[0].accept(new_note(str(number))) for number in range(20)]
    taking = [base.store.write(jobs.take, f"L{number}") for number in range(20) for base in engines]
    ids = [leased.job.id for leased in await asyncio.gather(*taking) if leased is not None]
    assert sorted(ids) == sorted(job.id for job in accepted)


async def test_of_many_identical_submissions_one_document_comes(engines: Engines) -> None:
    leased = [
        (base, await base.lease(new_note("same", tags=[f"t{number}"])))
        for number, base in enumerate(engines * 5)
    ]
    done = await asyncio.gather(*(base.commit(one, prepared("same")) for base, one in leased))
    assert sorted(job.deduplicated for job in done if job) == [False] + [True] * 9
    (document,) = (await all_documents(engines[0])).documents
    assert len(document.tags) == 10


async def test_notes_that_wait_together_are_committed_together_and_fail_alone(place: Place) -> None:
    """The queue takes 12 of 14 notes, and one of these does not fit its vectors."""
    async with opened(place, bounds=Bounds(queued=12)) as base:
        notes = [new_note(str(number)) for number in range(14)]
        accepting = (base.store.once(None, jobs.accept, note) for note in notes)
        accepted = await asyncio.gather(*accepting, return_exceptions=True)
        refused = [answer.code for answer in accepted if isinstance(answer, EngineError)]
        assert refused == ["queue_full"] * 2
        leased = await base.store.write(jobs.take_several, 12, ["short"], lambda *_: ())
        assert {each.job.id for each in leased} == {job.id for job in accepted if isinstance(job, m.Job)}
        made = [prepared("a")] * 12
        made[5] = replace(made[5], chunks=[])
        committing = (
            base.store.write(documents.commit_note, *each) for each in zip(leased, made, strict=True)
        )
        done = await asyncio.gather(*committing, return_exceptions=True)
        assert [isinstance(job, ValueError) for job in done] == [number == 5 for number in range(12)]
        assert await base.count("documents") == 11


async def test_of_many_changes_on_one_version_one_wins(engines: Engines) -> None:
    document = await engines[0].note("a")
    answers = await asyncio.gather(
        *(
            base.store.once(None, documents.add_tags, document.id, [f"t{number}"], 1)
            for number, base in enumerate(engines * 5)
        ),
        return_exceptions=True,
    )
    refused = [answer.code for answer in answers if isinstance(answer, EngineError)]
    assert refused == ["version_conflict"] * 9
    assert len((await engines[0].detail(document.id)).tags) == 1


async def test_many_submissions_under_one_key_are_one_job(engines: Engines) -> None:
    asked = [base.store.once(key(), jobs.accept, new_note("a")) for base in engines * 4]
    assert len({job.id for job in await asyncio.gather(*asked)}) == 1
    assert (await engines[0].store.read(state.counts)).queue.queued == 1


async def test_a_change_that_comes_twice_at_once_under_one_key_is_done_once(engines: Engines) -> None:
    """The second request does not fail because of the version that the first has raised."""
    document = await engines[0].note("a")
    asked = [base.store.once(key(), documents.add_tags, document.id, ["t"], 1) for base in engines]
    first, second = await asyncio.gather(*asked)
    assert (first.version, second) == (2, first)
