"""The complete MCP server over HTTP: its log at start, and the setup of its workers."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from kb_config.settings import SettingsError
from kb_server.app import serve, start, warn_if_unreachable
from kb_server.processes import encode_settings, read_settings
from kb_server.settings import ServerSettings
from tests.support.patience import ANSWER_SECONDS
from tests.support.simulated_engine import simulated_engine


@asynccontextmanager
async def started(home: Path, **settings: Any) -> AsyncIterator[str]:
    bases: asyncio.Queue[str] = asyncio.Queue()
    read = ServerSettings(home=home, port=0, **settings)
    task = asyncio.create_task(serve(read, on_ready=bases.put_nowait))
    try:
        yield await asyncio.wait_for(bases.get(), ANSWER_SECONDS)
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: asyncio.Queue[str] = asyncio.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.put_nowait(record.getMessage())

    async def first_with(self, words: str) -> str:
        async with asyncio.timeout(ANSWER_SECONDS):
            while words not in (message := await self.messages.get()):
                pass
        return message


@pytest.fixture
async def warnings() -> AsyncIterator[Warnings]:
    handler, logger = Warnings(), logging.getLogger("kb_server.app")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


@pytest.mark.process
async def test_an_engine_that_refuses_our_key_is_told_at_start_and_makes_it_unready(
    tmp_path: Path, warnings: Warnings
) -> None:
    """The engine's readiness needs no key, so it says nothing about the server's key."""
    async with simulated_engine("secret") as engine, aiohttp.ClientSession() as http:
        async with (
            started(tmp_path, engine_url=engine.url, engine_api_key="secret") as base,
            http.get(f"{base}/readyz") as response,
        ):
            assert response.status == 200
            assert warnings.messages.empty()
        async with (
            started(tmp_path, engine_url=engine.url, engine_api_key="wrong") as base,
            http.get(f"{base}/readyz") as response,
        ):
            assert response.status == 503
            assert "KB_API_KEY" in (await response.json())["reason"]
            assert "refused the server's KB_API_KEY" in await warnings.first_with("Not ready")


@pytest.mark.parametrize(
    ("given", "is_told"),
    [
        ({"host": "0.0.0.0"}, True),
        ({"host": "::"}, True),
        ({"host": "0.0.0.0", "public_url": "https://kb.example"}, False),
        ({"host": "127.0.0.1"}, False),
    ],
)
def test_a_server_for_other_machines_says_that_upload_urls_do_not_reach_them(
    given: dict[str, str], is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    warn_if_unreachable(ServerSettings(**given), "http://127.0.0.1:3000")  # type: ignore[arg-type]
    assert ("KB_PUBLIC_URL" in caplog.text and "http://127.0.0.1:3000" in caplog.text) is is_told


def test_a_worker_receives_every_setting_of_its_parent(tmp_path: Path) -> None:
    settings = ServerSettings(
        home=tmp_path, engine_api_key="secret", toolsets=["kb", "ragler"], trusted_proxies=["10.0.0.0/8"]
    )
    reading, writing = os.pipe()
    try:
        os.write(writing, encode_settings(settings) + b"rest")
        assert read_settings(reading) == settings
        assert os.read(reading, 10) == b"rest"
    finally:
        os.close(reading)
        os.close(writing)


def test_a_damaged_file_of_keys_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text("{")
    for workers in (1, 2):
        with pytest.raises(SettingsError, match=r"KB_KEYS: .*keys\.json is no file of keys"):
            start(ServerSettings(home=tmp_path, port=0, workers=workers))
