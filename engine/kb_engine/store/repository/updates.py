"""Updates of notes: accepted as jobs, joined while they are unfinished, done in the order of acceptance."""

from __future__ import annotations

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_contracts.semantics.documents import check_version
from kb_engine.store import rules
from kb_engine.store.port import Idempotency, NewJob, Prepared
from kb_engine.store.repository import documents, jobs
from kb_engine.store.repository.idempotency import once_joined, settle
from kb_engine.store.repository.transaction import Write
from kb_engine.store.rows import leased_job


async def accept(
    write: Write,
    document_id: int,
    patch: m.NotePatch,
    idempotency: Idempotency,
    caller: str,
    refusal: EngineError | None,
    max_queued: int,
) -> m.Job | m.Document:
    """Queue an update, or join the one that does the same; where that was done under this key, its note."""
    return await once_joined(
        write,
        idempotency,
        lambda: _accept(write, document_id, patch, caller, refusal, max_queued),
        lambda job_id: jobs.find(write, job_id),
    )


async def _accept(
    write: Write,
    document_id: int,
    patch: m.NotePatch,
    caller: str,
    refusal: EngineError | None,
    max_queued: int,
) -> m.Job:
    await write.hold_queue()  # of two that do the same at once, the second joins
    standing, text = await documents.note(write, document_id)
    check_version(standing, patch.expected_version)
    wanted = rules.update_job(standing, text, patch, caller)
    # Held, so that its end waits for the key that joins it, or is seen here.
    last = await write.row(rules.LAST_UPDATE + write.dialect.for_update, (document_id,))
    if last is not None and rules.same_update(joined := leased_job(last).job, wanted):
        return await jobs.find(write, joined.id)
    if refusal is not None:
        raise refusal
    return await jobs.accept(write, wanted, max_queued)


async def commit(write: Write, job: NewJob, prepared: Prepared) -> m.Job:
    """Swap the text and close the job, whose row and the base are held.

    Raises EngineError: `document_not_found` or `version_conflict`.
    """
    standing, text = await documents.note(write, rules.updated_note(job))
    check_version(standing, job.expected_version)
    changed = await documents.replace_note(
        write, standing.id, text if job.text is None else job.text, prepared
    )
    await settle(write, job.id, changed)
    return await jobs.complete(write, job.id, changed.id, changed.uid, deduplicated=False)
