"""The transactions that repositories work in, and what differs between the dialects of SQL.

A repository is written as coroutines. On PostgreSQL they wait for the server. On SQLite they run on a thread
of the store, where nothing in them ever waits, so that a transaction on SQLite is one visit to its thread,
and a statement costs it two coroutines more, less than a microsecond.

Statements have a `?` for each value. Where the databases need other SQL, an attribute or a method of `Read`
or `Write` has it; what only one of them needs (locks, notifications, files in the base) does nothing on the
other.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar, get_type_hints

import msgspec

from kb_contracts.access.reach import Reach
from kb_contracts.semantics.requests import KEPT_SECONDS, check_same_request
from kb_engine.index.port import Vectors
from kb_engine.store.port import Bounds, Idempotency, Prepared, StoreEventKind
from kb_engine.store.repository.reach import Condition, of_document, reached

A = TypeVar("A", bound=msgspec.Struct)
F = TypeVar("F", bound=Callable[..., object])
P = ParamSpec("P")

Clock = Callable[[], datetime]
Elapsed = Callable[[], float]
"""Seconds, of which differences count."""
Row = Sequence[Any]


class SteadyClock:
    """The system's clock, and two that do not follow it when it is put forward.

    A clock that is days ahead, and corrected later, must not end what is kept for a time. So a store counts
    from the time at which it was opened, by a clock that nobody sets:

        now      the time of the system                                all other stamps
        steady   opened + elapsed, or `now` where that is earlier      versions expire
        counted  the later of opened and newest key, + elapsed         stamps of idempotency keys
        seen     the earlier of the two + elapsed, or `steady`         idempotency keys are forgotten

    The newest key is that of the base when it was opened. The time in which no engine ran is not counted for
    keys, since a wrong clock at the start looks the same: each is kept for 24 hours or longer, and a sweep
    takes no more than the time that has passed since the base was opened. Only a clock that is ahead over two
    starts, with a key in between, ends keys early.
    """

    def __init__(self, clock: Clock, elapsed: Elapsed, newest: str | None) -> None:
        """`newest` is the stamp of the latest idempotency key in the base; None: it has none."""
        self._clock = clock
        self._elapsed = elapsed
        self._since = elapsed()
        self._opened = clock()
        self._newest = None if newest is None else parse(newest)

    def __call__(self) -> datetime:
        return self._clock()

    def steady(self) -> datetime:
        """The time of the system, without what it was put forward since the store was opened."""
        return min(self._clock(), self._opened + self._passed)

    def counted(self) -> datetime:
        """A time that goes on evenly, and is later than all keys that were there."""
        return max(self._opened, self._newest or self._opened) + self._passed

    def seen(self) -> datetime:
        """The latest time that is known to have come."""
        return min(self.steady(), min(self._opened, self._newest or self._opened) + self._passed)

    @property
    def _passed(self) -> timedelta:
        return timedelta(seconds=self._elapsed() - self._since)


def elapsed_seconds() -> float:
    """Seconds by a clock that nobody sets; on Linux those in which the machine sleeps are counted too."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


_ANSWERS_KEPT = timedelta(seconds=KEPT_SECONDS)


# Times as the base keeps them: RFC 3339, UTC, `Z`, always six decimals, so that text order is time order.


def stamp(moment: datetime) -> str:
    """The text of an aware moment."""
    # isoformat, because strftime does not pad years before 1000.
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def parse(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)


def following(now: str, earlier: str) -> str:
    """`now`, or the instant after `earlier` where the clock did not move on (or went back)."""
    return now if now > earlier else stamp(parse(earlier) + timedelta(microseconds=1))


