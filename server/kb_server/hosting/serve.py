"""Runs the HTTP application as `mcp_aiohttp` does, with bounds on connections and time for late bodies."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from aiohttp import web

from kb_contracts.http.admission import LINGER_SECONDS, stop_listening
from kb_contracts.http.connections import BACKLOG, ConnectionTable, Listener, connection_log, listen
from kb_server.hosting.connection_receiver import ConnectionReceiver
from kb_server.hosting.http import LIMITS
from mcp_aiohttp.transport import http as transport
from mcp_aiohttp.transport.http import DRAIN_SECONDS


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
    channel: socket.socket | None = None,
) -> None:
    """Serve `app` until SIGTERM, SIGINT or `stop`, as `mcp_aiohttp.transport.http.serve` does.

    With `sock`, a bound socket, `host` and `port` are only for messages; `reuse_port` lets several processes
    listen on one port. With `channel` nothing is listened on: connections come over it, from a parent that
    listens on `host` and `port`.

    Raises:
        PortInUse: another process listens there.
        CannotListen: the address is not this machine's, or the port is not permitted.
    """
    await transport.serve(
        app,
        host,
        port,
        on_bound=on_bound,
        stop=stop,
        drain_seconds=drain_seconds,
        linger_seconds=LINGER_SECONDS,
        listen=partial(_listen, reuse_port=reuse_port, sock=sock, channel=channel),
        connection_log=connection_log(),
    )


@asynccontextmanager
async def _listen(
    runner: web.AppRunner,
    host: str,
    port: int,
    *,
    reuse_port: bool,
    sock: socket.socket | None,
    channel: socket.socket | None,
) -> AsyncIterator[tuple[str, int]]:
    assert runner.server is not None, "a runner that was set up has a server"
    table = ConnectionTable(runner.server, runner.app[LIMITS])
    if channel is not None:
        connections = ConnectionReceiver(table, channel)
        connections.start()
        address, stop_taking = (host, port), connections.stop
    else:
        if sock is None:
            listener = await listen(table, host, port, reuse_port=reuse_port)
        else:
            sock.listen(BACKLOG)
            listener = Listener(table, [sock])
        address, stop_taking = listener.address, listener.close
    try:
        yield address
    finally:
        stop_taking()
    await stop_listening(runner)
