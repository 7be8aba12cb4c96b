"""Updates of notes are jobs: durable, joined if equal, done in the order of acceptance."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_contracts.semantics.requests import Idempotency
from kb_engine.store.repository import documents, jobs, state, updates
from kb_engine.store.repository.transaction import answer_to
from tests.support.contract_objects import job_error
from tests.support.stores import Base, Place, died, key, opened, prepared, refused


@pytest.fixture
async def base(place: Place) -> AsyncIterator[Base]:
    async with opened(place) as base:
        await base.note("old", tags=["collection:memory"])
        yield base


async def accept(
    base: Base, idempotency: Idempotency | None = None, document_id: int = 1, **patch: Any
) -> m.Job:
    refusal = patch.pop("refusal", None)
    wanted = m.NotePatch(**{"text": "new", **patch})
    keyed = idempotency or key("any")
    job = await base.store.write(updates.accept, document_id, wanted, keyed, refusal=refusal)
    assert isinstance(job, m.Job)
    return job


async def finish(base: Base, job: m.Job) -> None:
    """Lease and commit an update, which must be the next job."""
    leased = await base.take("lease")
    assert leased.job.id == job.id
    assert await base.commit(leased, prepared(leased.job.text or "old"))


async def test_an_accepted_update_says_what_it_will_change(base: Base) -> None:
    job = await accept(base, title="Given")
    assert (job.kind, job.status, job.document_id) == ("update", "queued", 1)
    assert (job.title, job.tags) == ("Given", ["collection:memory"])
    assert (await base.store.read(jobs.page, "queued", 10, 0)).jobs == [job]
    assert (await base.store.read(documents.note, 1))[1] == "old"


async def test_its_end_changes_the_note_and_the_answer_at_once(base: Base) -> None:
    """The key's response is the note of that moment, also after a later change."""
    job = await accept(base, key())
    assert await base.store.read(answer_to, key()) is None
    await finish(base, job)
    done = await base.store.read(jobs.find, job.id)
    assert (done.status, done.document_id, done.deduplicated) == ("completed", 1, False)
    answer = msgspec.json.decode(await base.store.read(answer_to, key()) or b"", type=m.Document)
    assert answer == await base.store.write(updates.accept, 1, m.NotePatch(text="new"), key())
    await base.store.once(None, documents.add_tags, 1, ["later"], None)
    assert (answer.version, answer.tags) == (2, ["collection:memory"])
    assert await base.store.write(updates.accept, 1, m.NotePatch(text="new"), key()) == answer


async def test_an_update_to_what_stands_completes_without_a_version(base: Base) -> None:
    """Its key returns the unchanged note; the same text with another title is a change."""
    before = await base.detail(1)
    job = await accept(base, key(), text="old")
    leased = await base.take("lease")
    done = await base.commit(leased, prepared("old", title=before.title))
    assert done is not None
    assert (done.id, done.status, done.outcome) == (job.id, "completed", "unchanged")
    assert await base.detail(1) == before
    answer = msgspec.json.decode(await base.store.read(answer_to, key()) or b"", type=m.Document)
    assert (answer.version, await base.count("versions")) == (before.version, 0)
    await accept(base, text="old", title="Given")
    done = await base.commit(await base.take("lease"), prepared("old", title="Given"))
    assert done is not None
    assert (done.outcome, (await base.detail(1)).version) == ("replaced", before.version + 1)


async def test_a_title_alone_keeps_the_text(base: Base) -> None:
    job = await accept(base, text=None, title="Given")
    leased = await base.take("lease")
    assert (leased.job.text, leased.job.new_title) == (None, "Given")
    done = await base.commit(leased, prepared("old", title="Given"))
    assert done is not None
    assert done.id == job.id
    document, text = await base.store.read(documents.note, 1)
    assert (document.title, text, document.version) == ("Given", "old", 2)


async def test_a_note_named_for_the_subject_ranks_above_one_that_repeats_it(base: Base) -> None:
    """A new title counts at once, and the old one no longer."""
    await base.note("tides, tides, tides and tides", title="Walks")
    await base.note("the sea in the evening", title="Evenings")
    for title, expected in (("Tides", ["Tides", "Walks"]), ("Evenings", ["Walks"])):
        await accept(base, key(title), 3, text=None, title=title)
        await base.commit(await base.take("lease"), prepared("the sea in the evening", title=title))
        assert await base.titles("tides") == expected


