"""The engine over HTTP: one pooled session, every operation of the contract's table, every fault ours."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import uuid4

import aiohttp
import msgspec
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from kb_contracts import models as m
from kb_contracts.operations import (
    BY_ID,
    IDEMPOTENCY_KEY,
    IF_MATCH,
    ClearQuery,
    DocumentQuery,
    DocumentsQuery,
    JobQuery,
    JobsQuery,
    Operation,
    TagsQuery,
)
from kb_server.clock import SYSTEM_CLOCK, Clock
from kb_server.engine_client.answers import RawAnswer, decode
from kb_server.engine_client.body import MultipartFile
from kb_server.engine_client.breaker import Breaker
from kb_server.engine_client.errors import (
    EngineBadAnswer,
    EngineFault,
    EngineTimeout,
    EngineUnreachable,
    Refused,
)
from kb_server.engine_client.port import ENDED, REQUEST_ID, FileSource
from kb_server.engine_client.retries import RetryPolicy
from kb_server.engine_client.version import check_version
from kb_server.engine_client.wire import MAX_BODY_BYTES, Wire

S = TypeVar("S", bound=msgspec.Struct)

CONNECT_SECONDS = 5.0
SLICE_SECONDS = 20.0
MAX_ANSWER_BYTES = 64 * 1024 * 1024

_POLL_SECONDS = 0.25
_HEALTH_SECONDS = 3.0
_CONNECTIONS = 512
"""So many that agents who wait for their jobs do not keep others from searching."""

_KEEP_ALIVE_SECONDS = 30.0


class _Version(msgspec.Struct):
    version: str


@dataclass(frozen=True, slots=True)
class _Outgoing:
    """One request of an operation, ready to be sent as often as it takes."""

    operation: Operation
    url: URL
    headers: Mapping[str, str]
    silence: float
    json: bytes | None = None
    file: MultipartFile | None = None


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
        self._base = str(URL(url).with_user(None).with_query(None).with_fragment(None)).rstrip("/")
        self._key = api_key
        self._silence = silence
        self._policy = policy or RetryPolicy()
        self._clock = clock
        self._jitter = jitter
        self._breaker = Breaker()
        self._last_failure = ""
        self._version_known = False
        self._version_check: asyncio.Task[None] | None = None
        self._session: aiohttp.ClientSession | None = None
        self._wire: Wire | None = None

    @property
    def url(self) -> str:
        """The engine's base URL, without credentials."""
        return self._base

    async def close(self) -> None:
        """Close the pool."""
        if self._version_check is not None:
            self._version_check.cancel()
        session, self._session, self._wire = self._session, None, None
        if session is not None:
            await session.close()

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

    async def documents(self, query: DocumentsQuery) -> m.DocumentList:
        """`GET /documents`."""
        return await self._call(self._outgoing("listDocuments", query=query), m.DocumentList)

    async def document(self, key: int | str, query: DocumentQuery | None = None) -> m.DocumentDetail:
        """`GET /documents/{id}`."""
        outgoing = self._outgoing("getDocument", path={"document_id": str(key)}, query=query)
        return await self._call(outgoing, m.DocumentDetail)

    async def patch_note(self, document_id: int, patch: m.NotePatch) -> m.Document:
        """`PATCH /notes/{id}`."""
        outgoing = self._outgoing("patchNote", path={"document_id": str(document_id)}, body=patch)
        return await self._call(outgoing, m.Document)

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

    async def healthy(self) -> bool:
        """`GET /readyz`, once and within three seconds; the circuit has no say in it, but learns from it."""
        outgoing = self._outgoing("getReadiness", silence=min(self._silence, _HEALTH_SECONDS))
        try:
            await self._observed(outgoing, m.Health)
        except EngineFault:
            return False
        return True

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
    ) -> _Outgoing:
        operation = BY_ID[operation_id]
        headers = self._headers(operation, key, if_match)
        try:
            if file is not None:
                headers |= {"Content-Type": file.content_type, "Content-Length": str(file.length)}
            elif body is not None:
                headers["Content-Type"] = "application/json"
            return _Outgoing(
                operation,
                self._url(operation, path or {}, query),
                headers,
                silence=self._silence if silence is None else silence,
                json=None if body is None else msgspec.json.encode(body),
                file=file,
            )
        except UnicodeEncodeError as error:
            raise Refused("invalid_parameter", "A text holds half a surrogate pair.") from error

    def _headers(self, operation: Operation, key: str | None, if_match: int | None) -> dict[str, str]:
        headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "kb-server"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        if request_id := REQUEST_ID.get():
            headers["X-Request-ID"] = request_id
        if operation.mutates:
            headers[IDEMPOTENCY_KEY] = key or str(uuid4())
        if if_match is not None:
            headers[IF_MATCH] = f'"{if_match}"'
        return headers

    def _url(self, operation: Operation, path: Mapping[str, str], query: m.Request | None) -> URL:
        if not path and query is None:
            return _whole(self._base + operation.path)
        filled = operation.path.format_map({name: _segment(name, value) for name, value in path.items()})
        url = URL(self._base + filled, encoded=True)
        pairs = {} if query is None else {name: _text(value) for name, value in _given(query).items()}
        return url.with_query(pairs) if pairs else url

    async def _call(self, outgoing: _Outgoing, model: type[S]) -> S:
        await self._check_version()
        return await self._attempted(outgoing, model)

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

    async def _attempted(self, outgoing: _Outgoing, model: type[S]) -> S:
        """Send until it is answered, or as often as the policy and the circuit let it."""
        began, made = self._clock.monotonic(), 0
        while True:
            self._admit()
            made += 1
            try:
                return await self._observed(outgoing, model)
            except EngineFault as fault:
                elapsed = self._clock.monotonic() - began
                delay = self._policy.delay(fault, made=made, elapsed=elapsed, random=self._jitter)
                if delay is None:
                    raise
            await self._clock.sleep(delay)

    def _admit(self) -> None:
        now = self._clock.monotonic()
        if not self._breaker.allows(now):
            raise EngineUnreachable(
                self._last_failure, url=self._base, retry_after=round(self._breaker.wait(now), 1)
            )

    async def _observed(self, outgoing: _Outgoing, model: type[S]) -> S:
        """Send once, and tell the circuit how it went."""
        try:
            answer = decode(outgoing.operation, await self._sent(outgoing), model)
        except (EngineUnreachable, EngineTimeout) as fault:
            self._breaker.failed(self._clock.monotonic())
            self._last_failure, self._version_known = fault.detail, False
            raise
        except EngineFault:
            self._breaker.succeeded()
            raise
        except BaseException:  # cancelled, or our own file unreadable: it says nothing about the engine
            self._breaker.abandoned()
            raise
        self._breaker.succeeded()
        return answer

    async def _sent(self, outgoing: _Outgoing) -> RawAnswer:
        """Send once, with every fault of the transport turned into one of ours."""
        sending = _Sending(outgoing)
        try:
            session = self._opened()
            return await sending.exchange(session, self._wire)
        except (aiohttp.ClientError, HttpProcessingError, OSError, ValueError) as error:
            if sending.own_fault is not None:
                raise sending.own_fault from None
            raise self._fault(error, outgoing) from error

    def _fault(self, error: Exception, outgoing: _Outgoing) -> EngineFault:
        match error:
            case aiohttp.ConnectionTimeoutError():
                return self._unreachable(f"no connection within {CONNECT_SECONDS:g} s")
            case TimeoutError():
                return EngineTimeout(f"It said nothing for {outgoing.silence:g} s.")
            case aiohttp.ClientPayloadError():
                return EngineBadAnswer("Its answer broke off in the middle.", broke_off=True)
            case aiohttp.ServerDisconnectedError():
                return self._unreachable("it closed the connection without an answer")
            case aiohttp.ClientConnectionError() | OSError():
                return self._unreachable(_reason(error))
            case _:
                # Damaged on its way, perhaps: a mutation that was done answers its key again.
                detail = f"It does not answer in HTTP as agreed ({type(error).__name__})."
                return EngineBadAnswer(detail, broke_off=True)

    def _unreachable(self, reason: str) -> EngineUnreachable:
        return EngineUnreachable(reason, url=self._base)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=_CONNECTIONS, keepalive_timeout=_KEEP_ALIVE_SECONDS),
                # Silence is watched by `_Sending`, also while a body goes out, where aiohttp does not.
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
            self._wire = Wire(self._session, URL(self._base))
        return self._session


