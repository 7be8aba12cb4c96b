"""One handler for each operation of the contract, from the request to the state.

Bodies are read into memory, within limits, because the simulator has no spool directory. Files are read by
the engine's own readers, except that OCR is missing: the simulator loads no models.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO, Protocol, TypeVar

import msgspec
from aiohttp import web

from kb_contracts.api import models as m
from kb_contracts.api import ragler as r
from kb_contracts.api.content import FileContent
from kb_contracts.api.errors import EngineError
from kb_contracts.api.formats import FORMATS, Format
from kb_contracts.api.operations import AnyOperation, DocumentQuery, NoQuery
from kb_contracts.semantics import documents as rules
from kb_contracts.semantics.access import check_submission, check_whole
from kb_contracts.semantics.history import is_question
from kb_contracts.semantics.requests import RateWindows
from kb_http.mount import Handler, handlers_of
from kb_http.multipart import ReceivedFile, receive_file
from kb_http.requests import Incoming, whole_body
from kb_readers.failures import ExtractionFailed
from kb_readers.model import DEFAULT_LIMITS, Extraction, Page
from kb_readers.probe import sandbox_info
from kb_readers.readers import draw_file, format_of, read_file, require_reader
from kb_simulator.engine import arrivals, submissions
from kb_simulator.engine.documents import Documents
from kb_simulator.engine.search import search as find_passages
from kb_simulator.engine.search import search_vectors, similar_to
from kb_simulator.engine.state import State

A = TypeVar("A", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Upload:
    """A completely received file."""

    received: ReceivedFile
    format: Format
    data: bytes


class Engine(Protocol):
    """The part of a running engine that handlers use; a namespace of the harness implements it.

    `state` is read at each use, because a reset or a restore replaces it while a request waits.
    """

    state: State
    rates: RateWindows

    async def wait_for_end(self, job_id: str, seconds: float) -> None:
        """Return when the job has ended, or after `seconds` of virtual time."""


@dataclass(slots=True)
class Call:
    """One request to one engine.

    `identity` identifies the request within a run and is the same in every run. `reads` is the state for
    reads: an older one under a stale read. `upload` is None if no file was sent.
    """

    namespace: Engine
    identity: str
    reads: State
    upload: Upload | None = None


CURRENT: ContextVar[Call] = ContextVar("call")
"""The call of the current task. A context variable, because a request has no typed attribute for it."""


# --- request bodies and files ---------------------------------------------------------------------

_ENVELOPE_BYTES = 8 * 1024 * 1024  # maximum size of the other parts of a multipart body
_PICTURES = frozenset(["jpg", "png"])


async def read_body(
    request: web.Request, operation: AnyOperation | None, max_upload_bytes: int
) -> tuple[bytes, Upload | None]:
    """Return the body for the fingerprint, and the uploaded file if the operation takes one."""
    if request.content_type == "multipart/form-data":
        if operation is None or operation.multipart is None:
            return b"", None
        if (request.content_length or 0) > max_upload_bytes + _ENVELOPE_BYTES:
            raise EngineError("payload_too_large", f"The file is over the limit of {max_upload_bytes} bytes.")
        memory = _Memory()
        formats: list[Format] = []

        async def open_sink(filename: str, content_type: str) -> _Memory:
            # Checked before the first byte, so that an unknown format is refused at once.
            formats.append(_format(filename, content_type))
            return memory

        received = await receive_file(request, open_sink, max_bytes=max_upload_bytes)
        # The parts without the boundary and their order, which differ between equal uploads.
        parts = {**msgspec.structs.asdict(received.fields), "file": [received.filename, received.sha256]}
        return msgspec.json.encode(parts, order="sorted"), Upload(received, formats[0], bytes(memory))
    if not request.can_read_body:
        return b"", None
    return await whole_body(request), None


class _Memory(bytearray):
    async def write(self, data: bytes) -> None:
        self.extend(data)


def _format(filename: str, content_type: str) -> Format:
    try:
        fmt = format_of(filename, content_type)
        require_reader(fmt)
    except ExtractionFailed as error:
        raise EngineError(error.code, error.message, parameter="file") from error
    return fmt


async def extract(data: bytes, fmt: Format, *, force_ocr: bool = False) -> Extraction:
    """Return the text of a file.
    Raises ExtractionFailed: as `kb_readers.read_file`; `ocr_failed` for every picture, and for a PDF with
    forced OCR.
    """
    if force_ocr or fmt.name in _PICTURES:
        raise ExtractionFailed(
            "ocr_failed", "The simulator reads no pictures, nor does an engine without the extra `ocr`."
        )
    with _opened(data) as source:
        return await read_file(source, fmt)


@contextmanager
def _opened(data: bytes) -> Iterator[IO[bytes]]:
    with TemporaryFile() as source:
        source.write(data)
        source.seek(0)
        yield source


def _change(incoming: Incoming, effect: Callable[[State, int], A]) -> A:
    """Run a mutation with the state and the time, unless its idempotency key was already used."""
    state = CURRENT.get().namespace.state
    return state.once(incoming.idempotency(), lambda now: effect(state, now))


def _limited(incoming: Incoming) -> State:
    """Count the call against the rate limit and return the state for reads."""
    call = CURRENT.get()
    call.namespace.rates.count(incoming.operation.id, incoming.rated_user, incoming.credential)
    return call.reads


# --- the handlers ---------------------------------------------------------------------------------


def handlers() -> Mapping[str, Handler]:
    """The handlers by operation id."""
    return handlers_of(sys.modules[__name__])


async def search(incoming: Incoming) -> m.SearchResponse:
    state, reach = CURRENT.get().reads, incoming.access.reach
    answer = find_passages(state.seen(reach), incoming.body, state.now(), reach)
    if is_question(incoming.body):
        CURRENT.get().namespace.state.count_question(is_answered=answer.total > 0 and not answer.weak)
    return answer


async def create_job(incoming: Incoming) -> m.Job:
    call, reach = CURRENT.get(), incoming.access.reach
    if call.upload is None:
        rules.check_note_text(incoming.body.text)
        rules.check_metadata(incoming.body.metadata)
        check_submission(reach, incoming.body.tags)
        note = submissions.note(call.identity, incoming.body, reach)
        return call.namespace.state.accept(note, incoming.idempotency())
    received, fmt = call.upload.received, call.upload.format
    rules.check_metadata(received.fields.metadata)
    check_submission(reach, received.fields.tags)
    rules.check_ocr(received.fields, fmt)
    content: Extraction | m.JobError
    try:
        content = await extract(call.upload.data, fmt, force_ocr=received.fields.force_ocr)
    except ExtractionFailed as error:
        content = m.JobError(code=error.code, message=error.message)
    file = submissions.file(
        call.identity,
        received.fields,
        received.filename,
        fmt,
        content,
        size=received.size,
        sha256=received.sha256,
        original=call.upload.data if call.namespace.state.keeps_originals else None,
        reach=reach,
    )
    return call.namespace.state.accept(file, incoming.idempotency(received.identity))


async def list_jobs(incoming: Incoming) -> m.JobList:
    query = incoming.query
    return CURRENT.get().reads.job_page(query.status, query.limit, query.offset, incoming.access.reach)


async def get_job(incoming: Incoming) -> m.Job:
    """Return one job when it has ended or after `wait` virtual seconds."""
    call, job_id, wait = CURRENT.get(), incoming.path["job_id"], incoming.query.wait
    job = call.reads.poll(job_id, incoming.access.reach)
    if job.finished_at is not None or wait <= 0:
        return job
    await call.namespace.wait_for_end(job_id, wait)
    return call.reads.job(job_id, incoming.access.reach)


async def cancel_job(incoming: Incoming) -> m.Job:
    state, reach = CURRENT.get().namespace.state, incoming.access.reach
    return state.cancel(incoming.path["job_id"], incoming.idempotency(), reach)


async def retry_job(incoming: Incoming) -> m.Job:
    state, reach = CURRENT.get().namespace.state, incoming.access.reach
    return state.retry_job(incoming.path["job_id"], incoming.idempotency(), reach)


async def list_documents(incoming: Incoming) -> m.DocumentList:
    return _seen(incoming).page(incoming.query)


async def get_document(incoming: Incoming) -> m.DocumentDetail:
    documents, query = _seen(incoming), incoming.query
    document = documents.detail(incoming.document_key, query)
    if query.similar and document.doc_type == "note":
        document.similar = similar_to(documents, document, query.similar, CURRENT.get().reads.now())
    return document


async def get_original(incoming: Incoming) -> FileContent:
    stored = _seen(incoming).find(incoming.document_key)
    document, data = stored.document, stored.original
    rules.check_original_kept(document)
    assert data is not None, "its document says that it is kept"

    async def blocks() -> AsyncGenerator[bytes, None]:
        yield data

    return FileContent(
        filename=document.filename or document.title, size=len(data), sha256=document.sha256, blocks=blocks()
    )


async def get_picture(incoming: Incoming) -> m.Picture:
    documents, query = _seen(incoming), incoming.query
    key = incoming.document_key
    chunks = DocumentQuery(chunk_offset=query.chunk or 0, chunk_limit=0 if query.chunk is None else 1)
    document, original = documents.detail(key, chunks), documents.find(key).original
    page, text = rules.picture_of(document, query.page)
    assert original is not None, "its document says that it is kept"
    try:
        with _opened(original) as source:
            drawn = await draw_file(source, FORMATS[document.format or ""], Page(page, text))
    except ExtractionFailed as failed:
        raise EngineError(failed.code, failed.message) from failed
    return m.Picture(media_type=drawn.media_type, content=drawn.content)


async def check_citation(incoming: Incoming) -> m.CitationCheck:
    return _seen(incoming).check_citation(incoming.body)


async def delete_document(incoming: Incoming) -> m.Removed:
    version, purge = incoming.if_match, incoming.query.purge
    return _change_found(incoming, lambda base, key, now: base.remove_one(key, now, version, purge=purge))


async def list_versions(incoming: Incoming) -> m.PastVersionList:
    base, now, number = _looked_at(incoming)
    return base.history.page(number, incoming.query, now)


async def get_version(incoming: Incoming) -> m.PastVersionDetail:
    base, now, number = _looked_at(incoming)
    return base.history.detail(number, incoming.path["version"], incoming.query, now)


async def restore_version(incoming: Incoming) -> m.Document:
    key, version = incoming.document_key, incoming.path["version"]
    reach = incoming.access.reach

    def restore(state: State, now: int) -> m.Document:
        seen = state.seen(reach)
        number = seen.number(key, now)
        seen.history.find(number, version, now)
        return arrivals.restore(state.documents, number, version, incoming.if_match, now, reach).document

    return _change(incoming, restore)


async def purge_versions(incoming: Incoming) -> m.Purged:
    key = incoming.document_key

    def purge(state: State, now: int) -> m.Purged:
        seen = state.seen(incoming.access.reach)
        number = seen.number(key, now)
        counted = len(seen.history.by_id.get(number, ()))
        state.documents.history.drop(number)
        state.documents.revision += 1
        return m.Purged(versions=counted)

    return _change(incoming, purge)


async def list_trash(incoming: Incoming) -> m.PastVersionList:
    return _seen(incoming).history.trash(incoming.query, CURRENT.get().reads.now())


def _looked_at(incoming: Incoming) -> tuple[Documents, int, int]:
    """Return the documents, the time, and the number of the document in the path."""
    seen, now = _seen(incoming), CURRENT.get().reads.now()
    return seen, now, seen.number(incoming.document_key, now)


def _seen(incoming: Incoming) -> Documents:
    """The documents within the caller's access scope."""
    return CURRENT.get().reads.seen(incoming.access.reach)


