"""Faults fire as specified, equally in every run; their effects are checked on the socket."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_contracts.api.errors import ERRORS, PROBLEM_JSON
from kb_contracts.api.ragler import USER_ID
from kb_simulator.determinism import ClockMode, Seeded
from kb_simulator.harness import faults
from kb_simulator.harness.faults import (
    CATALOGUE,
    NOTHING,
    AnyEffect,
    ContentLength,
    Drip,
    Fault,
    FaultRegistry,
    Fixed,
    HttpStatus,
    Latency,
    LogNormal,
    RateLimit,
    ResetAfter,
    Status,
    Uniform,
    When,
)
from kb_simulator.harness.journal import Match, RecordedRequest, record_request
from tests.support.patience import ANSWER_SECONDS
from tests.unit.simulator.parts import API, Base, Running


def box(seed: int = 7) -> FaultRegistry:
    state = Base(seed).state
    return FaultRegistry(Seeded(seed), lambda: state)


def search(query: str = "x", **headers: str) -> RecordedRequest:
    body = msgspec.json.encode({"query": query, "tags": ["a"]})
    return record_request("POST", "/api/v1/search", "", "search", headers, body)


def fired(
    armed: FaultRegistry, count: int, request: RecordedRequest | None = None, elapsed: float = 0.0
) -> list[int]:
    """Return the positions, from 1, of `count` equal requests at which a fault fires."""
    request = request or search()
    return [n for n in range(1, count + 1) if armed.decide(request, n, elapsed) is not NOTHING]


# --- matching -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("match", "differs"),
    [
        ({}, []),
        ({"operation": "search", "method": "post", "path": "/api/v1/se"}, []),
        ({"operation": "createJob"}, ["operation"]),
        ({"method": "GET", "path": "/other"}, ["method", "path"]),
        ({"body": "granite"}, []),
        ({"body": "copper"}, ["body"]),
        ({"tag": "a"}, []),
        ({"tag": "b"}, ["tag"]),
        ({"header": "X-Test"}, []),
        ({"header": "X-Test: yes"}, []),
        ({"header": "X-Test: no"}, ["header"]),
        ({"header": "X-Other"}, ["header"]),
    ],
)
def test_all_that_is_given_must_hold(match: dict[str, str], differs: list[str]) -> None:
    assert Match(**match).differs(search("granite", **{"X-Test": "yes"})) == differs


@pytest.mark.parametrize(
    ("method", "path", "query", "body"),
    [
        ("POST", "/api/v1/jobs", "", b'{"text": "x", "tags": ["a"]}'),
        ("POST", "/api/v1/search", "", b'{"query": "x", "tags_any": ["b", "a"]}'),
        ("GET", "/api/v1/documents", "tag=a&limit=1", b""),
        ("DELETE", "/api/v1/documents/1/tags/a", "", b""),
        ("POST", "/vector/search", "", b'{"query": "x", "filters": {"tags": ["a", 5]}}'),
    ],
)
def test_a_tag_is_seen_wherever_a_request_names_it(method: str, path: str, query: str, body: bytes) -> None:
    assert "a" in record_request(method, path, query, None, {}, body).tags


@pytest.mark.parametrize(("name", "tags"), [('"guides"', ("collection:guides",)), ("5", ())])
def test_a_search_in_a_collection_names_its_tag(name: str, tags: tuple[str, ...]) -> None:
    """A fault or a check of the journal can then select one collection."""
    body = f'{{"collectionName": {name}, "filters": [], "tags": "a"}}'.encode()
    assert record_request("POST", "/vector/search", "", "vectorSearch", {}, body).tags == tags


@pytest.mark.parametrize(
    ("make", "near"),
    [
        (lambda: Match(operation="serch"), "search"),
        (lambda: Fault(name="lost_ak"), "lost_ack"),
        (lambda: faults.Status(code="not_redy"), "not_ready"),
        (lambda: RateLimit(code="internal"), "queue_full"),
        (lambda: Uniform(low=2, high=1), "low"),
    ],
)
def test_a_wrong_name_is_told_with_what_is_near(make: Any, near: str) -> None:
    """A fault that could never fire is not armed."""
    with pytest.raises(ValueError, match=near):
        make()


# --- fingerprints ---------------------------------------------------------------------------------


def test_the_fingerprint_ignores_keys_users_and_order() -> None:
    one = record_request("POST", "/p", "a=1&b=2", None, {"Idempotency-Key": "1"}, b'{"x": 1, "y": 2}')
    two = record_request(
        "POST", "/p", "b=2&a=1", None, {"Authorization": "Bearer z", USER_ID: "z"}, b'{"y":2,"x":1}'
    )
    assert one.fingerprint == two.fingerprint


@pytest.mark.parametrize(
    "other",
    [
        ("PUT", "/p", "a=1", {}, b"{}"),
        ("POST", "/q", "a=1", {}, b"{}"),
        ("POST", "/p", "a=2", {}, b"{}"),
        ("POST", "/p", "a=1", {"If-Match": "1"}, b"{}"),
        ("POST", "/p", "a=1", {}, b"[]"),
        ("POST", "/p", "a=1", {}, b"no json"),
    ],
)
def test_the_fingerprint_depends_on_method_path_query_and_body(
    other: tuple[str, str, str, dict[str, str], bytes],
) -> None:
    method, path, query, headers, body = other
    first = record_request("POST", "/p", "a=1", None, {}, b"{}")
    assert record_request(method, path, query, None, headers, body).fingerprint != first.fingerprint


# --- when -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("when", "at"),
    [
        (When(), [1, 2, 3, 4, 5, 6]),
        (When(nth=3), [3]),
        (When(every=2), [2, 4, 6]),
        (When(times=2), [1, 2]),
        (When(every=2, times=2), [2, 4]),
        (When(probability=0.0), []),
        (When(probability=1.0), [1, 2, 3, 4, 5, 6]),
    ],
)
def test_a_fault_fires_when_it_says(when: When, at: list[int]) -> None:
    armed = box()
    armed.arm(Fault(name="internal_error", when=when))
    assert fired(armed, 6) == at


def test_a_fault_fires_until_its_time() -> None:
    armed = box()
    armed.arm(Fault(name="internal_error", when=When(until=10)))
    assert fired(armed, 1, elapsed=9.9) == [1]
    assert fired(armed, 1, elapsed=10.0) == []


def test_matches_are_counted_for_the_rule_or_for_each_request() -> None:
    by_rule, by_request = box(), box()
    by_rule.arm(Fault(name="internal_error", when=When(nth=2)))
    by_request.arm(Fault(name="internal_error", when=When(nth=2, count="request")))
    order = [search("one"), search("two"), search("one"), search("two")]
    assert [by_rule.decide(each, 1, 0.0) is not NOTHING for each in order] == [False, True, False, False]
    assert [by_request.decide(each, 1, 0.0) is not NOTHING for each in order] == [False, False, True, True]


@given(st.permutations([(query, occurrence) for query in "abcd" for occurrence in range(1, 6)]))
def test_chance_does_not_depend_on_the_order_of_arrival(order: list[tuple[str, int]]) -> None:
    """The request's content decides the fault and its duration."""
    armed = box()
    armed.arm(Fault(name="latency_lognormal", when=When(probability=0.5)))
    met = {each: armed.decide(search(each[0]), each[1], 0.0) for each in order}
    again = box()
    again.arm(Fault(name="latency_lognormal", when=When(probability=0.5)))
    assert met == {each: again.decide(search(each[0]), each[1], 0.0) for each in sorted(order)}


