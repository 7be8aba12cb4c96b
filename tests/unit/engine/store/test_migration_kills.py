"""A kill during a migration, at each of its statements: the base opens complete.

The migrating process is a real one. It is killed with SIGKILL at its first statement, then at its second, and
so on through every migration, until a kill comes too late. New migrations are covered too. A whole run begins
at each layout. The first one has content already, and the way from it crosses all migrations. The ways from
others execute the same statements, so each has fewer kills: on SQLite, with one transaction for the way, at
every seventh statement from the second layout on, and on PostgreSQL within the first migration.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import apsw
import pytest

from kb_engine.index.words import Analyser
from kb_engine.store.port import EmbedderIdentity
from kb_engine.store.postgres import schema as postgres
from kb_engine.store.postgres.connection import Db, connect, to_dollar_params
from kb_engine.store.postgres.transaction import set_embedder
from kb_engine.store.repository import collections, jobs
from kb_engine.store.sqlite.connection import rows
from kb_engine.store.sqlite.schema import MIGRATIONS, migrate
from tests.support.postgres import Database, drop, new_database
from tests.support.scope import rows as daily
from tests.support.stores import DIMENSIONS, Place, all_documents, axis, new_note, opened, prepared

pytestmark = pytest.mark.process

STRIDE = 7
"""Number of statements from one kill to the next on SQLite, on the way from a later layout."""

TIME = "2024-05-06T07:08:09.000000Z"
TEXTS = ["granite quarry", "basalt column"]

DOCUMENT: Mapping[str, Any] = {
    "id": 1, "uid": "u1", "kind": "file", "title": "Stones", "doc_type": "text", "format": "txt",
    "filename": "f.txt", "source_path": "/f", "size_bytes": 27, "sha256": "h", "metadata": "{}",
    "source_type": None, "dedup_scope": "", "status": "searchable", "status_reason": None,
    "extraction_method": "text", "pages": None, "chunk_count": 2, "token_count": 4, "version": 7,
    "created_at": TIME, "updated_at": TIME,
}  # fmt: skip
JOB: Mapping[str, Any] = {
    "id": "6f1f6f0e-0000-4000-8000-000000000000", "status": "queued", "kind": "note", "title": "waits",
    "tags": "[]", "metadata": "{}", "dedup_scope": "", "sha256": "j", "size_bytes": 5, "doc_type": "note",
    "step": "queued", "created_at": TIME,
}  # fmt: skip
COLLECTION: Mapping[str, Any] = {
    "id": "00000000-0000-4000-8000-000000000000", "name": "stones", "description": "d", "created_by": "a@b",
    "created_at": TIME, "updated_at": TIME,
}  # fmt: skip


def chunk(number: int) -> dict[str, Any]:
    text = TEXTS[number]
    return {
        "id": number + 1, "uid": f"c{number}", "document_id": 1, "position": number, "text": text, "page": 1,
        "heading": "Top", "first": 0, "beyond": len(text), "tokens": 2, "words": 5,
    }  # fmt: skip


CONTENT: list[tuple[str, Mapping[str, Any]]] = [
    ("documents", DOCUMENT),
    ("document_sources", {"document_id": 1, "source_path": "/f"}),
    ("document_tags", {"document_id": 1, "tag": "collection:stones"}),
    *(("chunks", chunk(number)) for number in range(len(TEXTS))),
    ("jobs", JOB),
    ("job_texts", {"job_id": JOB["id"], "text": "waits"}),
    ("collections", COLLECTION),
]
"""Content of every layout, as far as it has the tables and columns."""


def fill_sqlite(path: Path, version: int) -> None:
    db = apsw.Connection(str(path))
    db.pragma("journal_mode", "wal")
    migrate(db, path, MIGRATIONS[:version])
    db.execute("INSERT INTO meta VALUES ('embedder', 'test'), ('dimensions', ?)", (str(DIMENSIONS),))
    for table, content in CONTENT:
        known = {name for _, name, *_ in rows(db, f"PRAGMA table_info ({table})")}
        if columns := {name: held for name, held in content.items() if name in known}:
            marks = ", ".join("?" * len(columns))
            db.execute(
                f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", tuple(columns.values())
            )
    for number, text in enumerate(TEXTS):
        db.execute("INSERT INTO vectors VALUES (?, ?)", (number + 1, axis(number).tobytes()))
        if rows(db, "SELECT 1 FROM sqlite_schema WHERE name = 'words'"):
            words = (number + 1, "stones", "top", text)
            db.execute("INSERT INTO words (rowid, title, heading, text) VALUES (?, ?, ?, ?)", words)
    db.close()


async def fill_postgres(database: Database, version: int) -> None:
    db = await connect(database.address)
    try:
        await db.execute("CREATE EXTENSION vector")
        if not version:
            return
        await postgres.migrate(db, database.address, postgres.MIGRATIONS[:version])
        await set_embedder(db, EmbedderIdentity("test", DIMENSIONS))
        await db.execute("UPDATE base SET chunks = 2, words = 10, last_document = 1, last_chunk = 2")
        if version >= 6:  # ids come from sequences
            await db.execute("SELECT setval('document_ids', 1), setval('chunk_ids', 2)")
        for table, content in CONTENT:
            await insert(db, table, content)
        for number, text in enumerate(TEXTS, 1):
            vector = axis(number - 1).tolist()
            sql = "INSERT INTO vectors (chunk_id, document_id, vector) VALUES ($1, 1, $2::real[]::vector)"
            await db.execute(sql, number, vector)
            for word in Analyser().words_of(text):
                sql = "INSERT INTO postings (term, chunk_id, frequency, length) VALUES ($1, $2, 1, 5)"
                await db.execute(sql, word[0], number)
    finally:
        await db.close()


async def insert(db: Db, table: str, content: Mapping[str, Any]) -> None:
    known = "SELECT column_name FROM information_schema.columns WHERE table_schema = 'kb' AND table_name = $1"
    names = {name for (name,) in await db.fetch(known, table)}
    if columns := {name: held for name, held in content.items() if name in names}:
        marks = ", ".join("?" * len(columns))
        sql = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})"
        await db.execute(to_dollar_params(sql), *columns.values())


# A single-threaded process that forks the ones to kill, because starting a process takes longest. It reads
# bases from its input, each with the number of statements to complete, and prints how the migration ended.
_PROGRAM = """
import os
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import asyncio, signal, sys
from pathlib import Path
from kb_engine.address import address_of
from kb_engine.store.postgres import connection, schema
from kb_engine.store.sqlite.connection import connect
from kb_engine.store.sqlite.schema import migrate

