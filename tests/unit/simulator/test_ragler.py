"""RAGler's operations in the simulator: limits in virtual time, states kept and restored, faults."""

from __future__ import annotations

import httpx
import pytest

from kb_contracts.api.ragler import LIMITS, USER_ID, collection_id
from kb_simulator.harness.control import BASE
from kb_simulator.harness.journal import record_request
from kb_simulator.harness.namespaces import HEADER
from tests.unit.simulator.running import Running

GUIDES = collection_id("guides")


async def lists(running: Running, count: int, **headers: str) -> list[httpx.Response]:
    """So many lists of collections."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return [await running.http.get("/collections", headers=sent) for _ in range(count)]


async def describe(running: Running, description: str) -> None:
    """Describe the guides."""
    body = {"name": "guides", "description": description}
    assert (await running.http.put(f"/collections/{GUIDES}", json=body)).status_code == 200


async def description(running: Running) -> str:
    """What is said of the guides."""
    return str((await running.http.get(f"/collections/{GUIDES}")).json().get("description"))


@pytest.mark.requirement("R51", "R53")
async def test_a_window_ends_when_virtual_time_has_passed(running: Running) -> None:
    """Not with the wall: a test waits for nobody."""
    *taken, refused = await lists(running, LIMITS["listCollections"] + 1)
    assert {response.status_code for response in taken} == {200}
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "60")
    running.namespace.clock.advance(59.5)
    (refused,) = await lists(running, 1)
    assert (refused.json()["retry_after"], refused.headers["Retry-After"]) == (0.5, "1")
    running.namespace.clock.advance(0.5)
    assert (await lists(running, 1))[0].status_code == 200


async def test_limits_are_a_namespaces_own(running: Running) -> None:
    """The same user is another one elsewhere; a reset forgets all users."""
    assert (await lists(running, 21))[-1].status_code == 429
    assert (await lists(running, 1, **{HEADER: "other"}))[0].status_code == 200
    running.namespace.reset()
    assert (await lists(running, 1))[0].status_code == 200


async def test_descriptions_are_kept_and_restored_with_the_state(running: Running) -> None:
    await describe(running, "before")
    kept = running.namespace.snapshot()
    await describe(running, "after")
    running.namespace.restore(kept)
    assert await description(running) == "before"
    await describe(running, "later")
    running.namespace.restore(kept)
    assert await description(running) == "before"


async def test_a_stale_read_knows_no_later_description(running: Running) -> None:
    """It tells of the state before the last change."""
    await describe(running, "before")
    running.arm("stale_read", operation="getCollection", nth=2)
    assert await description(running) == "before"
    await describe(running, "after")
    assert await description(running) == "before"
    assert await description(running) == "after"


@pytest.mark.parametrize("operation", [*LIMITS, "putCollection"])
async def test_faults_are_armed_by_operation(running: Running, operation: str) -> None:
    running.arm("not_ready", operation=operation, times=1)
    if operation == "vectorSearch":
        response = await running.http.post("/vector/search", json={"query": "x"})
    elif operation == "listCollections":
        response = await running.http.get("/collections")
    elif operation == "getCollection":
        response = await running.http.get(f"/collections/{GUIDES}")
    else:
        response = await running.http.put(f"/collections/{GUIDES}", json={"name": "guides"})
    assert (response.status_code, response.json()["code"]) == (503, "not_ready")


async def test_a_rate_limit_can_be_armed_under_its_own_code(running: Running) -> None:
    fault = {
        "name": "rate_limit",
        "effect": {"kind": "rate_limit", "seconds": 7, "code": "rate_limited"},
        "match": {"operation": "vectorSearch"},
    }
    armed = await running.http.post(f"{running.simulator.control_url}{BASE}/faults", json=fault)
    assert armed.status_code == 200, armed.text
    response = await running.http.post("/vector/search", json={"query": "x"}, headers={USER_ID: "u"})
    assert (response.status_code, response.headers["Retry-After"]) == (429, "7")
    assert response.json()["code"] == "rate_limited"


def test_a_search_in_a_collection_names_its_tag() -> None:
    """So that a fault or the journal can be about one collection."""
    body = b'{"query": "x", "collectionName": "guides", "filters": {"tags": ["a", 5]}}'
    assert record_request("POST", "/vector/search", "", "vectorSearch", {}, body).tags == (
        "a",
        "collection:guides",
    )
    odd = b'{"collectionName": 5, "filters": [], "tags": "a"}'
    assert record_request("POST", "/vector/search", "", "vectorSearch", {}, odd).tags == ()


def test_who_asks_is_not_what_is_asked() -> None:
    """Two users who ask the same have one fingerprint: a run repeats whoever plays it."""
    one, two = (
        record_request("GET", "/collections", "", "listCollections", {USER_ID: user}, b"") for user in "ab"
    )
    assert one.fingerprint == two.fingerprint