def _change_found(incoming: Incoming, effect: Callable[[Documents, int | str, int], A]) -> A:
    """Like `_change`, for the document in the path."""
    key = incoming.document_key

    def change(state: State, now: int) -> A:
        state.seen(incoming.access.reach).find(key)
        return effect(state.documents, key, now)

    return _change(incoming, change)


async def remove_source(incoming: Incoming) -> m.Removed:
    path, version = incoming.query.source_path, incoming.if_match
    return _change_found(incoming, lambda base, key, now: base.remove_source(key, path, version, now))


async def clear_documents(incoming: Incoming) -> m.Removed:
    rules.check_confirmed(incoming.query.confirm)
    check_whole(incoming.access.reach)
    state = CURRENT.get().namespace.state
    return state.clear(incoming.idempotency(), collections=incoming.query.collections)


async def patch_note(incoming: Incoming) -> m.Document | m.Job:
    """Return the changed document if the update finishes in time, or else its job."""
    patch: m.NotePatch = incoming.body
    rules.check_patch(patch)
    call = CURRENT.get()
    state = call.namespace.state
    number, reach, version = incoming.path["document_id"], incoming.access.reach, incoming.if_match
    patch = msgspec.structs.replace(patch, expected_version=patch.expected_version or version)
    update = submissions.Update(call.identity, number, patch, reach, version)
    # The caller's waiting time is not part of the request's identity.
    taken = state.update(update, dataclasses.replace(incoming, query=NoQuery()).idempotency())
    if isinstance(taken, m.Document):
        return taken
    if taken.finished_at is None and incoming.query.wait > 0:
        await call.namespace.wait_for_end(taken.id, incoming.query.wait)
    return state.outcome(taken.id)


