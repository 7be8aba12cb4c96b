"""For any sequence of operations, the store agrees with a model of a few dictionaries."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_engine.store.port import LeasedJob, NewJob
from kb_engine.store.repository import documents, jobs, updates
from tests.support.contract_objects import job_error
from tests.support.postgres import Database, give_back
from tests.support.stores import Base, all_documents, key, new_note, new_place, opened, prepared

TEXTS = st.sampled_from(["alpha", "beta", "gamma"])
TAGS = st.lists(st.sampled_from(["t", "u", "collection:a", "collection:b"]), max_size=3, unique=True)
SCOPES = st.sampled_from(["", "s", "collection:a"])
PATHS = st.sampled_from([None, "/p", "/q"])


@dataclass
class Modelled:
    text: str
    scope: str
    tags: list[str]
    sources: list[str]
    unsourced: bool
    version: int = 1

    @property
    def place(self) -> str:
        """The collection, or the deduplication scope without one."""
        return next((tag for tag in reversed(self.tags) if tag.startswith("collection:")), self.scope)


@dataclass
class Model:
    """The expected content of the store."""

    jobs: dict[str, str] = field(default_factory=dict)
    lines: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Place and path of each job's source."""
    documents: dict[int, Modelled] = field(default_factory=dict)
    updates: dict[str, tuple[int, str]] = field(default_factory=dict)
    last_id: int = 0

    def unfinished_updates(self, number: int) -> list[str]:
        return [
            job_id
            for job_id, (note, _) in self.updates.items()
            if note == number and self.jobs[job_id] in {"queued", "running"}
        ]

    def may_run(self, job_id: str) -> bool:
        """Return True if no earlier job of the same source, or update of the same note, is unfinished."""
        line = [
            each
            for each, source in self.lines.items()
            if source == self.lines.get(job_id) and self.jobs[each] in {"queued", "running"}
        ]
        if line and line[0] != job_id:
            return False
        return job_id not in self.updates or self.unfinished_updates(self.updates[job_id][0])[0] == job_id

    def commit(self, leased: LeasedJob) -> tuple[int, bool, str]:
        """Return the document, whether the text was a duplicate, and the outcome of the source."""
        job = leased.job
        self.jobs[job.id] = "completed"
        if job.document_id is not None:
            note = self.documents[job.document_id]
            changes = note.text != job.text
            note.text, note.version = job.text or "", note.version + changes
            return job.document_id, False, "replaced" if changes else "unchanged"
        path, (place, _) = job.source_path, source_of(job)
        same = [
            number
            for number, each in sorted(self.documents.items())
            if (each.text, each.scope) == (job.text, job.dedup_scope)
            and (job.dedup_scope not in job.tags or job.dedup_scope in each.tags)
            and (not path or each.place == place)
        ]
        before = [
            number
            for number, each in sorted(self.documents.items())
            if path in each.sources and each.place == place
        ]
        alone = [
            number
            for number in before
            if not self.documents[number].unsourced and self.documents[number].sources == [path]
        ]
        number = (same or alone or [0])[0]
        for other in before:
            if other != number and other in alone:
                del self.documents[other]
            elif other != number:
                self.documents[other].sources.remove(path or "")
                self.documents[other].version += 1
        if number:
            standing, version = self.documents[number], self.documents[number].version
            self._unite(standing, job)
            if not same:
                standing.text, standing.scope, standing.version = job.text or "", job.dedup_scope, version + 1
        else:
            number = self.last_id = self.last_id + 1
            sources = [path] if path else []
            self.documents[number] = Modelled(
                job.text or "", job.dedup_scope, list(job.tags), sources, not path
            )
        unchanged = same and (not path or before == [number])
        return number, bool(same), "unchanged" if unchanged else "replaced" if before else "created"

    def _unite(self, standing: Modelled, job: Any) -> None:
        before = (list(standing.tags), list(standing.sources))
        for tag in job.tags:
            second = tag.startswith("collection:") and any(t.startswith("collection:") for t in standing.tags)
            if tag not in standing.tags and not second:
                standing.tags.append(tag)
        standing.unsourced |= job.source_path is None
        if job.source_path and job.source_path not in standing.sources:
            standing.sources.append(job.source_path)
        standing.version += before != (standing.tags, standing.sources)


def source_of(job: NewJob) -> tuple[str, str]:
    collections = [tag for tag in job.tags if tag.startswith("collection:")]
    return (collections or [job.dedup_scope])[-1], job.source_path or ""


