"""The adapter that mounts handlers on aiohttp: it only routes, calls the steps of a request, and encodes.

    request -> key, or origin -> route -> what the operation declares -> rate, key in use -> handler -> JSON
                     `------------------- any EngineError ---------------------> problem document

Engine and simulator mount the same table, so that neither can have a route or a field of its own, or lack
one. The tests check the responses against the committed document. Calls within the same process take the same
path from the parsing on (`direct.py`).
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, partial
from http import HTTPStatus
from time import perf_counter
from typing import Any, Protocol

import msgspec
from aiohttp import hdrs, web
from aiohttp.typedefs import Handler as AiohttpHandler
from multidict import MultiMapping

from kb_contracts.access.reach import EVERYTHING, MAX_ACCESS_BYTES, REACH, Access, Reach
from kb_contracts.api.content import FileContent
from kb_contracts.api.errors import PROBLEM_JSON, EngineError
from kb_contracts.api.operations import OPERATIONS, AnyOperation
from kb_contracts.api.ragler import LIMITS
from kb_contracts.semantics.requests import KeysInUse, RateWindows
from kb_http import documents
from kb_http.connections import RETRY_SECONDS, Admission
from kb_http.downloads import file_response
from kb_http.requests import (
    JSON_BODY_BYTES,
    AccessOf,
    Incoming,
    Sent,
    SentFile,
    access_by_token,
    caller_of,
    check_framing,
    check_origin,
    check_unrepeated,
    json_body,
    read_request,
    token_of,
    unauthorized,
)

logger = logging.getLogger(__name__)

REQUEST_LINE_BYTES = 64 * 1024
"""Maximum length of the request line, in bytes: two source paths of 1,000 characters are up to 24,000 bytes
in a URL.
"""
HEADER_BYTES = MAX_ACCESS_BYTES + 1024
"""Maximum length of one header, in bytes: the one that narrows an access may name many tags."""
_ACCESS = web.RequestKey("access", Access)
_IS_KNOWN = web.RequestKey("is_known", bool)
_ALSO = {"/healthz": ("/health",)}
"""Common aliases of probe paths; they are answered too, but are not part of the contract."""
_PROBES = frozenset(
    path for each in OPERATIONS if each.public for path in (each.path, *_ALSO.get(each.path, ()))
)
"""The paths of operations that need no key."""
_OPEN = _PROBES | documents.OPEN
_OPERATION_IDS: dict[tuple[str, str], str] = {(each.method, each.path): each.id for each in OPERATIONS}
_encode = msgspec.json.Encoder().encode


Handler = Callable[[Incoming], Awaitable[msgspec.Struct]]


@dataclass(frozen=True, slots=True)
class Audited:
    """The outcome of a request, for an audit log: `ok`, the code of an error, or `cancelled`.

    `action` is the operation's id, `who` the name of the caller, `key` the name of the key by which a server
    made the request for that caller; `answer` is None if there was no response.
    """

    action: str
    outcome: str
    who: str
    headers: MultiMapping[str]
    source: web.Request | SentFile | None
    path: Mapping[str, str]
    answer: msgspec.Struct | None = None
    key: str = ""


Audit = Callable[[Audited], None]


class _Duration(Protocol):
    def observe(self, amount: float, /) -> None: ...


class Durations(Protocol):
    """A histogram of seconds with the labels operation and status, as of prometheus-client."""

    def labels(self, operation: str, status: str, /) -> _Duration:
        """Return the durations with these labels."""


Answering = Callable[[Sent], Awaitable[web.Response]]
Traced = Callable[[AnyOperation, Answering, Sent], Awaitable[web.Response]]
"""Answers a request of an operation within a span."""
_Proceed = Callable[[Sent], Awaitable[msgspec.Struct]]
_Step = Callable[..., Awaitable[Any]]

ANSWERING: web.AppKey[Mapping[str, Answering]] = web.AppKey("ANSWERING")
"""The coroutine functions that answer the operations of an application, by operation id."""


def handlers_of(*sources: object) -> Mapping[str, Handler]:
    """Return the handlers by operation id: attributes of `sources` named like the ids in snake case.

    An operation without a handler is left out; `build_application` refuses that.
    """
    handlers: dict[str, Handler] = {}
    for operation in OPERATIONS:
        name = re.sub("[A-Z]", lambda upper: f"_{upper[0].lower()}", operation.id)
        for source in sources:
            if hasattr(source, name):
                handlers[operation.id] = getattr(source, name)
    return handlers


def build_application(
    handlers: Mapping[str, Handler],
    *,
    api_key: str = "",
    host: str | None = None,
    operations: tuple[AnyOperation, ...] = OPERATIONS,
    keys: KeysInUse | None = None,
    rates: RateWindows | None = None,
    access_of: AccessOf | None = None,
    audit: Audit | None = None,
    published: Reach | None = None,
    durations: Durations | None = None,
    traced: Traced | None = None,
) -> web.Application:
    """Return an application that serves `operations`, each by the handler with its id.

    The holder of the `api_key` may do everything, and the holder of another token what `access_of` returns
    for it; without either, every caller may do everything. `host` is the address that an engine listens on;
    it is needed to refuse foreign web pages if callers need no token. With `keys`, no two requests of one
    idempotency key run at once. With `rates`, calls are counted. `published` is the access scope of the role
    `service`, or None if it is unlimited. `audit` is called for each request that needs a key, even if it has
    no key. `durations` gets the time of each request, by operation and status. `traced` makes the span
    of each request that needs a key. The simulator passes only
    `published` and implements the rest itself, for each of its namespaces.
    Raises LookupError: an operation has no handler, or a handler no operation.
    """
    wanted = {operation.id for operation in operations}
    if wanted != handlers.keys():
        missing = ", ".join(sorted(wanted - handlers.keys())) or "none"
        surplus = ", ".join(sorted(handlers.keys() - wanted)) or "none"
        raise LookupError(
            f"operations without a handler: {missing}; handlers without an operation: {surplus}"
        )
    middlewares = [_error_middleware(api_key, host, access_of, audit)]
    if durations is not None:
        middlewares.insert(0, _timed(durations))
    app = web.Application(middlewares=middlewares, client_max_size=JSON_BODY_BYTES)
    answering = {
        each.id: _answering(each, handlers[each.id], keys, rates, audit, published, traced)
        for each in operations
    }
    for operation in operations:
        handler = _adapt(operation, answering[operation.id])
        for path in (operation.path, *_ALSO.get(operation.path, ())):
            app.router.add_route(operation.method, path, handler)
    app[ANSWERING] = answering
    return app


def access_of_request(request: web.Request) -> Access:
    """Return the access of the holder of a request's token, for a route beside the operations."""
    access: Access = request.get(_ACCESS, EVERYTHING)
    return access


