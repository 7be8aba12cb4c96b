"""The committed processor time of each tier and its tests, in multiples of the reference workload."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

FILE = Path(__file__).with_name("costs.json")
ALLOWED = 1.25
"""Growth of a tier's ratio beyond which a run fails."""
SMALLEST = 0.2
"""Cost of a test, in reference workloads, from which it is listed by name."""
NAMED = 10
"""Number of tests named for a tier that grew."""


@dataclass(frozen=True)
class Cost:
    """Processor time divided by that of the reference workload, of a tier and of its expensive tests."""

    ratio: float
    tests: dict[str, float] = field(default_factory=dict)


def cost_of(seconds: float, tests: Mapping[str, float], reference: float) -> Cost:
    """The cost of a tier from processor seconds: of the whole, of each test, of the reference workload."""
    listed = {
        name: round(spent / reference, 2)
        for name, spent in sorted(tests.items())
        if spent / reference >= SMALLEST
    }
    return Cost(round(seconds / reference, 1), listed)


def committed() -> dict[str, Cost]:
    return {name: Cost(**cost) for name, cost in json.loads(FILE.read_text(encoding="utf-8")).items()}


def commit(costs: Mapping[str, Cost]) -> None:
    """Write costs into the committed file; the tiers that they do not name keep theirs."""
    merged = {name: asdict(cost) for name, cost in sorted({**committed(), **costs}.items())}
    FILE.write_text(json.dumps(merged, indent=1) + "\n", encoding="utf-8")


def grown(costs: Mapping[str, Cost]) -> list[str]:
    """The names of the tiers beyond their budgets."""
    before = committed()
    return [
        name for name, cost in costs.items() if name in before and cost.ratio > before[name].ratio * ALLOWED
    ]


def growth(costs: Mapping[str, Cost]) -> Iterator[str]:
    """For each tier beyond its budget a line, and lines that name the tests that grew most."""
    for name in grown(costs):
        before, now = committed()[name], costs[name]
        yield f"{name}: {now.ratio:.1f} reference workloads, more than {ALLOWED} times {before.ratio:.1f}"
        changes = ((cost - before.tests.get(test, 0.0), test) for test, cost in now.tests.items())
        for more, test in sorted(changes, reverse=True)[:NAMED]:
            if more > 0:
                yield f"  {more:+6.2f}  {test}"
