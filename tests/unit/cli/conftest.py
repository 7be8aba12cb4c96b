"""A real engine for the commands: in this process, on a thread and a port of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp import web

from kb_engine.app import create_app
from kb_engine.settings import EngineSettings

KEY = "engine-secret"


@dataclass(frozen=True)
class RunningEngine:
    """Where it answers, and its key."""

    url: str
    key: str = KEY


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    """An engine with an empty base and the quick embedder."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="engine")
    thread.start()

    async def start(home: Path) -> web.AppRunner:
        settings = EngineSettings(home=home, api_key=KEY, embedder="hash", ingest_workers=1)
        runner = web.AppRunner(await create_app(settings))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner

    runner = asyncio.run_coroutine_threadsafe(start(tmp_path_factory.mktemp("home")), loop).result(60)
    try:
        yield RunningEngine(f"http://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty current folder, and none of our settings but those that the test gives."""
    monkeypatch.chdir(tmp_path)
    for name in ("KB_CONFIG", "KB_ENGINE_URL", "KB_API_KEY", "KB_HOME", "LOG_LEVEL"):
        monkeypatch.delenv(name, raising=False)
