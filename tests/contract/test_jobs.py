"""What jobs promise: taken in, followed, cancelled, deduplicated."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.contract.caller import LONG, Caller, answered, problem
from tests.contract.conftest import Start

ABSENT = "00000000-0000-4000-8000-000000000000"


async def test_a_note_is_accepted_queued(kb: Caller) -> None:
    """202 with a job that says what it will take in."""
    job = await kb.submit("User prefers concise responses", tags=["collection:memory"])
    assert (job["status"], job["kind"], job["title"]) == ("queued", "note", "User prefers concise responses")
    assert (job["tags"], job["document_id"], job["error"]) == (["collection:memory"], None, None)


async def test_a_completed_job_names_its_document(kb: Caller) -> None:
    """By number and by uid; all steps are done."""
    ended = await kb.ended(await kb.submit("granite"))
    document = await kb.document(ended["document_id"])
    assert (ended["status"], ended["progress"], ended["attempts"]) == ("completed", 1.0, 1)
    assert ended["document_uid"] == document["uid"]
    assert ended["completed_steps"] == ended["total_steps"]
    assert ended["created_at"] <= ended["started_at"] <= ended["finished_at"]


async def test_a_note_keeps_what_came_with_it(kb: Caller) -> None:
    """Title, tags once each, metadata, source path; the text whole in its chunks."""
    document = await kb.document(
        await kb.note(
            "granite", title="Stone", tags=["b", "a", "b"], metadata={"n": {"m": [1]}}, source_path="m/x.md"
        )
    )
    assert (document["title"], document["doc_type"], document["source_path"]) == ("Stone", "note", "m/x.md")
    assert (sorted(document["tags"]), document["metadata"]) == (["a", "b"], {"n": {"m": [1]}})
    assert [chunk["text"] for chunk in document["chunks"]] == ["granite"]


async def test_a_note_without_a_title_is_called_by_its_first_line(kb: Caller) -> None:
    """White space collapsed, cut to 80 characters."""
    document = await kb.document(await kb.note("\n\n  The   first\tline \nand another"))
    long = await kb.document(await kb.note("word " * 100))
    assert document["title"] == "The first line"
    assert len(long["title"]) <= 80
    assert long["title"].endswith("…")


@pytest.mark.parametrize("text", [" ", "\n\t \u3000", "\u2028"])
async def test_a_note_of_white_space_is_refused(kb: Caller, text: str) -> None:
    """There would be nothing to find."""
    response = await kb.http.post("/api/v1/jobs", json={"text": text})
    assert problem(response, "invalid_parameter")["parameter"] == "text"


@pytest.mark.parametrize(
    ("body", "code", "parameter"),
    [
        ({}, "missing_parameter", "text"),
        ({"text": ""}, "invalid_parameter", "text"),
        ({"text": 5}, "invalid_parameter", "text"),
        ({"text": "x", "colour": "red"}, "unknown_parameter", "colour"),
        ({"text": "x", "tags": ["a,b"]}, "invalid_parameter", "tags[0]"),
        ({"text": "x", "tags": [f"t{number}" for number in range(65)]}, "invalid_parameter", "tags"),
        ({"text": "x", "metadata": []}, "invalid_parameter", "metadata"),
        ({"text": "x", "metadata": {"a": "x" * 70_000}}, "invalid_parameter", "metadata"),
        ({"text": "x", "title": ""}, "invalid_parameter", "title"),
    ],
)
async def test_a_note_that_does_not_fit_is_refused_by_name(
    kb: Caller, body: dict[str, Any], code: str, parameter: str
) -> None:
    """Nothing is queued."""
    response = await kb.http.post("/api/v1/jobs", json=body)
    assert problem(response, code)["parameter"] == parameter
    assert (await kb.status())["queue"]["queued"] == 0


@pytest.mark.parametrize(
    "content", [b'{"text": "\xed\xa0\x80"}', b'{"text": "\\ud800"}', b'{"text": "\xff"}']
)
async def test_a_text_that_is_no_unicode_is_refused(kb: Caller, content: bytes) -> None:
    """Half of a surrogate pair is no character."""
    headers = {"Content-Type": "application/json"}
    response = await kb.http.post("/api/v1/jobs", content=content, headers=headers)
    problem(response, "invalid_request")


async def test_a_note_over_the_limit_is_refused(kb: Caller) -> None:
    """A million characters are taken, one more is not."""
    response = await kb.http.post("/api/v1/jobs", json={"text": "x" * 1_000_001})
    problem(response, "invalid_parameter")


async def test_waiting_answers_when_the_job_ends(kb: Caller) -> None:
    """Long before the thirty seconds that the caller was ready to wait."""
    job = await kb.submit("granite")
    async with asyncio.timeout(20):
        assert (await kb.job(job["id"], wait=30))["status"] == "completed"


async def test_waiting_in_vain_answers_the_job_as_it_is(kb: Caller) -> None:
    """The long note before it holds the only worker."""
    await kb.submit(LONG)
    second = await kb.submit("granite")
    assert (await kb.job(second["id"], wait=0.01))["status"] == "queued"


@pytest.mark.parametrize("wait", ["31", "-1", "soon"])
async def test_a_wait_out_of_range_is_refused(kb: Caller, wait: str) -> None:
    """At most thirty seconds."""
    response = await kb.http.get(f"/api/v1/jobs/{ABSENT}", params={"wait": wait})
    assert problem(response, "invalid_parameter")["parameter"] == "wait"


async def test_an_unknown_job_is_not_found(kb: Caller) -> None:
    """To read and to cancel."""
    problem(await kb.http.get(f"/api/v1/jobs/{ABSENT}"), "job_not_found")
    problem(await kb.http.delete(f"/api/v1/jobs/{ABSENT}"), "job_not_found")


@pytest.mark.parametrize("job_id", ["1", "x" * 36, "..%2F..%2Fetc"])
async def test_what_is_no_job_id_is_refused(kb: Caller, job_id: str) -> None:
    """It is not even looked up."""
    response = await kb.http.get(f"/api/v1/jobs/{job_id}")
    assert response.status_code in {404, 422}


async def test_jobs_are_listed_newest_first_page_by_page(kb: Caller) -> None:
    """`total` counts all of them on every page."""
    ids = [(await kb.submit(f"granite {number}"))["id"] for number in range(3)]
    first = answered(await kb.http.get("/api/v1/jobs", params={"limit": 2}))
    second = answered(await kb.http.get("/api/v1/jobs", params={"limit": 2, "offset": 2}))
    assert [job["id"] for job in first["jobs"] + second["jobs"]] == ids[::-1]
    assert (first["total"], first["limit"], second["offset"]) == (3, 2, 2)


async def test_jobs_are_filtered_by_status(kb: Caller) -> None:
    """One failed, one completed."""
    good = await kb.ended(await kb.submit("granite"))
    bad = await kb.ended(await kb.send("a.txt", b"\xff\xfe\xfd"))
    failed = answered(await kb.http.get("/api/v1/jobs", params={"status": "failed"}))
    assert ([job["id"] for job in failed["jobs"]], failed["total"]) == ([bad["id"]], 1)
    completed = answered(await kb.http.get("/api/v1/jobs", params={"status": "completed"}))
    assert [job["id"] for job in completed["jobs"]] == [good["id"]]


async def test_a_queued_job_is_cancelled_and_never_done(kb: Caller) -> None:
    """The worker goes on to the job behind it."""
    first, second, third = [await kb.submit(text) for text in (LONG, "granite", "basalt")]
    for job in (second, first):
        cancelled = answered(await kb.http.delete(f"/api/v1/jobs/{job['id']}"))
        assert cancelled["status"] == "cancelled"
    await kb.completed(third)
    assert await kb.found("granite") == []


async def test_a_running_job_is_cancelled_and_leaves_nothing(kb: Caller) -> None:
    """The worker is free for the next at once."""
    job = await kb.submit(LONG)
    await kb.started(job)
    assert answered(await kb.http.delete(f"/api/v1/jobs/{job['id']}"))["status"] == "cancelled"
    await kb.note("granite")
    assert await kb.found("long7") == []
    assert (await kb.documents())["total"] == 1


async def test_who_waits_hears_of_a_cancel(kb: Caller) -> None:
    """The long poll answers `cancelled`."""
    job = await kb.submit(LONG)
    waiting = asyncio.create_task(kb.job(job["id"], wait=30))
    await kb.started(job)
    await kb.http.delete(f"/api/v1/jobs/{job['id']}")
    async with asyncio.timeout(20):
        assert (await waiting)["status"] == "cancelled"


async def test_a_job_that_has_ended_cannot_be_cancelled(kb: Caller) -> None:
    """Nor twice."""
    job = await kb.submit("granite")
    await kb.completed(job)
    problem(await kb.http.delete(f"/api/v1/jobs/{job['id']}"), "job_finished")


async def test_too_many_waiting_jobs_are_refused(start: Start) -> None:
    """429 with when to come again, at the limit that was set."""
    kb = await start(max_queued_jobs=2)
    await kb.started(await kb.submit(LONG))
    await kb.submit("one")
    await kb.submit("two")
    response = await kb.http.post("/api/v1/jobs", json={"text": "three"})
    problem(response, "queue_full")
    assert int(response.headers["Retry-After"]) >= 1


async def test_the_same_text_twice_in_a_scope_is_one_document(kb: Caller) -> None:
    """Tags are united and the further source path is kept."""
    first = await kb.note("granite", tags=["a"], source_path="one", dedup_scope="s")
    again = await kb.ended(await kb.submit("granite", tags=["b"], source_path="two", dedup_scope="s"))
    assert (again["deduplicated"], again["document_id"]) == (True, first)
    document = await kb.document(first)
    assert sorted(document["tags"]) == ["a", "b"]
    assert document["source_paths"] == ["one", "two"]
    assert (await kb.documents(source_path="two"))["total"] == 1


async def test_the_same_text_in_another_scope_is_another_document(kb: Caller) -> None:
    """Nothing is taken from anybody's collection."""
    one = await kb.note("granite", dedup_scope="s")
    two = await kb.ended(await kb.submit("granite", dedup_scope="t"))
    assert two["deduplicated"] is False
    assert two["document_id"] != one


