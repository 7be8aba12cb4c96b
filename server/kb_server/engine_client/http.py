"""The engine over HTTP: every operation of the contract's table, on the transport's connections.

call -> build_request -> version, once -> HttpTransport.send (circuit, attempts, exchange) -> decode
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import msgspec

from kb_contracts.api import models as m
from kb_contracts.api.operations import (
    CREATE_JOB,
    GET_JOB,
    GET_READINESS,
    GET_STATUS,
    IDEMPOTENCY_KEY,
    IF_MATCH,
    AnyOperation,
    JobQuery,
    Operation,
)
from kb_contracts.api.ragler import USER_ID
from kb_server.clock import SYSTEM_CLOCK, Clock
from kb_server.engine_client.body import MultipartFile
from kb_server.engine_client.errors import EngineFault
from kb_server.engine_client.port import USER, FileSource
from kb_server.engine_client.request import EngineRequest, build_request, common_headers
from kb_server.engine_client.responses import decode, decode_as
from kb_server.engine_client.retries import RetryPolicy
from kb_server.engine_client.transport import HttpTransport
from kb_server.engine_client.version import check_version

B = TypeVar("B")
R = TypeVar("R", bound=msgspec.Struct)

SLICE_SECONDS = 20.0

_POLL_SECONDS = 0.25
_WAITING_SHARE = 2 / 3
"""Of the silence that is borne, how much a response may be waited for."""
_HEALTH_SECONDS = 3.0


class _Version(msgspec.Struct):
    version: str


_decode_version = partial(decode_as, _Version, GET_STATUS)
"""Reads of a status the version alone: an engine that is too old may tell the rest in another form."""


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

    @property
    def longest_wait(self) -> float:
        """As `Engine` has it."""
        return self._silence * _WAITING_SHARE

    async def close(self) -> None:
        """Close the pool."""
        if self._version_check is not None:
            self._version_check.cancel()
        await self._http.close()

    async def call(
        self,
        operation: Operation[B, R],
        *,
        path: Mapping[str, object] | None = None,
        query: m.Request | None = None,
        body: B | None = None,
        if_match: int | None = None,
        idempotency_key: str | None = None,
    ) -> R:
        """As `Engine` has it."""
        held_back = query.wait if isinstance(query, JobQuery) else 0.0
        request = self._request(
            operation,
            key=idempotency_key,
            if_match=if_match,
            silence=self._silence + held_back,
            path=path,
            query=query,
            body=body,
        )
        if not self._version_known and operation is not GET_STATUS:
            await self._check_version()
        return await self._http.send(request, partial(decode, operation))

    async def send_file(
        self, file: FileSource, fields: m.FileFields, *, idempotency_key: str | None = None
    ) -> m.Job:
        """`POST /jobs` as multipart, streamed."""
        request = self._request(CREATE_JOB, key=idempotency_key, file=MultipartFile(file, fields))
        if not self._version_known:
            await self._check_version()
        return await self._http.send(request, partial(decode, CREATE_JOB))

    async def wait_for_job(self, job_id: str, seconds: float) -> m.Job:
        """`GET /jobs/{id}`, in slices until the job has ended or the seconds are over."""
        ends = self._clock.monotonic() + seconds
        while True:
            began = self._clock.monotonic()
            wait = min(max(0.0, ends - began), SLICE_SECONDS)
            job = await self.call(GET_JOB, path={"job_id": job_id}, query=JobQuery(wait=round(wait, 3)))
            now = self._clock.monotonic()
            if job.status in m.FINAL_STATUSES or now >= ends:
                return job
            if now - began < wait / 2:
                # An engine that does not wait must not be called in a tight loop.
                await self._clock.sleep(min(_POLL_SECONDS, ends - now))

    async def unready(self) -> EngineFault | None:
        """`GET /readyz` and, since that is open to all, `GET /status` with the key; three seconds for each.

        The circuit has no say in it, but learns from it.
        """
        silence = min(self._silence, _HEALTH_SECONDS)
        ready, status = (self._request(each, silence=silence) for each in (GET_READINESS, GET_STATUS))
        try:
            await self._http.send_once(ready, partial(decode, GET_READINESS))
            check_version((await self._http.send_once(status, _decode_version)).version)
        except EngineFault as fault:
            return fault
        return None

    def _request(
        self,
        operation: AnyOperation,
        *,
        key: str | None = None,
        if_match: int | None = None,
        silence: float | None = None,
        **content: Any,
    ) -> EngineRequest:
        headers = common_headers(self._key)
        if operation.mutates:
            headers[IDEMPOTENCY_KEY] = key or str(uuid4())
        if operation.on_behalf and (user := USER.get()):
            headers[USER_ID] = user
        if if_match is not None:
            headers[IF_MATCH] = f'"{if_match}"'
        silence = self._silence if silence is None else silence
        return build_request(self._http.base, operation, headers, silence=silence, **content)

    async def _check_version(self) -> None:
        """Ask for the engine's version on the first call, and on the first after it was out of reach.

        Calls that begin together share one question and its outcome: behind an engine that keeps silent
        they would otherwise wait one after the other.
        """
        if self._version_check is None or self._version_check.done():
            self._version_check = asyncio.create_task(self._learn_version(), name="engine-version")
            self._version_check.add_done_callback(_mark_retrieved)
        await asyncio.shield(self._version_check)

    async def _learn_version(self) -> None:
        status = await self._http.send(self._request(GET_STATUS), _decode_version)
        check_version(status.version)
        self._version_known = True

    def _forget_version(self) -> None:
        self._version_known = False


def _mark_retrieved(task: asyncio.Task[None]) -> None:
    """Nobody may be left who waits for it; its failure is not to be reported as lost."""
    if not task.cancelled():
        task.exception()
