"""An HTTP/1.1 client for one connection: a reader without I/O, and the socket's side of it.

httptools parses the responses. Its parser, llhttp, is strict: two lengths, a length beside chunks, a folded
header and a bare line feed are errors. This module adds the rules that it leaves open: the maximum sizes of
head and response, responses without a length, which end with their connection (llhttp would have to be told
of that, and httptools has no call for it), and data that does not belong to the requested response.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import lru_cache
from http import HTTPStatus

import msgspec
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from kb_server.engine_client.errors import EngineBadAnswer, EngineTimeout, EngineUnreachable

MAX_HEAD_BYTES = 64 * 1024
"""Maximum size of a response's head, in bytes, including provisional responses (1xx)."""
MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Maximum size of a response on the wire, in bytes, including its head and the framing of its chunks."""
MAX_WAITING_BYTES = 1024 * 1024
"""Maximum number of bytes of a streamed body that wait to be consumed."""
ANSWER_SECONDS = 300.0
"""Maximum time for a body to arrive that is read whole, in seconds."""

_IDLE_SECONDS = 30.0
"""Less than most servers keep a connection: aiohttp 75 s, but uvicorn and Node only 5."""
_NO_DEADLINE = float("inf")


class RawResponse(msgspec.Struct, frozen=True):
    """An HTTP response, read whole. `content_type` is without parameters, `retry_after` the header's text."""

    status: int
    content_type: str
    body: bytes
    retry_after: str | None = None


class BodyStream:
    """The body of a response of one media type, consumed block by block.

    Buffering is bounded: beyond `MAX_WAITING_BYTES` its connection pauses reading.
    """

    def __init__(self, media_type: str) -> None:
        self.media_type = media_type
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._has_ended = False
        self._error: BaseException | None = None
        self._connection: asyncio.ReadTransport | None = None
        self._is_paused = False

    def attach(self, connection: asyncio.ReadTransport) -> None:
        """Receive the blocks over this connection from now on."""
        self._connection = connection

    def detach(self) -> None:
        """Detach the connection, which has delivered the body."""
        if self._is_paused and self._connection is not None and not self._connection.is_closing():
            self._connection.resume_reading()
        self._connection, self._is_paused = None, False

    def put(self, block: bytes) -> None:
        self._waiting.append(block)
        self._size += len(block)
        if self._size > MAX_WAITING_BYTES and self._connection is not None and not self._is_paused:
            self._connection.pause_reading()
            self._is_paused = True
        self._changed.set()

    async def taken(self) -> None:
        """Wait until there is room for more."""
        while self._size > MAX_WAITING_BYTES:
            self._room.clear()
            await self._room.wait()

    def end(self, error: BaseException | None) -> None:
        """End the body; `error` is None if it is complete."""
        self._has_ended, self._error = True, error
        self._changed.set()

    async def blocks(self) -> AsyncGenerator[bytes, None]:
        """Yield the blocks until the end. Raises the error that ended the body."""
        while True:
            while self._waiting:
                block = self._waiting.popleft()
                self._size -= len(block)
                self._room.set()
                if self._is_paused and self._size <= MAX_WAITING_BYTES // 2 and self._connection is not None:
                    self._connection.resume_reading()
                    self._is_paused = False
                yield block
            if self._has_ended:
                if self._error is not None:
                    raise self._error
                return
            self._changed.clear()
            await self._changed.wait()


