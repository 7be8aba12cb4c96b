"""The adapter that mounts handlers on aiohttp: it routes, parses and encodes, and decides nothing else.

    request -> key -> route -> path, query, headers, body -> handler -> response as JSON
                 `-------------- any EngineError ----------------> problem document

Engine and simulator mount the same table, so that neither can serve a route, take a field or leave one
out on its own. The tests check the responses against the committed document.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from http import HTTPStatus
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler as AiohttpHandler

from kb_contracts.api.errors import PROBLEM_JSON, EngineError
from kb_contracts.api.operations import IDEMPOTENCY_KEY, IF_MATCH, OPERATIONS, AnyOperation, ApiSurface
from kb_contracts.api.ragler import LIMITS, MAX_ROLE_CHARS, MAX_USER_CHARS, USER_ID, USER_ROLE
from kb_contracts.http.admission import RETRY_SECONDS
from kb_contracts.http.cross_origin import check_unrepeated
from kb_contracts.http.parsing import convert_path, convert_query, decode_body
from kb_contracts.semantics.idempotency import KeysInUse
from kb_contracts.semantics.rate_windows import RateWindows

logger = logging.getLogger(__name__)

JSON_BODY_BYTES = 8 * 1024 * 1024
_KEY_CHARS = 255
_ALSO = {"/healthz": ("/health",)}
"""What many probes call a path; answered beside it, and promised by nobody."""
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Incoming:
    """A request that fits its operation.

    `credential` is a digest that tells callers apart, never the key; `if_match` the expected version;
    `body` is None where the operation has none and where the body is multipart, to be read from `http`.
    `user` and `role` are what the caller says of itself, where the operation looks at it.
    """

    operation: AnyOperation
    path: Mapping[str, Any]
    query: Any
    body: Any
    if_match: int | None
    idempotency_key: str | None
    credential: str
    http: web.Request
    user: str | None = None
    role: str | None = None


Handler = Callable[[Incoming], Awaitable[msgspec.Struct]]


def handlers_of(*sources: object, operations: tuple[AnyOperation, ...] = OPERATIONS) -> Mapping[str, Handler]:
    """The handlers by operation id: attributes of `sources` that have the ids in snake case for their names.

    An operation without a handler is left out; `build_application` refuses that.
    """
    handlers: dict[str, Handler] = {}
    for operation in operations:
        name = re.sub("[A-Z]", lambda upper: f"_{upper[0].lower()}", operation.id)
        for source in sources:
            if hasattr(source, name):
                handlers[operation.id] = getattr(source, name)
    return handlers


def build_application(
    handlers: Mapping[str, Handler],
    *,
    api_key: str = "",
    operations: tuple[AnyOperation, ...] = OPERATIONS,
    keys: KeysInUse | None = None,
    rates: RateWindows | None = None,
) -> web.Application:
    """An application that serves `operations`, each by the handler with its id.

    With `keys` no two requests of one idempotency key run at once; with `rates` calls are counted. The
    simulator passes neither and does both itself, for each of its namespaces.

    Raises:
        LookupError: an operation has no handler, or a handler no operation.
    """
    wanted = {operation.id for operation in operations}
    if wanted != handlers.keys():
        missing = ", ".join(sorted(wanted - handlers.keys())) or "none"
        surplus = ", ".join(sorted(handlers.keys() - wanted)) or "none"
        raise LookupError(
            f"operations without a handler: {missing}; handlers without an operation: {surplus}"
        )
    app = web.Application(middlewares=[_rim(api_key, operations)], client_max_size=JSON_BODY_BYTES)
    for operation in operations:
        handler = _adapt(operation, _guarded(operation, handlers[operation.id], keys, rates))
        for path in (operation.path, *_ALSO.get(operation.path, ())):
            app.router.add_route(operation.method, path, handler)
    return app


def open_paths(operations: tuple[AnyOperation, ...] = OPERATIONS) -> frozenset[str]:
    """The paths that are answered without a key."""
    paths = [operation.path for operation in operations if operation.public]
    return frozenset(paths).union(*(_ALSO.get(path, ()) for path in paths))


_PROBES = open_paths()


def _guarded(
    operation: AnyOperation, handler: Handler, keys: KeysInUse | None, rates: RateWindows | None
) -> Handler:
    """The handler behind the idempotency keys in use and the limits of RAGler's operations."""
    if rates is not None and operation.id in LIMITS:

        async def limited(incoming: Incoming) -> msgspec.Struct:
            rates.count(operation.id, incoming.user, incoming.credential)
            return await handler(incoming)

        return limited
    if keys is not None and operation.excludes_retries:

        async def exclusive(incoming: Incoming) -> msgspec.Struct:
            with keys.hold(incoming.credential, operation.id, incoming.idempotency_key):
                return await handler(incoming)

        return exclusive
    return handler


