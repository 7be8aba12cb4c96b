"""What the page on scaling says of a base follows from its constants."""

from __future__ import annotations

import pytest

from kb_load.fleet import costs


def test_a_hundred_times_the_passages_take_a_hundred_times_the_work() -> None:
    small, large = costs.estimate(10**6), costs.estimate(10**8)
    assert large.memory_gib == pytest.approx(100 * small.memory_gib)
    assert large.search_core_seconds == pytest.approx(100 * small.search_core_seconds)
    assert large.embedding_hours == pytest.approx(100 * small.embedding_hours)


def test_the_nodes_of_a_base_hold_it_and_one_fewer_does_not() -> None:
    room = costs.value("memory of a node") * costs.value("share for the index")
    for base in map(costs.estimate, costs.BASES):
        assert base.nodes * room >= base.memory_gib > (base.nodes - 1) * room


def test_the_table_has_every_constant_with_where_it_is_from() -> None:
    lines = costs.table().splitlines()
    for name, constant in costs.CONSTANTS.items():
        assert any(line.startswith(name) and line.endswith(constant.source) for line in lines)
