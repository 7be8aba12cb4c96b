"""The state of one engine: jobs, documents, answers given. Pure: no I/O, no time and no chance of its own.

    accept ──▶ job ──(policy, polls, time)──▶ document
                └──────── cancel ───────────▶ nothing

Times come from `now`, ids from the seed and from what is submitted. A copy of the state lives on by itself.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import msgspec

from kb_contracts.api import models as m
from kb_contracts.api import ragler as r
from kb_contracts.api.errors import EngineError
from kb_contracts.api.operations import API_VERSION, DocumentQuery, DocumentsQuery
from kb_contracts.semantics.jobs import (
    Event,
    check_queue_room,
    job_finished,
    job_not_found,
    job_not_retryable,
)
from kb_simulator.determinism import Seeded, rfc3339
from kb_simulator.engine.documents import Collections, Documents, Stored, Submission, Update
from kb_simulator.engine.index import DIMENSIONS
from kb_simulator.engine.jobs import (
    QUEUED,
    STEPS,
    AfterPolls,
    Answers,
    AtOnce,
    JobRecord,
    Policy,
    Retry,
    Stuck,
    completed,
    failed,
    failure_of,
    moved,
    new_job,
    requeued,
    started,
)
from kb_simulator.engine.search import Search, search_vectors

A = TypeVar("A", bound=msgspec.Struct)

MAX_WAITING_JOBS = 10_000
"""Jobs that may wait; one more is refused."""
KEPT_ENDED_JOBS = 10_000
"""Ended jobs beyond the newest of these are forgotten."""

_STORAGE_BYTES = 1 << 40


@dataclass(slots=True)
class State:
    """One engine's state. `now` gives microseconds since 1970; `policy` is that of jobs yet to come."""

    seeded: Seeded
    now: Callable[[], int]
    policy: Policy = field(default_factory=AtOnce)
    started: int = 0
    documents: Documents = field(init=False)
    collections: Collections = field(default_factory=Collections)
    jobs: dict[str, JobRecord] = field(default_factory=dict)
    _waiting: set[str] = field(default_factory=set)
    _updates: dict[int, tuple[str, ...]] = field(default_factory=dict)  # unfinished, by document, in order
    _answers: Answers = field(default_factory=Answers)
    _due: list[tuple[int, str]] = field(default_factory=list)
    _last_stamp: int = 0

    def __post_init__(self) -> None:
        self.started = self.started or self.now()
        self.documents = Documents(self.seeded)

    def copy(self) -> State:
        """A state that lives on by itself, on the same clock."""
        twin = replace(
            self,
            collections=self.collections.copy(),
            jobs=dict(self.jobs),
            _waiting=set(self._waiting),
            _updates=dict(self._updates),
            _answers=self._answers.copy(),
            _due=list(self._due),
        )
        twin.documents = self.documents.copy()
        return twin

    # jobs

    def accept(self, submission: Submission, retry: Retry | None = None) -> m.Job:
        """Queue a job; it is done as the policy says. Raises EngineError: `queue_full`."""
        return self._once(retry, m.Job, lambda: self._accept(submission))

    def _accept(self, submission: Submission) -> m.Job:
        job = self._queued(
            submission,
            kind=submission.kind,
            title=submission.job_title,
            filename=submission.filename,
            tags=list(submission.tags),
        )
        return self._begun(job)

    def _begun(self, job: m.Job) -> m.Job:
        """The job as it was accepted, begun at once."""
        estimate = self._begin(job.id).seconds_left(self._last_stamp)
        self._settle()
        return msgspec.structs.replace(job, estimated_seconds=estimate or None)

    def update(self, update: Update, retry: Retry | None = None) -> m.Job | m.Document:
        """Queue the update of a note, or join the one that does the same; done under this key, its note.

        Raises EngineError: `document_not_found`, `not_a_note`, `version_conflict` or `queue_full`.
        """
        self._settle()
        known = None if retry is None else self._answers.given(retry, self.now())
        if isinstance(known, m.Document):
            return known
        if isinstance(known, m.Job) and known.id in self.jobs:
            return self.job(known.id)
        standing = self.documents.note(update.document_id, update.patch.expected_version).document
        job = self._joined(update) or self._queue_update(update, standing)
        if retry is not None:
            record = self.jobs[job.id]
            self.jobs[job.id] = replace(record, retries=(*record.retries, retry))
            self._answers.keep(retry, job, self.now())
        return self.job(job.id)

    def _joined(self, update: Update) -> m.Job | None:
        """The last update of the note that is unfinished, where it asks for the same."""
        line = self._updates.get(update.document_id)
        record = None if line is None else self.jobs[line[-1]]
        if record is None or not isinstance(record.submission, Update):
            return None
        return record.job if record.submission.patch == update.patch else None

    def _queue_update(self, update: Update, standing: m.Document) -> m.Job:
        job = self._queued(
            update,
            kind="update",
            title=update.patch.title or standing.title,
            tags=list(standing.tags),
            document_id=standing.id,
        )
        if self._is_first(job.id, standing.id):
            self._begin(job.id)
        return job

    def _is_first(self, job_id: str, document_id: int) -> bool:
        """Put an update behind the unfinished ones of its note; whether it is the first of them."""
        line = self._updates[document_id] = (*self._updates.get(document_id, ()), job_id)
        return len(line) == 1

    def outcome(self, job_id: str) -> m.Job | m.Document:
        """The note as an update has left it, or the job where it has not.

        Raises EngineError: why it failed, as it would now.
        """
        self._settle()
        record = self._record(job_id)
        job, update = record.at(self.now()), record.submission
        if job.error is not None and isinstance(update, Update):
            self.documents.note(update.document_id, update.patch.expected_version)
            raise EngineError(job.error.code, job.error.message)
        return record.updated or job

    def _queued(self, wanted: Submission | Update, **members: Any) -> m.Job:
        """A new job that waits for its turn. Raises EngineError: `queue_full`."""
        self._check_room()
        accepted = self._stamp()
        job = new_job(self._new_id(wanted.identity), accepted, **members)
        self.jobs[job.id] = JobRecord(job, wanted, self.policy, accepted)
        self._waiting.add(job.id)
        return job

    def _check_room(self) -> None:
        check_queue_room(len(self._waiting), MAX_WAITING_JOBS)

    def _begin(self, job_id: str) -> JobRecord:
        """A job's turn has come, at the moment of the last change."""
        record, now = self.jobs[job_id], self._last_stamp
        if record.policy != Stuck(step=QUEUED):
            record = replace(record, job=started(record.job, record.job.attempts + 1, now), accepted=now)
        self.jobs[job_id] = record
        if (due := record.due()) is not None:
            heapq.heappush(self._due, (due, job_id))
        return record

    def job(self, job_id: str) -> m.Job:
        """One job. Raises EngineError: `job_not_found`."""
        self._settle()
        return self._record(job_id).at(self.now())

    def poll(self, job_id: str) -> m.Job:
        """One job, after a poll that its policy may count. Raises EngineError: `job_not_found`."""
        self._settle()
        record = self._record(job_id)
        if not record.ended:
            record = self.jobs[job_id] = replace(record, polls=record.polls + 1)
            policy, running = record.policy, record.job.status == "running"
            if running and isinstance(policy, AfterPolls) and record.polls >= policy.polls:
                self._end(record, self.now())
                self._settle()
                record = self._record(job_id)
        return record.at(self.now())

    def seconds_to_end(self, job_id: str) -> float | None:
        """How long a job will run yet: 0 where it has ended, None where time does not end it."""
        record = self._record(job_id)
        if record.ended:
            return 0.0
        ahead, took = [record], 0
        if isinstance(record.submission, Update):
            line = self._updates[record.submission.document_id]
            ahead = [self.jobs[each] for each in line[: line.index(job_id) + 1]]
        for each in ahead:
            if (duration := each.duration()) is None:
                return None
            took += duration
        return max(0.0, (ahead[0].accepted + took - self.now()) / 1_000_000)

    def job_page(self, status: m.JobStatus | None, limit: int, offset: int) -> m.JobList:
        """Jobs, newest first."""
        self._settle()
        now = self.now()
        found = [
            record for record in reversed(self.jobs.values()) if status is None or record.job.status == status
        ]
        found_now = [record.at(now) for record in found[offset : offset + limit]]
        return m.JobList(jobs=found_now, total=len(found), limit=limit, offset=offset)

    def cancel(self, job_id: str, retry: Retry | None = None) -> m.Job:
        """Raises EngineError: `job_not_found` or `job_finished`."""
        cancelled = self._once(retry, m.Job, lambda: self._cancel(job_id))
        self._settle()  # an update that waited for it
        return cancelled

    def _cancel(self, job_id: str) -> m.Job:
        record = self._record(job_id)
        if record.ended:
            raise job_finished(record.job.status)
        job = moved(
            record.at(self.now()),
            Event.CANCEL,
            estimated_seconds=None,
            finished_at=rfc3339(self._stamp()),
        )
        return self._ended(record, job).job

    def retry_job(self, job_id: str, retry: Retry | None = None) -> m.Job:
        """Queue a failed job again; it ends as the policy of now says.

        Raises:
            EngineError: `job_not_found`, `job_not_retryable` or `queue_full`.
        """
        return self._once(retry, m.Job, lambda: self._retry_job(job_id))

    def _retry_job(self, job_id: str) -> m.Job:
        record = self._record(job_id)
        if not record.job.retryable:
            raise job_not_retryable(record.job.status)
        self._check_room()
        job, wanted = requeued(record.job), record.submission
        self.jobs[job_id] = JobRecord(job, wanted, self.policy, self._stamp())
        self._waiting.add(job_id)
        if isinstance(wanted, Update) and not self._is_first(job_id, wanted.document_id):
            return job
        return self._begun(job)

    # documents

    def document(self, key: int | str, query: DocumentQuery) -> m.DocumentDetail:
        """One document with a slice of its chunks. Raises EngineError: `document_not_found`."""
        self._settle()
        stored = self.documents.find(key)
        limit = query.chunk_limit if query.chunks else 0
        fields = msgspec.structs.asdict(stored.document)
        chunks = list(stored.chunks[query.chunk_offset : query.chunk_offset + limit])
        return m.DocumentDetail(**fields, chunks=chunks, chunk_offset=query.chunk_offset, chunk_limit=limit)

    def document_page(self, query: DocumentsQuery) -> m.DocumentList:
        """One page of the documents that match."""
        self._settle()
        tags = set() if query.tag is None else set(query.tag.split(","))

        def matches(document: m.Document) -> bool:
            return (
                query.source_path in (None, *document.source_paths)
                and tags.issubset(document.tags)
                and query.doc_type in (None, document.doc_type)
            )

        return self.documents.page(
            matches,
            sort_by=query.sort_by,
            descending=query.sort_order == "desc",
            limit=query.limit,
            offset=query.offset,
        )

    def delete(self, key: int | str, retry: Retry | None = None) -> m.Removed:
        """Raises EngineError: `document_not_found`."""
        return self._once(retry, m.Removed, lambda: self.documents.remove([key], self._stamp()))

    def clear(self, retry: Retry | None = None, *, collections: bool = False) -> m.Removed:
        """Remove all documents, with `collections` descriptions too, and cancel the unfinished jobs."""
        return self._once(retry, m.Removed, lambda: self._clear(collections))

    def _clear(self, collections: bool) -> m.Removed:
        running = [job_id for job_id in self.jobs if job_id in self._waiting]
        for job_id in running:
            self._cancel(job_id)
        for job_id, record in self.jobs.items():
            if record.job.retryable:  # nothing that was sent before is kept
                self.jobs[job_id] = replace(record, job=msgspec.structs.replace(record.job, retryable=False))
        removed = self.documents.remove(list(self.documents.by_id), self._stamp())
        removed.jobs_cancelled = len(running)
        if collections:
            self.collections.clear()
        return removed

    def add_tags(
        self, key: int | str, tags: list[str], if_match: int | None, retry: Retry | None = None
    ) -> m.Document:
        """Raises EngineError: `document_not_found` or `version_conflict`."""
        return self._change(retry, lambda now: self.documents.add_tags(key, tags, if_match, now))

    def remove_tag(
        self, key: int | str, tag: str, if_match: int | None, retry: Retry | None = None
    ) -> m.Document:
        """Raises EngineError: `document_not_found`, `tag_not_found` or `version_conflict`."""
        return self._change(retry, lambda now: self.documents.remove_tag(key, tag, if_match, now))

    def tags(self, prefix: str, limit: int, offset: int) -> m.TagList:
        """Tags in use, in alphabetical order."""
        self._settle()
        return self.documents.tags(prefix, limit, offset)

    # collections

    def collection_list(self) -> r.CollectionList:
        """All collections, by name."""
        self._settle()
        return self.collections.every(self.documents)

    def collection(self, id_: str) -> r.CollectionDetail:
        """Raises EngineError: `collection_not_found`."""
        self._settle()
        return self.collections.detail(self.documents, id_)

    def put_collection(
        self, id_: str, wanted: r.CollectionRequest, retry: Retry | None = None
    ) -> r.CollectionDetail:
        """Raises EngineError: `collection_exists`."""
        return self._once(
            retry,
            r.CollectionDetail,
            lambda: self.collections.put(self.documents, id_, wanted, self._stamp()),
        )

    # looking

    @property
    def revision(self) -> int:
        """Raised by every change of what a search can find."""
        self._settle()
        return self.documents.revision

    def search(self, request: m.SearchRequest) -> m.SearchResponse:
        """Raises EngineError: `contradiction` or `invalid_parameter`."""
        self._settle()
        return Search(self.documents).answer(request)

    def vector_search(self, request: r.VectorSearchRequest) -> r.VectorSearchResponse:
        """Raises EngineError: `collection_not_found`, `contradiction` or `invalid_parameter`."""
        self._settle()
        return search_vectors(self.documents, self.collections, request)

    def status(self) -> m.Status:
        """Version, model, counts, queue and storage."""
        self._settle()
        size = sum(stored.document.size_bytes for stored in self.documents.by_id.values())
        updated = self.documents.last_updated
        return m.Status(
            version=API_VERSION,
            model=m.ModelInfo(name="hashed-words", dimensions=DIMENSIONS, max_tokens=256, loaded=True),
            device=m.DeviceInfo(type="simulator", threads=1),
            documents=self.documents.counts(),
            chunks=len(self.documents.owners),
            queue=self._queue(),
            storage=m.StorageInfo(
                path="memory", bytes=size, free_bytes=_STORAGE_BYTES - size, originals_bytes=size
            ),
            issues=[],
            started_at=rfc3339(self.started),
            last_updated=None if updated is None else rfc3339(updated),
        )

    def _queue(self) -> m.QueueState:
        states = Counter(record.job.status for record in self.jobs.values())
        names = m.QueueState.__struct_fields__
        return m.QueueState(**{name: states.get(cast("m.JobStatus", name), 0) for name in names})

    # inside

    def _once(self, retry: Retry | None, kind: type[A], effect: Callable[[], A]) -> A:
        """Do the effect, unless it was done under this key: then its answer from then."""
        self._settle()
        if retry is None:
            return effect()
        if (given := self._answers.given(retry, self.now())) is not None:
            if not isinstance(given, kind):
                raise TypeError(f"{retry.operation} answered {type(given).__name__}, not {kind.__name__}")
            return given
        answer = effect()
        self._answers.keep(retry, answer, self.now())
        return answer

    def _change(self, retry: Retry | None, effect: Callable[[int], Stored]) -> m.Document:
        return self._once(retry, m.Document, lambda: effect(self._stamp()).document)

    def _stamp(self, at: int | None = None) -> int:
        """The time of a change, `at` or now; a microsecond after the last change where time stands still."""
        self._last_stamp = max(self.now() if at is None else at, self._last_stamp + 1)
        return self._last_stamp

    def _new_id(self, identity: str) -> str:
        candidates: Iterator[str] = (self.seeded.uuid("job", identity, again) for again in range(1 << 30))
        return next(job_id for job_id in candidates if job_id not in self.jobs)

    def _record(self, job_id: str) -> JobRecord:
        if (record := self.jobs.get(job_id)) is None:
            raise job_not_found(job_id)
        return record

    def _settle(self) -> None:
        """End the jobs whose time has come, in the order in which it came."""
        if not self._due:
            return
        while self._due and self._due[0][0] <= max(self.now(), self._last_stamp):
            due, job_id = heapq.heappop(self._due)
            if job_id in self._waiting:
                self._end(self.jobs[job_id], due)

    def _end(self, record: JobRecord, at: int) -> JobRecord:
        """Complete a job, or fail it where its policy or its file says so."""
        now = self._stamp(at)
        failure = failure_of(record)
        if failure is not None:
            return self._ended(record, failed(record, *failure, now))
        wanted = record.submission
        if isinstance(wanted, Submission):
            assert not isinstance(wanted.content, m.JobError), "a job without a text has failed"
            uid = self.seeded.uuid("document", record.job.id)
            stored, twin = self.documents.take_in(wanted, wanted.content, uid, now)
            return self._ended(record, completed(record.job, stored, deduplicated=twin, now=now))
        try:
            stored = self.documents.replace_note(wanted.document_id, wanted.patch, now)
        except EngineError as error:
            why = m.JobError(code=error.code, message=error.detail)
            return self._ended(record, failed(record, STEPS[-1], why, now))
        job = completed(record.job, stored, deduplicated=False, now=now)
        return self._ended(replace(record, updated=stored.document), job)

    def _ended(self, record: JobRecord, job: m.Job) -> JobRecord:
        """Write down how a job has ended, and forget what ended longest ago."""
        record = self.jobs[job.id] = replace(record, job=job)
        self._waiting.discard(job.id)
        if isinstance(record.submission, Update):
            self._update_ended(record, record.submission.document_id)
        if len(self.jobs) - len(self._waiting) > KEPT_ENDED_JOBS:
            del self.jobs[next(job_id for job_id in self.jobs if job_id not in self._waiting)]
        return record

    def _update_ended(self, record: JobRecord, document_id: int) -> None:
        """Tell the keys that waited for it, and let the next update of the note begin."""
        line = self._updates.pop(document_id)
        if rest := tuple(job_id for job_id in line if job_id != record.job.id):
            self._updates[document_id] = rest
            if line[0] == record.job.id:
                self._begin(rest[0])
        if record.job.status != "cancelled":
            for retry in record.retries:
                self._answers.settle(retry, record.updated)
