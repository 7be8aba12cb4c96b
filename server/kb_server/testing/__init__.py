"""The MCP server and a connected official client in threads, for tests without an event loop of their own.

with in_thread(SimulatorSettings(port=0, control=0)) as simulator, event_loop() as loop:
    clock = WaitlessClock(engine_clock)
    with (
        serving(loop, ServerSettings(engine_url=simulator.url, home=home, port=0), clock) as server,
        connected(loop, server.mcp_url, mode="legacy") as client,
    ):
        note = client.ok("kb_addnote", text="the moon is made of rock")
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from kb_config.installing import install_command

try:
    from anyio.from_thread import BlockingPortal, start_blocking_portal
    from mcp import Client
    from mcp.types import CallToolResult, TextContent, Tool
except ModuleNotFoundError as error:
    words = f"{__name__} needs the package {(error.name or '').partition('.')[0]}, which is not installed; "
    words += f"install the extras `server` and `sim`: {install_command('server', 'sim')}"
    # Of an ImportError pytest prints a traceback. It imports this package before the plugin in it.
    if "pytest" in sys.modules:
        raise sys.modules["pytest"].UsageError(words) from error
    raise ModuleNotFoundError(words, name=error.name) from error

from kb_server.engine_client.client import HttpEngine
from kb_server.engine_client.ragler_http import HttpRagler
from kb_server.hosting.http import build_app, serve
from kb_server.hosting.toolset_server import mount
from kb_server.services import Services, http_base, ragler_key
from kb_server.settings import ServerSettings
from kb_server.toolsets import TOOLSETS, build_toolset
from kb_server.uploads.routes import routes
from kb_server.waiting import Clock

Mode: TypeAlias = Literal["legacy", "auto", "2026-07-28"]
"""The start of the client: by the handshake, by discovery of the server's versions, or without either."""

MODES: tuple[Mode, ...] = ("legacy", "auto", "2026-07-28")

T = TypeVar("T")

_BOUND_SECONDS = 600.0
"""Time after which a call counts as hung, however slow the machine is."""

_DRAIN_SECONDS = 2.0


class Advancing(Protocol):
    """The engine's clock, as far as a waiting server moves it."""

    def advance(self, seconds: float) -> object:
        """Move the clock forward."""


class WaitlessClock:
    """The clock of the server's engine client: it moves only by waits, which return at once.

    A wait moves the clock of `engine` by the same time, so that the engine's `Retry-After` is respected.
    Neither attempts nor the circuit breaker wait in real time. Seconds are virtual, and safe to read and to
    move from any thread.
    """

    def __init__(self, engine: Advancing) -> None:
        self._engine = engine
        self._elapsed = 0.0
        self._lock = threading.Lock()

    def elapsed(self) -> float:
        """Seconds since the clock was made."""
        with self._lock:
            return self._elapsed

    def advance(self, seconds: float) -> None:
        """Move forward, the engine too."""
        self._engine.advance(seconds)
        with self._lock:
            self._elapsed += seconds

    def clock(self) -> Clock:
        """The clock to hand to the server."""
        return Clock(monotonic=self.elapsed, sleep=self._sleep)

    async def _sleep(self, seconds: float) -> None:
        await asyncio.to_thread(self.advance, max(0.0, seconds))


@dataclass(frozen=True, slots=True)
class McpServer:
    """A server that listens at `url`. `clock` is the time of its engine client."""

    url: str
    clock: WaitlessClock
    settings: ServerSettings

    @property
    def mcp_url(self) -> str:
        """The endpoint of the chosen toolsets."""
        return f"{self.url}/mcp"


@contextmanager
def event_loop() -> Iterator[BlockingPortal]:
    """A thread with an event loop, in which servers and clients run."""
    with start_blocking_portal() as loop:
        yield loop


