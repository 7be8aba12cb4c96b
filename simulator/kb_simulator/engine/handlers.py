"""One handler for each operation of the contract: from the request to the state, and nothing else.

Bodies are read whole into memory within bounds: a fake has nowhere to spool to. Files are read by the readers
that the engine has too. OCR alone is missing: a fake loads no models.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import Protocol

import msgspec
from aiohttp import web

from kb_contracts.api import models as m
from kb_contracts.api import ragler as r
from kb_contracts.api.errors import EngineError
from kb_contracts.api.formats import Format
from kb_contracts.api.operations import AnyOperation, NoQuery
from kb_contracts.http.mount import JSON_BODY_BYTES, Handler, Incoming, handlers_of
from kb_contracts.http.multipart import ReceivedFile, receive_file
from kb_contracts.semantics.collections import check_may_describe
from kb_contracts.semantics.documents import (
    check_confirmed,
    check_metadata,
    check_note_text,
    check_ocr,
    check_patch,
    document_key,
)
from kb_contracts.semantics.requests import RateWindows, request_fingerprint
from kb_readers import Extraction, ExtractionFailed, format_of, read_file, require_reader
from kb_simulator.engine import documents
from kb_simulator.engine.jobs import Retry
from kb_simulator.engine.state import State


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that was received completely."""

    received: ReceivedFile
    format: Format
    data: bytes


class Engine(Protocol):
    """One running engine: what a namespace of the harness offers its handlers.

    `state` is read at each use, because a reset or a restore replaces it while a request waits.
    """

    state: State
    rates: RateWindows

    async def wait_for_end(self, job_id: str, seconds: float) -> None:
        """Return when the job has ended, or after `seconds` of virtual time."""


@dataclass(slots=True)
class Call:
    """One request to one engine.

    `identity` distinguishes the request from all others of a run and is the same in every run. `reads` is the
    state that reads look at: an older one under a stale read. `upload` is None where no file was sent.
    """

    namespace: Engine
    identity: str
    reads: State
    upload: Upload | None = None


CURRENT: ContextVar[Call] = ContextVar("call")
"""The call of the task that answers it. A context variable, because a request has no typed place for it."""


_ENVELOPE_BYTES = 8 * 1024 * 1024  # what the other parts of a multipart body may take beside the file


async def read_body(
    request: web.Request, operation: AnyOperation | None, max_upload_bytes: int
) -> tuple[bytes, Upload | None]:
    """The body that the fingerprint is made of, and the file in it, where the operation takes one.

    Raises:
        EngineError: as `receive_file`, `payload_too_large` or `unsupported_format`.
    """
    if request.content_type == "multipart/form-data":
        if operation is None or operation.multipart is None:
            return b"", None
        upload = await _receive(request, max_upload_bytes)
        return _canonical(upload), upload
    if not request.can_read_body:
        return b"", None
    try:
        return await request.read(), None
    except web.HTTPRequestEntityTooLarge as error:
        raise EngineError("payload_too_large", f"A JSON body has at most {JSON_BODY_BYTES} bytes.") from error


class _Memory:
    def __init__(self) -> None:
        self.data = bytearray()

    async def write(self, data: bytes) -> None:
        """Take the next bytes."""
        self.data += data


async def _receive(request: web.Request, max_bytes: int) -> Upload:
    if (request.content_length or 0) > max_bytes + _ENVELOPE_BYTES:
        raise EngineError("payload_too_large", f"The file is over the limit of {max_bytes} bytes.")
    memory = _Memory()
    formats: list[Format] = []

    async def open_sink(filename: str) -> _Memory:
        formats.append(_format(filename))  # before the first byte: an unknown kind is refused at once
        return memory

    received = await receive_file(request, open_sink, max_bytes=max_bytes)
    return Upload(received, formats[0], bytes(memory.data))


def _format(filename: str) -> Format:
    try:
        fmt = format_of(filename)
        require_reader(fmt)
    except ExtractionFailed as error:
        raise EngineError(error.code, error.message, parameter="file") from error
    return fmt


def _canonical(upload: Upload) -> bytes:
    """What two uploads of the same have in common: not the boundary, nor the order of the parts."""
    fields = msgspec.structs.asdict(upload.received.fields)
    return msgspec.json.encode(
        {**fields, "file": [upload.received.filename, upload.received.sha256]}, order="sorted"
    )


_PICTURES = frozenset(["jpg", "png"])


async def extract(data: bytes, fmt: Format, *, force_ocr: bool = False) -> Extraction:
    """The text of a file.

    Raises:
        ExtractionFailed: as `kb_readers.read_file`; `ocr_failed` for every picture, and every PDF of which
        OCR is
            forced.
    """
    if force_ocr or fmt.name in _PICTURES:
        raise ExtractionFailed(
            "ocr_failed", "The simulator reads no pictures, nor does an engine without the extra `ocr`."
        )
    with TemporaryFile() as source:
        source.write(data)
        source.seek(0)
        return await read_file(source, fmt)


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
    return call.namespace.state.accept(documents.note(call.identity, incoming.body), _retry(incoming))


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
    update = documents.Update(call.identity, incoming.path["document_id"], patch)
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


async def _file(identity: str, upload: Upload) -> documents.Submission:
    received = upload.received
    check_metadata(received.fields.metadata)
    check_ocr(received.fields, upload.format)
    return documents.file(
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