def seconds_between(start: str, end: str) -> float:
    """The seconds from one to the other; none where a clock was put back in between."""
    return max(0.0, (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds())


@dataclass(eq=False)
class Read(ABC):
    """An open transaction; all that it reads is of one state of the base.

    `db` is the connection of the driver, for what is not a repository's. Fragments of SQL that may be empty
    begin with a space.
    """

    sources: ClassVar[str]
    """The column of all source paths of a document `d`."""
    tags: ClassVar[str]
    """The column of all tags of a document `d`."""
    read_list: ClassVar[staticmethod[[Any], list[str]]]
    """The texts of a value of these columns."""
    among: ClassVar[str]
    """A condition on a column: that its value is one of a list."""
    list_value: ClassVar[staticmethod[[Any], Any]]
    """The value of `among`."""
    selected: ClassVar[str]
    """A condition on a column, that its value is one of those that a statement in place of `{}` selects."""
    statistics_index: ClassVar[str] = ""
    """After the table `documents d`, where the statistics of collections are added up."""
    last_updated: ClassVar[str]
    """The statement for when documents changed last."""
    generation: ClassVar[str]
    """The statement for the number of the last change."""
    lacking_words: ClassVar[str]
    """The statement for whether the base has fewer words of a document than it counted."""
    last_document: ClassVar[str]
    """The statement for the highest id of a document that was ever given; 0: none was."""
    vector: ClassVar[str]
    """The column of a vector `v.vector`, as the driver returns it."""
    vectors_of: ClassVar[staticmethod[[Sequence[Any]], Vectors]]
    tags_in: ClassVar[str]
    """The tags in a JSON text in place of `{}`, as a table with one column."""
    of_version: ClassVar[str]
    """The JSON of the tags that a version `v` has."""
    tag_in: ClassVar[str]
    """The column of `tags_in`."""

    db: Any
    clock: Clock
    reach: Reach | None = field(default=None, init=False)
    """The documents that there are for this transaction; None: all. What is outside is as if it were not."""

    @cached_property
    def now(self) -> str:
        """One instant for all of the transaction."""
        return stamp(self.clock())

    @property
    def steady(self) -> str:
        """`now`, without what the clock was put forward since the store was opened."""
        return stamp(self.clock.steady()) if isinstance(self.clock, SteadyClock) else self.now

    @property
    def counted(self) -> str:
        """A time that goes on evenly while a store is open."""
        return stamp(self.clock.counted()) if isinstance(self.clock, SteadyClock) else self.now

    @property
    def seen(self) -> str:
        """The latest time that is known to have come."""
        return stamp(self.clock.seen()) if isinstance(self.clock, SteadyClock) else self.now

    # Every statement about documents, jobs, versions or collections has one of these conditions, or a number
    # that came of one that has. Without a reach they are empty, and cost nothing.

    def within(self, column: str) -> Condition:
        """A further condition on the number of a document: that it is within reach."""
        if self.reach is None:
            return "", ()
        where, values = of_document(self.reach, column)
        return f" AND {where}", values

    def version_within(self) -> Condition:
        """A further condition on a version `v`: that the document had a tag within reach in it."""
        return self._carries(self.of_version)

    def job_within(self) -> Condition:
        """A further condition on `jobs`: that its tags are within reach, and its document is.

        Of a document that was removed it counts where that was.
        """
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
        """All rows of a statement."""

    async def row(self, sql: str, values: Sequence[Any] = ()) -> Row | None:
        """The first row of a statement, or None."""
        found = await self.rows(sql, values)
        return found[0] if found else None

    async def value(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """The first value of the first row, or None."""
        found = await self.rows(sql, values)
        return found[0][0] if found else None

    @abstractmethod
    async def size(self) -> int:
        """How many bytes the base takes, uploads apart."""


@dataclass(eq=False)
class Write(Read):
    """A transaction that changes something: it happens whole or not at all."""

    for_update: ClassVar[str] = ""
    skip_locked: ClassVar[str] = ""
    abandoned: ClassVar[str] = ""
    """A further condition on running jobs: that no engine holds them any more."""
    no_lease: ClassVar[str] = "lease = NULL"
    """The assignments that end a lease."""
    forget_answers: ClassVar[str] = "DELETE FROM idempotency WHERE created_at <= ?"
    """The statement that deletes the idempotency keys up to an instant."""
    ping: ClassVar[str]
    """The statement that notes an instant, beside all that others may hold."""

    bounds: Bounds

    @abstractmethod
    async def changed(self, sql: str, values: Sequence[Any] = ()) -> int:
        """How many rows a statement has inserted, changed or removed."""

    @abstractmethod
    async def next_document(self) -> int:
        """The id of a new document, never given before."""

    @abstractmethod
    async def continue_from(self, last_document: int, generation: int) -> None:
        """Give no document an id, and no change a number, up to these of another base."""

    @abstractmethod
    async def touch_base(self, document_id: int | None) -> None:
        """Note that this document changed, also where it was deleted; None: that all were."""

    # What a document holds: chunks, their words and their vectors, written and removed together.

    @abstractmethod
    async def insert_content(self, document_id: int, title: str, prepared: Prepared) -> None:
        """Store the chunks of a document that has none."""

    @abstractmethod
    async def remove_content(self, document_id: int) -> None:
        """Take away the chunks of a document."""

    @abstractmethod
    async def remove_all_content(self) -> None:
        """Take away the chunks of all documents."""

    # SQLite's writes follow one another, in one process that owns the base and keeps its files in a folder.

    @property
    def lease_end(self) -> tuple[str, Sequence[Any]]:
        """An assignment, with a comma behind it, that sets the end of a lease, and its values."""
        return "", ()

    async def hold_base(self, *, alone: bool = False) -> None:
        """Wait for a change of the whole base to end, and keep such out until this one has.

        `alone`: this is such a change, beside which no document is changed.
        """

    async def hold_document(self, document_id: int) -> bool:  # noqa: ARG002
        """Wait for other changes of a document to end, and keep them out.

        Whether what was read of it before may be out of date by now.
        """
        return False

    async def hold_content(self, kind: str, sha256: str, dedup_scope: str) -> None:
        """Wait for others that store the same content in the same scope, and keep them out."""

    async def hold_descriptions(self) -> None:
        """Let nobody else describe a collection until the transaction ends."""

    async def try_measures(self, work: str) -> bool:  # noqa: ARG002
        """Whether nobody else is just learning from work of this kind; then nobody is until the end."""
        return True

    async def hold_queue(self) -> None:
        """Let nobody else accept a job until the transaction ends."""

    async def hold_key(self, idempotency: Idempotency) -> None:
        """Wait for a request under the same idempotency key, on whichever engine, and keep others out."""

    async def keep_file(self, name: str) -> None:
        """A job needs this file of the spool."""

    async def drop_files(self, names: Sequence[str]) -> None:
        """No job needs these files of the spool any more."""

    @abstractmethod
    async def keep_original(self, sha256: str, size: int, name: str) -> None:
        """Keep this file of the spool as the one of its content."""

    @abstractmethod
    async def drop_originals(self, hashes: Sequence[str]) -> None:
        """Keep the files of these contents no longer."""

    def keep_lease(self, lease: str) -> None:
        """This engine has a job under this lease, once the transaction commits."""

    def drop_lease(self, lease: str) -> None:
        """The job of this lease is out of this engine's hands, once the transaction commits."""

    def notify(self, kind: StoreEventKind, job_id: str | None = None) -> None:
        """Tell the other engines, when the transaction commits."""


def placeholders(count: int) -> str:
    """That many, for values between commas."""
    return ",".join("?" * count)


MAKES_ROOM: set[Callable[..., object]] = set()


def makes_room(operation: F) -> F:
    """Have an operation done on a full disk too, where the store can."""
    MAKES_ROOM.add(operation)
    return operation


# Retried mutations are recognised, whichever engine they reach. The answer is kept in the transaction of the
# effect, for 24 hours.


async def once(
    write: Write,
    idempotency: Idempotency | None,
    operation: Callable[Concatenate[Write, P], Coroutine[Any, Any, A]],
    *args: P.args,
    **kwargs: P.kwargs,
) -> A:
    """Do the operation, unless it was done under this key: then its answer from then.

    A request under the same key that another engine is busy with is waited for.

    Raises:
        EngineError: `idempotency_mismatch` where the key came with another request.
    """
    if idempotency is None:
        return await operation(write, *args, **kwargs)
    await write.hold_key(idempotency)
    if (earlier := await answer_to(write, idempotency)) is not None:
        kept: A = msgspec.json.decode(earlier, type=get_type_hints(operation)["return"])
        return kept
    done = await operation(write, *args, **kwargs)
    await keep_answer(write, idempotency, done)
    return done


async def answer_to(read: Read, idempotency: Idempotency) -> bytes | None:
    """The JSON answer given under this key before, while it is kept; raises `idempotency_mismatch`.

    None while an update is at work under it, and where that was cancelled.
    """
    answer, job_id = await answer_or_job(read, idempotency) or (None, None)
    return answer if job_id is None else None


async def answer_or_job(read: Read, idempotency: Idempotency) -> tuple[bytes, str | None] | None:
    """The answer under this key, and the job whose outcome it will be where that is not known yet."""
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
    """Keep an answer, which is not the last one where it is that of a job which is at work."""
    await write.rows(write.forget_answers, (_forgotten_at(write.seen),))
    await write.rows(
        # What is there under the key is over a day old, and another engine is just forgetting it.
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
    """Keep the outcome of a job under the keys that wait for it; None: it failed, and they are free.

    The job's row is held, so that nobody joins it any more.
    """
    if answer is None:
        await write.rows("DELETE FROM idempotency WHERE job_id = ?", (job_id,))
    else:
        sql = "UPDATE idempotency SET answer = ?, job_id = NULL WHERE job_id = ?"
        await write.rows(sql, (msgspec.json.encode(answer), job_id))


def _forgotten_at(now: str) -> str:
    """Answers from this instant and before are forgotten."""
    return stamp(parse(now) - _ANSWERS_KEPT)
