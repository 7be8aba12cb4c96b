"""Calls to several engines on one PostgreSQL, measured: the processes of the benchmark `fleet`.

Two MCP servers know all engines (`KB_ENGINE_URL`). Clients in this process search and add notes as fast as
they are answered. The processor time of a call is that of its parts: the clients, the servers, the engines,
and PostgreSQL.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal

import aiohttp
import asyncpg
import msgspec
import psutil

from kb_load.messages import HANDSHAKE, Message, structured, tool_call
from kb_load.postgres import PostgresServer
from kb_load.processes import LOOPBACK, Running, free_port, running

Kind = Literal["search", "note"]
KINDS: tuple[Kind, ...] = ("search", "note")
SERVERS = 2
_WORDS = "granite basalt slate chalk marble flint quartz opal amber jade coral onyx pearl topaz garnet"
_QUESTION_WORDS = 3
_NOTE_WORDS = 60


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of a run, real or simulated: `times` are the latencies of a kind, in milliseconds, and `cpu` the
    processor time of a part, in milliseconds a call.
    """

    seconds: float
    times: Mapping[Kind, list[float]]
    cpu: Mapping[str, float]

    @property
    def rate(self) -> float:
        """Calls a second."""
        return sum(map(len, self.times.values())) / self.seconds


@dataclass(frozen=True, slots=True)
class _Cluster:
    engines: Sequence[Running]
    servers: Mapping[int, Running]
    """By port."""
    database: psutil.Process
    notes: Iterator[int]
    """Numbers, so that no note is a duplicate."""

    async def load(self, clients: int, seconds: float, notes: float) -> Measured:
        times: dict[Kind, list[float]] = {kind: [] for kind in KINDS}
        before, began = self._cpu(), time.perf_counter()

        async def client(number: int, http: aiohttp.ClientSession) -> None:
            chance = random.Random(number)
            url = f"http://{LOOPBACK}:{list(self.servers)[number % SERVERS]}/mcp"
            while time.perf_counter() - began < seconds:
                kind: Kind = "note" if chance.random() < notes else "search"
                message = self._message(kind, chance)
                sent = time.perf_counter()
                async with http.post(url, data=message.body, headers=message.headers) as response:
                    structured(await response.read())
                times[kind].append(1000 * (time.perf_counter() - sent))

        async with aiohttp.ClientSession() as http:
            await asyncio.gather(*(client(number, http) for number in range(clients)))
        took, calls = time.perf_counter() - began, sum(map(len, times.values()))
        cpu = {part: 1000 * (spent - before[part]) / calls for part, spent in self._cpu().items()}
        return Measured(seconds=took, times=times, cpu=cpu)

    def _message(self, kind: Kind, chance: random.Random) -> Message:
        words = " ".join(chance.choices(_WORDS.split(), k=_NOTE_WORDS if kind == "note" else _QUESTION_WORDS))
        if kind == "search":
            return tool_call(HANDSHAKE, "kb_search", {"query": words, "collection": "memory", "top": 5})
        text = f"note{next(self.notes)} {words}"
        return tool_call(HANDSHAKE, "kb_addnote", {"text": text, "collection": "memory"})

    def _cpu(self) -> dict[str, float]:
        return {
            "client": time.process_time(),
            "server": sum(each.cpu_seconds() for each in self.servers.values()),
            "engine": sum(each.cpu_seconds() for each in self.engines),
            "database": _database_seconds(self.database),
        }


async def measured(
    server: PostgresServer, engines: int, clients: int, seconds: int, notes: float
) -> tuple[Measured, dict[Kind, Measured]]:
    """Return the figures of `clients`, with a share `notes` of notes in their calls, and those of one client
    with each kind of call. The load is halved around the latter, because searches take longer as the base
    grows.
    Raises kb_load.messages.CallFailed: a call failed. kb_load.processes.NotReady: a process did not start.
    """
    folder = Path(tempfile.mkdtemp(prefix="kb-bench-"))
    async with _new_database(server) as (url, database):
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, folder)

            def start(port: int, *program: str, **settings: str) -> Running:
                (home := folder / str(port)).mkdir()
                every = {"KB_HOME": str(home), "KB_EMBEDDER": "hash", "LOG_LEVEL": "warn", **settings}
                return stack.enter_context(running(str(port), ["-m", *program], home, port=port, **every))

            ports = [free_port() for _ in range(engines)]
            own = [start(port, "kb_engine", KB_ENGINE_PORT=str(port), KB_STORE=url) for port in ports]
            known = ",".join(f"http://{LOOPBACK}:{port}" for port in ports)
            servers = {
                port: start(port, "kb_cli.main", "serve", "--port", str(port), KB_ENGINE_URL=known)
                for port in (free_port() for _ in range(SERVERS))
            }
            cluster = _Cluster(own, servers, database, count())
            await cluster.load(clients, seconds / 4, notes)  # not counted: a start is slower
            one = await cluster.load(clients, seconds / 2, notes)
            alone = {kind: await cluster.load(1, seconds / 4, kind == "note") for kind in KINDS}
            other = await cluster.load(clients, seconds / 2, notes)
    both = Measured(
        seconds=one.seconds + other.seconds,
        times={kind: [*one.times[kind], *other.times[kind]] for kind in KINDS},
        cpu={part: (cpu + other.cpu[part]) / 2 for part, cpu in one.cpu.items()},
    )
    return both, alone


@asynccontextmanager
async def _new_database(server: PostgresServer) -> AsyncIterator[tuple[str, psutil.Process]]:
    """Yield the URL of a new database, and the main process of its server."""
    name = f"kb_bench_{os.getpid()}_{time.monotonic_ns()}"
    db: Any = await asyncpg.connect(server.url("postgres"))
    try:
        await db.execute(f"CREATE DATABASE {name}")
        pid = await db.fetchval("SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'")
        main = psutil.Process(pid).parent()
        assert main is not None, "the checkpointer is its child"
        yield server.url(name), main
    finally:
        await db.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        await db.close()


def _database_seconds(main: psutil.Process) -> float:
    """Return the processor seconds of a server's connections, past ones included."""
    ended = main.cpu_times()
    running = [each.cpu_times() for each in main.children()]
    return ended.children_user + ended.children_system + sum(each.user + each.system for each in running)
