"""The aiohttp adapter: the contract's operations over the state, between them the journal and the faults.

request ─▶ framing, page ─▶ namespace ─▶ key ─▶ body ─▶ journal ─▶ faults ─▶ contract ─▶ state
                                                            ▲          │
                                                            └── answer ┘

A fault is an HTTP answer if HTTP can express it, or else bytes written directly to the socket.
"""

from __future__ import annotations

import hmac
import math
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from http import HTTPStatus

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from kb_contracts.access.reach import ACCESS
from kb_contracts.api.errors import PROBLEM_JSON, EngineError, Problem
from kb_contracts.api.operations import IDEMPOTENCY_KEY, OPERATIONS, AnyOperation
from kb_contracts.api.ragler import USER_ROLE
from kb_http import mount
from kb_http.connections import connection_log
from kb_http.listening import listening
from kb_http.requests import check_framing, check_origin, check_unrepeated, token_of, unauthorized
from kb_simulator.determinism import Clock
from kb_simulator.engine.handlers import CURRENT, Call, Upload, handlers, read_body
from kb_simulator.harness import faults as f
from kb_simulator.harness.journal import record_request
from kb_simulator.harness.namespaces import Namespace, Namespaces
from kb_simulator.settings import SimulatorSettings

LOOPBACK = "127.0.0.1"

_BY_ROUTE = {(operation.method.value, operation.path): operation for operation in OPERATIONS}
_JSON = "application/json"
_HTML = "<!doctype html><title>{title}</title><h1>{title}</h1><p>This is not the engine.</p>"
_LEAST_RETRY_SECONDS = 0.001
_CLOSE_WITH_RESET = struct.pack("ii", 1, 0)  # SO_LINGER on, with a time-out of 0
_SHUTDOWN_SECONDS = 2.0