async def test_a_note_and_a_file_of_the_same_text_are_two(kb: Caller) -> None:
    """Deduplication looks at the kind too."""
    await kb.note("granite")
    await kb.file("a.txt", b"granite")
    assert (await kb.documents())["total"] == 2


async def test_a_text_submitted_many_times_at_once_is_one_document(start: Start) -> None:
    """Decided when it is stored, not when it is accepted."""
    kb = await start(ingest_workers=4)
    jobs = await asyncio.gather(*(kb.submit("granite", tags=[f"t{number}"]) for number in range(8)))
    documents = {await kb.completed(job) for job in jobs}
    (only,) = documents
    assert sorted((await kb.document(only))["tags"]) == [f"t{number}" for number in range(8)]


async def test_a_text_comes_back_after_its_document_was_removed(kb: Caller) -> None:
    """There is nothing left to be a duplicate of."""
    first = await kb.note("granite")
    await kb.http.delete(f"/api/v1/documents/{first}")
    again = await kb.ended(await kb.submit("granite"))
    assert (again["deduplicated"], await kb.found("granite")) == (False, [again["document_id"]])


@pytest.mark.requirement("E13")
async def test_the_engine_has_no_parameter_for_collections(kb: Caller) -> None:
    """Collections are tags to it."""
    response = await kb.http.post("/api/v1/jobs", json={"text": "x", "collection": "memory"})
    assert problem(response, "unknown_parameter")["parameter"] == "collection"
    response = await kb.http.post("/api/v1/search", json={"query": "x", "collection": "memory"})
    assert problem(response, "unknown_parameter")["parameter"] == "collection"
