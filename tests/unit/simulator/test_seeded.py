"""Decisions are keyed: the same key under the same seed, the same value, in whatever order."""

from __future__ import annotations

from statistics import mean, median
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from kb_simulator.determinism import Seeded

KEYS = st.lists(st.one_of(st.text(max_size=8), st.integers()), max_size=4)


@given(st.integers(), KEYS)
def test_a_decision_repeats_whatever_was_decided_before(seed: int, key: list[str | int]) -> None:
    """There is no stream of numbers that others could draw from."""
    first = Seeded(seed)
    first.roll("something else")
    assert first.roll(*key) == Seeded(seed).roll(*key)


@given(KEYS)
def test_a_roll_lies_from_nought_to_one(key: list[str | int]) -> None:
    """One is never reached, so that a probability of 1 always holds."""
    assert 0.0 <= Seeded(7).roll(*key) < 1.0


def test_parts_of_a_key_do_not_run_together() -> None:
    """("ab", "c") is not ("a", "bc")."""
    assert Seeded(7).roll("ab", "c") != Seeded(7).roll("a", "bc")


def test_another_seed_decides_otherwise() -> None:
    """The seed is part of every key."""
    assert Seeded(7).uuid("x") != Seeded(8).uuid("x")


def test_rolls_are_spread_evenly() -> None:
    """A tenth of them falls into each tenth, give or take."""
    rolls = [Seeded(7).roll(number) for number in range(5_000)]
    assert abs(mean(rolls) - 0.5) < 0.02
    assert all(400 < sum(tenth <= roll * 10 < tenth + 1 for roll in rolls) < 600 for tenth in range(10))


def test_a_uniform_number_keeps_its_bounds() -> None:
    numbers = [Seeded(7).uniform(2.0, 3.0, number) for number in range(500)]
    assert min(numbers) >= 2.0
    assert max(numbers) < 3.0


def test_a_lognormal_number_has_its_median() -> None:
    """Half lie below it, and none is negative."""
    numbers = [Seeded(7).lognormal(0.2, 1.0, number) for number in range(2_000)]
    assert abs(median(numbers) - 0.2) < 0.02
    assert min(numbers) > 0


def test_a_uuid_is_one_of_version_4() -> None:
    assert UUID(Seeded(7).uuid("job", 1)).version == 4
