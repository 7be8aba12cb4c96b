"""Votes on documents, in both stores."""

from __future__ import annotations

import asyncio

import pytest

from kb_contracts.api import models as m
from kb_contracts.semantics.feedback import Votes
from kb_engine.store.repository import feedback
from tests.support.stores import Base, opened


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
