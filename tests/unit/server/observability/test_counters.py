"""Numbers that the workers of one server share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from kb_server.observability import Metrics
from kb_server.observability.metrics import MmapCounters


@pytest.fixture
def counters_of(tmp_path: Path) -> Iterator[Callable[[int], MmapCounters]]:
    """The numbers of a worker by its slot, all in one folder."""
    with ExitStack() as stack:
        yield lambda slot: stack.enter_context(closing(MmapCounters(tmp_path, slot)))


def test_what_two_workers_count_is_summed(counters_of: Callable[[int], MmapCounters]) -> None:
    """Whichever is asked; names that only one knows are there too."""
    one, two = counters_of(0), counters_of(1)
    one.add(("a", "x"), 1)
    two.add(("a", "x"), 2.5)
    two.add(("b",), 4)
    assert one.totals() == two.totals() == {("a", "x"): 3.5, ("b",): 4}


def test_a_worker_counts_on_where_the_one_before_it_ended(counters_of: Callable[[int], MmapCounters]) -> None:
    """A counter that fell back would look like a restart of the whole server."""
    before = counters_of(0)
    before.add(("a",), 1)
    after = counters_of(0)
    after.add(("b",), 1)
    after.add(("a",), 1)
    assert after.totals() == {("a",): 2, ("b",): 1}


def test_a_name_that_is_half_written_is_not_read(
    tmp_path: Path, counters_of: Callable[[int], MmapCounters]
) -> None:
    """Its writer may be in the middle of it."""
    counters = counters_of(0)
    counters.add(("a",), 1)
    with (tmp_path / "0.names").open("ab") as names:
        names.write(b'["b')
    assert counters.totals() == {("a",): 1}
    after = counters_of(0)
    after.add(("c",), 1)
    assert after.totals() == {("a",): 1, ("c",): 1}


def test_names_beyond_the_capacity_are_not_counted(
    counters_of: Callable[[int], MmapCounters], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What callers may invent must not grow without bound."""
    monkeypatch.setattr("kb_server.observability.metrics.CAPACITY", 1)
    counters = counters_of(0)
    counters.add(("a",), 1)
    counters.add(("b",), 1)
    assert counters.totals() == {("a",): 1}


def test_metrics_over_shared_cells_read_as_those_of_one_process(
    counters_of: Callable[[int], MmapCounters],
) -> None:
    alone, shared, other = Metrics(), Metrics(counters_of(0)), Metrics(counters_of(1))
    for metrics in (alone, shared):
        metrics.count_call("t", 0.125)
        metrics.count_call("search", 0.125, results=3)
    alone.count_call("t", 0.25, "timeout")
    other.count_call("t", 0.25, "timeout")
    assert sorted(shared.render().splitlines()) == sorted(alone.render().splitlines())
