"""Kept connections: reuse for further requests, retries of requests, and closing."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from yarl import URL

from kb_contracts.api.operations import GET_STATUS, AnyOperation
from kb_server.engine_client.errors import EngineBadAnswer, EngineTimeout, EngineUnreachable
from kb_server.engine_client.http1 import BodyStream
from kb_server.engine_client.transport import SILENT_SECONDS, Addresses, EngineRequest, Pool
from kb_server.waiting import Clock
from tests.support.certificates import self_signed
from tests.support.eventually import eventually_async
from tests.support.loop_clock import advance_loop, turns
from tests.support.patience import ANSWER_SECONDS, SILENCE

Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter

TRANSPORT = "kb_server.engine_client.transport"
HTTP1 = "kb_server.engine_client.http1"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK"


@dataclass
class Peer:
    """A server that responds with `answers`; `connections` counts its connections."""

    answers: Callable[[Reader, Writer], Awaitable[None]]
    port: int = 0
    connections: int = 0
    open: set[Writer] = field(default_factory=set)
    heads: list[bytes] = field(default_factory=list)

    def has_heads(self, count: int) -> bool:
        return len(self.heads) == count

    async def serve(self, reader: Reader, writer: Writer) -> None:
        self.connections += 1
        self.open.add(writer)
        try:
            while True:
                self.heads.append(await reader.readuntil(b"\r\n\r\n"))
                await self.answers(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client left, or this peer did
        finally:
            self.open.discard(writer)
            writer.close()


@asynccontextmanager
async def peer(
    answers: Callable[[Reader, Writer], Awaitable[None]], tls: ssl.SSLContext | None = None
) -> AsyncIterator[Peer]:
    made = Peer(answers)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, ssl=tls)
    async with server:
        made.port = server.sockets[0].getsockname()[1]
        yield made
        for writer in made.open:
            writer.close()


@asynccontextmanager
async def pool_to(
    made: Peer, lost: Callable[[], None] = lambda: None, scheme: str = "http"
) -> AsyncIterator[Pool]:
    pool = Pool(URL(f"{scheme}://127.0.0.1:{made.port}"), lost=lost)
    try:
        yield pool
    finally:
        await pool.close()


@dataclass
class Question(EngineRequest):
    operation: AnyOperation = GET_STATUS
    lines: bytes = b"GET / HTTP/1.1\r\n\r\n"
    read_timeout: float = 10 * ANSWER_SECONDS
    blocks: Callable[[], AsyncGenerator[bytes, None]] | None = None

    def rest(self) -> AsyncGenerator[bytes, None] | None:
        return None if self.blocks is None else self.blocks()


async def ok(_reader: Reader, writer: Writer) -> None:
    writer.write(OK)
    await writer.drain()


async def silent(reader: Reader, _writer: Writer) -> None:
    await reader.read()


class TestReuse:
    async def test_one_connection_carries_one_request_after_another(self) -> None:
        async with peer(ok) as made, pool_to(made) as pool:
            for _ in range(3):
                assert (await pool.exchange(Question())).body == b"OK"
            assert made.connections == 1

    async def test_requests_at_once_have_connections_of_their_own(self) -> None:
        met = asyncio.Barrier(3)

        async def together(_reader: Reader, writer: Writer) -> None:
            await met.wait()
            writer.write(OK)

        async with peer(together) as made, pool_to(made) as pool:
            await asyncio.gather(*(pool.exchange(Question()) for _ in range(3)))
            assert made.connections == 3

    @pytest.mark.parametrize(
        "answer",
        [
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nOK",
            b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nOK",
            OK + OK,
            OK + b"surplus",
        ],
    )
    async def test_a_connection_that_holds_more_or_is_to_end_carries_no_other_request(
        self, answer: bytes
    ) -> None:
        async def answers(_reader: Reader, writer: Writer) -> None:
            writer.write(answer)

        async with peer(answers) as made, pool_to(made) as pool:
            for _ in range(2):
                assert (await pool.exchange(Question())).body == b"OK"
            assert made.connections == 2

    async def test_an_answer_nobody_asked_for_closes_its_connection(self) -> None:
        async with peer(ok) as made, pool_to(made) as pool:
            await pool.exchange(Question())
            (writer,) = made.open
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nFAKE")
            await eventually_async(lambda: not made.open, what="the end of the connection")
            assert (await pool.exchange(Question())).body == b"OK"

    async def test_an_idle_connection_is_not_kept_for_ever(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(f"{HTTP1}._IDLE_SECONDS", 0.01)
        async with peer(ok) as made, pool_to(made) as pool:
            await pool.exchange(Question())
            await eventually_async(lambda: not made.open, what="the end of the connection")

    async def test_connections_closed_by_the_peer_are_not_reused(self) -> None:
        lost: list[str] = []
        async with peer(ok) as made, pool_to(made, lambda: lost.append("lost")) as pool:
            await pool.exchange(Question())
            made.open.pop().close()
            await eventually_async(lambda: not pool._idle, what="the pool's knowledge")
            await pool.exchange(Question())
        assert lost == []

    async def test_only_so_many_are_open_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(f"{TRANSPORT}._CONNECTIONS", 2)
        async with peer(ok) as made, pool_to(made) as pool:
            await asyncio.gather(*(pool.exchange(Question()) for _ in range(9)))
            assert made.connections <= 2

    async def test_waiting_for_one_is_bounded_by_the_silence(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(f"{TRANSPORT}._CONNECTIONS", 1)
        async with peer(silent) as made, pool_to(made) as pool:
            long = asyncio.create_task(pool.exchange(Question()))
            await eventually_async(lambda: made.heads, what="the first request")
            with pytest.raises(EngineTimeout, match="All 1 connections"):
                await pool.exchange(Question(read_timeout=SILENCE))
            long.cancel()
            await asyncio.wait([long])

    async def test_closing_the_pool_fails_pending_and_later_requests(self) -> None:
        async with peer(silent) as made, pool_to(made) as pool:
            asked = asyncio.create_task(pool.exchange(Question()))
            await eventually_async(lambda: made.heads, what="the request")
            await pool.close()
            with pytest.raises(EngineUnreachable):
                await asked
            with pytest.raises(EngineUnreachable, match="closed"):
                await pool.exchange(Question())


class TestSendingTwice:
    async def test_a_kept_connection_that_ends_without_a_byte_is_replaced_once(self) -> None:
        lost: list[str] = []

        async def once(_reader: Reader, writer: Writer) -> None:
            if len(made.heads) == 2:
                raise ConnectionResetError
            writer.write(OK)

        async with peer(once) as made, pool_to(made, lambda: lost.append("lost")) as pool:
            for _ in range(2):
                assert (await pool.exchange(Question())).body == b"OK"
            assert (made.connections, len(made.heads), lost) == (2, 3, ["lost"])

    async def test_a_new_connection_that_ends_is_not(self) -> None:
        async def leaves(_reader: Reader, _writer: Writer) -> None:
            raise ConnectionResetError

        async with peer(leaves) as made, pool_to(made) as pool:
            with pytest.raises(EngineUnreachable, match="without a response"):
                await pool.exchange(Question())
            assert made.connections == 1

    async def test_after_the_first_byte_it_is_not_sent_again(self) -> None:
        async def breaks_off(_reader: Reader, writer: Writer) -> None:
            if len(made.heads) == 2:
                writer.write(b"H")
                raise ConnectionResetError
            writer.write(OK)

        async with peer(breaks_off) as made, pool_to(made) as pool:
            await pool.exchange(Question())
            with pytest.raises(EngineUnreachable):
                await pool.exchange(Question())
            assert len(made.heads) == 2


class TestBodies:
    async def test_a_body_is_sent_block_by_block_and_its_connection_kept(self) -> None:
        async def blocks() -> AsyncGenerator[bytes, None]:
            for _ in range(40):
                yield b"x" * 50_000

        async def takes(reader: Reader, writer: Writer) -> None:
            await reader.readexactly(2_000_000)
            writer.write(OK)

        async with peer(takes) as made, pool_to(made) as pool:
            for _ in range(2):
                assert (await pool.exchange(Question(blocks=blocks))).body == b"OK"
            assert made.connections == 1

    async def test_an_answer_before_all_is_sent_is_the_answer(self) -> None:
        """The connection, with half a request on it, is closed."""
        ended = asyncio.Event()

        async def endless() -> AsyncGenerator[bytes, None]:
            try:
                while True:
                    yield bytes(1 << 20)
            finally:
                ended.set()

        async with peer(ok) as made, pool_to(made) as pool:
            assert (await pool.exchange(Question(blocks=endless))).body == b"OK"
            assert ended.is_set()
            await eventually_async(lambda: not made.open, what="the end of the connection")

    async def test_a_peer_that_does_not_read_is_not_read_for(self) -> None:
        """Data to send stays within the socket's buffers and one block."""
        taken = 0

        async def counted() -> AsyncGenerator[bytes, None]:
            nonlocal taken
            while True:
                taken += 1
                yield bytes(1 << 20)

        held = asyncio.Event()

        async def reads_not(_reader: Reader, writer: Writer) -> None:
            if len(made.heads) == 1:
                writer.write(OK)
                return
            await held.wait()
            raise ConnectionResetError

        async with peer(reads_not) as made, pool_to(made) as pool:
            await pool.exchange(Question())  # connecting has its own time-out
            with pytest.raises(EngineTimeout):
                await pool.exchange(Question(blocks=counted, read_timeout=SILENCE))
            held.set()
        assert taken < 16

    async def test_a_source_that_hangs_does_not_hide_the_answer(self) -> None:
        async def hangs() -> AsyncGenerator[bytes, None]:
            yield b"x"
            await asyncio.Event().wait()

        async with peer(ok) as made, pool_to(made) as pool:
            assert (await pool.exchange(Question(blocks=hangs))).body == b"OK"


