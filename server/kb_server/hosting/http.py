"""The HTTP application of kb and its runner: toolsets by path, metrics, and limits on connections.

`mcp_aiohttp` provides the MCP endpoints and their checks. This module adds the limit on connections, the
metrics, routes of other parts, and an answer to requests that have not arrived whole when the server stops.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from aiohttp import hdrs, web

from kb_http import connections
from kb_http.certificate import Certificate
from kb_http.limits import HEADER_SECONDS, ConnectionLimits, owner_of
from kb_http.listening import Intake, listening
from kb_server.access.grants import grant_of
from kb_server.hosting.toolset_server import Mount, hosted
from kb_server.observability import auditing
from kb_server.observability.metrics import CONTENT_TYPE, Metrics
from kb_server.settings import ServerSettings
from mcp_aiohttp.guard import GATE, refusal_response, route_of
from mcp_aiohttp.options import HostingOptions, SettingNames
from mcp_aiohttp.protocol.jsonrpc import SERVER_STOPPING, TOO_MANY_CONNECTIONS, Refusal
from mcp_aiohttp.protocol.kernel import HostedServer
from mcp_aiohttp.transport import http as transport
from mcp_aiohttp.transport.http import DRAIN_SECONDS, Readiness, always_ready

log = logging.getLogger(__name__)

SERVER_STOPS = "server_stopping"

LIMITS = web.AppKey("LIMITS", ConnectionLimits)
"""Kept by the runner of the application."""


def build_app(
    settings: ServerSettings,
    mounts: Sequence[Mount],
    *,
    servers: Mapping[str, HostedServer] | None = None,
    routes: Sequence[web.AbstractRouteDef] = (),
    root: Callable[[web.Request], Awaitable[web.Response | None]] | None = None,
    ready: Callable[[], Awaitable[Readiness]] = always_ready,
    metrics: Metrics | None = None,
    options: HostingOptions | None = None,
) -> web.Application:
    """Return the application that serves `mounts`.

    `servers` are served in addition, by path. `routes` are further routes; they pass the check of Host and
    Origin but not that of the key, because they carry credentials of their own. `root` and `ready` are passed
    to `mcp_aiohttp.transport.http.build_app`. Of `options`, only fields without a setting are used. Run it
    with `kb_server.hosting.http.serve`.
    """
    metrics = metrics or Metrics()
    # One server per toolset, even if it is mounted twice: its lifespan is entered once.
    toolsets = {id(mount.toolset): mount.toolset for mount in mounts}
    by_toolset = {
        key: hosted(toolset, metrics, fast_path=settings.fast_path) for key, toolset in toolsets.items()
    }
    mounted = {mount.path: by_toolset[id(mount.toolset)] for mount in mounts}
    app = transport.build_app(
        {**mounted, **(servers or {})},
        hosting_options(settings, options or HostingOptions(), metrics),
        ready=ready,
        root=root,
    )
    gate = app[GATE]

    def unfinished(request: web.Request) -> web.Response:
        """Return the answer to a request whose body is incomplete when the server stops."""
        log.info("Refused a request", extra={"error": SERVER_STOPS, "route": route_of(request)})
        words = "The server is stopping, and the request was incomplete: it was discarded."
        if gate.is_mcp(request):
            return refusal_response(
                Refusal(503, SERVER_STOPPING, SERVER_STOPS, f"{words} Send it again in a moment.")
            )
        words = f"{words} Uploads end with the server: start again with kb_upload_start, and send it again."
        return web.json_response({"error": SERVER_STOPS, "message": words}, status=503)

    async def serve_metrics(request: web.Request) -> web.StreamResponse:
        grant = grant_of(await gate.tokens.require_unless_local(request))
        # Collection labels are shown only to unrestricted callers.
        text = metrics.render(by_collection=grant.access.reach is None)
        return web.Response(body=text.encode(), headers={hdrs.CONTENT_TYPE: CONTENT_TYPE})

    # Without proxies in front, the peer's address decides, and requests need not be read.
    bounded = {"is_bounded": gate.proxies.is_bounded} if settings.trusted_proxies else {}
    admission = connections.Admission(
        _no_room,
        unfinished,
        is_probe=gate.is_open,
        client_of=gate.proxies.client_of if settings.trusted_proxies else None,
        # Uploads are lost when the server stops, calls are not: wait only for calls.
        is_futile=lambda request: not gate.is_mcp(request),
    )
    admission.install(app)
    app[LIMITS] = ConnectionLimits(
        settings.max_connections, settings.max_connections_per_address, HEADER_SECONDS, **bounded
    )
    app.router.add_routes(routes)
    if settings.enable_metrics:
        app.router.add_get("/metrics", serve_metrics)
    return app


def hosting_options(settings: ServerSettings, options: HostingOptions, metrics: Metrics) -> HostingOptions:
    """Return `options` with the values of the settings."""

    def on_refused(error_type: str, address: str) -> None:
        metrics.count_refusal(error_type)
        auditing.note_refusal(error_type, address)

    return replace(
        options,
        key=settings.api_key,
        on_refused=on_refused,
        host=settings.host,
        public_url=settings.public_url,
        allowed_hosts=settings.allowed_hosts,
        allowed_origins=settings.allowed_origins,
        trusted_proxies=settings.trusted_proxies,
        sockets=replace(
            options.sockets,
            open=settings.max_connections // 2,
            per_address=(settings.max_connections_per_address + 1) // 2,  # at least one
            owner_of=owner_of,
        ),
        names=SettingNames("KB_MCP_API_KEY", "KB_ALLOWED_HOSTS", "KB_ALLOWED_ORIGINS"),
    )


def _no_room(request: web.Request) -> web.Response:
    log.info("Refused a request: too many open connections", extra={"route": route_of(request)})
    words = "The maximum number of connections is in use, in all or for your address. Try again."
    headers: dict[str, str] = {hdrs.RETRY_AFTER: str(connections.RETRY_SECONDS)}
    return refusal_response(
        Refusal(503, TOO_MANY_CONNECTIONS, "too_many_connections", words, headers=headers)
    )


async def serve(
    app: web.Application,
    host: str,
    port: int,
    *,
    on_bound: Callable[[str, int], None] | None = None,
    stop: asyncio.Event | None = None,
    drain_seconds: float = DRAIN_SECONDS,
    channel: socket.socket | None = None,
    certificate: Certificate | None = None,
) -> None:
    """Serve `app` until SIGTERM, SIGINT or `stop`, as `mcp_aiohttp.transport.http.serve` does.

    With `channel` the process does not listen: connections come over it, from a parent that listens on `host`
    and `port`. With `certificate` they are encrypted.

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
        linger_seconds=connections.LINGER_SECONDS,
        listen=partial(_listen, channel=channel, certificate=certificate),
        connection_log=connections.connection_log(),
    )


@asynccontextmanager
async def _listen(
    runner: web.AppRunner,
    host: str,
    port: int,
    *,
    channel: socket.socket | None,
    certificate: Certificate | None,
) -> AsyncIterator[tuple[str, int]]:
    if channel is None:
        async with listening(runner, host, port, runner.app[LIMITS], certificate) as address:
            yield address
    else:
        assert runner.server is not None, "a runner that was set up has a server"
        table = connections.ConnectionTable(runner.server, runner.app[LIMITS], certificate)
        channel.setblocking(False)
        intake = Intake(table, channel, partial(_received, channel))
        intake.start()
        try:
            yield host, port
        finally:
            intake.stop()
    await connections.stop_listening(runner)


def _received(channel: socket.socket) -> socket.socket | None:
    """Return a connection that the parent accepted and handed to this worker, or None if there is none.

    The kernel distributes connections unevenly among processes that listen on one port, and a keep-alive
    connection stays with its process. Handed out in turn, all workers have the same number.
    """
    try:
        data, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
    except BlockingIOError:
        return None
    if not data or not descriptors:  # the parent has ended, or there was no free descriptor
        raise OSError
    return socket.socket(fileno=descriptors[0])
