"""The simulator is fast enough for load tests of its clients.

It searches beside a bare aiohttp handler that sends the same bytes. Both are servers of one process each; a
client without a library alternates between them. The measure is the server's own processor time, which other
programs on the machine do not change. The queries are of three words out of a small vocabulary, so that most
chunks match.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.queues import Queue

import httpx
import msgspec
import psutil
import pytest
from aiohttp import web

from kb_contracts.api import models as m
from kb_simulator.engine import submissions
from kb_simulator.harness.app import build_app
from kb_simulator.harness.namespaces import DEFAULT, Namespaces
from kb_simulator.settings import SimulatorSettings
from tests.support.patience import ANSWER_SECONDS, START_SECONDS

pytestmark = pytest.mark.process

DOCUMENTS = 1_000
WORDS_A_DOCUMENT = 120
QUERIES = 60
CONNECTIONS = 16
TURNS, ANSWERS = 22, 2_400  # processor time is counted in hundredths of a second, so turns are summed
PATH = "/api/v1/search"

STEMS = (
    "harbour", "river", "ledger", "compass", "loom", "bell", "kettle", "anvil", "barley", "canal", "lamp",
    "sluice", "frost", "charter", "orchard", "market", "pension", "policy", "claim", "memory",
)  # fmt: skip
ENDINGS = ("", "s", "ing", "less", "ful", "dom", "ship", "like", "wise", "ward", "hood", "y")
VOCABULARY = [stem + ending for stem in STEMS for ending in ENDINGS]


def _text(dice: random.Random, count: int) -> str:
    return " ".join(dice.choice(VOCABULARY) for _ in range(count))


def queries() -> list[bytes]:
    dice = random.Random(2)
    return [msgspec.json.encode({"query": _text(dice, 3), "top": 10}) for _ in range(QUERIES)]


def simulator() -> web.Application:
    namespaces = Namespaces(SimulatorSettings(max_upload_bytes=1))
    state = namespaces.get(DEFAULT).state
    dice = random.Random(1)
    for number in range(DOCUMENTS):
        note = m.NoteRequest(text=_text(dice, WORDS_A_DOCUMENT), tags=["collection:documents"])
        state.accept(submissions.note(str(number), note))
    return build_app(namespaces)


def bare(body: bytes) -> web.Application:
    async def handle(_request: web.Request) -> web.Response:
        return web.Response(body=body, content_type="application/json")

    app = web.Application()
    app.router.add_post(PATH, handle)
    return app


def _serve(body: bytes | None, ready: Queue[int]) -> None:
    async def listen() -> None:
        runner = web.AppRunner(simulator() if body is None else bare(body), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ready.put(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(listen())


@contextmanager
def served(body: bytes | None) -> Iterator[tuple[int, psutil.Process]]:
    context = multiprocessing.get_context("spawn")
    ready: Queue[int] = context.Queue()
    process = context.Process(target=_serve, args=(body, ready), daemon=True)
    process.start()
    try:
        yield ready.get(timeout=START_SECONDS), psutil.Process(process.pid)
    finally:
        process.terminate()
        process.join()


class _Caller(asyncio.Protocol):
    """One connection that sends the next request as soon as it has the response."""

    def __init__(self, bodies: Iterator[bytes], left: list[int]) -> None:
        self._bodies = bodies
        self._left = left
        self._received = bytearray()
        self._wanted: int | None = None
        self._transport: asyncio.Transport | None = None
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._ask()

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.set_result(error)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._wanted is None and b"\r\n\r\n" in self._received:
            head, _, _ = self._received.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
            self._wanted = len(head) + 4 + int(length)
        if self._wanted is not None and len(self._received) >= self._wanted:
            self._ask()

    def _ask(self) -> None:
        assert self._transport is not None
        self._received.clear()
        self._wanted = None
        if not self._left[0]:
            self._transport.close()
            return
        self._left[0] -= 1
        body = next(self._bodies)
        self._transport.write(
            b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (PATH.encode(), len(body), body)
        )


async def load(port: int, bodies: list[bytes]) -> None:
    """Send `ANSWERS` requests over all connections."""
    order = (bodies[place % len(bodies)] for place in range(1 << 40))
    left = [ANSWERS]
    loop = asyncio.get_running_loop()
    callers = [
        (await loop.create_connection(lambda: _Caller(order, left), "127.0.0.1", port))[1]
        for _ in range(CONNECTIONS)
    ]
    await asyncio.gather(*(caller.ended for caller in callers))


def seconds(port: int, process: psutil.Process, bodies: list[bytes]) -> float:
    """Return the server's processor time for one turn."""
    before = sum(process.cpu_times()[:2])
    asyncio.run(load(port, bodies))
    return sum(process.cpu_times()[:2]) - before


def test_searches_reach_half_the_rate_of_a_bare_handler() -> None:
    """1,000 documents, top 10, journal on, compared with a handler of the same bytes in the same run."""
    bodies, headers = queries(), {"Content-Type": "application/json"}
    with served(None) as (port, process):
        for body in bodies:  # the first search of a query fills the cache
            url = f"http://127.0.0.1:{port}{PATH}"
            answer = httpx.post(
                url, content=body, headers=headers, verify=False, timeout=ANSWER_SECONDS
            ).content
        with served(answer) as (bare_port, bare_process):
            turns = [
                (seconds(port, process, bodies), seconds(bare_port, bare_process, bodies))
                for _ in range(TURNS)
            ]
    ours, bare = (sum(times) for times in zip(*turns, strict=True))
    assert ours <= 2 * bare, f"{ours:.2f} and {bare:.2f} s of the processor"
