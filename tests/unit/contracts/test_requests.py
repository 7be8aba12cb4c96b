"""Recognition of retries, exclusion of concurrent requests with one key, and rate limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from kb_contracts.api.errors import EngineError
from kb_contracts.api.models import FileFields, NoteRequest
from kb_contracts.api.ragler import LIMITS
from kb_contracts.semantics.requests import KeysInUse, RateWindows, check_same_request, request_fingerprint

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


@dataclass
class Timeline:
    """Rate windows on a manual clock, in microseconds."""

    max_windows: int = 20_000
    now: int = 1_000_000_000
    windows: RateWindows = field(init=False)

    def __post_init__(self) -> None:
        self.windows = RateWindows(lambda: self.now, self.max_windows)

    def call(
        self, *, operation: str = "listCollections", user: str | None = "u", credential: str = "c"
    ) -> None:
        self.windows.count(operation, user, credential)

    def calls_until_refused(self, **call: str | None) -> int:
        """Return the number of calls before the first refusal."""
        one: Callable[..., None] = self.call
        for taken in range(1_000):
            try:
                one(**call)
            except EngineError as error:
                if error.code != "rate_limited":
                    raise
                return taken
        raise AssertionError("no call was refused")


@pytest.mark.requirement("R50", "R51", "R52")
@pytest.mark.parametrize(
    ("operation", "limit"), [("vectorSearch", 100), ("listCollections", 20), ("getCollection", 50)]
)
def test_so_many_calls_are_taken(operation: str, limit: int) -> None:
    assert LIMITS[operation] == limit
    assert Timeline().calls_until_refused(operation=operation) == limit


@pytest.mark.requirement("R53")
def test_a_window_is_60_000_milliseconds_from_the_first_call() -> None:
    """Not a millisecond less; refused calls neither count nor extend the window."""
    timeline = Timeline()
    timeline.call()
    timeline.now += 59_999_000
    assert timeline.calls_until_refused() == 19
    assert timeline.calls_until_refused() == 0
    timeline.now += 1_000
    assert timeline.calls_until_refused() == 20


def test_a_refusal_says_what_is_left_of_the_window() -> None:
    """In milliseconds, rounded up: a call after that time is accepted."""
    timeline = Timeline()
    timeline.calls_until_refused()
    timeline.now += 12_345_600
    with pytest.raises(EngineError) as refused:
        timeline.call()
    assert refused.value.members["retry_after"] == 47.655
    timeline.now += 47_655_000
    timeline.call()


def test_users_are_counted_apart_and_without_one_the_credential() -> None:
    """A user whose name equals a credential is counted separately."""
    timeline = Timeline()
    for user in ("a", "b", "c", None):
        assert timeline.calls_until_refused(user=user) == 20
    assert timeline.calls_until_refused(user=None, credential="d") == 20
    assert timeline.calls_until_refused(user="a", credential="d") == 0


def test_a_flood_of_users_takes_no_more_than_its_memory() -> None:
    """Expired windows are dropped at once, then the oldest ones."""
    timeline = Timeline(max_windows=100)
    assert timeline.calls_until_refused(user="first") == 20
    for number in range(99):
        timeline.call(user=f"u{number}")
    assert timeline.calls_until_refused(user="first") == 0
    for number in range(10_000):
        timeline.call(user=f"v{number}")
    assert len(timeline.windows) == 100
    assert timeline.calls_until_refused(user="first") == 20
    timeline.now += 60_000_000
    timeline.call(user="later")
    assert len(timeline.windows) == 1
