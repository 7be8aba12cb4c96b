"""The engine over HTTP: every operation of the contract's table, on the transport's connections."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import TypeVar
from uuid import uuid4

import msgspec

from kb_contracts.api import models as m
from kb_contracts.api.operations import (
    BY_ID,
    IDEMPOTENCY_KEY,
    IF_MATCH,
    UPDATE_WAIT_SECONDS,
    AnyOperation,
    ClearQuery,
    DocumentQuery,
    DocumentsQuery,
    JobQuery,
    JobsQuery,
    NoteQuery,
    TagsQuery,
)
from kb_contracts.api.ragler import USER_ID
from kb_server.clock import SYSTEM_CLOCK, Clock
from kb_server.engine_client.body import MultipartFile
from kb_server.engine_client.errors import EngineFault
from kb_server.engine_client.port import ENDED, USER, FileSource
from kb_server.engine_client.responses import RawResponse, decode
from kb_server.engine_client.retries import RetryPolicy
from kb_server.engine_client.transport import HttpTransport, Outgoing, standing_headers
from kb_server.engine_client.version import check_version

S = TypeVar("S", bound=msgspec.Struct)

SLICE_SECONDS = 20.0

_POLL_SECONDS = 0.25
_WAITING_SHARE = 2 / 3
"""Of the silence that is borne, how much an answer may be waited for."""
_HEALTH_SECONDS = 3.0


class _Version(msgspec.Struct):
    version: str


class HttpEngine:
    """An `Engine` over aiohttp.

    `url` is the engine's base, `api_key` its bearer key (empty: none is sent), `silence` the seconds without
    a byte after which a call fails. The session is opened by the first call.
    """

    def __init__(
        self,
        url: str,
        api_key: str = "",
        *,
        silence: float = 30.0,
        policy: RetryPolicy | None = None,
        clock: Clock = SYSTEM_CLOCK,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._http = HttpTransport(url, policy=policy, clock=clock, jitter=jitter, lost=self._forget_version)
        self._key = api_key
        self._silence = silence
        self._clock = clock
        self._version_known = False
        self._version_check: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """The engine's base URL, without credentials."""
        return self._http.base

    async def close(self) -> None:
        """Close the pool."""
        if self._version_check is not None:
            self._version_check.cancel()
        await self._http.close()

    # --- operations -------------------------------------------------------------------------------

    async def search(self, request: m.SearchRequest) -> m.SearchResponse:
        """`POST /search`."""
        return await self._call(self._outgoing("search", body=request), m.SearchResponse)

    async def add_note(self, note: m.NoteRequest, *, idempotency_key: str | None = None) -> m.Job:
        """`POST /jobs` as JSON."""
        return await self._call(self._outgoing("createJob", body=note, key=idempotency_key), m.Job)

    async def add_file(
        self, file: FileSource, fields: m.FileFields, *, idempotency_key: str | None = None
    ) -> m.Job:
        """`POST /jobs` as multipart, streamed."""
        body = MultipartFile(file, fields)
        return await self._call(self._outgoing("createJob", file=body, key=idempotency_key), m.Job)

    async def job(self, job_id: str, *, wait: float = 0.0) -> m.Job:
        """`GET /jobs/{id}`, again and again in slices until the job has ended or `wait` is over."""
        ends = self._clock.monotonic() + wait
        while True:
            began = self._clock.monotonic()
            asked = min(max(0.0, ends - began), SLICE_SECONDS)
            job = await self._job(job_id, asked)
            now = self._clock.monotonic()
            if job.status in ENDED or now >= ends:
                return job
            if now - began < asked / 2:
                # An engine that does not wait must not be asked in a tight loop.
                await self._clock.sleep(min(_POLL_SECONDS, ends - now))

    async def _job(self, job_id: str, wait: float) -> m.Job:
        query = JobQuery(wait=round(wait, 3))
        outgoing = self._outgoing(
            "getJob", path={"job_id": job_id}, query=query, silence=self._silence + wait
        )
        return await self._call(outgoing, m.Job)

    async def jobs(self, query: JobsQuery) -> m.JobList:
        """`GET /jobs`."""
        return await self._call(self._outgoing("listJobs", query=query), m.JobList)

    async def cancel_job(self, job_id: str) -> m.Job:
        """`DELETE /jobs/{id}`."""
        return await self._call(self._outgoing("cancelJob", path={"job_id": job_id}), m.Job)

    async def retry_job(self, job_id: str) -> m.Job:
        """`POST /jobs/{id}/retry`."""
        return await self._call(self._outgoing("retryJob", path={"job_id": job_id}), m.Job)

    async def documents(self, query: DocumentsQuery) -> m.DocumentList:
        """`GET /documents`."""
        return await self._call(self._outgoing("listDocuments", query=query), m.DocumentList)

    async def document(self, key: int | str, query: DocumentQuery | None = None) -> m.DocumentDetail:
        """`GET /documents/{id}`."""
        outgoing = self._outgoing("getDocument", path={"document_id": str(key)}, query=query)
        return await self._call(outgoing, m.DocumentDetail)

    async def patch_note(self, document_id: int, patch: m.NotePatch) -> m.Document | m.Job:
        """`PATCH /notes/{id}`, whose answer comes before the engine counts as silent."""
        query = NoteQuery(wait=round(min(UPDATE_WAIT_SECONDS, self._silence * _WAITING_SHARE), 3))
        outgoing = self._outgoing(
            "patchNote", path={"document_id": str(document_id)}, query=query, body=patch
        )
        await self._check_version()
        return await self._http.attempted(outgoing, partial(_read_or_accepted, outgoing.operation))

    async def add_tags(
        self, key: int | str, tags: Sequence[str], *, if_match: int | None = None
    ) -> m.Document:
        """`POST /documents/{id}/tags`."""
        outgoing = self._outgoing(
            "addTags", path={"document_id": str(key)}, body=m.TagsRequest(tags=list(tags)), if_match=if_match
        )
        return await self._call(outgoing, m.Document)

    async def remove_tag(self, key: int | str, tag: str, *, if_match: int | None = None) -> m.Document:
        """`DELETE /documents/{id}/tags/{tag}`."""
        outgoing = self._outgoing("removeTag", path={"document_id": str(key), "tag": tag}, if_match=if_match)
        return await self._call(outgoing, m.Document)

    async def tags(self, query: TagsQuery) -> m.TagList:
        """`GET /tags`."""
        return await self._call(self._outgoing("listTags", query=query), m.TagList)

    async def delete(self, key: int | str) -> m.Removed:
        """`DELETE /documents/{id}`."""
        return await self._call(self._outgoing("deleteDocument", path={"document_id": str(key)}), m.Removed)

    async def clear(self) -> m.Removed:
        """`DELETE /documents`, confirmed."""
        return await self._call(self._outgoing("clearDocuments", query=ClearQuery(confirm=True)), m.Removed)

    async def status(self) -> m.Status:
        """`GET /status`, whatever the engine's version."""
        return await self._attempted(self._outgoing("getStatus"), m.Status)

    async def unready(self) -> EngineFault | None:
        """`GET /readyz` and, since that is open to all, `GET /status` with the key; three seconds for each.

        The circuit has no say in it, but learns from it.
        """
        silence = min(self._silence, _HEALTH_SECONDS)
        ready, status = (self._outgoing(each, silence=silence) for each in ("getReadiness", "getStatus"))
        try:
            await self._http.observed(ready, partial(_read, ready.operation, m.Health))
            check_version(
                (await self._http.observed(status, partial(_read, status.operation, _Version))).version
            )
        except EngineFault as fault:
            return fault
        return None

    # --- one call ---------------------------------------------------------------------------------

    def _outgoing(
        self,
        operation_id: str,
        *,
        path: Mapping[str, str] | None = None,
        query: m.Request | None = None,
        body: m.Request | None = None,
        file: MultipartFile | None = None,
        key: str | None = None,
        if_match: int | None = None,
        silence: float | None = None,
    ) -> Outgoing:
        operation = BY_ID[operation_id]
        headers = standing_headers(self._key)
        if operation.mutates:
            headers[IDEMPOTENCY_KEY] = key or str(uuid4())
        if operation.on_behalf and (user := USER.get()):
            headers[USER_ID] = user
        if if_match is not None:
            headers[IF_MATCH] = f'"{if_match}"'
        return self._http.outgoing(
            operation,
            headers,
            silence=self._silence if silence is None else silence,
            path=path,
            query=query,
            body=body,
            file=file,
        )

    async def _call(self, outgoing: Outgoing, model: type[S]) -> S:
        await self._check_version()
        return await self._attempted(outgoing, model)

    async def _attempted(self, outgoing: Outgoing, model: type[S]) -> S:
        return await self._http.attempted(outgoing, partial(_read, outgoing.operation, model))

    async def _check_version(self) -> None:
        """Ask for the engine's version on the first call, and on the first after it was out of reach.

        Calls that begin together share one question and its outcome: behind an engine that keeps silent
        they would otherwise wait one after the other.
        """
        if self._version_known:
            return
        if self._version_check is None or self._version_check.done():
            self._version_check = asyncio.create_task(self._learn_version(), name="engine-version")
            self._version_check.add_done_callback(_looked_at)
        await asyncio.shield(self._version_check)

    async def _learn_version(self) -> None:
        status = await self._attempted(self._outgoing("getStatus"), _Version)
        check_version(status.version)
        self._version_known = True

    def _forget_version(self) -> None:
        self._version_known = False


def _read(operation: AnyOperation, model: type[S], answer: RawResponse) -> S:
    return decode(operation, answer, model)


def _read_or_accepted(operation: AnyOperation, answer: RawResponse) -> m.Document | m.Job:
    if answer.status == HTTPStatus.ACCEPTED:
        return decode(operation, answer, m.Job)
    return decode(operation, answer, m.Document)


def _looked_at(task: asyncio.Task[None]) -> None:
    """Nobody may be left who waits for it; its failure is not to be reported as lost."""
    if not task.cancelled():
        task.exception()
