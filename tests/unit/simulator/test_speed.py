"""A load test against the simulator measures what stands before it, and not the simulator."""

from __future__ import annotations

import pytest

from tests.unit.simulator.speed import compare, report

pytestmark = pytest.mark.process


def test_searches_reach_half_the_rate_of_a_bare_handler() -> None:
    """1,000 documents, top 10, journal on; a handler that sends the same bytes, in the same run."""
    ours, bare = compare(turns=5, seconds=0.3)
    assert ours.by_processor >= bare.by_processor / 2, report(ours, bare)
