"""Additions to the base: `kb_addnote`, the three tools of an upload, and `kb_update_note`.

An addition starts as a job, which is followed for a while if the caller requests it.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from kb_contracts.api import models as m
from kb_contracts.api import operations as ops
from kb_contracts.semantics.access import named
from kb_contracts.semantics.sources import what_stays
from kb_server import collection_moves
from kb_server.access.grants import Grant
from kb_server.collection_tags import DEFAULT, PREFIX, split_tags, tag_of, tags_for_submission
from kb_server.engine_client.errors import EngineFault
from kb_server.engine_client.port import read_document
from kb_server.following import followed
from kb_server.job_tasks import JobTasks, task_of
from kb_server.services import Services
from kb_server.tool import A, Annotations, Call, ToolError
from kb_server.toolsets import view
from kb_server.toolsets.kb.documents import DocumentView, document_members
from kb_server.toolsets.kb.kb_tool import (
    ENGINE_WORDS,
    Collection,
    DocumentId,
    KbTool,
    Metadata,
    NewTags,
    Sha256,
    SourcePath,
    Title,
    UploadId,
    WaitSeconds,
)
from kb_server.toolsets.kb.state import document_of, why_empty
from kb_server.uploads.upload import CHUNK_BYTES, MAX_CHUNKS, End, NewUpload

SHORT_NOTE_CHARS = 4_000
SHORT_NOTE_WAIT_SECONDS = 5.0
"""Default wait for a short note, in seconds."""

MOST_SIMILAR = 3
"""Maximum number of similar notes that are named with a new one."""
_WITH_SIMILAR = ops.DocumentQuery(chunks=False, similar=MOST_SIMILAR)
_SIMILAR_HINT = (
    " `similar` has older notes on the same subject; to replace one of them, call kb_update_note with its "
    "document_id."
)

NoteText = Annotated[str, Meta(min_length=1, max_length=m.MAX_NOTE_CHARS)]


class Submission(msgspec.Struct, kw_only=True):
    """An accepted submission. `document_id` is known when `status` is completed.

    `document_status` is `searchable` or `empty` (no text was found), null if unknown. `outcome` is that of
    the job; `hint` names omitted parts.
    """

    job_id: str
    status: str
    collection: str
    document_id: int | None
    document_uid: str | None
    document_status: str | None
    deduplicated: bool
    outcome: str | UnsetType = UNSET
    error: m.JobError | None
    hint: str


class SimilarNote(msgspec.Struct, kw_only=True):
    """A note on the same subject; `score` is the similarity of the two, from 0 to 1."""

    document_id: int
    first_line: str
    score: float


class NoteSubmission(Submission, kw_only=True):
    """A submission with up to three `similar` notes on the same subject, the most similar first."""

    similar: list[SimilarNote] | UnsetType = UNSET


S = TypeVar("S", bound=Submission)


@dataclass(frozen=True, slots=True)
class _Followed:
    """A job after the wait for its end, its document if there is one, and the hint for the caller."""

    job: m.Job
    document: m.DocumentDetail | None
    hint: str

    def as_result(self, kind: type[S], tag: str) -> S:
        """Return it as the result of a job that was submitted under the collection's `tag`."""
        return view(
            kind,
            self.job,
            job_id=self.job.id,
            collection=tag.removeprefix(PREFIX),
            document_status=None if self.document is None else self.document.status,
            hint=self.hint,
        )


class _SubmittingTool(KbTool[A, S]):
    reports = True

    async def follow(
        self,
        job: m.Job,
        wait: float,
        call: Call,
        *,
        is_short: bool = False,
        query: ops.DocumentQuery = ops.WITHOUT_CHUNKS,
    ) -> _Followed:
        """Wait up to `wait` seconds for the end of the job, and read its document with `query`.

        A wait that `is_short` is no reason for a task, if the client accepts one instead of waiting. A job
        that cannot be followed is still accepted: its id is reported despite any later fault.
        """
        waits = wait > 0 and not is_short and job.status not in m.FINAL_STATUSES
        call.defer(task_of(job), waits=waits)
        if wait > 0 and job.status not in m.FINAL_STATUSES:
            try:
                job = await followed(self.engine, self.services.clock, job, wait, call.progress)
            except EngineFault as fault:
                return _Followed(job, None, f"Accepted, but not followed: {self.error_of(fault).message}")
        document = await document_of(self.engine, job, query)
        return _Followed(job, document, _hint(job, document))


