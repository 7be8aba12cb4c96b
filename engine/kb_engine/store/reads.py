"""Reads that are written once for both stores: generators of statements, each answered with its rows.

A store runs them on a connection of its own, in one transaction: `answer` here for SQLite, the coroutine of
the same name in `postgres/connection.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import apsw
import msgspec
import numpy as np

from kb_engine.index.port import Vectors
from kb_engine.store.connection import marks, rows
from kb_engine.store.rows import DOCUMENT_LISTS, SUMMARY_COLUMNS, Row

T = TypeVar("T")

Statement = tuple[str, Sequence[Any]]
Steps = Generator[Statement, Sequence[Row], T]

VECTOR_TYPE = "<f4"


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


SQLITE = Dialect(
    summary_columns=SUMMARY_COLUMNS,
    with_lists=lambda row: row,
    among=lambda ids: (f"IN ({marks(len(ids))})", ids),
    generation="SELECT seq FROM sqlite_sequence WHERE name = 'index_changes'",
    lists=DOCUMENT_LISTS,
    list_of=lambda kept: msgspec.json.decode(kept, type=list[str]),
    vector="v.vector",
    vectors_of=lambda kept: np.frombuffer(b"".join(kept), VECTOR_TYPE).reshape(len(kept), -1 if kept else 0),
)


def answer(db: apsw.Connection, steps: Steps[T]) -> T:
    """What the reads lead to."""
    try:
        statement = next(steps)
        while True:
            statement = steps.send(rows(db, *statement))
    except StopIteration as end:
        return cast("T", end.value)