@contextmanager
def _open(loop: BlockingPortal, context: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Enter `context` in `loop` and yield its value; exceptions of the block stay out of its task groups."""
    opened = loop.wrap_async_context_manager(context)
    value = opened.__enter__()
    try:
        yield value
    finally:
        opened.__exit__(None, None, None)


@contextmanager
def serving(
    loop: BlockingPortal,
    settings: ServerSettings,
    clock: WaitlessClock,
    *,
    toolsets: Sequence[str] | None = None,
    seed: int = 0,
) -> Iterator[McpServer]:
    """Run the server on a socket, as `kb serve` does.

    `toolsets` are shown at `/mcp` (by default those of the settings); `seed` draws the jitter between
    attempts.
    """
    offered = settings.toolsets if toolsets is None else toolsets
    with _open(loop, _serving(settings, clock, offered, seed)) as url:
        yield McpServer(url, clock, settings)


@asynccontextmanager
async def _serving(
    settings: ServerSettings, clock: WaitlessClock, offered: Sequence[str], seed: int
) -> AsyncIterator[str]:
    read_timeout, time = settings.request_timeout_ms / 1000, clock.clock()

    def jitter() -> Callable[[], float]:
        return random.Random(seed).random  # noqa: S311  # chance that repeats, not a secret

    engine = HttpEngine(
        settings.engine_url, settings.engine_api_key, read_timeout=read_timeout, clock=time, jitter=jitter()
    )
    ragler = HttpRagler(
        settings.ragler_api_url, ragler_key(settings), read_timeout=read_timeout, clock=time, jitter=jitter()
    )
    stop, ready = asyncio.Event(), asyncio.Event()
    try:
        # Uploads keep real time: a clock without waits would let them expire between two chunks.
        async with Services(settings, engine=engine, ragler=ragler) as services:
            toolsets = [build_toolset(name, services) for name in TOOLSETS]
            app = build_app(settings, mount(toolsets, offered), routes=routes(lambda: services.uploads))

            def bound(_host: str, port: int) -> None:
                services.http_base = http_base(settings, port)
                ready.set()

            running = asyncio.ensure_future(
                serve(
                    app, settings.host, settings.port, on_bound=bound, stop=stop, drain_seconds=_DRAIN_SECONDS
                )
            )
            listens = asyncio.ensure_future(ready.wait())
            try:
                await asyncio.wait([running, listens], return_when=asyncio.FIRST_COMPLETED)
                if running.done():
                    running.result()
                assert services.http_base is not None, "a server that listens has an address"
                yield services.http_base
            finally:
                listens.cancel()
                stop.set()
                await running
    finally:
        await engine.close()
        await ragler.close()


@contextmanager
def connected(loop: BlockingPortal, url: str, *, mode: Mode = "auto", key: str = "") -> Iterator[McpClient]:
    """Yield the official client, connected to `url`. `key` is the server's KB_MCP_API_KEY, or ""."""
    with _open(loop, _connected(url, mode, key)) as client:
        yield McpClient(loop, client)


@asynccontextmanager
async def _connected(url: str, mode: Mode, key: str) -> AsyncIterator[Client]:
    # Imported here: a server under test needs neither.
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with (
        # Its own HTTP client, so that no proxy of the environment comes between a test and its server.
        httpx2.AsyncClient(headers=headers, timeout=_BOUND_SECONDS, trust_env=False, verify=False) as http,
        Client(
            streamable_http_client(url, http_client=http), mode=mode, read_timeout_seconds=_BOUND_SECONDS
        ) as client,
    ):
        yield client


class McpClient:
    """The official client (`client`), called from any thread."""

    def __init__(self, loop: BlockingPortal, client: Client) -> None:
        self._loop = loop
        self.client = client

    def tools(self) -> list[Tool]:
        """The tools that the server shows."""
        return self._loop.call(self.client.list_tools).tools

    def call(self, tool: str, **arguments: Any) -> CallToolResult:
        """Call a tool; return its result unchanged, also an error."""
        result: CallToolResult = self._loop.call(self.client.call_tool, tool, arguments)
        return result

    def ok(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Return the structured content of a call that must succeed. Raises AssertionError."""
        result = self.call(tool, **arguments)
        if result.is_error or result.structured_content is None:
            raise AssertionError(f"{tool} failed: {_text(result)}")
        return dict(result.structured_content)

    def refused(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Return the error of a call that must fail: `error`, `message`, and more. Raises AssertionError."""
        result = self.call(tool, **arguments)
        if not result.is_error:
            raise AssertionError(f"{tool} did not fail: {_text(result)}")
        if result.structured_content is not None:
            raise AssertionError(f"{tool} failed with structured content: {_text(result)}")
        return dict(json.loads(_text(result)))


def _text(result: CallToolResult) -> str:
    return "".join(block.text for block in result.content if isinstance(block, TextContent))
