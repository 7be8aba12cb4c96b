"""`knowledge-add`."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from pathlib import PurePath
from typing import Annotated, Any

import anyio
import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from kb_contracts.api import models as m
from kb_contracts.api.operations import CANCEL_JOB
from kb_server.collection_tags import PREFIX, tags_for_submission, validate_tags
from kb_server.engine_client.errors import EngineFault
from kb_server.following import followed, step_of
from kb_server.job_tasks import JobTasks, task_of
from kb_server.services import Services
from kb_server.tool import INVALID, Annotations, Call, ToolError
from kb_server.toolsets.knowledge.files import TAKE_OCR, format_of, open_below, source, unreadable
from kb_server.toolsets.knowledge.knowledge_tool import ENGINE_WORDS, KnowledgeTool, Success, name_of
from kb_server.toolsets.knowledge.status import CANCELLED, document_of, seconds_between

SYNC_SECONDS = 600.0
"""Maximum wait of a synchronous call for its job, in seconds; then it answers with the task."""

QUEUED = "Document queued for processing"

_CANCEL_SECONDS = 5.0
_MAX_SOURCE_CHARS = 1_000
_MAX_TITLE_CHARS = 500
_BYTES_A_SECOND = 10_000
"""Assumed speed of extraction and embedding until the engine has measured, in bytes of a file per second.

About that of two cores.
"""


class KnowledgeAddArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    file_path: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=4_096,
            description="path of the file on the server's machine, in a folder of KB_FILE_ROOTS",
            examples=["/data/documents/report.pdf"],
        ),
    ]
    metadata: (
        Annotated[
            dict[str, Any],
            Meta(
                description="kept with the document: author, title, tags (strings; kb_search finds by them), "
                "or any other JSON members",
                examples=[{"author": "John Doe", "tags": ["technical", "api-docs"]}],
                extra_json_schema={
                    "properties": {
                        "author": {"type": "string"},
                        "tags": {"type": "array", "items": {"type": "string"}},
                    },
                    "additionalProperties": True,
                },
            ),
        ]
        | None
    ) = None
    force_ocr: Annotated[
        bool,
        Meta(
            description=(
                "force OCR even if text can be extracted, for example from a PDF with garbled text. JPG and "
                "PNG are always read by OCR; other formats are read directly in any case"
            )
        ),
    ] = False
    async_: Annotated[
        bool, Meta(description="true: return a task_id at once; false: wait for the document")
    ] = msgspec.field(name="async", default=True)


class KnowledgeAddResult(Success, kw_only=True):
    """Queued: `task_id`, `message` and the estimate. Processed: `document_id` and the later members."""

    task_id: Annotated[str, Meta(description="for knowledge-task-status and tools/cancel")] | UnsetType = (
        UNSET
    )
    estimated_time_seconds: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    document_id: str | UnsetType = UNSET
    filename: str | UnsetType = UNSET
    chunks_created: Annotated[int, Meta(ge=0, description="passages of the document")] | UnsetType = UNSET
    processing_method: str | UnsetType = UNSET
    processing_time_seconds: Annotated[float, Meta(ge=0)] | UnsetType = UNSET
    deduplicated: (
        Annotated[bool, Meta(description="true: the same file was there already, as this document")]
        | UnsetType
    ) = UNSET
    message: str | UnsetType = UNSET


class KnowledgeAddTool(KnowledgeTool[KnowledgeAddArguments, KnowledgeAddResult]):
    name = "knowledge-add"
    title = "Add a document"
    description = """\
Add a document or image to the knowledge base for semantic search.

The file is on the server's machine, in a folder that the server may read. Formats: PDF, DOCX, PPTX, XLSX, \
HTML, JPG, PNG and SVG; pictures and scanned pages are read by OCR, some seconds each. Returns a task_id at \
once; knowledge-task-status reports when the document can be searched. With "async": false the response \
waits for it.

