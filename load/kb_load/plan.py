"""What a load run does and what it must keep: shapes as pure functions, and budgets from a TOML file.

A shape says how many users there are at each moment. No Locust in here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kb_load.processes import Sample, of, slope

ShapeName = Literal["steady", "ramp", "spike", "soak"]

MOST_USERS = 5_000
MOST_SECONDS = 24 * 3600
Share = Annotated[float, Meta(ge=0, le=1)]
Milliseconds = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=0)]


@dataclass(frozen=True, slots=True)
class Plan:
    """How many users at most, and for how long in seconds.

    Raises:
        ValueError: one of them is out of bounds.
    """

    shape: ShapeName
    peak: int
    seconds: int

    def __post_init__(self) -> None:
        if self.shape not in CURVES:
            raise ValueError(f"there is no shape {self.shape!r}; there are {', '.join(CURVES)}")
        if not 1 <= self.peak <= MOST_USERS:
            raise ValueError(f"users: from 1 to {MOST_USERS}, not {self.peak}")
        if not 5 <= self.seconds <= MOST_SECONDS:
            raise ValueError(f"seconds: from 5 to {MOST_SECONDS}, not {self.seconds}")

    def users(self, second: float) -> int | None:
        """How many users there are at `second`; None when the run is over."""
        if second >= self.seconds:
            return None
        return max(1, ceil(self.peak * CURVES[self.shape](second / self.seconds)))

    @property
    def mean_users(self) -> float:
        """How many users there are on average."""
        return sum(self.users(second) or 0 for second in range(self.seconds)) / self.seconds

    @property
    def spawn_rate(self) -> float:
        """How many users come or go a second: a tenth of the run is enough for all of them."""
        return max(1.0, self.peak / max(1.0, self.seconds / 10))


CURVES: dict[ShapeName, Callable[[float], float]] = {
    "steady": lambda _at: 1.0,
    # Up in five steps, and the whole peak for the last third.
    "ramp": lambda at: min(1.0, (int(at * 7.5) + 1) / 5),
    # A fifth, but for the fifth of the time in the middle, which has the peak.
    "spike": lambda at: 1.0 if 0.4 <= at < 0.6 else 0.2,
    # From a tenth up over the first twentieth, then flat to the end.
    "soak": lambda at: min(1.0, 0.1 + 18 * at),
}
"""The share of the peak at a share of the time, both from 0 to 1."""


class BudgetsUnreadable(Exception):
    """The file of budgets is missing or wrong; the message says where."""


class ToolBudget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The longest that 95 and 99 of a hundred calls may take."""

    p95: Milliseconds | None = None
    p99: Milliseconds | None = None


class TotalBudget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For all calls together; `calls_per_second_per_user` is a floor, for each user of those on average."""

    error_share: Share = 0.0
    calls_per_second_per_user: Annotated[float, Meta(ge=0)] = 0.0


class SoakBudget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For runs of at least `from_seconds`: what the server may grow by after `skip_seconds`."""

    from_seconds: Count = 300
    skip_seconds: Count = 60
    server_mib_per_minute: float | None = None
    server_more_sockets: Count | None = None


class Budgets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    total: TotalBudget = TotalBudget()
    tools: dict[str, ToolBudget] = {}
    soak: SoakBudget = SoakBudget()


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one tool at one protocol version. Times are milliseconds."""

    tool: str
    era: str
    calls: int
    failures: int
    p50: float
    p95: float
    p99: float


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to."""

    seconds: float
    entries: list[Entry]

    @property
    def calls(self) -> int:
        return sum(entry.calls for entry in self.entries)

    @property
    def failures(self) -> int:
        """Those that failed; a tool's result with `isError` is one."""
        return sum(entry.failures for entry in self.entries)

    @property
    def rate(self) -> float:
        """Calls a second."""
        return self.calls / self.seconds if self.seconds else 0.0


def read_budgets(path: Path) -> Budgets:
    """The budgets in `path`.

    Raises:
        BudgetsUnreadable: there is no such file, or it does not say what budgets say.
    """
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Budgets)
    except OSError as error:
        raise BudgetsUnreadable(f"{path}: {error.strerror}") from error
    except (msgspec.DecodeError, ValueError) as error:
        raise BudgetsUnreadable(f"{path}: {error}") from error


def broken(budgets: Budgets, figures: Figures, users: float) -> list[str]:
    """What the calls of so many users broke, a sentence each; a tool with a budget that was never called
    breaks it."""
    if not figures.calls:
        found = ["no call was made"]
    else:
        found = []
        share, rate = figures.failures / figures.calls, figures.rate
        if share > budgets.total.error_share:
            failed = f"{figures.failures} of {figures.calls} calls failed ({share:.2%})"
            found.append(f"{failed}; budget {budgets.total.error_share:.2%}")
        if rate < (floor := budgets.total.calls_per_second_per_user * users):
            found.append(f"{rate:.1f} calls a second of {users:g} users; budget at least {floor:g}")
    for tool, budget in budgets.tools.items():
        entries = [entry for entry in figures.entries if entry.tool == tool and entry.calls]
        if not entries:
            found.append(f"{tool} was never called, and has a budget")
        for entry in entries:
            for name, limit, value in (("p95", budget.p95, entry.p95), ("p99", budget.p99, entry.p99)):
                if limit is not None and value > limit:
                    found.append(f"{tool} at {entry.era}: {name} {value:.0f} ms; budget {limit:g}")
    return found


def broken_by_soak(budget: SoakBudget, samples: Sequence[Sample], seconds: float) -> list[str]:
    """What the process `server` broke over a long run; nothing is judged in a short one."""
    kept = [sample for sample in of(samples, "server") if sample.seconds >= budget.skip_seconds]
    if seconds < budget.from_seconds or len(kept) < 2:
        return []
    found = []
    grown = slope(kept)
    if budget.server_mib_per_minute is not None and grown > budget.server_mib_per_minute:
        found.append(
            f"the server's memory grew by {grown:.2f} MiB a minute; budget {budget.server_mib_per_minute:g}"
        )
    fifth = max(1, len(kept) // 5)
    lowest_of_last = min(sample.sockets for sample in kept[-fifth:])
    more = lowest_of_last - max(sample.sockets for sample in kept[:fifth])
    if budget.server_more_sockets is not None and more > budget.server_more_sockets:
        found.append(f"the server holds {more} more sockets at the end; budget {budget.server_more_sockets}")
    return found
