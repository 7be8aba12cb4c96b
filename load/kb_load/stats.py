"""Figures of a run: percentiles, medians over its rounds, and tables that a person can read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, TypeVar

R = TypeVar("R")


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile, `share` from 0 to 1.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no values were measured")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def median_figures(
    rounds: Iterable[R], key: Sequence[str], fields: Mapping[str, tuple[Callable[[R], float], int]]
) -> Iterator[tuple[list[R], dict[str, Any]]]:
    """The rounds of each kind, and of them the members named in `key` and the medians of `fields`.

    A kind is what the members named in `key` have in common; kinds come in the order of their first round. A
    field is what is read from a round, and the digits to which its median is rounded.
    """
    kinds: dict[tuple[Any, ...], list[R]] = {}
    for each in rounds:
        kinds.setdefault(tuple(getattr(each, name) for name in key), []).append(each)
    for kind, alike in kinds.items():
        medians = {name: round(median(map(read, alike)), digits) for name, (read, digits) in fields.items()}
        yield alike, dict(zip(key, kind, strict=True)) | medians


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned by width, the first to the left and the others to the right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            value.rjust(width) if column else value.ljust(width)
            for column, (value, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in (header, *rows)
    )


def figures_table(columns: Mapping[str, str], figures: Iterable[object]) -> str:
    """A table of `figures`; a column is its name and a format string for one of them, which is `{0}`."""
    return table(list(columns), [[form.format(each) for form in columns.values()] for each in figures])
