"""The journal lists requests, compares them with expectations, and names near matches."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kb_simulator.determinism import Seeded
from kb_simulator.engine.state import State
from kb_simulator.harness.faults import Fault, FaultRegistry, When
from kb_simulator.harness.journal import (
    Expectation,
    Journal,
    Match,
    RecordedRequest,
    Verification,
    record_request,
    verify,
)


def request(operation: str, tags: list[str] | None = None) -> RecordedRequest:
    path = {"search": "/api/v1/search", "createJob": "/api/v1/jobs"}[operation]
    return record_request("POST", path, "", operation, {}, msgspec.json.encode({"tags": tags or []}))


def journal_of(*requests: RecordedRequest) -> Journal:
    journal = Journal()
    for number, each in enumerate(requests):
        entry = journal.begin(each, float(number))
        entry.status = 200
    return journal


def failures(journal: Journal, **fields: Any) -> tuple[str, ...]:
    return verify(journal, Verification(**fields)).failures


@pytest.mark.parametrize(
    ("bounds", "holds"),
    [
        ({}, True),
        ({"exactly": 2}, True),
        ({"exactly": 1}, False),
        ({"exactly": 0}, False),
        ({"at_least": 2}, True),
        ({"at_least": 3}, False),
        ({"at_most": 1}, False),
        ({"at_least": 1, "at_most": 2}, True),
    ],
)
def test_requests_are_counted(bounds: dict[str, int], holds: bool) -> None:
    journal = journal_of(request("search"), request("createJob"), request("search"))
    wanted = Expectation(match=Match(operation="search"), **bounds)
    assert (failures(journal, expectations=(wanted,)) == ()) is holds


def test_an_unmet_expectation_names_the_nearest_request() -> None:
    journal = journal_of(request("createJob", ["x"]), request("search", ["y"]))
    wanted = Expectation(match=Match(operation="search", tag="x"))
    (text,) = failures(journal, expectations=(wanted,))
    assert text == (
        "POST /api/v1/search with tag 'x' was expected at least once and came never; "
        "the nearest was #2 POST /api/v1/search with tags y, another tag"
    )


def test_an_exceeded_expectation_lists_the_requests_by_number() -> None:
    journal = journal_of(request("search"), request("search"))
    (text,) = failures(journal, expectations=(Expectation(match=Match(operation="search"), exactly=0),))
    assert text == "POST /api/v1/search was expected never and came 2 times: #1, #2"


def test_an_empty_journal_has_nothing_near() -> None:
    (text,) = failures(Journal(), expectations=(Expectation(match=Match(operation="search")),))
    assert text.endswith("the journal holds no other request")


def test_order_is_kept_with_others_between() -> None:
    journal = journal_of(request("search"), request("createJob", ["x"]), request("createJob", ["y"]))
    search, x, y = Match(operation="search"), Match(tag="x"), Match(tag="y")
    assert failures(journal, in_order=(search, y)) == ()
    (text,) = failures(journal, in_order=(y, x))
    assert text == "any request with tag 'x' did not come after any request with tag 'y'; it came as #2"


def test_a_fault_that_never_fired_is_reported_unless_it_is_optional() -> None:
    state = State(Seeded(7), lambda: 0)
    faults = FaultRegistry(state.seeded, lambda: state)
    faults.arm(Fault(name="drip", id="fired", when=When(times=1)))
    faults.arm(Fault(name="hang", id="never", when=When(nth=3)))
    faults.arm(Fault(name="hang", id="optional", when=When(nth=3), optional=True))
    for occurrence in (1, 2):
        faults.decide(request("search"), occurrence, 0.0)
    unfired = faults.unfired()
    assert unfired == ("never (any request) never fired; 1 requests matched",)
    assert verify(Journal(), Verification(), unfired).unfired == unfired


def test_requests_that_fit_no_operation_are_told() -> None:
    """They do not fail the check, because a test may send them on purpose."""
    journal = Journal()
    entry = journal.begin(record_request("POST", "/api/v1/serch", "", None, {}, b""), 0.0)
    entry.code = "route_not_found"
    verdict = verify(journal, Verification())
    assert verdict.strangers == ("POST /api/v1/serch (route_not_found)",)
    assert (verdict.failures, verdict.unfired) == ((), ())


def test_occurrences_count_the_same_request() -> None:
    journal = journal_of(request("search"), request("createJob"), request("search"))
    assert [entry.occurrence for entry in journal] == [1, 1, 2]


def test_the_canonical_form_does_not_depend_on_arrival() -> None:
    one = journal_of(request("search"), request("createJob"), request("search"))
    two = journal_of(request("search"), request("search"), request("createJob"))
    assert one.canonical() == two.canonical()
    assert one.latest(10) != two.latest(10)


def test_the_oldest_entries_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kb_simulator.harness.journal.MOST_ENTRIES", 10)
    journal = Journal()
    for _ in range(15):
        journal.begin(request("search"), 0.0)
    assert (len(journal), journal.dropped) == (10, 5)
    assert journal.latest(1)[0].number == 15
    assert "nothing is certain" in failures(journal, expectations=(Expectation(),))[0]


def test_long_bodies_are_not_kept_whole() -> None:
    entry = Journal().begin(record_request("POST", "/p", "", None, {}, b"x" * 10_000), 0.0)
    assert len(entry.request.body) == 4096
