"""How a retry is recognised, and that two requests of one key never run at once."""

from __future__ import annotations

from typing import Any

import pytest

from kb_contracts.api.errors import EngineError
from kb_contracts.api.models import FileFields, NoteRequest
from kb_contracts.semantics.requests import KeysInUse, check_same_request, request_fingerprint

NOTE = NoteRequest(text="Bees keep warm.", metadata={"a": 1, "b": 2})
FIELDS = FileFields(title="Report")
BASE: dict[str, Any] = {"path": {"job_id": "x"}, "query": None, "body": NOTE, "if_match": None}


@pytest.mark.parametrize(
    "change",
    [
        {"path": {"job_id": "y"}},
        {"query": FIELDS},
        {"body": NoteRequest(text="Bees keep warm!")},
        {"if_match": 1},
        {"file": ("a.txt", "0" * 64, FIELDS)},
    ],
)
def test_any_other_parameter_is_another_request(change: dict[str, Any]) -> None:
    assert request_fingerprint(**BASE) != request_fingerprint(**{**BASE, **change})


def test_a_file_counts_by_its_name_its_content_and_its_fields() -> None:
    kinds = [
        ("a.txt", "0" * 64, FIELDS),
        ("b.txt", "0" * 64, FIELDS),
        ("a.txt", "1" * 64, FIELDS),
        ("a.txt", "0" * 64, FileFields()),
    ]
    assert len({request_fingerprint(**BASE, file=file) for file in kinds}) == len(kinds)


def test_the_order_of_members_does_not_count() -> None:
    turned = NoteRequest(text=NOTE.text, metadata={"b": 2, "a": 1})
    assert request_fingerprint(**BASE) == request_fingerprint(**{**BASE, "body": turned})


def test_a_key_with_another_request_is_refused() -> None:
    check_same_request("k", "one", "one")
    with pytest.raises(EngineError) as refused:
        check_same_request("k", "one", "two")
    assert refused.value.code == "idempotency_mismatch"


def test_a_key_in_use_keeps_a_second_request_out_until_the_first_has_ended() -> None:
    keys = KeysInUse()
    with keys.hold("me", "createJob", "k"):
        with pytest.raises(EngineError) as refused, keys.hold("me", "createJob", "k"):
            pass
        with (
            keys.hold("you", "createJob", "k"),
            keys.hold("me", "cancelJob", "k"),
            keys.hold("me", "createJob", "other"),
        ):
            pass
    assert (refused.value.code, refused.value.members["retry_after"]) == ("in_progress", 1.0)
    with keys.hold("me", "createJob", "k"):
        pass


def test_a_key_is_free_again_after_a_failure() -> None:
    keys = KeysInUse()
    with pytest.raises(LookupError), keys.hold("me", "createJob", "k"):
        raise LookupError
    with keys.hold("me", "createJob", "k"):
        pass


def test_requests_without_a_key_do_not_exclude_each_other() -> None:
    keys = KeysInUse()
    with keys.hold("me", "createJob", None), keys.hold("me", "createJob", None):
        pass
