"""The requirements and the tests of this project agree, both ways."""

from __future__ import annotations

from pathlib import Path

import pytest

from kb_verify.requirements import load
from tests.requirements.claims import SUITE, check, collect_claims

TESTS = Path(__file__).parents[1]


def test_every_requirement_has_a_test_and_every_test_a_known_requirement() -> None:
    """No requirement without a test or a reason, no claim of an unknown or a deferred one."""
    complaints = check(load(), collect_claims(TESTS, SUITE))
    assert not complaints, "\n".join(complaints)


@pytest.mark.requirement("E36")
def test_the_capabilities_of_this_version_are_named_and_proven() -> None:
    """Each capability is documented with the requirements that make it up; `check` holds them to tests."""
    named = {capability.name: capability for capability in load().capabilities}
    assert named.keys() == {"mcp-server", "note-mutation", "agent-search-patterns", "engine-api", "client"}
    assert all(capability.text and capability.requirements for capability in named.values())