class ResponseReader:
    """Reads the responses of one connection, one for each request.

        state     bytes                                   end of the connection
        --------  --------------------------------------  ----------------------------------------
        head      head, again after a 1xx; then body      no response
        body      body; at its announced end: a response  a response if no length was announced,
                                                          else a fault
        complete  not reusable                            -

    After a fault the connection cannot be used any more.
    """

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        self.begin()

    def begin(self, stream: BodyStream | None = None) -> None:
        """Begin a request: the following bytes are its response; the body of a success goes into `stream`."""
        self._stream = stream
        self.is_streamed = False
        """True if the body goes into the stream; the response then has no body."""
        self.received = 0
        self.in_body = False
        self.reusable = False
        """True if the connection may carry another request after the response."""
        self._body = bytearray()  # not a list of blocks: chunks of two bytes would fill it with objects
        self._response: RawResponse | None = None

    def feed(self, data: bytes) -> RawResponse | None:
        """Return the response once it is complete; None while more is expected.
        Raises EngineBadAnswer: the bytes are not HTTP, too many, or in a coding that was not requested.
        """
        self.received += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self.reusable = False
            if self._response is None:
                # Possibly damaged in transit: a repeated mutation is answered by its idempotency key.
                words = f"It does not answer in HTTP as agreed ({type(error).__name__})."
                raise EngineBadAnswer(words, broke_off=True) from error
        if self.received > MAX_HEAD_BYTES and not self.in_body:
            raise EngineBadAnswer(f"The head of its answer is over {MAX_HEAD_BYTES} bytes.")
        if self.received > MAX_ANSWER_BYTES and not self.is_streamed:
            raise EngineBadAnswer(f"Its answer is over {MAX_ANSWER_BYTES} bytes.")
        return self._checked() if self._response is not None else None

    def end(self) -> RawResponse | None:
        """Handle the end of the connection; return the response that this ends, or None if none had begun.
        Raises EngineBadAnswer: it broke off.
        """
        if not self.in_body:
            return None
        if not self._until_end:
            raise self.broken_off()
        self.on_message_complete()
        return self._checked()

    @staticmethod
    def broken_off() -> EngineBadAnswer:
        """Return the fault for a response that ended too early."""
        return EngineBadAnswer("Its response broke off.", broke_off=True)

    def _checked(self) -> RawResponse | None:
        # `identity` was requested. Unpacking a compressed answer would need bounds of its own, for the sake
        # of peers that violate HTTP.
        if self._coding not in ("", "identity") and self._response is not None and self._response.body:
            raise EngineBadAnswer("Its response is compressed although the request did not permit that.")
        return self._response

    # --- what httptools calls ---------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._response is not None:
            self.reusable = False  # a response without a request
            return
        self._content_type = self._coding = ""
        self._retry_after: str | None = None
        self._until_end = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.in_body:
            return  # a trailer
        match name.lower():
            case b"content-length":
                self._until_end = False
            case b"content-type":
                self._content_type = _media_type(value)
            case b"content-encoding":
                self._coding = value.decode("latin-1").strip().lower()
            case b"retry-after":
                self._retry_after = value.decode("latin-1")
            case b"transfer-encoding":
                self._until_end = not value.lower().endswith(b"chunked")

    def on_headers_complete(self) -> None:
        if self._response is None and self._parser.get_status_code() >= 200:
            self.in_body = True
            self.is_streamed = (
                self._stream is not None
                and self._parser.get_status_code() == HTTPStatus.OK
                and self._content_type == self._stream.media_type
                and self._coding in ("", "identity")
            )
            self.reusable = self._parser.should_keep_alive()

    def on_body(self, block: bytes) -> None:
        if self.is_streamed and self._stream is not None:
            self._stream.put(block)
        else:
            self._body += block

    def on_message_complete(self) -> None:
        if self._response is None and self.in_body:
            status = self._parser.get_status_code()
            self._response = RawResponse(status, self._content_type, bytes(self._body), self._retry_after)


@lru_cache(maxsize=64)
def _media_type(value: bytes) -> str:
    return value.decode("latin-1").partition(";")[0].strip().lower()


