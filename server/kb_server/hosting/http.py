"""The HTTP application: MCP endpoints, probes, metrics, and what other parts add to them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from aiohttp import HttpVersion11, hdrs, web

from kb_contracts.http.admission import RETRY_SECONDS, admitting
from kb_contracts.http.connection_limits import ConnectionLimits
from kb_contracts.http.draining import ArrivingBodies, watch
from kb_server.hosting.auth import KEY_HEADER, KeyCheck
from kb_server.hosting.body import BodyLimits
from kb_server.hosting.endpoint import McpEndpoint
from kb_server.hosting.endpoints import Endpoint
from kb_server.hosting.exchange import KEEP_ALIVE_SECONDS
from kb_server.hosting.jsonrpc import INTERNAL_ERROR, error_bytes
from kb_server.hosting.origin import OriginCheck, cors_headers, is_preflight, preflight_answer
from kb_server.hosting.protocol import ProtocolServer, ReadyServer
from kb_server.hosting.proxies import PROXIES, TrustedProxies
from kb_server.hosting.refusal import SERVER_STOPPING, TOO_MANY_CONNECTIONS, Refusal
from kb_server.hosting.websocket import SocketLimits, SocketPlaces, asks_for_websocket
from kb_server.observability.metrics import CONTENT_TYPE as METRICS_CONTENT_TYPE
from kb_server.observability.metrics import Metrics
from kb_server.settings import ServerSettings
from kb_server.tool import Toolset

log = logging.getLogger(__name__)

SERVER_STOPS = "server_stopping"


@dataclass(slots=True)
class Stopping:
    """When calls in flight are cancelled, in the loop's time; None until the server is told to stop."""

    deadline: float | None = None

    def seconds_left(self) -> float:
        """How long calls may still take."""
        if self.deadline is None:
            return 0.0
        return max(0.0, self.deadline - asyncio.get_running_loop().time())


