"""An engine on a real socket in this process, partial uploads, and runs of `kb verify`."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from kb_engine.app import create_app
from kb_engine.settings import EngineSettings
from kb_engine.turns import SHORT_BYTES
from kb_http.mount import REQUEST_LINE_BYTES
from kb_verify import Outcome, Promise, Status
from kb_verify.client import TOO_FAST
from kb_verify.files import MULTIPART
from tests.support.engine_http import Caller
from tests.support.engines import API_KEY
from tests.support.ingesting import HELD, TestEmbedder
from tests.support.new_base import put_base
from tests.support.patience import ANSWER_SECONDS, SUITE_SECONDS
from tests.support.serving import serving_app

HELD_LONG = f"{HELD} " + "stone " * SHORT_BYTES
"""A note in the lane of long jobs that `embedder` holds; two take all the places of one caller there."""

COUNTS = "contract"
"""The property of a test for counts of the suite's requests, printed at the end of a run."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the counts, independent of the process in which the tests ran."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == COUNTS and report.when == "call":
                terminalreporter.write_line(f"contract: {value}")


MOST_TOO_FAST = 3
"""Promises on unfinished jobs, of a dozen, that a run on an engine may leave unshown: the job may end while
the suite waits for a processor. The simulator, whose jobs take virtual time, shows all of them.
"""


def is_too_fast(each: Outcome | Promise) -> bool:
    return each.status is Status.SKIPPED and each.why.startswith(TOO_FAST)


class Start:
    """Starts engines on one folder, one at a time: `await start(max_upload_bytes=1000)`."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._running = AsyncExitStack()

    async def __call__(self, **settings: Any) -> Caller:
        """Start an engine with these settings and return a caller."""
        chosen = {"home": self._home, "embedder": "hash", "ingest_workers": 1, **settings}
        configured = EngineSettings(**chosen)
        if not (configured.store or configured.folder.exists()):
            put_base(configured.database)
        serving = serving_app(await create_app(configured), max_line_size=REQUEST_LINE_BYTES)
        url = await self._running.enter_async_context(serving)
        # Without loading certificates, a client is created ten times as fast.
        http = httpx.AsyncClient(base_url=url, timeout=ANSWER_SECONDS, verify=False)
        return Caller(await self._running.enter_async_context(http))

    async def stop(self) -> None:
        """Stop the engine cleanly."""
        await self._running.aclose()


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Return a function that starts an engine with given settings; it is stopped after the test."""
    starting = Start(tmp_path)
    yield starting
    await starting.stop()


@pytest.fixture
def embedder(monkeypatch: pytest.MonkeyPatch) -> TestEmbedder:
    """The embedder of the engines that are started afterwards; a test can hold it."""
    made = TestEmbedder()
    monkeypatch.setattr("kb_engine.app.embedder_of", lambda _settings: made)
    return made


@pytest.fixture
async def kb(start: Start) -> Caller:
    """A caller of an empty engine."""
    return await start()


class Raw:
    """A separate connection for sending parts of a request; closed at the end of the block."""

    def __init__(self, port: int | None) -> None:
        self._port = port

    async def __aenter__(self) -> Raw:
        self.reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def begin(self, length: int, *headers: str) -> None:
        """Send the head of an upload with this length; return when the engine handles it."""
        lines = (
            "POST /api/v1/jobs HTTP/1.1",
            "Host: x",
            "Expect: 100-continue",
            f"Content-Length: {length}",
            *(f"{name}: {value}" for name, value in MULTIPART.items()),
            *headers,
        )
        self._writer.write("".join(f"{line}\r\n" for line in (*lines, "")).encode())
        await self.reader.readuntil(b"100 Continue\r\n\r\n")

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()


def kb_verify(
    *arguments: str, cwd: Path, environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command with the key in its environment."""
    return subprocess.run(
        [sys.executable, "-m", "kb_cli.main", "verify", *arguments],
        env={**os.environ, "KB_API_KEY": API_KEY, **(environ or {})},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=SUITE_SECONDS,
        check=False,
    )
