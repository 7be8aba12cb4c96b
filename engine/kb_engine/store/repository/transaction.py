"""The transactions in which repositories work, and the differences between the dialects of SQL.

A repository consists of coroutines. On PostgreSQL they wait for the server. On SQLite they run on a thread of
the store and never suspend, so that a transaction on SQLite is a single call on its thread; a statement costs
two extra coroutines, less than a microsecond.

Statements have a `?` for each value. Where the databases need different SQL, an attribute or method of `Read`
or `Write` supplies it. Methods needed by only one database (locks, notifications, files) do nothing on the
other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeAlias, TypeVar, get_type_hints

import msgspec

from kb_contracts.access.reach import Reach
from kb_contracts.semantics.requests import KEPT_SECONDS, Idempotency, check_same_request
from kb_engine.index.port import Vectors
from kb_engine.store.clock import SteadyClock, parse, stamp
from kb_engine.store.port import Bounds, Prepared, StoreEvent
from kb_engine.store.repository.reach import Condition, of_document, reached

A = TypeVar("A", bound=msgspec.Struct)
F = TypeVar("F", bound=Callable[..., object])
P = ParamSpec("P")
T = TypeVar("T")

Row = Sequence[Any]


_ANSWERS_KEPT = timedelta(seconds=KEPT_SECONDS)


@dataclass(eq=False)
class Read(ABC):
    """An open transaction; all its reads see one snapshot of the base.

    `db` is the driver's connection, for SQL that belongs to no repository. SQL fragments that may be empty
    begin with a space.
    """

    on_thread: ClassVar[bool] = True
    """True if the transaction runs on a thread of its own, False if it runs on the event loop."""
    sources: ClassVar[str]
    """Column expression: all source paths of a document `d`."""
    tags: ClassVar[str]
    """Column expression: all tags of a document `d`."""
    read_list: ClassVar[staticmethod[[Any], list[str]]]
    """Decodes a value of `sources` or `tags` into a list of strings."""
    among: ClassVar[str]
    """Condition on a column: its value is in a list, which is bound as one parameter."""
    list_value: ClassVar[staticmethod[[Any], Any]]
    """Converts a list to the parameter for `among`."""
    selected: ClassVar[str]
    """Condition on a column: its value is in the result of the subquery that replaces `{}`."""
    statistics_index: ClassVar[str] = ""
    """Index hint after the table `documents d` in the statistics of collections."""
    last_updated: ClassVar[str]
    """Statement for the time of the last change of a document."""
    generation: ClassVar[str]
    """Statement for the generation, the number of the last change."""
    lacking_words: ClassVar[str]
    """Statement for whether the base has fewer word entries of a document than it counted."""
    last_document: ClassVar[str]
    """Statement for the highest document id ever assigned; 0 in a new base."""
    vector: ClassVar[str]
    """Column expression: the vector `v.vector`, as the driver returns it."""
    vectors_of: ClassVar[staticmethod[[Sequence[Any]], Vectors]]
    tags_in: ClassVar[str]
    """Table expression with one column: the tags in the JSON text that replaces `{}`."""
    of_version: ClassVar[str]
    """SQL expression: the tags of a version `v`, as JSON."""
    tag_in: ClassVar[str]
    """Name of the column of `tags_in`."""

    db: Any
    clock: SteadyClock
    reach: Reach | None = field(default=None, init=False)
    """The access scope of the transaction (None: unrestricted). Documents outside do not exist for it."""

    @cached_property
    def now(self) -> str:
        """The time of the transaction, constant throughout it."""
        return stamp(self.clock())

    @property
    def steady(self) -> str:
        """`now`, without forward jumps of the clock since the store was opened."""
        return stamp(self.clock.steady())

    @property
    def counted(self) -> str:
        """A time that advances evenly while a store is open."""
        return stamp(self.clock.counted())

    @property
    def seen(self) -> str:
        """The latest time that has certainly been reached."""
        return stamp(self.clock.seen())

    # Each statement about documents, jobs, versions or collections includes one of these conditions, or an id
    # obtained from a statement that does. Without an access scope they are empty and cost nothing.

    def within(self, column: str) -> Condition:
        """An additional condition on a document id: the document is within the access scope."""
        if self.reach is None:
            return "", ()
        where, values = of_document(self.reach, column)
        return f" AND {where}", values

    def version_within(self) -> Condition:
        """An additional condition on a version `v`: the document had a tag within the access scope in it."""
        return self._carries(self.of_version)

    def job_within(self) -> Condition:
        """An additional condition on `jobs`: tags and document (or its last tags) are in the access scope."""
        if self.reach is None:
            return "", ()
        where, own = self._carries("jobs.tags")
        standing, of_standing = of_document(self.reach, "o.id")
        removed, of_removed = self.version_within()
        return (
            f"{where} AND NOT EXISTS (SELECT 1 FROM documents o "  # noqa: S608
            f"WHERE o.id = jobs.document_id AND NOT {standing}) AND NOT EXISTS (SELECT 1 FROM versions v "
            f"WHERE v.document_id = jobs.document_id AND v.removed AND NOT (true{removed}))",
            [*own, *of_standing, *of_removed],
        )

    def _carries(self, json: str) -> Condition:
        if self.reach is None:
            return "", ()
        where, values = reached(self.reach, self.tag_in)
        return f" AND EXISTS (SELECT 1 FROM {self.tags_in.format(json)} WHERE {where})", values  # noqa: S608

    @abstractmethod
    async def rows(self, sql: str, values: Sequence[Any] = ()) -> Sequence[Row]:
        """Return all rows of a statement."""

    async def row(self, sql: str, values: Sequence[Any] = ()) -> Row | None:
        """Return the first row of a statement, or None."""
        found = await self.rows(sql, values)
        return found[0] if found else None

    async def value(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """Return the first value of the first row, or None."""
        found = await self.rows(sql, values)
        return found[0][0] if found else None

    @abstractmethod
    async def size(self) -> int:
        """Return the size of the base in bytes, without uploads."""


@dataclass(eq=False)
class Write(Read):
    """A transaction with changes; it is atomic."""

    for_update: ClassVar[str] = ""
    skip_locked: ClassVar[str] = ""
    abandoned: ClassVar[str] = ""
    """Additional condition on running jobs: no engine holds them any more."""
    no_lease: ClassVar[str] = "lease = NULL"
    """Assignments that end a lease."""
    forget_answers: ClassVar[str] = "DELETE FROM idempotency WHERE created_at <= ?"
    """Statement that deletes the idempotency keys up to a point in time."""
    ping: ClassVar[str]
    """Statement that stores a timestamp; it must not wait for locks of running transactions."""

    bounds: Bounds
    events: list[StoreEvent] = field(default_factory=list)
    """The events to report after the commit."""

    @abstractmethod
    async def changed(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Return the number of rows that a statement inserted, changed or removed."""

    async def insert(self, table: str, columns: Mapping[str, Any]) -> None:
        """Insert a row, given by its columns."""
        sql = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({placeholders(len(columns))})"  # noqa: S608
        await self.rows(sql, tuple(columns.values()))

    @abstractmethod
    async def next_document(self) -> int:
        """Return the id of a new document, never assigned before."""

    @abstractmethod
    async def continue_from(self, last_document: int, generation: int) -> None:
        """Let the numbers of documents and changes continue after the highest ones of another base."""

    @abstractmethod
    async def touch_base(self, document_id: int | None) -> None:
        """Record that this document was changed or deleted; None records that all documents were removed."""

    # The content of a document: chunks, their words and their vectors, written and removed together.

    @abstractmethod
    async def insert_content(self, document_id: int, title: str, prepared: Prepared) -> None:
        """Store the chunks of a document, which must have no chunks."""

    @abstractmethod
    async def remove_content(self, document_id: int) -> None:
        """Remove the chunks of a document."""

    @abstractmethod
    async def remove_all_content(self) -> None:
        """Remove the chunks of all documents."""

    # Most methods below do nothing on SQLite: its writes are serialized, in one process that owns the base
    # and its files.

    @property
    def lease_end(self) -> tuple[str, Sequence[Any]]:
        """An assignment that sets the end of a lease, followed by a comma, and its values."""
        return "", ()

    async def hold_base(self, *, alone: bool = False) -> None:
        """Wait until no change of the whole base is running, and lock such changes out until this one ends.

        `alone` says that this is such a change; it excludes changes of single documents.
        """

    async def hold_document(self, document_id: int) -> bool:  # noqa: ARG002
        """Lock a document; return True if data read before may be out of date."""
        return False

    async def hold_content(self, kind: str, sha256: str, dedup_scope: str) -> None:
        """Lock a content within a scope, so that two transactions do not store it at once."""

    async def hold_descriptions(self) -> None:
        """Lock the descriptions of collections until the transaction ends."""

    async def try_measures(self, work: str) -> bool:  # noqa: ARG002
        """Try to lock the measurements of this kind of work; return whether it succeeded."""
        return True

    async def hold_queue(self) -> None:
        """Lock the acceptance of jobs until the transaction ends."""

    async def hold_key(self, idempotency: Idempotency) -> None:
        """Lock an idempotency key, waiting for a request with the same key on any engine."""

    async def keep_file(self, name: str) -> None:
        """Mark a file of the spool as needed by a job."""

    async def drop_files(self, names: Sequence[str]) -> None:
        """Release files of the spool that no job needs any more."""

    @abstractmethod
    async def keep_original(self, sha256: str, size: int, name: str) -> None:
        """Keep this file of the spool as the original with this SHA-256."""

    @abstractmethod
    async def drop_originals(self, hashes: Sequence[str]) -> None:
        """Release the originals with these hashes."""

    def keep_lease(self, lease: str) -> None:
        """Record, on commit, that this engine holds a job under this lease."""

    def drop_lease(self, lease: str) -> None:
        """Record, on commit, that this engine no longer holds the job of this lease."""


