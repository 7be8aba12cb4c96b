"""`/jobs`, `/documents`, `/notes` and `/tags`: ingestion of notes and files, and access to documents."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
from uuid import uuid4

import msgspec
from aiohttp import web

from kb_contracts.access.reach import Reach
from kb_contracts.api import models as m
from kb_contracts.api.content import FileContent
from kb_contracts.api.errors import EngineError
from kb_contracts.api.formats import Format
from kb_contracts.api.operations import NoQuery
from kb_contracts.semantics import documents as rules
from kb_contracts.semantics.access import check_submission
from kb_engine.api.engine import Api
from kb_engine.index.port import Selection
from kb_engine.spans import accepted
from kb_engine.spool import SpoolFile
from kb_engine.store.port import NewJob, Query
from kb_engine.store.repository import content, documents, feedback, jobs, updates
from kb_engine.store.repository.transaction import answer_to
from kb_http.multipart import ReceivedFile, receive_file
from kb_http.requests import Incoming, SentFile
from kb_readers.failures import ExtractionFailed
from kb_readers.readers import format_of

_CHUNKS_PER_NOTE = 4  # read for each similar note wanted, as several chunks of one may be similar
_ENVELOPE_BYTES = 8 * 1024 * 1024  # allowance for the other parts of a multipart body


class JobsApi(Api):
    """Handlers of `createJob`, `listJobs`, `getJob`, `cancelJob` and `retryJob`."""

    async def create_job(self, incoming: Incoming) -> m.Job:
        if incoming.body is None:
            job = await self._create_file(incoming)
        else:
            request: m.NoteRequest = incoming.body
            rules.check_note_text(request.text)
            rules.check_metadata(request.metadata)
            check_submission(incoming.access.reach, request.tags)
            sha256, size = rules.text_digest(request.text)
            new = NewJob(
                id=str(uuid4()),
                kind="note",
                title=request.title or rules.note_title(request.text),
                tags=list(dict.fromkeys(request.tags)),
                metadata=request.metadata,
                source_path=request.source_path,
                dedup_scope=request.dedup_scope,
                sha256=sha256,
                size_bytes=size,
                text=request.text,
                caller=caller_of(incoming),
                reach=incoming.access.reach,
            )
            job = await self._once(incoming, jobs.accept, new)
        accepted(job.id)
        return job

    async def list_jobs(self, incoming: Incoming) -> m.JobList:
        query = incoming.query
        return await self._store.read(jobs.page, query.status, query.limit, query.offset)

    async def get_job(self, incoming: Incoming) -> m.Job:
        return await self._engine.waiters.wait(
            incoming.path["job_id"], incoming.query.wait, lambda job_id: self._store.read(jobs.find, job_id)
        )

    async def cancel_job(self, incoming: Incoming) -> m.Job:
        job_id = incoming.path["job_id"]
        job = await self._once(incoming, jobs.cancel, job_id)
        await self._engine.workers.cancel(job_id)
        self._engine.waiters.announce(job_id)
        await self._engine.spool.remove(job_id)
        return job

    async def retry_job(self, incoming: Incoming) -> m.Job:
        return await self._engine.failed_jobs.retry(incoming.path["job_id"], incoming.idempotency())

    async def _create_file(self, incoming: Incoming) -> m.Job:
        assert incoming.source is not None  # without a body there is a file
        length, limit = incoming.source.content_length or 0, self._engine.settings.max_upload_bytes
        if length > limit + _ENVELOPE_BYTES:
            raise EngineError("payload_too_large", f"The file is over the limit of {limit} bytes.")
        await self._engine.failed_jobs.make_room(length)
        spool, job_id = self._engine.spool, str(uuid4())
        with spool.hold(job_id):
            try:
                received, form = await self._receive(incoming.source, incoming.access.reach, job_id)
            except EngineError as error:
                if error.code == "storage_full":  # make room for a retry of the upload
                    await self._engine.failed_jobs.make_room(limit)
                raise
            fields = received.fields
            job = NewJob(
                id=job_id,
                kind="file",
                title=fields.title or received.filename,
                tags=list(dict.fromkeys(fields.tags)),
                metadata=fields.metadata,
                source_path=fields.source_path,
                dedup_scope=fields.dedup_scope,
                sha256=received.sha256,
                size_bytes=received.size,
                spool=job_id,
                filename=received.filename,
                format=form.name,
                doc_type=form.doc_type,
                force_ocr=fields.force_ocr,
                caller=caller_of(incoming),
                reach=incoming.access.reach,
            )
            try:
                queued = await self._store.once(incoming.idempotency(received.identity), jobs.accept, job)
            except EngineError:
                # After any other failure the job may have been accepted; the next start sorts it out.
                await spool.remove(job_id)
                raise
        if queued.id != job_id:  # a retry: the job of the first request has the file
            await spool.remove(job_id)
        return queued

    async def _receive(
        self, source: web.Request | SentFile, reach: Reach | None, name: str
    ) -> tuple[ReceivedFile, Format]:
        async with self._engine.spool.receive(name) as file:
            form: Format | None = None

            async def open_sink(filename: str, content_type: str) -> SpoolFile:
                nonlocal form
                try:  # before the first byte: an unknown format is refused at once
                    form = format_of(filename, content_type)
                except ExtractionFailed as error:
                    raise EngineError(error.code, error.message, parameter="file") from error
                return file

            received = await receive_file(source, open_sink, max_bytes=self._engine.settings.max_upload_bytes)
            rules.check_metadata(received.fields.metadata)
            check_submission(reach, received.fields.tags)
            assert form is not None  # a received file was opened
            rules.check_ocr(received.fields, form)
        return received, form


def caller_of(incoming: Incoming) -> str:
    """Return a digest of the credential and its user: the caller for fair queueing and for feedback."""
    return hashlib.sha256(f"{incoming.credential} {incoming.user or ''}".encode()).hexdigest()[:16]


class DocumentsApi(Api):
    """Handlers of the operations on documents, notes and tags."""

    async def list_documents(self, incoming: Incoming) -> m.DocumentList:
        return await self._store.read(documents.page, incoming.query)

    async def get_document(self, incoming: Incoming) -> m.DocumentDetail:
        query = incoming.query
        document = await self._store.read(
            documents.detail,
            incoming.document_key,
            chunk_offset=query.chunk_offset,
            chunk_limit=query.chunk_limit if query.chunks else 0,
            text=query.text,
        )
        if query.similar and document.doc_type == "note":
            document.similar = await self._similar(document, query.similar)
        return document

    async def _similar(self, note: m.Document, limit: int) -> list[m.SimilarNote] | msgspec.UnsetType:
        """The notes most similar to the first chunk of `note`; UNSET if the index is out of service."""
        vector = await self._store.read(content.first_vector, note.id)
        if vector is None:
            return []
        scoring = self._engine.encoder.embedder.scoring
        query = Query(
            text="",
            mode="vector",
            vector=vector,
            scoring=scoring,
            top=note.chunk_count + limit * _CHUNKS_PER_NOTE,
            selection=Selection(doc_type="note"),
            min_score=scoring.similar_floor,
        )
        try:
            found = await self._store.search(query)
        except EngineError as error:
            if error.code != "not_ready":
                raise
            return msgspec.UNSET
        return rules.similar_notes(found.results, note.id, limit)

    async def get_original(self, incoming: Incoming) -> FileContent:
        document = await self._store.read(documents.find, incoming.document_key)
        rules.check_original_kept(document)
        return FileContent(
            filename=document.filename or document.title,
            size=document.size_bytes,
            sha256=document.sha256,
            blocks=self._store.original(document.sha256),
        )

    async def get_picture(self, incoming: Incoming) -> m.Picture:
        return await self._engine.pictures.get(incoming.document_key, incoming.query)

    async def check_citation(self, incoming: Incoming) -> m.CitationCheck:
        return await self._store.read(documents.check_citation, incoming.body)

    async def delete_document(self, incoming: Incoming) -> m.Removed:
        key, purge = incoming.document_key, incoming.query.purge
        return await self._once(incoming, documents.delete, key, incoming.if_match, purge=purge)

    async def remove_source(self, incoming: Incoming) -> m.Removed:
        key, path = incoming.document_key, incoming.query.source_path
        return await self._once(incoming, documents.remove_source, key, path, incoming.if_match)

    async def clear_documents(self, incoming: Incoming) -> m.Removed:
        """Remove all documents, cancel the jobs accepted before, and stop the work on them."""
        rules.check_confirmed(incoming.query.confirm)
        removed = await self._once(incoming, documents.clear, collections=incoming.query.collections)
        await self._engine.workers.cancel_void()
        self._engine.waiters.announce_all()
        await self._engine.spool.sweep(lambda: self._store.read(jobs.spooled))
        return removed

    async def patch_note(self, incoming: Incoming) -> m.Document | m.Job:
        """Replace a note's text, title or both; return the document, or its job if that takes too long."""
        patch: m.NotePatch = incoming.body
        rules.check_patch(patch)
        deadline = asyncio.get_running_loop().time() + incoming.query.wait
        document_id = incoming.path["document_id"]
        # The outcome is stored under the caller's idempotency key, or a unique one. The maximum wait is not
        # part of the request's identity.
        key = incoming.idempotency_key or str(uuid4())
        idempotency = dataclasses.replace(incoming, query=NoQuery(), idempotency_key=key).idempotency()
        assert idempotency is not None  # it has a key
        # An outage of the embedder, so that the caller is refused now rather than by a failed job. Unknown if
        # the model does not load in time.
        refusal = None
        try:
            async with asyncio.timeout_at(deadline):
                await self._engine.encoder.load()
        except TimeoutError:
            pass
        except EngineError as error:
            refusal = error
        taken = await self._store.write(
            updates.accept,
            document_id,
            patch,
            idempotency,
            if_match=incoming.if_match,
            caller=caller_of(incoming),
            refusal=refusal,
        )
        if isinstance(taken, m.Document):
            return taken
        accepted(taken.id)
        left = max(0.0, deadline - asyncio.get_running_loop().time())
        job = await self._engine.waiters.wait(
            taken.id, left, lambda job_id: self._store.read(jobs.find, job_id)
        )
        if job.error is not None:
            # Check again: a changed version is reported with all fields of that error.
            document, _ = await self._store.read(documents.note, document_id)
            rules.check_version(document.version, incoming.if_match, patch.expected_version)
            raise EngineError(job.error.code, job.error.message)
        # The stored response, not the current note: a later update may have changed it already.
        answer = await self._store.read(answer_to, idempotency) if job.status == "completed" else None
        return job if answer is None else msgspec.json.decode(answer, type=m.Document)

    async def set_metadata(self, incoming: Incoming) -> m.Document:
        rules.check_metadata(incoming.body.metadata)
        key, metadata = incoming.document_key, incoming.body.metadata
        return await self._once(incoming, documents.set_metadata, key, metadata, incoming.if_match)

    async def give_feedback(self, incoming: Incoming) -> m.Feedback:
        key, signal = incoming.document_key, incoming.body.signal
        return await self._once(incoming, feedback.give, key, caller_of(incoming), signal)

    async def add_tags(self, incoming: Incoming) -> m.Document:
        key, tags = incoming.document_key, incoming.body.tags
        return await self._once(incoming, documents.add_tags, key, tags, incoming.if_match)

    async def remove_tag(self, incoming: Incoming) -> m.Document:
        key, tag, add = incoming.document_key, incoming.path["tag"], incoming.query.add
        return await self._once(incoming, documents.remove_tag, key, tag, incoming.if_match, add)

    async def list_tags(self, incoming: Incoming) -> m.TagList:
        query = incoming.query
        return await self._store.read(documents.tag_page, query.prefix, query.limit, query.offset)
