"""One POST to an endpoint and its response: status and body, or the reason of the failure.

    task   ──▶ Endpoint, pooled connections ──▶ Reply, or EndpointUnavailable
    thread ──▶ EndpointThread, an event loop in a thread of its own ──▶ the same

A thread blocked on a socket cannot be stopped; a task on an event loop can. So a hanging endpoint does not
delay a shutdown, and the total time-out also covers an endpoint that sends a byte now and then.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

import aiohttp
import msgspec
from aiohttp.http_exceptions import HttpProcessingError

MOST_RETRY_AFTER = 300.0  # maximum `Retry-After` that is respected, in seconds

_CONNECT_SECONDS = 5.0
_READ_BYTES = 64 * 1024
_UNTOUCHED = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "kb-engine"}
_MOST_WORDS = 200
_STOPPING = "is not asked any more: the engine is stopping"


class Reply(NamedTuple):
    """A response of any status; `retry_after` is in seconds, or None without the header."""

    status: int
    body: bytes
    retry_after: float | None


class EndpointUnavailable(Exception):
    """No HTTP response, an oversized one, or the client is closed.

    `what` is worded to follow the endpoint's name, and quotes no response; the message begins with the URL.
    `retry_after` is the minimum time before the next request, in seconds; 0 if unknown.
    """

    def __init__(self, url: str, what: str, *, retry_after: float = 0.0) -> None:
        super().__init__(f"{url} {what}")
        self.what = what
        self.retry_after = retry_after


class NoAnswer(EndpointUnavailable):
    """Time-out: the endpoint hangs, or the request is more than it can process in time."""


class Endpoint:
    """Connections to one URL, on the event loop of the first call. The key is sent in a header only."""

    def __init__(self, url: str, key: str) -> None:
        self.url = url
        self._headers = {**_UNTOUCHED, "Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._session: aiohttp.ClientSession | None = None

    async def post(self, body: bytes, *, seconds: float, most_bytes: int) -> Reply:
        """Send JSON and return the complete response.

        Raises:
            NoAnswer: time-out.
            EndpointUnavailable: no HTTP response, or an oversized one.
        """
        try:
            async with asyncio.timeout(seconds):
                try:
                    return await self._once(body, most_bytes)
                except (aiohttp.ServerDisconnectedError, ConnectionResetError, BrokenPipeError):
                    # The peer had closed a pooled connection. The request is safe to repeat.
                    return await self._once(body, most_bytes)
        except aiohttp.ConnectionTimeoutError as error:
            raise self._failed(f"cannot be reached (no connection within {_CONNECT_SECONDS:g} s)") from error
        except TimeoutError as error:
            raise NoAnswer(self.url, f"did not answer within {seconds:g} s") from error
        except aiohttp.ClientConnectorError as error:
            why = error.strerror or "no connection"
            if isinstance(error, aiohttp.ClientConnectorCertificateError):
                why = f"its certificate is not trusted: {error.certificate_error}"
            raise self._failed(f"cannot be reached ({why})") from error
        except aiohttp.ClientPayloadError as error:
            raise self._failed("broke off in the middle of its answer") from error
        except (aiohttp.ClientResponseError, HttpProcessingError, ValueError) as error:
            raise self._failed("answers what is no HTTP") from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._failed(f"closed the connection ({type(error).__name__})") from error

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _once(self, body: bytes, most_bytes: int) -> Reply:
        session = self._session
        if session is None:
            session = self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),  # no limit: the callers limit themselves
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
                headers=self._headers,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        # Redirects are not followed: the key and the texts are meant for the configured host only.
        async with session.post(self.url, data=body, allow_redirects=False) as answer:
            if answer.headers.get("Content-Encoding", "identity") != "identity":
                raise self._failed("answers in a compression that it was not asked for")
            read = bytearray()
            async for part in answer.content.iter_chunked(_READ_BYTES):
                read += part
                if len(read) > most_bytes:
                    raise self._failed(f"answers with more than {most_bytes} bytes")
            return Reply(answer.status, bytes(read), seconds_of(answer.headers.get("Retry-After")))

    def _failed(self, what: str) -> EndpointUnavailable:
        return EndpointUnavailable(self.url, what, retry_after=_CONNECT_SECONDS)


class EndpointThread:
    """An endpoint for blocking calls from any thread."""

    def __init__(self, url: str, key: str) -> None:
        self._endpoint = Endpoint(url, key)
        self._lock = threading.Lock()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def post(self, body: bytes, *, seconds: float, most_bytes: int) -> Reply:
        """See `Endpoint.post`; blocks. Raises EndpointUnavailable also after `close`."""
        # Under the lock, so that no call is scheduled after the loop was closed.
        with self._lock:
            if self._closed:
                raise EndpointUnavailable(self._endpoint.url, _STOPPING)
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="embedding-endpoint", daemon=True
                )
                self._thread.start()
            call = self._endpoint.post(body, seconds=seconds, most_bytes=most_bytes)
            reply = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return reply.result()
        except CancelledError:
            raise EndpointUnavailable(self._endpoint.url, _STOPPING) from None

    def close(self) -> None:
        """Cancel requests in progress and close the connections; later calls fail."""
        with self._lock:
            self._closed = True
            loop, thread = self._loop, self._thread
        if loop is None or thread is None or not thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(self._let_go(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    async def _let_go(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._endpoint.close()


def words_of(body: bytes, secret: str) -> str:
    """Return the endpoint's error message, on one printable line without the key; may be empty.

    Only for responses to texts of our own: endpoints quote the request.
    """
    try:
        document = msgspec.json.decode(body, type=_Words)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    inner = document.error.get("message") if isinstance(document.error, dict) else document.error
    words = next((text for text in (inner, document.message, document.detail) if isinstance(text, str)), "")
    if secret:
        words = words.replace(secret, "***")
    return first_words(words)


class _Words(msgspec.Struct):
    """The members in which endpoints report an error: an object with a message, or a text."""

    error: object = None
    message: object = None
    detail: object = None


def first_words(text: str) -> str:
    """Return the beginning of a text, on one line of printable characters."""
    line = " ".join(text.split())[:_MOST_WORDS]
    return "".join(sign if sign.isprintable() else "?" for sign in line)


def seconds_of(header: str | None) -> float | None:
    """Parse `Retry-After`, seconds or a date, into seconds; None if it is malformed or missing."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            moment = parsedate_to_datetime(header)
            moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            seconds = (moment - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError, OverflowError):
            return None
    if not seconds >= 0:  # NaN included
        return 0.0
    return min(seconds, MOST_RETRY_AFTER)