Examples: {"file_path": "/data/documents/report.pdf"}; {"file_path": "/data/documents/guide.html", "async": \
false, "metadata": {"author": "John Doe", "tags": ["technical"]}}"""
    annotations = Annotations()
    reports = True

    async def run(self, arguments: KnowledgeAddArguments, call: Call) -> KnowledgeAddResult:
        path, settings, metadata = arguments.file_path, self.services.settings, arguments.metadata or {}
        form = format_of(path)
        can_force = form in TAKE_OCR
        tags = tags_for_submission(None, _tags(metadata))
        title = metadata.get("title")
        if title is not None and not (isinstance(title, str) and 1 <= len(title) <= _MAX_TITLE_CHARS):
            raise _misfit("metadata.title", f"a string of 1 to {_MAX_TITLE_CHARS} characters")
        fields = m.FileFields(
            title=title,
            tags=tags,
            metadata=metadata,
            source_path=path if len(path) <= _MAX_SOURCE_CHARS else None,
            dedup_scope=tags[0],
            force_ocr=arguments.force_ocr and can_force,
        )
        if not call.grant.may_give(tags[0]):  # before it is known if there is such a file
            collection = tags[0].removeprefix(PREFIX)
            words = f"This key may not add to the collection {collection!r}, where this tool puts all files."
            raise ToolError("forbidden", words)
        with await asyncio.to_thread(open_below, settings.file_roots, path) as file:
            sent = source(file, PurePath(path).name, settings.max_upload_bytes)
            try:
                job = await self.engine.send_file(sent, fields)
            except OSError as error:
                raise unreadable(path, error) from error
        call.log["job_id"] = job.id
        call.defer(task_of(job), waits=not arguments.async_ and job.status not in m.FINAL_STATUSES)
        if arguments.async_:
            # After the answer the progress token is invalid: report the progress now.
            await call.progress(job.progress, 1.0, step_of(job))
            answer = _queued(job, sent.size, QUEUED)
        else:
            answer = await self._followed(job, sent.size, call)
        if arguments.force_ocr and not can_force:  # the engine would refuse to force it
            remark = f"OCR does not apply to {form.upper()}: its text is read directly"
            message = remark if answer.message is UNSET else f"{answer.message.removesuffix('.')}. {remark}"
            answer = replace(answer, message=message)
        return answer

    async def _followed(self, job: m.Job, size: int, call: Call) -> KnowledgeAddResult:
        """Return the document; the task if it takes too long, or if the engine can no longer be asked."""
        try:
            job = await followed(self.engine, self.services.clock, job, SYNC_SECONDS, call.progress)
        except EngineFault as fault:
            why = self.error_of(fault, task_id=job.id).message
            return _queued(job, size, f"{QUEUED}; it cannot be followed: {why}")
        except asyncio.CancelledError:
            # The call was cancelled: cancel the addition too.
            with anyio.move_on_after(_CANCEL_SECONDS, shield=True), suppress(EngineFault):
                await self.engine.call(CANCEL_JOB, path={"job_id": job.id})
            raise
        if job.status not in m.FINAL_STATUSES:
            return _queued(job, size, f"{QUEUED}; it is not done yet, knowledge-task-status tells when")
        return await self.added(job)

    async def added(self, job: m.Job) -> KnowledgeAddResult:
        """Return the result of a job that has ended. Raises `ToolError` if no document was added."""
        if job.status == "cancelled":
            raise ToolError("task_cancelled", CANCELLED, task_id=job.id)
        if job.error is not None:
            raise ToolError(job.error.code, job.error.message, task_id=job.id)
        document = await document_of(self.engine, job)
        return KnowledgeAddResult(
            document_id=document.uid,
            filename=name_of(document),
            chunks_created=document.chunk_count,
            processing_method=document.extraction_method,
            processing_time_seconds=seconds_between(job.started_at or job.created_at, job.finished_at),
            deduplicated=True if job.deduplicated else UNSET,
            message=document.status_reason or UNSET,
        )


def adding_tasks(services: Services) -> JobTasks:
    """Return the jobs of added files, as tasks."""
    adding = KnowledgeAddTool(services)
    return JobTasks(
        services, (adding.name,), adding.added, ENGINE_WORDS, adding.error_members, adding.document_mark
    )


def _queued(job: m.Job, size: int, message: str) -> KnowledgeAddResult:
    seconds = size / _BYTES_A_SECOND if job.estimated_seconds is None else job.estimated_seconds
    estimate = max(1, math.ceil(seconds))
    return KnowledgeAddResult(task_id=job.id, estimated_time_seconds=estimate, message=message)


def _tags(metadata: dict[str, Any]) -> list[str]:
    tags = [] if metadata.get("tags") is None else metadata["tags"]
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags) or len(tags) >= m.MAX_TAGS:
        raise _misfit("metadata.tags", f"an array of at most {m.MAX_TAGS - 1} strings")
    try:
        return validate_tags(tags)
    except ToolError as error:
        raise _misfit("metadata.tags", "tags without commas, slashes or a collection's name") from error


def _misfit(parameter: str, takes: str) -> ToolError:
    return ToolError(INVALID, f"The parameter `{parameter}` takes {takes}.", parameter=parameter)
