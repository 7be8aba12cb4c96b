"""One small POST over aiohttp's connections, without its session.

A session prepares every request anew: merged headers, cookies, redirects, a writer and a response of its
own. For a search that is most of what the client costs. Here the bytes are put together once and answered
through aiohttp's own parser, on connections of the session's pool; connecting, TLS and the faults of the
transport stay what they are there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import aiohttp
from aiohttp.client_reqrep import ClientRequest
from yarl import URL

MAX_BODY_BYTES = 64 * 1024
"""A larger body waits for the peer to read, which is the session's work."""


@dataclass(frozen=True, slots=True)
class RawResponse:
    """An HTTP response, read whole. `retry_after` is the header's text."""

    status: int
    content_type: str
    body: bytes
    retry_after: str | None = None

    @property
    def is_success(self) -> bool:
        """Whether its status is one of 2xx."""
        return 200 <= self.status < 300


class Wire:
    """Posts to one host over the pool of `session`."""

    def __init__(self, session: aiohttp.ClientSession, base: URL) -> None:
        if session.connector is None:
            raise RuntimeError("the session is closed")
        self._connector = session.connector
        self._timeout = session.timeout
        # Names the host to the pool; it is never sent.
        self._host = ClientRequest("POST", base, loop=asyncio.get_running_loop(), session=session)
        self._version = f" HTTP/1.1\r\nHost: {self._host.headers['Host']}\r\n"

    async def post(
        self,
        url: URL,
        headers: Mapping[str, str],
        body: bytes,
        read: Callable[[aiohttp.StreamReader], Awaitable[bytes]],
    ) -> RawResponse:
        """Send `body` and read the answer whole with `read`; then the connection goes back to the pool.

        Raises:
            ValueError: a header would break out of its line. Otherwise what aiohttp raises.
        """
        data = self._head(url, headers, len(body)) + body
        try:
            connection = await self._connector.connect(self._host, [], self._timeout)
        except TimeoutError as error:
            raise aiohttp.ConnectionTimeoutError from error
        try:
            answer = await _exchanged(connection, data, read)
        except BaseException:
            connection.close()  # what is left of the answer must not be the next one's
            raise
        connection.release()
        return answer

    def _head(self, url: URL, headers: Mapping[str, str], length: int) -> bytes:
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        if lines.count("\r") + lines.count("\n") != 2 * len(headers):
            raise ValueError("a header holds a line break")
        return f"POST {url.raw_path_qs}{self._version}{lines}Content-Length: {length}\r\n\r\n".encode()


async def _exchanged(
    connection: aiohttp.connector.Connection,
    data: bytes,
    read: Callable[[aiohttp.StreamReader], Awaitable[bytes]],
) -> RawResponse:
    protocol, transport = connection.protocol, connection.transport
    if protocol is None or transport is None:
        raise aiohttp.ServerDisconnectedError
    protocol.set_response_params(read_until_eof=True)
    transport.write(data)
    message, payload = await protocol.read()
    while 100 <= message.code < 200 and message.code != 101:
        message, payload = await protocol.read()
    headers = message.headers
    return RawResponse(
        status=message.code,
        content_type=headers.get("Content-Type", "").partition(";")[0].strip().lower(),
        body=await read(payload),
        retry_after=headers.get("Retry-After"),
    )
