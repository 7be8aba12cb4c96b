"""The state of one engine: jobs, documents, stored answers. Pure: no I/O, no clock and no random numbers.

    accept ──▶ job ──(policy, polls, time)──▶ document
                └──────── cancel ───────────▶ nothing

Times come from `now`, ids from the seed and the submissions. A copy of the state is independent of it.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, TypeVar, cast

import msgspec

from kb_contracts.access.reach import EVERYTHING, Access, Reach
from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_contracts.api.operations import API_VERSION
from kb_contracts.semantics import jobs as rules
from kb_contracts.semantics.history import QUESTION_DAYS, growth_of
from kb_contracts.semantics.requests import Idempotency
from kb_contracts.semantics.sources import left_out
from kb_simulator.determinism import Seeded, rfc3339
from kb_simulator.engine import commits
from kb_simulator.engine.collections import Collections
from kb_simulator.engine.documents import Documents
from kb_simulator.engine.index import DIMENSIONS
from kb_simulator.engine.jobs import (
    QUEUED,
    STEPS,
    AfterPolls,
    Answers,
    AtOnce,
    FailAt,
    JobRecord,
    Policy,
    Stuck,
)
from kb_simulator.engine.submissions import Line, Submission, Update, line_of, origin_of
from kb_simulator.engine.versions import History
from kb_simulator.engine.view import collections_within, documents_within, is_job_within

A = TypeVar("A", bound=msgspec.Struct)

MAX_WAITING_JOBS = 10_000
"""Maximum number of waiting jobs; further ones are refused."""
KEPT_ENDED_JOBS = 10_000
"""Number of ended jobs that are kept; older ones are forgotten."""

_STORAGE_BYTES = 1 << 40
_MOST_VIEWS = 16
"""Number of access scopes whose views are cached until the documents change."""


@dataclass(slots=True)
class State:
    """One engine's state. `now` gives microseconds since 1970; `policy` is that of jobs accepted later."""

    seeded: Seeded
    now: Callable[[], int]
    policy: Policy = field(default_factory=AtOnce)
    started: int = 0
    keeps_originals: bool = False
    collections: Collections = field(default_factory=Collections)
    jobs: dict[str, JobRecord] = field(default_factory=dict)
    _documents: Documents = field(init=False)
    _waiting: set[str] = field(default_factory=set)
    _lines: dict[Line, tuple[str, ...]] = field(default_factory=dict)  # unfinished jobs, in order
    _answers: Answers = field(default_factory=Answers)
    _due: list[tuple[int, str]] = field(default_factory=list)
    _questions: dict[str, tuple[int, int]] = field(default_factory=dict)  # by day: total, unanswered
    _last_stamp: int = 0
    _views: dict[Reach, tuple[int, Documents]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.started = self.started or self.now()
        self._documents = Documents(self.seeded)

    def copy(self) -> State:
        """Return an independent copy on the same clock."""
        twin = replace(
            self,
            collections=self.collections.copy(),
            jobs=dict(self.jobs),
            _waiting=set(self._waiting),
            _lines=dict(self._lines),
            _answers=self._answers.copy(),
            _due=list(self._due),
            _questions=dict(self._questions),
            _views={},
        )
        twin._documents = self._documents.copy()
        return twin

    @property
    def documents(self) -> Documents:
        """The present documents, including the results of every job that is due."""
        self._settle()
        return self._documents

    def seen(self, reach: Reach | None) -> Documents:
        """The documents within an access scope."""
        documents = self.documents
        if reach is None:
            return documents
        known = self._views.get(reach)
        if known is None or known[0] != documents.revision:
            if len(self._views) >= _MOST_VIEWS:
                self._views.clear()
            known = self._views[reach] = documents.revision, documents_within(documents, reach)
        return known[1]

    def seen_collections(self, reach: Reach | None) -> Collections:
        """The descriptions of collections within an access scope."""
        return self.collections if reach is None else collections_within(self.collections, reach)

    def once(self, retry: Idempotency | None, effect: Callable[[int], A]) -> A:
        """Run the effect with the time of the change, or return the stored answer of its idempotency key."""
        self._settle()
        if retry is None:
            return effect(self._stamp())
        if (given := self._answers.given(retry, self.now())) is not None:
            return cast("A", given)  # a key belongs to one operation, which has one type of answer
        answer = effect(self._stamp())
        self._answers.keep(retry, answer, self.now())
        return answer

    # jobs

    def accept(self, submission: Submission, retry: Idempotency | None = None) -> m.Job:
        """Queue a job, which ends according to the policy."""

        def effect(now: int) -> m.Job:
            job = self._queued(
                submission,
                now,
                kind=submission.kind,
                title=submission.job_title,
                filename=submission.filename,
                tags=list(submission.tags),
            )
            return self._begun(job) if self._is_first(job.id, line_of(submission)) else job

        return self.once(retry, effect)

    def update(self, update: Update, retry: Idempotency | None = None) -> m.Job | m.Document:
        """Queue the update of a note, or join an equal pending one.
        A retry of a completed update returns its note.
        """
        self._settle()
        known = None if retry is None else self._answers.given(retry, self.now())
        if isinstance(known, m.Document):
            return known
        if isinstance(known, m.Job) and known.id in self.jobs:
            return self.job(known.id, update.reach)
        expected = (update.if_match, update.patch.expected_version)
        standing = self.seen(update.reach).note(update.document_id, *expected).document
        if (job := self._joined(update)) is None:
            title = update.patch.title or standing.title
            tags, number = list(standing.tags), standing.id
            job = self._queued(
                update, self._stamp(), kind="update", title=title, tags=tags, document_id=number
            )
            if self._is_first(job.id, number):
                self._begin(job.id)
        if retry is not None:
            record = self.jobs[job.id]
            self.jobs[job.id] = replace(record, retries=(*record.retries, retry))
            self._answers.keep(retry, job, self.now())
        return self.job(job.id)

    def _joined(self, update: Update) -> m.Job | None:
        """The last unfinished update of the note, if it is equal to this one."""
        line = self._lines.get(update.document_id)
        record = None if line is None else self.jobs[line[-1]]
        if record is None or not isinstance(record.submission, Update):
            return None
        same = (record.submission.patch, record.submission.reach) == (update.patch, update.reach)
        return record.job if same else None

    def outcome(self, job_id: str) -> m.Job | m.Document:
        """Return the note after an update, or the job while it is unfinished.
        Raises EngineError: the reason for which the update failed.
        """
        job = self.job(job_id)
        record = self.jobs[job_id]
        if job.error is not None and isinstance(update := record.submission, Update):
            self.seen(update.reach).note(update.document_id, update.patch.expected_version)
            raise EngineError(job.error.code, job.error.message)
        return record.updated or job

    def job(self, job_id: str, reach: Reach | None = None) -> m.Job:
        """Return one job."""
        self._settle()
        return self._record(job_id, reach).at(self.now())

    def poll(self, job_id: str, reach: Reach | None = None) -> m.Job:
        """Return one job, after a poll that its policy may count."""
        self._settle()
        record = self._record(job_id, reach)
        if not record.ended:
            record = self.jobs[job_id] = replace(record, polls=record.polls + 1)
            policy, running = record.policy, record.job.status == "running"
            if running and isinstance(policy, AfterPolls) and record.polls >= policy.polls:
                self._end(record, self.now())
        return self.job(job_id)

    def seconds_to_end(self, job_id: str) -> float | None:
        """Remaining seconds of a job: 0 if it has ended, None if it does not end by time."""
        record = self._record(job_id)
        if record.ended:
            return 0.0
        ahead, took = [record], 0
        if (line := self._lines.get(line_of(record.submission))) is not None:
            ahead = [self.jobs[each] for each in line[: line.index(job_id) + 1]]
        for each in ahead:
            if (duration := each.duration()) is None:
                return None
            took += duration
        return max(0.0, (ahead[0].accepted + took - self.now()) / 1_000_000)

    def job_page(
        self, status: m.JobStatus | None, limit: int, offset: int, reach: Reach | None = None
    ) -> m.JobList:
        """Return a page of jobs, newest first."""
        found = [each for each in self._records(reach)[::-1] if status in (None, each.job.status)]
        jobs = [record.at(self.now()) for record in found[offset : offset + limit]]
        return m.JobList(jobs=jobs, total=len(found), limit=limit, offset=offset)

    def cancel(self, job_id: str, retry: Idempotency | None = None, reach: Reach | None = None) -> m.Job:
        """Cancel a job."""
        cancelled = self.once(retry, lambda now: self._cancel(job_id, now, reach))
        self._settle()  # starts an update that waited for it
        return cancelled

    def _cancel(self, job_id: str, now: int, reach: Reach | None = None) -> m.Job:
        record = self._record(job_id, reach)
        if record.ended:
            raise rules.job_finished(record.job.status)
        seen = replace(record, job=record.at(self.now()))
        job = seen.after(rules.Event.CANCEL, estimated_seconds=None, finished_at=rfc3339(now))
        return self._ended(record, job)

    def retry_job(self, job_id: str, retry: Idempotency | None = None, reach: Reach | None = None) -> m.Job:
        """Queue a failed job again from the start; it ends according to the present policy."""

        def effect(now: int) -> m.Job:
            record = self._record(job_id, reach)
            if not record.job.retryable:
                raise rules.job_not_retryable(record.job.status)
            rules.check_queue_room(len(self._waiting), MAX_WAITING_JOBS)
            wanted = record.submission
            job = record.after(
                rules.Event.RETRY,
                step=QUEUED,
                progress=0.0,
                completed_steps=0,
                total_steps=0,
                error=None,
                elapsed_seconds=0.0,
                retryable=False,
                started_at=None,
                finished_at=None,
            )
            self.jobs[job_id] = JobRecord(job, wanted, self.policy, now)
            self._waiting.add(job_id)
            return self._begun(job) if self._is_first(job_id, line_of(wanted)) else job

        return self.once(retry, effect)

    # documents

    def clear(self, retry: Idempotency | None = None, *, collections: bool = False) -> m.Removed:
        """Remove all documents, with `collections` also the descriptions, and cancel the unfinished jobs."""

        def effect(now: int) -> m.Removed:
            running = [job_id for job_id in self.jobs if job_id in self._waiting]
            for job_id in running:
                self._cancel(job_id, now)
            for job_id, record in self.jobs.items():
                if record.job.retryable:  # the submissions of earlier jobs are not kept
                    job = msgspec.structs.replace(record.job, retryable=False)
                    self.jobs[job_id] = replace(record, job=job)
            removed = self._documents.remove(list(self._documents.by_id), now)
            self._documents.history = History()
            removed.jobs_cancelled = len(running)
            if collections:
                self.collections.described.clear()
            return removed

        return self.once(retry, effect)

    def count_question(self, *, is_answered: bool) -> None:
        day = rfc3339(self.now())[:10]
        total, unanswered = self._questions.get(day, (0, 0))
        self._questions[day] = total + 1, unanswered + (not is_answered)

    def _history(self, documents: Documents, *, is_open: bool) -> m.History:
        """Growth, and for an unrestricted administrator the questions; languages are not detected here."""
        found = [stored.document for stored in documents.by_id.values()]
        days = [(each.created_at[:10], 1, each.chunk_count) for each in found]
        questions = [
            m.QuestionDay(day=day, total=total, unanswered=none)
            for day, (total, none) in sorted(self._questions.items())[-QUESTION_DAYS:]
        ]
        return m.History(
            growth=growth_of(days, date.fromisoformat(rfc3339(self.now())[:10])),
            languages={},
            questions=questions if is_open else msgspec.UNSET,
            unanswered=[] if is_open else msgspec.UNSET,
        )

    def status(self, access: Access = EVERYTHING, *, history: bool = False) -> m.Status:
        """Version, model, counts, queue and storage; only an unrestricted administrator sees the storage."""
        documents = self.seen(access.reach)
        size = sum(stored.document.size_bytes for stored in documents.by_id.values())
        states = Counter(record.job.status for record in self._records(access.reach))
        path, total = "memory", _STORAGE_BYTES
        if access.reach is not None or "administer" not in access.rights:
            path, total, size = "", 0, 0
        kept = documents.kept_bytes() if path and self.keeps_originals else msgspec.UNSET
        queue = {name: states.get(cast("m.JobStatus", name), 0) for name in m.QueueState.__struct_fields__}
        updated = documents.last_updated
        return m.Status(
            version=API_VERSION,
            model=m.ModelInfo(name="hashed-words", dimensions=DIMENSIONS, max_tokens=256, loaded=True),
            device=m.DeviceInfo(type="simulator", threads=1),
            documents=documents.counts(),
            chunks=len(documents.owners),
            queue=m.QueueState(**queue),
            storage=m.StorageInfo(
                path=path,
                bytes=size,
                free_bytes=total - size,
                originals_bytes=size,
                kept_originals_bytes=kept,
            ),
            issues=[],
            started_at=rfc3339(self.started),
            last_updated=None if updated is None else rfc3339(updated),
            features=["access"],
            open_failures=rules.open_failures(
                (each.job.status, each.job.error.code if each.job.error else None, origin_of(each.submission))
                for each in self._records(access.reach)
            ),
            history=self._history(documents, is_open=bool(path)) if history else msgspec.UNSET,
        )

    # inside

    def _stamp(self, at: int | None = None) -> int:
        """The time of a change, `at` or now; at least a microsecond after the last change."""
        self._last_stamp = max(self.now() if at is None else at, self._last_stamp + 1)
        return self._last_stamp

    def _record(self, job_id: str, reach: Reach | None = None) -> JobRecord:
        record = self.jobs.get(job_id)
        if record is None or not (reach is None or is_job_within(record, self._documents, reach)):
            raise rules.job_not_found(job_id)
        return record

    def _records(self, reach: Reach | None) -> list[JobRecord]:
        """The jobs within an access scope, the oldest first."""
        documents = self.documents
        return [each for each in self.jobs.values() if reach is None or is_job_within(each, documents, reach)]

    def _queued(self, wanted: Submission | Update, now: int, **members: Any) -> m.Job:
        """Return a new waiting job."""
        rules.check_queue_room(len(self._waiting), MAX_WAITING_JOBS)
        identity = wanted.identity
        ids: Iterator[str] = (self.seeded.uuid("job", identity, again) for again in range(1 << 30))
        absent = ("document_id", "document_uid", "filename", "error", "started_at", "finished_at")
        job = m.Job(
            id=next(job_id for job_id in ids if job_id not in self.jobs),
            status="queued",
            step=QUEUED,
            progress=0.0,
            completed_steps=0,
            total_steps=0,
            attempts=0,
            deduplicated=False,
            created_at=rfc3339(now),
            elapsed_seconds=0.0,
            **{**dict.fromkeys(absent), **members},
        )
        self.jobs[job.id] = JobRecord(job, wanted, self.policy, now)
        self._waiting.add(job.id)
        return job

    def _is_first(self, job_id: str, name: Line) -> bool:
        """Append a job to the unfinished jobs of its lane; true if it is the first of them."""
        if name is None:
            return True
        line = self._lines[name] = (*self._lines.get(name, ()), job_id)
        return len(line) == 1

    def _begun(self, job: m.Job) -> m.Job:
        """The job as it was accepted, started at once."""
        estimate = self._begin(job.id).seconds_left(self._last_stamp)
        self._settle()
        return msgspec.structs.replace(job, estimated_seconds=estimate or None)

    def _begin(self, job_id: str) -> JobRecord:
        """Start a job at the time of the last change."""
        record, now = self.jobs[job_id], self._last_stamp
        if record.policy != Stuck(step=QUEUED):
            attempts, total = record.job.attempts + 1, len(STEPS)
            job = record.after(
                rules.Event.TAKE, step=STEPS[0], attempts=attempts, started_at=rfc3339(now), total_steps=total
            )
            record = replace(record, job=job, accepted=now)
        self.jobs[job_id] = record
        if (took := record.duration()) is not None:
            heapq.heappush(self._due, (record.accepted + took, job_id))
        return record

    def _settle(self) -> None:
        """End the jobs that are due, in the order of their times."""
        while self._due and self._due[0][0] <= max(self.now(), self._last_stamp):
            due, job_id = heapq.heappop(self._due)
            if job_id in self._waiting:
                self._end(self.jobs[job_id], due)

    def _end(self, record: JobRecord, at: int) -> None:
        """Complete a job, or fail it if its policy or its content says so."""
        now, policy, wanted = self._stamp(at), record.policy, record.submission
        if isinstance(policy, FailAt):
            job = record.failed(policy.step, m.JobError(code=policy.code, message=policy.message), now)
        elif isinstance(wanted, Update):
            try:
                if wanted.reach is not None:  # its note may have left the access scope since it was accepted
                    documents_within(self._documents, wanted.reach).find(wanted.document_id)
                standing = self._documents.by_id.get(wanted.document_id)
                stored = commits.replace_note(self._documents, wanted.document_id, wanted.patch, now)
            except EngineError as error:
                job = record.failed(STEPS[-1], m.JobError(code=error.code, message=error.detail), now)
            else:
                job = record.completed(
                    stored, now=now, outcome="unchanged" if stored is standing else "replaced"
                )
                record = replace(record, updated=stored.document)
        elif isinstance(wanted.content, m.JobError):
            job = record.failed(STEPS[0], wanted.content, now)
        else:
            uid = self.seeded.uuid("document", record.job.id)
            stored, plan = commits.take_in(self._documents, wanted, wanted.content, uid, now)
            job = record.completed(
                stored,
                now=now,
                outcome=plan.outcome,
                deduplicated=plan.target is not None and not plan.swaps,
                left_out=left_out(stored.document, wanted.title, wanted.tags, wanted.metadata or {}),
            )
        self._ended(record, job)

    def _ended(self, record: JobRecord, job: m.Job) -> m.Job:
        """Record the end of a job, and forget the oldest ended jobs beyond the limit.

        The keys that waited for an update get its answer, and the next job of its lane starts.
        """
        self.jobs[job.id] = replace(record, job=job)
        self._waiting.discard(job.id)
        name = line_of(record.submission)
        line = self._lines.pop(name, ())
        if rest := tuple(job_id for job_id in line if job_id != job.id):
            self._lines[name] = rest
            if line[0] == job.id:
                self._begin(rest[0])
        if isinstance(record.submission, Update) and job.status != "cancelled":
            for retry in record.retries:
                self._answers.settle(retry, record.updated)
        if len(self.jobs) - len(self._waiting) > KEPT_ENDED_JOBS:
            del self.jobs[next(job_id for job_id in self.jobs if job_id not in self._waiting)]
        return job
