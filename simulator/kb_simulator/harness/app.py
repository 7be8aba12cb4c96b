"""The aiohttp adapter: the contract's operations over the state, with faults and the journal around them.

request ─▶ page ─▶ namespace ─▶ key ─▶ body ─▶ journal ─▶ faults ─▶ contract ─▶ state
                                                   ▲          │
                                                   └── answer ┘
"""

from __future__ import annotations

import asyncio
import hmac
import math
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http import HTTPStatus as Reason
from types import TracebackType
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from kb_contracts.api.errors import PROBLEM_JSON, EngineError, Problem
from kb_contracts.api.operations import IDEMPOTENCY_KEY, OPERATIONS, AnyOperation
from kb_contracts.http.connections import (
    CONNECTIONS,
    ConnectionLimits,
    ConnectionTable,
    Listener,
    connection_log,
    connections_within_descriptors,
    listen,
)
from kb_contracts.http.mount import (
    build_application,
    check_origin,
    check_unrepeated,
    engine_admission,
    is_probe,
    problem_response,
)
from kb_simulator.determinism import Clock, ClockMode
from kb_simulator.engine.handlers import CURRENT, Call, Upload, handlers, read_body
from kb_simulator.harness.faults import (
    NOTHING,
    ContentLength,
    Drip,
    EmptyBody,
    ExpiredKey,
    Hang,
    HttpStatus,
    LostAck,
    MalformedChunk,
    NotJson,
    Plan,
    RateLimit,
    Reset,
    ResetAfter,
    Status,
)
from kb_simulator.harness.journal import Entry, RecordedRequest, record_request
from kb_simulator.harness.namespaces import Namespace, Namespaces, bearer
from kb_simulator.settings import SimulatorSettings

_HTML = "<!doctype html><title>{title}</title><h1>{title}</h1><p>This is not the engine.</p>"
_LEAST_RETRY_SECONDS = 0.001
_CLOSE_WITH_RESET = struct.pack("ii", 1, 0)  # SO_LINGER on, for no time at all

Perform = Callable[[], Awaitable[web.StreamResponse]]


async def answer(plan: Plan, clock: Clock, perform: Perform) -> web.StreamResponse:
    """The answer under a plan; `perform` carries the operation out and gives the true one."""
    if plan.delay:
        await clock.sleep(plan.delay)
    match plan.effect:
        case Hang():
            await clock.timer(math.inf)
            return ResetResponse()
        case Reset():
            return ResetResponse()
        case LostAck():
            await perform()
            return ResetResponse()
        case ResetAfter() | ContentLength() | MalformedChunk() | Drip() as effect:
            return _mangled(effect, await perform(), clock)
        case Status() | HttpStatus() | RateLimit() | ExpiredKey() | NotJson() | EmptyBody() as effect:
            return _instead(effect, plan)
        case _:
            return await perform()


def _instead(
    effect: Status | HttpStatus | RateLimit | ExpiredKey | NotJson | EmptyBody, plan: Plan
) -> web.Response:
    """What is answered in the operation's place."""
    match effect:
        case Status(code=code, retry_after=seconds):
            members = {} if seconds is None else {"retry_after": seconds}
            return _problem(code, "This request was told to fail.", **members)
        case RateLimit(code=code):
            # Rounded up where it stands in whole seconds: whoever keeps to it is let through.
            wait = max(_LEAST_RETRY_SECONDS, plan.retry_after)
            response = _problem(code, "Too many requests. Wait as Retry-After says.", retry_after=wait)
            response.headers["Retry-After"] = str(math.ceil(wait))
            return response
        case ExpiredKey():
            return _problem("unauthorized", "The key has expired. Send the engine's present KB_API_KEY.")
        case HttpStatus(status=status):
            return _page(status)
        case NotJson():
            return _page(200)
        case EmptyBody():
            return web.Response(status=200, content_type="application/json")


def _problem(code: str, detail: str, **members: Any) -> web.Response:
    return problem_response(EngineError(code, detail, **members))


def _page(status: int) -> web.Response:
    try:
        title = Reason(status).phrase
    except ValueError:  # a status without a name of its own
        title = f"Status {status}"
    return web.Response(status=status, text=_HTML.format(title=title), content_type="text/html")


def _mangled(
    effect: ResetAfter | ContentLength | MalformedChunk | Drip, true: web.StreamResponse, clock: Clock
) -> web.StreamResponse:
    """The true answer, damaged on its way."""
    body = bytes(true.body) if isinstance(true, web.Response) and isinstance(true.body, bytes) else b""
    match effect:
        case ResetAfter(bytes=count):
            return RawBytesResponse(_head(true, f"Content-Length: {len(body)}") + body[:count], reset=True)
        case ContentLength(off=off):
            return RawBytesResponse(
                _head(true, f"Content-Length: {max(0, len(body) + off)}") + body, reset=False
            )
        case MalformedChunk():
            half = len(body) // 2
            first = b"%x\r\n%b\r\n" % (half, body[:half]) if half else b""
            rest = b"no size\r\n%b\r\n0\r\n\r\n" % body[half:]
            return RawBytesResponse(_head(true, "Transfer-Encoding: chunked") + first + rest, reset=False)
        case Drip(bytes=count, seconds=seconds):
            return DripResponse(true, body, count, seconds, clock)


