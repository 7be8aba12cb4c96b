"""A mutation repeated with its idempotency key is done once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_contracts.api.errors import EngineError
from kb_contracts.semantics.requests import Idempotency
from kb_engine.store.clock import following, parse, stamp
from kb_engine.store.repository import documents, jobs, versions
from kb_engine.store.repository.transaction import answer_to
from tests.support.stores import Base, Place, all_documents, key, new_note, opened, prepared, refused

Mutation = Callable[[Base, Idempotency], Awaitable[msgspec.Struct]]


@pytest.fixture
async def base(place: Place) -> AsyncIterator[Base]:
    async with opened(place) as base:
        await base.note("a", tags=["t"])
        yield base


MUTATIONS: dict[str, Mutation] = {
    "accept": lambda base, key: base.store.once(key, jobs.accept, new_note("b")),
    "delete": lambda base, key: base.store.once(key, documents.delete, 1),
    "clear": lambda base, key: base.store.once(key, documents.clear),
    "add_tags": lambda base, key: base.store.once(key, documents.add_tags, 1, ["u"], 1),
    "remove_tag": lambda base, key: base.store.once(key, documents.remove_tag, 1, "t", 1),
    "update": lambda base, key: base.update(1, "b", prepared("b"), version=1, idempotency=key),
}


@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS)
async def test_a_repeated_mutation_gives_the_first_answer(base: Base, mutation: Mutation) -> None:
    """Although the first mutation has changed the state that the second would meet."""
    assert await mutation(base, key()) == await mutation(base, key())


async def test_a_repeated_cancel_gives_the_first_answer(base: Base) -> None:
    job = await base.accept(new_note("b"))
    assert await base.store.once(key(), jobs.cancel, job.id) == await base.store.once(
        key(), jobs.cancel, job.id
    )


async def test_a_different_request_under_a_used_idempotency_key_is_refused(base: Base) -> None:
    await base.store.once(key(), documents.add_tags, 1, ["u"], None)
    assert (
        await refused(base.store.once(key(fingerprint="other"), documents.add_tags, 1, ["v"], None))
    ).code == "idempotency_mismatch"
    assert (await base.detail(1)).tags == ["t", "u"]


async def test_idempotency_keys_are_separate_per_operation_and_caller(base: Base) -> None:
    await base.store.once(key(), documents.add_tags, 1, ["u"], None)
    await base.store.once(key(operation="other"), documents.add_tags, 1, ["v"], None)
    stranger = Idempotency(key="key", credential="stranger", operation="op", fingerprint="other")
    await base.store.once(stranger, documents.add_tags, 1, ["w"], None)
    assert (await base.detail(1)).tags == ["t", "u", "v", "w"]


async def test_a_refused_mutation_leaves_its_key_free(base: Base) -> None:
    with pytest.raises(EngineError):
        await base.store.once(key(), documents.add_tags, 2, ["u"], None)
    await base.note("b")
    assert (await base.store.once(key(), documents.add_tags, 2, ["u"], None)).id == 2


async def test_an_answer_is_replayed_as_it_was_given(base: Base) -> None:
    assert await base.store.read(answer_to, key()) is None
    answer = await base.store.once(key(), documents.add_tags, 1, ["u"], None)
    await base.store.once(None, documents.delete, 1)
    assert await base.store.read(answer_to, key()) == msgspec.json.encode(answer)
    assert (
        await refused(base.store.read(answer_to, key(fingerprint="other")))
    ).code == "idempotency_mismatch"


async def test_an_answer_is_kept_for_a_day_and_over_a_restart(base: Base) -> None:
    """Then the key is free, and the next stored response removes its row."""
    await base.store.once(key(), documents.add_tags, 1, ["u"], None)
    await base.store.close()
    base.clock.move(hours=1)
    async with opened(base.place, base.clock) as later:
        later.clock.move(hours=24, seconds=-1)
        assert await later.store.read(answer_to, key()) is not None
        later.clock.move(seconds=1)
        assert await later.store.read(answer_to, key()) is None
        await later.store.once(key(fingerprint="other"), documents.add_tags, 1, ["v"], None)
        assert await later.count("idempotency") == 1
    async with opened(base.place) as unchanged:
        assert (await all_documents(unchanged)).documents[0].tags == ["t", "u", "v"]


async def test_a_clock_that_is_put_forward_ends_no_answer(base: Base) -> None:
    """Neither while an engine runs nor at its start; what comes meanwhile is kept for a day as well."""
    await base.store.once(key(), documents.add_tags, 1, ["u"], None)
    base.clock.set_forward(days=40)
    await base.store.once(key("during"), documents.add_tags, 1, ["v"], None)
    assert await base.store.read(answer_to, key()) is not None
    await base.store.close()
    async with opened(base.place, base.clock) as later:
        await later.store.once(key("after a start"), documents.add_tags, 1, ["w"], None)
        later.clock.set_forward(days=-40)
        for name in ("key", "during", "after a start"):
            assert await later.store.read(answer_to, key(name)) is not None
        later.clock.move(hours=24)
        await later.store.once(key("next day"), documents.add_tags, 1, ["x"], None)
        assert await later.store.read(answer_to, key()) is None


async def test_a_clock_that_is_put_forward_ends_no_version(base: Base) -> None:
    await base.store.write(documents.delete, 1)
    base.clock.set_forward(days=400)
    await base.store.write(versions.forget_expired)
    assert (await base.store.read(versions.trash, 10, 0)).total == 1
    base.clock.move(days=400)
    await base.store.write(versions.forget_expired)
    assert await base.count("versions") == 0


MOMENTS = st.datetimes(timezones=st.just(UTC), max_value=datetime(9999, 12, 30))


@given(MOMENTS, MOMENTS)
def test_text_order_is_time_order(first: datetime, second: datetime) -> None:
    """SQLite can then compare them."""
    assert (stamp(first) < stamp(second)) == (first < second)


@given(MOMENTS)
def test_a_stamp_is_read_back(moment: datetime) -> None:
    assert parse(stamp(moment)) == moment


@given(MOMENTS, MOMENTS)
def test_a_following_timestamp_is_later(now: datetime, earlier: datetime) -> None:
    assert following(stamp(now), stamp(earlier)) > stamp(earlier)


def test_a_stamp_is_in_utc_with_a_z() -> None:
    moment = datetime(2026, 1, 1, 1, 30, tzinfo=timezone(timedelta(hours=2)))
    assert stamp(moment) == "2025-12-31T23:30:00.000000Z"