def submission_tasks(services: Services) -> JobTasks:
    """Return the jobs of submissions, as tasks."""
    adding = KbAddnoteTool(services)

    async def result(job: m.Job) -> Submission:
        followed = await adding.follow(job, 0.0, Call())
        return followed.as_result(Submission, tag_of(split_tags(job.tags).collection or DEFAULT))

    return JobTasks(services, (KbAddnoteTool.name, KbUploadFinishTool.name), result, ENGINE_WORDS)


def _check_reach(grant: Grant, tag: str) -> None:
    """Check that the caller may add to the collection of this tag; the engine makes the same check on tags.
    Raises ToolError: `forbidden`.
    """
    if (reach := grant.access.reach) is not None and not grant.may_give(tag):
        raise ToolError(
            "forbidden",
            f"This key may not add to the collection {tag.removeprefix(PREFIX)!r}. Pass one of its "
            f"collections as `collection`: {named(reach).replace(PREFIX, '')}.",
            parameter="collection",
        )


def _similar(document: m.DocumentDetail | None) -> list[SimilarNote]:
    found = UNSET if document is None else document.similar
    if found is UNSET:
        return []
    return [
        SimilarNote(document_id=each.id, first_line=each.first_line, score=round(each.score, 2))
        for each in found
    ]


def _hint(job: m.Job, document: m.Document | None) -> str:
    if job.status == "failed":
        return "Ingestion failed; `error` says why. Nothing was added."
    if job.status == "cancelled":
        return "The job was cancelled. Nothing was added."
    if job.status != "completed":
        return "It can be searched once its job has completed; ask kb_jobs with this job_id."
    if document is None:
        return "Its job has completed; kb_get shows its text."
    if document.status == "empty":
        return why_empty(document)
    done = "It existed already; nothing was added." if job.deduplicated else "It can be searched now."
    if job.outcome == "replaced":
        stays = what_stays(job, document) or "the earlier document of its source_path is replaced"
        done += f" {stays[0].upper()}{stays[1:]}."
    if job.left_out:
        done += f" Not applied, because the document has its own: {', '.join(job.left_out)}."
    return f"{done} {document.status_reason}" if document.status_reason else done


class KbAddnoteArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    text: Annotated[NoteText, Meta(description="plain text or Markdown")]
    collection: Collection | None = None
    tags: NewTags | None = None
    title: Title | None = None
    source_path: SourcePath | None = None
    metadata: Metadata | None = None
    wait_seconds: Annotated[WaitSeconds, Meta(description="default 5; long text 0")] | None = None


class KbAddnoteTool(_SubmittingTool[KbAddnoteArguments, NoteSubmission]):
    name = "kb_addnote"
    title = "Add a note"
    description = """\
Add a text note for kb_search: facts, decisions, preferences (collection `memory`), drafts \
(`workspace`). One subject a note, in the words of later questions. It names similar notes: \
change one with kb_update_note.

Example: {"text": "User prefers concise responses", "collection": "memory", "tags": ["feedback"]}"""
    annotations = Annotations()

    async def run(self, arguments: KbAddnoteArguments, call: Call) -> NoteSubmission:
        tags = tags_for_submission(arguments.collection, arguments.tags or [])
        _check_reach(call.grant, tags[0])
        note = m.NoteRequest(
            text=arguments.text,
            title=arguments.title,
            tags=tags,
            metadata=arguments.metadata or {},
            source_path=arguments.source_path,
            dedup_scope=tags[0],
        )
        job = await self.engine.call(ops.CREATE_JOB, body=note)
        call.log["job_id"] = job.id
        wait = arguments.wait_seconds
        if wait is None:
            wait = SHORT_NOTE_WAIT_SECONDS if len(arguments.text) <= SHORT_NOTE_CHARS else 0.0
        is_short = arguments.wait_seconds is None
        followed = await self.follow(job, wait, call, is_short=is_short, query=_WITH_SIMILAR)
        submission = followed.as_result(NoteSubmission, tags[0])
        if similar := _similar(followed.document):
            submission.similar = similar
            submission.hint += _SIMILAR_HINT
        return submission


TotalSize = Annotated[int, Meta(ge=1, description="in bytes")]


class KbUploadStartArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    filename: Annotated[str, Meta(min_length=1, description="with extension")]
    total_size: TotalSize | None = None
    collection: Collection | None = None
    tags: NewTags | None = None
    title: Title | None = None
    source_path: SourcePath | None = None
    metadata: Metadata | None = None
    sha256: Sha256 | None = None