class Connection(asyncio.Protocol):
    """One connection to `url`: the socket's side of the reader. `forget` is called when it is closed.

    It carries one exchange at a time and watches its own deadline, with one timer for its whole life: a
    deadline that moves with every block is a number, which the timer compares when it fires.

        state    bytes                     end of the connection             deadline
        -------  ------------------------  --------------------------------  -----------------------
        idle     close: not requested      closed                            close: kept long enough
        at work  to the reader             a response, or a fault            EngineTimeout
        closed   -                         -                                 -

    An exchange closes its connection unless both response and request were transferred whole: the remainder
    of either must not become part of the next one.
    """

    _transport: asyncio.Transport

    def __init__(
        self, loop: asyncio.AbstractEventLoop, url: str, forget: Callable[[Connection], None]
    ) -> None:
        self._loop = loop
        self._url = url
        self._forget = forget
        self._reader = ResponseReader()
        self._answer: asyncio.Future[RawResponse] | None = None
        self._drained: asyncio.Future[None] | None = None
        """Pending while the peer accepts no more data."""
        self._is_sent = True
        self._read_timeout = 0.0
        self._latest = self._deadline = _NO_DEADLINE
        self._timer: asyncio.TimerHandle | None = None
        self._wakes = _NO_DEADLINE
        """The time at which the timer fires."""
        self.gone: asyncio.Future[None] = loop.create_future()

    @property
    def is_open(self) -> bool:
        """True if another exchange may follow."""
        return not self._transport.is_closing()

    @property
    def has_received(self) -> bool:
        """True if any byte has arrived in this exchange."""
        return self._reader.received > 0

    async def exchange(
        self,
        head: bytes,
        rest: AsyncGenerator[bytes, None] | None,
        read_timeout: float,
        stream: BodyStream | None = None,
    ) -> RawResponse:
        """Send the request, and read the whole response, which may come before the request is sent whole.

        The body of a success goes into `stream`, if there is one. A slow consumer is allowed `read_timeout`
        seconds.

        Raises:
            EngineUnreachable: the connection ended before an answer.
            EngineTimeout: silence.
            EngineBadAnswer: the response is not valid HTTP, or incomplete.
            Exception: raised by `rest`.
        """
        answer: asyncio.Future[RawResponse] = self._loop.create_future()
        self._answer = answer
        self._reader.begin(stream)
        if stream is not None:
            stream.attach(self._transport)
        self._read_timeout = read_timeout
        self._latest = _NO_DEADLINE
        self._extend()
        self._transport.write(head)
        self._is_sent = rest is None
        sending = None
        if rest is not None:
            sending = self._loop.create_task(self._send(rest))
            sending.add_done_callback(self._sent)
        try:
            response = await answer
            if self._reader.reusable and self._is_sent:
                self._read_timeout = _IDLE_SECONDS
                self._extend()
            else:
                self.abort()
            return response
        except BaseException:
            self.abort()
            if answer.done() and not answer.cancelled():
                answer.exception()  # cancelled and failed at once: do not report it as lost
            raise
        finally:
            self._answer = None
            if stream is not None:
                stream.detach()
            if sending is not None and not sending.done():
                sending.cancel()
                await asyncio.wait([sending])

    def abort(self) -> None:
        """Close at once; unsent data is dropped."""
        self._transport.abort()

    def break_off(self, reason: str) -> None:
        """Fail the exchange in progress, and close."""
        unreachable = EngineUnreachable(reason, url=self._url)
        self._fail(self._reader.broken_off() if self._reader.in_body else unreachable)
        self.abort()

    async def _send(self, blocks: AsyncGenerator[bytes, None]) -> None:
        async with aclosing(blocks) as blocks:
            async for block in blocks:
                self._transport.write(block)
                if self._drained is not None:
                    await self._drained
                self._extend()
        self._is_sent = True

    def _sent(self, sending: asyncio.Task[None]) -> None:
        if not sending.cancelled() and (error := sending.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def _end(self, error: Exception | None) -> None:
        self._forget(self)
        if self._answer is None or self._answer.done():
            return
        try:
            response = self._reader.end() if error is None else None
            if response is not None:
                self._answer.set_result(response)
            elif self._reader.in_body:
                self._fail(self._reader.broken_off())
            else:
                self._fail(EngineUnreachable(reason_of(error), url=self._url))
        except EngineBadAnswer as fault:
            self._fail(fault)

    # --- the deadline -----------------------------------------------------------------------------

    def _extend(self) -> None:
        """Restart the silence time-out after progress."""
        deadline = self._deadline = min(self._loop.time() + self._read_timeout, self._latest)
        if deadline < self._wakes:
            self._wake_at(deadline)

    def _wake_at(self, moment: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._wakes = moment
        self._timer = self._loop.call_at(moment, self._look)

    def _look(self) -> None:
        self._wakes = _NO_DEADLINE
        if self._loop.time() < self._deadline:
            self._wake_at(self._deadline)
        elif self._answer is None:
            self._forget(self)
            self.abort()
        elif self._deadline == self._latest:
            self._fail(EngineTimeout(f"Its response was incomplete after {ANSWER_SECONDS:g} s."))
        else:
            self._fail(EngineTimeout(f"It sent no data for {self._read_timeout:g} s."))

    # --- what the event loop calls ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # TCP's

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self._forget(self)
            self.abort()
            return
        had_begun = self._reader.in_body
        try:
            response = self._reader.feed(data)
        except EngineBadAnswer as fault:
            self._fail(fault)
            return
        if response is not None:
            self._answer.set_result(response)
        elif self._reader.in_body:  # a slowly dripping head does not extend the deadline
            if not had_begun and not self._reader.is_streamed:
                self._latest = self._loop.time() + ANSWER_SECONDS
            self._extend()

    def eof_received(self) -> None:
        self._end(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error)
        self.resume_writing()
        if self._timer is not None:
            self._timer.cancel()
        if not self.gone.done():
            self.gone.set_result(None)

    def pause_writing(self) -> None:
        self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)


def reason_of(error: Exception | None) -> str:
    """Return the reason why there is no connection, without addresses, which may hold credentials."""
    match error:
        case None:
            return "it closed the connection without a response"
        case socket.gaierror() | UnicodeError():
            return "its host name does not resolve"
        case ssl.SSLError():
            return "TLS failed"
    number = getattr(error, "errno", None)
    return os.strerror(number).lower() if isinstance(number, int) else "the connection broke"
