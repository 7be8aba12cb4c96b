"""`kb_upload_start`, `kb_upload_chunk` and `kb_upload_finish`."""

from __future__ import annotations

import shlex
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from kb_contracts.api.operations import GET_JOB
from kb_server import collection_tags
from kb_server.tool import Annotations, Call
from kb_server.toolsets.kb.parameters import (
    Collection,
    Metadata,
    NewTags,
    Sha256,
    SourcePath,
    Title,
    UploadId,
    WaitSeconds,
)
from kb_server.toolsets.kb.submissions import Submission, followed
from kb_server.toolsets.kb.tool import KbTool
from kb_server.uploads.service import Started
from kb_server.uploads.upload import CHUNK_BYTES, MAX_CHUNKS, NewUpload


class KbUploadStartArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    filename: Annotated[str, Meta(min_length=1, description="with its extension, without folders")]
    total_size: Annotated[int, Meta(ge=1, description="bytes of the file")]
    collection: Collection | None = None
    tags: NewTags | None = None
    title: Title | None = None
    source_path: SourcePath | None = None
    metadata: Metadata | None = None
    sha256: Sha256 | None = None


class KbUploadStartResult(msgspec.Struct, kw_only=True):
    """A begun upload. `chunk_bytes` is the most that a chunk may have before base64."""

    upload_id: str
    upload_url: str | UnsetType = UNSET
    expires_at: str
    chunk_bytes: int
    max_chunks: int
    next: str


class KbUploadStartTool(KbTool[KbUploadStartArguments, KbUploadStartResult]):
    """Names the two ways to send the bytes."""

    name = "kb_upload_start"
    title = "Start an upload"
    description = """\
Begin the upload of a file (PDF, Office, HTML, Markdown, text, image), step 1 of 3. If you can run commands: \
`curl -g -T report.pdf "<upload_url>"` with the answer's upload_url; the file stays out of your context. \
Else send pieces with kb_upload_chunk. Then call kb_upload_finish, before expires_at.

Example: {"filename": "report.pdf", "total_size": 5242880}"""
    annotations = Annotations()
    arguments = KbUploadStartArguments
    result = KbUploadStartResult

    async def run(self, arguments: KbUploadStartArguments, call: Call) -> KbUploadStartResult:
        """Nothing is asked of the engine yet."""
        tags = collection_tags.tags_for_submission(arguments.collection, arguments.tags or [])
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
        # One key lets all in, and where none is set a token is what its sender likes: quotas go by address.
        started = await self.services.uploads.start(new, call.address or call.credential)
        call.log["upload_id"] = started.upload.id
        return self._result(started)

    def _result(self, started: Started) -> KbUploadStartResult:
        base = self.services.http_base
        url = f"{base}/uploads/{started.token}" if base is not None else None
        return KbUploadStartResult(
            upload_id=started.upload.id,
            upload_url=UNSET if url is None else url,
            expires_at=started.upload.expires_at,
            chunk_bytes=CHUNK_BYTES,
            max_chunks=MAX_CHUNKS,
            next=_next(started.upload.filename, url),
        )


class KbUploadChunkArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    upload_id: UploadId
    chunk_index: Annotated[int, Meta(ge=0, le=MAX_CHUNKS - 1, description="from 0")]
    data: Annotated[str, Meta(description="base64; at most 8 MiB decoded")]
    sha256: Sha256 | None = None


class KbUploadChunkResult(msgspec.Struct, kw_only=True):
    """What has arrived of the upload so far. `complete`: as many bytes as announced."""

    upload_id: str
    chunk_index: int
    chunks_received: int
    received_bytes: int
    total_size: int
    complete: bool
    next: str


class KbUploadChunkTool(KbTool[KbUploadChunkArguments, KbUploadChunkResult]):
    """Stages a chunk."""

    name = "kb_upload_chunk"
    title = "Upload a chunk"
    description = """\
Send one piece of the file, step 2 of 3, in any order; the same chunk_index again replaces the piece. Then \
call kb_upload_finish."""
    annotations = Annotations(idempotent=True)
    arguments = KbUploadChunkArguments
    result = KbUploadChunkResult

    async def run(self, arguments: KbUploadChunkArguments, call: Call) -> KbUploadChunkResult:
        """Nothing is asked of the engine yet."""
        call.log["upload_id"] = arguments.upload_id[:64]
        received = await self.services.uploads.chunk(
            arguments.upload_id, arguments.chunk_index, arguments.data, arguments.sha256
        )
        left = received.total_size - received.bytes
        return KbUploadChunkResult(
            upload_id=arguments.upload_id,
            chunk_index=arguments.chunk_index,
            chunks_received=received.chunks,
            received_bytes=received.bytes,
            total_size=received.total_size,
            complete=left == 0,
            next=f"{left} bytes to go." if left else "Call kb_upload_finish.",
        )


class KbUploadFinishArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    upload_id: UploadId
    sha256: Annotated[Sha256, Meta(description="SHA-256 of the whole file")] | None = None
    wait_seconds: WaitSeconds = 0.0


class KbUploadFinishTool(KbTool[KbUploadFinishArguments, Submission]):
    """Hands the file to the engine."""

    name = "kb_upload_finish"
    title = "Finish an upload"
    description = """\
Hand the uploaded file over for ingestion, step 3 of 3. Answers with a job_id; the document can be searched \
when that has completed (kb_jobs, or wait_seconds). Missing pieces are named and can still be sent."""
    annotations = Annotations(idempotent=True)
    arguments = KbUploadFinishArguments
    result = Submission

    async def run(self, arguments: KbUploadFinishArguments, call: Call) -> Submission:
        """`POST /jobs` as multipart, streamed from disk."""
        call.log["upload_id"] = arguments.upload_id[:64]
        finished = await self.services.uploads.finish(arguments.upload_id, arguments.sha256)
        call.log["job_id"] = finished.job_id
        job = finished.job or await self.engine.call(GET_JOB, path={"job_id": finished.job_id})
        collection = finished.upload.collection.removeprefix(collection_tags.PREFIX)
        return await followed(self.engine, job, collection, arguments.wait_seconds)


def _next(filename: str, url: str | None) -> str:
    by_chunks = "Send the file with kb_upload_chunk, from chunk_index 0, then call kb_upload_finish."
    if url is None:
        return by_chunks
    # Without -g curl takes the brackets in a file's name for a range of names.
    return f"Run: curl -g -T {shlex.quote(filename)} '{url}' and then call kb_upload_finish. Or: {by_chunks}"
