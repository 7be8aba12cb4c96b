"""The upload URL: raw bytes by PUT, once, for the holder of the token."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from kb_server.uploads.routes import routes
from kb_server.uploads.service import Limits, Started, Uploads
from kb_server.uploads.staging import Entry, Lock
from kb_server.uploads.upload import NewUpload, UploadError
from tests.support.eventually import eventually_async
from tests.support.server_fixtures import JumpingClock, ManualClock
from tests.support.simulated_engine import InterruptedEngine, SimulatedEngine, simulated_engine
from tests.support.uploads import sha256

DATA = bytes(range(256)) * 4_096


@dataclass
class Site:
    """A server with only the upload route."""

    uploads: Uploads
    engine: SimulatedEngine
    clock: ManualClock
    home: Path
    base: str
    http: aiohttp.ClientSession

    async def start(self, size: int = len(DATA)) -> Started:
        new = NewUpload("a.pdf", size, ["collection:documents"], "collection:documents")
        return await self.uploads.start(new, "me")

    async def put(self, token: str, data: Any, **headers: str) -> tuple[int, dict[str, Any]]:
        async with self.http.put(f"{self.base}/uploads/{token}", data=data, headers=headers) as response:
            assert response.content_type == "application/json"
            assert ("close" in response.headers.get("Connection", "")) == (response.status >= 400)
            assert not [name for name in response.headers if name.startswith("Access-Control")]
            return response.status, await response.json()

    def staged(self) -> list[str]:
        names = (path.name for path in self.home.rglob("*") if path.is_file() and path.stat().st_size)
        return sorted(name for name in names if not name.startswith(("upload.json", "ledger.json", "token-")))


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    clock = ManualClock()
    async with simulated_engine() as engine, aiohttp.ClientSession() as http:
        client = InterruptedEngine(engine.url, clock=JumpingClock().clock())
        uploads = Uploads(tmp_path, "one", Limits(1 << 21, 1 << 24, 1 << 24, 600.0), client, clock.clock())
        app = web.Application()
        app.add_routes(routes(lambda: uploads))
        server = TestServer(app)
        await server.start_server()
        yield Site(uploads, engine, clock, tmp_path, str(server.make_url("")).rstrip("/"), http)
        await server.close()
        await uploads.close()
        await client.close()


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_a_body_that_is_not_in_its_coding_is_named_as_such(site: Site, coding: str) -> None:
    started = await site.start()
    headers = {"Content-Encoding": coding, "Content-Length": str(len(DATA))}
    status, refused = await site.put(started.token, DATA, **headers)
    assert (status, refused["error"]) == (400, "body_malformed")
    assert f"The body is not {coding}" in refused["message"]
    assert site.staged() == []


async def blocks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


class Halves:
    """A body of two mebibytes, whose second half waits for `go_on`."""

    def __init__(self) -> None:
        self.receiving, self.go_on = asyncio.Event(), asyncio.Event()

    async def body(self) -> AsyncIterator[bytes]:
        yield bytes(1 << 20)
        self.receiving.set()
        await self.go_on.wait()
        yield bytes(1 << 20)


@pytest.mark.parametrize("is_announced", [True, False])
async def test_a_whole_body_is_taken_and_then_finished(site: Site, is_announced: bool) -> None:
    started = await site.start()
    status, answer = await site.put(started.token, DATA if is_announced else blocks(DATA[:5], DATA[5:]))
    assert status == 201
    assert answer["upload_id"] == started.upload.id
    assert answer["received_bytes"] == len(DATA)
    assert "kb_upload_finish" in answer["next"]
    await site.uploads.finish(started.upload.id)
    assert site.engine.journal.files() == [sha256(DATA)]
    assert site.staged() == []


async def test_a_refused_body_of_another_length_ends_its_connection(site: Site) -> None:
    """The rest of a refused body is not read; an accepted body leaves the connection open."""
    for data, connection in ((b"ab", "close"), (b"abc", None)):
        started = await site.start(3)
        async with site.http.put(f"{site.base}/uploads/{started.token}", data=data) as response:
            assert response.status == (201 if connection is None else 409)
            assert response.headers.get("Connection") == connection


async def test_one_whole_body_spends_the_url(site: Site) -> None:
    started = await site.start(3)
    await site.put(started.token, b"abc")
    status, answer = await site.put(started.token, b"xyz")
    assert (status, answer["error"]) == (410, "upload_url_spent")
    await site.uploads.finish(started.upload.id)
    assert site.engine.journal.files() == [sha256(b"abc")]
    assert (await site.put(started.token, b"xyz"))[0] == 409


@pytest.mark.parametrize(
    ("data", "is_announced"),
    [
        *((data, True) for data in (b"", b"ab", b"abcd")),
        *((data, False) for data in (b"ab", b"abcd", b"abc" * 1_000_000)),
    ],
)
async def test_a_body_of_another_length_leaves_nothing(site: Site, data: bytes, is_announced: bool) -> None:
    started = await site.start(3)
    status, answer = await site.put(started.token, data if is_announced else blocks(data))
    assert (status, answer["error"]) == (409, "size_mismatch")
    assert ("the missing bytes" in answer["message"]) is (len(data) < 3)
    if is_announced:
        assert (answer["received_bytes"], answer["total_size"]) == (len(data), 3)
    assert site.staged() == []
    assert (await site.put(started.token, b"abc"))[0] == 201


async def test_a_body_that_breaks_off_leaves_nothing_and_can_be_sent_again(site: Site) -> None:
    started = await site.start()
    host, port = site.base.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = f"PUT /uploads/{started.token} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(DATA)}\r\n\r\n"
    writer.write(head.encode() + DATA[:1_000])
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    status, _ = await eventually_async(
        lambda: site.put(started.token, DATA),
        lambda found: found[1].get("error") != "upload_receiving",
        what="noticing the loss",
    )
    assert status == 201
    assert site.staged() == ["body"]


async def test_two_bodies_at_once_do_not_mix(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    started = await site.start(4)
    loop, receiving, go_on = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    hold = Entry.hold_receiving

    def held(entry: Entry, lock: Lock) -> bool:
        is_held = hold(entry, lock)
        loop.call_soon_threadsafe(receiving.set)
        return is_held

    async def slowly() -> AsyncIterator[bytes]:
        yield b"ab"
        await go_on.wait()
        yield b"cd"

    monkeypatch.setattr(Entry, "hold_receiving", held)
    first = asyncio.create_task(site.put(started.token, slowly()))
    await receiving.wait()
    status, answer = await site.put(started.token, b"wxyz")
    assert (status, answer["error"]) == (409, "upload_receiving")
    for call in (site.uploads.chunk(started.upload.id, 0, "YWJj"), site.uploads.finish(started.upload.id)):
        with pytest.raises(UploadError) as refused:
            await call
        assert refused.value.code == "upload_receiving"
    site.clock.advance(601)
    await site.uploads.sweep()
    site.clock.advance(-601)
    go_on.set()
    assert (await first)[0] == 201
    await site.uploads.finish(started.upload.id)
    assert site.engine.journal.files() == [sha256(b"abcd")]


@pytest.mark.parametrize("token", ["wrong", "A" * 43, "%00", "é", "A" * 5_000])
async def test_an_unknown_token_is_not_found(site: Site, token: str) -> None:
    started = await site.start(3)
    status, answer = await site.put(token, b"abc")
    assert (status, answer["error"]) == (404, "upload_not_found")
    assert token not in str(answer)
    assert (await site.put(started.upload.id, b"abc"))[0] == 404


async def test_time_that_runs_out_on_the_way_ends_it(site: Site) -> None:
    """A slow body does not hold its space forever."""
    started = await site.start(4)
    site.clock.advance(599.8)

    async def drips() -> AsyncIterator[bytes]:
        yield b"ab"
        await asyncio.Event().wait()

    status, _ = await site.put(started.token, drips())
    assert status == 404
    assert site.staged() == []


async def test_delete_aborts_the_upload(site: Site) -> None:
    started = await site.start(6)
    await site.uploads.chunk(started.upload.id, 0, "YWJj")
    async with site.http.delete(f"{site.base}/uploads/{started.token}") as response:
        assert response.status == 200
        assert (await response.json())["upload_id"] == started.upload.id
    assert site.staged() == []
    async with site.http.delete(f"{site.base}/uploads/{started.token}") as response:
        assert (response.status, (await response.json())["error"]) == (404, "upload_not_found")


async def test_a_body_on_its_way_ends_when_its_upload_is_aborted(site: Site) -> None:
    started = await site.start(2 << 20)
    halves = Halves()
    sending = asyncio.create_task(site.put(started.token, halves.body()))
    await halves.receiving.wait()
    await site.uploads.abort(started.upload.id)
    halves.go_on.set()
    status, answer = await sending
    assert (status, answer["error"]) == (404, "upload_not_found")
    assert site.staged() == []


async def test_bodies_that_drip_keep_nobody_out(site: Site) -> None:
    """Nine times two mebibytes of sixteen are announced, but only received bytes count."""
    go_on = asyncio.Event()
    begun = [asyncio.Event() for _ in range(9)]

    async def drips(began: asyncio.Event) -> AsyncIterator[bytes]:
        yield b"x"
        began.set()
        await go_on.wait()

    dripping = [
        asyncio.create_task(site.put((await site.start(1 << 21)).token, drips(each))) for each in begun
    ]
    await asyncio.gather(*(each.wait() for each in begun))
    assert (await site.put((await site.start()).token, DATA))[0] == 201
    go_on.set()
    await asyncio.gather(*dripping)


async def test_a_body_that_outgrows_the_room_is_refused_and_can_be_sent_again(site: Site) -> None:
    site.uploads._limits = replace(site.uploads._limits, staging_bytes=1 << 21)
    started, other = await site.start(2 << 20), await site.start()
    halves = Halves()
    sending = asyncio.create_task(site.put(started.token, halves.body()))
    await halves.receiving.wait()
    assert (await site.put(other.token, DATA))[0] == 201
    halves.go_on.set()
    status, answer = await sending
    assert (status, answer["error"]) == (507, "staging_full")
    await site.uploads.abort(other.upload.id)
    assert site.staged() == []
    assert (await site.put(started.token, blocks(bytes(2 << 20))))[0] == 201


async def test_an_upload_address_accepts_no_other_methods(site: Site) -> None:
    """Preflight requests are refused too; the error names the allowed methods and the likely intent."""
    started = await site.start(3)
    for method in ("GET", "POST", "OPTIONS"):
        async with site.http.request(method, f"{site.base}/uploads/{started.token}", data=b"abc") as response:
            answer = await response.json()
            assert (response.status, answer["error"]) == (405, "method_not_allowed")
            assert response.headers["Allow"] == "PUT, DELETE"
            assert "Send the file with PUT" in answer["message"]
            assert "curl -g -T" in answer["message"]
            assert started.token not in str(answer)
    assert (await site.put(started.token, b"abc"))[0] == 201


async def test_the_token_is_in_no_log(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="kb_server"):
        started = await site.start(3)
        await site.put(started.token, b"ab")
        await site.put(started.token, b"abc")
        await site.uploads.finish(started.upload.id)
    ours = [record for record in caplog.records if record.name.startswith("kb_server")]
    assert all(started.token not in record.getMessage() for record in ours)
