"""Servers on real sockets and pipes, for tests that speak the protocol to them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web
from mcp import StdioServerParameters

from kb_server.hosting.http import build_app
from kb_server.hosting.http import serve as serve_app
from kb_server.hosting.toolset_server import Mount, mount
from kb_server.settings import ServerSettings
from kb_server.tool import Toolset
from mcp_aiohttp.options import HostingOptions
from tests.support.fake_toolset import Fake
from tests.support.knowledge import knowledge as knowledge
from tests.support.knowledge import knowledge_with as knowledge_with
from tests.support.knowledge import simulated as simulated
from tests.support.knowledge import simulator as simulator
from tests.support.mcp_messages import ENVELOPE, PLAIN, modern_headers
from tests.support.patience import ANSWER_SECONDS
from tests.support.simulated_engine import engine as engine

ROOT = Path(__file__).parents[2]
PARTS = ("contracts", "engine", "server", "cli")
CONTENT_TYPES = (
    "application/json", "text/event-stream", "text/plain", "text/html", "application/octet-stream",
    "image/png",
)  # fmt: skip


@dataclass
class Served:
    http: httpx.AsyncClient
    stop: asyncio.Event
    task: asyncio.Task[None]

    @property
    def base(self) -> str:
        return str(self.http.base_url).rstrip("/")

    @property
    def mcp(self) -> str:
        return f"{self.base}/mcp"

    async def post(
        self,
        message: Any,
        headers: Mapping[str, str] | Mapping[bytes, bytes] | None = None,
        path: str = "/mcp",
    ) -> httpx.Response:
        """Send a message; the default `headers` are the minimum that its era requires."""
        if headers is None:
            params = message.get("params") if isinstance(message, dict) else None
            in_envelope = isinstance(params, dict) and ENVELOPE.keys() <= (params.get("_meta") or {}).keys()
            headers = modern_headers(message) if in_envelope else PLAIN
        return await self.http.post(path, json=message, headers=headers)

    @property
    def port(self) -> int:
        return int(self.base.rpartition(":")[2])


async def _check_type(response: httpx.Response) -> None:
    """Check that every answer with a body has a Content-Type chosen by the server, not aiohttp's default."""
    if response.status_code not in (202, 204, 304) and response.request.method != "HEAD":
        assert response.headers["Content-Type"].partition(";")[0] in CONTENT_TYPES


@asynccontextmanager
async def serving(app: web.Application, **options: Any) -> AsyncIterator[Served]:
    """Run `app` on a free port of 127.0.0.1 until the block ends."""
    stop = asyncio.Event()
    bound: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
    options = {"drain_seconds": 1.0, **options}

    def report(host: str, port: int) -> None:
        bound.put_nowait((host, port))

    task = asyncio.ensure_future(serve_app(app, "127.0.0.1", 0, on_bound=report, stop=stop, **options))
    listening = asyncio.ensure_future(bound.get())
    done: list[asyncio.Future[Any]] = [task, listening]
    await asyncio.wait(done, return_when=asyncio.FIRST_COMPLETED, timeout=ANSWER_SECONDS)
    if task.done():
        listening.cancel()
        task.result()
    host, port = listening.result()
    url = f"http://{host}:{port}"
    hooks = {"response": [_check_type]}
    async with httpx.AsyncClient(
        base_url=url, timeout=ANSWER_SECONDS, verify=False, event_hooks=hooks
    ) as http:
        try:
            yield Served(http, stop, task)
        finally:
            stop.set()
            await asyncio.wait_for(task, ANSWER_SECONDS)


Serve = Callable[..., Awaitable[Served]]


@pytest.fixture
async def serve(fake: Fake) -> AsyncIterator[Serve]:
    """Return a function that serves toolsets: `await serve(toolset, ..., settings=..., routes=...)`.

    The default is the fake toolset. The first toolset is served at `/mcp`, and each at its own endpoint.
    `settings` are fields of `ServerSettings`; `body`, `keep_alive` and `sockets` are fields of
    `HostingOptions`; further arguments are passed to `build_app`.
    """
    async with AsyncExitStack() as stack:

        async def start(
            *toolsets: Toolset,
            settings: dict[str, Any] | None = None,
            endpoints: Sequence[Mount] | None = None,
            serve_options: dict[str, Any] | None = None,
            **options: Any,
        ) -> Served:
            toolsets = toolsets or (fake.toolset,)
            mounts = endpoints or mount(toolsets, [toolset.name for toolset in toolsets])
            named = [name for name in ("body", "keep_alive", "sockets") if name in options]
            hosting = HostingOptions(**{name: options.pop(name) for name in named})
            app = build_app(ServerSettings(**(settings or {})), mounts, options=hosting, **options)
            return await stack.enter_async_context(serving(app, **(serve_options or {})))

        yield start


@pytest.fixture
def fake() -> Fake:
    return Fake()


@pytest.fixture
async def served(serve: Serve) -> Served:
    """The fake toolset, served with default settings."""
    return await serve()


def stdio_environment() -> dict[str, str]:
    """The environment of a server process, with the parts of the project on its path."""
    paths = [str(ROOT), *(str(ROOT / part) for part in PARTS)]
    return {
        "PATH": os.environ.get("PATH", ""),
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONWARNINGS": "error",
    }


@pytest.fixture
def stdio_command() -> StdioServerParameters:
    """The command that starts the fake toolset on stdio."""
    return StdioServerParameters(
        command=sys.executable,
        args=["-m", "tests.protocol.stdio_server"],
        env=stdio_environment(),
        cwd=str(ROOT),
    )


@dataclass
class Process:
    process: asyncio.subprocess.Process

    async def send(self, *messages: Any) -> None:
        """Write each message as a line; bytes are written unchanged."""
        assert self.process.stdin is not None
        for message in messages:
            line = message if isinstance(message, bytes) else json.dumps(message).encode()
            self.process.stdin.write(line + b"\n")
        await self.process.stdin.drain()

    async def receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), ANSWER_SECONDS)
        message: dict[str, Any] = json.loads(line)
        return message

    async def ask(self, message: Any) -> dict[str, Any]:
        await self.send(message)
        return await self.receive()

    async def told(self, words: bytes) -> bytes:
        """Return the text of stderr up to and including `words`."""
        assert self.process.stderr is not None
        return await asyncio.wait_for(self.process.stderr.readuntil(words), ANSWER_SECONDS)

    async def end(self) -> tuple[int, bytes, bytes]:
        """Close stdin and return the exit status and the rest of stdout and stderr."""
        out, err = await asyncio.wait_for(
            self.process.communicate(b"" if self.process.stdin else None), ANSWER_SECONDS
        )
        assert self.process.returncode is not None
        return self.process.returncode, out, err


Start = Callable[..., Awaitable[Process]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Return a function that starts a process serving on stdio.

    By default it serves the fake toolset, and its argument is the limit on a line; `command` is another
    command to run, in `environment`.
    """
    started: list[asyncio.subprocess.Process] = []

    async def run(
        *arguments: str,
        command: Sequence[str] = ("-m", "tests.protocol.stdio_server"),
        environment: Mapping[str, str] | None = None,
        **streams: Any,
    ) -> Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            *arguments,
            cwd=ROOT,
            env=environment or stdio_environment(),
            limit=1 << 26,
            **dict.fromkeys(("stdin", "stdout", "stderr"), asyncio.subprocess.PIPE) | streams,
        )
        started.append(process)
        return Process(process)

    yield run
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.wait()
        if process.stdin is not None:
            process.stdin.close()
