"""The engine as the server sees it: one typed coroutine an operation."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from kb_contracts.api import models as m
from kb_contracts.api.operations import DocumentQuery, DocumentsQuery, JobsQuery, TagsQuery
from kb_server.engine_client.errors import EngineFault

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
"""The correlation id of the call being served; sent to the engine as `X-Request-ID`.

A context variable, since it belongs to the call and not to any one operation.
"""

USER: ContextVar[str] = ContextVar("user", default="")
"""On whose behalf the call is made; sent to the engine as `X-User-ID` where it lets callers take turns."""

TRACE: ContextVar[Mapping[str, str] | None] = ContextVar("trace", default=None)
"""The W3C trace context of that call, as headers; None where nobody collects spans."""

ENDED = frozenset({"completed", "failed", "cancelled"})
"""The states that a job does not leave."""


@dataclass(frozen=True, slots=True)
class FileSource:
    """A file to send. `blocks` opens it anew for every attempt and yields exactly `size` bytes in all."""

    filename: str
    size: int
    blocks: Callable[[], AsyncIterator[bytes]]


class Engine(Protocol):
    """The engine API.

    Raises (all methods but `unready`): `EngineFault`, as the tree in `errors` has it.
    Every mutation goes out under an idempotency key, one of its own where the caller gives none.
    """

    async def search(self, request: m.SearchRequest) -> m.SearchResponse:
        """Find passages."""

    async def add_note(self, note: m.NoteRequest, *, idempotency_key: str | None = None) -> m.Job:
        """Take in a text."""

    async def add_file(
        self, file: FileSource, fields: m.FileFields, *, idempotency_key: str | None = None
    ) -> m.Job:
        """Take in a file, streamed; there is no bound on the whole time, only on silence."""

    async def job(self, job_id: str, *, wait: float = 0.0) -> m.Job:
        """One job; `wait` seconds at the most for it to end."""

    async def jobs(self, query: JobsQuery) -> m.JobList:
        """Jobs, newest first."""

    async def cancel_job(self, job_id: str) -> m.Job:
        """Cancel a job that has not ended."""

    async def retry_job(self, job_id: str) -> m.Job:
        """Queue a failed job again."""

    async def documents(self, query: DocumentsQuery) -> m.DocumentList:
        """Documents, filtered and sorted."""

    async def document(self, key: int | str, query: DocumentQuery | None = None) -> m.DocumentDetail:
        """One document with chunks, by number or uid."""

    async def patch_note(self, document_id: int, patch: m.NotePatch) -> m.Document | m.Job:
        """Replace a note's text in place; where that takes longer than a call waits, the job that does it."""

    async def add_tags(
        self, key: int | str, tags: Sequence[str], *, if_match: int | None = None
    ) -> m.Document:
        """Add tags; `if_match` is the version that the document must still have."""

    async def remove_tag(self, key: int | str, tag: str, *, if_match: int | None = None) -> m.Document:
        """Take a tag off; `if_match` as in `add_tags`."""

    async def tags(self, query: TagsQuery) -> m.TagList:
        """Tags in use."""

    async def delete(self, key: int | str) -> m.Removed:
        """Remove one document."""

    async def clear(self) -> m.Removed:
        """Remove all documents and cancel the jobs accepted before."""

    async def status(self) -> m.Status:
        """What the engine tells of itself. Answered by an engine that is too old as well."""

    async def unready(self) -> EngineFault | None:
        """Why the engine cannot serve this server, asked once; None where it can."""
