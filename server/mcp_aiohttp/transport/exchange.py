"""One request and its answer over HTTP: plain JSON, or a stream of events where there is more to say.

The answer becomes `text/event-stream` with the first notification, or after some seconds of silence,
so that no proxy takes the connection for dead. Until then a call can still end in plain JSON with an
HTTP status of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import anyio
from aiohttp import hdrs, web
from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import NoBackChannelError
from mcp.shared.jsonrpc_dispatcher import progress_token_from_params
from mcp.shared.message import ServerMessageMetadata
from mcp.shared.transport_context import TransportContext

from mcp_aiohttp.options import KEEP_ALIVE_SECONDS
from mcp_aiohttp.protocol.caller import Caller
from mcp_aiohttp.protocol.jsonrpc import Request, notification_bytes

STALLED_SECONDS = 60.0
"""How long a client may leave a stream unread before it counts as gone."""

_STREAM = "text/event-stream"
_STREAM_HEADERS = {
    hdrs.CONTENT_TYPE: _STREAM,
    hdrs.CACHE_CONTROL: "no-cache, no-transform",
    "X-Accel-Buffering": "no",
}
_COMMENT = b": keep-alive\n\n"


class Channel:
    """The way back of one HTTP request: writes its answer, plain or as a stream."""

    def __init__(
        self, http: web.Request, *, keep_alive: float = KEEP_ALIVE_SECONDS, streaming: bool = True
    ) -> None:
        """`keep_alive` is how long, in seconds, the answer may stay silent before it streams."""
        self._http = http
        by_name, self._at_all = _accepted(http) if streaming else (False, False)
        self._stream: web.StreamResponse | None = None
        self._writing = asyncio.Lock()
        self._ended = False
        self._keep_alive = keep_alive
        self._silence: asyncio.Task[None] | None = None
        # An unprompted stream is for clients that name the type; curl's `*/*` keeps its plain JSON.
        self._timer = (
            asyncio.get_running_loop().call_later(keep_alive, self._break_silence) if by_name else None
        )

    async def answer(self, body: bytes, status: int = 200) -> web.StreamResponse:
        """End the exchange with the JSON-RPC response `body`; `status` counts where no stream has begun."""
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
        """Write nothing more; what is being written ends first."""
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        if self._silence is not None:
            self._silence.cancel()
        if self._writing.locked():
            async with self._writing:
                return

    async def _write(self, data: bytes) -> None:
        async with self._writing:
            if self._ended:
                return
            try:
                async with asyncio.timeout(STALLED_SECONDS):
                    stream = self._stream or await self._begun()
                    await stream.write(data)
            except (ConnectionResetError, TimeoutError):
                self._hang_up()

    async def _begun(self) -> web.StreamResponse:
        stream = web.StreamResponse(headers=_STREAM_HEADERS)
        await stream.prepare(self._http)
        self._stream = stream
        return stream

    def _hang_up(self) -> None:
        """The client left, or no longer reads; in the handshake era the work goes on without it."""
        self._ended = True
        if self._http.transport is not None:
            self._http.transport.abort()

    def _break_silence(self) -> None:
        self._silence = asyncio.get_running_loop().create_task(self._keep_talking())

    async def _keep_talking(self) -> None:
        while not self._ended:
            await self._write(_COMMENT)
            await asyncio.sleep(self._keep_alive)


class Exchange(Channel):
    """A channel that is the SDK's dispatch context as well."""

    can_send_request = False  # stateless: a client's reply would have nowhere to arrive

    def __init__(
        self,
        http: web.Request,
        request: Request,
        caller: Caller,
        *,
        keep_alive: float = KEEP_ALIVE_SECONDS,
        streaming: bool = True,
    ) -> None:
        """As for every channel."""
        super().__init__(http, keep_alive=keep_alive, streaming=streaming)
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
        """There is no way back to the client.

        Raises:
            NoBackChannelError: always.
        """
        raise NoBackChannelError(method)

    async def notify(
        self, method: str, params: Mapping[str, Any] | None, _opts: CallOptions | None = None
    ) -> None:
        """Send a notification on the answer's stream; dropped where the client takes no stream."""
        if self._at_all:
            await self._write(_event(notification_bytes(method, params)))

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress under the caller's token; nothing without one."""
        if self._token is None:
            return
        params: dict[str, Any] = {"progressToken": self._token, "progress": progress}
        if total is not None:
            params["total"] = total
        if message is not None:
            params["message"] = message
        await self.notify("notifications/progress", params)


def _accepted(http: web.Request) -> tuple[bool, bool]:
    """Whether a stream is accepted by name, and whether at all; no Accept header accepts everything."""
    return _accepts(",".join(http.headers.getall(hdrs.ACCEPT, ())))


@lru_cache(maxsize=64)  # a client sends the same header with every request
def _accepts(accept: str) -> tuple[bool, bool]:
    ranges = [value.split(";")[0].strip().lower() for value in accept.split(",")]
    by_name = _STREAM in ranges or "text/*" in ranges
    return by_name, by_name or "*/*" in ranges or ranges == [""]


def _event(body: bytes) -> bytes:
    return b"event: message\ndata: " + body + b"\n\n"
