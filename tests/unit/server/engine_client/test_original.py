"""Download of a file from the engine: in blocks, with bounded memory, and an error if incomplete."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from kb_contracts.api import models as m
from kb_contracts.api.content import OCTETS
from kb_contracts.api.operations import GET_DOCUMENT, LIST_DOCUMENTS, WITHOUT_CHUNKS
from kb_server.engine_client.client import HttpEngine
from kb_server.engine_client.errors import EngineBadAnswer, EngineFault, EngineTimeout, Refused
from kb_server.engine_client.http1 import MAX_ANSWER_BYTES, MAX_WAITING_BYTES
from kb_server.engine_client.port import FileSource
from kb_simulator import Simulator, SimulatorSettings
from tests.support.contract_objects import document_with
from tests.support.eventually import eventually_async
from tests.support.loop_clock import advance_loop
from tests.support.patience import ANSWER_SECONDS

BLOCK = b"x" * 65_536
Serve = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture
async def engine() -> AsyncIterator[HttpEngine]:
    """A client of a simulator that keeps files."""
    async with Simulator(SimulatorSettings(port=0, keep_originals=True)) as simulator:
        client = HttpEngine(simulator.url)
        yield client
        await client.close()


async def once(data: bytes) -> AsyncGenerator[bytes, None]:
    yield data


async def test_a_file_comes_back_and_its_connection_serves_on(engine: HttpEngine) -> None:
    data = bytes(range(32, 127)) * 4_000
    job = await engine.send_file(FileSource("a.txt", len(data), lambda: once(data)), m.FileFields())
    job = await engine.wait_for_job(job.id, ANSWER_SECONDS)
    stored = await engine.call(GET_DOCUMENT, path={"document_id": job.document_id}, query=WITHOUT_CHUNKS)
    for _ in range(3):
        async with engine.original(stored) as content:
            assert (content.filename, content.size) == ("a.txt", len(data))
            assert b"".join([block async for block in content.blocks]) == data
        assert (await engine.call(LIST_DOCUMENTS)).total == 1


async def test_a_missing_original_is_a_refusal(engine: HttpEngine) -> None:
    async with engine.original(document_with()) as content:
        with pytest.raises(Refused) as caught:
            await anext(content.blocks)
    assert caught.value.reason == "document_not_found"


@asynccontextmanager
async def answering(serve: Serve, read_timeout: float = ANSWER_SECONDS) -> AsyncIterator[HttpEngine]:
    async def status(_request: web.Request) -> web.Response:
        return web.json_response({"version": "v3.0.0"})

    app = web.Application()
    app.router.add_get("/api/v1/status", status)
    app.router.add_get("/api/v1/documents/1/original", serve)
    async with TestServer(app) as server:
        client = HttpEngine(str(server.make_url("")), read_timeout=read_timeout)
        yield client
        await client.close()


async def test_an_unread_original_does_not_accumulate_in_memory() -> None:
    """The engine is slowed down: a file may be larger than the limit of a response."""
    sent = 0
    blocks = MAX_ANSWER_BYTES // len(BLOCK) + 10

    async def many() -> AsyncGenerator[bytes, None]:
        nonlocal sent
        for _ in range(blocks):
            sent += len(BLOCK)
            yield BLOCK

    async def serve(_request: web.Request) -> web.Response:
        return web.Response(body=many(), content_type=OCTETS)

    async with answering(serve) as engine, engine.original(document_with()) as content:
        received = len(await anext(content.blocks))
        seen: list[int] = []

        def is_held_up() -> bool:
            seen.append(sent)
            return len(seen) > 10 and seen[-10] == sent

        await eventually_async(is_held_up, what="a sender that waits")
        assert sent < MAX_WAITING_BYTES + 16 * 1024 * 1024  # plus the socket buffers of both sides
        async for block in content.blocks:
            received += len(block)
        assert received == sent == blocks * len(BLOCK)


async def test_leaving_early_ends_the_transfer_of_the_original() -> None:
    ended = asyncio.Event()

    async def endless() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield BLOCK
        finally:
            ended.set()

    async def serve(_request: web.Request) -> web.Response:
        return web.Response(body=endless(), content_type=OCTETS)

    async with answering(serve) as engine:
        async with engine.original(document_with()) as content:
            await anext(content.blocks)
        async with asyncio.timeout(ANSWER_SECONDS):
            await ended.wait()


@pytest.mark.parametrize(
    ("length", "body", "media_type", "fault"),
    [("10", b"four", OCTETS, EngineBadAnswer), ("4", b"four", "text/html", EngineBadAnswer)],
    ids=["cut", "no file"],
)
async def test_a_truncated_or_mistyped_original_is_a_fault(
    length: str, body: bytes, media_type: str, fault: type[EngineFault]
) -> None:
    async def serve(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": length, "Content-Type": media_type})
        await response.prepare(request)
        await response.write(body)
        assert request.transport is not None
        request.transport.close()
        return response

    async with answering(serve) as engine, engine.original(document_with()) as content:
        with pytest.raises(fault):
            assert [block async for block in content.blocks] == [body]


async def test_an_engine_that_falls_silent_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = advance_loop(monkeypatch)

    async def serve(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "10", "Content-Type": OCTETS})
        await response.prepare(request)
        await response.write(b"four")
        await asyncio.Event().wait()
        return response

    async with answering(serve) as engine, engine.original(document_with()) as content:
        assert await anext(content.blocks) == b"four"
        advance(ANSWER_SECONDS)
        with pytest.raises(EngineTimeout):
            await anext(content.blocks)
