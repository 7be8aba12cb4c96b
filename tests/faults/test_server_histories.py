"""Tool calls under random faults: acknowledged changes exist exactly once, and errors are correct."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kb_server.testing import MODES, Mode
from tests.faults.matrix import Bench, Machine, machine
from tests.faults.server_history import COLLECTIONS, History, arm, collections
from tests.support.patience import JOB_SECONDS

pytestmark = pytest.mark.process

DONE_FAULTS = ("lost_ack", "reset_mid_body", "content_length_long", "malformed_chunk", "content_length_short")
UNDONE_FAULTS = (
    "reset_before_headers",
    "not_ready",
    "queue_full",
    "internal_error",
    "bad_gateway",
    "not_json",
)
STEPS = 80


@pytest.fixture(scope="module")
def made() -> Iterator[Machine]:
    with machine() as running:
        yield running


@pytest.mark.parametrize(("seed", "mode"), list(enumerate((*MODES, *MODES))))
def test_a_history_under_faults_loses_and_doubles_nothing(made: Machine, seed: int, mode: Mode) -> None:
    """Seeded calls of all tools in both eras; half of the engine's requests meet a fault."""
    with made.bench(mode) as bench:
        arm(bench, *DONE_FAULTS, *UNDONE_FAULTS)
        history = History(bench, random.Random(seed))
        history.run(STEPS)
        assert history.outcomes["ok"] > STEPS / 4, history.outcomes
        assert sum(history.outcomes.values()) - history.outcomes["ok"] > 5, history.outcomes
        bench.calm()
        history.holds()
        history.run(10)
        history.holds()


def test_a_history_repeats_from_its_seed(made: Machine) -> None:
    """Every answer to the agent, and the engine's journal, are the same in a second run."""

    def run() -> tuple[Counter[str], list[tuple[str, int | None]]]:
        with made.bench() as bench:
            arm(bench, *DONE_FAULTS, *UNDONE_FAULTS)
            history = History(bench, random.Random(11))
            history.run(STEPS // 2)
            return history.outcomes, [(each.target, each.status) for each in bench.control.journal.entries()]

    assert run() == run()


# --- retries ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", DONE_FAULTS[:3])
def test_a_change_whose_answer_was_lost_is_made_once(made: Machine, fault: str) -> None:
    """Each request is carried out and its first answer lost; the agent notices nothing."""
    with made.bench() as bench:
        arm(bench, fault, chance=1.0, times=1)
        client = bench.client
        note = client.ok("kb_addnote", text="old", title="old", collection="memory", wait_seconds=JOB_SECONDS)
        number = note["document_id"]
        moved = client.ok(
            "kb_update_note", document_id=number, text="new", title="new", collection="workspace"
        )
        upload = {"upload_id": client.ok("kb_upload_start", filename="a.txt", total_size=3)["upload_id"]}
        client.ok("kb_upload_chunk", chunk_index=0, data="YWJj", **upload)
        job = client.ok("kb_upload_finish", **upload)["job_id"]
        assert client.ok("kb_upload_finish", **upload)["job_id"] == job
        bench.control.journal.expect(operation="createJob", exactly=4)
        assert (moved["version"], moved["collection"]) == (4, "workspace"), "one update, one tag off, one on"
        assert len(bench.documents()) == 2
        assert sorted(job.kind for job in bench.control.state().jobs) == ["file", "note", "update"]


def test_a_submission_that_failed_for_good_is_made_once_by_the_agents_own_retry(made: Machine) -> None:
    """The engine accepted the note and the file, and every acknowledgement was lost; the agent retries."""
    with made.bench() as bench:
        client = bench.client
        client.ok("kb_jobs")
        upload = {"upload_id": client.ok("kb_upload_start", filename="a.txt", total_size=3)["upload_id"]}
        client.ok("kb_upload_chunk", chunk_index=0, data="YWJj", **upload)
        arm(bench, "lost_ack", chance=1.0)
        assert client.refused("kb_addnote", text="granite")["error"] == "engine_unreachable"
        bench.calm()
        arm(bench, "lost_ack", chance=1.0)
        assert client.refused("kb_upload_finish", **upload)["error"] == "engine_unreachable"
        bench.calm()
        assert client.ok("kb_addnote", text="granite", wait_seconds=JOB_SECONDS)["deduplicated"] is True
        assert client.ok("kb_upload_finish", wait_seconds=JOB_SECONDS, **upload)["status"] == "completed"
        assert len(bench.documents()) == 2


# --- moves ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [*DONE_FAULTS, *UNDONE_FAULTS])
def test_two_moves_at_once_leave_exactly_one_collection(made: Machine, fault: str) -> None:
    """Each of their requests meets a fault once; the document is always in exactly one collection."""
    with made.bench(toolsets=["kb", "kb-extra"]) as bench, ThreadPoolExecutor(2) as pool:
        number = bench.client.ok("kb_addnote", text="granite", wait_seconds=JOB_SECONDS)["document_id"]
        arm(bench, fault, chance=1.0, times=1)
        for targets in (COLLECTIONS[1:], COLLECTIONS[:2], COLLECTIONS[::2]):
            told = _moved(bench, pool, number, targets)
            (placed,) = _placed(bench)
            assert len(told) == 2 or placed in targets, (placed, told)


@pytest.mark.parametrize("seed", range(4))
def test_a_document_that_a_move_may_have_left_nowhere_is_told_and_moved_again(
    made: Machine, seed: int
) -> None:
    """Even the rollback of a move may fail: the agent gets an error, and its retry repairs the move."""
    with made.bench(toolsets=["kb", "kb-extra"]) as bench, ThreadPoolExecutor(2) as pool:
        number = bench.client.ok("kb_addnote", text="granite", wait_seconds=JOB_SECONDS)["document_id"]
        for round_ in range(4):
            arm(bench, *DONE_FAULTS, *UNDONE_FAULTS, chance=0.1)
            targets = random.Random(seed * 10 + round_).sample(COLLECTIONS, 2)
            told = _moved(bench, pool, number, targets)
            bench.calm()
            if not (placed := _placed(bench)):
                assert any("in no collection now" in each["message"] for each in told), told
                bench.client.ok("kb_move", document_id=number, collection=targets[0])
            assert len(placed) < 2, (placed, told)
            assert len(_placed(bench)) == 1


def _moved(
    bench: Bench, pool: ThreadPoolExecutor, number: int, targets: Sequence[str]
) -> list[dict[str, Any]]:
    calls = [
        pool.submit(bench.client.call, "kb_move", document_id=number, collection=target) for target in targets
    ]
    return [bench.told(call.result()) for call in calls if call.result().is_error]


def _placed(bench: Bench) -> list[str]:
    (document,) = bench.documents()
    return collections(document)
