"""An engine on a real socket in this process, partial uploads, and runs of `kb verify`."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web

from kb_engine.app import create_app
from kb_engine.settings import EngineSettings
from kb_engine.turns import SHORT_BYTES
from kb_http.mount import REQUEST_LINE_BYTES
from kb_verify.files import MULTIPART
from tests.support.engine_http import Caller
from tests.support.engines import API_KEY
from tests.support.ingesting import HELD, TestEmbedder
from tests.support.new_base import put_base
from tests.support.patience import ANSWER_SECONDS, SILENCE, SUITE_SECONDS

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


class Start:
    """Starts engines on one folder, one at a time: `await start(max_upload_bytes=1000)`."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._runner: web.AppRunner | None = None
        self._http: httpx.AsyncClient | None = None

    async def __call__(self, **settings: Any) -> Caller:
        """Start an engine with these settings and return a caller."""
        chosen = {"home": self._home, "embedder": "hash", "ingest_workers": 1, **settings}
        configured = EngineSettings(**chosen)
        if not (configured.store or configured.folder.exists()):
            put_base(configured.database)
        app = await create_app(configured)
        self._runner = web.AppRunner(app, shutdown_timeout=SILENCE, max_line_size=REQUEST_LINE_BYTES)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        port = self._runner.addresses[0][1]
        # Without loading certificates, a client is created ten times as fast.
        self._http = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", timeout=ANSWER_SECONDS, verify=False
        )
        return Caller(self._http)

    async def stop(self) -> None:
        """Stop the engine cleanly."""
        if self._http is not None:
            await self._http.aclose()
        if self._runner is not None:
            await self._runner.cleanup()


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