def _adapt(operation: AnyOperation, answer: Answering) -> AiohttpHandler:
    async def serve(request: web.Request) -> web.StreamResponse:
        return await answer(
            Sent(
                path=request.match_info,
                query=request.query.items(),
                headers=request.headers,
                authorization=request.headers.get(hdrs.AUTHORIZATION, ""),
                read_body=partial(json_body, operation, request),
                source=request,
                access=request.get(_ACCESS, EVERYTHING),
                is_known=request.get(_IS_KNOWN, True),
            )
        )

    return serve


def _answering(
    operation: AnyOperation,
    handler: Handler,
    keys: KeysInUse | None,
    rates: RateWindows | None,
    audit: Audit | None,
    published: Reach | None,
    traced: Traced | None,
) -> Answering:
    """Return the steps of a request before its handler, composed in the order in which it meets them.

    A step calls `proceed`, the rest of the steps; of several errors the one of the earliest step is reported.
    """
    steps: list[_Step] = [partial(_encoded, operation)]
    if not operation.public:
        if traced is not None:
            steps.insert(0, partial(traced, operation))
        if audit is not None:
            steps.append(partial(_audited, operation, audit))
    steps.append(partial(_read, operation, published))
    if rates is not None and operation.id in LIMITS:
        steps.append(partial(_counted, rates))
    if keys is not None and operation.excludes_retries:
        steps.append(partial(_excluding_retries, keys))
    steps.append(_within_scope)
    answer: _Step = handler
    for step in reversed(steps):
        answer = partial(step, answer)
    return answer


async def _encoded(operation: AnyOperation, proceed: _Proceed, sent: Sent) -> web.Response:
    answer = await proceed(sent)
    if isinstance(answer, FileContent):
        return await file_response(answer)
    is_accepted = operation.accepted is not None and isinstance(answer, operation.accepted)
    version = getattr(answer, "version", None)
    return web.Response(
        body=_encode(answer),
        status=HTTPStatus.ACCEPTED if is_accepted else operation.status,
        content_type="application/json",
        headers={"ETag": f'"{version}"'} if isinstance(version, int) else None,
    )


async def _audited(operation: AnyOperation, audit: Audit, proceed: _Proceed, sent: Sent) -> msgspec.Struct:
    held, outcome, answer = sent.access, "internal", None
    try:
        answer = await proceed(sent)
        outcome = "ok"
    except EngineError as error:
        outcome = error.code
        raise
    except asyncio.CancelledError:
        outcome = "cancelled"
        raise
    finally:
        who, key = caller_of(held, sent.access, is_known=sent.is_known)
        audit(Audited(operation.id, outcome, who, sent.headers, sent.source, sent.path, answer, key))
    return answer


