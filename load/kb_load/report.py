"""Percentiles, tables, plots, and the report of a load run: text, JSON and a plot beside Locust's own page.

Plots are PNG files, small enough for a repository, with the machine at their foot.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from kb_load.plan import Budgets, Entry, Figures
from kb_load.processes import Machine, Sample, of, slope

if TYPE_CHECKING:
    from matplotlib.axes import Axes


R = TypeVar("R")
_COLOURS = ("#2a6f97", "#e07a5f", "#81b29a", "#6d597a", "#f2cc8f", "#3d405b", "#b56576", "#8d99ae")
_DOTS_PER_INCH = 110
Line = tuple[Sequence[float], Sequence[float]]
"""Values of x and of y."""
PLOT = "load.png"


def percentile(values: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile, `share` from 0 to 1. Raises ValueError: `values` is empty."""
    if not values:
        raise ValueError("no values were measured")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def median_figures(
    rounds: Iterable[R], key: Sequence[str], fields: Mapping[str, tuple[Callable[[R], float], int]]
) -> Iterator[tuple[list[R], dict[str, Any]]]:
    """Group rounds by the members named in `key`; return each group with its key members and medians of
    `fields`.

    Groups are in the order of their first round. A field is a function of a round, and the digits to which
    its median is rounded.
    """
    kinds: dict[tuple[Any, ...], list[R]] = {}
    for each in rounds:
        kinds.setdefault(tuple(getattr(each, name) for name in key), []).append(each)
    for kind, alike in kinds.items():
        medians = {name: round(median(map(read, alike)), digits) for name, (read, digits) in fields.items()}
        yield alike, dict(zip(key, kind, strict=True)) | medians


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table with its first column aligned left and the rest right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            value.rjust(width) if column else value.ljust(width)
            for column, (value, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in (header, *rows)
    )


def figures_table(columns: Mapping[str, str], figures: Iterable[object]) -> str:
    """Return a table of `figures`; a column is a name and a format string with a figure as `{0}`."""
    return table(list(columns), [[form.format(each) for form in columns.values()] for each in figures])


class Sheet:
    """A page of plots in one column.

    matplotlib is imported here, not with the module: the import takes a second, and only plots need it.
    """

    def __init__(self, panels: int, *, title: str, height: float = 3.0) -> None:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot

        self._figure, axes = pyplot.subplots(
            panels, 1, figsize=(9.0, height * panels + 0.6), squeeze=False, layout="constrained"
        )
        self._figure.suptitle(title, fontsize=12)
        self._axes: list[Axes] = [row[0] for row in axes]
        self._next = 0

    def mark(self, name: str, start: float, end: float) -> None:
        """Shade the seconds from `start` to `end` in all panels drawn so far, and name them in the first."""
        for number, axes in enumerate(self._axes[: self._next]):
            axes.axvspan(start, end, color="#dddddd", alpha=0.5, linewidth=0, label="" if number else name)
        if self._next:
            self._axes[0].legend(fontsize=8, loc="best")

    def lines(self, lines: Mapping[str, Line], *, y: str, dashed: str = "") -> None:
        """Draw named lines, dashed if the name contains `dashed`."""
        axes = self._panel(y)
        for number, (name, (along, values)) in enumerate(lines.items()):
            style = "--" if dashed and dashed in name else "-"
            colour = _COLOURS[number % len(_COLOURS)]
            axes.plot(along, values, style, label=name, color=colour, linewidth=1.5)
        axes.set_xlabel("seconds", fontsize=9)
        axes.set_ylim(bottom=0)
        if lines:
            axes.legend(fontsize=8, loc="best")

    def compare(
        self, figures: Sequence[object], *, group: str, bar: str, height: str, label: str, y: str,
        interval: str = "",
    ) -> None:  # fmt: skip
        """Draw the member `height` of `figures` as bars, the member `interval` as error lines over them.

        `group`, `bar` and `label` are format strings with a figure as `{0}`; every group has every bar.
        """
        bars: dict[str, list[object]] = {}
        for each in figures:
            bars.setdefault(bar.format(each), []).append(each)
        groups = list(dict.fromkeys(map(group.format, figures)))
        axes = self._panel(y)
        width = 0.8 / max(1, len(bars))
        for number, (name, own) in enumerate(bars.items()):
            places = [at + (number - (len(bars) - 1) / 2) * width for at in range(len(groups))]
            heights, colour = [getattr(each, height) for each in own], _COLOURS[number % len(_COLOURS)]
            around = None
            if interval:
                ends = [getattr(each, interval) for each in own]
                below = [at - low for at, (low, _) in zip(heights, ends, strict=True)]
                above = [high - at for at, (_, high) in zip(heights, ends, strict=True)]
                around = [below, above]
            drawn = axes.bar(
                places, heights, width * 0.94, yerr=around, label=name, color=colour,
                error_kw={"linewidth": 0.8, "ecolor": "#444444"},
            )  # fmt: skip
            axes.bar_label(drawn, labels=[label.format(each) for each in own], fontsize=8, padding=2)
        axes.set_xticks(range(len(groups)), groups)
        axes.margins(y=0.15)
        # Above the plot: inside, it could hide a value.
        axes.legend(fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(bars), frameon=False)

    def save(self, path: Path, *, under: str = "") -> None:
        """Write the page, with `under` as a line at its foot."""
        from matplotlib import pyplot

        self._figure.supxlabel(under, fontsize=6.5, color="#555555")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._figure.savefig(path, dpi=_DOTS_PER_INCH)
        pyplot.close(self._figure)

    def _panel(self, y: str) -> Axes:
        axes = self._axes[self._next]
        self._next += 1
        axes.set_ylabel(y, fontsize=9)
        axes.grid(visible=True, axis="y", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=8)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        return axes


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """All calls around one second of the run; latencies in milliseconds, over the seconds before it."""

    seconds: float
    users: int
    rate: float
    failures: float
    p50: float
    p95: float
    p99: float


