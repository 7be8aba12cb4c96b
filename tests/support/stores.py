"""A store on a real base, and short ways to fill it."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import apsw
import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_contracts.api.formats import format_of
from kb_contracts.api.operations import DocumentsQuery
from kb_contracts.semantics.requests import Idempotency
from kb_engine.index.port import Scoring, Selection, Vectors
from kb_engine.store.port import (
    EmbedderIdentity,
    Found,
    LeasedJob,
    NewJob,
    Prepared,
    PreparedChunk,
    Query,
)
from kb_engine.store.postgres.postgres_store import PostgresStore, open_postgres
from kb_engine.store.postgres.search.building import Due, build_index
from kb_engine.store.repository import documents, jobs, updates
from kb_engine.store.repository.transaction import answer_to
from kb_engine.store.sqlite.sqlite_store import SqliteStore, open_sqlite
from kb_engine.turns import Lane
from tests.support.new_base import put_base
from tests.support.postgres import Database, new_database

Place = Path | Database
"""Location of a base."""

DIMENSIONS = 8
SEARCH_PATH = "kb, public"
EMBEDDER = EmbedderIdentity("test", DIMENSIONS)
SCORING = Scoring(weight=0.5, saturation=0.5, floor=0.3, cosine_floor=0.3)
START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@dataclass
class TestClock:
    """Stands still until it is moved."""

    __test__ = False
    now: datetime = START
    _set: timedelta = timedelta()

    def __call__(self) -> datetime:
        return self.now

    def move(self, **by: float) -> None:
        self.now += timedelta(**by)

    def set_forward(self, **by: float) -> None:
        """Have it say another time, without that so much has passed."""
        self.now += timedelta(**by)
        self._set += timedelta(**by)

    def elapsed(self) -> float:
        return (self.now - self._set - START).total_seconds()


def axis(number: int) -> NDArray[np.float32]:
    return np.eye(DIMENSIONS, dtype=np.float32)[number]


def between(first: int, second: int, cosine: float) -> NDArray[np.float32]:
    """A unit vector in the plane of two axes, with the given cosine to the first."""
    return np.asarray(cosine * axis(first) + np.sqrt(1 - cosine**2) * axis(second), dtype=np.float32)


def meaning(text: str) -> NDArray[np.float32]:
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    vector = np.random.default_rng(seed).normal(size=DIMENSIONS)
    return np.asarray(vector / np.linalg.norm(vector), dtype=np.float32)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def new_note(text: str, /, **changes: Any) -> NewJob:
    fields: dict[str, Any] = {
        "id": str(uuid4()),
        "kind": "note",
        "title": "A note",
        "tags": (),
        "metadata": {},
        "source_path": None,
        "dedup_scope": "",
        "sha256": digest(text),
        "size_bytes": len(text.encode()),
        "text": text,
    }
    return NewJob(**{**fields, **changes})


def new_file(text: str, /, **changes: Any) -> NewJob:
    """A file to accept, identified by its hash; the content is not stored."""
    form = format_of(changes.get("filename", "file.txt"))
    fields: dict[str, Any] = {
        "kind": "file",
        "title": "A file",
        "text": None,
        "spool": digest(text)[:12],
        "filename": "file.txt",
        "format": form.name,
        "doc_type": form.doc_type,
    }
    return new_note(text, **{**fields, **changes})


def prepared(
    *texts: str, title: str = "A note", vectors: Sequence[NDArray[np.float32]] | None = None, **changes: Any
) -> Prepared:
    """Chunks with vectors, by default those of `meaning`."""
    rows = [meaning(text) for text in texts] if vectors is None else list(vectors)
    matrix: Vectors = np.array(rows, dtype=np.float32).reshape(len(texts), DIMENSIONS)
    chunks, start = [], 0
    for text in texts:
        end, tokens = start + len(text), len(text.split())
        chunks.append(PreparedChunk(text, page=1, heading=None, start=start, end=end, tokens=tokens))
        start = end
    fields: dict[str, Any] = {"extraction_method": "text", "pages": None, **changes}
    return Prepared(title=title, chunks=chunks, vectors=matrix, **fields)


async def refused(awaitable: Awaitable[object]) -> EngineError:
    with pytest.raises(EngineError) as caught:
        await awaitable
    return caught.value


def key(name: str = "key", fingerprint: str = "same", operation: str = "op") -> Idempotency:
    return Idempotency(key=name, credential="caller", operation=operation, fingerprint=fingerprint)


@dataclass
class Base:
    """An open store, and the operations of a worker on it."""

    place: Place
    store: Any
    clock: TestClock = field(default_factory=TestClock)

    @property
    def path(self) -> Path:
        assert isinstance(self.place, Path)
        return self.place

    async def count(self, table: str) -> int:
        sql = f"SELECT count(*) FROM {table}"
        if isinstance(self.place, Path):
            return int(await self.store._readers.run(lambda db: db.execute(sql).get))
        return int(await self.place.value(sql))

    async def accept(self, job: NewJob) -> m.Job:
        accepted: m.Job = await self.store.once(None, jobs.accept, job)
        return accepted

    async def take(self, lease: str, *lanes: Collection[Lane]) -> LeasedJob:
        leased: LeasedJob | None = await self.store.write(jobs.take, lease, *lanes)
        assert leased is not None
        return leased

    async def lease(self, job: NewJob) -> LeasedJob:
        """Accept a job and lease it; no other job may be waiting."""
        await self.accept(job)
        leased = await self.take(f"lease of {job.id}")
        assert leased.job.id == job.id
        return leased

    async def commit(self, leased: LeasedJob, made: Prepared) -> m.Job | None:
        """Return the closed job, or None if the lease is void."""
        done: m.Job | None = await self.store.write(documents.commit, leased, made)
        return done

    async def ingest(self, job: NewJob, made: Prepared) -> m.Job:
        done = await self.commit(await self.lease(job), made)
        assert done is not None
        return done

    async def ingest_among_others(self, job: NewJob, made: Prepared) -> m.Job:
        """Like `ingest`, while other jobs wait too: the job leased need not be the one accepted."""
        await self.accept(job)
        done = await self.commit(await self.take(f"lease of {job.id}"), made)
        assert done is not None
        return done

    async def update(
        self,
        document_id: int,
        text: str,
        made: Prepared,
        *,
        version: int | None = None,
        idempotency: Idempotency | None = None,
    ) -> m.Document:
        """Update a note, from acceptance to the end of its job; no other job may be waiting."""
        patch, once = m.NotePatch(text=text, expected_version=version), idempotency or key(str(uuid4()))
        taken = await self.store.write(updates.accept, document_id, patch, once)
        if isinstance(taken, m.Document):
            return taken
        leased = await self.take(f"lease of {taken.id}")
        assert leased.job.id == taken.id
        assert await self.commit(leased, made) is not None
        return msgspec.json.decode(await self.store.read(answer_to, once), type=m.Document)

    async def note(
        self, *texts: str, vectors: Sequence[NDArray[np.float32]] | None = None, **changes: Any
    ) -> m.DocumentDetail:
        job = new_note("".join(texts), **changes)
        return await self._document(
            await self.ingest(job, prepared(*texts, title=job.title, vectors=vectors))
        )

    async def file(self, *texts: str, **changes: Any) -> m.DocumentDetail:
        job = new_file("".join(texts), **changes)
        return await self._document(await self.ingest(job, prepared(*texts, title=job.title)))

    async def _document(self, job: m.Job) -> m.DocumentDetail:
        assert job.document_id is not None
        return await self.detail(job.document_id)

    async def detail(self, key: int | str) -> m.DocumentDetail:
        found: m.DocumentDetail = await self.store.read(documents.detail, key)
        return found

    async def find(self, text: str, mode: m.Mode = "fts", **changes: Any) -> Found:
        """Search; a semantic search uses `vector`."""
        selection = Selection(**{name: changes.pop(name) for name in list(changes) if name in _SELECTS})
        asked: dict[str, Any] = {"vector": None, "scoring": SCORING, "top": 10, **changes}
        query = Query(text=text, mode=mode, selection=selection, **asked)
        found = await self.store.search(query)
        return await self.store.judged(query, found) if mode == "vector" else found

    async def titles(self, text: str, mode: m.Mode = "fts", **changes: Any) -> list[str]:
        return [result.document.title for result in (await self.find(text, mode, **changes)).results]


_SELECTS = set(Selection.__dataclass_fields__)


async def build_vector_index(base: Base) -> None:
    """Build the HNSW index of a base on PostgreSQL, however few its chunks, and make searches use it."""
    assert isinstance(base.place, Database)
    # The planner estimates that a sequential scan of a few rows is always cheaper.
    await base.place.execute(f"ALTER DATABASE {base.place.name} SET enable_seqscan = off")
    assert await build_index(base.place.address, SEARCH_PATH, Due(DIMENSIONS, 0))


@asynccontextmanager
async def opened(place: Place, clock: TestClock | None = None, **options: Any) -> AsyncIterator[Base]:
    clock = clock or TestClock()
    store = await open_store(place, **{"embedder": EMBEDDER, "clock": clock, **options})
    try:
        yield Base(place, store, clock)
    finally:
        await store.close()


async def open_store(place: Place, **options: Any) -> SqliteStore | PostgresStore:
    if isinstance(clock := options.get("clock"), TestClock):
        options = {"elapsed": clock.elapsed, **options}
    if isinstance(place, Path):
        return await open_sqlite(place, **options)
    return await open_postgres(place.address, wait=0, **options)


@contextmanager
def direct(path: Path) -> Iterator[apsw.Connection]:
    """Yield a plain SQLite connection to the base."""
    db = apsw.Connection(str(path))
    try:
        yield db
    finally:
        db.close()


async def visit(place: Place, **options: Any) -> None:
    async with opened(place, **options):
        pass


async def new_place(kind: str, folder: Path, *, empty: bool = False) -> Place:
    """A place for a base of one of the two kinds; with `empty`, no base was ever there."""
    if kind == "sqlite":
        return folder / "kb.db" if empty else put_base(folder / "kb.db")
    return await new_database(empty=empty)


async def died(base: Base, folder: Path) -> Place:
    """Return the state after a kill of the process, once its leases have expired."""
    if isinstance(base.place, Path):
        return left_by_a_crash(base, folder)
    base.store._leases.clear()
    await base.place.execute(
        "UPDATE jobs SET lease_until = now() - interval '1 hour' WHERE lease IS NOT NULL"
    )
    return base.place


def _copy_what_is_there(source: str, target: str) -> None:
    """Copy a file, unless upkeep has just renamed or removed it."""
    with suppress(FileNotFoundError):
        shutil.copy2(source, target)


def left_by_a_crash(base: Base, folder: Path) -> Path:
    """Copy the current content of the disk, as after a kill of the process; return the copy's path."""
    folder.mkdir()
    index = f"{base.path.name}.index"
    shutil.copytree(base.path.with_name(index), folder / index, copy_function=_copy_what_is_there)
    for name in (base.path.name, f"{base.path.name}-wal"):
        shutil.copy(base.path.with_name(name), folder / name)
    return folder / base.path.name


async def all_documents(base: Base, **filters: Any) -> m.DocumentList:
    defaults = {"sort_by": "id", "sort_order": "asc", "limit": 1000}
    return await base.store.read(documents.page, DocumentsQuery(**{**defaults, **filters}))
