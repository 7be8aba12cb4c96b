"""Promises on long updates of notes: they become jobs, each runs once, and in order."""

from __future__ import annotations

from functools import partial
from typing import Any

import httpx
import pytest

from kb_contracts.api import models as m
from kb_contracts.api import operations as ops
from kb_verify.client import (
    Client,
    decode,
    fresh_key,
    long_note,
    note_to_await,
    problem,
    skip_as_too_fast,
    together,
)


def updated(kb: Client, job: m.Job) -> m.DocumentDetail:
    return kb.document(kb.completed(job))


def test_an_update_that_takes_long_is_a_job(kb: Client) -> None:
    """It names its note from the start, is listed among the jobs, and ends with the new text."""
    before = kb.stored_note("granite quarry", tags=["a"])
    job = kb.update(before.id, text=note_to_await(1))
    assert (job.kind, job.document_id, job.title, job.tags) == ("update", before.id, before.title, ["a"])
    assert job.id in {each.id for each in kb.call(ops.LIST_JOBS).jobs}
    after = updated(kb, job)
    assert (after.id, after.uid, after.created_at) == (before.id, before.uid, before.created_at)
    assert after.version > before.version
    assert kb.found("granite") == []
    assert kb.found("long1x7", top=1) == [before.id]


def test_a_retry_under_its_key_joins_the_update(kb: Client) -> None:
    """While it runs, the response is its job, afterwards the note of that time: the update has one effect."""
    document, key = kb.stored_note("granite"), fresh_key()
    with kb.adding_jobs(1):
        body: dict[str, Any] = {"text": note_to_await(2)}
        job = kb.update(document.id, key, **body)
        assert kb.update(document.id, key, **body).id == job.id
        version = updated(kb, job).version
        kb.call(ops.ADD_TAGS, document.id, json={"tags": ["later"]})
        for _ in range(2):
            again = decode(kb.patch(document.id, key, **body), m.Document)
            assert (again.id, again.version, again.tags) == (document.id, version, [])


def test_a_retry_that_waits_has_the_answer(kb: Client) -> None:
    """It is not refused although the first request is still in progress."""
    document, key = kb.note("granite"), fresh_key()
    responses = together(*[partial(kb.patch, document, key, text=note_to_await(3))] * 3)
    ended = {decode(response, m.Document).version for response in responses if response.status_code == 200}
    accepted = {decode(response, m.Job, 202).id for response in responses if response.status_code != 200}
    assert len(ended) <= 1
    assert len(accepted) <= 1


def test_another_update_under_its_key_is_a_mismatch(kb: Client) -> None:
    document, key = kb.note("granite"), fresh_key()
    kb.update(document, key, text=long_note(4))
    problem(kb.patch(document, key, text="basalt"), "idempotency_mismatch")


def test_the_same_update_sent_again_joins_it(kb: Client) -> None:
    """A client that lost the response and has no key does not start the update again."""
    document = kb.note("granite")
    first = kb.update(document, text=long_note(5))
    assert kb.update(document, text=long_note(5)).id == first.id


def test_updates_at_once_without_a_version_are_all_done(kb: Client) -> None:
    """Each response has the version that the update made, and the last update determines the text.

    Four, so that even an engine that takes five seconds for each finishes the last one before its request
    ends.
    """
    document = kb.stored_note("granite")
    texts = [f"basalt number {number}" for number in range(4)]
    notes = together(*(partial(kb.patched, document.id, text=text) for text in texts))
    assert sorted(note.version for note in notes) == [document.version + 1 + n for n in range(4)]
    last = texts[max(range(4), key=lambda number: notes[number].version)]
    assert kb.document(document.id).chunks[0].text == last


def test_updates_are_done_in_the_order_of_acceptance(kb: Client) -> None:
    """A short one does not overtake the long one before it."""
    document = kb.note("granite")
    first = kb.update(document, text=note_to_await(6))
    assert kb.patched(document, text="basalt").title == "basalt"
    assert kb.call(ops.GET_JOB, first.id).status == "completed"
    assert kb.found("basalt") == [document]


def test_a_cancelled_update_leaves_the_note(kb: Client) -> None:
    document, key = kb.stored_note("granite"), fresh_key()
    job = kb.update(document.id, key, text=long_note(7))
    response = kb.request(ops.CANCEL_JOB, job.id)
    if response.status_code == 409:
        skip_as_too_fast("the note was changed before that could be cancelled")
    assert decode(response, m.Job).status == "cancelled"
    assert kb.document(document.id) == document
    assert decode(kb.patch(document.id, key, text=long_note(7)), m.Job, 202).status == "cancelled"
    assert kb.patched(document.id, text="basalt").version == document.version + 1


def test_clearing_cancels_updates(kb: Client) -> None:
    job = kb.update(kb.note("granite"), text=long_note(8))
    if kb.clear().jobs_cancelled == 0:
        skip_as_too_fast("the note was changed before it could be cleared away")
    assert kb.call(ops.GET_JOB, job.id).status == "cancelled"


def test_an_expected_version_is_looked_at_again_in_the_end(kb: Client) -> None:
    """A change in between makes the job fail for good, and its key can be used again."""
    document, key = kb.stored_note("granite"), fresh_key()
    job = kb.update(document.id, key, text=note_to_await(9), expected_version=document.version)
    tagged = kb.call(ops.ADD_TAGS, document.id, json={"tags": ["between"]})
    if tagged.version > document.version + 1:
        skip_as_too_fast("the note was changed before it could be tagged")
    ended = kb.ended(job)
    assert ended.status == "failed"
    assert ended.error is not None
    assert ended.error.code == "version_conflict"
    assert not ended.retryable
    kb.refused("job_not_retryable", ops.RETRY_JOB, job.id)
    assert kb.document(document.id).version == document.version + 1
    stale = kb.patch(document.id, key, text=note_to_await(9), expected_version=document.version)
    assert problem(stale, "version_conflict").current_version == document.version + 1


def test_an_update_to_what_stands_changes_nothing(kb: Client) -> None:
    """Repeated submissions of a text do not displace kept versions of the note."""
    before = kb.stored_note("granite quarry", title="Stone")
    for same in (
        {"text": "granite quarry", "title": "Stone"},
        {"text": "granite quarry"},
        {"title": "Stone"},
    ):
        assert kb.patched(before.id, **same).version == before.version
    assert kb.document(before.id) == before
    assert kb.call(ops.LIST_VERSIONS, before.id).total == 0
    assert kb.patched(before.id, title="Rock").version == before.version + 1


def test_what_cannot_be_updated_is_refused_at_once(kb: Client) -> None:
    """Independent of the caller's wait; no job is created."""
    file, before = kb.file("a.txt", b"granite"), kb.call(ops.LIST_JOBS).total
    send: partial[httpx.Response] = partial(
        kb.request, ops.PATCH_NOTE, params={"wait": 0}, json={"text": "basalt"}
    )
    problem(send(file), "not_a_note")
    problem(send(file + 1), "document_not_found")
    assert kb.call(ops.LIST_JOBS).total == before


@pytest.mark.parametrize("wait", [-1, 30.5, "long"])
def test_a_wait_that_is_none_is_refused(kb: Client, wait: Any) -> None:
    """The wait is bounded, so that no proxy between caller and engine times out first."""
    response = kb.request(ops.PATCH_NOTE, 1, params={"wait": wait}, json={"text": "x"})
    assert problem(response, "invalid_parameter").parameter == "wait"
    assert 0 < ops.NoteQuery().wait < 30