def read_history(path: Path) -> list[Moment]:
    """Return the course of a run from Locust's CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        return moments(csv.DictReader(file))


def read_figures(path: Path) -> Figures:
    """Return the statistics of each tool at each version from Locust's CSV file, which ends with the sums."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    rate = _number(rows[-1]["Requests/s"]) if rows else 0.0
    entries = [
        Entry(
            tool=row["Name"], era=row["Type"], calls=int(row["Request Count"]),
            failures=int(row["Failure Count"]), **_latencies(row),
        )
        for row in rows[:-1]
    ]  # fmt: skip
    return Figures(seconds=int(rows[-1]["Request Count"]) / rate if rate else 0.0, entries=entries)


def moments(rows: Iterable[Mapping[str, str]]) -> list[Moment]:
    """Return the aggregated rows from the first call on."""
    found: list[Moment] = []
    began: float | None = None
    for row in rows:
        if row["Name"] != "Aggregated" or not _number(row["Total Request Count"]):
            continue
        at = _number(row["Timestamp"])
        began = at if began is None else began
        found.append(
            Moment(
                seconds=at - began, users=int(_number(row["User Count"])), rate=_number(row["Requests/s"]),
                failures=_number(row["Failures/s"]), **_latencies(row),
            )
        )  # fmt: skip
    return found


def _latencies(row: Mapping[str, str]) -> dict[str, float]:
    return {f"p{share}": _number(row[f"{share}%"]) for share in (50, 95, 99)}


def _number(text: str) -> float:
    """Return the number, or 0 for Locust's `N/A`, which means no measurement."""
    try:
        return float(text)
    except ValueError:
        return 0.0


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Figures, samples and history of a run."""

    title: str
    machine: Machine
    command: str
    figures: Figures
    history: list[Moment]
    samples: list[Sample]
    budgets: Budgets
    complaints: list[str]
    load_seconds: float | None = None
    """Duration of the load in seconds; afterwards the users remove what they added. None: unknown."""


def write_report(run: Run, folder: Path) -> None:
    """Write the plot and all figures into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    plot(run, folder / PLOT)
    (folder / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=1))


def plot(run: Run, path: Path) -> None:
    """Draw throughput, latency, memory, processors and sockets over time."""
    seconds = [moment.seconds for moment in run.history]
    sheet = Sheet(5, title=run.title, height=2.3)
    sheet.lines(
        {
            "calls a second": (seconds, [moment.rate for moment in run.history]),
            "failures a second": (seconds, [moment.failures for moment in run.history]),
            "users": (seconds, [moment.users for moment in run.history]),
        },
        y="calls a second, users",
        dashed="users",
    )
    sheet.lines(
        {
            name: (seconds, [getattr(moment, name) for moment in run.history])
            for name in ("p50", "p95", "p99")
        },
        y="latency, ms",
    )
    names = dict.fromkeys(sample.name for sample in run.samples)
    for member, y in (
        ("resident_mib", "resident memory, MiB"), ("cpu", "processors in use"), ("sockets", "open sockets"),
    ):  # fmt: skip
        lines: dict[str, Line] = {
            name: (
                [each.seconds for each in of(run.samples, name)],
                [getattr(each, member) for each in of(run.samples, name)],
            )
            for name in names
        }
        sheet.lines(lines, y=y)
    end = max([*seconds, *(each.seconds for each in run.samples)], default=0.0)
    if run.load_seconds is not None and run.load_seconds < end:
        sheet.mark("clean-up", run.load_seconds, end)
    sheet.save(path, under=run.machine.line())


def text(run: Run) -> str:
    """Return the figures of the tools beside their budgets, and those of the processes."""
    names = ["tool", "version", "calls", "failed", "p50 ms", "p95 ms", "p99 ms", "budget p95", "budget p99"]
    shares = ["process", "memory at the end, MiB", "MiB a minute", "open sockets, first", "last"]
    tables = [table(head, rows) for head, rows in ((names, _rows(run)), (shares, _processes(run))) if rows]
    return "\n".join([*tables, run.machine.line(), summary(run.figures)])


def summary(figures: Figures) -> str:
    calls = f"{figures.calls} calls in {figures.seconds:.0f} s, {figures.rate:.1f} a second"
    return f"{calls}; {figures.failures} failed"


def _rows(run: Run) -> list[list[str]]:
    rows = []
    for entry in run.figures.entries:
        budget = run.budgets.tools.get(entry.tool)
        limits = [budget.p95, budget.p99] if budget is not None else [None, None]
        rows.append(
            [
                entry.tool, entry.era, str(entry.calls), str(entry.failures),
                *(f"{value:.0f}" for value in (entry.p50, entry.p95, entry.p99)),
                *("" if limit is None else f"{limit:g}" for limit in limits),
            ]
        )  # fmt: skip
    return rows


def _processes(run: Run) -> list[list[str]]:
    """Return the resource usage of each process; in a soak run, after `skip_seconds` of its budget."""
    soak = run.budgets.soak
    skip = soak.skip_seconds if run.figures.seconds >= soak.from_seconds else 0
    rows = []
    for name in dict.fromkeys(sample.name for sample in run.samples):
        own = [sample for sample in of(run.samples, name) if sample.seconds >= skip]
        if own:
            grown = f"{slope(own):+.2f}" if len({sample.seconds for sample in own}) > 1 else ""
            first, last = own[0], own[-1]
            rows.append([name, f"{last.resident_mib:.0f}", grown, str(first.sockets), str(last.sockets)])
    return rows