async def test_a_retry_finds_the_job_of_its_key(base: Base) -> None:
    """The job may be queued or running; another request with the key is refused."""
    job = await accept(base, key())
    assert await accept(base, key()) == job
    await base.take("lease")
    assert (await accept(base, key())).status == "running"
    other = Idempotency(key="key", credential="caller", operation="op", fingerprint="other")
    assert (await refused(accept(base, other, text="x"))).code == "idempotency_mismatch"
    assert (await base.store.read(state.counts)).queue.queued == 0


async def test_the_same_update_under_another_key_joins_it(base: Base) -> None:
    job = await accept(base, key("one"))
    assert (await accept(base, key("two"))).id == job.id
    await finish(base, job)
    assert await base.store.read(answer_to, key("one")) == await base.store.read(answer_to, key("two"))
    assert (await accept(base, key("three"))).id != job.id  # it has ended, so this is a new request


async def test_many_at_once_are_one(base: Base) -> None:
    wanted = m.NotePatch(text="new")
    done = await asyncio.gather(*(base.store.write(updates.accept, 1, wanted, key(str(n))) for n in range(8)))
    assert len({job.id for job in done}) == 1
    await finish(base, done[0])
    assert len({await base.store.read(answer_to, key(str(n))) for n in range(8)}) == 1


async def test_updates_of_two_notes_do_not_wait_for_each_other(base: Base) -> None:
    await base.note("second")
    ids = [(await accept(base, key("1"))).id, (await accept(base, key("2"), document_id=2)).id]
    assert [(await base.store.write(jobs.take, id_)).job.id for id_ in ids] == ids


async def test_a_cancelled_update_lets_the_next_one_go(base: Base) -> None:
    """Its key reports the cancellation to every retry, and the update never happens."""
    first, second = await accept(base, key("1"), text="a"), await accept(base, key("2"), text="b")
    await base.store.once(None, jobs.cancel, first.id)
    assert (await accept(base, key("1"), text="a")).status == "cancelled"
    assert await base.store.read(answer_to, key("1")) is None
    await finish(base, second)
    assert (await base.detail(1)).version == 2


async def test_a_forgotten_job_frees_its_key(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cancellation is no longer known; a response that was given is kept."""
    done = await accept(base, key("done"))
    await finish(base, done)
    cancelled = await accept(base, key("cancelled"))
    await base.store.once(None, jobs.cancel, cancelled.id)
    monkeypatch.setattr(jobs, "KEPT_FINISHED", 1)
    await base.note("another")
    assert (await base.store.read(jobs.page, None, 10, 0)).total == 1
    assert await base.store.read(answer_to, key("done")) is not None
    assert (await accept(base, key("cancelled"))).status == "queued"


async def test_a_version_is_expected_at_the_acceptance_and_at_the_end(base: Base) -> None:
    """A conflict in between fails the job, and its key is free."""
    error = await refused(accept(base, expected_version=7))
    assert (error.code, error.members) == ("version_conflict", {"current_version": 1})
    await accept(base, key(), expected_version=1)
    await base.store.once(None, documents.add_tags, 1, ["later"], None)
    leased = await base.take("lease")
    assert (await refused(base.commit(leased, prepared("new")))).code == "version_conflict"
    assert (await base.store.read(documents.note, 1))[1] == "old"
    failure = job_error(code="version_conflict", message="It has changed.")
    assert await base.store.write(jobs.fail, "lease", leased.job.id, failure)
    assert not (await base.store.read(jobs.find, leased.job.id)).retryable
    assert await base.count("job_texts") == 0
    assert (await refused(accept(base, key(), expected_version=1))).code == "version_conflict"
    assert (await accept(base, key(), expected_version=2)).id != leased.job.id


async def test_a_refusal_stands_against_new_jobs_alone(base: Base) -> None:
    """A request with a known job gets it."""
    refusal = EngineError("embedder_unavailable", "It is away.")
    assert (await refused(accept(base, key(), refusal=refusal))).code == "embedder_unavailable"
    job = await accept(base, key())
    for same in (key(), key("another")):
        assert (await accept(base, same, refusal=refusal)).id == job.id


async def test_an_update_survives_a_crash(place: Place, tmp_path: Path) -> None:
    async with opened(place) as base:
        await base.note("old")
        first = await accept(base, key("1"), text="a")
        await base.take("lease")
        second = await accept(base, key("2"), text="b")
        left = await died(base, tmp_path / "left")
        async with opened(left) as later:
            assert await later.store.write(jobs.release) == 1
            assert (await accept(later, key("1"), text="a")).id == first.id
            await finish(later, first)
            await finish(later, second)
            assert await later.store.read(answer_to, key("1")) is not None
            assert (await later.store.read(documents.note, 1))[1] == "b"
