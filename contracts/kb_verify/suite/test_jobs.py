"""Promises on jobs: accepted, followed, cancelled, deduplicated."""

from __future__ import annotations

import hashlib
from datetime import datetime
from functools import partial
from typing import Any

import pytest

from kb_contracts.api import operations as ops
from kb_verify.client import Client, cancelled, fresh_key, long_note, problem, skip_as_too_fast, together

ABSENT = "00000000-0000-4000-8000-000000000000"


def test_a_note_is_accepted_as_a_job(kb: Client) -> None:
    job = kb.submit("User prefers concise responses", title="Preference", tags=["collection:memory"])
    assert (job.status, job.kind, job.title) == ("queued", "note", "Preference")
    assert (job.tags, job.document_id, job.error) == (["collection:memory"], None, None)


def test_a_completed_job_names_its_document(kb: Client) -> None:
    """By number and by uid; all steps are done."""
    ended = kb.ended(kb.submit("granite"))
    assert ended.document_id is not None
    document = kb.document(ended.document_id)
    assert (ended.status, ended.progress, ended.error) == ("completed", 1.0, None)
    assert ended.document_uid == document.uid
    assert ended.completed_steps == ended.total_steps
    assert ended.attempts >= 1


def test_a_job_tells_its_times_in_order(kb: Client) -> None:
    ended = kb.ended(kb.submit("granite"))
    assert ended.started_at is not None
    assert ended.finished_at is not None
    assert ended.created_at <= ended.started_at <= ended.finished_at
    assert ended.created_at.endswith("Z")


def test_a_note_keeps_what_came_with_it(kb: Client) -> None:
    """Title, tags once each, metadata, source path; the chunks contain the whole text."""
    fields = {"title": "Stone", "metadata": {"n": {"m": [1]}}, "source_path": "m/x.md"}
    document = kb.stored_note("granite", tags=["b", "a", "b"], **fields)
    assert (document.title, document.doc_type, document.source_path) == ("Stone", "note", "m/x.md")
    assert (sorted(document.tags), document.metadata) == (["a", "b"], {"n": {"m": [1]}})
    assert [chunk.text for chunk in document.chunks] == ["granite"]


@pytest.mark.parametrize("text", [" ", "\n\t \u3000", "\u2028"])
def test_a_note_of_white_space_is_refused(kb: Client, text: str) -> None:
    assert kb.refused("invalid_parameter", ops.CREATE_JOB, json={"text": text}).parameter == "text"


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
def test_a_note_that_does_not_fit_is_refused_by_name(
    kb: Client, body: dict[str, Any], code: str, parameter: str
) -> None:
    with kb.adding_jobs(0):
        assert kb.refused(code, ops.CREATE_JOB, json=body).parameter == parameter


@pytest.mark.parametrize(
    "content", [b'{"text": "\xed\xa0\x80"}', b'{"text": "\\ud800"}', b'{"text": "\xff"}']
)
def test_a_text_that_is_no_unicode_is_refused(kb: Client, content: bytes) -> None:
    """Half of a surrogate pair is not a character."""
    response = kb.request(ops.CREATE_JOB, content=content, headers={"Content-Type": "application/json"})
    problem(response, "invalid_request")


def test_a_note_over_the_limit_is_refused(kb: Client) -> None:
    kb.refused("invalid_parameter", ops.CREATE_JOB, json={"text": "x" * 1_000_001})


def test_waiting_answers_when_the_job_ends(kb: Client) -> None:
    assert kb.call(ops.GET_JOB, kb.submit("granite").id, params={"wait": 30}).status == "completed"


def test_waiting_in_vain_answers_the_job_as_it_is(kb: Client) -> None:
    """A long note is not ingested within a hundredth of a second; the response is its job nevertheless."""
    job = kb.call(ops.GET_JOB, kb.submit(long_note(0)).id, params={"wait": 0.01})
    if job.status == "completed":
        skip_as_too_fast("a long note was taken in within a hundredth of a second")
    assert job.status in {"queued", "running"}
    assert job.finished_at is None
    assert job.document_id is None


