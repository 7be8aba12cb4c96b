"""Servers on real sockets and pipes, for tests that speak the protocol to them."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from mcp import StdioServerParameters

from kb_server.hosting.endpoints import Endpoint, endpoints_for
from kb_server.hosting.http import build_app
from kb_server.hosting.serve import serve
from kb_server.settings import ServerSettings
from kb_server.tool import Toolset
from tests.protocol.fake_toolset import Fake

ROOT = Path(__file__).parents[2]
PARTS = ("contracts", "engine", "server", "cli")
BOUND = 5.0
"""Seconds that anything here may take before it counts as hung."""


@dataclass
class Served:
    """An application that listens."""

    base: str
    stop: asyncio.Event
    task: asyncio.Task[None]

    @property
    def mcp(self) -> str:
        """The URL of `/mcp`."""
        return f"{self.base}/mcp"

    @property
    def port(self) -> int:
        """The port listened on."""
        return int(self.base.rpartition(":")[2])


@asynccontextmanager
async def serving(app: aiohttp.web.Application, **options: Any) -> AsyncIterator[Served]:
    """Run `app` on a free port of 127.0.0.1 until the block ends."""
    stop = asyncio.Event()
    bound: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
    options = {"drain_seconds": 1.0, **options}

    def report(host: str, port: int) -> None:
        bound.put_nowait((host, port))

    task = asyncio.ensure_future(serve(app, "127.0.0.1", 0, on_bound=report, stop=stop, **options))
    listening = asyncio.ensure_future(bound.get())
    done: list[asyncio.Future[Any]] = [task, listening]
    await asyncio.wait(done, return_when=asyncio.FIRST_COMPLETED, timeout=BOUND)
    if task.done():
        listening.cancel()
        task.result()
    host, port = listening.result()
    try:
        yield Served(f"http://{host}:{port}", stop, task)
    finally:
        stop.set()
        await asyncio.wait_for(task, 2 * BOUND)


ServeToolset = Callable[..., Awaitable[Served]]


@pytest.fixture
async def serve_toolset() -> AsyncIterator[ServeToolset]:
    """Serves toolsets: `await serve_toolset(toolset, ..., settings=..., routes=...)`.

    One toolset is shown at `/mcp`; all have endpoints of their own. `settings` are fields of
    `ServerSettings`, anything else goes to `build_app`.
    """
    async with AsyncExitStack() as stack:

        async def start(
            *toolsets: Toolset,
            settings: dict[str, Any] | None = None,
            endpoints: Sequence[Endpoint] | None = None,
            serve_options: dict[str, Any] | None = None,
            **options: Any,
        ) -> Served:
            shown = endpoints or endpoints_for(toolsets, [toolset.name for toolset in toolsets])
            app = build_app(ServerSettings(**(settings or {})), shown, **options)
            return await stack.enter_async_context(serving(app, **(serve_options or {})))

        yield start


@pytest.fixture
def fake() -> Fake:
    """The fake toolset."""
    return Fake()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """A plain HTTP client."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2 * BOUND)) as session:
        yield session


def stdio_environment() -> dict[str, str]:
    """The environment of a server process: the parts on its path."""
    paths = [str(ROOT), *(str(ROOT / part) for part in PARTS)]
    return {
        "PATH": os.environ.get("PATH", ""),
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONWARNINGS": "error",
    }


@pytest.fixture
def stdio_command() -> StdioServerParameters:
    """What starts the fake toolset on stdio."""
    return StdioServerParameters(
        command=sys.executable,
        args=["-m", "tests.protocol.stdio_server"],
        env=stdio_environment(),
        cwd=str(ROOT),
    )
