"""Connections on real sockets: which are kept, closed, served or refused, and the log."""

from __future__ import annotations

import asyncio
import logging
import ssl
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from aiohttp import web

from kb_http.certificate import Certificate, trusting
from kb_http.connections import connection_log
from kb_http.limits import ConnectionLimits, is_loopback, owner_of
from tests.support.bare_site import Peer, Site
from tests.support.certificates import Pair, write_pair
from tests.support.eventually import eventually_async
from tests.support.loop_clock import advance_loop, turns
from tests.support.patience import ANSWER_SECONDS

HALF = b"GET / HTTP/1.1\r\nHost: a\r\nX-Half: "


Serve = Callable[..., Awaitable[Site]]
Late = Callable[[Peer], Awaitable[bytes]]


@pytest.fixture
async def late(monkeypatch: pytest.MonkeyPatch) -> Late:
    """Return a function that receives from a peer to its end, while the header time-out passes repeatedly."""
    advance = advance_loop(monkeypatch)

    async def received(peer: Peer) -> bytes:
        ending = asyncio.ensure_future(peer.closed())
        while not ending.done():
            advance(ANSWER_SECONDS)
            await turns(10)
        return await ending

    return received


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Return a function that starts a server with these limits, which apply to every address."""
    async with AsyncExitStack() as stack:

        async def start(
            connections: int = 100, per_address: int = 100, certificate: Certificate | None = None
        ) -> Site:
            site = Site(stack)
            limits = ConnectionLimits(connections, per_address, ANSWER_SECONDS, lambda _: True)
            await site.start(limits, certificate)
            return site

        yield start


@pytest.mark.parametrize("sent", [b"", HALF])
async def test_a_header_that_does_not_end_is_waited_for_some_seconds(
    serve: Serve, late: Late, sent: bytes
) -> None:
    peer = await (await serve()).connect()
    peer.send(sent)
    assert await late(peer) == b""


async def test_the_header_of_a_later_request_has_its_time_too(serve: Serve, late: Late) -> None:
    peer = await (await serve()).connect()
    assert await peer.status_of() == 200
    peer.send(HALF)
    assert await late(peer) == b""


async def test_a_request_that_is_being_answered_has_all_the_time(serve: Serve, late: Late) -> None:
    """A connection that waits for its next request also stays open; further connections are closed."""
    site = await serve()
    idle = await site.connect()
    assert await idle.status_of() == 200
    (peer,) = await site.busy(1)
    half = await site.connect()
    assert await late(half) == b""
    site.release.set()
    assert await peer.response() == (200, "good")
    assert await idle.status_of() == 200


async def test_the_oldest_half_open_connection_gives_way(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kb_http.connections.PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr("kb_http.connections._TURNS", 1)
    site = await serve(connections=4)
    idle = await site.connect()
    assert await idle.status_of() == 200
    (peer,) = await site.busy(1)
    oldest, younger = [await site.connect() for _ in range(2)]
    for half in (oldest, younger):
        half.send(HALF)
    assert await (await site.connect()).status_of() == 200
    assert await oldest.closed() == b""
    site.release.set()
    assert await peer.response() == (200, "good")
    younger.send(b"x\r\n\r\n")
    assert await younger.response() == (200, "good")
    assert await idle.status_of() == 200


async def test_any_number_of_half_open_connections_keeps_nobody_out(serve: Serve) -> None:
    site = await serve(connections=5)
    for _ in range(200):
        (await site.connect()).send(HALF)
    for _ in range(5):
        peer = await site.connect()
        assert await peer.status_of() == 200


async def test_of_idle_connections_the_one_unused_for_longest_gives_way(serve: Serve) -> None:
    """The client finds it closed, and reconnects."""
    site = await serve(connections=2)
    first, second = [await site.connect() for _ in range(2)]
    for peer in (first, second, first):
        assert await peer.status_of() == 200
    assert await (await site.connect()).status_of() == 200
    assert await second.closed() == b""
    assert await first.status_of() == 200


async def test_where_all_are_in_use_a_request_is_refused_and_a_probe_answered(serve: Serve) -> None:
    """Each on a connection that is closed afterwards; once there is room, requests are served again."""
    site = await serve(connections=3)
    peers = await site.busy(3)
    for path, expected in (("/", (503, "no room")), ("/probe", (200, "good"))):
        surplus = await site.connect()
        surplus.request(path)
        assert await surplus.response() == expected
        assert await surplus.closed() == b""
    site.release.set()
    for peer in peers:
        assert await peer.response() == (200, "good")
    assert await (await site.connect()).status_of() == 200


async def test_surplus_connections_are_bounded_too(serve: Serve) -> None:
    site = await serve(connections=1)
    await site.busy(1)
    oldest = await site.connect()
    for _ in range(100):
        await site.connect()
    assert await oldest.closed() == b""
    assert await (await site.connect()).status_of("/probe") == 200


async def test_an_address_at_its_bound_is_refused_and_others_are_served(serve: Serve) -> None:
    """Its own oldest connections are closed for its new ones; connections of other addresses stay open."""
    site = await serve(per_address=2)
    other = await site.connect("127.0.0.2")
    assert await other.status_of() == 200
    half = await site.connect()
    (peer,) = await site.busy(1)
    assert await (await site.connect()).status_of() == 200
    assert await half.closed() == b""
    await site.busy(1)
    assert await (await site.connect()).status_of() == 503
    assert await other.status_of() == 200
    assert await (await site.connect("127.0.0.3")).status_of() == 200
    site.release.set()
    assert await peer.response() == (200, "good")
    assert await (await site.connect()).status_of() == 200


async def test_a_proxys_clients_are_bounded_each_by_its_requests(serve: Serve) -> None:
    """The number of the proxy's connections does not matter; a response frees its place."""
    site = await serve(per_address=10)
    peers = await site.busy(9, "127.0.0.1", "X-Client: 10.0.0.1")
    peers += await site.busy(1, "127.0.0.2", "X-Client: 10.0.0.1")
    assert await (await site.connect("127.0.0.3")).status_of("/", "X-Client: 10.0.0.1") == 503
    assert await (await site.connect("127.0.0.3")).status_of("/", "X-Client: 10.0.0.2") == 200
    site.release.set()
    for peer in peers:
        assert await peer.response() == (200, "good")
    assert await (await site.connect("127.0.0.3")).status_of("/", "X-Client: 10.0.0.1") == 200


