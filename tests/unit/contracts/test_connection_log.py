"""The log of connections, over a raw socket: bytes that are no HTTP fill no log, real faults are told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from kb_contracts.http.connections import connection_log

HEAD = b"POST /unread HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
NO_HTTP = {
    "a NUL in a header": HEAD + b"Authorization: Bearer secret\x00\r\n\r\n",
    "a broken request line": b"GET /?secret HTTP/9.1\r\nHost: a\r\n\r\n",
    "a header without end": HEAD + b"X: " + b"secret" * 2_000,
    "a URL that is none": b"GET http://[::secret/ HTTP/1.1\r\nHost: a\r\n\r\n",
    "a length and chunks": HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
    "a body that is no gzip": HEAD + b"Content-Encoding: gzip\r\nContent-Length: 6\r\n\r\nsecret",
}


async def unread(_: web.Request) -> web.Response:
    """An answer that does not wait for the body."""
    return web.Response()


async def faulty(_: web.Request) -> web.Response:
    """A fault of ours."""
    raise LookupError("a real fault")


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """Where an application listens that logs its connections so."""
    app = web.Application()
    app.add_routes([web.post("/unread", unread), web.get("/faulty", faulty)])
    runner = web.AppRunner(app, access_log=None, logger=connection_log())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield runner.addresses[0][1]
    await runner.cleanup()


async def answered(port: int, data: bytes) -> bytes:
    """What comes back for these bytes until the connection is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(10):
        writer.write(data)
        answer = await reader.read()
        writer.close()
    return answer


@pytest.mark.parametrize("data", NO_HTTP.values(), ids=NO_HTTP)
async def test_what_is_no_http_is_one_line_without_what_was_sent(
    port: int, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    """At info, without a traceback, and without the key or the URL that may have been in it."""
    with caplog.at_level(logging.INFO):
        await answered(port, data)
    [record] = caplog.records
    assert (record.levelname, record.exc_info) == ("INFO", None)
    assert record.getMessage().startswith("Refused a request that is not HTTP: ")
    assert "secret" not in caplog.text


async def test_a_fault_of_a_handler_keeps_its_traceback(port: int, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing else is taken out of the log."""
    answer = await answered(port, b"GET /faulty HTTP/1.1\r\nHost: a\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 500 ")
    [record] = caplog.records
    assert (record.levelname, record.exc_info is not None) == ("ERROR", True)
    assert "LookupError: a real fault" in caplog.text
