"""The state keeps the promises of the contract, and depends neither on chance nor on the wall clock."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_config.settings import SettingsError
from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_contracts.semantics.requests import KEPT_SECONDS, Idempotency
from kb_simulator import SimulatorSettings
from kb_simulator.engine.jobs import AfterPolls, AfterTime, AtOnce, FailAt, Policy, Stuck, policy_of
from kb_simulator.engine.search import FLOOR, SATURATION, WEIGHT, search
from kb_simulator.engine.state import KEPT_ENDED_JOBS
from kb_simulator.harness.namespaces import Namespaces
from kb_verify.scores import explained
from tests.unit.simulator.parts import Base


@pytest.fixture
def base() -> Base:
    return Base()


def code_of(action: Callable[[], object]) -> str:
    with pytest.raises(EngineError) as caught:
        action()
    return caught.value.code


def retry(key: str = "key", asked: str = "a", credential: str = "me") -> Idempotency:
    return Idempotency(credential=credential, operation="operation", key=key, fingerprint=asked)


def test_a_note_is_accepted_queued_and_done_when_somebody_looks(base: Base) -> None:
    """An engine also starts the work after its response."""
    job = base.submit("granite", title="Stone", tags=["a", "b", "a"])
    assert (job.status, job.title, job.tags, job.document_id) == ("queued", "Stone", ["a", "b"], None)
    ended = base.state.job(job.id)
    assert (ended.status, ended.progress, ended.document_id, ended.attempts) == ("completed", 1.0, 1, 1)


def test_a_document_outside_of_its_scope_is_no_duplicate(base: Base) -> None:
    """If the scope is a tag, the document must still have it."""
    first = base.note("granite", tags=["collection:a"], dedup_scope="collection:a")
    base.state.documents.remove_tag(first, "collection:a", None, now=0)
    assert base.note("granite", tags=["collection:a"], dedup_scope="collection:a") != first


# --- jobs -----------------------------------------------------------------------------------------


def test_a_job_can_end_after_so_many_polls(base: Base) -> None:
    base.state.policy = AfterPolls(polls=3)
    job = base.submit("granite")
    assert base.state.job(job.id).progress == 0
    seen = [base.state.poll(job.id) for _ in range(3)]
    assert [(each.status, each.progress) for each in seen] == [
        ("running", 0.3333), ("running", 0.6667), ("completed", 1.0)
    ]  # fmt: skip


def test_a_job_can_end_after_a_time(base: Base) -> None:
    base.state.policy = AfterTime(seconds=10)
    job = base.submit("granite")
    base.clock.advance(5)
    assert (base.state.job(job.id).status, base.state.job(job.id).progress) == ("running", 0.5)
    assert base.state.seconds_to_end(job.id) == 5
    base.clock.advance(3600)
    ended = base.state.job(job.id)
    assert (ended.status, ended.finished_at) == ("completed", "2026-01-01T00:00:10.000000Z")
    assert base.found("granite") == [ended.document_id]


@pytest.mark.parametrize(("step", "status"), [("Generating embeddings", "running"), ("queued", "queued")])
def test_a_job_can_be_stuck(base: Base, step: str, status: str) -> None:
    base.state.policy = Stuck(step=step)
    job = base.submit("granite")
    base.clock.advance(1e6)
    stuck = base.state.poll(job.id)
    assert (stuck.status, stuck.step, base.state.seconds_to_end(job.id)) == (status, step, None)
    assert base.state.cancel(job.id).status == "cancelled"
    assert base.state.documents.by_id == {}


def test_a_job_can_fail_at_a_step(base: Base) -> None:
    base.state.policy = FailAt(step="Storing", code="storage_full", message="no room")
    job = base.state.job(base.submit("granite").id)
    assert (job.status, job.step, job.completed_steps) == ("failed", "Storing", 3)
    assert job.error == m.JobError(code="storage_full", message="no room")


def test_a_job_keeps_the_policy_it_came_under(base: Base) -> None:
    base.state.policy = Stuck()
    stuck = base.submit("granite")
    base.state.policy = AfterPolls(polls=1)
    assert base.state.poll(stuck.id).status == "running"
    assert base.state.poll(base.submit("copper").id).status == "completed"


@pytest.mark.parametrize(
    "policy", [lambda: Stuck(step="Dreaming"), lambda: FailAt(step="Dreaming"), lambda: FailAt(code="dream")]
)
def test_a_policy_knows_its_steps_and_codes(policy: Callable[[], object]) -> None:
    with pytest.raises(
        ValueError, match=r"no (step|error code) .*; it is one of (queued|Extracting text|[a-z_]+), "
    ):
        policy()


def test_a_failed_job_is_tried_again_as_the_policy_of_then_has_it(base: Base) -> None:
    base.state.policy = FailAt()
    job = base.submit("granite")
    assert base.state.job(job.id).retryable
    base.state.policy = AfterTime(seconds=5)
    again = base.state.retry_job(job.id)
    assert (again.id, again.status, again.error, again.estimated_seconds) == (job.id, "queued", None, 5.0)
    assert code_of(lambda: base.state.retry_job(job.id)) == "job_not_retryable"
    base.clock.advance(6)
    done = base.state.job(job.id)
    assert (done.status, done.attempts, done.elapsed_seconds) == ("completed", 2, 5.0)


def test_too_many_waiting_jobs_are_refused(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kb_simulator.engine.state.MAX_WAITING_JOBS", 3)
    base.state.policy = Stuck()
    for _ in range(3):
        base.submit("granite")
    assert code_of(lambda: base.submit("copper")) == "queue_full"
    base.state.clear()
    assert base.submit("copper").status == "queued"


@pytest.mark.process
def test_the_oldest_ended_jobs_are_forgotten(base: Base) -> None:
    base.state.policy = Stuck()
    waiting = base.submit("granite")
    base.state.policy = AtOnce()
    first, second, *_ = [base.submit("copper") for _ in range(KEPT_ENDED_JOBS + 1)]
    assert base.state.job(waiting.id).status == "running"
    assert base.state.job(second.id).status == "completed"
    assert code_of(lambda: base.state.job(first.id)) == "job_not_found"


# --- changing -------------------------------------------------------------------------------------


def test_a_retitled_note_is_found_by_its_title(base: Base) -> None:
    number = base.note("granite", title="Stone")
    base.patch(number, title="Rock")
    assert (base.found("stone"), base.found("rock")) == ([], [number])


def test_updates_of_a_note_take_their_turns(base: Base) -> None:
    number = base.note("granite")
    base.state.policy = AfterTime(seconds=5)
    first, second = base.update(number, text="basalt"), base.update(number, text="copper")
    assert (base.state.job(first.id).status, base.state.job(second.id).status) == ("running", "queued")
    assert base.state.seconds_to_end(second.id) == pytest.approx(10, abs=0.001)
    base.clock.advance(6)
    assert [base.state.job(job.id).status for job in (first, second)] == ["completed", "running"]
    base.clock.advance(6)
    outcome = base.state.outcome(second.id)
    assert isinstance(outcome, m.Document)
    assert (outcome.title, outcome.version) == ("copper", 3)
    assert base.state.outcome(first.id) != outcome


def test_polls_end_no_update_before_the_one_ahead(base: Base) -> None:
    number = base.note("granite")
    base.state.policy = AfterPolls(polls=1)
    first, second = base.update(number, text="basalt"), base.update(number, text="copper")
    assert base.state.poll(second.id).status == "queued"
    assert base.state.poll(first.id).status == "completed"
    assert base.state.poll(second.id).status == "completed"


def test_a_cancelled_update_lets_the_next_one_begin(base: Base) -> None:
    number = base.note("granite")
    base.state.policy = Stuck()
    first = base.update(number, text="basalt")
    base.state.policy = AtOnce()
    second = base.update(number, text="copper")
    assert base.state.job(second.id).status == "queued"
    base.state.cancel(first.id)
    assert base.state.job(second.id).status == "completed"
    assert base.found("copper") == [number]


def test_a_copy_of_the_state_goes_on_with_its_updates(base: Base) -> None:
    number = base.note("granite")
    base.state.policy = AfterTime(seconds=5)
    base.update(number, text="basalt")
    twin = base.state.copy()
    base.update(number, text="copper")
    base.clock.advance(20)
    assert (twin.documents.find(number).document.title, base.found("copper")) == ("basalt", [number])


def test_an_update_fails_as_its_policy_says_and_its_key_is_free(base: Base) -> None:
    number = base.note("granite")
    base.state.policy = FailAt(code="storage_full")
    failed = base.update(number, retry(), text="basalt")
    assert code_of(lambda: base.state.outcome(failed.id)) == "storage_full"
    base.state.policy = AtOnce()
    assert base.update(number, retry(), text="basalt").id != failed.id
    assert base.found("basalt") == [number]


# --- retries --------------------------------------------------------------------------------------


def test_an_answer_is_forgotten_after_a_day(base: Base) -> None:
    number = base.note("granite")

    def delete() -> m.Removed:
        return base.state.once(retry(), lambda now: base.state.documents.remove_one(number, now))

    delete()
    base.clock.advance(KEPT_SECONDS - 1)
    assert (delete().documents, delete().document_id) == (1, number)
    base.clock.advance(2)
    assert code_of(delete) == "document_not_found"


# --- repeating ------------------------------------------------------------------------------------


TEXTS = st.lists(st.sampled_from(["granite", "copper mine", "river bank", "# Bees\n\nhum"]), max_size=6)


@given(TEXTS, st.integers(0, 3))
def test_the_same_history_gives_the_same_state(texts: list[str], seed: int) -> None:
    one, two = Base(seed), Base(seed)
    for text in texts:
        one.submit(text)
        two.submit(text)
    assert one.state.documents.by_id == two.state.documents.by_id
    assert one.state.job_page(None, 100, 0) == two.state.job_page(None, 100, 0)


def test_different_seeds_give_different_ids() -> None:
    one, two = Base(1), Base(2)
    assert one.submit("granite").id != two.submit("granite").id
    assert one.state.documents.find(1).document.uid != two.state.documents.find(1).document.uid


def test_changes_have_times_of_their_own_while_the_clock_stands(base: Base) -> None:
    """They are a microsecond apart, so that later changes have later times."""
    for text in ("one", "two", "three"):
        base.note(text)
    times = [stored.document.created_at for stored in base.state.documents.by_id.values()]
    assert times == sorted(set(times))


def test_a_copy_lives_on_by_itself(base: Base) -> None:
    number = base.note("granite", tags=["a"])
    kept = base.state.copy()
    base.state.documents.add_tags(number, ["b"], None, now=0)
    base.note("copper")
    kept.documents.remove([number], now=0)
    assert base.found("granite") == [number]
    assert kept.documents.by_id == {}
    assert len(base.state.documents.by_id) == 2


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
def test_an_invalid_job_policy_is_refused_with_its_variable(text: str) -> None:
    with pytest.raises(SettingsError, match=r"^KB_SIM_JOBS='.*: takes at-once, polls:N, seconds:S, stuck"):
        SimulatorSettings(jobs=text)


def test_every_namespace_begins_with_the_policy_and_goes_back_to_it() -> None:
    namespaces = Namespaces(SimulatorSettings(jobs="stuck"))
    for name in ("default", "another"):
        namespace = namespaces.get(name)
        assert namespace.state.policy == Stuck()
        namespace.state.policy = AtOnce()
        namespace.reset()
        assert namespace.state.policy == Stuck()


@pytest.fixture
def quarry() -> Base:
    base = Base()
    base.note("The granite quarry by the river", title="Stone")
    base.note("Granite and basalt, granite again", title="More")
    base.file("c.md", "A copper mine up the hill")
    base.file("d.txt", "The winter market closed early")
    return base


def test_an_explanation_adds_up(quarry: Base) -> None:
    request = m.SearchRequest(query="granite river", explain=True)
    for result in search(quarry.state.documents, request, quarry.state.now()).results:
        why = result.explain
        assert why is not None
        reach = quarry.state.documents.index.total_weight("granite river")
        assert (why.weight, why.saturation) == (WEIGHT, SATURATION * reach)
        assert result.score == pytest.approx(explained(why), abs=1e-6)


def test_equals_come_in_the_order_of_their_ids() -> None:
    base = Base()
    for number in range(30):
        base.note("granite", dedup_scope=str(number))
    assert base.found("granite", top=20) == list(range(1, 21))
    assert base.found("granite", mode="hybrid", top=20) == list(range(1, 21))


def test_weak_says_that_the_best_is_under_the_floor(quarry: Base) -> None:
    for query in ("granite", "river market hill winter basalt"):
        answer = search(quarry.state.documents, m.SearchRequest(query=query), quarry.state.now())
        assert answer.weak == (answer.results[0].score < FLOOR)


def test_a_copy_keeps_its_own_feedback(quarry: Base) -> None:
    twin = quarry.state.copy()
    quarry.state.documents.give_feedback(1, "ann", "useful")
    twin.documents.give_feedback(1, "bob", "not_useful")
    assert (quarry.state.documents.votes()[1].useful, twin.documents.votes()[1].useful) == (1, 0)
    assert quarry.state.documents.votes()[1].voices == twin.documents.votes()[1].voices == 1