class TestTime:
    @pytest.mark.parametrize(
        ("head", "drop", "words"),
        [
            (b"", b"HTTP/1.1 100 Continue\r\n\r\n", "sent no data"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b".", "was incomplete after"),
        ],
        ids=["the head is silence", "the body ends all the same"],
    )
    async def test_a_response_that_drips_is_a_timeout(
        self, monkeypatch: pytest.MonkeyPatch, head: bytes, drop: bytes, words: str
    ) -> None:
        advance = advance_loop(monkeypatch)
        monkeypatch.setattr(f"{HTTP1}.ANSWER_SECONDS", 10 * ANSWER_SECONDS)

        async def drips(_reader: Reader, writer: Writer) -> None:
            writer.write(head)
            while True:
                writer.write(drop)
                await writer.drain()
                await turns(10)
                advance(ANSWER_SECONDS / 2)

        async with peer(drips) as made, pool_to(made) as pool:
            with pytest.raises(EngineTimeout, match=words):
                await pool.exchange(Question(read_timeout=ANSWER_SECONDS))

    async def test_a_short_silence_counts_on_a_connection_that_waited_longer(self) -> None:
        """Its timer was set for a later moment."""

        async def first_only(reader: Reader, writer: Writer) -> None:
            if len(made.heads) > 1:
                await reader.read()
            writer.write(OK)

        async with peer(first_only) as made, pool_to(made) as pool:
            await pool.exchange(Question(read_timeout=ANSWER_SECONDS))
            with pytest.raises(EngineTimeout):
                await pool.exchange(Question(read_timeout=SILENCE))


