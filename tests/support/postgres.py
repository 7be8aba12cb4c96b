"""A PostgreSQL server with pgvector for this test process, and a database for each test."""

from __future__ import annotations

import asyncio
import atexit
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import asyncpg

from kb_engine.address import Address, address_of
from kb_load.postgres import PostgresServer

T = TypeVar("T")

PASSWORD = "pass-word-of-the-tests"
"""Not needed for access; tests check that it stays out of logs and responses."""
# Durability is off, because the data need not survive a crash of the machine.
_QUICK = {
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "64MB",
    "max_connections": "200",
    "max_wal_size": "512MB",
}
_numbers = count(1)
_free: list[Database] = []


class Server(PostgresServer):
    """A running server whose URLs contain a password."""

    def url(self, database: str, password: str = PASSWORD) -> str:
        return super().url(database, password)

    async def run(self, sql: str, database: str = "postgres") -> None:
        db = await asyncpg.connect(self.url(database))
        try:
            await db.execute(sql)
        finally:
            await db.close()


@dataclass(frozen=True)
class Database:
    """A database, migrated and otherwise empty."""

    server: Server
    name: str

    @property
    def url(self) -> str:
        return self.server.url(self.name)

    @property
    def address(self) -> Address:
        return address_of(self.url)

    async def ask(self, work: Callable[[Any], Awaitable[T]]) -> T:
        db = await asyncpg.connect(self.server.url(self.name), server_settings={"search_path": "kb, public"})
        try:
            return await work(db)
        finally:
            await db.close()

    async def execute(self, sql: str) -> None:
        await self.ask(lambda db: db.execute(sql))

    async def value(self, sql: str) -> Any:
        return await self.ask(lambda db: db.fetchval(sql))


@cache
def server() -> Server:
    """The server of this process; it ends with the process."""
    made = new_server()
    asyncio.run(_make_template(made))
    return made


def new_server() -> Server:
    """Start a separate server, which is stopped at the exit of this process at the latest."""
    made = Server(Path(tempfile.mkdtemp(prefix="kb-pg-")), _QUICK)
    atexit.register(made.remove)
    made.start()
    return made


async def _make_template(made: Server) -> None:
    await made.run("CREATE DATABASE kb_template")
    from kb_engine.store.postgres.opening import latest  # an optional part

    async with latest(address_of(made.url("kb_template"))):
        pass


async def new_database(*, empty: bool = False, like: Database | None = None) -> Database:
    """Create a database: unmigrated with `empty`, otherwise a copy of `like` or of an empty base."""
    running = await asyncio.to_thread(server)
    if not empty and like is None and _free:
        return await _emptied(_free.pop())
    name = f"kb_{next(_numbers)}"
    # Copying the files takes a third of the time of the default, which writes them to the log first.
    copied = f" TEMPLATE {'kb_template' if like is None else like.name} STRATEGY FILE_COPY"
    source = "" if empty else copied
    await running.run(f"CREATE DATABASE {name}{source}")
    return Database(running, name)


def give_back(database: Database) -> None:
    """Keep the database for another test: emptying it takes a tenth of the time of creating one."""
    _free.append(database)


async def drop(database: Database) -> None:
    """Drop a database in spite of open connections; for copies, which no other test can reuse."""
    await database.server.run(f"DROP DATABASE {database.name} WITH (FORCE)")


async def _emptied(database: Database) -> Database:
    await database.execute(
        """
        DO $$ DECLARE place text; BEGIN
          PERFORM pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid();
          FOR place IN SELECT tablename FROM pg_tables WHERE schemaname = 'kb' AND tablename <> 'layout' LOOP
            EXECUTE format('DELETE FROM %I', place);
          END LOOP;
          FOR place IN SELECT sequencename FROM pg_sequences WHERE schemaname = 'kb' LOOP
            EXECUTE format('ALTER SEQUENCE %I RESTART', place);
          END LOOP;
          INSERT INTO base DEFAULT VALUES;
          DROP INDEX IF EXISTS vectors_by_meaning;
          EXECUTE format('ALTER DATABASE %I RESET ALL', current_database());
        END $$
        """
    )
    return database