def build_app(namespaces: Namespaces) -> web.Application:
    """Return the fake engine over `namespaces`.

    Run it with `handler_cancellation`, so that a handler ends when its client disconnects.
    """
    settings = namespaces.settings

    @web.middleware
    async def outermost(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            check_framing(request)
            if not mount.is_probe(request):
                check_unrepeated(request.headers)
            if not namespaces.key_for(request.headers):
                check_origin(request.headers, settings.host)
            namespace = namespaces.chosen_by(request.headers)
        except EngineError as error:
            return mount.problem_response(error)
        resource = request.match_info.route.resource
        operation = _BY_ROUTE.get((request.method, resource.canonical if resource else ""))
        refused = _key_refusal(namespace, request)
        with ExitStack() as held:
            if operation is not None and operation.excludes_retries:
                key = request.headers.get(IDEMPOTENCY_KEY)
                try:
                    held.enter_context(namespace.keys.hold(_caller(request), operation.id, key))
                except EngineError as error:
                    refused = refused or error
            most = settings.max_upload_bytes
            return await _answer(namespace, operation, refused, most, request, handler)

    async def let_go(_app: web.Application) -> None:
        namespaces.release()

    app = mount.build_application(handlers(), published=settings.published)
    app.middlewares.insert(0, outermost)
    app.on_shutdown.append(let_go)
    return app


def _caller(request: web.Request) -> str:
    """Return a key that separates callers with concurrent requests: the credential and the access headers."""
    return "\n".join([token_of(request.headers), *request.headers.getall(ACCESS, ())])


def _key_refusal(namespace: Namespace, request: web.Request) -> EngineError | None:
    if not namespace.api_key or mount.is_probe(request):
        return None
    presented = token_of(request.headers).encode("utf-8", "surrogateescape")
    if hmac.compare_digest(presented, namespace.api_key.encode()):
        return None
    return unauthorized()


async def _answer(
    namespace: Namespace,
    operation: AnyOperation | None,
    refused: EngineError | None,
    max_upload_bytes: int,
    request: web.Request,
    handler: Handler,
) -> web.StreamResponse:
    """Read the request, record it in the journal and answer it; `refused` is the answer if it is given.

    The journal entry keeps no status if the caller disconnects before the answer.
    """
    upload: Upload | None = None
    body = b""
    if refused is None:
        try:
            body, upload = await read_body(request, operation, max_upload_bytes)
        except EngineError as error:
            refused = error
    operation_id = operation.id if operation else None
    recorded = record_request(
        request.method, request.path, request.query_string, operation_id, request.headers, body
    )
    elapsed = namespace.clock.elapsed()
    entry = namespace.journal.begin(recorded, elapsed)
    plan = namespace.faults.decide(recorded, entry.occurrence, elapsed)
    # The answer to a plain search depends on its body alone.
    plain = (
        plan is f.NOTHING
        and refused is None
        and operation_id == "search"
        and not recorded.query
        and request.content_type == _JSON
        and ACCESS not in request.headers
        and USER_ROLE not in request.headers
    )
    if plain and (known := namespace.search_cache.get(namespace.state, body)) is not None:
        entry.status, entry.done = 200, True
        return web.Response(body=known, content_type=_JSON)

    async def perform() -> web.StreamResponse:
        """Run the operation."""
        if refused is not None:
            return mount.problem_response(refused)
        CURRENT.set(Call(namespace, entry.identity, plan.stale or namespace.state, upload))
        response = await handler(request)
        entry.done = response.status < 400
        namespace.wake_ended()
        return response

    entry.faults, entry.delay = plan.fired, plan.delay
    response = await _under(plan, namespace.clock, perform)
    if isinstance(response, ResetResponse):
        return response
    entry.status = response.status
    if isinstance(response, web.Response) and isinstance(response.body, bytes):
        if response.status >= 400 and response.content_type == PROBLEM_JSON:
            entry.code = msgspec.json.decode(response.body, type=Problem).code
        elif plain and response.status == 200:
            namespace.search_cache.keep(namespace.state, body, response.body)
    return response


# --- effects --------------------------------------------------------------------------------------


async def _under(
    plan: f.Plan, clock: Clock, perform: Callable[[], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Return the answer under a fault plan; `perform` runs the operation and returns the true answer."""
    if plan.delay:
        await clock.sleep(plan.delay)
    match plan.effect:
        case f.Hang():
            await clock.timer(math.inf)
            return ResetResponse()
        case f.Reset():
            return ResetResponse()
        case f.LostAck():
            await perform()
            return ResetResponse()
        case f.Status(code=code, detail=detail, retry_after=seconds):
            members = {} if seconds is None else {"retry_after": seconds}
            return mount.problem_response(EngineError(code, detail, **members))
        case f.RateLimit(code=code):
            # Whole seconds are rounded up, so that a caller that waits for Retry-After is accepted.
            wait = max(_LEAST_RETRY_SECONDS, plan.retry_after)
            detail = "Too many requests. Wait as Retry-After says."
            response = mount.problem_response(EngineError(code, detail, retry_after=wait))
            response.headers["Retry-After"] = str(math.ceil(wait))
            return response
        case f.HttpStatus(status=status):
            try:
                title = HTTPStatus(status).phrase
            except ValueError:  # a status code without a standard phrase
                title = f"Status {status}"
            return web.Response(status=status, text=_HTML.format(title=title), content_type="text/html")
        case f.EmptyBody():
            return web.Response(status=200, content_type=_JSON)
        case f.ResetAfter() | f.ContentLength() | f.MalformedChunk() | f.Drip() as effect:
            return _damaged(effect, await perform(), clock)
        case _:
            return await perform()


def _damaged(
    effect: f.ResetAfter | f.ContentLength | f.MalformedChunk | f.Drip, true: web.StreamResponse, clock: Clock
) -> web.StreamResponse:
    """The true answer, damaged in transit."""
    body = bytes(true.body) if isinstance(true, web.Response) and isinstance(true.body, bytes) else b""
    match effect:
        case f.ResetAfter(bytes=count):
            return RawBytesResponse(true, f"Content-Length: {len(body)}", body[:count], reset=True)
        case f.ContentLength(off=off):
            return RawBytesResponse(true, f"Content-Length: {max(0, len(body) + off)}", body)
        case f.MalformedChunk():
            half = len(body) // 2
            first = b"%x\r\n%b\r\n" % (half, body[:half]) if half else b""
            rest = b"no size\r\n%b\r\n0\r\n\r\n" % body[half:]
            return RawBytesResponse(true, "Transfer-Encoding: chunked", first + rest)
        case f.Drip(bytes=count, seconds=seconds):
            return DripResponse(true, body, count, seconds, clock)


class RawBytesResponse(web.StreamResponse):
    """The head of a true answer with `length` as its length header, followed by `data`.

    The connection is then closed or reset. A reset tells the client that the answer is broken.
    """

    def __init__(
        self, true: web.StreamResponse | None, length: str, data: bytes, *, reset: bool = False
    ) -> None:
        super().__init__()
        self.force_close()
        self._data = data
        self._reset = reset
        if true is not None:
            headers = [f"{name}: {value}" for name, value in true.headers.items() if name != "Content-Length"]
            lines = [f"HTTP/1.1 {true.status} {true.reason}", *headers, length, "Connection: close", "", ""]
            self._data = "\r\n".join(lines).encode("latin-1", "replace") + data

    async def prepare(self, request: web.BaseRequest) -> None:
        """Write the bytes and end the connection."""
        transport = request.transport
        if transport is None:  # the caller has disconnected
            return
        transport.write(self._data)
        if not self._reset:
            transport.close()
            return
        if (connection := transport.get_extra_info("socket")) is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _CLOSE_WITH_RESET)
        transport.abort()

    async def write_eof(self, data: bytes = b"") -> None:
        """Do nothing: `prepare` has written everything."""


class ResetResponse(RawBytesResponse):
    """The connection is reset without an answer."""

    def __init__(self) -> None:
        super().__init__(None, "", b"", reset=True)


class DripResponse(web.StreamResponse):
    """An answer whose body is sent in pieces, with a pause before each."""

    def __init__(
        self, true: web.StreamResponse, body: bytes, count: int, seconds: float, clock: Clock
    ) -> None:
        super().__init__(status=true.status, reason=true.reason, headers=true.headers)
        self.content_length = len(body)
        self._pieces = [body[start : start + count] for start in range(0, len(body), count)]
        self._seconds = seconds
        self._clock = clock

    async def write_eof(self, data: bytes = b"") -> None:
        """Write the pieces."""
        for piece in self._pieces:
            await self._clock.sleep(self._seconds)
            await self.write(piece)
        await super().write_eof(data)


# --- a simulator that runs ------------------------------------------------------------------------


class Simulator:
    """The fake engine on its socket, and its control plane if `settings.control` names a port.

    An asynchronous context manager: it listens inside the block and releases everything on exit.
    """

    def __init__(self, settings: SimulatorSettings) -> None:
        self.settings = settings
        self.namespaces = Namespaces(settings)
        self.url = ""
        """URL of the fake engine."""
        self.control_url: str | None = None
        """URL of the control plane, or None if it is off."""
        self._running = AsyncExitStack()

    async def __aenter__(self) -> Simulator:
        settings = self.settings
        async with AsyncExitStack() as stack:
            self.url = await _listen(build_app(self.namespaces), settings.host, settings.port, stack)
            if settings.control is not None:
                # Imported here because most runs in CI do not need the control plane.
                from kb_simulator.harness.control import build_control

                control = build_control(self.namespaces, engine_url=self.url)
                self.control_url = await _listen(control, LOOPBACK, settings.control, stack)
            stack.callback(self.namespaces.release)  # first, as it ends the requests that hang
            self._running = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._running.aclose()


async def _listen(app: web.Application, host: str, port: int, stack: AsyncExitStack) -> str:
    """Serve until `stack` is closed; return the URL."""
    mount.engine_admission().install(app)
    runner = web.AppRunner(
        app,
        access_log=None,
        logger=connection_log(),
        handler_cancellation=True,
        shutdown_timeout=_SHUTDOWN_SECONDS,
        max_line_size=mount.REQUEST_LINE_BYTES,
        max_field_size=mount.HEADER_BYTES,
    )
    stack.push_async_callback(runner.cleanup)
    await runner.setup()
    address = await stack.enter_async_context(listening(runner, host, port))
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"http://{host}:{address[1]}"


@contextmanager
def in_thread(settings: SimulatorSettings) -> Iterator[Simulator]:
    """Yield a simulator that runs in its own thread, for programs without an event loop.

    Other threads may use only its URLs; the control plane does the rest.
    Raises OSError: a port is in use.
    """
    from anyio.from_thread import start_blocking_portal  # `kb sim` does not need it

    with start_blocking_portal() as loop, loop.wrap_async_context_manager(Simulator(settings)) as simulator:
        yield simulator
