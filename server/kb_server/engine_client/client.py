"""The engine over HTTP, or in this process: every operation of the contract's table, by the transport.

    call -> build_request -> version, once -> HttpTransport.send (breaker, attempts, exchange) -> decode

The steps from a call to a request and from a response to a model or a fault are pure, so that every
misbehaviour of an engine can be tested in a table.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Any, TypeVar, Unpack
from uuid import uuid4

import msgspec
from yarl import URL

from kb_contracts.access.reach import ACCESS, Access, access_header
from kb_contracts.api import models as m
from kb_contracts.api import operations as ops
from kb_contracts.api.content import OCTETS, FileContent
from kb_contracts.api.ragler import USER_ID
from kb_server.access.grants import GRANT, Grant
from kb_server.engine_client import errors, transport
from kb_server.engine_client.http1 import BodyStream, RawResponse
from kb_server.engine_client.multipart import MultipartFile
from kb_server.engine_client.port import REQUEST_ID, TRACE, USER, Content, FileSource, check_version
from kb_server.engine_client.problems import MAX_DETAIL, fault_of, name_of
from kb_server.waiting import SYSTEM_CLOCK, Clock, SharedWork

B = TypeVar("B")
R = TypeVar("R", bound=msgspec.Struct)
T = TypeVar("T")

SLICE_SECONDS = 20.0

_POLL_SECONDS = 0.25
_WAITING_SHARE = 2 / 3
"""The share of the silence time-out that the engine may hold back a response."""

_TRUNCATED = "truncated"
"""Part of msgspec's message for truncated or empty JSON."""
ENFORCES_REACH = "access"
"""The feature announced by an engine that enforces `X-KB-Access`."""