def _head(true: web.StreamResponse, length: str) -> bytes:
    """The status line and headers of an answer, with `length` as the header that says how long it is."""
    headers = [f"{name}: {value}" for name, value in true.headers.items() if name != "Content-Length"]
    lines = [f"HTTP/1.1 {true.status} {true.reason}", *headers, length, "Connection: close", "", ""]
    return "\r\n".join(lines).encode("latin-1", "replace")


class RawBytesResponse(web.StreamResponse):
    """Bytes as they go over the wire, and then the end of the connection: closed, or reset."""

    def __init__(self, data: bytes, *, reset: bool) -> None:
        super().__init__()
        self.force_close()
        self._data = data
        self._reset = reset

    async def prepare(self, request: web.BaseRequest) -> None:
        """Write, and end the connection."""
        transport = request.transport
        if transport is None:  # the caller has hung up
            return
        transport.write(self._data)
        if self._reset:
            reset(transport)
        else:
            transport.close()

    async def write_eof(self, data: bytes = b"") -> None:
        """All has been written."""


class ResetResponse(RawBytesResponse):
    """No answer: the connection is reset."""

    def __init__(self) -> None:
        super().__init__(b"", reset=True)


class DripResponse(web.StreamResponse):
    """An answer whose body comes in pieces, each after a pause."""

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


def reset(transport: asyncio.Transport) -> None:
    """Close a connection with RST: the other side learns that something broke."""
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _CLOSE_WITH_RESET)
    transport.abort()


_BY_ROUTE: Mapping[tuple[str, str], AnyOperation] = {
    (operation.method.value, operation.path): operation for operation in OPERATIONS
}
_JSON = "application/json"


def build_app(namespaces: Namespaces, *, max_upload_bytes: int, host: str = "127.0.0.1") -> web.Application:
    """The fake engine over `namespaces`; `max_upload_bytes` bounds one file, `host` is listened on.

    Run it with `handler_cancellation`, so that who hangs up is let go.
    """
    app = build_application(handlers())
    app.middlewares.insert(0, _rim(namespaces, max_upload_bytes, host))

    async def let_go(_app: web.Application) -> None:
        namespaces.release()

    app.on_shutdown.append(let_go)
    return app


