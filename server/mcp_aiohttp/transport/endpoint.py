"""One MCP endpoint: a POST carries a message, a GET may become a WebSocket, everything else is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from aiohttp import hdrs, web
from mcp.server.connection import Connection
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcp_aiohttp.fastpath.fast_path import FastPath, FastRequest
from mcp_aiohttp.guard import CALLER, asks_for_websocket
from mcp_aiohttp.options import BodyLimits, HostingOptions
from mcp_aiohttp.protocol.eras import DEFAULT_VERSION, Handshake, Modern, era_of, header_version
from mcp_aiohttp.protocol.jsonrpc import (
    INVALID_REQUEST,
    PARSE_ERROR,
    InvalidRequestError,
    Notification,
    ParseError,
    Request,
    as_message,
    error_bytes,
    parse_in_thread_if_long,
)
from mcp_aiohttp.protocol.kernel import HostedServer
from mcp_aiohttp.protocol.parameter_headers import check_parameter_headers
from mcp_aiohttp.protocol.refusal import (
    BODY_TIMEOUT,
    MESSAGE_TOO_LARGE,
    METHOD_NOT_ALLOWED,
    UNSUPPORTED_MEDIA_TYPE,
    Refusal,
)
from mcp_aiohttp.transport.exchange import Channel, Exchange
from mcp_aiohttp.transport.websocket import SocketPlaces, WebSockets

BATCH_VERSION = "2025-03-26"
"""The only version with JSON-RPC batches; 2025-06-18 took them out again."""
MAX_BATCH = 32

_CANCEL_SECONDS = 1.0
"""How long a cancelled call may take to clean up when the server stops."""


class McpEndpoint:
    """Answers the requests of one path."""

    def __init__(
        self, server: HostedServer, options: HostingOptions, places: SocketPlaces | None = None
    ) -> None:
        self._server = server
        self._sockets = WebSockets(server, options.sockets, places)
        self._limits = options.body
        self._keep_alive = options.keep_alive
        self._detached: set[asyncio.Task[web.StreamResponse]] = set()
        self._fast_path = server.fast_path

    async def handle(self, http: web.Request) -> web.StreamResponse:
        """Answer one HTTP request.

        Raises:
            Refusal: it is no message that this endpoint takes.
        """
        if asks_for_websocket(http):
            return await self._sockets.serve(http, self._limits.max_bytes)
        self.check(http)
        try:
            value = await parse_in_thread_if_long(await read_body(http, self._limits))
        except ParseError as error:
            raise Refusal(400, PARSE_ERROR, "parse_error", f"Parse error: {error}") from None
        if isinstance(value, list):
            _check_batch(value, header_version(http.headers))
            return await self._detach(self._batch(http, value))
        try:
            message = as_message(value)
        except InvalidRequestError as error:
            return web.Response(body=_invalid(error), status=400, content_type="application/json")
        if isinstance(message, Request):
            return await self._request(http, message)
        version = header_version(http.headers)
        if isinstance(message, Notification):
            return await self._detach(self._notification(http, message))
        if version in MODERN_PROTOCOL_VERSIONS:
            raise _bad_request("This protocol version takes no responses.")
        return web.Response(status=202)

    def check(self, http: web.Request) -> None:
        """Check the request before its body is read.

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
        if http.content_type != "application/json" or hdrs.CONTENT_TYPE not in http.headers:
            raise _wrong_type("Send the message as `Content-Type: application/json`.")
        if http.headers.get(hdrs.CONTENT_ENCODING, "identity").lower() != "identity":
            raise _wrong_type("Send the message without a Content-Encoding.")
        if (http.charset or "utf-8").lower() not in ("utf-8", "utf8"):
            raise _wrong_type("Send the message in UTF-8.")
        if http.content_length is not None and http.content_length > self._limits.max_bytes:
            raise _too_large(self._limits)

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
            version = header_version(http.headers, request)
            if (fast_path := self._fast_path) is not None:
                plain = fast_path.match(request, version or DEFAULT_VERSION, http.headers)
                if plain is not None:
                    work = self._plain(fast_path, http, plain)
                    # As for every request: 2026-07-28 is cancelled with its stream, the handshake eras not.
                    return await (work if plain.modern or plain.listing is not None else self._detach(work))
            era = era_of(request, version, http.headers)
            if isinstance(era, Modern):
                check_parameter_headers(request, http.headers, self._server.sdk.get_tool_input_schema)
        except Refusal as refusal:
            body = error_bytes(request.id, refusal.code, refusal.message, refusal.data)
            return web.Response(body=body, status=refusal.status, content_type="application/json")
        exchange = self._exchange(http, request)
        if isinstance(era, Modern):
            # Runs in the handler's own task: when the client closes the stream, the work is cancelled.
            return await self._modern(era, exchange, request)
        return await self._detach(self._handshake(era, exchange, request))

    async def _plain(
        self, fast_path: FastPath, http: web.Request, request: FastRequest
    ) -> web.StreamResponse:
        """Answer a plain call, or the list of tools, past the SDK's kernel."""
        channel = Channel(http, keep_alive=self._keep_alive)
        try:
            body = await fast_path.answer(request, http[CALLER])
            if request.modern and request.listing is None:
                # One turn of the loop later, as where a task of its own comes between, so that answers that
                # are ready together go out together: waking the client for each costs more than all of this.
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            await channel.close()
            raise
        return await channel.answer(body)

    async def _modern(self, era: Modern, exchange: Exchange, request: Request) -> web.StreamResponse:
        """Answer a 2026-07-28 request; errors carry the HTTP status of their code."""
        route = era.route
        connection = Connection.from_envelope(
            route.protocol_version, route.client_info, route.client_capabilities
        )
        body, code = await self._respond(connection, exchange, request)
        status = 200 if code is None else ERROR_CODE_HTTP_STATUS.get(code, 200)
        return await exchange.answer(body, status)

    async def _handshake(self, era: Handshake, exchange: Exchange, request: Request) -> web.StreamResponse:
        """Answer a handshake-era request; once it is understood its HTTP status is 200, error or not."""
        body, _ = await self._respond(Connection.from_envelope(era.version, None, None), exchange, request)
        return await exchange.answer(body)

    async def _respond(
        self, connection: Connection, exchange: Exchange, request: Request
    ) -> tuple[bytes, int | None]:
        try:
            return await self._server.respond(connection, exchange, request)
        except asyncio.CancelledError:
            await exchange.close()
            raise

    async def _notification(self, http: web.Request, notification: Notification) -> web.Response:
        # The protocol's own concern sessions, of which there are none here.
        if (handler := self._server.notification_handlers.get(notification.method)) is not None:
            await handler(notification.params, http[CALLER])
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
                await self._notification(http, message)
            if not isinstance(message, Request):
                return None
            if message.method == "initialize":
                raise InvalidRequestError("`initialize` must not be part of a batch", message.id)
        except InvalidRequestError as error:
            return _invalid(error)
        exchange = self._exchange(http, message, streaming=False)
        try:
            connection = Connection.from_envelope(BATCH_VERSION, None, None)
            return (await self._respond(connection, exchange, message))[0]
        finally:
            await exchange.close()

    def _exchange(self, http: web.Request, request: Request, *, streaming: bool = True) -> Exchange:
        return Exchange(http, request, http[CALLER], keep_alive=self._keep_alive, streaming=streaming)


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


