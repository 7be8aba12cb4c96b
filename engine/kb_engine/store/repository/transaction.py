"""The transactions that repositories work in, and what differs between the dialects of SQL.

A repository is written as coroutines. On PostgreSQL they wait for the server. On SQLite they run on a thread
of the store, where nothing in them ever waits: `run_to_end` takes such a coroutine from its beginning to its
end as one call. So neither driver changes, a transaction on SQLite is still one visit to its thread, and a
statement costs it two coroutines more, less than a microsecond.

Statements have a `?` for each value. What a fragment of a `Dialect` cannot say, because only one of the
databases needs it (locks, notifications, files in the base), is a method of `Write` that does nothing unless
it is overridden.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from kb_engine.index.port import Vectors
from kb_engine.store.port import Prepared, StoreEventKind
from kb_engine.store.rows import ReadList, Row

T = TypeVar("T")


class Content(Protocol):
    """What a document holds: chunks, their words and their vectors, written and removed together."""

    async def insert(self, write: Any, document_id: int, title: str, prepared: Prepared) -> None:
        """Store the chunks of a document that has none."""

    async def remove(self, write: Any, document_id: int) -> None:
        """Take away the chunks of a document."""

    async def remove_all(self, write: Any) -> None:
        """Take away the chunks of all documents."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The SQL that differs. Fragments that may be empty begin with a space."""

    content: Content
    sources: str
    """The column of all source paths of a document `d`."""
    tags: str
    """The column of all tags of a document `d`."""
    read_list: ReadList
    """The texts of a value of these columns."""
    among: Callable[[Sequence[Any]], tuple[str, Sequence[Any]]]
    """A condition on a column, that its value is one of these, and its values."""
    selected: str
    """A condition on a column, that its value is one of those that a statement in place of `{}` selects."""
    statistics_index: str
    """After the table `documents d`, where the statistics of collections are added up."""
    for_update: str
    skip_locked: str
    abandoned: str
    """A further condition on running jobs: that no engine holds them any more."""
    no_lease: str
    """The assignments that end a lease."""
    forget_answers: str
    """The statement that deletes the idempotency keys up to an instant."""
    last_updated: str
    """The statement for when documents changed last."""
    generation: str
    """The statement for the number of the last change."""
    vector: str
    """The column of a vector `v.vector`, as the driver returns it."""
    vectors_of: Callable[[Sequence[Any]], Vectors]


class Read(ABC):
    """An open transaction; all that it reads is of one state of the base. `now` is one instant for all of it.

    `db` is the connection of the driver, for what is not a repository's.
    """

    def __init__(self, db: Any, now: str, dialect: Dialect) -> None:
        self.db = db
        self.now = now
        self.dialect = dialect

    @abstractmethod
    async def rows(self, sql: str, values: Sequence[Any] = ()) -> Sequence[Row]:
        """All rows of a statement."""

    async def row(self, sql: str, values: Sequence[Any] = ()) -> Row | None:
        """The first row of a statement, or None."""
        found = await self.rows(sql, values)
        return found[0] if found else None

    async def value(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """The first value of the first row, or None."""
        found = await self.rows(sql, values)
        return found[0][0] if found else None


class Write(Read):
    """A transaction that changes something: it happens whole or not at all."""

    lease_end: tuple[str, Sequence[Any]] = ("", ())
    """An assignment, with a comma behind it, that sets the end of a lease, and its values."""

    @abstractmethod
    async def changed(self, sql: str, values: Sequence[Any] = ()) -> int:
        """How many rows a statement has inserted, changed or removed."""

    @abstractmethod
    async def next_document(self) -> int:
        """The id of a new document, never given before."""

    @abstractmethod
    async def touch_base(self, document_id: int | None) -> None:
        """Note that this document changed, also where it was deleted; None: that all were."""

    # SQLite's writes follow one another, in one process that owns the base and keeps its files in a folder.

    async def hold_base(self) -> None:
        """Wait for other changes of documents to end, and keep them out until this one has."""

    async def hold_queue(self) -> None:
        """Let nobody else accept a job until the transaction ends."""

    async def hold_key(self, *name: str) -> None:
        """Wait for a request under the same idempotency key, on whichever engine, and keep others out."""

    async def keep_file(self, name: str) -> None:
        """A job needs this file of the spool."""

    async def drop_files(self, names: Sequence[str]) -> None:
        """No job needs these files of the spool any more."""

    def notify(self, kind: StoreEventKind, job_id: str | None = None) -> None:
        """Tell the other engines, when the transaction commits."""


def placeholders(count: int) -> str:
    """That many, for values between commas."""
    return ",".join("?" * count)


def run_to_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns in which nothing waits. Raises RuntimeError: something did."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    coroutine.close()
    raise RuntimeError("a repository waited for something other than its database")
