"""Votes on documents, in both stores."""

from __future__ import annotations

import asyncio

import pytest

from kb_contracts.api import models as m
from kb_contracts.semantics.feedback import Votes
from kb_engine.store.repository import documents, feedback
from tests.support.stores import Base, key, opened, refused


async def give(base: Base, document: int | str, voice: str, signal: m.Signal) -> m.Feedback:
    given: m.Feedback = await base.store.write(feedback.give, document, voice, signal)
    return given


async def votes(base: Base, *ids: int) -> dict[int, Votes]:
    found: dict[int, Votes] = await base.store.read(feedback.votes, ids)
    return found


async def test_a_voice_counts_once_a_document(base: Base) -> None:
    one, two = await base.note("a"), await base.note("b")
    for signal in ("useful", "clicked", "useful", "not_useful"):
        answer = await give(base, one.id, "ann", signal)
    assert (answer.voices, answer.clicked, answer.useful, answer.not_useful) == (1, 1, 0, 1)
    await give(base, one.uid, "bob", "useful")
    await give(base, two.id, "ann", "clicked")
    assert await votes(base, one.id, two.id, two.id, 999) == {
        one.id: Votes(voices=2, clicked=2, useful=1, not_useful=1),
        two.id: Votes(voices=1, clicked=1),
    }
    assert await base.count("feedback") == 3


async def test_nobody_has_spoken_of_what_was_not_asked_about(base: Base) -> None:
    assert await votes(base) == {}


async def test_an_unknown_document_has_no_voices(base: Base) -> None:
    assert (await refused(give(base, 7, "ann", "useful"))).code == "document_not_found"
    assert await base.count("feedback") == 0


async def test_feedback_is_no_change_of_a_document(base: Base) -> None:
    before = await base.detail((await base.note("a")).id)
    base.clock.move(days=1)
    await give(base, before.id, "ann", "useful")
    assert await base.detail(before.id) == before


async def test_feedback_goes_with_its_document_and_with_all(base: Base) -> None:
    one, two = await base.note("a"), await base.note("b")
    for document in (one, two):
        await give(base, document.id, "ann", "useful")
    await base.store.write(documents.delete, one.id)
    assert await base.count("feedback") == 1
    await base.store.write(documents.clear)
    assert await base.count("feedback") == 0


async def test_feedback_under_a_key_is_given_once(base: Base) -> None:
    document = await base.note("a")
    first = await base.store.once(key(), feedback.give, document.id, "ann", "useful")
    await give(base, document.id, "bob", "useful")
    assert await base.store.once(key(), feedback.give, document.id, "ann", "useful") == first


async def test_many_voices_at_once_are_all_counted(base: Base) -> None:
    document = await base.note("a")
    signals: list[m.Signal] = ["useful", "not_useful", "clicked"]
    await asyncio.gather(*(give(base, document.id, f"voice {n % 10}", signals[n % 3]) for n in range(30)))
    assert (await votes(base, document.id))[document.id].voices == 10


async def test_feedback_outlives_a_restart(base: Base) -> None:
    document = await base.note("a")
    await give(base, document.id, "ann", "useful")
    await base.store.close()
    async with opened(base.place) as again:
        assert await votes(again, document.id) == {document.id: Votes(voices=1, clicked=1, useful=1)}


@pytest.mark.parametrize("voice", ["'; DROP TABLE feedback", "ä" * 200, ""])
async def test_any_voice_is_only_a_voice(base: Base, voice: str) -> None:
    document = await base.note("a")
    assert (await give(base, document.id, voice, "useful")).voices == 1