class TestTls:
    @pytest.fixture
    def tls(self, tmp_path: Path) -> ssl.SSLContext:
        path = tmp_path / "own.pem"
        path.write_bytes(self_signed())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context

    async def test_a_trusted_certificate_is_spoken_with(
        self, tls: ssl.SSLContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "own.pem"))
        async with peer(ok, tls) as made, pool_to(made, scheme="https") as pool:
            for _ in range(2):
                assert (await pool.exchange(Question())).body == b"OK"
            assert made.connections == 1

    async def test_any_other_is_not(self, tls: ssl.SSLContext) -> None:
        async with peer(ok, tls) as made, pool_to(made, scheme="https") as pool:
            with pytest.raises(EngineUnreachable, match="TLS failed"):
                await pool.exchange(Question())


async def unavailable(_reader: Reader, writer: Writer) -> None:
    writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")


async def breaks_off(_reader: Reader, writer: Writer) -> None:
    writer.write(OK[:-1])
    raise ConnectionResetError


async def leaves(_reader: Reader, _writer: Writer) -> None:
    raise ConnectionResetError


def request(stream: BodyStream | None = None) -> Question:
    return Question(lines=b"GET /search HTTP/1.1\r\nHost: first\r\n\r\n", stream=stream)


@asynccontextmanager
async def addresses_of(*peers: Peer, sleep: Callable[[float], Awaitable[None]]) -> AsyncIterator[Addresses]:
    bases = [URL(f"http://127.0.0.1:{made.port}") for made in peers]
    pools = {base: Pool(base, lost=lambda: None) for base in bases}
    made = Addresses(pools, clock=Clock(sleep=sleep), jitter=lambda: 1.0, lost=lambda: None)
    try:
        yield made
    finally:
        await made.close()


