"""`kb_addnote` and `kb_update_note`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from kb_contracts.api import models as m
from kb_contracts.api.operations import (
    CREATE_JOB,
    GET_DOCUMENT,
    PATCH_NOTE,
    UPDATE_WAIT_SECONDS,
    WITHOUT_CHUNKS,
    NoteQuery,
)
from kb_server import collection_moves, collection_tags
from kb_server.engine_client.errors import EngineFault
from kb_server.tool import Annotations, Call, ToolError
from kb_server.toolsets.kb.parameters import (
    Collection,
    DocumentId,
    Metadata,
    NewTags,
    SourcePath,
    Title,
    WaitSeconds,
)
from kb_server.toolsets.kb.submissions import Submission, followed
from kb_server.toolsets.kb.tool import KbTool
from kb_server.toolsets.kb.views import DocumentView, document_members

NoteText = Annotated[str, Meta(min_length=1, max_length=m.MAX_NOTE_CHARS)]


class KbAddnoteArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    text: Annotated[NoteText, Meta(description="plain text or Markdown")]
    collection: Collection | None = None
    tags: NewTags | None = None
    title: Title | None = None
    source_path: SourcePath | None = None
    metadata: Metadata | None = None
    wait_seconds: WaitSeconds = 0.0


class KbAddnoteTool(KbTool[KbAddnoteArguments, Submission]):
    """Submits a note with exactly one collection tag."""

    name = "kb_addnote"
    title = "Add a note"
    description = """\
Add a text note, to be found by kb_search later: facts, decisions, preferences (collection `memory`), drafts \
(`workspace`), reference (`documents`). One subject a note, in words that a later question would use. Search \
first: if there is a note on it, change that with kb_update_note.

Answers at once with a job_id.

Example: {"text": "User prefers concise responses", "collection": "memory", "tags": ["feedback"]}"""
    annotations = Annotations()
    arguments = KbAddnoteArguments
    result = Submission

    async def run(self, arguments: KbAddnoteArguments, call: Call) -> Submission:
        """`POST /jobs` as JSON."""
        tags = collection_tags.tags_for_submission(arguments.collection, arguments.tags or [])
        note = m.NoteRequest(
            text=arguments.text,
            title=arguments.title,
            tags=tags,
            metadata=arguments.metadata or {},
            source_path=arguments.source_path,
            dedup_scope=tags[0],
        )
        job = await self.engine.call(CREATE_JOB, body=note)
        call.log["job_id"] = job.id
        return await followed(self.engine, job, _name(tags[0]), arguments.wait_seconds)


class KbUpdateNoteArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    document_id: DocumentId
    text: Annotated[NoteText, Meta(description="the whole new text")]
    title: Annotated[str, Meta(min_length=1, max_length=500, description="new title")] | None = None
    expected_version: (
        Annotated[
            int,
            Meta(ge=1, description="refuse if the version is another"),
        ]
        | None
    ) = None
    collection: Annotated[Collection, Meta(description="move it there as well")] | None = None


class KbUpdateNoteResult(DocumentView, kw_only=True):
    """The note. `job_id` is null where it is updated, else the job that goes on with it; `hint` says more."""

    job_id: str | None
    hint: str


class KbUpdateNoteTool(KbTool[KbUpdateNoteArguments, KbUpdateNoteResult]):
    """Replaces a note's text in place."""

    name = "kb_update_note"
    title = "Update a note"
    description = """\
Replace a note's text in place; its document_id and created_at stay, the old text is gone. With \
expected_version (kb_search and kb_get give it) the update is refused if somebody else changed the note. \
Only notes, not files.

Example: {"document_id": 42, "text": "User prefers bullet points"}"""
    annotations = Annotations(destructive=True, idempotent=True)
    arguments = KbUpdateNoteArguments
    result = KbUpdateNoteResult

    async def run(self, arguments: KbUpdateNoteArguments, call: Call) -> KbUpdateNoteResult:
        """`PATCH /notes/{id}`, then the move.

        An update that takes longer than the engine waits is joined by the same call made again.
        """
        if arguments.collection is not None:
            collection_tags.tag_of(arguments.collection)  # refused before anything is changed
        patch = m.NotePatch(
            text=arguments.text, title=arguments.title, expected_version=arguments.expected_version
        )
        document = await self.engine.call(
            PATCH_NOTE,
            path={"document_id": arguments.document_id},
            query=NoteQuery(wait=round(min(UPDATE_WAIT_SECONDS, self.engine.longest_wait), 3)),
            body=patch,
        )
        if isinstance(document, m.Job):
            call.log["job_id"] = document.id
            return await self._going_on(document, arguments)
        if arguments.collection is not None:
            document = await self._moved(document, arguments.collection)
        else:
            document = await collection_moves.repair(self.engine, document) or document
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
        """The note as it is meanwhile. The job's id is never lost to what goes wrong from here on."""
        if job.status == "cancelled":
            raise ToolError(
                "task_cancelled",
                f"The update was cancelled as job {job.id}; the note is as it was.",
                job_id=job.id,
            )
        hint = (
            f"Not done yet: the update goes on as job {job.id}. Ask kb_jobs with this job_id and "
            "wait_seconds until it has completed; until then the note has its old text. Do not send it again."
        )
        try:
            document = await self.engine.call(
                GET_DOCUMENT, path={"document_id": arguments.document_id}, query=WITHOUT_CHUNKS
            )
        except EngineFault as fault:
            error = self.error_of(fault, document_id=arguments.document_id)
            raise ToolError(error.code, f"{hint} {error.message}", **error.details, job_id=job.id) from fault
        if arguments.collection is not None:
            hint += f" It has not been moved to {arguments.collection!r}: pass collection again afterwards."
        return KbUpdateNoteResult(**document_members(document), job_id=job.id, hint=hint)


def _name(tag: str) -> str:
    return tag.removeprefix(collection_tags.PREFIX)
