"""The simulated log of feedback: it improves the order, and one hostile voice has almost no effect."""

from __future__ import annotations

import pytest

from kb_contracts.semantics.ranking import DEFAULT_WEIGHTS
from kb_load.bench.feedback import HOSTILE_REPEATS, Question, World, log, ndcg, ordered


@pytest.fixture(scope="module")
def learned() -> tuple[World, list[Question], float]:
    """A world after a short log, unused questions, and their nDCG@10 before the log."""
    world = World.of(7, topics=5)
    questions = [world.question() for _ in range(60)]
    before = ndcg(world, questions, DEFAULT_WEIGHTS)
    log(world, 600, DEFAULT_WEIGHTS)
    return world, questions, before


@pytest.mark.requirement("R26", "R29")
def test_feedback_makes_the_order_better_and_one_hostile_voice_cannot_undo_it(
    learned: tuple[World, list[Question], float],
) -> None:
    world, questions, before = learned
    honest = ndcg(world, questions, DEFAULT_WEIGHTS)
    assert honest > before
    world.attack(1)
    attacked = ndcg(world, questions, DEFAULT_WEIGHTS)
    assert honest - attacked < (honest - before) / 2
    world.attack(1, each_counts=True)
    assert ndcg(world, questions, DEFAULT_WEIGHTS) < attacked


def test_a_hostile_voice_is_one_voice() -> None:
    world = World.of(7)
    world.attack(1)
    assert {votes.voices for votes in world.tallies().values()} == {1}
    world.attack(1, each_counts=True)
    assert {votes.voices for votes in world.tallies().values()} == {1 + HOSTILE_REPEATS}


def test_without_feedback_the_order_is_that_of_the_semantic_score() -> None:
    question = World.of(7).question()
    order = ordered(question, {}, DEFAULT_WEIGHTS)
    assert order == sorted(question.semantic, key=lambda each: -question.semantic[each])