class StoreMachine(RuleBasedStateMachine):
    leases: Bundle[LeasedJob | None] = Bundle("leases")
    accepted: Bundle[str] = Bundle("accepted")

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.folder = tempfile.TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.waiting: list[str] = []

    kind = "sqlite"

    @initialize()
    def open(self) -> None:
        self.place = self.runner.run(new_place(self.kind, Path(self.folder.name)))
        self.context = opened(self.place)
        self.base: Base = self.runner.run(self.context.__aenter__())

    def teardown(self) -> None:
        if hasattr(self, "context"):
            self.runner.run(self.context.__aexit__(None, None, None))
            if isinstance(self.place, Database):
                give_back(self.place)
        self.runner.close()
        self.folder.cleanup()

    def ask(self, awaitable: Any) -> Any:
        try:
            return self.runner.get_loop().run_until_complete(awaitable)
        except EngineError as error:
            return error.code

    @rule(target=accepted, text=TEXTS, tags=TAGS, scope=SCOPES, path=PATHS)
    def accept(self, text: str, tags: list[str], scope: str, path: str | None) -> str:
        job = new_note(text, tags=tags, dedup_scope=scope, source_path=path)
        self.ask(self.base.accept(job))
        self.model.jobs[job.id] = "queued"
        if path:
            self.model.lines[job.id] = source_of(job)
        self.waiting.append(job.id)
        return job.id

    @rule(target=leases)
    def take(self) -> LeasedJob | None:
        leased: LeasedJob | None = self.ask(self.base.store.write(jobs.take, f"lease {len(self.model.jobs)}"))
        oldest = next((one for one in self.waiting if self.model.may_run(one)), None)
        assert (leased.job.id if leased else None) == oldest
        if oldest:
            self.waiting.remove(oldest)
            self.model.jobs[oldest] = "running"
        return leased

    @rule(leased=consumes(leases))
    def commit(self, leased: LeasedJob | None) -> None:
        if leased is None:
            return
        done: Any = self.ask(self.base.commit(leased, prepared(leased.job.text or "")))
        if self.model.jobs[leased.job.id] != "running":
            assert done is None
            return
        if leased.job.document_id is not None and leased.job.document_id not in self.model.documents:
            assert done == "document_not_found"
            self.fail(leased)
            return
        assert (done.document_id, done.deduplicated, done.outcome) == self.model.commit(leased)

    @rule(leased=consumes(leases))
    def fail(self, leased: LeasedJob | None) -> None:
        if leased is None:
            return
        error = job_error()
        good = self.model.jobs[leased.job.id] == "running"
        assert self.ask(self.base.store.write(jobs.fail, leased.lease, leased.job.id, error)) is good
        if good:
            self.model.jobs[leased.job.id] = "failed"

    @rule(job_id=accepted)
    def cancel(self, job_id: str) -> None:
        answer = self.ask(self.base.store.once(None, jobs.cancel, job_id))
        if self.model.jobs[job_id] in {"queued", "running"}:
            assert answer.status == "cancelled"
            self.model.jobs[job_id] = "cancelled"
            self.waiting = [one for one in self.waiting if one != job_id]
        else:
            assert answer == "job_finished"

    @rule(number=st.integers(1, 4), tags=TAGS.filter(bool))
    def tag(self, number: int, tags: list[str]) -> None:
        answer = self.ask(self.base.store.once(None, documents.add_tags, number, tags, None))
        standing = self.model.documents.get(number)
        if standing is None:
            assert answer == "document_not_found"
            return
        new = [tag for tag in tags if tag not in standing.tags]
        standing.tags += new
        if standing.scope.startswith("collection:"):
            moved = [tag for tag in new if tag.startswith("collection:")]
            standing.scope = (moved or [standing.scope])[-1]
        standing.version += bool(new)

    @rule(target=accepted, number=st.integers(1, 4), text=TEXTS)
    def update(self, number: int, text: str) -> Any:
        patch, once = m.NotePatch(text=text), key(str(uuid4()))
        answer = self.ask(self.base.store.write(updates.accept, number, patch, once))
        if number not in self.model.documents:
            assert answer == "document_not_found"
            return multiple()
        last = next(reversed(self.model.unfinished_updates(number)), None)
        if last is not None and self.model.updates[last] == (number, text):
            assert answer.id == last
            return multiple()
        self.model.updates[answer.id] = number, text
        self.model.jobs[answer.id] = "queued"
        self.waiting.append(answer.id)
        return answer.id

    @rule(number=st.integers(1, 4))
    def delete(self, number: int) -> None:
        answer = self.ask(self.base.store.once(None, documents.delete, number))
        known = self.model.documents.pop(number, None)
        assert (answer == "document_not_found") == (known is None)

    @rule()
    def clear(self) -> None:
        removed: m.Removed = self.ask(self.base.store.once(None, documents.clear))
        open_jobs = [job_id for job_id, status in self.model.jobs.items() if status in {"queued", "running"}]
        assert (removed.documents, removed.jobs_cancelled) == (len(self.model.documents), len(open_jobs))
        self.model.documents.clear()
        self.model.jobs.update(dict.fromkeys(open_jobs, "cancelled"))
        self.waiting.clear()

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "base"):
            return
        documents, queue, found = self.ask(self.seen())
        assert {
            one.id: (one.tags, one.source_paths, one.version) for one in documents
        } == {
            number: (one.tags, one.sources, one.version) for number, one in self.model.documents.items()
        }  # fmt: skip
        assert {job.id: job.status for job in queue} == self.model.jobs
        for text, numbers in found.items():
            assert numbers == {number for number, one in self.model.documents.items() if one.text == text}

    async def seen(self) -> tuple[list[m.Document], list[m.Job], dict[str, set[int]]]:
        """Return all documents and jobs, and the documents that are found by each text."""
        found = {text: await self.base.find(text, top=100) for text in ("alpha", "beta", "gamma")}
        numbers = {text: {each.document.id for each in some.results} for text, some in found.items()}
        queue = (await self.base.store.read(jobs.page, None, 1000, 0)).jobs
        return (await all_documents(self.base)).documents, queue, numbers


class PostgresMachine(StoreMachine):
    """The same on a database, with fewer steps, because each takes longer."""

    kind = "postgres"


StoreMachine.TestCase.settings = settings(max_examples=20, stateful_step_count=25)
PostgresMachine.TestCase.settings = settings(max_examples=6, stateful_step_count=25)
TestStore = StoreMachine.TestCase
TestPostgres = pytest.mark.process(PostgresMachine.TestCase)
