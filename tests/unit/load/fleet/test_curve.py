"""The curve of a fleet: the capacity of its nodes, and sufficient capacity of the other parts."""

from __future__ import annotations

from kb_load.fleet.curve import CALLERS, PASSAGES, curve


def test_nodes_hold_more_passages_or_answer_more_callers() -> None:
    said: list[str] = []
    points = {(each.growth, each.nodes): each for each in curve(5, said.append, searches=200)}
    assert {nodes for _, nodes in points} == {1, 2, 5}
    assert len(said) == len(points)
    one, five = points[PASSAGES, 1], points[PASSAGES, 5]
    assert (five.passages, five.rate) == (5 * one.passages, one.rate)
    assert five.p50 > one.p50, "the slowest of five shards decides"
    many = points[CALLERS, 5]
    assert (many.passages, many.rate) == (one.passages, 5 * one.rate)
    assert many.engines > one.engines
    assert many.p95 < 2 * one.p95