class KbUploadStartResult(msgspec.Struct, kw_only=True):
    """A started upload. `chunk_bytes` is the maximum size of a chunk before base64."""

    upload_id: str
    upload_url: str | UnsetType = UNSET
    expires_at: str
    chunk_bytes: int
    max_chunks: int
    next: str


class KbUploadStartTool(KbTool[KbUploadStartArguments, KbUploadStartResult]):
    name = "kb_upload_start"
    title = "Start an upload"
    description = """\
Begin an upload, step 1 of 3. If you can run commands: \
`curl -g -T report.pdf "<upload_url>"`. \
Else send pieces with kb_upload_chunk; that needs no total_size. Then kb_upload_finish."""
    annotations = Annotations()
    document_mark = "none"

    async def run(self, arguments: KbUploadStartArguments, call: Call) -> KbUploadStartResult:
        tags = tags_for_submission(arguments.collection, arguments.tags or [])
        new = NewUpload(
            filename=arguments.filename,
            total_size=arguments.total_size,
            tags=tags,
            collection=tags[0],
            title=arguments.title,
            source_path=arguments.source_path,
            metadata=arguments.metadata or {},
            sha256=arguments.sha256,
        )
        grant = call.grant
        _check_reach(grant, tags[0])
        grant.check_room(1, arguments.total_size or 1)
        # A shared key does not identify the caller, and without a key a token can be invented: quotas go by
        # address.
        caller = grant.name if grant.is_one_caller else call.address or call.credential
        started = await self.services.uploads.start(
            new, caller, owner=grant.name, most_open=grant.quotas.uploads_in_flight
        )
        call.log["upload_id"] = started.upload.id
        base = self.services.http_base
        url: str | UnsetType = UNSET
        following = "Send the file with kb_upload_chunk, from chunk_index 0, then call kb_upload_finish."
        if base is not None and arguments.total_size is not None:
            url = f"{base}/uploads/{started.token}"
            # Without -g curl takes the brackets in a file's name for a range of names.
            command = f"curl -g -T {shlex.quote(started.upload.filename)} '{url}'"
            following = f"Run: {command} and then call kb_upload_finish. Or: {following}"
        return KbUploadStartResult(
            upload_id=started.upload.id,
            upload_url=url,
            expires_at=started.upload.expires_at,
            chunk_bytes=CHUNK_BYTES,
            max_chunks=MAX_CHUNKS,
            next=following,
        )


class KbUploadChunkArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    upload_id: UploadId
    chunk_index: Annotated[int, Meta(ge=0, le=MAX_CHUNKS - 1, description="from 0")]
    data: Annotated[str, Meta(description="base64; at most 8 MiB decoded")]
    sha256: Sha256 | None = None


class KbUploadChunkResult(msgspec.Struct, kw_only=True):
    """The state of the upload. `complete`: the announced number of bytes has arrived, if it was announced."""

    upload_id: str
    chunk_index: int
    chunks_received: int
    received_bytes: int
    total_size: int | None
    complete: bool
    next: str


class KbUploadChunkTool(KbTool[KbUploadChunkArguments, KbUploadChunkResult]):
    name = "kb_upload_chunk"
    title = "Upload a chunk"
    description = """\
Send a piece of the file, step 2 of 3, in any order; the same chunk_index again replaces it."""
    annotations = Annotations(idempotent=True)
    document_mark = "none"

    async def run(self, arguments: KbUploadChunkArguments, call: Call) -> KbUploadChunkResult:
        call.log["upload_id"] = arguments.upload_id[:64]
        received = await self.services.uploads.chunk(
            arguments.upload_id,
            arguments.chunk_index,
            arguments.data,
            arguments.sha256,
            owner=call.grant.name,
        )
        left = None if received.total_size is None else received.total_size - received.bytes
        following = f"{left} bytes to go." if left else "Call kb_upload_finish."
        if left is None:
            following = "After the last chunk call kb_upload_finish, with total_size, sha256 or chunks."
        return KbUploadChunkResult(
            upload_id=arguments.upload_id,
            chunk_index=arguments.chunk_index,
            chunks_received=received.chunks,
            received_bytes=received.bytes,
            total_size=received.total_size,
            complete=left == 0,
            next=following,
        )


class KbUploadFinishArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    upload_id: UploadId
    sha256: Annotated[Sha256, Meta(description="of the whole file")] | None = None
    total_size: TotalSize | None = None
    chunks: Annotated[int, Meta(ge=1, le=MAX_CHUNKS, description="number of chunks")] | None = None
    wait_seconds: WaitSeconds = 0.0