def migrate_sqlite(path, count):
    db = connect(path)
    db.exec_trace = count
    migrate(db, path)

async def migrate_postgres(address, count):
    db = await connection.connect(address)
    db.add_query_logger(count)
    await schema.migrate(db, address, schema.MIGRATIONS)

def killed(place, left):
    def count(*_):
        nonlocal left
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return True

    if place.startswith("/"):
        migrate_sqlite(Path(place), count)
    else:
        asyncio.run(migrate_postgres(address_of(place), count))

for line in sys.stdin:
    place, left = line.rsplit(maxsplit=1)
    if not (pid := os.fork()):
        killed(place, int(left))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


Migrated = Callable[[str, int], bool]
"""Migrates a base, by its path or URL, with a kill after a number of statements; False if it was killed."""


@pytest.fixture(scope="module")
def migrated() -> Iterator[Migrated]:
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        sent, received = program.stdin, program.stdout
        assert sent is not None
        assert received is not None

        def migrate_until(place: str, left: int) -> bool:
            sent.write(f"{place} {left}\n")
            sent.flush()
            status = int(received.readline())
            assert status in {0, -signal.SIGKILL}
            return status == 0

        yield migrate_until
        sent.close()
        assert program.wait() == 0


async def expect_everything(place: Place, version: int) -> None:
    """Check documents, tags, words, vectors, and the further content of the layout; version 0 has none."""
    async with opened(place) as base:
        if not version:
            assert (await all_documents(base)).total == 0
            return
        (document,) = (await all_documents(base)).documents
        assert (document.title, document.tags, document.source_paths) == (
            "Stones", ["collection:stones"], ["/f"],
        )  # fmt: skip
        detail = await base.detail(1)
        assert detail.version == (7 if isinstance(place, Database) or version >= 2 else 1)
        assert [each.text for each in detail.chunks] == TEXTS
        for number, text in enumerate(TEXTS):
            (found,) = (await base.find(text)).results
            assert found.chunk.text == text
            best = (await base.find("", "vector", vector=axis(number))).results[0]
            assert (best.chunk.text, best.score) == (text, 1.0)
        if isinstance(place, Database) or version >= 2:
            assert (await base.store.read(jobs.find, JOB["id"])).status == "queued"
            assert (await base.store.write(jobs.take, "lease")).job.text == "waits"
        if isinstance(place, Database) or version >= 3:
            assert (await base.store.read(collections.detail, COLLECTION["id"])).description == "d"
        if isinstance(place, Database):
            added = (await base.ingest_among_others(new_note("a"), prepared("a"))).document_id
            assert (added, [each.id for each in (await base.detail(2)).chunks]) == (2, [3])


@pytest.mark.parametrize("version", daily(0, whole=range(1, len(MIGRATIONS))))
async def test_a_kill_at_any_statement_of_a_migration_of_sqlite_loses_nothing(
    migrated: Migrated, tmp_path: Path, version: int
) -> None:
    """From every layout to the current one; the last process completed without a kill."""
    path = tmp_path / "kb.db"
    if version:
        fill_sqlite(path, version)
    else:
        apsw.Connection(str(path)).pragma("journal_mode", "wal")
    number, step = (0, 1) if version <= 1 else (version % STRIDE, STRIDE)
    is_complete = False
    while not is_complete:
        folder = tmp_path / str(number)
        folder.mkdir()
        shutil.copy(path, folder)
        is_complete = migrated(str(folder / path.name), number)
        await expect_everything(folder / path.name, version)
        copies = {each.name for each in folder.glob("*.layout-*")}
        assert copies == ({f"{path.name}.layout-{version}"} if version else set())
        number += step
    assert number > 2 * (len(MIGRATIONS) - version)


async def layout(database: Database) -> int:
    """Return the layout of the base; 0 if there is none."""
    if await database.value("SELECT to_regclass('kb.layout')") is None:
        return 0
    return int(await database.value("SELECT version FROM kb.layout"))


@pytest.mark.parametrize("version", daily(0, 1, whole=range(2, len(postgres.MIGRATIONS))))
async def test_a_kill_at_any_statement_of_a_migration_of_postgres_loses_nothing(
    migrated: Migrated, version: int
) -> None:
    """All kills are in one base. A copy of it is checked after each migration, which is a transaction."""
    database = await new_database(empty=True)
    await fill_postgres(database, version)
    reached, left, kills = version, 0, 0
    while not migrated(database.url, left):
        left, kills = left + 1, kills + 1
        if (now := await layout(database)) > reached:
            copy = await new_database(like=database)
            await expect_everything(copy, version)
            await drop(copy)
            if version != 1:
                break
            reached, left = now, 0
    await expect_everything(database, version)
    await drop(database)
    assert kills > 2 * (len(postgres.MIGRATIONS) - 1 if version == 1 else 1)
