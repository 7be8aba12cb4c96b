"""Updates of notes: accepted as jobs, joined while they are unfinished, done in the order of acceptance."""

from __future__ import annotations

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_engine.store import rules
from kb_engine.store.port import Idempotency, NewJob, Prepared
from kb_engine.store.rows import leased_job
from kb_engine.store.sqlite import documents, jobs
from kb_engine.store.sqlite.connection import row
from kb_engine.store.sqlite.idempotency import once_joined, settle
from kb_engine.store.sqlite.write import Write


def accept(
    write: Write,
    document_id: int,
    patch: m.NotePatch,
    idempotency: Idempotency,
    caller: str,
    refusal: EngineError | None,
    max_queued: int,
) -> m.Job | m.Document:
    """Queue an update, or join the one that does the same; where that was done under this key, its note."""
    return once_joined(
        write,
        idempotency,
        lambda: _accept(write, document_id, patch, caller, refusal, max_queued),
        lambda job_id: jobs.find(write.db, job_id, write.now),
    )


def _accept(
    write: Write,
    document_id: int,
    patch: m.NotePatch,
    caller: str,
    refusal: EngineError | None,
    max_queued: int,
) -> m.Job:
    standing, text = documents.note(write.db, document_id)
    rules.expect_version(standing, patch.expected_version)
    wanted = rules.update_job(standing, text, patch, caller)
    last = row(write.db, rules.LAST_UPDATE, (document_id,))
    if last is not None and rules.same_update(joined := leased_job(last).job, wanted):
        return jobs.find(write.db, joined.id, write.now)
    if refusal is not None:
        raise refusal
    return jobs.accept(write, wanted, max_queued)


def commit(write: Write, job: NewJob, prepared: Prepared) -> m.Job:
    """Swap the text and close the job; whoever waits under a key gets the note as it is then.

    Raises EngineError: `document_not_found` or `version_conflict`.
    """
    standing, text = documents.note(write.db, rules.updated_note(job))
    rules.expect_version(standing, job.expected_version)
    changed = documents.replace_note(write, standing.id, text if job.text is None else job.text, prepared)
    settle(write, job.id, changed)
    return jobs.complete(write, job.id, changed.id, changed.uid, deduplicated=False)
