"""Calls to several engines on one PostgreSQL, measured: the processes of the benchmark `fleet`.

Two MCP servers know all engines (`KB_ENGINE_URL`). Clients in this process search and add notes as fast as
they are answered. The processor time of a call is that of its parts: the clients, the servers, the engines,
and PostgreSQL.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

import aiohttp
import msgspec
import psutil

from bench.engines import database_seconds, new_database
from kb_engine.address import address_of
from kb_load.messages import HANDSHAKE, structured, tool_call
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
    def calls(self) -> int:
        return sum(map(len, self.times.values()))

    @property
    def rate(self) -> float:
        """Calls a second."""
        return self.calls / self.seconds


class Cluster:
    """Running processes; `run` puts load on them."""

    def __init__(
        self, engines: list[Running], servers: dict[int, Running], database: psutil.Process | None
    ) -> None:
        self._engines = engines
        self._servers = servers
        self._database = database
        self._notes = 0

    async def run(self, clients: int, seconds: float, notes: float) -> Measured:
        """Return the figures of `clients` for `seconds`; `notes` is the share of notes in the calls.

        Raises:
            kb_load.messages.CallFailed: a call failed.
        """
        times: dict[Kind, list[float]] = {kind: [] for kind in KINDS}
        before, began = self._cpu(), time.perf_counter()

        async def client(number: int, http: aiohttp.ClientSession) -> None:
            chance = random.Random(number)
            url = f"http://{LOOPBACK}:{list(self._servers)[number % len(self._servers)]}/mcp"
            while time.perf_counter() - began < seconds:
                kind: Kind = "note" if chance.random() < notes else "search"
                message = tool_call(HANDSHAKE, *self._call(kind, chance))
                sent = time.perf_counter()
                async with http.post(url, data=message.body, headers=message.headers) as response:
                    structured(await response.read())
                times[kind].append(1000 * (time.perf_counter() - sent))

        async with aiohttp.ClientSession() as http:
            await asyncio.gather(*(client(number, http) for number in range(clients)))
        took, calls = time.perf_counter() - began, sum(map(len, times.values()))
        cpu = {part: 1000 * (spent - before[part]) / calls for part, spent in self._cpu().items()}
        return Measured(seconds=took, times=times, cpu=cpu)

    def _call(self, kind: Kind, chance: random.Random) -> tuple[str, dict[str, object]]:
        words = " ".join(chance.choices(_WORDS.split(), k=_NOTE_WORDS if kind == "note" else _QUESTION_WORDS))
        if kind == "search":
            return "kb_search", {"query": words, "collection": "memory", "top": 5}
        self._notes += 1
        return "kb_addnote", {"text": f"note{self._notes} {words}", "collection": "memory"}

    def _cpu(self) -> dict[str, float]:
        return {
            "client": time.process_time(),
            "server": sum(each.cpu_seconds() for each in self._servers.values()),
            "engine": sum(each.cpu_seconds() for each in self._engines),
            "database": database_seconds(self._database),
        }


async def measured(
    database: PostgresServer, engines: int, clients: int, seconds: int, notes: float
) -> tuple[Measured, dict[Kind, Measured]]:
    """Return the figures of `engines` under load, and those of one client alone with each kind of call.

    An uncounted load goes before, a quarter as long. The client alone is measured before and after the load,
    since searches take longer as the base grows.
    """
    with tempfile.TemporaryDirectory(prefix="kb-bench-") as folder:
        async with new_database(address_of(database.url("postgres"))) as (url, process):
            with ExitStack() as stack:
                cluster = Cluster(*stack.enter_context(_processes(Path(folder), url, engines)), process)
                await cluster.run(clients, seconds / 4, notes)
                alone = {kind: [await cluster.run(1, seconds / 4, kind == "note")] for kind in KINDS}
                loaded = await cluster.run(clients, seconds, notes)
                for kind, runs in alone.items():
                    runs.append(await cluster.run(1, seconds / 4, kind == "note"))
                return loaded, {kind: _both(*runs) for kind, runs in alone.items()}


def _both(one: Measured, other: Measured) -> Measured:
    return Measured(
        seconds=one.seconds + other.seconds,
        times={kind: [*one.times[kind], *other.times[kind]] for kind in KINDS},
        cpu={part: (cpu + other.cpu[part]) / 2 for part, cpu in one.cpu.items()},
    )


@contextmanager
def _processes(folder: Path, store: str, engines: int) -> Iterator[tuple[list[Running], dict[int, Running]]]:
    """Yield engines and, by their ports, servers."""
    with ExitStack() as stack:

        def start(name: str, port: int, *program: str, **settings: str) -> Running:
            (home := folder / name).mkdir()
            each = {"KB_HOME": str(home), "KB_EMBEDDER": "hash", "LOG_LEVEL": "warn", **settings}
            return stack.enter_context(running(name, ["-m", *program], home, port=port, **each))

        ports = [free_port() for _ in range(engines)]
        first = [
            start(f"engine{port}", port, "kb_engine", KB_ENGINE_PORT=str(port), KB_STORE=store)
            for port in ports
        ]
        known = ",".join(f"http://{LOOPBACK}:{port}" for port in ports)
        ports = [free_port() for _ in range(SERVERS)]
        second = {
            port: start(
                f"server{port}", port, "kb_cli.main", "serve", "--port", str(port), KB_ENGINE_URL=known
            )
            for port in ports
        }
        yield first, second
