"""A seeded history of calls to a server whose engine fails, beside the expected documents."""

from __future__ import annotations

import base64
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kb_contracts.api.models import Document
from tests.faults.matrix import Bench

COLLECTIONS = ("documents", "memory", "workspace")
ERRORS = {"engine_unreachable", "engine_timeout", "engine_busy", "engine_failed", "engine_bad_answer"}
SERVER = "User-Agent: kb-server"
"""Faults match only the server, so that the test can inspect the engine without them."""
CHANCE = 0.06
"""Probability of each fault at each request; with all faults, half of the requests meet one."""


def arm(
    bench: Bench, *names: str, chance: float = CHANCE, operation: str | None = None, times: int | None = None
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
            placed = collections(document)
            assert len(placed) <= 1
            assert (placed[0] if placed else None) in note.collections, (placed, note)
        assert self.accepted <= {document.id for document in documents}, "an accepted document was lost"


_MOST_CHANGES = 1 + 2 + 2 * 2
"""Maximum number of versions of a move.

The text, the old tag removed, the new one added, and both repeated.
"""


def collections(document: Document) -> list[str]:
    return [tag.removeprefix("collection:") for tag in document.tags if tag.startswith("collection:")]
