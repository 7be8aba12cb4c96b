"""The HTTP application: MCP servers by path, probes, and the checks that stand before every handler.

```
request ─▶ Gate: key (MCP paths), Host and Origin ─▶ McpEndpoint ─▶ fast path, or the SDK's kernel
                                                  ─▶ a route that you added
```

Routes that are added to the application pass the check of Host and Origin, and not that of the key: they may
carry credentials of their own. `app[GATE].key.require(request)` demands the key. What is to stand before the
gate is inserted before the application's other middlewares.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass

from aiohttp import hdrs, web

from mcp_aiohttp.guard import GATE, Gate, TrustedProxies
from mcp_aiohttp.options import HostingOptions
from mcp_aiohttp.protocol.kernel import HostedServer
from mcp_aiohttp.transport.endpoint import McpEndpoint
from mcp_aiohttp.transport.websocket import SocketPlaces

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Stopping:
    """When calls in flight are cancelled, in the loop's time; None until the server stops."""

    deadline: float | None = None

    def seconds_left(self) -> float:
        """How long calls may still take."""
        if self.deadline is None:
            return 0.0
        return max(0.0, self.deadline - asyncio.get_running_loop().time())


STOPPING = web.AppKey("STOPPING", Stopping)
"""Set by what runs the application, read by what lets its calls end."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether calls can be served now, and if not, why."""

    ready: bool
    reason: str = ""


async def always_ready() -> Readiness:
    """The readiness of a server that depends on nothing."""
    return Readiness(True)


def build_app(
    servers: Mapping[str, HostedServer],
    options: HostingOptions | None = None,
    *,
    ready: Callable[[], Awaitable[Readiness]] = always_ready,
) -> web.Application:
    """The application that serves `servers`, by path; `ready` answers `/readyz`.

    Run it with `mcp_aiohttp.transport.serve.serve`: a response that a client no longer reads cancels its
    call only where the runner cancels handlers.
    """
    options = options or HostingOptions()
    proxies = TrustedProxies(options.trusted_proxies)
    places = SocketPlaces(options.sockets, proxies)
    endpoints = {path: McpEndpoint(server, options, places) for path, server in servers.items()}
    gate = Gate(options, proxies)
    app = web.Application(middlewares=[gate.middleware])
    app[STOPPING] = Stopping()
    app[GATE] = gate
    app.on_response_prepare.append(gate.allow_reading)
    for path, endpoint in endpoints.items():
        gate.guarded[endpoint.handle] = path
        app.router.add_route(
            hdrs.METH_ANY, path, endpoint.handle, expect_handler=gate.expecting(endpoint.check)
        )
    _add_probes(app, gate, ready)

    async def stop(app: web.Application) -> None:
        for endpoint in endpoints.values():
            endpoint.stop(app[STOPPING].seconds_left())

    async def lifespans(app: web.Application) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for server in dict.fromkeys(servers.values()):
                await stack.enter_async_context(server.lifespan())
            yield
            # Before the servers close what these calls still use.
            for endpoint in endpoints.values():
                await endpoint.drain(app[STOPPING].seconds_left())

    app.on_shutdown.append(stop)
    app.cleanup_ctx.append(lifespans)
    if not gate.key.is_set:
        log.warning("%s is not set: every caller is let in", options.names.key)
    return app


def _add_probes(app: web.Application, gate: Gate, ready: Callable[[], Awaitable[Readiness]]) -> None:
    async def health(_request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def readiness(_request: web.Request) -> web.Response:
        state = await ready()
        if state.ready:
            return web.json_response({"status": "ready"})
        return web.json_response({"status": "unavailable", "reason": state.reason}, status=503)

    async def hint(_request: web.Request) -> web.Response:
        return web.json_response(
            {"mcp": list(gate.guarded.values()), "health": "/healthz", "ready": "/readyz"}
        )

    gate.open |= {health, readiness}
    app.router.add_get("/healthz", health)
    app.router.add_get("/health", health)
    app.router.add_get("/readyz", readiness)
    app.router.add_get("/", hint)
