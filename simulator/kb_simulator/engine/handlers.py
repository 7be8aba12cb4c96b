"""One handler for each operation of the contract: from the request to the state, and nothing else."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping

from kb_contracts.api import models as m
from kb_contracts.api import ragler as r
from kb_contracts.api.operations import NoQuery
from kb_contracts.http.mount import Handler, Incoming, handlers_of
from kb_contracts.semantics.collections import check_may_describe
from kb_contracts.semantics.documents import (
    check_confirmed,
    check_metadata,
    check_note_text,
    check_ocr,
    check_patch,
    document_key,
)
from kb_contracts.semantics.requests import request_fingerprint
from kb_readers import Extraction, ExtractionFailed
from kb_simulator.engine import submission
from kb_simulator.engine.call import CURRENT, Call, Upload
from kb_simulator.engine.extract import extract
from kb_simulator.engine.idempotency import Retry


def handlers() -> Mapping[str, Handler]:
    """The handlers by operation id."""
    return handlers_of(sys.modules[__name__])


async def search(incoming: Incoming) -> m.SearchResponse:
    """Find passages."""
    return CURRENT.get().reads.search(incoming.body)


async def create_job(incoming: Incoming) -> m.Job:
    """Take in a note or a file."""
    call = CURRENT.get()
    if call.upload is not None:
        source = await _file(call.identity, call.upload)
        return call.namespace.state.accept(source, _retry(incoming, call.upload))
    check_note_text(incoming.body.text)
    check_metadata(incoming.body.metadata)
    return call.namespace.state.accept(submission.note(call.identity, incoming.body), _retry(incoming))


async def list_jobs(incoming: Incoming) -> m.JobList:
    """Jobs, newest first."""
    query = incoming.query
    return CURRENT.get().reads.job_page(query.status, query.limit, query.offset)


async def get_job(incoming: Incoming) -> m.Job:
    """One job, at its end or after `wait` virtual seconds."""
    call, job_id, wait = CURRENT.get(), incoming.path["job_id"], incoming.query.wait
    job = call.reads.poll(job_id)
    if job.finished_at is not None or wait <= 0:
        return job
    await call.namespace.wait_for_end(job_id, wait)
    return call.reads.job(job_id)


async def cancel_job(incoming: Incoming) -> m.Job:
    """Cancel a job that has not ended."""
    return CURRENT.get().namespace.state.cancel(incoming.path["job_id"], _retry(incoming))


async def retry_job(incoming: Incoming) -> m.Job:
    """Queue a failed job again."""
    return CURRENT.get().namespace.state.retry_job(incoming.path["job_id"], _retry(incoming))


async def list_documents(incoming: Incoming) -> m.DocumentList:
    """One page of documents."""
    return CURRENT.get().reads.document_page(incoming.query)


async def get_document(incoming: Incoming) -> m.DocumentDetail:
    """One document with a slice of its chunks."""
    return CURRENT.get().reads.document(document_key(incoming.path["document_id"]), incoming.query)


async def delete_document(incoming: Incoming) -> m.Removed:
    """Remove one document."""
    return CURRENT.get().namespace.state.delete(document_key(incoming.path["document_id"]), _retry(incoming))


async def clear_documents(incoming: Incoming) -> m.Removed:
    """Remove all documents."""
    check_confirmed(incoming.query.confirm)
    state = CURRENT.get().namespace.state
    return state.clear(_retry(incoming), collections=incoming.query.collections)


async def patch_note(incoming: Incoming) -> m.Document | m.Job:
    """Replace a note's text, title or both: the document when that is done in time, else its job."""
    patch: m.NotePatch = incoming.body
    check_patch(patch)
    call = CURRENT.get()
    state = call.namespace.state
    update = submission.Update(call.identity, incoming.path["document_id"], patch)
    # How long the caller waits does not make it another request.
    taken = state.update(update, _retry(dataclasses.replace(incoming, query=NoQuery())))
    if isinstance(taken, m.Document):
        return taken
    if taken.finished_at is None and incoming.query.wait > 0:
        await call.namespace.wait_for_end(taken.id, incoming.query.wait)
    return state.outcome(taken.id)


async def add_tags(incoming: Incoming) -> m.Document:
    """Add tags to a document."""
    state, tags = CURRENT.get().namespace.state, incoming.body.tags
    return state.add_tags(
        document_key(incoming.path["document_id"]), tags, incoming.if_match, _retry(incoming)
    )


async def remove_tag(incoming: Incoming) -> m.Document:
    """Take a tag off a document."""
    state, tag = CURRENT.get().namespace.state, incoming.path["tag"]
    return state.remove_tag(
        document_key(incoming.path["document_id"]), tag, incoming.if_match, _retry(incoming)
    )


async def list_tags(incoming: Incoming) -> m.TagList:
    """Tags with how much carries them."""
    query = incoming.query
    return CURRENT.get().reads.tags(query.prefix, query.limit, query.offset)


async def get_status(_incoming: Incoming) -> m.Status:
    """Counts, model, queue and storage."""
    return CURRENT.get().reads.status()


async def get_health(_incoming: Incoming) -> m.Health:
    """The process lives."""
    return m.Health(status="ok")


async def get_readiness(_incoming: Incoming) -> m.Health:
    """A simulator that answers is ready."""
    return m.Health(status="ready")


async def vector_search(incoming: Incoming) -> r.VectorSearchResponse:
    """Find passages as RAGler does."""
    return _limited(incoming).reads.vector_search(incoming.body)


async def list_collections(incoming: Incoming) -> r.CollectionList:
    """All collections."""
    return _limited(incoming).reads.collection_list()


async def get_collection(incoming: Incoming) -> r.CollectionDetail:
    """One collection."""
    return _limited(incoming).reads.collection(incoming.path["collection_id"])


async def put_collection(incoming: Incoming) -> r.CollectionDetail:
    """Describe a collection."""
    check_may_describe(incoming.role)
    state = CURRENT.get().namespace.state
    return state.put_collection(incoming.path["collection_id"], incoming.body, _retry(incoming))


def _limited(incoming: Incoming) -> Call:
    """The call, counted. Raises EngineError: `rate_limited`."""
    call = CURRENT.get()
    call.namespace.rates.count(incoming.operation.id, incoming.user, incoming.credential)
    return call


async def _file(identity: str, upload: Upload) -> submission.Submission:
    received = upload.received
    check_metadata(received.fields.metadata)
    check_ocr(received.fields, upload.format)
    return submission.file(
        identity,
        received.fields,
        received.filename,
        upload.format,
        await _text(upload),
        size=received.size,
        sha256=received.sha256,
    )


async def _text(upload: Upload) -> Extraction | m.JobError:
    try:
        return await extract(upload.data, upload.format, force_ocr=upload.received.fields.force_ocr)
    except ExtractionFailed as error:
        return m.JobError(code=error.code, message=error.message)


def _retry(incoming: Incoming, upload: Upload | None = None) -> Retry | None:
    """How a retry of this mutation is recognised; None where it came without a key."""
    if incoming.idempotency_key is None:
        return None
    received = None if upload is None else upload.received
    return Retry(
        credential=incoming.credential,
        operation=incoming.operation.id,
        key=incoming.idempotency_key,
        fingerprint=request_fingerprint(
            incoming.path,
            incoming.query,
            incoming.body,
            incoming.if_match,
            None if received is None else (received.filename, received.sha256, received.fields),
        ),
    )
