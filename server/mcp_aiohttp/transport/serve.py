"""Runs the HTTP application: listens, reports the port, and stops without cutting calls off."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from aiohttp import web

from mcp_aiohttp.transport.http import STOPPING
from mcp_aiohttp.transport.signals import on_stop_signal

log = logging.getLogger(__name__)

DRAIN_SECONDS = 10.0
"""How long calls in flight may take to end when the server stops."""
IDLE_SECONDS = 75.0
"""How long a connection without a request stays open."""
LINGER_SECONDS = 2.0
"""How long a body that was refused is read on: a connection closed while its sender still sends is reset, and
the answer may be lost."""

Listen = Callable[[web.AppRunner, str, int], AbstractAsyncContextManager[tuple[str, int]]]
"""Takes connections for a runner on an address and port until it is left; yields the address and port."""


class CannotListen(OSError):
    """The address cannot be listened on; the message is one line for people."""

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(f"cannot listen on {host}:{port}: {reason}")
        self.host = host
        self.port = port


class PortInUse(CannotListen):
    """Another process listens there already."""


@asynccontextmanager
async def listen_tcp(runner: web.AppRunner, host: str, port: int) -> AsyncIterator[tuple[str, int]]:
    """Listen as aiohttp does, with no bound on connections."""
    site = web.TCPSite(runner, host, port)
    await site.start()
    try:
        yield runner.addresses[0][:2]
    finally:
        await site.stop()


async def serve(
    app: web.Application,
    host: str,
    port: int,
    *,
    on_bound: Callable[[str, int], None] | None = None,
    stop: asyncio.Event | None = None,
    drain_seconds: float = DRAIN_SECONDS,
    linger_seconds: float = LINGER_SECONDS,
    listen: Listen = listen_tcp,
    connection_log: logging.Logger | None = None,
) -> None:
    """Serve `app` until SIGTERM, SIGINT or `stop`; then let calls in flight end and return.

    `port` 0 takes a free one; `on_bound` learns the address listened on. Calls still running after
    `drain_seconds` are cancelled. `listen` is how connections are taken; `connection_log` is where aiohttp
    reports what is wrong with one. A second signal ends the process at once.

    Raises:
        PortInUse: another process listens there.
        CannotListen: the address is not this machine's, or the port is not permitted.
    """
    stop = stop or asyncio.Event()

    async def set_deadline(app: web.Application) -> None:
        app[STOPPING].deadline = asyncio.get_running_loop().time() + drain_seconds

    app.on_shutdown.insert(0, set_deadline)  # the first: others ask how long they have
    # Cancelling handlers is what lets a closed response stream end its call (2026-07-28); the log of
    # accesses is off because a URL may carry a one-time token.
    runner = web.AppRunner(
        app,
        handle_signals=False,
        access_log=None,
        logger=connection_log or logging.getLogger("aiohttp.server"),
        handler_cancellation=True,
        keepalive_timeout=IDLE_SECONDS,
        lingering_time=linger_seconds,
        shutdown_timeout=drain_seconds / 2,  # aiohttp waits for it twice, before and after it cancels
    )
    await runner.setup()
    try:
        async with AsyncExitStack() as listening:
            try:
                bound = await listening.enter_async_context(listen(runner, host, port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise PortInUse(host, port, "another process listens there already") from error
                raise CannotListen(host, port, error.strerror or str(error)) from error
            log.info("Listening", extra={"host": bound[0], "port": bound[1]})
            if on_bound is not None:
                on_bound(*bound)
            with on_stop_signal(stop.set):
                await stop.wait()
                log.info("Stopping: calls in flight may end", extra={"seconds": drain_seconds})
    finally:
        await runner.cleanup()
