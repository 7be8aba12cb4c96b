"""Updates of notes, which are jobs: accepted, joined while unfinished, run in the order of acceptance."""

from __future__ import annotations

from uuid import uuid4

import msgspec

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_contracts.semantics.documents import check_version, text_digest
from kb_contracts.semantics.requests import Idempotency
from kb_engine.store.port import NewJob
from kb_engine.store.repository import documents, jobs
from kb_engine.store.repository.transaction import Write, answer_or_job, keep_answer


async def accept(
    write: Write,
    document_id: int,
    patch: m.NotePatch,
    idempotency: Idempotency,
    *,
    if_match: int | None = None,
    caller: str = "",
    refusal: EngineError | None = None,
) -> m.Job | m.Document:
    """Queue the update of a note durably, or join an equivalent one.

    A request joins the job of the same idempotency key, or the most recently accepted update of this note if
    it is unfinished and asks for the same. If the key's job has completed, the response is the note as it was
    then (`answer_to` returns it too); if it failed, the key is free again. A new job takes its turn among the
    jobs of `caller`; if `refusal` is given, it is raised instead of queueing a new job.

    Raises `document_not_found`, `not_a_note`, `version_conflict` and `queue_full`.
    """
    await write.hold_key(idempotency)
    if (known := await answer_or_job(write, idempotency)) is not None:
        answer, job_id = known
        if job_id is not None:
            return await jobs.find(write, job_id)
        return msgspec.json.decode(answer, type=m.Document)
    await write.hold_queue()  # two equal requests at once: the second joins
    standing, text = await documents.note(write, document_id)
    check_version(standing.version, if_match, patch.expected_version)
    expected = patch.expected_version or if_match
    # Lock it, so that its end either waits for the key that joins it or is seen here.
    last = await jobs.hold_last_update(write, document_id)
    wanted = (patch.text, patch.title, expected, write.reach)
    if last is not None and (last.text, last.new_title, last.expected_version, last.reach) == wanted:
        job = await jobs.find(write, last.id)
    elif refusal is not None:
        raise refusal
    else:
        sha256, size = text_digest(text if patch.text is None else patch.text)
        job = await jobs.accept(
            write,
            NewJob(
                id=str(uuid4()),
                kind="update",
                title=patch.title or standing.title,
                tags=standing.tags,
                metadata={},
                source_path=None,
                dedup_scope="",
                sha256=sha256,
                size_bytes=size,
                text=patch.text,
                document_id=standing.id,
                new_title=patch.title,
                expected_version=expected,
                caller=caller,
                reach=write.reach,
            ),
        )
    await keep_answer(write, idempotency, job, job.id)
    return job