LIMITS = web.AppKey("LIMITS", ConnectionLimits)
"""Kept by what runs the application."""
STOPPING = web.AppKey("STOPPING", Stopping)
"""Set by what runs the application, read by what lets its calls end."""

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether calls can be served now, and if not, why."""

    ready: bool
    reason: str = ""


async def always_ready() -> Readiness:
    """The readiness of a server that depends on nothing."""
    return Readiness(True)


def build_app(
    settings: ServerSettings,
    endpoints: Sequence[Endpoint],
    *,
    servers: Mapping[str, ReadyServer] | None = None,
    routes: Sequence[web.AbstractRouteDef] = (),
    ready: Callable[[], Awaitable[Readiness]] = always_ready,
    metrics: Metrics | None = None,
    limits: BodyLimits | None = None,
    keep_alive: float = KEEP_ALIVE_SECONDS,
    sockets: SocketLimits | None = None,
) -> web.Application:
    """The application that serves `endpoints`.

    `servers` are served beside them, by path. `routes` are further routes; they pass the check of Host and
    Origin but not that of the key, for they carry credentials of their own. `ready` answers `/readyz`.
    `keep_alive` is in seconds; `sockets` are the limits on a WebSocket beside those of a body.

    Run it with `kb_server.hosting.serve.serve`: an answer that a client no longer reads cancels its
    call only where the runner cancels handlers.
    """
    metrics = metrics or Metrics()
    proxies = TrustedProxies(settings.trusted_proxies)
    places = SocketPlaces(
        min(settings.max_websockets, settings.max_connections // 2),
        settings.max_websockets_per_address,
        proxies,
    )
    answering: dict[str, ReadyServer] = {
        endpoint.path: ProtocolServer(endpoint.toolset, metrics) for endpoint in endpoints
    }
    served = {
        path: McpEndpoint(server, limits=limits, keep_alive=keep_alive, sockets=sockets, places=places)
        for path, server in {**answering, **(servers or {})}.items()
    }
    gate = _Gate(settings, served, proxies)
    app = web.Application(
        middlewares=[
            admitting(_no_room, is_probe=gate.is_open, client_of=proxies.client_of),
            gate.middleware,
        ]
    )
    app[STOPPING] = Stopping()
    app[PROXIES] = proxies
    watch(app, ArrivingBodies(gate.unfinished, futile=gate.is_futile))
    app[LIMITS] = ConnectionLimits(
        settings.max_connections,
        settings.max_connections_per_address,
        settings.header_timeout,
        proxies.is_bounded,
    )
    app.on_response_prepare.append(gate.allow_reading)
    for path, endpoint in served.items():
        app.router.add_route(hdrs.METH_ANY, path, endpoint.handle, expect_handler=gate.expecting(endpoint))
    app.router.add_routes(routes)
    _add_probes(app, gate, ready, metrics if settings.enable_metrics else None)
    app.on_shutdown.append(_stopping(list(served.values())))
    app.cleanup_ctx.append(_lifespans([endpoint.toolset for endpoint in endpoints], list(served.values())))
    if not gate.key.is_set:
        log.warning("KB_MCP_API_KEY is not set: every caller is let in")
    return app


class _Gate:
    """What stands before every handler: the key, Host and Origin, and errors as JSON."""

    def __init__(
        self, settings: ServerSettings, served: dict[str, McpEndpoint], proxies: TrustedProxies
    ) -> None:
        self.key = KeyCheck(settings.api_key, proxies)
        self._origin = OriginCheck(settings)
        self.paths = list(served)
        self._guarded = frozenset(endpoint.handle for endpoint in served.values())
        self.open: set[_Handler] = set()
        """Handlers that anybody may ask by any name: probes come by the address of a pod."""

    @web.middleware
    async def middleware(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Check the request, then answer it; whatever goes wrong is answered in JSON."""
        try:
            self._check(request)
            return preflight_answer() if is_preflight(request) else await handler(request)
        except Refusal as refusal:
            told = {"status": refusal.status, "error": refusal.data["error_type"], "route": _route(request)}
            log.info("Refused a request", extra={"fields": told})
            return _last_of(request, _refused(refusal))
        except web.HTTPException as error:
            return _last_of(request, self._http_error(request, error))
        except Exception:  # the boundary of HTTP: a fault of ours is logged, and answered without its words
            fields = {"method": request.method, "route": _route(request)}
            log.exception("A request broke", extra={"fields": fields})
            body = error_bytes(None, INTERNAL_ERROR, "Internal error")
            response = web.Response(status=500, body=body, content_type="application/json")
            return _last_of(request, response)

    def unfinished(self, request: web.Request) -> web.Response:
        """The answer to a request whose body has not arrived whole by the time the server stops."""
        log.info("Refused a request", extra={"fields": {"error": SERVER_STOPS, "route": _route(request)}})
        words = "The server is stopping, and the request had not arrived whole: nothing of it was kept."
        if self.is_futile(request):
            words = (
                f"{words} Uploads end with the server: start again with kb_upload_start, and send it again."
            )
            return web.json_response({"error": SERVER_STOPS, "message": words}, status=503)
        return _refused(Refusal(503, SERVER_STOPPING, SERVER_STOPS, f"{words} Send it again in a moment."))

    def is_futile(self, request: web.Request) -> bool:
        """Whether what the request brings is forgotten when the server stops: uploads are, calls are not."""
        return request.match_info.handler not in self._guarded

    def is_open(self, request: web.Request) -> bool:
        """Whether anybody may ask this, by any name and at any time."""
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
                return _refused(refusal)
            if request.headers[hdrs.EXPECT].lower() == "100-continue" and request.version >= HttpVersion11:
                await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                request.writer.output_size = 0  # the answer itself has not begun
            return None

        return answer

    def _check(self, request: web.Request) -> None:
        if self.is_open(request):
            return
        if request.match_info.handler in self._guarded and not self._is_permitted_preflight(request):
            self.key.require(request)
        self._origin.require(request)

    def _is_permitted_preflight(self, request: web.Request) -> bool:
        # The one exception to the key on every method: a browser asks first, and asks without it.
        return is_preflight(request) and self._origin.admits(request.headers[hdrs.ORIGIN])

    def _nothing_at(self, path: str) -> dict[str, str]:
        """What is said of a path that nobody serves; clients print what OAuth calls `error_description`."""
        message = f"There is nothing at this path. MCP is served at {', '.join(self.paths)}."
        if path != "/register" and not path.startswith(("/.well-known/oauth-", "/.well-known/openid-")):
            return {"message": message}
        wanted = f"Send the header `{KEY_HEADER}`" if self.key.is_set else "No key is needed"
        message = f"This server has no OAuth. {wanted}. MCP is served at {', '.join(self.paths)}."
        return {"message": message, "error_description": message}

    def _http_error(self, request: web.Request, error: web.HTTPException) -> web.Response:
        if error.status < 400:
            raise error
        headers = {hdrs.ALLOW: error.headers[hdrs.ALLOW]} if hdrs.ALLOW in error.headers else {}
        if isinstance(error, web.HTTPNotFound):
            return web.json_response({"error": "not_found", **self._nothing_at(request.path)}, status=404)
        code = error.reason.lower().replace(" ", "_")
        body = {"error": code, "message": f"{request.method} {request.path}: {error.reason}"}
        return web.json_response(body, status=error.status, headers=headers)


