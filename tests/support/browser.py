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
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

from kb_load.processes import Leash
from tests.support.eventually import eventually

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


@contextmanager
def chromium(folder: Path) -> Iterator[str]:
    """Yield the WebSocket URL of a browser that ends with the block; it keeps its files in `folder`."""
    assert CHROMIUM is not None
    command = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--hide-scrollbars", "--remote-debugging-port=0", f"--user-data-dir={folder}", _NEVER_LOADED,
    ]  # fmt: skip
    written = folder / "DevToolsActivePort"
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    leash = Leash(process.pid, "KILL")
    try:
        lines = eventually(
            lambda: written.read_text().splitlines() if written.exists() else [],
            lambda read: len(read) > 1,
            what="the browser's address",
        )
        yield f"ws://127.0.0.1:{lines[0]}{lines[1]}"
    finally:
        process.terminate()
        process.wait()
        leash.release()


@asynccontextmanager
async def opened(browser: str) -> AsyncIterator[Browser]:
    """Yield a tab of a browser. Its profile, with cookies and cache, is its own and ends with the block."""
    async with aiohttp.ClientSession() as session, session.ws_connect(browser) as socket:
        whole = Browser(socket)
        made = await whole.send("Target.createBrowserContext", disposeOnDetach=True)
        made |= await whole.send(
            "Target.createTarget", url=_NEVER_LOADED, browserContextId=made["browserContextId"]
        )
        address = f"{browser.partition('/devtools/')[0]}/devtools/page/{made['targetId']}"
        async with session.ws_connect(address, max_msg_size=0) as page:
            tab = Browser(page)
            await tab.send("Log.enable")
            yield tab