async def set_metadata(incoming: Incoming) -> m.Document:
    rules.check_metadata(incoming.body.metadata)
    metadata, version = incoming.body.metadata, incoming.if_match
    return _change_found(
        incoming, lambda base, key, now: base.set_metadata(key, metadata, version, now).document
    )


async def give_feedback(incoming: Incoming) -> m.Feedback:
    signal, voice = incoming.body.signal, f"{incoming.credential} {incoming.user or ''}"
    return _change_found(incoming, lambda base, key, _now: base.give_feedback(key, voice, signal))


async def add_tags(incoming: Incoming) -> m.Document:
    tags, version, reach = incoming.body.tags, incoming.if_match, incoming.access.reach
    return _change_found(
        incoming, lambda base, key, now: base.add_tags(key, tags, version, now, reach).document
    )


async def remove_tag(incoming: Incoming) -> m.Document:
    tag, add, reach = incoming.path["tag"], incoming.query.add, incoming.access.reach

    def remove(base: Documents, key: int | str, now: int) -> m.Document:
        return base.remove_tag(key, tag, incoming.if_match, now, reach, add).document

    return _change_found(incoming, remove)


async def list_tags(incoming: Incoming) -> m.TagList:
    query = incoming.query
    return _seen(incoming).tags(query.prefix, query.limit, query.offset)


