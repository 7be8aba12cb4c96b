"""Carries out faults: as HTTP answers where HTTP can express them, on the socket itself where it cannot."""

from __future__ import annotations

import asyncio
import math
import socket
import struct
from collections.abc import Awaitable, Callable
from http import HTTPStatus as Reason
from typing import Any

from aiohttp import web

from kb_contracts.api.errors import EngineError
from kb_contracts.http.mount import problem_response
from kb_simulator.harness.clock import Clock
from kb_simulator.harness.fault_registry import Plan
from kb_simulator.harness.faults import (
    ContentLength,
    Drip,
    EmptyBody,
    ExpiredKey,
    Hang,
    HttpStatus,
    LostAck,
    MalformedChunk,
    NotJson,
    RateLimit,
    Reset,
    ResetAfter,
    Status,
)

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
