"""What `Idempotency-Key` promises: a retried mutation happens once and answers as it did."""

from __future__ import annotations

import asyncio

import pytest

from tests.contract.caller import LONG, Caller, answered, problem
from tests.contract.conftest import Start
from tests.contract.raw import END, Raw, file_part

KEY = {"Idempotency-Key": "key-1"}
JOBS = "/api/v1/jobs"


async def test_a_retried_note_is_the_same_job(kb: Caller) -> None:
    """Also when its JSON is written differently."""
    first = answered(await kb.http.post(JOBS, json={"text": "granite", "tags": ["a"]}, headers=KEY), 202)
    await kb.completed(first)
    again = await kb.http.post(
        JOBS,
        content=b'{ "tags": ["a"],  "text": "gr\\u0061nite" }',
        headers={**KEY, "Content-Type": "application/json"},
    )
    assert answered(again, 202) == first
    assert answered(await kb.http.get(JOBS))["total"] == 1


async def test_a_key_with_another_request_is_a_mismatch(kb: Caller) -> None:
    """And nothing of the other request happens."""
    await kb.http.post(JOBS, json={"text": "granite"}, headers=KEY)
    problem(await kb.http.post(JOBS, json={"text": "basalt"}, headers=KEY), "idempotency_mismatch")
    assert answered(await kb.http.get(JOBS))["total"] == 1


async def test_a_retried_file_is_the_same_job(kb: Caller) -> None:
    """Its bytes, name and fields are compared."""
    first = await kb.send("a.txt", b"granite", KEY, title="Stone")
    assert await kb.send("a.txt", b"granite", KEY, title="Stone") == first
    await kb.completed(first)
    for name, data, title in (
        ("a.txt", b"basalt", "Stone"),
        ("b.txt", b"granite", "Stone"),
        ("a.txt", b"granite", "X"),
    ):
        response = await kb.http.post(JOBS, files={"file": (name, data)}, data={"title": title}, headers=KEY)
        problem(response, "idempotency_mismatch")
    assert answered(await kb.http.get(JOBS))["total"] == 1


async def test_a_key_belongs_to_its_operation(kb: Caller) -> None:
    """The same key on another operation is another request."""
    document = await kb.completed(
        answered(await kb.http.post(JOBS, json={"text": "granite"}, headers=KEY), 202)
    )
    removed = await kb.http.delete(f"/api/v1/documents/{document}", headers=KEY)
    assert answered(removed)["documents"] == 1


async def test_a_key_belongs_to_its_credential(kb: Caller) -> None:
    """Another caller's same key is another request."""
    one = await kb.http.post(JOBS, json={"text": "granite"}, headers={**KEY, "Authorization": "Bearer a"})
    two = await kb.http.post(JOBS, json={"text": "basalt"}, headers={**KEY, "Authorization": "Bearer b"})
    assert answered(one, 202)["id"] != answered(two, 202)["id"]


async def test_a_retried_removal_answers_as_it_did(kb: Caller) -> None:
    """Although the document is gone by then."""
    document = await kb.note("granite")
    first = answered(await kb.http.delete(f"/api/v1/documents/{document}", headers=KEY))
    assert answered(await kb.http.delete(f"/api/v1/documents/{document}", headers=KEY)) == first


async def test_a_retried_clearing_removes_nothing_more(kb: Caller) -> None:
    """What came in between stays."""
    await kb.note("granite")
    clear = {"params": {"confirm": "true"}, "headers": KEY}
    first = answered(await kb.http.delete("/api/v1/documents", **clear))  # type: ignore[arg-type]
    await kb.note("basalt")
    assert answered(await kb.http.delete("/api/v1/documents", **clear)) == first  # type: ignore[arg-type]
    assert (await kb.documents())["total"] == 1