def _rim(namespaces: Namespaces, max_upload_bytes: int, host: str) -> Any:
    @web.middleware
    async def rim(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if not is_probe(request):
                check_unrepeated(request.headers)
            if not namespaces.key_for(request.headers):
                check_origin(request.headers, host)
            namespace = namespaces.chosen_by(request.headers)
        except EngineError as error:
            return problem_response(error)
        operation = _BY_ROUTE.get((request.method, _route(request)))
        key = request.headers.get(IDEMPOTENCY_KEY)
        busy: EngineError | None = None
        with ExitStack() as held:
            if operation is not None and operation.excludes_retries:
                try:
                    held.enter_context(namespace.keys.hold(bearer(request.headers), operation.id, key))
                except EngineError as error:
                    busy = error
            return await _answer(namespace, operation, busy, max_upload_bytes, request, handler)

    return rim


async def _answer(
    namespace: Namespace,
    operation: AnyOperation | None,
    busy: EngineError | None,
    max_upload_bytes: int,
    request: web.Request,
    handler: Handler,
) -> web.StreamResponse:
    """Read the request, note it down, and answer it; `busy` where another one has its idempotency key."""
    upload: Upload | None = None
    refused = _key_refusal(namespace, request) or busy
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
    plain = plan is NOTHING and refused is None and _is_plain_search(recorded, request)
    if plain and (known := namespace.search_cache.get(namespace.state, body)) is not None:
        entry.status, entry.done = 200, True
        return web.Response(body=known, content_type=_JSON)
    response = await _Exchange(namespace, entry, plan, upload, refused, request, handler).run()
    if plain and response.status == 200 and isinstance(response, web.Response):
        namespace.search_cache.keep(namespace.state, body, response.body)
    return response


@dataclass(slots=True)
class _Exchange:
    """One request on its way through faults and contract, and what the journal is told of it."""

    namespace: Namespace
    entry: Entry
    plan: Plan
    upload: Upload | None
    refused: EngineError | None
    request: web.Request
    handler: Handler

    async def run(self) -> web.StreamResponse:
        """The answer; the entry stays without a status where the caller hangs up before it."""
        self.entry.faults, self.entry.delay = self.plan.fired, self.plan.delay
        response = await answer(self.plan, self.namespace.clock, self._perform)
        if not isinstance(response, ResetResponse):
            self.entry.status = response.status
            self.entry.code = _code(response)
        return response

    async def _perform(self) -> web.StreamResponse:
        if self.refused is not None:
            return problem_response(self.refused)
        reads = self.plan.stale or self.namespace.state
        CURRENT.set(Call(self.namespace, self.entry.identity, reads, self.upload))
        response = await self.handler(self.request)
        self.entry.done = response.status < 400
        self.namespace.wake_ended()
        return response


def _is_plain_search(recorded: RecordedRequest, request: web.Request) -> bool:
    """Whether the body alone makes the answer."""
    return recorded.operation == "search" and not recorded.query and request.content_type == _JSON


def _route(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else ""


def _key_refusal(namespace: Namespace, request: web.Request) -> EngineError | None:
    if not namespace.api_key or is_probe(request):
        return None
    presented = bearer(request.headers).encode("utf-8", "surrogateescape")
    if hmac.compare_digest(presented, namespace.api_key.encode()):
        return None
    return EngineError("unauthorized", "Send Authorization: Bearer with the engine's KB_API_KEY.")


def _code(response: web.StreamResponse) -> str | None:
    """The code of a problem document."""
    if (
        response.status < 400
        or response.content_type != PROBLEM_JSON
        or not isinstance(response, web.Response)
    ):
        return None
    return msgspec.json.decode(response.body, type=Problem).code if isinstance(response.body, bytes) else None


LOOPBACK = "127.0.0.1"

_SHUTDOWN_SECONDS = 2.0
_START_SECONDS = 30.0


class Simulator:
    """The fake engine, and its control plane where `settings.control` names a port, on their sockets.

    An asynchronous context manager: it listens inside, and has let go of everything after.
    """

    def __init__(self, settings: SimulatorSettings) -> None:
        self.settings = settings
        self.namespaces = Namespaces(
            settings.seed, ClockMode(settings.clock), settings.api_key, settings.policy, settings.namespaces
        )
        self._runners: list[web.AppRunner] = []
        self._listeners: list[Listener] = []
        self._url = ""
        self._control_url: str | None = None

    @property
    def url(self) -> str:
        """Where the fake engine listens."""
        return self._url

    @property
    def control_url(self) -> str | None:
        """Where the control plane listens, None where it is off."""
        return self._control_url

    async def __aenter__(self) -> Simulator:
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stop()

    async def _start(self) -> None:
        settings = self.settings
        app = build_app(self.namespaces, max_upload_bytes=settings.max_upload_bytes, host=settings.host)
        self._url = await self._listen(app, settings.host, settings.port)
        if settings.control is not None:
            # Imported here: most runs in CI want neither the control plane nor its page.
            from kb_simulator.harness.control import build_control
            from kb_simulator.harness.page import add_page

            control = build_control(self.namespaces, engine_url=self._url)
            add_page(control, self.namespaces, self._url)
            self._control_url = await self._listen(control, LOOPBACK, settings.control)

    async def _listen(self, app: web.Application, host: str, port: int) -> str:
        engine_admission().install(app)
        runner = web.AppRunner(
            app,
            access_log=None,
            logger=connection_log(),
            handler_cancellation=True,
            shutdown_timeout=_SHUTDOWN_SECONDS,
        )
        self._runners.append(runner)
        await runner.setup()
        make = runner.server
        assert make is not None, "a runner that was set up has a server"
        most = connections_within_descriptors(CONNECTIONS)
        listener = await listen(ConnectionTable(make, ConnectionLimits(most, most)), host, port)
        self._listeners.append(listener)
        address = listener.address
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        return f"http://{host}:{address[1]}"

    async def _stop(self) -> None:
        self.namespaces.release()
        while self._listeners:
            self._listeners.pop().close()
        while self._runners:
            await self._runners.pop().cleanup()


@contextmanager
def in_thread(settings: SimulatorSettings) -> Iterator[Simulator]:
    """A simulator in a thread of its own, for programs without an event loop.

    Only its addresses are to be used from other threads; everything else goes through the control plane.

    Raises:
        OSError: a port is taken.
    """
    running = _Running(settings)
    running.start()
    try:
        yield running.wait()
    finally:
        running.stop()


class _Running(threading.Thread):
    def __init__(self, settings: SimulatorSettings) -> None:
        super().__init__(name="kb-simulator", daemon=True)
        self._settings = settings
        self._ready = threading.Event()
        self._simulator: Simulator | None = None
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Event | None = None

    def run(self) -> None:
        """The thread."""
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001  # told to the thread that waits, which raises it
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        async with Simulator(self._settings) as self._simulator:
            self._ready.set()
            await self._ended.wait()

    def wait(self) -> Simulator:
        """The simulator, once it listens."""
        if not self._ready.wait(_START_SECONDS):
            raise TimeoutError(f"the simulator did not start within {_START_SECONDS} seconds")
        if self._failure is not None:
            raise self._failure
        assert self._simulator is not None, "a thread that is ready has a simulator"
        return self._simulator

    def stop(self) -> None:
        """End the thread."""
        if self._loop is not None and self._ended is not None and self.is_alive():
            self._loop.call_soon_threadsafe(self._ended.set)
        self.join()
