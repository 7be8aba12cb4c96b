"""An engine on a real socket in this process, with a fast embedder and a folder of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web

from kb_engine.app import create_app
from kb_engine.settings import EngineSettings
from tests.support.engine_http import Caller

COUNTS = "contract"
"""The property of a test that tells what the suite asked of engine or simulator, and was answered."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the counts, whichever process ran the tests."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == COUNTS and report.when == "call":
                terminalreporter.write_line(f"contract: {value}")


class Start:
    """Starts engines on one folder, one at a time; `await start(max_upload_bytes=1000)`."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._runner: web.AppRunner | None = None
        self._http: httpx.AsyncClient | None = None

    async def __call__(self, **settings: Any) -> Caller:
        """A caller of an engine with these settings."""
        chosen = {"home": self._home, "embedder": "hash", "ingest_workers": 1, **settings}
        self._runner = web.AppRunner(await create_app(EngineSettings(**chosen)), shutdown_timeout=0.5)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        port = self._runner.addresses[0][1]
        # Without certificates to load, a client is made in a tenth of the time.
        self._http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60, verify=False)
        return Caller(self._http)

    async def stop(self) -> None:
        """End the engine in order."""
        if self._http is not None:
            await self._http.aclose()
        if self._runner is not None:
            await self._runner.cleanup()


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Start an engine with settings of the test's choice; it is stopped after the test."""
    starting = Start(tmp_path)
    yield starting
    await starting.stop()


@pytest.fixture
async def kb(start: Start) -> Caller:
    """A caller of an empty engine."""
    return await start()
