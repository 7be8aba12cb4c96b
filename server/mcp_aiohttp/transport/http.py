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

from aiohttp import HttpVersion11, hdrs, web

from mcp_aiohttp.guard.auth import KeyCheck
from mcp_aiohttp.guard.origin import OriginCheck, cors_headers, is_preflight, preflight_answer
from mcp_aiohttp.guard.proxies import PROXIES, TrustedProxies
from mcp_aiohttp.options import HostingOptions
from mcp_aiohttp.protocol.jsonrpc import INTERNAL_ERROR, error_bytes
from mcp_aiohttp.protocol.kernel import HostedServer
from mcp_aiohttp.protocol.refusal import Refusal
from mcp_aiohttp.transport.endpoint import McpEndpoint
from mcp_aiohttp.transport.websocket import SocketPlaces, asks_for_websocket

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

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


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
    gate = Gate(options, endpoints, proxies)
    app = web.Application(middlewares=[gate.middleware])
    app[STOPPING] = Stopping()
    app[PROXIES] = proxies
    app[GATE] = gate
    app.on_response_prepare.append(gate.allow_reading)
    for path, endpoint in endpoints.items():
        app.router.add_route(hdrs.METH_ANY, path, endpoint.handle, expect_handler=gate.expecting(endpoint))
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


class Gate:
    """What stands before every handler: the key, Host and Origin, and errors as JSON."""

    def __init__(
        self, options: HostingOptions, endpoints: Mapping[str, McpEndpoint], proxies: TrustedProxies
    ) -> None:
        self.key = KeyCheck(options.key, proxies, name=options.names.key)
        self.paths = list(endpoints)
        self.open: set[Handler] = set()
        """Handlers that anybody may call by any name: probes come by the address of a pod."""
        self._origin = OriginCheck(options)
        self._guarded = frozenset(endpoint.handle for endpoint in endpoints.values())

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check the request, then answer it; whatever goes wrong is answered in JSON."""
        try:
            self._check(request)
            return preflight_answer() if is_preflight(request) else await handler(request)
        except Refusal as refusal:
            fields = {
                "status": refusal.status,
                "error": refusal.data["error_type"],
                "route": route_of(request),
            }
            log.info("Refused a request", extra=fields)
            response = refusal_response(refusal)
        except web.HTTPException as error:
            response = self._http_error(request, error)
        except Exception:  # the boundary of HTTP: a fault of ours is logged, and answered without its words
            fields = {"method": request.method, "route": route_of(request)}
            log.exception("A request broke", extra=fields)
            body = error_bytes(None, INTERNAL_ERROR, "Internal error")
            response = web.Response(status=500, body=body, content_type="application/json")
        if asks_for_websocket(request):
            response.force_close()  # no HTTP is read after a request for another protocol
        return response

    def is_mcp(self, request: web.Request) -> bool:
        """Whether the request goes to an MCP server."""
        return request.match_info.handler in self._guarded

    def is_open(self, request: web.Request) -> bool:
        """Whether anybody may make this request, by any name and at any time."""
        return request.match_info.handler in self.open

    async def allow_reading(self, request: web.Request, response: web.StreamResponse) -> None:
        """Let an admitted browser page read the answer."""
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is not None and self._origin.admits(origin):
            response.headers.update(cors_headers(origin))

    def expecting(self, endpoint: McpEndpoint) -> Callable[[web.Request], Awaitable[web.Response | None]]:
        """Answers `Expect: 100-continue`: a caller that will be refused need not send its body first."""

        async def answer(request: web.Request) -> web.Response | None:
            try:
                self._check(request)
                endpoint.check(request)
            except Refusal as refusal:
                return refusal_response(refusal)
            if request.headers[hdrs.EXPECT].lower() == "100-continue" and request.version >= HttpVersion11:
                await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                request.writer.output_size = 0  # the answer itself has not begun
            return None

        return answer

    def _check(self, request: web.Request) -> None:
        if self.is_open(request):
            return
        if self.is_mcp(request) and not self._is_permitted_preflight(request):
            self.key.require(request)
        self._origin.require(request)

    def _is_permitted_preflight(self, request: web.Request) -> bool:
        # The one exception to the key on every method: a browser asks first, and asks without it.
        return is_preflight(request) and self._origin.admits(request.headers[hdrs.ORIGIN])

    def _http_error(self, request: web.Request, error: web.HTTPException) -> web.Response:
        if error.status < 400:
            raise error
        headers = {hdrs.ALLOW: error.headers[hdrs.ALLOW]} if hdrs.ALLOW in error.headers else {}
        if isinstance(error, web.HTTPNotFound):
            return web.json_response({"error": "not_found", **self._not_found(request.path)}, status=404)
        code = error.reason.lower().replace(" ", "_")
        body = {"error": code, "message": f"{request.method} {request.path}: {error.reason}"}
        return web.json_response(body, status=error.status, headers=headers)

    def _not_found(self, path: str) -> dict[str, str]:
        """What answers a path that nobody serves; clients print what OAuth calls `error_description`."""
        paths = f"MCP is served at {', '.join(self.paths)}."
        if path != "/register" and not path.startswith(("/.well-known/oauth-", "/.well-known/openid-")):
            return {"message": f"There is nothing at this path. {paths}"}
        wanted = f"Send the header `{self.key.header}`" if self.key.is_set else "No key is needed"
        message = f"This server has no OAuth. {wanted}. {paths}"
        return {"message": message, "error_description": message}


GATE = web.AppKey("GATE", Gate)
"""The gate of an application, for those who add to it."""


def route_of(request: web.Request) -> str:
    """The route's own pattern: a path may hold a one-time token, and must not be logged."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else ""


def refusal_response(refusal: Refusal) -> web.Response:
    """The answer to a request that is refused: a JSON-RPC error with an HTTP status."""
    response = web.Response(
        status=refusal.status,
        headers=refusal.headers,
        body=error_bytes(None, refusal.code, refusal.message, refusal.data),
        content_type="application/json",
    )
    if refusal.close:
        response.force_close()
    return response


def _add_probes(app: web.Application, gate: Gate, ready: Callable[[], Awaitable[Readiness]]) -> None:
    async def health(_request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def readiness(_request: web.Request) -> web.Response:
        state = await ready()
        if state.ready:
            return web.json_response({"status": "ready"})
        return web.json_response({"status": "unavailable", "reason": state.reason}, status=503)

    async def hint(_request: web.Request) -> web.Response:
        return web.json_response({"mcp": gate.paths, "health": "/healthz", "ready": "/readyz"})

    gate.open |= {health, readiness}
    app.router.add_get("/healthz", health)
    app.router.add_get("/health", health)
    app.router.add_get("/readyz", readiness)
    app.router.add_get("/", hint)