Work: TypeAlias = Callable[[Write], Coroutine[Any, Any, T]]


def placeholders(count: int) -> str:
    """Return `count` placeholders, separated by commas."""
    return ",".join("?" * count)


MAKES_ROOM: set[Callable[..., object]] = set()


def makes_room(operation: F) -> F:
    """Mark an operation as allowed on a full disk, if the store has reserved space."""
    MAKES_ROOM.add(operation)
    return operation


TOGETHER: set[Callable[..., object]] = set()


def together(operation: F) -> F:
    """Mark an operation as short: calls of it that wait for one another may share a transaction."""
    TOGETHER.add(operation)
    return operation


# Retried mutations are recognised on any engine. The response is stored in the transaction of the effect and
# kept for 24 hours.


async def once(
    write: Write,
    idempotency: Idempotency | None,
    operation: Callable[Concatenate[Write, P], Coroutine[Any, Any, A]],
    *args: P.args,
    **kwargs: P.kwargs,
) -> A:
    """Run the operation, or return the stored response if it already ran under this key.

    If another engine is processing a request with the same key, wait for it.
    Raises EngineError: `idempotency_mismatch` if the key was used for a different request.
    """
    if idempotency is None:
        return await operation(write, *args, **kwargs)
    if operation in TOGETHER:  # the transaction may hold several keys: two of these would wait for each other
        await write.hold_queue()
    await write.hold_key(idempotency)
    if (earlier := await answer_to(write, idempotency)) is not None:
        kept: A = msgspec.json.decode(earlier, type=get_type_hints(operation)["return"])
        return kept
    done = await operation(write, *args, **kwargs)
    await keep_answer(write, idempotency, done)
    return done