async def _read(
    operation: AnyOperation, published: Reach | None, proceed: Handler, sent: Sent
) -> msgspec.Struct:
    return await proceed(await read_request(operation, published, sent))


async def _counted(rates: RateWindows, proceed: Handler, incoming: Incoming) -> msgspec.Struct:
    rates.count(incoming.operation.id, incoming.rated_user, incoming.credential)
    return await proceed(incoming)


async def _excluding_retries(keys: KeysInUse, proceed: Handler, incoming: Incoming) -> msgspec.Struct:
    with keys.hold(incoming.credential, incoming.operation.id, incoming.idempotency_key):
        return await proceed(incoming)


async def _within_scope(proceed: Handler, incoming: Incoming) -> msgspec.Struct:
    before = REACH.set(incoming.access.reach)
    try:
        return await proceed(incoming)
    finally:
        REACH.reset(before)  # the next request of the connection has the same context


def _error_middleware(api_key: str, host: str | None, access_of: AccessOf | None, audit: Audit | None) -> Any:
    """Return the middleware that checks key or origin, and converts every failure to a problem document."""
    access = access_by_token(api_key, access_of)

    def admit(request: web.Request) -> None:
        check_framing(request)
        if request.path not in _OPEN:
            check_unrepeated(request.headers)
            found = access(token_of(request.headers))
            if found is None:
                raise unauthorized()
            request[_ACCESS] = found
            if audit is not None:
                request[_IS_KNOWN] = bool(found.name) or access("") is None
        if host is not None and access("") is not None:
            check_origin(request.headers, host)

    @web.middleware
    async def answer_errors(request: web.Request, handler: AiohttpHandler) -> web.StreamResponse:
        try:
            try:
                admit(request)
            except EngineError as error:
                if audit is not None:
                    resource = request.match_info.route.resource
                    action = f"{request.method} {'' if resource is None else resource.canonical}"
                    audit(Audited(action, error.code, "", request.headers, request, request.match_info))
                raise
            return await handler(request)
        except web.HTTPNotFound:
            near = get_close_matches(request.path, sorted({each.path for each in OPERATIONS}), n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            return problem_response(
                EngineError("route_not_found", f"There is no {request.path[:200]}.{hint}")
            )
        except web.HTTPMethodNotAllowed as error:
            allowed = ", ".join(sorted(error.allowed_methods))
            response = problem_response(EngineError("method_not_allowed", f"This path takes {allowed}."))
            response.headers["Allow"] = allowed
            return response
        except (web.HTTPException, asyncio.CancelledError, ConnectionError):
            raise
        except Exception as error:  # noqa: BLE001 - every exception of a handler becomes a response
            return failure_response(error, request.method, request.path)

    return answer_errors


def _timed(durations: Durations) -> Any:
    """Return the middleware that observes the time of each request."""
    labels = cache(durations.labels)

    @web.middleware
    async def timed(request: web.Request, handler: AiohttpHandler) -> web.StreamResponse:
        began, status = perf_counter(), "cancelled"
        try:
            response = await handler(request)
            status = str(response.status)
            return response
        except web.HTTPException as error:
            status = str(error.status)
            raise
        finally:
            resource = request.match_info.route.resource
            path = "" if resource is None else resource.canonical
            operation = _OPERATION_IDS.get((request.method, path), "other")
            labels(operation, status).observe(perf_counter() - began)

    return timed


def failure_response(error: Exception, method: str, path: str) -> web.Response:
    """Return the problem document for a handler's exception; only the log has details of internal errors."""
    if not isinstance(error, EngineError):
        logger.error("unhandled failure", exc_info=error, extra={"path": path, "method": method})
        error = EngineError("internal", "The engine failed; its log says why. Try again.")
    return problem_response(error)


def problem_response(error: EngineError) -> web.Response:
    response = web.Response(
        body=_encode(error.problem()), status=error.kind.status, content_type=PROBLEM_JSON
    )
    if error.kind.code == "unauthorized":
        response.headers["WWW-Authenticate"] = "Bearer"
    if (wait := error.members.get("retry_after")) is not None:
        response.headers["Retry-After"] = str(max(1, math.ceil(wait)))
    return response


def engine_admission() -> Admission:
    """Return the admission of an engine, whose refusals ask the caller to send the request again."""

    def refusal(detail: str) -> Callable[[web.Request], web.Response]:
        return lambda _request: problem_response(EngineError("not_ready", detail, retry_after=RETRY_SECONDS))

    return Admission(
        refusal("The maximum number of connections is in use. Try again."),
        refusal("The engine is stopping, and the request was incomplete: it was discarded. Send it again."),
        is_probe=is_probe,
    )


def is_probe(request: web.Request) -> bool:
    """True if the request is a probe, which is answered even when connections are short."""
    return request.path in _PROBES
