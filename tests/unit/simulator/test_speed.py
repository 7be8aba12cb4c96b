"""The simulator is fast enough for load tests of its clients.

It searches beside a bare aiohttp handler that sends the same bytes. The measure is the number of steps of
Python, calls and lines, that a server's thread takes, which is the same on every machine. The queries are of
three words out of a small vocabulary, so that most chunks match.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import httpx
import msgspec
from aiohttp import web

from kb_contracts.api import models as m
from kb_simulator.engine import submissions
from kb_simulator.harness.app import build_app
from kb_simulator.harness.namespaces import DEFAULT, Namespaces
from kb_simulator.settings import SimulatorSettings
from tests.support.patience import ANSWER_SECONDS, START_SECONDS

DOCUMENTS = 200
WORDS_A_DOCUMENT = 120
QUERIES = 60
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


@dataclass
class Counted:
    """A server in a thread of its own that counts the thread's steps."""

    app: web.Application
    steps: int = 0
    address: Future[str] = field(default_factory=Future)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def run(self) -> None:
        sys.settrace(self._traced)
        sys.setprofile(self._profiled)
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        runner = web.AppRunner(self.app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.address.set_result(f"http://127.0.0.1:{runner.addresses[0][1]}{PATH}")
        await self.ended.wait()
        await runner.cleanup()

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self.ended.set)

    def _traced(self, _frame: FrameType, _event: str, _argument: Any) -> Any:
        self.steps += 1
        return self._traced

    def _profiled(self, _frame: FrameType, event: str, _argument: Any) -> None:
        self.steps += event == "c_call"


@contextmanager
def served(app: web.Application) -> Iterator[Counted]:
    server = Counted(app)
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(server.run)
        server.address.result(START_SECONDS)
        try:
            yield server
        finally:
            server.end()
            running.result()


def steps(server: Counted, bodies: list[bytes]) -> tuple[int, bytes]:
    """Send every query twice; return the steps of the second time and the last response's body."""
    with httpx.Client(
        verify=False, timeout=ANSWER_SECONDS, headers={"Content-Type": "application/json"}
    ) as client:
        for body in bodies:  # the first search of a query fills the cache
            client.post(server.address.result(), content=body)
        before = server.steps
        for body in bodies:
            answer = client.post(server.address.result(), content=body).content
    return server.steps - before, answer


def test_a_repeated_search_takes_at_most_twice_the_steps_of_a_bare_handler() -> None:
    """200 documents, top 10, journal on, compared with a handler of the same bytes."""
    bodies = queries()
    with served(simulator()) as server:
        ours, answer = steps(server, bodies)
    with served(bare(answer)) as server:
        least, _ = steps(server, bodies)
    assert ours <= 2 * least, f"{ours / QUERIES:.0f} and {least / QUERIES:.0f} steps for a search"