class HttpEngine:
    """An `Engine` over HTTP, or over `exchange`.

    `url` is the engine's base, or those of several engines on one base, separated by commas; the version and
    the features of one of them count for all. `api_key` is their bearer key (empty: no key is sent) or a
    function that returns it, called again after the engine was unreachable. `read_timeout` is the time
    without a byte after which a call fails, in seconds. `tls` and `exchange` are passed to `HttpTransport`.
    The first call connects. Additions of callers with quotas are counted here, for all tools: calls may raise
    ToolError too.
    """

    def __init__(
        self,
        url: str,
        api_key: Key = "",
        *,
        read_timeout: float = 30.0,
        policy: transport.RetryPolicy | None = None,
        clock: Clock = SYSTEM_CLOCK,
        jitter: Callable[[], float] = random.random,
        exchange: transport.Exchange | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._http = transport.HttpTransport(
            url,
            policy=policy,
            clock=clock,
            jitter=jitter,
            lost=self._forget_version,
            exchange=exchange,
            tls=tls,
        )
        self._find_key = key_finder(api_key)
        self._key = ""
        self._read_timeout = read_timeout
        self._clock = clock
        self._version_known = False
        self._enforces_reach = False
        self._version_check = SharedWork(self._learn_version)

    @property
    def url(self) -> str:
        """The engine's base URLs, without credentials."""
        return self._http.name

    @property
    def longest_wait(self) -> float:
        """Maximum time that a response may be held back, in seconds."""
        return longest_wait(self._read_timeout)

    async def close(self) -> None:
        """Close the pool."""
        await self._http.close()

    async def call(
        self,
        operation: ops.Operation[B, R],
        *,
        idempotency_key: str | None = None,
        **content: Unpack[Content[B]],
    ) -> R:
        """Call an operation; see `Engine.call`."""
        query, body = content.get("query"), content.get("body")
        held_back = query.wait if isinstance(query, ops.JobQuery) else 0.0
        request = self._request(
            operation, idempotency_key, read_timeout=self._read_timeout + held_back, **content
        )
        grant = GRANT.get()
        if grant.meter is None or not isinstance(body, m.NoteRequest | m.NotePatch):
            return await self._answer(operation, request)
        documents, text = (1 if isinstance(body, m.NoteRequest) else 0), body.text or ""
        size = len(text.encode(errors="replace"))
        with grant.adding(documents, size, lambda: request.has_left):
            return await self._answer(operation, request)

    async def send_file(
        self, file: FileSource, fields: m.FileFields, *, idempotency_key: str | None = None
    ) -> m.Job:
        """Send a file by `POST /jobs` as multipart; see `Engine.send_file`."""
        request = self._request(
            ops.CREATE_JOB, idempotency_key, read_timeout=self._read_timeout, file=MultipartFile(file, fields)
        )
        with GRANT.get().adding(1, file.size, lambda: request.has_left):
            return await self._answer(ops.CREATE_JOB, request)

    async def _answer(self, operation: ops.Operation[Any, R], request: transport.EngineRequest) -> R:
        await self._ensure_suitable(operation)
        return await self._http.send(request, partial(decode, operation))

    async def ensure_reach(self) -> None:
        """Check that this engine enforces the caller's access scope, if it is restricted.
        Raises EngineFault: it does not, or cannot be asked.
        """
        if GRANT.get().access.reach is None:
            return
        if not self._version_known:
            await self._version_check.outcome()
        if not self._enforces_reach:
            raise errors.EngineTooOld(
                "It does not announce that it enforces access scopes, so keys limited to collections cannot "
                "be used with it."
            )

    @asynccontextmanager
    async def original(self, document: m.Document) -> AsyncIterator[FileContent]:
        """Stream the original of a document; a failure before the first block is raised by that block."""
        request = self._request(
            ops.GET_ORIGINAL, read_timeout=self._read_timeout, path={"document_id": document.id}
        )
        await self._ensure_suitable(ops.GET_ORIGINAL)
        request.stream = stream = BodyStream(OCTETS)
        sending = asyncio.create_task(self._http.send_once(request, _expect_streamed))
        sending.add_done_callback(lambda done: stream.end(None if done.cancelled() else done.exception()))
        try:
            yield FileContent(
                filename=document.filename or document.title,
                size=document.size_bytes,
                sha256=document.sha256,
                blocks=stream.blocks(),
            )
        finally:
            sending.cancel()
            await asyncio.wait([sending])

    async def wait_for_job(self, job_id: str, seconds: float) -> m.Job:
        """Wait for a job by `GET /jobs/{id}`, in slices; see `Engine.wait_for_job`."""
        ends = self._clock.monotonic() + seconds
        while True:
            began = self._clock.monotonic()
            wait = min(max(0.0, ends - began), SLICE_SECONDS)
            job = await self.call(
                ops.GET_JOB, path={"job_id": job_id}, query=ops.JobQuery(wait=round(wait, 3))
            )
            now = self._clock.monotonic()
            if job.status in m.FINAL_STATUSES or now >= ends:
                return job
            if now - began < wait / 2:
                # Do not call an engine that does not wait in a tight loop.
                await self._clock.sleep(min(_POLL_SECONDS, ends - now))

    async def unready(self) -> errors.EngineFault | None:
        """Call `GET /readyz` and, because that needs no key, `GET /status`; return the fault, if any.

        Each may be silent for three seconds. The circuit breaker does not block these calls, but counts their
        results.
        """
        read_timeout = min(self._read_timeout, transport.HEALTH_SECONDS)
        ready, status = (
            self._request(each, read_timeout=read_timeout) for each in (ops.GET_READINESS, ops.GET_STATUS)
        )
        try:
            await self._http.send_once(ready, partial(decode, ops.GET_READINESS))
            check_version((await self._http.send_once(status, _version_in)).version)
        except errors.EngineFault as fault:
            return fault
        return None

    async def _ensure_suitable(self, operation: ops.AnyOperation) -> None:
        """Check version and features of the engine before the first call; only `GET_STATUS` is exempt."""
        if not self._version_known and operation is not ops.GET_STATUS:
            await self._version_check.outcome()
        await self.ensure_reach()

    def _request(
        self,
        operation: ops.AnyOperation,
        idempotency_key: str | None = None,
        if_match: int | None = None,
        **content: Any,
    ) -> transport.EngineRequest:
        headers = narrowing(GRANT.get())
        if operation.mutates:
            headers[ops.IDEMPOTENCY_KEY] = idempotency_key or str(uuid4())
        if operation.on_behalf and (user := USER.get()):
            headers[USER_ID] = user
        if if_match is not None:
            headers[ops.IF_MATCH] = f'"{if_match}"'
        return build_request(self._http.base, operation, self._current_key(), headers, **content)

    def _current_key(self) -> str:
        if not self._version_known:  # another engine may be there, with another key
            self._key = self._find_key()
        return self._key

    async def _learn_version(self) -> None:
        """Fetch the version on the first call, and on the first after the engine was unreachable.

        Concurrent calls share the request: if the engine is silent, they would otherwise wait one after the
        other.
        """
        request = build_request(
            self._http.base, ops.GET_STATUS, self._current_key(), {}, read_timeout=self._read_timeout
        )
        found = await self._http.send(request, _version_in)
        check_version(found.version)
        self._enforces_reach = ENFORCES_REACH in found.features
        self._version_known = True

    def _forget_version(self) -> None:
        self._version_known = False


Key = str | Callable[[], str]


def key_finder(key: Key) -> Callable[[], str]:
    """Return a function that returns the key to send."""
    return (lambda: key) if isinstance(key, str) else key


def narrowing(grant: Grant) -> dict[str, str]:
    """Return the header with the access scope of a caller.

    Empty for an unrestricted caller without a name of its own. A name alone does not restrict: the engine
    uses it to keep callers apart, and logs it.
    """
    value = _narrowing(grant.access, is_one_caller=grant.is_one_caller)
    return {ACCESS: value} if value else {}


@lru_cache(maxsize=1024)
def _narrowing(access: Access, *, is_one_caller: bool) -> str:
    return access_header(access) if is_one_caller or not access.is_unlimited else ""


def longest_wait(read_timeout: float) -> float:
    """Return the maximum time that a response may be held back for this `read_timeout`; both in seconds."""
    return read_timeout * _WAITING_SHARE


def build_request(
    base: str,
    operation: ops.AnyOperation,
    key: str,
    own_headers: Mapping[str, str],
    *,
    read_timeout: float,
    path: Mapping[str, object] | None = None,
    query: m.Request | None = None,
    body: Any = None,
    file: MultipartFile | None = None,
) -> transport.EngineRequest:
    """Return a request of `operation` at `base`, with its path filled in, its query, and a body.

    It carries `key` as the bearer (empty: no key), the id and the trace of the call being served, and
    `own_headers`.
    Raises Refused: a text cannot be encoded, or would be a step in the path.
    """
    headers = dict(own_headers)
    if request_id := REQUEST_ID.get():
        headers["X-Request-ID"] = request_id
    if trace := TRACE.get():
        headers |= trace
    json = b""
    try:
        if file is not None:
            headers |= {"Content-Type": file.content_type, "Content-Length": str(file.length)}
        elif body is not None:
            json = msgspec.json.encode(body)
            headers |= {"Content-Type": "application/json", "Content-Length": str(len(json))}
        elif operation.mutates:
            headers["Content-Length"] = "0"
        params = ops.to_params(query) if query is not None else {}
        "".join(params.values()).encode()  # otherwise a URL would be written without half a surrogate pair
        texts = {name: str(value) for name, value in path.items()} if path else {}
        if texts or params:
            url = URL(base + operation.fill_path(texts), encoded=True)
            beginning = _beginning(operation.method, url.with_query(params) if params else url, key)
        else:
            beginning = _plain_beginning(operation.method, base + operation.path, key)
        lines = f"{beginning}{header_lines(headers)}\r\n".encode()
    except ops.PathStepError as error:
        raise errors.Refused(
            "invalid_parameter", str(error), members={"parameter": error.parameter}
        ) from error
    except UnicodeEncodeError as error:
        raise errors.Refused("invalid_parameter", "A text contains half a surrogate pair.") from error
    except ValueError as error:
        raise errors.Refused("invalid_parameter", f"It cannot be sent: {error}.") from error
    return transport.EngineRequest(operation, lines, read_timeout, json, file, texts, params, headers)


def _beginning(method: str, url: URL, key: str) -> str:
    """Return the common beginning of the heads of all requests of `method` to `url`."""
    headers = {"Host": url.host_port_subcomponent or ""}
    headers |= {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "kb-server"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    return f"{method} {url.raw_path_qs} HTTP/1.1\r\n{header_lines(headers)}"


@lru_cache(maxsize=64)
def _plain_beginning(method: str, url: str, key: str) -> str:
    return _beginning(method, URL(url, encoded=True), key)


def header_lines(headers: Mapping[str, str]) -> str:
    """Return `headers` as the lines of a request's head.
    Raises ValueError: one would break out of its line.
    """
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if not lines.count("\r") == lines.count("\n") == len(headers) or "\0" in lines:
        raise ValueError("a header contains a line break")
    return lines


def decode(operation: ops.Operation[Any, R], response: RawResponse) -> R:
    """Return the response as the operation's model; unknown members are ignored.
    Raises EngineFault: it is not a success, or violates the contract.
    """
    model = operation.models.get(response.status, operation.response_model)
    return read_json(operation, response, lambda body: msgspec.json.decode(body, type=model))


def _expect_streamed(response: RawResponse) -> None:
    """Check that the response is a streamed file. Raises EngineFault."""
    if response.status != HTTPStatus.OK:
        raise fault_of(ops.GET_ORIGINAL, response, now=datetime.now(UTC))
    if response.content_type != OCTETS or response.body:
        raise errors.EngineBadAnswer(
            f"It answered {name_of(ops.GET_ORIGINAL)} with something other than a file."
        )


class _Version(msgspec.Struct):
    version: str
    features: list[str] = []


def _version_in(response: RawResponse) -> _Version:
    """Return the version and features of a status response, whose other members vary between versions."""
    return read_json(ops.GET_STATUS, response, lambda body: msgspec.json.decode(body, type=_Version))


def read_json(operation: ops.AnyOperation, response: RawResponse, read: Callable[[bytes], T]) -> T:
    """Return the result of `read` for the JSON of a success; `read` raises msgspec's errors.
    Raises EngineFault: the response is not a success, is not JSON, or `read` fails.
    """
    if not 200 <= response.status < 300:
        raise fault_of(operation, response, now=datetime.now(UTC))
    if response.content_type != "application/json":
        media_type = response.content_type[:80] or "no content type"
        raise errors.EngineBadAnswer(f"It answered {name_of(operation)} with {media_type}, not with JSON.")
    try:
        return read(response.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise errors.EngineBadAnswer(
            f"Its answer to {name_of(operation)} does not fit: {str(error)[:MAX_DETAIL]}",
            broke_off=_TRUNCATED in str(error),
        ) from error