def test_chance_is_as_great_as_it_says() -> None:
    one, two = box(1), box(2)
    for armed in (one, two):
        armed.arm(Fault(name="internal_error", when=When(probability=0.3)))
    assert 250 < len(fired(one, 1_000)) < 350
    assert fired(one, 50) != fired(two, 50)


# --- effects --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("delay", "low", "high"),
    [(Fixed(seconds=2), 2, 2), (Uniform(low=1, high=3), 1, 3), (LogNormal(median=1, sigma=3, most=5), 0, 5)],
)
def test_delays_keep_to_their_bounds(delay: Fixed | Uniform | LogNormal, low: float, high: float) -> None:
    armed = box()
    armed.arm(Fault(name="slow", effect=Latency(delay=delay)))
    seen = [armed.decide(search(), n, 0.0).delay for n in range(1, 200)]
    assert all(low <= seconds <= high for seconds in seen)
    assert len(set(seen)) == 1 if low == high else len(set(seen)) > 50


def test_delays_add_up_and_the_first_to_take_the_answer_ends_the_asking() -> None:
    armed = box()
    armed.arm(Fault(name="latency_fixed"))
    armed.arm(Fault(name="latency_fixed"))
    armed.arm(Fault(name="not_ready", when=When(nth=1)))
    armed.arm(Fault(name="lost_ack", when=When(nth=1)))
    first, second = armed.decide(search(), 1, 0.0), armed.decide(search(), 2, 0.0)
    assert first.delay == 4.0
    assert first.fired == ("latency_fixed-1", "latency_fixed-2", "not_ready-1")
    assert second.fired[-1] == "lost_ack-1"


def test_an_armed_fault_tells_what_it_did() -> None:
    armed = box()
    shown = armed.arm(Fault(name="internal_error", when=When(every=2)))
    fired(armed, 5)
    (after,) = armed.list()
    assert (shown.id, after.matched, after.fired) == ("internal_error-1", 5, 2)
    assert armed.disarm(shown.id) == after
    assert not armed


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_fault_of_the_catalogue_goes_over_the_wire(name: str) -> None:
    fault = Fault(name=name, effect=CATALOGUE[name], match=Match(tag="a"), when=When(nth=2))
    assert msgspec.json.decode(msgspec.json.encode(fault), type=Fault) == fault


