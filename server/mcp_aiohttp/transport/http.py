"""The HTTP application: MCP servers by path, probes, and the checks before every handler.

```
request ─▶ Gate: token (MCP paths), Host and Origin ─▶ McpEndpoint ─▶ fast path, or the SDK's kernel
                                                     ─▶ a route that you added
```

Routes that are added to the application pass the check of Host and Origin, but not that of the token: they
may carry credentials of their own. `await app[GATE].tokens.require(request)` demands one. A middleware that
is to run before the gate is inserted before the application's other middlewares.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from aiohttp import hdrs, web

from mcp_aiohttp.authentication import METADATA, TrustedProxies
from mcp_aiohttp.guard import GATE, Gate
from mcp_aiohttp.options import HostingOptions
from mcp_aiohttp.protocol.kernel import HostedServer
from mcp_aiohttp.transport.endpoint import McpEndpoint
from mcp_aiohttp.transport.signals import on_stop_signal
from mcp_aiohttp.transport.websocket import SocketPlaces

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Stopping:
    """The time of the event loop at which calls in flight are cancelled; None until the server stops."""

    deadline: float | None = None

    def seconds_left(self) -> float:
        if self.deadline is None:
            return 0.0
        return max(0.0, self.deadline - asyncio.get_running_loop().time())


STOPPING = web.AppKey("STOPPING", Stopping)
"""Set by the runner of the application, read by the code that lets its calls end."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """True if calls can be served now, with the reason if not."""

    ready: bool
    reason: str = ""


async def always_ready() -> Readiness:
    return Readiness(True)


def build_app(
    servers: Mapping[str, HostedServer],
    options: HostingOptions | None = None,
    *,
    ready: Callable[[], Awaitable[Readiness]] = always_ready,
    root: Callable[[web.Request], Awaitable[web.Response | None]] | None = None,
) -> web.Application:
    """Return the application that serves `servers`, by path; `ready` answers `/readyz`.

    `root` answers `/` and unknown paths. If it returns None, or is absent, the answer is in JSON: a list of
    the paths, or an error.

    Run it with `mcp_aiohttp.transport.http.serve`: a response that a client no longer reads cancels its call
    only if the runner cancels handlers.
    """
    options = options or HostingOptions()
    proxies = TrustedProxies(options.trusted_proxies)
    places = SocketPlaces(options.sockets, proxies)
    gate = Gate(options, proxies)
    gate.page = root or gate.page
    endpoints = {
        path: McpEndpoint(server, options, places, gate.caller_of) for path, server in servers.items()
    }
    app = web.Application(middlewares=[gate.middleware])
    app[STOPPING] = Stopping()
    app[GATE] = gate
    app.on_response_prepare.append(gate.allow_reading)
    for path, endpoint in endpoints.items():
        gate.guarded[endpoint.handle] = path
        for spelling in spellings(path):
            app.router.add_route(
                hdrs.METH_ANY, spelling, endpoint.handle, expect_handler=gate.expecting(endpoint.check)
            )
    _add_probes(app, gate, ready)
    _add_metadata(app, gate)

    async def stop(app: web.Application) -> None:
        for endpoint in endpoints.values():
            endpoint.stop(app[STOPPING].seconds_left())

    async def lifespans(app: web.Application) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for server in dict.fromkeys(servers.values()):
                await stack.enter_async_context(server.lifespan())
            yield
            # Before the servers close resources that these calls still use.
            for endpoint in endpoints.values():
                await endpoint.drain(app[STOPPING].seconds_left())

    app.on_shutdown.append(stop)
    app.cleanup_ctx.append(lifespans)
    if not gate.tokens.authenticator.is_needed:
        log.warning("%s is not set: no authentication is required", options.names.key)
    return app


def spellings(path: str) -> Sequence[str]:
    """Return the paths of an endpoint: its own, and the same with a slash, which some clients add."""
    return (path, f"{path}/") if path and not path.endswith("/") else (path,)


def _add_probes(
    app: web.Application,
    gate: Gate,
    ready: Callable[[], Awaitable[Readiness]],
) -> None:
    async def health(_request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def readiness(_request: web.Request) -> web.Response:
        state = await ready()
        if state.ready:
            return web.json_response({"status": "ready"})
        return web.json_response({"status": "unavailable", "reason": state.reason}, status=503)

    async def first(request: web.Request) -> web.Response:
        paths = {"mcp": list(gate.guarded.values()), "health": "/healthz", "ready": "/readyz"}
        return await gate.page(request) or web.json_response(paths)

    gate.open |= {health, readiness}
    app.router.add_get("/healthz", health)
    app.router.add_get("/health", health)
    app.router.add_get("/readyz", readiness)
    app.router.add_get("/", first)


def _add_metadata(app: web.Application, gate: Gate) -> None:
    """Serve the metadata of how to get a token, for each MCP path and for the whole server."""
    if (resource := gate.tokens.resource) is None:
        return
    served = (each for path in gate.guarded.values() for each in spellings(path))
    for path in ("", *served):

        async def metadata(_request: web.Request, path: str = path) -> web.Response:
            # Public, also for browsers of other origins: nothing in it is a secret.
            headers = {hdrs.ACCESS_CONTROL_ALLOW_ORIGIN: "*", hdrs.CACHE_CONTROL: "max-age=300"}
            return web.json_response(resource.metadata(path), headers=headers)

        gate.open.add(metadata)
        for place in {f"{METADATA}{path}", resource.metadata_path(path)}:  # a proxy may strip a prefix
            app.router.add_get(place, metadata)


# --- running it -----------------------------------------------------------------------------------

DRAIN_SECONDS = 10.0
"""Maximum time that calls in flight may take to end when the server stops, in seconds."""
IDLE_SECONDS = 75.0
"""Maximum time that a connection without a request stays open, in seconds."""
MAX_HEADER_BYTES = 17 * 1024
"""Maximum size of a header, in bytes: a token with the groups of its subject has up to 16 KB."""
LINGER_SECONDS = 2.0
"""Maximum time that a refused body is read on, in seconds.

A connection closed while its sender still sends is reset, and the answer may be lost.
"""

Listen = Callable[[web.AppRunner, str, int], AbstractAsyncContextManager[tuple[str, int]]]
"""Accepts connections for a runner on an address and port until it is left; yields the address and port."""


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

    `port` 0 takes a free one; `on_bound` is called with the address listened on. Calls still running after
    `drain_seconds` are cancelled. `listen` accepts the connections; to `connection_log` aiohttp reports
    faults of a connection. A second signal ends the process at once.

    Raises:
        PortInUse: another process listens there.
        CannotListen: the address is not this machine's, or the port is not permitted.
    """
    stop = stop or asyncio.Event()

    async def set_deadline(app: web.Application) -> None:
        app[STOPPING].deadline = asyncio.get_running_loop().time() + drain_seconds

    app.on_shutdown.insert(0, set_deadline)  # first, because later handlers read the deadline
    # Cancelling handlers makes a closed response stream end its call (2026-07-28). The access log is off
    # because a URL may carry a one-time token.
    runner = web.AppRunner(
        app,
        handle_signals=False,
        access_log=None,
        logger=connection_log or logging.getLogger("aiohttp.server"),
        handler_cancellation=True,
        keepalive_timeout=IDLE_SECONDS,
        max_field_size=MAX_HEADER_BYTES,
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
                log.info("Stopping: waiting for calls in flight", extra={"seconds": drain_seconds})
    finally:
        await runner.cleanup()