class KbUploadFinishTool(_SubmittingTool[KbUploadFinishArguments, Submission]):
    name = "kb_upload_finish"
    title = "Finish an upload"
    description = """\
Hand the file over for ingestion, step 3 of 3; if started without total_size, with that, sha256 or chunks. \
Searchable when its job has completed (kb_jobs, wait_seconds)."""
    annotations = Annotations(idempotent=True)

    async def run(self, arguments: KbUploadFinishArguments, call: Call) -> Submission:
        call.log["upload_id"] = arguments.upload_id[:64]
        finished = await self.services.uploads.finish(
            arguments.upload_id,
            End(arguments.total_size, arguments.sha256, arguments.chunks),
            owner=call.grant.name,
        )
        call.log["job_id"] = finished.job_id
        job = finished.job or await self.engine.call(ops.GET_JOB, path={"job_id": finished.job_id})
        followed = await self.follow(job, arguments.wait_seconds, call)
        return followed.as_result(Submission, finished.upload.collection)


class KbUpdateNoteArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    document_id: DocumentId
    text: Annotated[NoteText, Meta(description="the whole new text")]
    title: Annotated[str, Meta(min_length=1, max_length=500, description="new title")] | None = None
    expected_version: Annotated[int, Meta(ge=1, description="refuse another version")] | None = None
    collection: Annotated[Collection, Meta(description="move it there as well")] | None = None


class KbUpdateNoteResult(DocumentView, kw_only=True):
    """The note. `job_id` is null if it is updated, otherwise the job that continues; `hint` has details."""

    job_id: str | None
    hint: str


class KbUpdateNoteTool(KbTool[KbUpdateNoteArguments, KbUpdateNoteResult]):
    name = "kb_update_note"
    title = "Update a note"
    description = """\
Replace a note's text; document_id and created_at stay, the old text too for some days, as a version. \
With expected_version (of kb_search, kb_get) it is refused if the note \
has changed meanwhile. Notes only."""
    annotations = Annotations(destructive=True, idempotent=True)

    async def run(self, arguments: KbUpdateNoteArguments, call: Call) -> KbUpdateNoteResult:
        if arguments.collection is not None:
            tag_of(arguments.collection)  # raises before any change
        patch = m.NotePatch(
            text=arguments.text, title=arguments.title, expected_version=arguments.expected_version
        )
        # An update that takes longer than the engine waits is joined when the same call is repeated.
        document = await self.engine.call(
            ops.PATCH_NOTE,
            path={"document_id": arguments.document_id},
            query=ops.NoteQuery(wait=round(min(ops.UPDATE_WAIT_SECONDS, self.engine.longest_wait), 3)),
            body=patch,
        )
        if isinstance(document, m.Job):
            call.log["job_id"] = document.id
            return await self._going_on(document, arguments)
        if arguments.collection is not None:
            document = await self._moved(document, arguments.collection)
        else:
            repaired = await collection_moves.repair(
                self.engine, document.id, document.tags, document.version
            )
            document = repaired or document
        return KbUpdateNoteResult(**document_members(document), job_id=None, hint="")

    async def _moved(self, document: m.Document, collection: str) -> m.Document:
        try:
            return await collection_moves.move(self.engine, document, collection, clock=self.services.clock)
        except (EngineFault, ToolError) as fault:
            error = fault if isinstance(fault, ToolError) else self.error_of(fault, document_id=document.id)
            raise ToolError(
                error.code, f"The text was updated. {error.message}", **error.details, text_updated=True
            ) from fault

    async def _going_on(self, job: m.Job, arguments: KbUpdateNoteArguments) -> KbUpdateNoteResult:
        """Return the current note. The job's id is reported despite any later fault."""
        if job.status == "cancelled":
            raise ToolError(
                "task_cancelled",
                f"The update was cancelled as job {job.id}; the note is as it was.",
                job_id=job.id,
            )
        hint = (
            f"Not done yet: the update continues as job {job.id}. Ask kb_jobs with this job_id and "
            "wait_seconds until it has completed; until then the note has its old text. Do not send it again."
        )
        try:
            document = await read_document(self.engine, arguments.document_id)
        except EngineFault as fault:
            error = self.error_of(fault, document_id=arguments.document_id)
            raise ToolError(error.code, f"{hint} {error.message}", **error.details, job_id=job.id) from fault
        if arguments.collection is not None:
            hint += f" It has not been moved to {arguments.collection!r}: pass collection again afterwards."
        return KbUpdateNoteResult(**document_members(document), job_id=job.id, hint=hint)
