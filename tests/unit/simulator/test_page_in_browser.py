"""The page in a real browser: it lives under its own policy, and a person arms a fault and moves the clock.

Driven over the DevTools protocol by aiohttp's own WebSocket client, so that nothing is needed but Chromium.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.unit.simulator.parts import Running

CHROMIUM = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
]

_LOOKS = 400
_PAUSE_SECONDS = 0.05


class Browser:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)

    async def send(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            message = await self._socket.receive_json()
            if message.get("id") == number:
                return message["result"]

    async def value(self, expression: str) -> Any:
        result = await self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        return result["result"].get("value")

    async def until(self, expression: str) -> None:
        never = asyncio.Event()
        for _ in range(_LOOKS):
            if await self.value(expression):
                return
            try:
                await asyncio.wait_for(never.wait(), _PAUSE_SECONDS)
            except TimeoutError:
                continue
        text = await self.value("document.body.innerText")
        raise AssertionError(f"{expression} never held; the page says: {text}")


@pytest.fixture
async def browser(running: Running, tmp_path: Path) -> AsyncIterator[Browser]:
    assert CHROMIUM is not None
    command = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--remote-debugging-port=0", f"--user-data-dir={tmp_path}", f"{running.simulator.control_url}/",
    ]  # fmt: skip
    process = await asyncio.create_subprocess_exec(*command, stdout=DEVNULL, stderr=DEVNULL)
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(await _tab(session, tmp_path)) as socket,
        ):
            yield Browser(socket)
    finally:
        process.terminate()
        await process.wait()


async def _tab(session: aiohttp.ClientSession, folder: Path) -> str:
    """Where the protocol speaks for the tab, once the browser has written down its port."""
    never = asyncio.Event()
    for _ in range(_LOOKS):
        written = folder / "DevToolsActivePort"
        lines = written.read_text().splitlines() if written.exists() else []
        if len(lines) > 1:
            async with session.get(f"http://127.0.0.1:{lines[0]}/json/list") as response:
                pages = [each for each in await response.json() if each["type"] == "page"]
            if pages:
                return str(pages[0]["webSocketDebuggerUrl"])
        try:
            await asyncio.wait_for(never.wait(), _PAUSE_SECONDS)
        except TimeoutError:
            continue
    raise AssertionError("the browser does not start")


async def test_a_person_watches_arms_a_fault_and_moves_the_clock(running: Running, browser: Browser) -> None:
    """The page follows by itself, its forms do what they say, and no text of a note runs."""
    await browser.until("document.getElementById('pulse').textContent === 'live'")
    await running.note("<img src=x onerror='document.title=1'> granite")
    await browser.until("document.getElementById('live').innerText.includes('granite')")
    assert await browser.value("document.querySelectorAll('img').length") == 0
    await browser.value(
        "document.querySelector('form[action=\"/arm\"] [name=name]').value = 'not_ready';"
        "document.querySelector('form[action=\"/arm\"] [name=\"when.nth\"]').value = '1';"
        "document.querySelector('form[action=\"/arm\"] button').click()"
    )
    await browser.until("document.body.innerText.includes('Armed not_ready-1.')")
    assert (await running.search("granite")).status_code == 503
    await browser.value("document.querySelector('form[action=\"/advance\"] button').click()")
    await browser.until("document.body.innerText.includes('Moved on to 10 seconds.')")
    assert running.namespace.clock.elapsed() == 10
    await browser.until("document.getElementById('live').innerText.includes('503 not_ready')")
    await browser.value("document.querySelector('form[action=\"/disarm\"] button').click()")
    await browser.until("document.body.innerText.includes('Disarmed not_ready-1; it had fired 1 times.')")
    assert not running.namespace.faults
