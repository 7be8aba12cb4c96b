"""Tool calls under random faults: acknowledged changes exist exactly once, and errors are correct."""

from __future__ import annotations

import base64
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from kb_contracts.api.models import Document
from kb_server.testing import MODES, Mode
from tests.faults.matrix import Bench, Machine, machine
from tests.support.patience import JOB_SECONDS

pytestmark = pytest.mark.process

COLLECTIONS = ("documents", "memory", "workspace")
ERRORS = {"engine_unreachable", "engine_timeout", "engine_busy", "engine_failed", "engine_bad_answer"}
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
SERVER = "User-Agent: kb-server"
"""Faults match only the server, so that the test can inspect the engine without them."""

CHANCE = 0.06
"""Probability of each fault at each request; with all faults, half of the requests meet one."""


@pytest.fixture(scope="module")
def made() -> Iterator[Machine]:
    with machine() as running:
        yield running


def arm(
    bench: Bench,
    *names: str,
    chance: float = CHANCE,
    operation: str | None = None,
    times: int | None = None,
) -> None:
    """Arm faults with a probability, the same in every run; `times` applies to each request."""
    for name in names:
        bench.control.faults.arm(
            name,
            probability=chance,
            operation=operation,
            header=SERVER,
            times=times,
            count="request",
            optional=True,
        )


@dataclass
class Note:
    """The possible states of a note: its last acknowledged text, and the texts of failed updates since."""

    number: int
    word: str
    texts: set[str]
    collections: set[str | None]
    at_least: int = 1
    at_most: int = 1


@dataclass
class History:
    """A seeded agent that records the answers."""

    bench: Bench
    chance: random.Random
    notes: dict[int, Note] = field(default_factory=dict)
    accepted: set[int] = field(default_factory=set)
    outcomes: Counter[str] = field(default_factory=Counter)
    words: int = 0

    def run(self, steps: int) -> None:
        """Call randomly chosen tools, one after another."""
        actions: list[Callable[[], None]] = [
            self.add, self.upload, self.update, self.update, self.move, self.search, self.read, self.job
        ]  # fmt: skip
        while not self.notes:
            self.add()
        for _ in range(steps):
            self.chance.choice(actions)()

    def call(self, tool: str, **arguments: Any) -> dict[str, Any] | None:
        """Return the result of a tool, or None if it failed with an error about the engine."""
        result = self.bench.client.call(tool, **arguments)
        if not result.is_error:
            self.outcomes["ok"] += 1
            return dict(result.structured_content or {})
        told = self.bench.told(result)
        assert told["error"] in ERRORS | {"move_failed"}, told
        self.outcomes[told["error"]] += 1
        self.failure = told
        return None

    def new_word(self) -> str:
        """Return a unique word for a text, by which it can be found."""
        self.words += 1
        return f"rock{self.words}x{self.chance.randrange(10**6)}"

    def add(self) -> None:
        """Add a note; sometimes the agent retries after an error, as advised."""
        word = self.new_word()
        for _ in range(self.chance.choice((1, 1, 3))):
            added = self.call("kb_addnote", text=word, title=word, collection="memory")
            if added is not None:
                self._accepted(added, word, "memory")
                return

    def upload(self) -> None:
        """Upload a file in one chunk and finish it repeatedly until its job is known, or give up."""
        word = self.new_word()
        started = self.call("kb_upload_start", filename=f"{word}.txt", total_size=len(word), title=word)
        assert started is not None, "the engine is not asked"
        upload = {"upload_id": started["upload_id"]}
        data = base64.b64encode(word.encode()).decode()
        assert self.call("kb_upload_chunk", chunk_index=0, data=data, **upload) is not None
        for _ in range(self.chance.choice((1, 3))):
            finished = self.call("kb_upload_finish", **upload)
            if finished is not None:
                self._accepted(finished, word, "documents")
                return

    def _accepted(self, told: dict[str, Any], word: str, collection: str) -> None:
        assert told["job_id"]
        # Its number is looked up without faults, because waiting for the job would be another tool call.
        (document,) = [each for each in self.bench.documents() if each.title == word]
        self.accepted.add(document.id)
        if document.doc_type == "note":
            self.notes[document.id] = Note(document.id, word, {word}, {collection})

    def _note(self) -> Note:
        return self.notes[self.chance.choice(sorted(self.notes))]

    def update(self) -> None:
        note, text = self._note(), self.new_word()
        updated = self.call("kb_update_note", document_id=note.number, text=text, title=text)
        note.at_most += 1
        if updated is None:
            note.texts.add(text)
            return
        assert (updated["id"], updated["title"]) == (note.number, text)
        note.texts, note.at_least = {text}, note.at_least + 1

    def move(self) -> None:
        note, text, target = self._note(), self.new_word(), self.chance.choice(COLLECTIONS)
        moved = self.call("kb_update_note", document_id=note.number, text=text, title=text, collection=target)
        note.at_most += _MOST_CHANGES
        if moved is not None:
            assert (moved["title"], moved["collection"]) == (text, target)
            note.texts, note.collections = {text}, {target}
            note.at_least += 1
            return
        note.texts.add(text)
        if self.failure["error"] == "move_failed" and "collection" in self.failure:
            note.collections |= {target, self.failure["collection"]}
        else:
            note.collections |= {target, None}

    def search(self) -> None:
        note = self._note()
        if len(note.texts) > 1:
            return
        (text,) = note.texts
        found = self.call("kb_search", query=text, mode="fts", top=5)
        assert found is None or note.number in [hit["document_id"] for hit in found["results"]], found

    def read(self) -> None:
        note = self._note()
        got = self.call("kb_get", document_id=note.number)
        assert got is None or (got["title"] in note.texts and got["chunks"][0]["text"] in note.texts), got

    def job(self) -> None:
        listed = self.call("kb_jobs", limit=5)
        assert listed is None or (listed["jobs"] and listed["total"] >= len(self.notes))

    def holds(self) -> None:
        """Check that the final documents are among the states that the agent expects."""
        documents = self.bench.documents()
        titles = Counter(document.title for document in documents)
        assert max(titles.values()) == 1, titles
        for document in documents:
            if (note := self.notes.get(document.id)) is None:
                continue
            assert document.title in note.texts, "an acknowledged text was lost"
            assert note.at_least <= document.version <= note.at_most, "a change was lost or done twice"
            placed = _collections(document)
            assert len(placed) <= 1
            assert (placed[0] if placed else None) in note.collections, (placed, note)
        assert self.accepted <= {document.id for document in documents}, "an accepted document was lost"


_MOST_CHANGES = 1 + 2 + 2 * 2
"""Maximum number of versions of a move.

The text, the old tag removed, the new one added, and both repeated.
"""


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
    return _collections(document)


def _collections(document: Document) -> list[str]:
    return [tag.removeprefix("collection:") for tag in document.tags if tag.startswith("collection:")]
