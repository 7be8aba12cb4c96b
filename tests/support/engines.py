"""The two that keep the contract, each in a thread of its own: the engine and the simulator."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from kb_engine.app import create_app
from kb_engine.settings import EngineSettings
from kb_simulator import SimulatorSettings, in_thread

API_KEY = "the-key-of-the-contract-tests"

_START_SECONDS = 60


@contextmanager
def engine(home: Path, middlewares: Sequence[Any] = (), **settings: Any) -> Iterator[str]:
    """An engine with an embedder that needs no model; its base URL. `middlewares` stand around it."""
    chosen = {"home": home, "embedder": "hash", "api_key": API_KEY, "ingest_workers": 1, **settings}
    serving = _Serving(EngineSettings(**chosen), middlewares)
    serving.start()
    try:
        yield serving.url()
    finally:
        serving.stop()


@contextmanager
def simulator() -> Iterator[str]:
    """A simulator whose jobs take virtual time, so that they can be cancelled; its base URL."""
    with in_thread(SimulatorSettings(port=0, jobs="seconds:5", api_key=API_KEY)) as running:
        yield running.url


class _Serving(threading.Thread):
    """An event loop with an engine on a free port."""

    def __init__(self, settings: EngineSettings, middlewares: Sequence[Any]) -> None:
        super().__init__(name="kb-engine", daemon=True)
        self._settings, self._middlewares = settings, middlewares
        self._ready, self._ended = threading.Event(), asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._url = ""

    def run(self) -> None:
        """The thread."""
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._ready.set()
            self._loop.close()

    async def _serve(self) -> None:
        app = await create_app(self._settings)
        app.middlewares[:0] = self._middlewares
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self._url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            self._ready.set()
            await self._ended.wait()
        finally:
            await runner.cleanup()

    def url(self) -> str:
        """Where it listens, once it does."""
        assert self._ready.wait(_START_SECONDS), "the engine does not start"
        assert self._url, "the engine could not start"
        return self._url

    def stop(self) -> None:
        """End in order."""
        if self.is_alive():
            self._loop.call_soon_threadsafe(self._ended.set)
        self.join()
