"""How jobs end, as a text says it: by flag or by variable, for every namespace."""

from __future__ import annotations

import pytest

from kb_config.settings import SettingsError
from kb_simulator import AfterPolls, AfterTime, AtOnce, FailAt, SimulatorSettings, Stuck
from kb_simulator.engine.jobs import Policy, policy_of
from kb_simulator.harness.namespaces import Namespaces


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("at-once", AtOnce()),
        ("polls", AfterPolls()),
        ("polls:7", AfterPolls(polls=7)),
        ("seconds", AfterTime()),
        ("seconds:2", AfterTime(seconds=2.0)),
        ("seconds:0.25", AfterTime(seconds=0.25)),
        ("stuck", Stuck()),
        ("stuck:queued", Stuck(step="queued")),
        ("fail", FailAt()),
        ("fail:Extracting text", FailAt(step="Extracting text")),
    ],
)
def test_every_policy_has_a_text(text: str, policy: Policy) -> None:
    assert policy_of(text) == policy


@pytest.mark.parametrize(
    "text",
    [
        "", "later", "at-once:1", "polls:", "polls:0", "polls:many", "polls:2.5", "seconds:0", "seconds:-1",
        "seconds:nan", "seconds:inf", "stuck:", "stuck:Storing it", "fail:queued", "polls:3:4",
    ],
)  # fmt: skip
def test_what_is_no_policy_is_refused_by_the_name_of_its_variable(text: str) -> None:
    with pytest.raises(SettingsError, match=r"^KB_SIM_JOBS='.*: takes at-once, polls:N, seconds:S, stuck"):
        SimulatorSettings(jobs=text)


def test_a_step_that_there_is_not_is_told_with_those_there_are() -> None:
    """Nobody knows them by heart."""
    with pytest.raises(ValueError, match=r"no step 'Sorting'.*Extracting text, Splitting into chunks"):
        policy_of("fail:Sorting")


def test_every_namespace_begins_with_the_policy_and_goes_back_to_it() -> None:
    """The control plane may set another one, until the namespace is reset."""
    namespaces = Namespaces(seed=7, policy=Stuck())
    for name in ("default", "another"):
        namespace = namespaces.get(name)
        assert namespace.state.policy == Stuck()
        namespace.state.policy = AtOnce()
        namespace.reset()
        assert namespace.state.policy == Stuck()
