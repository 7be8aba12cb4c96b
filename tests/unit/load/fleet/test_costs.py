"""The figures of the page on scaling follow from constants, each of which states its source."""

from __future__ import annotations

import pytest

from kb_load.fleet import costs


def test_a_hundred_times_the_passages_take_a_hundred_times_the_work() -> None:
    small, large = costs.clustered(10**6), costs.clustered(10**8)
    assert large.memory_gib == pytest.approx(100 * small.memory_gib)
    assert large.search_ms == pytest.approx(100 * small.search_ms)
    assert large.embedding_hours == pytest.approx(100 * small.embedding_hours)


def test_the_nodes_of_a_base_hold_it_and_one_fewer_does_not() -> None:
    room = costs.value("node, memory") * costs.value("node, share for the index")
    for base in map(costs.clustered, (10**6, 10**8, 10**10)):
        assert base.nodes * room >= base.memory_gib > (base.nodes - 1) * room


def test_every_constant_says_where_it_is_from() -> None:
    for name, constant in costs.CONSTANTS.items():
        assert constant.source.startswith((costs.MEASURED, costs.ESTIMATED, costs.ASSUMED)), name
