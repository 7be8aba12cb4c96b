"""Reads that are written once for both stores: generators of statements, each answered with its rows.

A store runs them on one connection, in one transaction: `answer` in `sqlite/connection.py` and in
`postgres/connection.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kb_engine.index.port import Vectors
from kb_engine.store.rows import Row

T = TypeVar("T")

Statement = tuple[str, Sequence[Any]]
Steps = Generator[Statement, Sequence[Row], T]


@dataclass(frozen=True, slots=True)
class Dialect:
    """What differs between the stores in these reads."""

    summary_columns: str
    with_lists: Callable[[Row], Row]
    """A row of the summary columns, with its lists as they were given."""
    among: Callable[[Sequence[int]], Statement]
    """A condition on an id: that it is one of these."""
    generation: str
    """The statement for the number of the last change."""
    lists: str
    """The columns of a document's source paths and tags."""
    list_of: Callable[[Any], list[str]]
    vector: str
    """The column of a vector `v.vector`, as the driver returns it."""
    vectors_of: Callable[[Sequence[Any]], Vectors]
