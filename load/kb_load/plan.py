"""Load shapes as pure functions, and budgets from a TOML file.

A shape gives the number of users at each moment. This module does not import Locust.
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
    """A shape with its maximum number of users and its duration in seconds.
    Raises ValueError: users or seconds are out of bounds.
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
        """Return the number of users at `second`, or None after the end."""
        if second >= self.seconds:
            return None
        return max(1, ceil(self.peak * CURVES[self.shape](second / self.seconds)))

    @property
    def mean_users(self) -> float:
        """Mean number of users."""
        return sum(self.users(second) or 0 for second in range(self.seconds)) / self.seconds

    @property
    def spawn_rate(self) -> float:
        """Users started or stopped a second, such that a tenth of the run suffices for all."""
        return max(1.0, self.peak / max(1.0, self.seconds / 10))


CURVES: dict[ShapeName, Callable[[float], float]] = {
    "steady": lambda _at: 1.0,
    # Up in five steps; the peak for the last third.
    "ramp": lambda at: min(1.0, (int(at * 7.5) + 1) / 5),
    # A fifth of the peak; the peak for the middle fifth of the time.
    "spike": lambda at: 1.0 if 0.4 <= at < 0.6 else 0.2,
    # From a tenth of the peak up during the first twentieth of the time, then constant.
    "soak": lambda at: min(1.0, 0.1 + 18 * at),
}
"""Share of the peak by share of the time, both from 0 to 1."""


class BudgetsUnreadable(Exception):
    """The budgets file is missing or invalid; the message has the place."""


class ToolBudget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Maximum p95 and p99, in milliseconds."""

    p95: Milliseconds | None = None
    p99: Milliseconds | None = None


class TotalBudget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Budget of all calls; `calls_per_second_per_user` is a minimum, for the mean number of users."""

    error_share: Share = 0.0
    calls_per_second_per_user: Annotated[float, Meta(ge=0)] = 0.0


class SoakBudget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Maximum growth of the server after `skip_seconds`, in runs of at least `from_seconds`."""

    from_seconds: Count = 300
    skip_seconds: Count = 60
    server_mib_per_minute: float | None = None
    server_more_sockets: Count | None = None


class Budgets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The budgets file."""

    total: TotalBudget = TotalBudget()
    tools: dict[str, ToolBudget] = {}
    soak: SoakBudget = SoakBudget()


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of one tool at one protocol version; times in milliseconds."""

    tool: str
    era: str
    calls: int
    failures: int
    p50: float
    p95: float
    p99: float


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of a run."""

    seconds: float
    entries: list[Entry]

    @property
    def calls(self) -> int:
        return sum(entry.calls for entry in self.entries)

    @property
    def failures(self) -> int:
        """Number of failed calls, including tool results with `isError`."""
        return sum(entry.failures for entry in self.entries)

    @property
    def rate(self) -> float:
        """Calls a second."""
        return self.calls / self.seconds if self.seconds else 0.0


def read_budgets(path: Path) -> Budgets:
    """Return the budgets in `path`. Raises BudgetsUnreadable: the file is missing or invalid."""
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Budgets)
    except OSError as error:
        raise BudgetsUnreadable(f"{path}: {error.strerror}") from error
    except (msgspec.DecodeError, ValueError) as error:
        raise BudgetsUnreadable(f"{path}: {error}") from error


def broken(budgets: Budgets, figures: Figures, users: float) -> list[str]:
    """Return a sentence for each budget broken by calls of a mean of `users`; a tool with a budget that was
    never called breaks it."""
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
    """Return the soak budgets broken by the process `server`; none in runs shorter than `from_seconds`."""
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
