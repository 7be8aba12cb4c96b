"""How the simulator ranks: repeatably, and with figures that add up."""

from __future__ import annotations

import pytest

from kb_contracts.api import models as m
from kb_simulator.engine.search import FLOOR, SATURATION, WEIGHT, search
from tests.unit.simulator.states import Base


@pytest.fixture
def base() -> Base:
    """Four documents about three things."""
    base = Base()
    base.note("The granite quarry by the river", title="Stone")
    base.note("Granite and basalt, granite again", title="More")
    base.file("c.md", "A copper mine up the hill")
    base.file("d.txt", "The winter market closed early")
    return base


def test_an_explanation_adds_up(base: Base) -> None:
    """From cosine and BM25 to the score, by the constants it names."""
    for result in search(base.state.documents, m.SearchRequest(query="granite river", explain=True)).results:
        why = result.explain
        assert why is not None
        assert (why.weight, why.saturation) == (WEIGHT, SATURATION)
        words = (why.bm25 or 0) / ((why.bm25 or 0) + SATURATION)
        assert result.score == pytest.approx(WEIGHT * (why.cosine or 0) + (1 - WEIGHT) * words, abs=1e-6)


def test_equals_come_in_the_order_of_their_ids() -> None:
    """And are the same in every run."""
    base = Base()
    for number in range(30):
        base.note("granite", dedup_scope=str(number))
    assert base.found("granite", top=20) == list(range(1, 21))
    assert base.found("granite", mode="hybrid", top=20) == list(range(1, 21))


def test_weak_says_that_the_best_is_under_the_floor(base: Base) -> None:
    """And only that."""
    for query in ("granite", "river market hill winter basalt"):
        answer = search(base.state.documents, m.SearchRequest(query=query))
        assert answer.weak == (answer.results[0].score < FLOOR)