@dataclass(slots=True)
class _Sending:
    """One exchange under one watch for silence: every block sent and every byte received pushes it on."""

    outgoing: _Outgoing
    own_fault: OSError | None = None
    _watch: asyncio.Timeout | None = field(default=None)

    async def exchange(self, session: aiohttp.ClientSession, wire: Wire | None) -> RawAnswer:
        """Send the request and read its answer whole.

        Raises:
            TimeoutError: silence. Otherwise whatever aiohttp raises.
        """
        try:
            async with asyncio.timeout(self.outgoing.silence) as self._watch:
                if wire is not None and self._is_small_post:
                    outgoing = self.outgoing
                    return await wire.post(outgoing.url, outgoing.headers, outgoing.json or b"", self._read)
                return await self._exchange(session)
        finally:
            self._watch = None

    async def _exchange(self, session: aiohttp.ClientSession) -> RawAnswer:
        outgoing = self.outgoing
        data = self._blocks(outgoing.file) if outgoing.file is not None else outgoing.json
        async with session.request(
            outgoing.operation.method,
            outgoing.url,
            headers=outgoing.headers,
            data=data,
            allow_redirects=False,
        ) as response:
            return RawAnswer(
                status=response.status,
                content_type=response.content_type if "Content-Type" in response.headers else "",
                body=await self._read(response.content),
                retry_after=response.headers.get("Retry-After"),
            )

    async def _blocks(self, file: MultipartFile) -> AsyncIterator[bytes]:
        # aiohttp would report an unreadable file of ours as a broken connection; keep the true cause.
        try:
            async for block in file.stream(self._progressed):
                yield block
        except OSError as error:
            self.own_fault = error
            raise

    @property
    def _is_small_post(self) -> bool:
        outgoing = self.outgoing
        # Other methods a session sends again by itself where a pooled connection turns out to be closed.
        return (
            outgoing.operation.method == "POST"
            and outgoing.json is not None
            and len(outgoing.json) <= MAX_BODY_BYTES
        )

    async def _read(self, content: aiohttp.StreamReader) -> bytes:
        blocks: list[bytes] = []
        length = 0
        while block := await content.readany():
            length += len(block)
            if length > MAX_ANSWER_BYTES:
                raise EngineBadAnswer(f"Its answer is over {MAX_ANSWER_BYTES} bytes.")
            blocks.append(block)
            if content.at_eof():
                break  # came whole, as nearly all do: there is no silence left to watch for
            self._progressed()
        return blocks[0] if len(blocks) == 1 else b"".join(blocks)

    def _progressed(self) -> None:
        if self._watch is not None and not self._watch.expired():
            self._watch.reschedule(asyncio.get_running_loop().time() + self.outgoing.silence)


def _looked_at(task: asyncio.Task[None]) -> None:
    """Nobody may be left who waits for it; its failure is not to be reported as lost."""
    if not task.cancelled():
        task.exception()


def _given(query: m.Request) -> dict[str, Any]:
    """The members of a query that differ from their defaults."""
    built: dict[str, Any] = msgspec.to_builtins(query)
    return built


@lru_cache(maxsize=64)
def _whole(url: str) -> URL:
    return URL(url, encoded=True)


def _segment(name: str, value: str) -> str:
    if value in (".", ".."):
        # Somebody on the way would take it for a step in the path, and a deletion would reach further.
        raise Refused("invalid_parameter", f"{value!r} is no {name}.", members={"parameter": name})
    return quote(value, safe="")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _reason(error: Exception) -> str:
    """Why there is no connection, in a few words and without addresses that may hold credentials."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "its host name does not resolve"
    if isinstance(error, aiohttp.ClientSSLError):
        return "TLS failed"
    number = getattr(error, "errno", None)
    return os.strerror(number).lower() if isinstance(number, int) else "the connection broke"
