"""`/jobs`: taking in notes and files, following them, cancelling them, trying them again."""

from __future__ import annotations

import hashlib
from uuid import uuid4

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_contracts.api.formats import Format
from kb_contracts.http.mount import Incoming
from kb_contracts.http.multipart import ReceivedFile, receive_file
from kb_contracts.semantics.documents import (
    check_metadata,
    check_note_text,
    check_ocr,
    note_title,
    text_digest,
)
from kb_engine.api.engine import Engine
from kb_engine.api.idempotency import idempotency_of
from kb_engine.extract import ExtractionFailed, format_of
from kb_engine.spool import SpoolFile
from kb_engine.store.port import NewJob

_ENVELOPE_BYTES = 8 * 1024 * 1024  # what the other parts of a multipart body may take beside the file


class JobsApi:
    """Handlers of `createJob`, `listJobs`, `getJob`, `cancelJob` and `retryJob`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._store = engine.store

    async def create_job(self, incoming: Incoming) -> m.Job:
        """Queue a note or a file."""
        if incoming.body is not None:
            job = await self._create_note(incoming)
        else:
            job = await self._create_file(incoming)
        self._engine.workers.wake()
        return job

    async def list_jobs(self, incoming: Incoming) -> m.JobList:
        """Jobs, newest first."""
        query = incoming.query
        return await self._store.jobs(query.status, query.limit, query.offset)

    async def get_job(self, incoming: Incoming) -> m.Job:
        """One job, at its end or after `wait` seconds."""
        return await self._engine.ends.wait(incoming.path["job_id"], incoming.query.wait, self._store.job)

    async def cancel_job(self, incoming: Incoming) -> m.Job:
        """Cancel a job and stop the work on it."""
        job_id = incoming.path["job_id"]
        job = await self._store.cancel(job_id, idempotency_of(incoming))
        await self._engine.workers.cancel(job_id)
        self._engine.workers.wake()  # an update behind it may be taken now
        self._engine.ends.announce(job_id)
        await self._engine.spool.remove(job_id)
        return job

    async def retry_job(self, incoming: Incoming) -> m.Job:
        """Queue a failed job again."""
        job = await self._engine.kept.retry(incoming.path["job_id"], idempotency_of(incoming))
        self._engine.workers.wake()
        return job

    async def _create_note(self, incoming: Incoming) -> m.Job:
        request: m.NoteRequest = incoming.body
        check_note_text(request.text)
        check_metadata(request.metadata)
        return await self._store.accept(_note_job(request, caller_of(incoming)), idempotency_of(incoming))

    async def _create_file(self, incoming: Incoming) -> m.Job:
        self._check_length(incoming)
        await self._engine.kept.make_room(incoming.http.content_length or 0)
        spool, job_id = self._engine.spool, str(uuid4())
        with spool.hold(job_id):
            try:
                received, form = await self._receive(incoming, job_id)
            except EngineError as error:
                if error.code == "storage_full":  # whoever sends it again finds room, if that makes any
                    await self._engine.kept.make_room(self._engine.settings.max_upload_bytes)
                raise
            job = _file_job(job_id, received, form, caller_of(incoming))
            try:
                accepted = await self._store.accept(job, idempotency_of(incoming, received))
            except (
                EngineError
            ):  # of another failure nobody knows whether it was accepted: the next start does
                await spool.remove(job_id)
                raise
        if accepted.id != job_id:  # a retry: the first request's job has the file
            await spool.remove(job_id)
        return accepted

    async def _receive(self, incoming: Incoming, name: str) -> tuple[ReceivedFile, Format]:
        async with self._engine.spool.receive(name) as file:
            form: Format | None = None

            async def open_sink(filename: str) -> SpoolFile:
                nonlocal form
                form = _format(filename)  # before the first byte: an unknown kind is refused at once
                return file

            received = await receive_file(
                incoming.http, open_sink, max_bytes=self._engine.settings.max_upload_bytes
            )
            check_metadata(received.fields.metadata)
            assert form is not None  # a received file was opened
            check_ocr(received.fields, form)
        return received, form

    def _check_length(self, incoming: Incoming) -> None:
        limit = self._engine.settings.max_upload_bytes
        if (incoming.http.content_length or 0) > limit + _ENVELOPE_BYTES:
            raise EngineError("payload_too_large", f"The file is over the limit of {limit} bytes.")


def caller_of(incoming: Incoming) -> str:
    """With whom jobs take turns: a digest of the credential and of the user that it names."""
    return hashlib.sha256(f"{incoming.credential} {incoming.user or ''}".encode()).hexdigest()[:16]


def _note_job(request: m.NoteRequest, caller: str) -> NewJob:
    sha256, size = text_digest(request.text)
    return NewJob(
        id=str(uuid4()),
        kind="note",
        title=request.title or note_title(request.text),
        tags=list(dict.fromkeys(request.tags)),
        metadata=request.metadata,
        source_path=request.source_path,
        dedup_scope=request.dedup_scope,
        sha256=sha256,
        size_bytes=size,
        text=request.text,
        caller=caller,
    )


def _file_job(job_id: str, received: ReceivedFile, form: Format, caller: str) -> NewJob:
    fields = received.fields
    return NewJob(
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
        caller=caller,
    )


def _format(filename: str) -> Format:
    try:
        return format_of(filename)
    except ExtractionFailed as error:
        raise EngineError(error.code, error.message, parameter="file") from error
