"""One POST to an endpoint and its answer: status and body, or the reason why there is none.

    task   ──▶ Endpoint, pooled connections ──▶ Reply, or EndpointUnavailable
    thread ──▶ EndpointThread, an event loop in a thread of its own ──▶ the same

A thread that waits in a socket cannot be stopped; a task on a loop can. So a hanging endpoint holds up
no shutdown, and a total time holds also for one that sends a byte now and then.
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

MOST_RETRY_AFTER = 300.0
"""Seconds: what an endpoint asks for beyond this is not waited for."""

_CONNECT_SECONDS = 5.0
_READ_BYTES = 64 * 1024
_UNTOUCHED = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "kb-engine"}
_MOST_WORDS = 200
_STOPPING = "is not asked any more: the engine is stopping"


class Reply(NamedTuple):
    """An answer of any status; `retry_after` is in seconds, None where the endpoint names none."""

    status: int
    body: bytes
    retry_after: float | None


class EndpointUnavailable(Exception):
    """No answer of HTTP, one that is too large, or nobody asks any more.

    `what` goes on behind the endpoint's name and quotes nothing of an answer; the message begins with its
    URL. `retry_after` is how many seconds it makes no sense to ask again; 0: nothing is known.
    """

    def __init__(self, url: str, what: str, *, retry_after: float = 0.0) -> None:
        super().__init__(f"{url} {what}")
        self.what = what
        self.retry_after = retry_after


class NoAnswer(EndpointUnavailable):
    """Not in time: the endpoint hangs, or this is more than it can do meanwhile."""


class Endpoint:
    """Connections to one URL, on the event loop of its first call.

    The key goes into a header, and nowhere else.
    """

    def __init__(self, url: str, key: str) -> None:
        self.url = url
        self._headers = {**_UNTOUCHED, "Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._session: aiohttp.ClientSession | None = None

    async def post(self, body: bytes, *, seconds: float, most_bytes: int) -> Reply:
        """Send JSON and wait for the whole answer.

        Raises:
            NoAnswer: not in time.
            EndpointUnavailable: no answer of HTTP, or one that is too large.
        """
        try:
            async with asyncio.timeout(seconds):
                try:
                    return await self._once(body, most_bytes)
                except (aiohttp.ServerDisconnectedError, ConnectionResetError, BrokenPipeError):
                    # The other side had closed a pooled connection. Asking twice does no harm.
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
        """Let the connections go."""
        if self._session is not None:
            await self._session.close()

    async def _once(self, body: bytes, most_bytes: int) -> Reply:
        session = self._session
        if session is None:
            session = self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),  # as many as there are callers
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
                headers=self._headers,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        # A redirect is not followed: the key and the texts are for the host of the setting.
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
    """An endpoint for callers on any thread."""

    def __init__(self, url: str, key: str) -> None:
        self._endpoint = Endpoint(url, key)
        self._lock = threading.Lock()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def post(self, body: bytes, *, seconds: float, most_bytes: int) -> Reply:
        """As that of an `Endpoint`; blocks. Raises EndpointUnavailable also where it was closed."""
        # Under the lock, so that nothing is put on the loop behind what closes it.
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
        """End what is under way and let the connections go; calls after that fail."""
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
    """What an endpoint says went wrong, one line of printable signs without the key; empty where nothing.

    Only for answers to texts of our own: endpoints quote what they were asked.
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
    """Where endpoints put what went wrong: an object with a message, or a text by one of these names."""

    error: object = None
    message: object = None
    detail: object = None


def first_words(text: str) -> str:
    """The beginning of a text in one line of printable signs."""
    line = " ".join(text.split())[:_MOST_WORDS]
    return "".join(sign if sign.isprintable() else "?" for sign in line)


def seconds_of(header: str | None) -> float | None:
    """What `Retry-After` asks for, in seconds or as a date; None where it is neither."""
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
    if not seconds >= 0:  # also what is not a number
        return 0.0
    return min(seconds, MOST_RETRY_AFTER)