async def read_body(request: web.Request, limits: BodyLimits) -> bytes:
    """The whole body; reading stops at the limit.

    Raises:
        Refusal: 413 over the limit, 408 where it stopped coming, 400 where its framing is broken.
    """
    if request.content.is_eof():  # came whole with its headers, as nearly all do
        body = request.content.read_nowait()
        if len(body) > limits.max_bytes:
            raise _too_large(limits)
        return body
    pieces: list[bytes] = []
    length = 0
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limits.total
    try:
        async with asyncio.timeout(limits.silence) as patience:
            async for piece in request.content.iter_any():
                length += len(piece)
                if length > limits.max_bytes:
                    raise _too_large(limits)
                pieces.append(piece)
                patience.reschedule(min(loop.time() + limits.silence, deadline))
    except TimeoutError:
        raise _broken(408, BODY_TIMEOUT, "body_timeout", "The body of the message stopped coming.") from None
    except web.RequestPayloadError:
        raise _broken(400, PARSE_ERROR, "parse_error", "The body of the request is broken.") from None
    return b"".join(pieces)


def _wrong_type(message: str) -> Refusal:
    return _broken(415, UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)


def _too_large(limits: BodyLimits) -> Refusal:
    message = f"The message is larger than {limits.max_bytes} bytes, the limit on one message."
    return _broken(413, MESSAGE_TOO_LARGE, "message_too_large", message, limit_bytes=limits.max_bytes)


def _broken(status: int, code: int, error_type: str, message: str, **details: int) -> Refusal:
    # The rest of the body is not wanted, so the connection cannot carry another request.
    return Refusal(status, code, error_type, message, close=True, details=details)
