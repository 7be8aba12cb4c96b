"""The spans of an engine: one for each request, and one for each job, linked to the request that created it.

Steps below them are made where the time is spent, with `kb_config.tracing.step`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from aiohttp import web

from kb_config import tracing
from kb_contracts.api.errors import EngineError
from kb_contracts.api.operations import AnyOperation
from kb_engine.api.auditing import REQUEST_ID
from kb_http.mount import Answering
from kb_http.requests import Sent

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

_MOST_JOBS = 10_000  # maximum number of accepted jobs whose request is remembered
_ID_CHARS = 128
_STATUS = "http.response.status_code"

_requests: OrderedDict[str, SpanContext] = OrderedDict()
"""The requests that created jobs, by job id, until the job ends in this process."""


async def traced(operation: AnyOperation, proceed: Answering, sent: Sent) -> web.Response:
    """Answer a request within a span, below the caller's."""
    assert tracing.ACTIVE is not None, "requests are traced only if tracing is on"
    headers = sent.headers
    attributes = {
        "http.request.method": operation.method,
        "http.route": operation.path,
        "kb.operation": operation.id,
        # Bytes that are not UTF-8 cannot be exported.
        "kb.correlation_id": headers.get(REQUEST_ID, "")[:_ID_CHARS].encode(errors="replace").decode(),
    }
    caller = tracing.sendable(headers.get("traceparent"), headers.get("tracestate"))
    name = f"{operation.method} {operation.path}"
    with tracing.ACTIVE.begin(name, "SERVER", attributes, caller) as span:
        try:
            response = await proceed(sent)
        except EngineError as error:
            span.set(_STATUS, status := error.kind.status)
            span.fail(error.code, is_fault=status >= 500)
            raise
        span.set(_STATUS, response.status)
        return response


def accepted(job_id: str) -> None:
    """Note that the current request has created a job."""
    if tracing.ACTIVE is not None and (span := tracing.ACTIVE.current()) is not None:
        span.set("kb.job_id", job_id)
        _requests[job_id] = span.context
        if len(_requests) > _MOST_JOBS:
            _requests.popitem(last=False)


@contextmanager
def working(job_id: str, kind: str, lane: str) -> Iterator[None]:
    """Work on a job within a span. The link is made at its end: the job may begin before `accepted`."""
    if tracing.ACTIVE is None:
        yield
        return
    attributes = {"kb.job_id": job_id, "kb.lane": lane}
    with tracing.ACTIVE.begin(f"job {kind}", "CONSUMER", attributes) as span:
        try:
            yield
        finally:
            if (request := _requests.pop(job_id, None)) is not None:
                span.link(request)


def failed(code: str) -> None:
    """Note that the current job has failed."""
    if tracing.ACTIVE is not None and (span := tracing.ACTIVE.current()) is not None:
        span.fail(code)