def _route(request: web.Request) -> str:
    """The route's own pattern: a path may hold a one-time token, and must not be logged."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else ""


def _last_of(request: web.Request, response: web.Response) -> web.Response:
    """`response`, and the end of its connection where a WebSocket is refused: no HTTP is read after that."""
    if asks_for_websocket(request):
        response.force_close()
    return response


def _no_room(request: web.Request) -> web.Response:
    words = "As many connections are in use as this server keeps open, in all or for your address. Try again."
    headers: dict[str, str] = {hdrs.RETRY_AFTER: str(RETRY_SECONDS)}
    refusal = Refusal(503, TOO_MANY_CONNECTIONS, "too_many_connections", words, headers=headers)
    log.info(
        "Refused a request: too many connections are in use", extra={"fields": {"route": _route(request)}}
    )
    return _refused(refusal)


def _refused(refusal: Refusal) -> web.Response:
    response = web.Response(
        status=refusal.status,
        headers=refusal.headers,
        body=error_bytes(None, refusal.code, refusal.message, refusal.data),
        content_type="application/json",
    )
    if refusal.close:
        response.force_close()
    return response


def _add_probes(
    app: web.Application,
    gate: _Gate,
    ready: Callable[[], Awaitable[Readiness]],
    metrics: Metrics | None,
) -> None:
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
    if metrics is not None:
        app.router.add_get("/metrics", _metrics_handler(gate.key, metrics))


def _metrics_handler(key: KeyCheck, metrics: Metrics) -> _Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        key.require_unless_local(request)
        return web.Response(body=metrics.render().encode(), headers={hdrs.CONTENT_TYPE: METRICS_CONTENT_TYPE})

    return handler


def _stopping(served: Sequence[McpEndpoint]) -> Callable[[web.Application], Awaitable[None]]:
    async def stop(app: web.Application) -> None:
        for endpoint in served:
            endpoint.stop(app[STOPPING].seconds_left())

    return stop


def _lifespans(
    toolsets: Sequence[Toolset], served: Sequence[McpEndpoint]
) -> Callable[[web.Application], AsyncIterator[None]]:
    async def lifespans(app: web.Application) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for toolset in {id(toolset): toolset for toolset in toolsets}.values():
                await stack.enter_async_context(toolset.lifespan())
            yield
            # Before the toolsets close what these calls still use.
            for endpoint in served:
                await endpoint.drain(app[STOPPING].seconds_left())

    return lifespans
