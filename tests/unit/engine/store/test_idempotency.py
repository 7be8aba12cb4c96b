"""A mutation repeated under its key is done once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest

from kb_contracts.api.errors import EngineError
from kb_engine.store import Idempotency
from tests.support.stores import Base, Place, all_documents, key, new_note, opened, prepared

Mutation = Callable[[Base, Idempotency], Awaitable[msgspec.Struct]]


@pytest.fixture
async def base(place: Place) -> AsyncIterator[Base]:
    """A base with the note 1, tagged `t`."""
    async with opened(place) as base:
        await base.note("a", tags=["t"])
        yield base


MUTATIONS: dict[str, Mutation] = {
    "accept": lambda base, key: base.store.accept(new_note("b"), key),
    "delete": lambda base, key: base.store.delete(1, key),
    "clear": lambda base, key: base.store.clear(key),
    "add_tags": lambda base, key: base.store.add_tags(1, ["u"], 1, key),
    "remove_tag": lambda base, key: base.store.remove_tag(1, "t", 1, key),
    "update": lambda base, key: base.update(1, "b", prepared("b"), version=1, idempotency=key),
}


@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS)
async def test_a_repeated_mutation_gives_the_first_answer(base: Base, mutation: Mutation) -> None:
    """Although the first one has changed what the second would meet."""
    assert await mutation(base, key()) == await mutation(base, key())


async def test_a_repeated_cancel_gives_the_first_answer(base: Base) -> None:
    job = await base.store.accept(new_note("b"), None)
    assert await base.store.cancel(job.id, key()) == await base.store.cancel(job.id, key())


async def test_a_repeated_submission_queues_one_job(base: Base) -> None:
    """A caller may retry as often as it likes."""
    for _ in range(3):
        await base.store.accept(new_note("b"), key())
    assert (await base.store.counts()).queue.queued == 1


async def test_another_request_under_the_same_key_is_refused(base: Base) -> None:
    await base.store.add_tags(1, ["u"], None, key())
    with pytest.raises(EngineError) as caught:
        await base.store.add_tags(1, ["v"], None, key(fingerprint="other"))
    assert caught.value.code == "idempotency_mismatch"
    assert (await base.store.document(1)).tags == ["t", "u"]


async def test_keys_of_another_operation_or_caller_are_others(base: Base) -> None:
    """The key alone says nothing."""
    await base.store.add_tags(1, ["u"], None, key())
    await base.store.add_tags(1, ["v"], None, key(operation="other"))
    stranger = Idempotency(key="key", credential="stranger", operation="op", fingerprint="other")
    await base.store.add_tags(1, ["w"], None, stranger)
    assert (await base.store.document(1)).tags == ["t", "u", "v", "w"]


async def test_a_refused_mutation_leaves_its_key_free(base: Base) -> None:
    """The same request may succeed later."""
    with pytest.raises(EngineError):
        await base.store.add_tags(2, ["u"], None, key())
    await base.note("b")
    assert (await base.store.add_tags(2, ["u"], None, key())).id == 2


async def test_an_answer_is_replayed_as_it_was_given(base: Base) -> None:
    assert await base.store.replayed(key()) is None
    answer = await base.store.add_tags(1, ["u"], None, key())
    await base.store.delete(1, None)
    assert await base.store.replayed(key()) == msgspec.json.encode(answer)
    with pytest.raises(EngineError) as caught:
        await base.store.replayed(key(fingerprint="other"))
    assert caught.value.code == "idempotency_mismatch"


async def test_an_answer_is_kept_for_a_day_and_over_a_restart(base: Base) -> None:
    """Then the key is free, and its row goes with the next one stored."""
    await base.store.add_tags(1, ["u"], None, key())
    await base.store.close()
    base.clock.move(hours=24, seconds=-1)
    async with opened(base.place, base.clock) as later:
        assert await later.store.replayed(key()) is not None
        later.clock.move(seconds=1)
        assert await later.store.replayed(key()) is None
        await later.store.add_tags(1, ["v"], None, key(fingerprint="other"))
        assert await later.count("idempotency") == 1
    async with opened(base.place) as unchanged:
        assert (await all_documents(unchanged)).documents[0].tags == ["t", "u", "v"]
