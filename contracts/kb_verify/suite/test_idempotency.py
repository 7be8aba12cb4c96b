"""Promises on `Idempotency-Key`: a retried mutation has one effect and the same response."""

from __future__ import annotations

from functools import partial

import pytest

from kb_contracts.api import models as m
from kb_contracts.api import operations as ops
from kb_verify.client import (
    Client,
    cancelled,
    decode,
    fresh_key,
    long_note,
    problem,
    skip_as_too_fast,
    together,
)
from kb_verify.files import pdf


def test_a_retried_note_is_the_same_job(kb: Client) -> None:
    """Even if its JSON is formatted differently."""
    key = fresh_key()
    with kb.adding_jobs(1):
        first = kb.call(ops.CREATE_JOB, json={"text": "granite", "tags": ["a"]}, headers=key)
        kb.completed(first)
        again = kb.request(
            ops.CREATE_JOB,
            content=b'{ "tags": ["a"],  "text": "gr\\u0061nite" }',
            headers={**key, "Content-Type": "application/json"},
        )
        assert decode(again, m.Job, 202) == first


def test_a_key_with_another_request_is_a_mismatch(kb: Client) -> None:
    key = fresh_key()
    with kb.adding_jobs(1):
        kb.call(ops.CREATE_JOB, json={"text": "granite"}, headers=key)
        kb.refused("idempotency_mismatch", ops.CREATE_JOB, json={"text": "basalt"}, headers=key)


def test_a_retried_file_is_the_same_job(kb: Client) -> None:
    """Its bytes, name and fields are compared."""
    key = fresh_key()
    with kb.adding_jobs(1):
        first = kb.send("a.txt", b"granite", key, title="Stone")
        assert kb.send("a.txt", b"granite", key, title="Stone") == first
        for name, data, title in (
            ("a.txt", b"basalt", "Stone"),
            ("b.txt", b"granite", "Stone"),
            ("a.txt", b"granite", "X"),
        ):
            response = kb.request(
                ops.CREATE_JOB, files={"file": (name, data)}, data={"title": title}, headers=key
            )
            problem(response, "idempotency_mismatch")


def test_forced_ocr_is_another_request(kb: Client) -> None:
    key = fresh_key()
    with kb.adding_jobs(1):
        kb.completed(kb.send("a.pdf", pdf(["granite"]), key))
        response = kb.request(
            ops.CREATE_JOB,
            files={"file": ("a.pdf", pdf(["granite"]))},
            data={"force_ocr": "true"},
            headers=key,
        )
        problem(response, "idempotency_mismatch")


def test_a_key_belongs_to_its_operation(kb: Client) -> None:
    key = fresh_key()
    document = kb.completed(kb.call(ops.CREATE_JOB, json={"text": "x"}, headers=key))
    assert kb.call(ops.DELETE_DOCUMENT, document, headers=key).documents == 1


def test_a_retried_removal_answers_as_it_did(kb: Client) -> None:
    """Even though the document no longer exists."""
    document, key = kb.note("granite"), fresh_key()
    first = kb.call(ops.DELETE_DOCUMENT, document, headers=key)
    assert kb.call(ops.DELETE_DOCUMENT, document, headers=key) == first


def test_a_retried_clearing_removes_nothing_more(kb: Client) -> None:
    key = fresh_key()
    kb.note("granite")
    first = kb.clear(key)
    later = kb.note("basalt")
    assert kb.clear(key) == first
    assert kb.listed() == [later]


def test_a_retried_cancel_answers_as_it_did(kb: Client) -> None:
    """Even though an ended job cannot be cancelled."""
    cancelled(kb)
    key, job_id = fresh_key(), kb.submit(long_note(99)).id
    first = kb.request(ops.CANCEL_JOB, job_id, headers=key)
    if first.status_code == 409:
        skip_as_too_fast("a long note was taken in before it could be cancelled")
    assert kb.call(ops.CANCEL_JOB, job_id, headers=key) == decode(first, m.Job)


def test_a_retried_retry_answers_as_it_did(kb: Client) -> None:
    """Even though a waiting job cannot be retried."""
    key, failed = fresh_key(), kb.ended(kb.send("a.txt", b"\xff\xfe\xfd"))
    first = kb.call(ops.RETRY_JOB, failed.id, headers=key)
    kb.ended(first)
    assert kb.call(ops.RETRY_JOB, failed.id, headers=key) == first
    another = kb.ended(kb.send("b.txt", b"\xff\xfe"))
    kb.refused("idempotency_mismatch", ops.RETRY_JOB, another.id, headers=key)


def test_a_retried_patch_answers_as_it_did(kb: Client) -> None:
    """Even though the request itself has raised the expected version."""
    document, key = kb.stored_note("granite"), fresh_key()
    body = {"text": "basalt", "expected_version": document.version}
    first = decode(kb.patch(document.id, key, **body), m.Document)
    assert decode(kb.patch(document.id, key, **body), m.Document) == first
    problem(kb.patch(document.id, key, text="marble"), "idempotency_mismatch")


def test_retried_tag_changes_answer_as_they_did(kb: Client) -> None:
    """Also with `If-Match`, although they have raised that version."""
    document, key = kb.stored_note("granite"), fresh_key()
    headers = {**key, "If-Match": str(document.version)}
    first = kb.call(ops.ADD_TAGS, document.id, json={"tags": ["a"]}, headers=headers)
    assert kb.call(ops.ADD_TAGS, document.id, json={"tags": ["a"]}, headers=headers) == first
    gone = kb.call(ops.REMOVE_TAG, document.id, "a", headers=key)
    assert kb.call(ops.REMOVE_TAG, document.id, "a", headers=key) == gone


def test_a_refused_request_spends_no_key(kb: Client) -> None:
    key = fresh_key()
    kb.refused("invalid_parameter", ops.CREATE_JOB, json={"text": " "}, headers=key)
    kb.call(ops.CREATE_JOB, json={"text": "granite"}, headers=key)


def test_of_retries_at_once_one_job_comes(kb: Client) -> None:
    """Each gets the job, or the error that the request is still running."""
    key = fresh_key()
    with kb.adding_jobs(1):
        send = partial(kb.request, ops.CREATE_JOB, json={"text": "granite"}, headers=key)
        responses = together(*[send] * 10)
        accepted = {decode(each, m.Job, 202).id for each in responses if each.status_code == 202}
        assert len(accepted) == 1
    for response in responses:
        if response.status_code != 202:
            problem(response, "in_progress")
            assert int(response.headers["Retry-After"]) >= 1


@pytest.mark.parametrize("key", ["", "x" * 256, "a\tb", "é"])
def test_a_key_that_is_no_key_is_refused(kb: Client, key: str) -> None:
    response = kb.request(ops.CREATE_JOB, json={"text": "x"}, headers=[(b"Idempotency-Key", key.encode())])
    assert problem(response, "invalid_parameter").parameter == "Idempotency-Key"