async def answer_to(read: Read, idempotency: Idempotency) -> bytes | None:
    """Return the JSON response stored under this key, if any. Raises `idempotency_mismatch`.

    Return None while an update under this key is unfinished, and after it was cancelled.
    """
    answer, job_id = await answer_or_job(read, idempotency) or (None, None)
    return answer if job_id is None else None


async def answer_or_job(read: Read, idempotency: Idempotency) -> tuple[bytes, str | None] | None:
    """Return the response under this key, and the id of the unfinished job that will replace it, if any."""
    found = await read.row(
        "SELECT fingerprint, answer, job_id FROM idempotency "
        "WHERE credential = ? AND operation = ? AND key = ? AND created_at > ?",
        (idempotency.credential, idempotency.operation, idempotency.key, _forgotten_at(read.seen)),
    )
    if found is None:
        return None
    fingerprint, answer, job_id = found
    check_same_request(idempotency.key, idempotency.fingerprint, fingerprint)
    return bytes(answer), job_id


async def keep_answer(
    write: Write, idempotency: Idempotency, answer: msgspec.Struct, job_id: str | None = None
) -> None:
    """Store a response. With `job_id` it is provisional until that job ends."""
    await write.rows(write.forget_answers, (_forgotten_at(write.seen),))
    await write.rows(
        # A conflicting row is over a day old, about to be deleted by another engine.
        "INSERT INTO idempotency (credential, operation, key, fingerprint, answer, created_at, job_id) "
        "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (credential, operation, key) DO UPDATE SET "
        "fingerprint = EXCLUDED.fingerprint, answer = EXCLUDED.answer, created_at = EXCLUDED.created_at, "
        "job_id = EXCLUDED.job_id",
        (
            idempotency.credential,
            idempotency.operation,
            idempotency.key,
            idempotency.fingerprint,
            msgspec.json.encode(answer),
            write.counted,
            job_id,
        ),
    )


async def settle(write: Write, job_id: str, answer: msgspec.Struct | None) -> None:
    """Store the outcome of a job under the keys waiting for it. If the job failed (None), free the keys.

    The row of the job is locked, so that no further request can join it.
    """
    if answer is None:
        await write.rows("DELETE FROM idempotency WHERE job_id = ?", (job_id,))
    else:
        sql = "UPDATE idempotency SET answer = ?, job_id = NULL WHERE job_id = ?"
        await write.rows(sql, (msgspec.json.encode(answer), job_id))


def _forgotten_at(now: str) -> str:
    """Responses stored at or before this time are expired."""
    return stamp(parse(now) - _ANSWERS_KEPT)
