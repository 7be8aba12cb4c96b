"""Runs the HTTP application: listens, reports the port, and stops without cutting calls off."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from aiohttp import web

from kb_contracts.http.admission import BACKLOG, Admission, Listener, listen
from kb_contracts.http.connection_log import CONNECTION_LOG
from kb_contracts.http.draining import LINGER_SECONDS, stop_listening
from kb_server.hosting.handed import HandedConnections
from kb_server.hosting.http import LIMITS, STOPPING
from kb_server.hosting.signals import on_stop_signal

log = logging.getLogger(__name__)

DRAIN_SECONDS = 10.0
"""How long calls in flight may take to end when the server stops."""
IDLE_SECONDS = 75.0
"""How long a connection without a request stays open."""


class CannotListen(OSError):
    """The address cannot be listened on; the message is one line for people."""

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(f"cannot listen on {host}:{port}: {reason}")
        self.host = host
        self.port = port


class PortInUse(CannotListen):
    """Another process listens there already."""


async def serve(
    app: web.Application,
    host: str,
    port: int,
    *,
    on_bound: Callable[[str, int], None] | None = None,
    stop: asyncio.Event | None = None,
    drain_seconds: float = DRAIN_SECONDS,
    reuse_port: bool = False,
    sock: socket.socket | None = None,
    handed: socket.socket | None = None,
) -> None:
    """Serve `app` until SIGTERM, SIGINT or `stop`; then let calls in flight end and return.

    `port` 0 takes a free one; `on_bound` learns the address listened on. Calls still running after
    `drain_seconds` are cancelled. With `sock`, a bound socket, `host` and `port` are only for messages;
    `reuse_port` lets several processes listen on one port. With `handed` nothing is listened on: connections
    come over it, from a parent that listens on `host` and `port`. A second signal ends the process at once.

    Raises:
        PortInUse: another process listens there.
        CannotListen: the address is not this machine's, or the port is not permitted.
    """
    stop = stop or asyncio.Event()
    runner = _runner(app, drain_seconds)
    await runner.setup()
    assert runner.server is not None, "a runner that was set up has a server"
    admission = Admission(runner.server, app[LIMITS])
    try:
        with ExitStack() as taking:
            if handed is None:
                listener = await _listen(admission, host, port, reuse_port=reuse_port, sock=sock)
                taking.callback(listener.close)
                bound = listener.address
            else:
                taking.enter_context(_taken_from(handed, admission))
                bound = host, port
            log.info("Listening", extra={"fields": {"host": bound[0], "port": bound[1]}})
            if on_bound is not None:
                on_bound(*bound)
            await _until_stopped(stop, drain_seconds)
        await stop_listening(runner)
    finally:
        await runner.cleanup()


def _runner(app: web.Application, drain_seconds: float) -> web.AppRunner:
    async def set_deadline(app: web.Application) -> None:
        app[STOPPING].deadline = asyncio.get_running_loop().time() + drain_seconds

    app.on_shutdown.insert(0, set_deadline)  # the first: others ask how long they have
    # Cancelling handlers is what lets a closed response stream end its call (2026-07-28); the log of
    # accesses is off because a URL may carry a one-time token, and every call has a line of its own.
    return web.AppRunner(
        app,
        handle_signals=False,
        access_log=None,
        logger=CONNECTION_LOG,
        handler_cancellation=True,
        keepalive_timeout=IDLE_SECONDS,
        lingering_time=LINGER_SECONDS,
        shutdown_timeout=drain_seconds / 2,  # aiohttp waits for it twice, before and after it cancels
    )


async def _until_stopped(stop: asyncio.Event, drain_seconds: float) -> None:
    with on_stop_signal(stop.set):
        await stop.wait()
        log.info("Stopping: calls in flight may end", extra={"fields": {"seconds": drain_seconds}})


@contextmanager
def _taken_from(handed: socket.socket, admission: Admission) -> Iterator[None]:
    """Connections that come over `handed` are served within."""
    connections = HandedConnections(admission, handed)
    try:
        connections.start()
        yield
    finally:
        connections.stop()


async def _listen(
    admission: Admission, host: str, port: int, *, reuse_port: bool, sock: socket.socket | None
) -> Listener:
    try:
        if sock is None:
            return await listen(admission, host, port, reuse_port=reuse_port)
        sock.listen(BACKLOG)
        return Listener(admission, [sock])
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(host, port, "another process listens there already") from error
        raise CannotListen(host, port, error.strerror or str(error)) from error