def _adapt(operation: AnyOperation, handler: Handler) -> AiohttpHandler:
    has_role = operation.surface is ApiSurface.RAGLER

    async def serve(request: web.Request) -> web.StreamResponse:
        # In the order in which a misfit is reported: URL, headers about the caller, body, other headers.
        pairs = list(request.query.items())
        incoming = Incoming(
            operation=operation,
            path=convert_path(request.match_info, types) if (types := operation.path_parameters) else {},
            query=convert_query(pairs, operation.query) if pairs else operation.query(),
            user=_caller_header(request, USER_ID, MAX_USER_CHARS) if operation.names_user else None,
            role=_caller_header(request, USER_ROLE, MAX_ROLE_CHARS) if has_role else None,
            body=await _body(operation, request),
            if_match=_if_match(request) if operation.if_match else None,
            idempotency_key=_idempotency_key(request) if operation.mutates else None,
            credential=_credential(request),
            http=request,
        )
        answer = await handler(incoming)
        is_accepted = operation.accepted is not None and isinstance(answer, operation.accepted)
        version = getattr(answer, "version", None)
        return web.Response(
            body=_encode(answer),
            status=HTTPStatus.ACCEPTED if is_accepted else operation.status,
            content_type="application/json",
            headers={"ETag": f'"{version}"'} if isinstance(version, int) else None,
        )

    return serve


async def _body(operation: AnyOperation, request: web.Request) -> Any:
    if operation.body is None:
        return None
    if request.content_type == "application/json":
        try:
            raw = await request.read()
        except web.HTTPRequestEntityTooLarge as error:
            raise EngineError(
                "payload_too_large", f"A JSON body has at most {JSON_BODY_BYTES} bytes."
            ) from error
        return decode_body(raw, operation.body)
    if operation.multipart is not None and request.content_type == "multipart/form-data":
        return None
    taken = "application/json" + (" or multipart/form-data" if operation.multipart else "")
    raise EngineError("unsupported_media_type", f"Send Content-Type: {taken}.")


def _if_match(request: web.Request) -> int | None:
    raw = request.headers.get(IF_MATCH)
    if raw is None:
        return None
    digits = raw.strip().strip('"')
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19 and int(digits) > 0):
        raise EngineError("invalid_parameter", f"{IF_MATCH} takes a document's version.", parameter=IF_MATCH)
    return int(digits)


def _idempotency_key(request: web.Request) -> str | None:
    key = request.headers.get(IDEMPOTENCY_KEY)
    if key is None:
        return None
    if not 1 <= len(key) <= _KEY_CHARS or not key.isascii() or not key.isprintable():
        raise EngineError(
            "invalid_parameter",
            f"{IDEMPOTENCY_KEY} takes 1 to {_KEY_CHARS} printable ASCII characters.",
            parameter=IDEMPOTENCY_KEY,
        )
    return key


def _caller_header(request: web.Request, name: str, max_chars: int) -> str | None:
    """What a caller's header names, None where it is absent. Sent twice it is refused: neither may win."""
    values = request.headers.getall(name, [])
    if not values:
        return None
    value = values[0]
    if len(values) > 1 or not 1 <= len(value) <= max_chars or not value.isascii() or not value.isprintable():
        raise EngineError(
            "invalid_parameter",
            f"{name} takes 1 to {max_chars} printable ASCII characters, once.",
            parameter=name,
        )
    return value


def _credential(request: web.Request) -> str:
    presented = request.headers.get("Authorization", "")
    return hashlib.sha256(presented.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _rim(api_key: str, operations: tuple[AnyOperation, ...]) -> Any:
    """The middleware that asks for the key and makes every failure a problem document."""
    expected = api_key.encode()
    unguarded = open_paths(operations)

    @web.middleware
    async def rim(request: web.Request, handler: AiohttpHandler) -> web.StreamResponse:
        try:
            if request.path not in unguarded:
                check_unrepeated(request.headers)
                if api_key:
                    _check_key(request, expected)
            return await handler(request)
        except EngineError as error:
            return problem_response(error)
        except web.HTTPNotFound:
            return problem_response(EngineError("route_not_found", _near(request)))
        except web.HTTPMethodNotAllowed as error:
            allowed = ", ".join(sorted(error.allowed_methods))
            response = problem_response(EngineError("method_not_allowed", f"This path takes {allowed}."))
            response.headers["Allow"] = allowed
            return response
        except (web.HTTPException, asyncio.CancelledError, ConnectionError):
            raise
        except Exception:  # a fault of ours becomes a 500 without its words, and a log entry with them
            logger.exception("unhandled failure", extra={"path": request.path, "method": request.method})
            return problem_response(
                EngineError("internal", "The engine failed; its log says why. Try again.")
            )

    return rim


def _check_key(request: web.Request, expected: bytes) -> None:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    presented = token.strip().encode("utf-8", "surrogateescape")
    if scheme.lower() != "bearer" or not hmac.compare_digest(presented, expected):
        raise EngineError("unauthorized", "Send Authorization: Bearer with the engine's KB_API_KEY.")


def problem_response(error: EngineError) -> web.Response:
    """The HTTP answer for an error."""
    response = web.Response(
        body=_encode(error.problem()), status=error.kind.status, content_type=PROBLEM_JSON
    )
    if error.kind.code == "unauthorized":
        response.headers["WWW-Authenticate"] = "Bearer"
    if (wait := error.members.get("retry_after")) is not None:
        response.headers["Retry-After"] = str(max(1, math.ceil(wait)))
    return response


def no_room(_request: web.Request) -> web.Response:
    """What is answered while as many connections are in use as may be."""
    detail = "As many connections are in use as this engine keeps open. Try again."
    return problem_response(EngineError("not_ready", detail, retry_after=RETRY_SECONDS))


def is_probe(request: web.Request) -> bool:
    """Whether the request is answered without a key."""
    return request.path in _PROBES


def _near(request: web.Request) -> str:
    known = sorted({operation.path for operation in OPERATIONS})
    near = get_close_matches(request.path, known, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return f"There is no {request.path[:200]}.{hint}"
