"""Locust's history of a run: one row a second for all calls together, out of its CSV file."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """All calls around one second of the run. Times are milliseconds, of the last seconds before it."""

    seconds: float
    users: int
    rate: float
    failures: float
    p50: float
    p95: float
    p99: float


def read_history(path: Path) -> list[Moment]:
    """The moments in Locust's `*_stats_history.csv`, in order."""
    with path.open(newline="", encoding="utf-8") as file:
        return moments(csv.DictReader(file))


def moments(rows: Iterable[Mapping[str, str]]) -> list[Moment]:
    """The rows of all calls together; rows before the first call are left out."""
    found: list[Moment] = []
    began: float | None = None
    for row in rows:
        if row["Name"] != "Aggregated" or not _number(row["Total Request Count"]):
            continue
        at = _number(row["Timestamp"])
        began = at if began is None else began
        found.append(
            Moment(
                seconds=at - began,
                users=int(_number(row["User Count"])),
                rate=_number(row["Requests/s"]),
                failures=_number(row["Failures/s"]),
                p50=_number(row["50%"]),
                p95=_number(row["95%"]),
                p99=_number(row["99%"]),
            )
        )
    return found


def _number(text: str) -> float:
    """Locust writes `N/A` where nothing was measured."""
    try:
        return float(text)
    except ValueError:
        return 0.0