@pytest.mark.parametrize("wait", ["31", "-1", "soon"])
def test_a_wait_out_of_range_is_refused(kb: Client, wait: str) -> None:
    kb.refused("invalid_parameter", ops.GET_JOB, ABSENT, params={"wait": wait}, parameter="wait")


def test_an_unknown_job_is_not_found(kb: Client) -> None:
    kb.refused("job_not_found", ops.GET_JOB, ABSENT)
    kb.refused("job_not_found", ops.CANCEL_JOB, ABSENT)


@pytest.mark.parametrize("job_id", ["1", "x" * 36, "..%2F..%2Fetc"])
def test_what_is_no_job_id_is_refused(kb: Client, job_id: str) -> None:
    response = kb.http.get(f"/api/v1/jobs/{job_id}")
    problem(response, "route_not_found" if response.status_code == 404 else "invalid_parameter")


def test_jobs_are_listed_newest_first_page_by_page(kb: Client) -> None:
    """`total` counts all of them on every page."""
    before = kb.call(ops.LIST_JOBS).total
    ids = [kb.submit(f"granite {number}").id for number in range(3)]
    first, second = (
        kb.call(ops.LIST_JOBS, params={"limit": 2}),
        kb.call(ops.LIST_JOBS, params={"limit": 2, "offset": 2}),
    )
    assert [job.id for job in first.jobs + second.jobs[:1]] == ids[::-1]
    assert (first.total, second.total) == (before + 3, before + 3)
    assert (first.limit, first.offset, second.offset) == (2, 0, 2)


def test_jobs_are_filtered_by_status(kb: Client) -> None:
    good = kb.ended(kb.submit("granite"))
    bad = kb.ended(kb.send("a.txt", b"\xff\xfe\xfd"))
    failed, completed = (
        kb.call(ops.LIST_JOBS, params={"status": "failed"}),
        kb.call(ops.LIST_JOBS, params={"status": "completed"}),
    )
    assert (failed.jobs[0].id, completed.jobs[0].id) == (bad.id, good.id)
    assert {job.status for job in failed.jobs} == {"failed"}
    assert {job.status for job in completed.jobs} == {"completed"}


def test_a_cancelled_job_leaves_nothing(kb: Client) -> None:
    """The cancellation is final, and the job can still be read."""
    job = cancelled(kb)
    assert (job.status, job.document_id) == ("cancelled", None)
    assert job.finished_at is not None
    assert kb.call(ops.GET_JOB, job.id, params={"wait": 30}).status == "cancelled"
    document = kb.note("granite")
    assert document in kb.listed()
    assert job.id in {each.id for each in kb.call(ops.LIST_JOBS, params={"status": "cancelled"}).jobs}
    assert kb.found("long0x7") == [] or kb.call(ops.GET_JOB, job.id).document_id is None


def test_a_job_that_has_ended_cannot_be_cancelled(kb: Client) -> None:
    job = kb.submit("granite")
    document = kb.completed(job)
    kb.refused("job_finished", ops.CANCEL_JOB, job.id)
    assert kb.call(ops.GET_JOB, job.id).status == "completed"
    assert kb.listed() == [document]


def test_a_cancelled_job_cannot_be_cancelled_again(kb: Client) -> None:
    kb.refused("job_finished", ops.CANCEL_JOB, cancelled(kb).id)


def test_a_failed_job_can_be_tried_again(kb: Client) -> None:
    """It keeps its id and input; here the bytes are invalid, so it fails with the same error."""
    failed = kb.ended(kb.send("a.txt", b"\xff\xfe\xfd"))
    assert (failed.status, failed.retryable) == ("failed", True)
    again = kb.call(ops.RETRY_JOB, failed.id)
    assert (again.id, again.status, again.error) == (failed.id, "queued", None)
    assert (again.finished_at, again.retryable) == (None, False)
    ended = kb.ended(again)
    assert (ended.status, ended.error and ended.error.code) == ("failed", failed.error and failed.error.code)
    assert ended.retryable
    assert kb.call(ops.LIST_JOBS, params={"status": "failed"}).jobs[0].id == failed.id


