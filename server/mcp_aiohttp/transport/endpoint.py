"""One MCP endpoint: a POST carries a message, a GET may become a WebSocket, all other requests are refused.

The answer to a message is plain JSON, or a stream of events if there is more to send: it becomes
`text/event-stream` with the first notification, or after some seconds of silence, so that no proxy takes the
connection for dead. Until then a call can still end in plain JSON with an HTTP status of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import lru_cache
from typing import Any

import anyio
from aiohttp import hdrs, web
from mcp.server.connection import Connection
from mcp.shared import inbound
from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import NoBackChannelError
from mcp.shared.jsonrpc_dispatcher import progress_token_from_params
from mcp.shared.message import ServerMessageMetadata
from mcp.shared.transport_context import TransportContext
from mcp_types import UNSUPPORTED_PROTOCOL_VERSION
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from multidict import CIMultiDictProxy

from mcp_aiohttp.fastpath import CALL, FastPath, FastRequest
from mcp_aiohttp.guard import CALLER, asks_for_websocket, refusal
from mcp_aiohttp.options import STALLED_SECONDS, BodyLimits, HostingOptions
from mcp_aiohttp.protocol import jsonrpc
from mcp_aiohttp.protocol.caller import Caller
from mcp_aiohttp.protocol.eras import envelope_version, era_of, header_mismatch
from mcp_aiohttp.protocol.kernel import HostedServer
from mcp_aiohttp.transport.websocket import SocketPlaces, WebSockets, hang_up

DEFAULT_VERSION = "2025-03-26"
"""The assumed version of a request without one, as the transport of 2025-06-18 and later says."""
BATCH_VERSION = "2025-03-26"
"""The only version with JSON-RPC batches; 2025-06-18 removed them."""
MAX_BATCH = 32

_SERVED: tuple[str, ...] = (*MODERN_PROTOCOL_VERSIONS, *reversed(HANDSHAKE_PROTOCOL_VERSIONS))
_CANCEL_SECONDS = 1.0
"""Maximum time that a cancelled call may take to clean up when the server stops, in seconds."""
_STREAM = "text/event-stream"
_STREAM_HEADERS = {
    hdrs.CONTENT_TYPE: _STREAM,
    hdrs.CACHE_CONTROL: "no-cache, no-transform",
    "X-Accel-Buffering": "no",
}
_LISTEN = "subscriptions/listen"
_COMMENT = b": keep-alive\n\n"


class McpEndpoint:
    def __init__(
        self,
        server: HostedServer,
        options: HostingOptions,
        places: SocketPlaces,
        caller_of: Callable[[web.Request], Awaitable[Caller]],
    ) -> None:
        """`caller_of` authenticates the sender of a request again, for work that outlasts the request."""
        self._server = server
        self._caller_of = caller_of
        self._sockets = WebSockets(server, options.sockets, places, caller_of)
        self._limits = options.body
        self._keep_alive = options.keep_alive
        self._resource = options.resource
        self._detached: set[asyncio.Task[web.StreamResponse]] = set()

    async def handle(self, http: web.Request) -> web.StreamResponse:
        """Answer one HTTP request.
        Raises Refusal: this endpoint does not accept the message.
        """
        if http.method != hdrs.METH_POST and asks_for_websocket(http):
            return await self._sockets.serve(http, self._limits.max_bytes)
        self.check(http)
        try:
            value = await jsonrpc.parse_in_thread_if_long(await _read_body(http, self._limits))
        except jsonrpc.ParseError as error:
            raise jsonrpc.Refusal(400, jsonrpc.PARSE_ERROR, "parse_error", f"Parse error: {error}") from None
        if isinstance(value, list):
            if _header_version(http.headers) != BATCH_VERSION:
                raise _bad_request("This protocol version does not accept batches.")
            if not 1 <= len(value) <= MAX_BATCH:
                raise _bad_request(f"A batch holds 1 to {MAX_BATCH} messages.")
            return await self._detach(self._batch(http, value))
        try:
            message = jsonrpc.as_message(value)
        except jsonrpc.InvalidRequestError as error:
            return web.Response(body=_invalid(error), status=400, content_type="application/json")
        if isinstance(message, jsonrpc.Request):
            self._check_scope(http, message)
            return await self._request(http, message)
        version = _header_version(http.headers)
        if isinstance(message, jsonrpc.Notification):
            return await self._detach(self._notification(http, message))
        if version in MODERN_PROTOCOL_VERSIONS:
            raise _bad_request("This protocol version does not accept responses.")
        return web.Response(status=202)

    def check(self, http: web.Request) -> None:
        """Check the request before its body is read.
        Raises Refusal: the method, the media type or the announced length is not for this endpoint.
        """
        if http.method != hdrs.METH_POST:
            raise jsonrpc.Refusal(
                405,
                jsonrpc.METHOD_NOT_ALLOWED,
                "method_not_allowed",
                "This endpoint keeps no sessions: send each message by POST, or open a WebSocket.",
                headers={hdrs.ALLOW: "POST"},
            )
        if http.headers.get(hdrs.CONTENT_TYPE) != "application/json":  # the usual form
            if http.content_type != "application/json" or hdrs.CONTENT_TYPE not in http.headers:
                raise _wrong_type("Send the message as `Content-Type: application/json`.")
            if (http.charset or "utf-8").lower() not in ("utf-8", "utf8"):
                raise _wrong_type("Send the message in UTF-8.")
        if http.headers.get(hdrs.CONTENT_ENCODING, "identity").lower() != "identity":
            raise _wrong_type("Send the message without a Content-Encoding.")
        if http.content_length is not None and http.content_length > self._limits.max_bytes:
            raise _too_large(self._limits)

    def _check_scope(self, http: web.Request, request: jsonrpc.Request) -> None:
        """Let a client step up if its token lacks the scope of a tool and another token can have it.
        Raises Refusal: 403 `insufficient_scope`, with all scopes that the next token needs.
        """
        if self._resource is None or request.method != CALL or self._server.missing_scope is None:
            return
        name = (request.params or {}).get("name")
        if isinstance(name, str) and (scope := self._server.missing_scope(name, http[CALLER])):
            words = f"The tool {name} needs a token with the scopes {scope}."
            raise refusal(403, words, self._resource.challenge(http.path, "insufficient_scope", words, scope))

    def stop(self, seconds: float) -> None:
        """End streams; let the calls on WebSockets end within `seconds`, then close the connections."""
        self._server.stop()
        self._sockets.stop(seconds)

    async def drain(self, seconds: float) -> None:
        """Wait for the calls whose clients have left; after `seconds` cancel them."""
        if not self._detached:
            return
        _, late = await asyncio.wait(self._detached, timeout=seconds)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=_CANCEL_SECONDS)

    async def _request(self, http: web.Request, request: jsonrpc.Request) -> web.StreamResponse:
        # A request of 2026-07-28 is cancelled with its stream, which closes when the client leaves; requests
        # of the handshake eras go on.
        try:
            version = _header_version(http.headers, request)
            if (fast_path := self._server.fast_path) is not None:
                plain = fast_path.match(request, version, http.headers, http[CALLER])
                if plain is not None:
                    work = self._plain(fast_path, http, plain)
                    return await (work if plain.modern or plain.listing is not None else self._detach(work))
            era = era_of(request, version, http.headers, self._server.sdk.get_tool_input_schema)
            if request.method == _LISTEN and not isinstance(era, str) and not _accepts(_accept_of(http))[1]:
                words = "Accept `text/event-stream`: the answer is a stream."
                raise jsonrpc.Refusal(406, jsonrpc.INVALID_REQUEST, "not_acceptable", words)
            caller = await self._caller_of(http) if request.method == _LISTEN else http[CALLER]
        except jsonrpc.Refusal as refusal:
            body = jsonrpc.error_bytes(request.id, refusal.code, refusal.message, refusal.data)
            return web.Response(body=body, status=refusal.status, content_type="application/json")
        exchange = Exchange(http, request, caller, self._keep_alive)
        work = self._by_kernel(era, exchange, request)
        return await (self._detach(work) if isinstance(era, str) else work)

    async def _plain(
        self, fast_path: FastPath, http: web.Request, request: FastRequest
    ) -> web.StreamResponse:
        """Answer a plain call, or the list of tools, past the SDK's kernel."""
        channel = Channel(http, self._keep_alive)
        try:
            body = await fast_path.answer(request, http[CALLER])
            if request.modern and request.listing is None:
                # Wait one iteration of the event loop, so that answers that are ready together are sent
                # together: waking the client for each costs more than the rest of this method.
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            await channel.close()
            raise
        return await channel.answer(body)

    async def _by_kernel(
        self, era: inbound.InboundModernRoute | str, exchange: Exchange, request: jsonrpc.Request
    ) -> web.StreamResponse:
        """Answer by the SDK's kernel.

        Errors of 2026-07-28 have the HTTP status of their code; for a handshake version the status is 200.
        """
        if isinstance(era, str):
            connection = Connection.from_envelope(era, None, None)
        else:
            connection = Connection.from_envelope(
                era.protocol_version, era.client_info, era.client_capabilities
            )
        try:
            body, code = await self._server.respond(connection, exchange, request, exchange.caller)
        except asyncio.CancelledError:
            await exchange.close()
            raise
        status = (
            200 if code is None or isinstance(era, str) else inbound.ERROR_CODE_HTTP_STATUS.get(code, 200)
        )
        return await exchange.answer(body, status)

    async def _notification(self, http: web.Request, notification: jsonrpc.Notification) -> web.Response:
        # The protocol's own notifications concern sessions, which do not exist here.
        if (handler := self._server.notification_handlers.get(notification.method)) is not None:
            await handler(notification.params, http[CALLER])
        return web.Response(status=202)

    async def _detach(self, work: Coroutine[Any, Any, web.StreamResponse]) -> web.StreamResponse:
        """Run `work` to its end even if the client leaves: in the handshake eras leaving does not cancel."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()  # `asyncio.shield` costs more, in every call
        task = loop.create_task(work)

        def end(task: asyncio.Task[web.StreamResponse]) -> None:
            self._detached.discard(task)
            if not ended.done():
                ended.set_result(None)
            elif not task.cancelled():
                task.exception()  # retrieved so that asyncio does not report it as lost: the client has left

        self._detached.add(task)
        task.add_done_callback(end)
        await ended
        return task.result()

    async def _batch(self, http: web.Request, values: list[Any]) -> web.StreamResponse:
        """Run the messages of a batch one after the other."""
        answers = [answer for value in values if (answer := await self._batched(http, value)) is not None]
        if not answers:
            return web.Response(status=202)
        return web.Response(body=b"[" + b",".join(answers) + b"]", content_type="application/json")

    async def _batched(self, http: web.Request, value: Any) -> bytes | None:
        try:
            message = jsonrpc.as_message(value)
            if isinstance(message, jsonrpc.Notification):
                await self._notification(http, message)
            if not isinstance(message, jsonrpc.Request):
                return None
            if message.method == "initialize":
                raise jsonrpc.InvalidRequestError("`initialize` must not be part of a batch", message.id)
        except jsonrpc.InvalidRequestError as error:
            return _invalid(error)
        exchange = Exchange(http, message, http[CALLER], self._keep_alive, streaming=False)
        try:
            connection = Connection.from_envelope(BATCH_VERSION, None, None)
            return (await self._server.respond(connection, exchange, message, exchange.caller))[0]
        finally:
            await exchange.close()


class Channel:
    """The response channel of one HTTP request: writes its answer, plain or as a stream."""

    def __init__(self, http: web.Request, keep_alive: float, *, streaming: bool = True) -> None:
        """`keep_alive` is the time that the answer may stay silent before it streams, in seconds."""
        self._http = http
        by_name, self._at_all = False, False
        if streaming:
            by_name, self._at_all = _accepts(_accept_of(http))
        self._stream: web.StreamResponse | None = None
        self._writing = asyncio.Lock()
        self._ended = False
        self._keep_alive = keep_alive
        self._heartbeat: asyncio.Task[None] | None = None
        # An unprompted stream is for clients that name the type; curl's `*/*` keeps its plain JSON.
        self._timer = (
            asyncio.get_running_loop().call_later(keep_alive, self._break_silence) if by_name else None
        )

    async def answer(self, body: bytes, status: int = 200) -> web.StreamResponse:
        """End the exchange with the JSON-RPC response `body`; `status` is ignored once a stream has begun."""
        await self.close()
        if self._stream is None:
            return web.Response(body=body, status=status, content_type="application/json")
        try:
            async with asyncio.timeout(STALLED_SECONDS):
                await self._stream.write(_event(body))
                await self._stream.write_eof()
        except (ConnectionResetError, TimeoutError):
            self._hang_up()
        return self._stream

    async def close(self) -> None:
        """Stop writing, after the event that is being written."""
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        if self._writing.locked():
            async with self._writing:
                return

    async def _write(self, data: bytes) -> None:
        async with self._writing:
            if self._ended:
                return
            try:
                async with asyncio.timeout(STALLED_SECONDS):
                    if self._stream is None:
                        stream = web.StreamResponse(headers=_STREAM_HEADERS)
                        await stream.prepare(self._http)
                        self._stream = stream
                    await self._stream.write(data)
            except (ConnectionResetError, TimeoutError):
                self._hang_up()

    def _hang_up(self) -> None:
        """Close the connection to a client that left or no longer reads.

        In the handshake eras the work goes on without it.
        """
        self._ended = True
        if self._http.transport is not None:
            hang_up(self._http.transport)

    def _break_silence(self) -> None:
        self._heartbeat = asyncio.get_running_loop().create_task(self._keep_talking())

    async def _keep_talking(self) -> None:
        while not self._ended:
            await self._write(_COMMENT)
            await asyncio.sleep(self._keep_alive)


class Exchange(Channel):
    """A channel that is the SDK's dispatch context as well."""

    can_send_request = False  # stateless: there is no way for a client's reply

    def __init__(
        self,
        http: web.Request,
        request: jsonrpc.Request,
        caller: Caller,
        keep_alive: float,
        *,
        streaming: bool = True,
    ) -> None:
        super().__init__(http, keep_alive, streaming=streaming)
        self.caller = caller
        self.request_id = request.id
        self.message_metadata = ServerMessageMetadata(request_context=caller, can_send_request=False)
        self.transport = TransportContext(
            kind="streamable-http", can_send_request=False, headers=caller.headers
        )
        self.cancel_requested = anyio.Event()
        self._token = progress_token_from_params(request.params)

    async def send_raw_request(
        self, method: str, _params: Mapping[str, Any] | None, _opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Refuse: there is no back channel to the client.
        Raises NoBackChannelError: always.
        """
        raise NoBackChannelError(method)

    async def notify(
        self, method: str, params: Mapping[str, Any] | None, _opts: CallOptions | None = None
    ) -> None:
        """Send a notification on the answer's stream; dropped if the client does not accept a stream."""
        if self._at_all:
            await self._write(_event(jsonrpc.notification_bytes(method, params)))

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        if self._token is None:
            return
        params: dict[str, Any] = {"progressToken": self._token, "progress": progress}
        if total is not None:
            params["total"] = total
        if message is not None:
            params["message"] = message
        await self.notify("notifications/progress", params)


def _accept_of(http: web.Request) -> str:
    return ",".join(http.headers.getall(hdrs.ACCEPT, ()))


@lru_cache(maxsize=64)  # a client sends the same header with every request
def _accepts(accept: str) -> tuple[bool, bool]:
    """Return (accepted by name, accepted at all) for a stream; no Accept header accepts everything."""
    ranges = [value.split(";")[0].strip().lower() for value in accept.split(",")]
    by_name = _STREAM in ranges or "text/*" in ranges
    return by_name, by_name or "*/*" in ranges or ranges == [""]


def _event(body: bytes) -> bytes:
    return b"event: message\ndata: " + body + b"\n\n"


def _header_version(headers: CIMultiDictProxy[str], request: jsonrpc.Request | None = None) -> str:
    """Return the protocol version in the headers; `request` is the message that they came with, if any.
    Raises Refusal: 400, the version is not one that this server speaks, or a routing header occurs twice.
    """
    for name in (inbound.MCP_PROTOCOL_VERSION_HEADER, inbound.MCP_METHOD_HEADER, inbound.MCP_NAME_HEADER):
        if len(headers.getall(name, ())) > 1:
            raise header_mismatch(f"The header {name} comes more than once.")
    version = headers.get(inbound.MCP_PROTOCOL_VERSION_HEADER, DEFAULT_VERSION)
    if version not in _SERVED:
        # A caller of 2026-07-28 gets the versions that `server/discover` gives.
        modern = request is not None and envelope_version(request) is not None
        refusal = jsonrpc.Refusal(
            400, UNSUPPORTED_PROTOCOL_VERSION, "unsupported_protocol_version", "Unsupported protocol version"
        )
        served = MODERN_PROTOCOL_VERSIONS if modern else _SERVED
        refusal.data |= {"supported": list(served), "requested": version[:64]}
        raise refusal
    return version


async def _read_body(request: web.Request, limits: BodyLimits) -> bytes:
    """Return the whole body; reading stops at the limit.
    Raises Refusal: 413 over the limit, 408 if it stopped coming, 400 if its framing is broken.
    """
    if request.content.is_eof():  # came whole with its headers, as nearly always
        body = request.content.read_nowait()
        if len(body) > limits.max_bytes:
            raise _too_large(limits)
        return body
    pieces: list[bytes] = []
    length = 0
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limits.total
    try:
        async with asyncio.timeout(limits.read_timeout) as patience:
            async for piece in request.content.iter_any():
                length += len(piece)
                if length > limits.max_bytes:
                    raise _too_large(limits)
                pieces.append(piece)
                patience.reschedule(min(loop.time() + limits.read_timeout, deadline))
    except TimeoutError:
        raise _broken(
            408, jsonrpc.BODY_TIMEOUT, "body_timeout", "The body of the message did not arrive in time."
        ) from None
    except web.RequestPayloadError:
        raise _broken(400, jsonrpc.PARSE_ERROR, "parse_error", "The body of the request is broken.") from None
    return b"".join(pieces)


def _wrong_type(message: str) -> jsonrpc.Refusal:
    return _broken(415, jsonrpc.UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)


def _too_large(limits: BodyLimits) -> jsonrpc.Refusal:
    message = f"The message is larger than {limits.max_bytes} bytes, the limit on one message."
    return _broken(413, jsonrpc.MESSAGE_TOO_LARGE, "message_too_large", message, limit_bytes=limits.max_bytes)


def _broken(status: int, code: int, error_type: str, message: str, **details: int) -> jsonrpc.Refusal:
    # The rest of the body is not read, so the connection cannot carry another request.
    return jsonrpc.Refusal(status, code, error_type, message, close=True, details=details)


def _bad_request(message: str) -> jsonrpc.Refusal:
    return jsonrpc.Refusal(400, jsonrpc.INVALID_REQUEST, "invalid_request", message)


def _invalid(error: jsonrpc.InvalidRequestError) -> bytes:
    data = {"error_type": "invalid_request"}
    return jsonrpc.error_bytes(error.id, jsonrpc.INVALID_REQUEST, f"Invalid request: {error}", data)
