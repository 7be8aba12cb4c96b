"""Every effect is carried out on the socket itself: what the caller's side of the connection sees."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from kb_contracts.api.errors import ERRORS, PROBLEM_JSON
from kb_simulator.determinism import ClockMode
from kb_simulator.harness.faults import (
    ContentLength,
    Drip,
    Fixed,
    HttpStatus,
    Latency,
    RateLimit,
    ResetAfter,
    Status,
)
from tests.unit.simulator.running import API, Running

QUERY = {"query": "granite"}


def parted(received: bytes) -> tuple[bytes, bytes]:
    """Headers and body."""
    head, _, body = received.partition(b"\r\n\r\n")
    return head, body


@pytest.fixture
async def true_body(running: Running) -> bytes:
    """What an undisturbed search answers, of a base with one note in it."""
    await running.note("granite quarry")
    return (await running.search("granite")).content


async def test_without_a_fault_the_answer_is_whole(running: Running, true_body: bytes) -> None:
    """The measure of all that follows."""
    received, reset = await running.raw(QUERY)
    assert (parted(received)[1], reset) == (true_body, False)


async def test_latency_delays_the_true_answer(running: Running, true_body: bytes) -> None:
    running.arm("slow", Latency(delay=Fixed(seconds=30)))
    async with asyncio.timeout(15):
        response = await running.search("granite")
    assert response.content == true_body
    assert running.namespace.clock.elapsed() == 30
    assert running.namespace.journal.latest(1)[0].delay == 30


async def test_latency_waits_for_advance_where_time_is_moved_by_hand(running: Running) -> None:
    """The answer comes when the time has come, and not before."""
    running.namespace.clock.mode = ClockMode.MANUAL
    running.arm("latency_fixed")
    answer = asyncio.ensure_future(running.search("granite"))
    await running.sleeping(1)
    assert not answer.done()
    running.namespace.clock.advance(2)
    assert (await answer).status_code == 200


@pytest.mark.parametrize("code", ["internal", "not_ready", "storage_full", "queue_full", "version_conflict"])
async def test_a_status_comes_as_a_problem_document(running: Running, code: str) -> None:
    running.arm("failing", Status(code=code, retry_after=3))
    response = await running.note("granite")
    assert (response.status_code, response.json()["code"]) == (ERRORS[code].status, code)
    assert response.headers["Content-Type"] == PROBLEM_JSON
    assert response.headers["Retry-After"] == "3"
    assert not running.namespace.state.jobs


@pytest.mark.parametrize("status", [502, 504, 599])
async def test_a_proxy_answers_with_html(running: Running, status: int) -> None:
    """Any status may come, also one without a name."""
    running.arm("proxy", HttpStatus(status=status))
    response = await running.search("granite")
    assert (response.status_code, response.headers["Content-Type"][:9]) == (status, "text/html")


async def test_a_rate_limit_is_true_to_its_retry_after(running: Running) -> None:
    """Refused until then, let through after it."""
    running.namespace.clock.mode = ClockMode.MANUAL
    running.arm("rate_limit", RateLimit(seconds=2.5), nth=1)
    first = await running.search("granite")
    running.namespace.clock.advance(1)
    second = await running.search("granite")
    running.namespace.clock.advance(float(second.headers["Retry-After"]))
    third = await running.search("granite")
    assert [first.status_code, second.status_code, third.status_code] == [429, 429, 200]
    assert (first.headers["Retry-After"], second.headers["Retry-After"]) == ("3", "2")
    assert second.json()["retry_after"] == 1.5


async def test_an_expired_key_is_unauthorized(running: Running) -> None:
    running.arm("expired_key")
    response = await running.search("granite")
    assert (response.status_code, response.headers["WWW-Authenticate"]) == (401, "Bearer")


async def test_a_hang_lasts_until_the_caller_gives_up(running: Running) -> None:
    """Nothing comes; afterwards the simulator has forgotten who hung."""
    running.arm("hang", nth=1)
    with pytest.raises(httpx.ReadTimeout):
        await running.http.post(f"{API}/search", json=QUERY, timeout=0.2)
    await running.sleeping(0)
    assert (await running.search("granite")).status_code == 200
    assert running.namespace.journal.latest(2)[0].status is None


async def test_a_reset_lets_go_who_hangs(running: Running) -> None:
    """The connection breaks."""
    running.arm("hang")
    hanging = asyncio.ensure_future(running.raw(QUERY))
    await running.sleeping(1)
    running.namespace.reset()
    assert await hanging == (b"", True)


async def test_a_reset_before_headers_sends_no_byte(running: Running) -> None:
    running.arm("reset_before_headers")
    assert await running.raw({"text": "granite"}, f"{API}/jobs") == (b"", True)
    assert not running.namespace.state.jobs


@pytest.mark.parametrize("count", [0, 16, 100])
async def test_a_reset_comes_after_so_many_bytes(running: Running, true_body: bytes, count: int) -> None:
    running.arm("broken", ResetAfter(bytes=count))
    received, reset = await running.raw(QUERY)
    head, body = parted(received)
    assert (body, reset) == (true_body[:count], True)
    assert b"Content-Length: %d" % len(true_body) in head


@pytest.mark.parametrize("off", [-64, 64])
async def test_a_content_length_is_wrong_by_so_much(running: Running, true_body: bytes, off: int) -> None:
    """The body itself is whole, and the connection ends after it."""
    running.arm("wrong", ContentLength(off=off))
    received, reset = await running.raw(QUERY)
    head, body = parted(received)
    assert (body, reset) == (true_body, False)
    assert b"Content-Length: %d" % (len(true_body) + off) in head


async def test_a_malformed_chunk_breaks_the_framing(running: Running, true_body: bytes) -> None:
    running.arm("malformed_chunk")
    received, _ = await running.raw(QUERY)
    head, body = parted(received)
    assert b"Transfer-Encoding: chunked" in head
    size, _, rest = body.partition(b"\r\n")
    assert rest[: int(size, 16)] == true_body[: int(size, 16)]
    assert b"no size\r\n" in rest
    with pytest.raises(httpx.RemoteProtocolError):
        await running.search("granite")


async def test_a_drip_gives_the_whole_body_in_time(running: Running, true_body: bytes) -> None:
    running.arm("slowly", Drip(bytes=100, seconds=1))
    response = await running.search("granite")
    assert response.content == true_body
    assert running.namespace.clock.elapsed() == -(-len(true_body) // 100)


async def test_what_is_not_json_says_that_all_is_well(running: Running) -> None:
    """200 with a page."""
    running.arm("not_json")
    response = await running.search("granite")
    assert (response.status_code, response.text[:9]) == (200, "<!doctype")


async def test_an_empty_body_says_that_all_is_well(running: Running) -> None:
    """200 with nothing."""
    running.arm("empty_body")
    response = await running.note("granite")
    assert (response.status_code, response.content) == (200, b"")
    assert not running.namespace.state.jobs


async def test_a_stale_read_answers_as_of_the_arming(running: Running) -> None:
    """In every operation that reads; what is written is written."""
    await running.note("granite")
    running.arm("stale_read")
    await running.note("granite basalt")
    assert (await running.search("granite", mode="fts")).json()["total"] == 1
    assert (await running.http.get(f"{API}/documents")).json()["total"] == 1
    running.namespace.faults.disarm_all()
    assert (await running.search("granite", mode="fts")).json()["total"] == 2


async def test_a_lost_acknowledgement_is_done_all_the_same(running: Running) -> None:
    running.arm("lost_ack", operation="createJob", nth=1)
    key = {"Idempotency-Key": "once"}
    with pytest.raises(httpx.ReadError):
        await running.note("granite", headers=key)
    assert (await running.note("granite", headers=key)).status_code == 202
    assert len(running.namespace.state.jobs) == 1
    first = running.namespace.journal.latest(2)[0]
    assert (first.status, first.done, first.faults) == (None, True, ("lost_ack-1",))


async def test_a_refused_request_meets_the_fault_too(running: Running) -> None:
    """A fault is asked before the contract is: what it answers does not depend on the request being good."""
    running.arm("not_ready")
    assert (await running.http.get("/nowhere")).status_code == 503


async def test_connections_live_on_beside_one_that_broke(running: Running) -> None:
    """A broken answer takes its own connection with it and no other."""
    running.arm("reset_mid_body", nth=2)
    answers = await asyncio.gather(*(running.raw(QUERY) for _ in range(4)))
    assert [reset for _, reset in answers].count(True) == 1