async def get_status(incoming: Incoming) -> m.Status:
    access = incoming.access
    status = CURRENT.get().reads.status(access, history=incoming.query.history)
    if access.reach is not None or "administer" not in access.rights:
        return status
    return msgspec.structs.replace(status, sandbox=await sandbox_info(DEFAULT_LIMITS.sandbox))


async def get_health(_incoming: Incoming) -> m.Health:
    return m.Health(status="ok")


async def get_readiness(_incoming: Incoming) -> m.Health:
    """A simulator that answers is ready."""
    return m.Health(status="ready")


async def vector_search(incoming: Incoming) -> r.VectorSearchResponse:
    state, reach = _limited(incoming), incoming.access.reach
    collections = state.seen_collections(reach)
    answer = search_vectors(state.seen(reach), collections, incoming.body, state.now())
    CURRENT.get().namespace.state.count_question(is_answered=answer.total > 0)
    return answer


async def list_collections(incoming: Incoming) -> r.CollectionList:
    state, reach = _limited(incoming), incoming.access.reach
    return state.seen_collections(reach).every(state.seen(reach))


async def get_collection(incoming: Incoming) -> r.CollectionDetail:
    state, reach = _limited(incoming), incoming.access.reach
    return state.seen_collections(reach).detail(state.seen(reach), incoming.path["collection_id"])


async def put_collection(incoming: Incoming) -> r.CollectionDetail:
    id_, wanted, reach = incoming.path["collection_id"], incoming.body, incoming.access.reach
    return _change(
        incoming, lambda state, now: state.collections.put(state.seen(reach), id_, wanted, now, reach)
    )
