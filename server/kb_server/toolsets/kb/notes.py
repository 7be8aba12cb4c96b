"""`kb_addnote` and `kb_update_note`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from kb_contracts import models as m
from kb_server import collections
from kb_server.engine_client import engine_call
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
from kb_server.toolsets.kb.views import DocumentView, document_view

NoteText = Annotated[str, Meta(min_length=1, max_length=m.MAX_NOTE_CHARS)]


class KbAddnoteArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The arguments of `kb_addnote`."""

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

Answers at once with a job_id; the note can be searched when that has completed.

Example: {"text": "User prefers concise responses", "collection": "memory", "tags": ["feedback"]}"""
    annotations = Annotations()
    arguments = KbAddnoteArguments
    result = Submission

    async def run(self, arguments: KbAddnoteArguments, call: Call) -> Submission:
        """`POST /jobs` as JSON."""
        tags = collections.submitted(arguments.collection, arguments.tags or [])
        note = m.NoteRequest(
            text=arguments.text,
            title=arguments.title,
            tags=tags,
            metadata=arguments.metadata or {},
            source_path=arguments.source_path,
            dedup_scope=tags[0],
        )
        with engine_call(call):
            job = await self.engine.add_note(note)
            call.log["job_id"] = job.id
            return await followed(self.engine, job, _name(tags[0]), arguments.wait_seconds)


class KbUpdateNoteArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The arguments of `kb_update_note`."""

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


class KbUpdateNoteTool(KbTool[KbUpdateNoteArguments, DocumentView]):
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
    result = DocumentView

    async def run(self, arguments: KbUpdateNoteArguments, call: Call) -> DocumentView:
        """`PATCH /notes/{id}`, then the move."""
        if arguments.collection is not None:
            collections.tag_of(arguments.collection)  # refused before anything is changed
        patch = m.NotePatch(
            text=arguments.text, title=arguments.title, expected_version=arguments.expected_version
        )
        with engine_call(call, document_id=arguments.document_id):
            document = await self.engine.patch_note(arguments.document_id, patch)
            if arguments.collection is not None:
                document = await self._moved(document, arguments.collection)
            else:
                document = await collections.repair(self.engine, document) or document
            return document_view(document)

    async def _moved(self, document: m.Document, collection: str) -> m.Document:
        try:
            return await collections.move(self.engine, document, collection, clock=self.services.clock)
        except ToolError as error:
            raise ToolError(
                error.code, f"The text was updated. {error.message}", **error.details, text_updated=True
            ) from error


def _name(tag: str) -> str:
    return tag.removeprefix(collections.PREFIX)
