"""The life of a job, as its table has it."""

from __future__ import annotations

from typing import get_args

import pytest

from kb_contracts.api.models import FINAL_STATUSES, JobStatus
from kb_contracts.semantics.jobs import TRANSITIONS, Event, after, sources, target


def test_every_state_of_the_contract_is_reached_or_is_the_first() -> None:
    """The table knows all states that a job may show, and no other."""
    assert {"queued", *TRANSITIONS.values()} == set(get_args(JobStatus))


@pytest.mark.parametrize("status", sorted(FINAL_STATUSES))
@pytest.mark.parametrize("event", Event)
def test_nothing_leaves_a_final_state_but_a_failed_job_that_is_tried_again(
    status: JobStatus, event: Event
) -> None:
    """An ended job has ended."""
    assert after(status, event) == ("queued" if (status, event) == ("failed", Event.RETRY) else None)


@pytest.mark.parametrize("event", Event)
def test_an_event_leads_from_its_sources_to_its_target(event: Event) -> None:
    """What a store looks up agrees with the table."""
    assert {after(status, event) for status in sources(event)} == {target(event)}


def test_only_a_running_job_completes() -> None:
    """A queued job was never worked on."""
    assert sources(Event.COMPLETE) == ("running",)