def test_only_a_failed_job_can_be_tried_again(kb: Client) -> None:
    completed = kb.ended(kb.submit("granite"))
    assert not completed.retryable
    kb.refused("job_not_retryable", ops.RETRY_JOB, completed.id)
    assert kb.call(ops.GET_JOB, completed.id).status == "completed"
    kb.refused("job_not_retryable", ops.RETRY_JOB, cancelled(kb).id)
    kb.refused("job_not_found", ops.RETRY_JOB, ABSENT)


def test_a_job_tells_how_long_it_took_by_its_own_times(kb: Client) -> None:
    """`elapsed_seconds` is from start to end, by one clock; an ended job has no remaining time."""
    ended = kb.ended(kb.submit("granite"))
    assert ended.started_at is not None
    assert ended.finished_at is not None
    took = datetime.fromisoformat(ended.finished_at) - datetime.fromisoformat(ended.started_at)
    assert ended.elapsed_seconds == pytest.approx(took.total_seconds(), abs=0.01)
    assert ended.estimated_seconds is None


def test_the_same_text_twice_in_a_scope_is_one_document(kb: Client) -> None:
    """Tags are merged and the further source path is added."""
    first = kb.note("granite", tags=["a"], source_path="one", dedup_scope="s")
    again = kb.ended(kb.submit("granite", tags=["b"], source_path="two", dedup_scope="s"))
    assert (again.deduplicated, again.document_id) == (True, first)
    document = kb.document(first)
    assert sorted(document.tags) == ["a", "b"]
    assert document.source_paths == ["one", "two"]
    assert kb.listed(source_path="two") == [first]


def test_trailing_white_space_makes_no_other_note(kb: Client) -> None:
    """Text and SHA-256 remain those of the first submission; leading white space is significant."""
    text = "granite\n"
    first = kb.note(text)
    again = [kb.ended(kb.submit(each)) for each in ("granite", text, "granite \t\u3000\r\n")]
    assert [(job.deduplicated, job.document_id) for job in again] == [(True, first)] * 3
    document = kb.document(first)
    assert (document.sha256, document.size_bytes) == (hashlib.sha256(text.encode()).hexdigest(), 8)
    assert kb.ended(kb.submit(" granite")).deduplicated is False


def test_an_updated_note_is_known_without_its_trailing_white_space(kb: Client) -> None:
    changed = kb.note("granite")
    kb.ended(kb.update(changed, fresh_key(), text="basalt \n"))
    assert kb.ended(kb.submit("basalt")).document_id == changed
    assert kb.ended(kb.submit("granite")).document_id != changed


def test_the_same_text_in_another_scope_is_another_document(kb: Client) -> None:
    """Deduplication never crosses the borders of a scope."""
    one = kb.note("granite", dedup_scope="s")
    two = kb.ended(kb.submit("granite", dedup_scope="t"))
    assert two.deduplicated is False
    assert two.document_id != one


def test_a_note_and_a_file_of_the_same_text_are_two(kb: Client) -> None:
    assert kb.note("granite") != kb.file("a.txt", b"granite")
    assert kb.call(ops.LIST_DOCUMENTS).total == 2


def test_a_text_submitted_many_times_at_once_is_one_document(kb: Client) -> None:
    """Duplicates are detected when they are stored, not when they are accepted."""
    submit = [partial(kb.submit, "granite", tags=[f"t{number}"]) for number in range(8)]
    documents = {kb.completed(job) for job in together(*submit)}
    (only,) = documents
    assert sorted(kb.document(only).tags) == [f"t{number}" for number in range(8)]


def test_a_text_comes_back_after_its_document_was_removed(kb: Client) -> None:
    kb.call(ops.DELETE_DOCUMENT, kb.note("granite"))
    again = kb.ended(kb.submit("granite"))
    assert (again.deduplicated, kb.found("granite")) == (False, [again.document_id])


@pytest.mark.requirement("E13")
def test_the_engine_has_no_parameter_for_collections(kb: Client) -> None:
    for operation, body in (("createJob", {"text": "x"}), ("search", {"query": "x"})):
        response = kb.request(ops.BY_ID[operation], json={**body, "collection": "memory"})
        assert problem(response, "unknown_parameter").parameter == "collection"
