"""Turns: the order of work as a state machine, without threads or a store."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_engine.turns import SHORT_BYTES, Turns, greedy, lane_of

CALLERS = ("ann", "ben", "cem")


def order(turns: Turns[str]) -> list[str]:
    return [turns.next() for _ in range(len(turns))]


def test_a_new_caller_waits_for_one_job_of_each_earlier_caller() -> None:
    turns: Turns[str] = Turns()
    for number in range(200):
        turns.add("ann", f"a{number}")
    served = [turns.next() for _ in range(100)]
    turns.add("ben", "b0")
    turns.add("ben", "b1")
    assert served[-1] == "a99"
    assert order(turns)[:5] == ["b0", "a100", "b1", "a101", "a102"]


def test_a_caller_with_one_job_at_a_time_gets_every_second_turn() -> None:
    """Its queue is empty whenever its job has just been served; the other caller has two jobs queued."""
    turns: Turns[str] = Turns()
    for job in ("a-one", "b", "a-two"):
        turns.add(job[0], job)
    in_hand, served = turns.next(), []
    for _ in range(40):
        following = turns.next()  # the thread is free before the last job brings its next slice
        turns.add(in_hand[0], in_hand)
        served.append(following)
        in_hand = following
    counted = Counter(served)
    assert counted["b"] == 20
    assert abs(counted["a-one"] - counted["a-two"]) <= 1


@given(st.lists(st.one_of(st.sampled_from(CALLERS), st.none()), max_size=200))
def test_no_caller_waits_for_more_than_two_turns_of_another(steps: list[str | None]) -> None:
    turns: Turns[str] = Turns()
    waiting: Counter[str] = Counter()
    since: dict[str, Counter[str]] = {}
    for caller in steps:
        if caller is not None:
            turns.add(caller, caller)
            since.setdefault(caller, Counter())
            waiting[caller] += 1
        elif waiting.total():
            served = turns.next()
            waiting[served] -= 1
            del since[served]
            for others in since.values():
                others[served] += 1
                assert max(others.values()) <= 2
            if waiting[served]:
                since[served] = Counter()


def test_turns_keep_no_state_of_callers_without_jobs() -> None:
    turns: Turns[str] = Turns()
    for number in range(1_000):
        turns.add(f"caller {number}", "work")
        turns.next()
        turns.add("ann", "work")
        turns.next()
    assert len(turns._last) <= 2


@pytest.mark.parametrize(
    ("in_hand", "lane_slots", "refused"),
    [
        ([], 3, set()),
        (["ann"], 3, set()),
        (["ann", "ann"], 3, {"ann"}),
        (["ann", "ben"], 3, set()),
        (["ann"], 2, {"ann"}),
        (["ann"], 1, {"ann"}),
        ([], 1, set()),
    ],
)
def test_one_caller_leaves_a_place_to_the_others(
    in_hand: list[str], lane_slots: int, refused: set[str]
) -> None:
    assert greedy(in_hand, lane_slots) == refused


@pytest.mark.parametrize(
    ("kind", "size", "lane"),
    [
        ("note", 1, "short"),
        ("update", SHORT_BYTES, "short"),
        ("note", SHORT_BYTES + 1, "long"),
        ("file", 1, "long"),
    ],
)
def test_short_notes_have_a_lane_of_their_own(
    kind: Literal["note", "file", "update"], size: int, lane: str
) -> None:
    """Files never have that lane, because two hundred may arrive at once."""
    assert lane_of(kind, size) == lane