async def test_a_retried_cancel_answers_as_it_did(kb: Caller) -> None:
    """Rather than that the job has ended."""
    await kb.submit(LONG)
    job = await kb.submit("granite")
    first = answered(await kb.http.delete(f"{JOBS}/{job['id']}", headers=KEY))
    assert answered(await kb.http.delete(f"{JOBS}/{job['id']}", headers=KEY)) == first


async def test_a_retried_patch_answers_as_it_did(kb: Caller) -> None:
    """Although the version it expected has been raised, by itself."""
    document = await kb.document(await kb.note("granite"))
    body = {"text": "basalt", "expected_version": document["version"]}
    path = f"/api/v1/notes/{document['id']}"
    first = answered(await kb.http.patch(path, json=body, headers=KEY))
    assert answered(await kb.http.patch(path, json=body, headers=KEY)) == first
    problem(await kb.http.patch(path, json={"text": "marble"}, headers=KEY), "idempotency_mismatch")


async def test_retried_tag_changes_answer_as_they_did(kb: Caller) -> None:
    """Also with `If-Match`, whose version they have raised."""
    document = await kb.document(await kb.note("granite"))
    path = f"/api/v1/documents/{document['id']}/tags"
    headers = {**KEY, "If-Match": str(document["version"])}
    first = answered(await kb.http.post(path, json={"tags": ["a"]}, headers=headers))
    assert answered(await kb.http.post(path, json={"tags": ["a"]}, headers=headers)) == first
    gone = answered(await kb.http.delete(f"{path}/a", headers=KEY))
    assert answered(await kb.http.delete(f"{path}/a", headers=KEY)) == gone


async def test_a_refused_request_spends_no_key(kb: Caller) -> None:
    """The corrected request goes under the same key."""
    problem(await kb.http.post(JOBS, json={"text": " "}, headers=KEY), "invalid_parameter")
    answered(await kb.http.post(JOBS, json={"text": "granite"}, headers=KEY), 202)


async def test_of_retries_at_once_one_job_comes(kb: Caller) -> None:
    """Each is answered with the job, or told that it is still running."""
    responses = await asyncio.gather(
        *(kb.http.post(JOBS, json={"text": "granite"}, headers=KEY) for _ in range(10))
    )
    accepted = {response.json()["id"] for response in responses if response.status_code == 202}
    assert len(accepted) == 1
    assert answered(await kb.http.get(JOBS))["total"] == 1
    for response in responses:
        if response.status_code != 202:
            problem(response, "in_progress")


async def test_a_second_request_during_the_first_is_in_progress(kb: Caller) -> None:
    """The first one's upload is held open; the second is told when to ask again."""
    body = file_part() + END
    async with Raw(kb.http.base_url.port) as raw, asyncio.timeout(20):
        await raw.begin(len(body), "Idempotency-Key: key-1", "Connection: close")
        await raw.write(body[:80])
        response = await kb.http.post(JOBS, json={"text": "granite"}, headers=KEY)
        problem(response, "in_progress")
        assert int(response.headers["Retry-After"]) >= 1
        await raw.write(body[80:])
        assert b" 202 " in await raw.reader.readline()


@pytest.mark.parametrize("key", ["", "x" * 256, "a\tb", "é"])
async def test_a_key_that_is_no_key_is_refused(kb: Caller, key: str) -> None:
    """It names the header."""
    response = await kb.http.post(JOBS, json={"text": "x"}, headers=[(b"Idempotency-Key", key.encode())])
    assert problem(response, "invalid_parameter")["parameter"] == "Idempotency-Key"


async def test_a_retry_after_a_restart_answers_as_it_did(start: Start) -> None:
    """The answer is kept with the effect."""
    kb = await start()
    first = answered(await kb.http.post(JOBS, json={"text": "granite"}, headers=KEY), 202)
    await kb.completed(first)
    await start.stop()
    again = await start()
    assert answered(await again.http.post(JOBS, json={"text": "granite"}, headers=KEY), 202) == first
