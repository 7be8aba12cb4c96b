"""A state for tests: on a clock that a test moves, with short names for what tests do all the time."""

from __future__ import annotations

import itertools
from typing import Any

from kb_contracts.api import models as m
from kb_readers import Extraction, format_of
from kb_simulator.determinism import Clock, ClockMode, Seeded
from kb_simulator.engine import documents
from kb_simulator.engine.jobs import Retry
from kb_simulator.engine.search import search
from kb_simulator.engine.state import State


class Base:
    """A state, its clock, and notes and files to put into it."""

    def __init__(self, seed: int = 7) -> None:
        self.clock = Clock(ClockMode.MANUAL)
        self.state = State(Seeded(seed), self.clock.microseconds)
        self._numbers = itertools.count()

    def submit(self, text: str, **fields: Any) -> m.Job:
        """Submit a note; the job as it was accepted."""
        request = m.NoteRequest(text=text, **fields)
        return self.state.accept(documents.note(f"request-{next(self._numbers)}", request))

    def update(self, document_id: int, retry: Retry | None = None, **patch: Any) -> m.Job:
        """Submit a note's update; its job."""
        wanted = documents.Update(f"request-{next(self._numbers)}", document_id, m.NotePatch(**patch))
        job = self.state.update(wanted, retry)
        assert isinstance(job, m.Job)
        return job

    def patch(self, document_id: int, **patch: Any) -> m.Document:
        """A note after its update, where jobs end at once."""
        changed = self.state.outcome(self.update(document_id, **patch).id)
        assert isinstance(changed, m.Document)
        return changed

    def note(self, text: str, **fields: Any) -> int:
        """Take in a note; its document's id."""
        return self.document_of(self.submit(text, **fields))

    def file(self, name: str, text: str, **fields: Any) -> int:
        """Take in a file with this text; its document's id."""
        return self.document_of(self.state.accept(self.upload(name, text, **fields)))

    def upload(self, name: str, text: str | m.JobError, **fields: Any) -> documents.Submission:
        """A file to submit, with this text or without any."""
        content = Extraction.of_note(text) if isinstance(text, str) else text
        return documents.file(
            f"request-{next(self._numbers)}",
            m.FileFields(**fields),
            name,
            format_of(name),
            content,
            size=100,
            sha256=f"sha-{text}",
        )

    def document_of(self, job: m.Job) -> int:
        """The document that a job made."""
        ended = self.state.job(job.id)
        assert ended.document_id is not None, ended
        return ended.document_id

    def found(self, query: str, **fields: Any) -> list[int]:
        """The documents that a search by words finds, best first."""
        request = m.SearchRequest(query=query, **{"mode": "fts", **fields})
        return [result.document.id for result in search(self.state.documents, request).results]
