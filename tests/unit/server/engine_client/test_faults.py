"""For any misbehaving peer, the client raises one of its own faults, and within its time-out."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest

from kb_contracts.api import models as m
from kb_contracts.api.operations import CREATE_JOB, GET_STATUS, LIST_JOBS, JobsQuery
from kb_server.engine_client.client import HttpEngine
from kb_server.engine_client.errors import (
    EngineBadAnswer,
    EngineFailed,
    EngineFault,
    EngineTimeout,
    EngineUnreachable,
)
from kb_server.engine_client.port import FileSource
from kb_server.engine_client.transport import RetryPolicy
from tests.support.loop_clock import advance_loop, turns
from tests.support.patience import ANSWER_SECONDS
from tests.support.server_fixtures import JumpingClock
from tests.support.simulated_engine import simulated_engine

Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter
Behaviour = Callable[[Reader, Writer], Awaitable[None]]

ALLOWED = 60.0
"""Read time-out in tests that advance the clock, in seconds; short beside the limit of a whole response."""
JSON = b"Content-Type: application/json\r\n"


@asynccontextmanager
async def misbehaving(behave: Behaviour) -> AsyncIterator[str]:
    """Yield the URL of a TCP server that reads a request's head and then runs `behave`."""

    async def serve(reader: Reader, writer: Writer) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await behave(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client left first, which some tests want
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"


@asynccontextmanager
async def engine_at(
    url: str, *, attempts: int = 2, read_timeout: float = ANSWER_SECONDS
) -> AsyncIterator[HttpEngine]:
    engine = HttpEngine(
        url,
        "key",
        read_timeout=read_timeout,
        policy=RetryPolicy(attempts=attempts),
        clock=JumpingClock().clock(),
    )
    try:
        yield engine
    finally:
        await engine.close()


def after_the_version(behave: Behaviour) -> Behaviour:
    """Respond to the version request, and run `behave` after the head of the next request."""

    async def answers(reader: Reader, writer: Writer) -> None:
        writer.write(response(b"200 OK", b'{"version":"v3.0.0"}'))
        await writer.drain()
        await reader.readuntil(b"\r\n\r\n")
        await behave(reader, writer)

    return answers


def says(raw: bytes) -> Behaviour:
    async def behave(_reader: Reader, writer: Writer) -> None:
        writer.write(raw)
        await writer.drain()

    return behave


def response(status: bytes, body: bytes = b"", head: bytes = JSON) -> bytes:
    return b"HTTP/1.1 " + status + b"\r\n" + head + b"Content-Length: %d\r\n" % len(body) + b"\r\n" + body


@pytest.fixture(autouse=True)
async def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a silent peer advance the loop's clock."""
    Time.advance = advance_loop(monkeypatch)


class Time:
    advance: ClassVar[Callable[[float], None]]


async def keeps_silent(reader: Reader, _writer: Writer) -> None:
    left = asyncio.ensure_future(reader.read())
    await turns()
    while not left.done():
        Time.advance(ANSWER_SECONDS)
        await turns()  # a client that has timed out is gone by then, so its next connection is not affected


async def resets(_reader: Reader, writer: Writer) -> None:
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def in_the_body(behave: Behaviour) -> Behaviour:
    """Send a head and a part of the body first."""

    async def behaves(reader: Reader, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n" + JSON + b"Content-Length: 50\r\n\r\n{")
        await writer.drain()
        await behave(reader, writer)

    return behaves


# Invalid bytes are in `test_http1`; for a complete response, the result depends on its status and body alone:
# see `test_core`.
MISBEHAVIOUR: dict[str, tuple[Behaviour, type[EngineFault]]] = {
    "closes without an answer": (says(b""), EngineUnreachable),
    "resets": (resets, EngineUnreachable),
    "resets in the body": (in_the_body(resets), EngineBadAnswer),
    "keeps silent": (keeps_silent, EngineTimeout),
    "stops in the body": (in_the_body(keeps_silent), EngineTimeout),
    "breaks off in the head": (says(b"HTTP/1.1 200 OK\r\nContent-Le"), EngineUnreachable),
    "truncates the body": (
        says(b"HTTP/1.1 200 OK\r\n" + JSON + b"Content-Length: 50\r\n\r\n{}"),
        EngineBadAnswer,
    ),
    "malformed chunk": (
        says(b"HTTP/1.1 200 OK\r\n" + JSON + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n"),
        EngineBadAnswer,
    ),
    "no HTTP": (says(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), EngineBadAnswer),
    "endless header": (says(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n"), EngineBadAnswer),
    "no content": (says(response(b"204 No Content")), EngineBadAnswer),
    "redirect": (
        says(response(b"302 Found", head=b"Location: http://user:secret@elsewhere/\r\n")),
        EngineBadAnswer,
    ),
}


@pytest.mark.parametrize("name", MISBEHAVIOUR)
async def test_every_misbehaviour_is_one_of_our_faults(name: str) -> None:
    behave, expected = MISBEHAVIOUR[name]
    async with misbehaving(behave) as url, engine_at(url, attempts=1) as engine:
        for call in (
            engine.call(LIST_JOBS, query=JobsQuery()),
            engine.call(CREATE_JOB, body=m.NoteRequest(text="x")),
            engine.call(GET_STATUS),
        ):
            with pytest.raises(EngineFault) as raised:
                await call
            assert type(raised.value) is expected
            assert "secret" not in raised.value.detail
        assert await engine.unready() is not None


@pytest.mark.parametrize("name", MISBEHAVIOUR)
async def test_every_misbehaviour_towards_an_upload_is_one_of_our_faults(name: str) -> None:
    behave, _ = MISBEHAVIOUR[name]
    async with misbehaving(after_the_version(behave)) as url, engine_at(url, attempts=1) as engine:
        with pytest.raises(EngineFault):
            await engine.send_file(FileSource("a.bin", 1 << 20, zeros), m.FileFields())


async def zeros() -> AsyncIterator[bytes]:
    for _ in range(16):
        yield bytes(1 << 16)


async def test_an_engine_that_stops_reading_is_a_timeout() -> None:
    """The read time-out also applies while the body is sent, if the socket's buffers are full."""
    held = asyncio.Event()

    async def reads_no_more(_reader: Reader, _writer: Writer) -> None:
        while not held.is_set():
            await turns()
            Time.advance(ANSWER_SECONDS)

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield bytes(1 << 20)

    async with misbehaving(after_the_version(reads_no_more)) as url, engine_at(url) as engine:
        with pytest.raises(EngineTimeout):
            await engine.send_file(FileSource("a.bin", 64 << 20, endless), m.FileFields())
        held.set()


async def test_an_upload_may_take_longer_than_the_silence_while_it_moves() -> None:
    async def drips() -> AsyncIterator[bytes]:
        for _ in range(6):
            Time.advance(0.3 * ALLOWED)
            await turns()
            yield b"x"
            await turns()

    async def accepts(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"--\r\n")
        writer.write(response(b"500 Enough"))
        await writer.drain()

    async with misbehaving(after_the_version(accepts)) as url, engine_at(url, read_timeout=ALLOWED) as engine:
        with pytest.raises(EngineFailed):
            await engine.send_file(FileSource("a.bin", 6, drips), m.FileFields())


async def test_an_answer_may_take_longer_than_the_silence_while_it_arrives() -> None:
    body = b'{"jobs":[],"total":0,"limit":1,"offset":0}'

    async def dripping(_reader: Reader, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n" + JSON + b"Content-Length: %d\r\n\r\n" % len(body))
        for start in range(0, len(body), 8):
            writer.write(body[start : start + 8])
            await writer.drain()
            await turns()
            Time.advance(0.3 * ALLOWED)
            await turns()

    async with (
        misbehaving(after_the_version(dripping)) as url,
        engine_at(url, read_timeout=ALLOWED) as engine,
    ):
        assert (await engine.call(LIST_JOBS, query=JobsQuery())).total == 0


@pytest.mark.parametrize(
    ("fault", "words"),
    [(OSError(5, "Input/output error"), "Input/output error"), (None, "1 bytes instead of 2")],
)
async def test_a_file_that_does_not_come_whole_is_our_own_fault(fault: OSError | None, words: str) -> None:
    """The upload is never completed with a part of the file."""

    async def broken() -> AsyncIterator[bytes]:
        yield b"x"
        if fault is not None:
            raise fault

    async with misbehaving(after_the_version(keeps_silent)) as url, engine_at(url) as engine:
        with pytest.raises(OSError, match=words):
            await engine.send_file(FileSource("a.bin", 2, broken), m.FileFields())


async def test_a_closed_port_is_an_unreachable_engine() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with engine_at(f"http://user:secret@127.0.0.1:{port}/?token=secret") as engine:
        with pytest.raises(EngineUnreachable) as raised:
            await engine.call(LIST_JOBS, query=JobsQuery())
    assert raised.value.url == f"http://127.0.0.1:{port}"
    assert "refused" in raised.value.detail


async def test_a_host_without_a_name_is_unreachable() -> None:
    """A DNS failure counts like a refused connection."""
    async with engine_at("http://engine.invalid:8000") as engine:
        with pytest.raises(EngineUnreachable, match="host name"):
            await engine.call(LIST_JOBS, query=JobsQuery())


async def test_a_port_that_speaks_no_tls_is_unreachable() -> None:
    async with simulated_engine() as plain, engine_at(plain.url.replace("http:", "https:")) as engine:
        with pytest.raises(EngineUnreachable, match="TLS"):
            await engine.call(LIST_JOBS, query=JobsQuery())


def at_once(behave: Behaviour) -> Behaviour:
    return behave


@pytest.mark.parametrize("when", [after_the_version, at_once])
async def test_a_cancelled_call_is_a_cancelled_call_and_frees_its_connection(
    when: Callable[[Behaviour], Behaviour],
) -> None:
    """Also while it waits for the version."""
    asked, freed = asyncio.Event(), asyncio.Event()

    async def waits(reader: Reader, _writer: Writer) -> None:
        asked.set()
        try:
            await reader.read()
        finally:
            freed.set()

    async with misbehaving(when(waits)) as url, engine_at(url) as engine:
        call = asyncio.create_task(engine.call(LIST_JOBS, query=JobsQuery()))
        await asked.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(freed.wait(), ANSWER_SECONDS)