def test_the_table_of_the_module_names_every_fault_and_no_other() -> None:
    table = (faults.__doc__ or "").split("-----\n")[1].split("\n\n")[0]
    assert [line.split()[0] for line in table.splitlines()] == list(CATALOGUE)


QUERY = {"query": "granite"}


def parted(received: bytes) -> tuple[bytes, bytes]:
    head, _, body = received.partition(b"\r\n\r\n")
    return head, body


@pytest.fixture
async def true_body(running: Running) -> bytes:
    """The undisturbed response of a search in a base with one note."""
    await running.note("granite quarry")
    return (await running.search("granite")).content


async def test_without_a_fault_the_answer_is_whole(running: Running, true_body: bytes) -> None:
    received, reset = await running.raw(QUERY)
    assert (parted(received)[1], reset) == (true_body, False)


async def test_latency_delays_the_true_answer(running: Running, true_body: bytes) -> None:
    running.arm("slow", Latency(delay=Fixed(seconds=30)))
    async with asyncio.timeout(ANSWER_SECONDS):
        response = await running.search("granite")
    assert response.content == true_body
    assert running.namespace.clock.elapsed() == 30
    assert running.namespace.journal.latest(1)[0].delay == 30


@pytest.mark.parametrize("code", ["internal", "storage_full", "queue_full", "unauthorized"])
async def test_a_status_comes_as_a_problem_document(running: Running, code: str) -> None:
    running.arm("failing", Status(code=code, retry_after=3))
    response = await running.note("granite")
    assert (response.status_code, response.json()["code"]) == (ERRORS[code].status, code)
    assert response.headers["Content-Type"] == PROBLEM_JSON
    assert response.headers["Retry-After"] == "3"
    assert not running.namespace.state.jobs


@pytest.mark.parametrize("status", [200, 502, 599])
async def test_a_proxy_answers_with_html(running: Running, status: int) -> None:
    running.arm("proxy", HttpStatus(status=status))
    response = await running.search("granite")
    assert (response.status_code, response.headers["Content-Type"][:9]) == (status, "text/html")


async def test_a_rate_limit_is_true_to_its_retry_after(running: Running) -> None:
    running.namespace.clock.mode = ClockMode.MANUAL
    running.arm("rate_limit", RateLimit(seconds=2.5, code="rate_limited"), nth=1)
    first = await running.search("granite")
    running.namespace.clock.advance(1)
    second = await running.search("granite")
    running.namespace.clock.advance(float(second.headers["Retry-After"]))
    third = await running.search("granite")
    assert [first.status_code, second.status_code, third.status_code] == [429, 429, 200]
    assert (first.headers["Retry-After"], second.headers["Retry-After"]) == ("3", "2")
    assert (second.json()["code"], second.json()["retry_after"]) == ("rate_limited", 1.5)


async def test_a_hang_lasts_until_the_caller_gives_up(running: Running) -> None:
    running.arm("hang", nth=1)
    hanging = asyncio.ensure_future(running.search("granite"))
    await running.sleeping(1)
    hanging.cancel()
    await running.sleeping(0)
    assert (await running.search("granite")).status_code == 200
    assert running.namespace.journal.latest(2)[0].status is None


async def test_a_reset_lets_go_who_hangs(running: Running) -> None:
    running.arm("hang")
    hanging = asyncio.ensure_future(running.raw(QUERY))
    await running.sleeping(1)
    running.namespace.reset()
    assert await hanging == (b"", True)


async def test_a_reset_before_headers_sends_no_byte(running: Running) -> None:
    running.arm("reset_before_headers")
    assert await running.raw({"text": "granite"}, f"{API}/jobs") == (b"", True)
    assert not running.namespace.state.jobs


@pytest.mark.parametrize(
    ("effect", "count", "off"),
    [*((ResetAfter(bytes=count), count, 0) for count in (0, 16, 100)),
     *((ContentLength(off=off), None, off) for off in (-64, 64))],
)  # fmt: skip
async def test_a_reset_comes_after_so_many_bytes_and_a_content_length_is_wrong_by_so_much(
    running: Running, true_body: bytes, effect: AnyEffect, count: int | None, off: int
) -> None:
    running.arm("broken", effect)
    received, reset = await running.raw(QUERY)
    head, body = parted(received)
    assert (body, reset) == (true_body[:count], count is not None)
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


async def test_an_empty_body_says_that_all_is_well(running: Running) -> None:
    running.arm("empty_body")
    response = await running.note("granite")
    assert (response.status_code, response.content) == (200, b"")
    assert not running.namespace.state.jobs


async def test_a_stale_read_answers_as_of_the_arming(running: Running) -> None:
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
    """Faults apply before the contract's checks, so an invalid request gets the fault too."""
    running.arm("not_ready")
    assert (await running.http.get("/nowhere")).status_code == 503


async def test_connections_live_on_beside_one_that_broke(running: Running) -> None:
    running.arm("reset_mid_body", nth=2)
    answers = await asyncio.gather(*(running.raw(QUERY) for _ in range(4)))
    assert [reset for _, reset in answers].count(True) == 1