async def test_a_client_that_leaves_gives_its_place_back(serve: Serve) -> None:
    site = await serve(connections=2)

    async def places_again() -> bool:
        return await (await site.connect()).status_of() == 200

    for _ in range(20):
        for peer in await site.busy(2):
            peer.close()
        await eventually_async(places_again, what="a place")
    assert await (await site.connect()).status_of() == 200


async def test_connections_that_end_at_once_are_ended_a_few_in_a_turn(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kb_http.connections.AT_ONCE", 3)
    site = await serve()
    for peer in await site.busy(30):
        peer.close()
    async with asyncio.timeout(ANSWER_SECONDS):
        while len(site.cancelled) < 30:
            site.turn += 1
            await asyncio.sleep(0)
    assert max(Counter(site.cancelled).values()) == 3


COUNTED = """
import os, resource, sys
from kb_http.limits import connections_within_descriptors
for soft, hard, wanted in {cases}:
    if os.fork() == 0:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        count = connections_within_descriptors(wanted)
        print(count, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        sys.exit()
    os.wait()
"""
DESCRIPTORS = {
    (1024, 4096, 2000): (2000, 2768),
    (1024, 4096, 4000): (3328, 4096),
    (1024, 1024, 4096): (384, 1024),
    (256, 300, 4096): (22, 300),
    (64, 64, 4096): (1, 64),
    (4096, 4096, 100): (100, 4096),
}
"""Allowed connections and new soft limit, by soft limit, hard limit and wanted connections."""


def test_the_soft_limit_is_raised_and_descriptors_are_kept_for_the_rest() -> None:
    program = COUNTED.format(cases=list(DESCRIPTORS))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    counted = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert dict(zip(DESCRIPTORS, counted, strict=True)) == DESCRIPTORS


def test_a_network_of_ipv6_is_counted_as_one() -> None:
    """A host chooses freely within its IPv6 network; an IPv4 address belongs to one host."""
    assert owner_of("2001:db8::1") == owner_of("2001:db8::ffff:1%eth0") != owner_of("2001:db8:0:1::1")
    assert owner_of("10.0.0.1") == owner_of("::ffff:10.0.0.1") != owner_of("10.0.0.2")
    assert owner_of("no address") == "no address"


def test_loopback_is_known_by_its_form() -> None:
    assert all(is_loopback(name) for name in ("localhost", "127.0.0.1", "127.9.9.9", "::1", "::1%lo"))
    assert not any(is_loopback(name) for name in ("", "unix", "10.0.0.1", "localhost.example"))


POST = b"POST /unread HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
NO_HTTP = {
    "a NUL in a header": POST + b"Authorization: Bearer secret\x00\r\n\r\n",
    "a broken request line": b"GET /?secret HTTP/9.1\r\nHost: a\r\n\r\n",
    "a header without end": POST + b"X: " + b"secret" * 2_000,
    "a URL that is none": b"GET http://[::secret/ HTTP/1.1\r\nHost: a\r\n\r\n",
    "a length and chunks": POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
    "a body that is no gzip": POST + b"Content-Encoding: gzip\r\nContent-Length: 6\r\n\r\nsecret",
}


async def unread(_: web.Request) -> web.Response:
    return web.Response()


async def faulty(_: web.Request) -> web.Response:
    raise LookupError("a real fault")


@pytest.fixture
async def port() -> AsyncIterator[int]:
    app = web.Application()
    app.add_routes([web.post("/unread", unread), web.get("/faulty", faulty)])
    runner = web.AppRunner(app, access_log=None, logger=connection_log())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield runner.addresses[0][1]
    await runner.cleanup()


async def answered(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(ANSWER_SECONDS):
        writer.write(data)
        answer = await reader.read()
        writer.close()
    return answer


@pytest.mark.parametrize("data", NO_HTTP.values(), ids=NO_HTTP)
async def test_bytes_that_are_not_http_are_logged_without_their_content(
    port: int, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    """Logged at info, without a traceback, and without any key or URL of the request."""
    with caplog.at_level(logging.INFO):
        await answered(port, data)
    [record] = caplog.records
    assert (record.levelname, record.exc_info) == ("INFO", None)
    assert record.getMessage().startswith("Refused a request that is not HTTP: ")
    assert "secret" not in caplog.text


async def test_a_fault_of_a_handler_keeps_its_traceback(port: int, caplog: pytest.LogCaptureFixture) -> None:
    answer = await answered(port, b"GET /faulty HTTP/1.1\r\nHost: a\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 500 ")
    [record] = caplog.records
    assert (record.levelname, record.exc_info is not None) == ("ERROR", True)
    assert "LookupError: a real fault" in caplog.text


# --- encrypted ------------------------------------------------------------------------------------


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return write_pair(tmp_path)


async def test_encrypted_connections_are_kept_and_answered_as_others(serve: Serve, pair: Pair) -> None:
    site = await serve(certificate=Certificate(*pair))
    peer = await site.connect(tls=trusting(pair.certificate))
    assert [await peer.status_of() for _ in range(3)] == [200] * 3


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"])
async def test_a_handshake_that_does_not_end_has_the_time_of_a_header(
    serve: Serve, late: Late, pair: Pair, sent: bytes
) -> None:
    """Silence, half of a handshake, and an unencrypted client."""
    site = await serve(certificate=Certificate(*pair))
    peer = await site.connect()
    peer.send(sent)
    assert b"HTTP" not in await late(peer)


async def test_handshakes_that_do_not_end_keep_nobody_out(serve: Serve, pair: Pair) -> None:
    """They count as connections: the oldest are closed first."""
    site = await serve(connections=4, certificate=Certificate(*pair))
    silent = [await site.connect() for _ in range(40)]
    peer = await site.connect(tls=trusting(pair.certificate))
    assert await peer.status_of() == 200
    assert await silent[0].closed() == b""


async def test_a_connection_after_its_handshake_has_the_time_of_a_header(
    serve: Serve, late: Late, pair: Pair
) -> None:
    site = await serve(certificate=Certificate(*pair))
    peer = await site.connect(tls=trusting(pair.certificate))
    peer.send(HALF)
    assert await late(peer) == b""


async def test_a_new_certificate_is_for_new_connections(serve: Serve, pair: Pair) -> None:
    """Existing connections stay open."""
    now = 0.0
    site = await serve(certificate=Certificate(*pair, clock=lambda: now))
    first = trusting(pair.certificate)
    before = await site.connect(tls=first)
    assert await before.status_of() == 200
    write_pair(pair.certificate.parent)
    now = 1.0
    after = await site.connect(tls=trusting(pair.certificate))
    assert await after.status_of() == 200
    assert await before.status_of() == 200
    with pytest.raises(ssl.SSLCertVerificationError):
        await site.connect(tls=first)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
async def test_tls_before_1_2_is_refused(serve: Serve, pair: Pair) -> None:
    site = await serve(certificate=Certificate(*pair))
    old = trusting(pair.certificate)
    old.set_ciphers("DEFAULT@SECLEVEL=0")
    old.minimum_version = ssl.TLSVersion.TLSv1_1
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert await (await site.connect(tls=old)).status_of() == 200
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        await site.connect(tls=old)
