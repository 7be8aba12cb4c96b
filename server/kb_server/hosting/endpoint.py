"""One MCP endpoint: a POST carries a message, a GET may become a WebSocket, everything else is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from aiohttp import hdrs, web
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from kb_server.hosting.auth import caller_of
from kb_server.hosting.body import BodyLimits, check_announced, read_body
from kb_server.hosting.eras import (
    DEFAULT_VERSION,
    Handshake,
    Modern,
    era_of,
    handshake_body,
    header_version,
    serve_handshake,
    serve_modern,
)
from kb_server.hosting.exchange import KEEP_ALIVE_SECONDS, Channel, Exchange
from kb_server.hosting.jsonrpc import (
    INVALID_REQUEST,
    PARSE_ERROR,
    InvalidRequestError,
    Notification,
    Request,
    as_message,
    error_bytes,
)
from kb_server.hosting.lane import Lane, Passage
from kb_server.hosting.parameter_headers import check_parameter_headers
from kb_server.hosting.protocol import ReadyServer
from kb_server.hosting.refusal import METHOD_NOT_ALLOWED, Refusal
from kb_server.hosting.strict_json import ParseError, parse_aside
from kb_server.hosting.websocket import SocketLimits, WebSockets, asks_for_websocket

BATCH_VERSION = "2025-03-26"
"""The only version with JSON-RPC batches; 2025-06-18 took them out again."""
MAX_BATCH = 32

_CANCEL_SECONDS = 1.0
"""How long a cancelled call may take to clean up when the server stops."""


class McpEndpoint:
    """Answers the requests of one path."""

    def __init__(
        self,
        server: ReadyServer,
        *,
        limits: BodyLimits | None = None,
        keep_alive: float = KEEP_ALIVE_SECONDS,
        sockets: SocketLimits | None = None,
    ) -> None:
        self._server = server
        self._sockets = WebSockets(server, sockets)
        self._limits = limits or BodyLimits()
        self._keep_alive = keep_alive
        self._detached: set[asyncio.Task[web.StreamResponse]] = set()

    async def handle(self, http: web.Request) -> web.StreamResponse:
        """Answer one HTTP request.

        Raises:
            Refusal: it is no message that this endpoint takes.
        """
        if asks_for_websocket(http):
            return await self._sockets.serve(http, self._limits.max_bytes)
        self.check(http)
        value = await _parsed(await read_body(http, self._limits))
        if isinstance(value, list):
            _check_batch(value, header_version(http))
            return await self._detach(self._batch(http, value))
        try:
            message = as_message(value)
        except InvalidRequestError as error:
            return _refused(error)
        if isinstance(message, Request):
            return await self._request(http, message)
        version = header_version(http)
        if isinstance(message, Notification):
            return await self._detach(self._noted(http, message))
        if version in MODERN_PROTOCOL_VERSIONS:
            raise _bad_request("This protocol version takes no responses.")
        return web.Response(status=202)

    def check(self, http: web.Request) -> None:
        """What can be told before the body is read.

        Raises:
            Refusal: the method, the media type or the announced length is not for this endpoint.
        """
        if http.method != hdrs.METH_POST:
            raise Refusal(
                405,
                METHOD_NOT_ALLOWED,
                "method_not_allowed",
                "This endpoint keeps no sessions: send each message by POST, or open a WebSocket.",
                headers={hdrs.ALLOW: "POST"},
            )
        check_announced(http, self._limits)

    def stop(self, seconds: float) -> None:
        """Let the calls on WebSockets end within `seconds`, and the connections with them."""
        self._sockets.stop(seconds)

    async def drain(self, seconds: float) -> None:
        """Let the calls whose clients have left end; after `seconds` cancel them."""
        if not self._detached:
            return
        _, late = await asyncio.wait(self._detached, timeout=seconds)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=_CANCEL_SECONDS)

    async def _request(self, http: web.Request, request: Request) -> web.StreamResponse:
        try:
            version = header_version(http, request)
            lane = self._server.lane
            if lane is not None and (
                passage := lane.admits(request, version or DEFAULT_VERSION, http.headers)
            ):
                return await self._pass(http, lane, passage)
            era = era_of(request, version, http.headers)
            if isinstance(era, Modern):
                check_parameter_headers(request, http.headers, self._server.sdk.get_tool_input_schema)
        except Refusal as refusal:
            body = error_bytes(request.id, refusal.code, refusal.message, refusal.data)
            return web.Response(body=body, status=refusal.status, content_type="application/json")
        exchange = self._exchange(http, request)
        if isinstance(era, Modern):
            # Runs in the handler's own task: when the client closes the stream, the work is cancelled.
            return await serve_modern(self._server, era, exchange, request)
        return await self._detach(serve_handshake(self._server, era, exchange, request))

    async def _pass(self, http: web.Request, lane: Lane, passage: Passage) -> web.StreamResponse:
        if passage.listing is not None:
            return web.Response(body=lane.listed(passage), content_type="application/json")
        work = self._passed(http, lane, passage)
        # As for every request: 2026-07-28 is cancelled with its stream, the handshake versions are not.
        return await (work if passage.modern else self._detach(work))

    async def _passed(self, http: web.Request, lane: Lane, passage: Passage) -> web.StreamResponse:
        channel = Channel(http, keep_alive=self._keep_alive)
        try:
            body = await lane.answer(passage, caller_of(http))
            if passage.modern:
                # One turn of the loop later, as where a task of its own comes between, so that answers that
                # are ready together go out together: waking the client for each costs more than all of this.
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            await channel.close()
            raise
        return await channel.answer(body)

    async def _noted(self, http: web.Request, notification: Notification) -> web.Response:
        await self._server.note(notification, caller_of(http))
        return web.Response(status=202)

    async def _detach(self, work: Coroutine[Any, Any, web.StreamResponse]) -> web.StreamResponse:
        """Run `work` so that it goes on when the client leaves: in this era that is no cancel."""
        task = asyncio.get_running_loop().create_task(work)
        self._detached.add(task)
        task.add_done_callback(self._detached.discard)
        return await asyncio.shield(task)

    async def _batch(self, http: web.Request, values: list[Any]) -> web.StreamResponse:
        answers = [answer for value in values if (answer := await self._batched(http, value)) is not None]
        if not answers:
            return web.Response(status=202)
        return web.Response(body=b"[" + b",".join(answers) + b"]", content_type="application/json")

    async def _batched(self, http: web.Request, value: Any) -> bytes | None:
        """The answer to one message of a batch; they run one after the other."""
        try:
            message = as_message(value)
            if isinstance(message, Notification):
                await self._noted(http, message)
            if not isinstance(message, Request):
                return None
            if message.method == "initialize":
                raise InvalidRequestError("`initialize` must not be part of a batch", message.id)
        except InvalidRequestError as error:
            return _invalid(error)
        exchange = self._exchange(http, message, streaming=False)
        try:
            return await handshake_body(self._server, Handshake(BATCH_VERSION), exchange, message)
        finally:
            await exchange.close()

    def _exchange(self, http: web.Request, request: Request, *, streaming: bool = True) -> Exchange:
        caller = caller_of(http)
        return Exchange(http, request, caller, keep_alive=self._keep_alive, streaming=streaming)


async def _parsed(body: bytes) -> Any:
    try:
        return await parse_aside(body)
    except ParseError as error:
        raise Refusal(400, PARSE_ERROR, "parse_error", f"Parse error: {error}") from None


def _check_batch(values: list[Any], version: str | None) -> None:
    if (version or DEFAULT_VERSION) != BATCH_VERSION:
        raise _bad_request("This protocol version takes no batches.")
    if not 1 <= len(values) <= MAX_BATCH:
        raise _bad_request(f"A batch holds 1 to {MAX_BATCH} messages.")


def _bad_request(message: str) -> Refusal:
    return Refusal(400, INVALID_REQUEST, "invalid_request", message)


def _invalid(error: InvalidRequestError) -> bytes:
    data = {"error_type": "invalid_request"}
    return error_bytes(error.id, INVALID_REQUEST, f"Invalid request: {error}", data)


def _refused(error: InvalidRequestError) -> web.Response:
    return web.Response(body=_invalid(error), status=400, content_type="application/json")