async def long_pause(_seconds: float) -> None:
    await asyncio.Event().wait()


class TestSeveralAddresses:
    async def test_the_address_with_the_fewest_requests_is_chosen_and_named(self) -> None:
        free = asyncio.Event()

        async def held(_reader: Reader, writer: Writer) -> None:
            await free.wait()
            writer.write(OK)

        async with peer(held) as slow, peer(ok) as quick, addresses_of(slow, quick, sleep=long_pause) as both:
            waiting = asyncio.create_task(both.exchange(request()))
            await eventually_async(lambda: slow.heads, what="the first request")
            for _ in range(3):
                await both.exchange(request())
            free.set()
            await waiting
            assert (len(slow.heads), len(quick.heads)) == (1, 3)
            assert f"\r\nHost: 127.0.0.1:{quick.port}\r\n".encode() in quick.heads[0]

    @pytest.mark.parametrize("fault", [leaves, unavailable, breaks_off])
    async def test_a_request_goes_on_to_another_address_and_the_failed_one_is_left_out(
        self, fault: Callable[[Reader, Writer], Awaitable[None]]
    ) -> None:
        async with peer(fault) as bad, peer(ok) as good, addresses_of(bad, good, sleep=long_pause) as both:
            for _ in range(3):
                assert (await both.exchange(request())).body == b"OK"
            assert (len(bad.heads), len(good.heads)) == (1, 3)

    async def test_an_address_is_used_again_once_its_health_check_succeeds(self) -> None:
        answers, pauses, is_due = [unavailable, unavailable, unavailable], list[float](), asyncio.Semaphore(0)

        async def recovers(reader: Reader, writer: Writer) -> None:
            await (answers.pop() if answers else ok)(reader, writer)

        async def sleep(seconds: float) -> None:
            if seconds == SILENT_SECONDS:
                await long_pause(seconds)
            pauses.append(seconds)
            await is_due.acquire()

        async with peer(recovers) as away, peer(ok) as other, addresses_of(away, other, sleep=sleep) as both:
            await both.exchange(request())
            for asked in (2, 3, 4):
                is_due.release()
                await eventually_async(partial(away.has_heads, asked), what="a health check")
            assert pauses == [0.2, 0.4, 0.8]
            assert away.heads[-1].startswith(b"GET /readyz HTTP/1.1\r\n")
            await eventually_async(lambda: both._all[0].checking is None, what="the address is ready")
            await both.exchange(request())
            assert not away.heads[-1].startswith(b"GET /readyz")

    async def test_requests_leave_an_address_that_falls_silent_unless_its_process_lives_or_all_are_away(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Requests that wait on all connections do not delay the check."""
        advance = advance_loop(monkeypatch)
        monkeypatch.setattr(f"{TRANSPORT}.SILENT_SECONDS", ANSWER_SECONDS)
        monkeypatch.setattr(f"{TRANSPORT}._CONNECTIONS", 2)
        is_due, lives, is_ready = asyncio.Semaphore(0), True, True

        async def sleep(seconds: float) -> None:
            await (is_due.acquire() if seconds == ANSWER_SECONDS else long_pause(seconds))

        async def falls_silent(reader: Reader, writer: Writer) -> None:
            first = len(stopped.heads) == 1
            alive = lives and stopped.heads[-1].startswith(b"GET /healthz HTTP/1.1\r\n")
            await (ok if first or alive else silent)(reader, writer)

        async def may_be_ready(reader: Reader, writer: Writer) -> None:
            await (ok if is_ready else unavailable)(reader, writer)

        async with (
            peer(falls_silent) as stopped,
            peer(may_be_ready) as other,
            addresses_of(stopped, other, sleep=sleep) as both,
        ):
            for _ in range(2):
                await both.exchange(request())
            waiting = [asyncio.create_task(both.exchange(request()))]
            await eventually_async(partial(stopped.has_heads, 2), what="the request")
            is_ready = False
            waiting.append(asyncio.create_task(both.exchange(request())))
            await eventually_async(partial(stopped.has_heads, 3), what="the request of the other address")
            for _ in both._all:
                is_due.release()  # there was a response
            for lives in (True, False):
                is_due.release()
                await eventually_async(partial(stopped.has_heads, 5 - lives), what="a health check")
            advance(ANSWER_SECONDS + 1)
            await eventually_async(lambda: both._all[0].checking is not None, what="the end of the check")
            await turns(20)
            assert not any(each.done() for each in waiting)
            is_ready = True
            await both.exchange(request())
            is_due.release()
            await eventually_async(partial(stopped.has_heads, 6), what="a health check")
            advance(ANSWER_SECONDS + 1)
            assert (await waiting[0]).body == b"OK"
            with pytest.raises(EngineUnreachable):  # the other address was tried before
                await waiting[1]
            await both.exchange(request())
            assert (len(stopped.heads), len(other.heads)) == (6, 5)

    async def test_the_fault_is_raised_when_all_addresses_are_away(self) -> None:
        async with peer(leaves) as one, peer(leaves) as two, addresses_of(one, two, sleep=long_pause) as both:
            for tried in (1, 2):
                with pytest.raises(EngineUnreachable) as raised:
                    await both.exchange(request())
                assert raised.value.url == f"http://127.0.0.1:{one.port}, http://127.0.0.1:{two.port}"
                assert len(one.heads) == len(two.heads) == tried

    async def test_closing_ends_what_is_on_its_way_and_checks_no_address(self) -> None:
        async with (
            peer(silent) as first,
            peer(ok) as other,
            addresses_of(first, other, sleep=long_pause) as both,
        ):
            waiting = asyncio.create_task(both.exchange(request()))
            await eventually_async(lambda: first.heads, what="the request")
            await both.close()
            with pytest.raises(EngineUnreachable):
                await waiting
            assert not other.heads
            assert [one.checking for one in both._all] == [None, None]

    async def test_a_silent_or_half_streamed_response_is_not_requested_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        advance = advance_loop(monkeypatch)
        streamed = b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 2\r\n\r\nO"

        async def half(_reader: Reader, writer: Writer) -> None:
            writer.write(streamed)
            raise ConnectionResetError

        async with peer(half) as bad, peer(ok) as good, addresses_of(bad, good, sleep=long_pause) as both:
            with pytest.raises(EngineBadAnswer, match="broke off"):
                await both.exchange(request(BodyStream("a/b")))
        async with peer(silent) as bad, peer(ok) as good, addresses_of(bad, good, sleep=long_pause) as both:
            asked = asyncio.create_task(both.exchange(request()))
            await eventually_async(lambda: bad.heads, what="the request")
            advance(Question.read_timeout + 1)
            with pytest.raises(EngineTimeout):
                await asked
            await both.exchange(request())
            assert (len(bad.heads), len(good.heads)) == (1, 1)
