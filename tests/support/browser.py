"""A headless Chromium, driven over the DevTools protocol by aiohttp's WebSocket client.

Chromium is the only dependency, so that a test sees the same pages as a person, under the same content
policy.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import shutil
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)

_LOOKS = 400
_PAUSE_SECONDS = 0.05
_NEVER_LOADED = "about:blank"


_LEFT = -32000
"""DevTools error code of a call that was pending when the page was left."""


class PageLeftError(Exception):
    """The page was left before it answered a call."""


class Browser:
    """One tab. `problems` holds errors of its console, such as a resource refused by the page's policy."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.problems: list[str] = []

    async def send(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            message = await self._socket.receive_json()
            if message.get("method") == "Log.entryAdded":
                self.problems.append(message["params"]["entry"]["text"])
            if message.get("id") == number:
                if message.get("error", {}).get("code") == _LEFT:
                    raise PageLeftError(message)
                assert "error" not in message, message
                return message["result"]

    async def value(self, expression: str) -> Any:
        """Return the value of an expression; a promise is awaited."""
        result = await self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        return result["result"].get("value")

    async def until(self, expression: str) -> None:
        for _ in range(_LOOKS):
            with suppress(PageLeftError):
                if await self.value(expression):
                    return
            await asyncio.sleep(_PAUSE_SECONDS)
        text = await self.value("document.body.innerText")
        raise AssertionError(f"{expression} never held; the page says: {text}")

    async def open(self, url: str) -> None:
        await self.value("window.left = true")
        await self.send("Page.navigate", url=url)
        await self.loaded()

    async def loaded(self) -> None:
        """Wait until a document other than the one marked by `window.left` is loaded."""
        await self.until("!window.left && document.readyState === 'complete'")

    async def press(self, selector: str) -> None:
        """Click an element that leads to another page, and wait for that page."""
        await self.value("window.left = true")
        clicked = await self.value(f"!!document.querySelector({json.dumps(selector)})")
        assert clicked, f"there is no {selector}: {await self.value('document.body.innerText')}"
        with suppress(PageLeftError):
            await self.value(f"document.querySelector({json.dumps(selector)}).click()")
        await self.loaded()

    async def fill(self, selector: str, text: str) -> None:
        await self.value(f"document.querySelector({json.dumps(selector)}).value = {json.dumps(text)}")

    async def text(self) -> str:
        return str(await self.value("document.body.innerText"))

    async def look(self, *, width: int = 1200, dark: bool = False) -> None:
        """Set the viewport's width in pixels, and the colour scheme."""
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=800, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.send("Emulation.setEmulatedMedia", features=[scheme])

    async def picture(self) -> bytes:
        """A screenshot of the tab, as PNG."""
        return base64.b64decode((await self.send("Page.captureScreenshot", format="png"))["data"])


@asynccontextmanager
async def opened(folder: Path, url: str = _NEVER_LOADED) -> AsyncIterator[Browser]:
    """Yield a tab at `url`. The browser keeps its profile in `folder` and ends with the block."""
    assert CHROMIUM is not None
    command = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--hide-scrollbars", "--remote-debugging-port=0", f"--user-data-dir={folder}", url,
    ]  # fmt: skip
    process = await asyncio.create_subprocess_exec(*command, stdout=DEVNULL, stderr=DEVNULL)
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(await _tab(session, folder), max_msg_size=0) as socket,
        ):
            browser = Browser(socket)
            await browser.send("Log.enable")
            yield browser
    finally:
        process.terminate()
        await process.wait()


async def _tab(session: aiohttp.ClientSession, folder: Path) -> str:
    """Return the WebSocket URL of the tab, once the browser has written its port to a file."""
    for _ in range(_LOOKS):
        written = folder / "DevToolsActivePort"
        lines = written.read_text().splitlines() if written.exists() else []
        if len(lines) > 1:
            async with session.get(f"http://127.0.0.1:{lines[0]}/json/list") as response:
                pages = [each for each in await response.json() if each["type"] == "page"]
            if pages:
                return str(pages[0]["webSocketDebuggerUrl"])
        await asyncio.sleep(_PAUSE_SECONDS)
    raise AssertionError("the browser does not start")
