"""The report of a load run: one HTML file that holds all, and the plots beside it as PNG."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

import msgspec

from kb_load.budgets import Budgets, Figures
from kb_load.history import Moment
from kb_load.machine import Machine
from kb_load.plots import Line, Sheet
from kb_load.sampling import Sample, of, slope

_STYLE = """\
body{font:15px/1.5 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;margin:1em 0}
td,th{padding:.2em .8em;text-align:right;border-bottom:1px solid #ddd}
td:first-child,th:first-child{text-align:left}img{max-width:100%}.bad{color:#b00020}.good{color:#1b6e3c}
small{color:#555}"""

PLOT = "load.png"
PAGE = "report.html"


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run left behind."""

    title: str
    machine: Machine
    command: str
    figures: Figures
    history: list[Moment]
    samples: list[Sample]
    budgets: Budgets
    complaints: list[str]


def write_report(run: Run, folder: Path) -> Path:
    """Write plot, figures and page into `folder`; the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    plot(run, folder / PLOT)
    (folder / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=1))
    page = folder / PAGE
    page.write_text(html(run, (folder / PLOT).read_bytes()), "utf-8")
    return page


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
    sheet.save(path, under=run.machine.line())


def html(run: Run, picture: bytes) -> str:
    """The page, which needs no other file."""
    verdict = "".join(f'<li class="bad">{escape(complaint)}</li>' for complaint in run.complaints)
    image = base64.b64encode(picture).decode()
    versions = ", ".join(f"{name} {version}" for name, version in run.machine.versions.items())
    body = [
        f"<h1>{escape(run.title)}</h1>",
        f"<p>{escape(run.machine.line())}<br>",
        f"<small>{escape(run.machine.system)}; {escape(versions)}</small></p>",
        f"<p><code>{escape(run.command)}</code></p>",
        f"<ul>{verdict}</ul>" if verdict else '<p class="good">All budgets were kept.</p>',
        f"<p>{escape(summary(run.figures))}</p>",
        f'<img alt="throughput, latency, memory, processors, sockets" src="data:image/png;base64,{image}">',
        _table(
            ["tool", "version", "calls", "failed", "p50 ms", "p95 ms", "p99 ms", "budget p95", "budget p99"],
            _rows(run),
        ),
        _table(
            ["process", "memory at the end, MiB", "MiB a minute", "open sockets, first", "last"],
            _processes(run),
        ),
    ]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(run.title)}</title>'
        f"<style>{_STYLE}</style>\n" + "\n".join(body) + "</html>\n"
    )


def summary(figures: Figures) -> str:
    """The run in one line."""
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
    """What each process held; of a soak, after the first `skip_seconds` of its budget."""
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


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"
