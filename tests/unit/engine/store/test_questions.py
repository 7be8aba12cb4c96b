"""Questions: counted in memory, written at intervals, and kept by day."""

from __future__ import annotations

import pytest

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_engine.questions import Questions
from kb_engine.store.repository import questions, state
from tests.support.eventually import eventually_async
from tests.support.stores import Base, opened


def sums(days: list[m.QuestionDay]) -> tuple[int, int]:
    return sum(day.total for day in days), sum(day.unanswered for day in days)


async def test_counts_of_several_engines_add_up_and_survive_a_restart(base: Base) -> None:
    for number in range(2):
        one = Questions(base.store, keeps_texts=True)
        one.pending.append((m.SearchRequest(query="granite"), True))
        one.pending.append((m.SearchRequest(query=f" no such stone\0{number} "), False))
        assert sums(await one.by_day()) == (2 * number + 2, number + 1)
        await one.stop()
        assert sums(await one.by_day()) == (2 * number + 2, number + 1)
    await base.store.close()
    async with opened(base.place) as again:
        one = Questions(again.store, keeps_texts=True)
        assert sums(await one.by_day()) == (4, 2)
        assert await one.texts() == ["no such stone\0001", "no such stone\0000"]


async def test_the_latest_texts_are_kept_and_none_without_the_setting(base: Base) -> None:
    one = Questions(base.store, keeps_texts=True)
    for number in (*range(questions.KEPT_TEXTS), 0, questions.KEPT_TEXTS):
        one.pending.append((m.SearchRequest(query=f"{number} {'long ' * 100}"), False))
        if number % 40 == 0:
            await one.write()
    await one.write()
    texts = await one.texts()
    assert [text.split()[0] for text in (texts[0], texts[1], texts[-1])] == [
        str(questions.KEPT_TEXTS),
        "0",
        "2",
    ]
    assert (len(texts), max(map(len, texts))) == (questions.KEPT_TEXTS, 300)
    without = Questions(base.store, keeps_texts=False)
    without.pending.append((m.SearchRequest(query="no such stone"), False))
    assert await without.texts() == []
    await without.begin()
    await without.write()
    assert await one.texts() == []


@pytest.mark.parametrize("error", [EngineError("storage_full", "The disk is full."), KeyError("unexpected")])
async def test_counts_of_a_failed_write_are_written_the_next_time(
    base: Base, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    meanwhile = ["granite"]

    async def full(*_given: object) -> None:
        while meanwhile:  # the store may repeat the operation
            one.pending.append((m.SearchRequest(query=meanwhile.pop()), True))
        raise error

    one = Questions(base.store, keeps_texts=True)
    one.pending.append((m.SearchRequest(query="no such stone"), False))
    with monkeypatch.context() as patch:
        patch.setattr(questions, "add", full)
        with pytest.raises(type(error)):
            await one.write()
        await one.stop()  # a failure does not keep the engine from stopping
    await one.write()
    assert sums(await base.store.read(questions.by_day)) == (2, 1)
    assert await base.store.read(questions.texts) == ["no such stone"]


async def test_texts_that_cannot_be_removed_do_not_end_the_counting(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kb_engine.questions._PAUSE_SECONDS", 0.01)
    one = Questions(base.store, keeps_texts=False)
    one.pending.append((m.SearchRequest(query="granite"), True))
    with monkeypatch.context() as patch:
        patch.setattr(Questions, "begin", None)
        one.start()
        await eventually_async(lambda: base.store.read(questions.by_day), lambda days: sums(days) == (1, 0))
    await one.stop()


async def test_growth_and_languages_come_from_the_documents(base: Base) -> None:
    await base.note("granite")
    await base.note("basalt")
    days, languages = await base.store.read(state.growth)
    assert ([counts[1:] for counts in days], languages) == ([(2, 2)], {})
