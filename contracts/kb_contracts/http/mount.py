"""The adapter that mounts handlers on aiohttp: it routes, parses and encodes, and decides nothing else.

    request -> key, or origin -> route -> path, query, headers, body -> handler -> response as JSON
                     `------------------- any EngineError ----------------> problem document

Engine and simulator mount the same table, so that neither can serve a route, take a field or leave one
out on its own. The tests check the responses against the committed document.

An engine that requires no key has to keep web pages of strangers away. A browser on this machine reaches the
engine's port on behalf of any page that it shows. Such a page cannot read a response, but it can post a form
with a file, which is how a file is submitted; its Origin header gives it away. A page whose own name is made
to resolve to this machine (DNS rebinding) could read responses too; it is recognised by its Host header,
which is a domain, because a stranger owns no name without a dot. An engine that listens on more than loopback
cannot know the names that it is reached by, and checks the Origin alone. With a key set neither matters: no
page knows it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import math
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, lru_cache
from http import HTTPStatus
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

import msgspec
from aiohttp import hdrs, web
from aiohttp.typedefs import Handler as AiohttpHandler
from multidict import MultiMapping

from kb_contracts.api.content import FileContent
from kb_contracts.api.errors import PROBLEM_JSON, EngineError
from kb_contracts.api.models import NOT_BLANK
from kb_contracts.api.operations import IDEMPOTENCY_KEY, IF_MATCH, OPERATIONS, AnyOperation, ApiSurface
from kb_contracts.api.ragler import LIMITS, MAX_ROLE_CHARS, MAX_USER_CHARS, USER_ID, USER_ROLE
from kb_contracts.http import documents
from kb_contracts.http.admission import RETRY_SECONDS, Admission
from kb_contracts.http.connections import is_loopback
from kb_contracts.http.downloads import file_response
from kb_contracts.semantics.requests import KeysInUse, RateWindows

logger = logging.getLogger(__name__)

S = TypeVar("S", bound=msgspec.Struct)

JSON_BODY_BYTES = 8 * 1024 * 1024
REQUEST_LINE_BYTES = 64 * 1024
"""Two source paths of 1,000 characters are up to 24,000 bytes in a URL."""
MAX_VALUES = 100_000
"""How many values a JSON body may hold, as `holds_too_many_values` counts them."""
TOO_MANY_VALUES = f"more than {MAX_VALUES} commas and opening brackets outside of its strings"
_KEY_CHARS = 255
_ONCE = (hdrs.AUTHORIZATION, hdrs.ORIGIN)
_ALSO = {"/healthz": ("/health",)}
"""What many probes call a path; answered beside it, and promised by nobody."""
_PROBES = frozenset(
    path for each in OPERATIONS if each.public for path in (each.path, *_ALSO.get(each.path, ()))
)
"""The paths of operations that are answered without a key."""
_OPEN = _PROBES | documents.OPEN
_encode = msgspec.json.Encoder().encode

_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>[^`]*)`")
_MISSING = re.compile(r"^Object missing required field `(?P<name>[^`]*)`")
_BLANK = re.compile(rf"^Expected `str` matching regex {re.escape(repr(NOT_BLANK))}$")
_PLACE = re.compile(r" - at `\$\.?(?P<place>[^`]*)`$")


@dataclass(frozen=True, slots=True)
class Incoming:
    """A request that fits its operation.

    `credential` is a digest that tells callers apart, never the key; `if_match` the expected version;
    `body` is None where the operation has none and where the body is multipart, to be read from `http`.
    `user` and `role` are what the caller's headers name, where the operation reads them.
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


def handlers_of(*sources: object) -> Mapping[str, Handler]:
    """The handlers by operation id: attributes of `sources` that have the ids in snake case for their names.

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
) -> web.Application:
    """An application that serves `operations`, each by the handler with its id.

    `host` is what an engine listens on; without an `api_key` it keeps web pages of strangers away. With
    `keys` no two requests of one idempotency key run at once; with `rates` calls are counted. The simulator
    passes none of the three and does all itself, for each of its namespaces.

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
    app = web.Application(middlewares=[_rim(api_key, host)], client_max_size=JSON_BODY_BYTES)
    for operation in operations:
        handler = _adapt(operation, handlers[operation.id], keys, rates)
        for path in (operation.path, *_ALSO.get(operation.path, ())):
            app.router.add_route(operation.method, path, handler)
    return app


def _adapt(
    operation: AnyOperation, handler: Handler, keys: KeysInUse | None, rates: RateWindows | None
) -> AiohttpHandler:
    has_role = operation.surface is ApiSurface.RAGLER
    rates = rates if operation.id in LIMITS else None
    keys = keys if operation.excludes_retries else None

    async def serve(request: web.Request) -> web.StreamResponse:
        # In the order in which a misfit is reported: URL, headers about the caller, body, other headers.
        pairs = list(request.query.items())
        presented = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        incoming = Incoming(
            operation=operation,
            path=convert_path(request.match_info, types) if (types := operation.path_parameters) else {},
            query=convert_query(pairs, operation.query),
            user=_caller_header(request, USER_ID, MAX_USER_CHARS) if operation.names_user else None,
            role=_caller_header(request, USER_ROLE, MAX_ROLE_CHARS) if has_role else None,
            body=await _body(operation, request),
            if_match=_if_match(request) if operation.if_match else None,
            idempotency_key=_idempotency_key(request) if operation.mutates else None,
            credential=hashlib.sha256(presented).hexdigest()[:16],
            http=request,
        )
        if rates is not None:
            rates.count(operation.id, incoming.user, incoming.credential)
        if keys is None:
            answer = await handler(incoming)
        else:
            with keys.hold(incoming.credential, operation.id, incoming.idempotency_key):
                answer = await handler(incoming)
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


def _rim(api_key: str, host: str | None) -> Any:
    """The middleware that checks the key, or the origin, and makes every failure a problem document."""
    expected = api_key.encode()

    @web.middleware
    async def rim(request: web.Request, handler: AiohttpHandler) -> web.StreamResponse:
        try:
            if request.path not in _OPEN:
                check_unrepeated(request.headers)
                if api_key:
                    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
                    presented = token.strip().encode("utf-8", "surrogateescape")
                    if scheme.lower() != "bearer" or not hmac.compare_digest(presented, expected):
                        raise EngineError(
                            "unauthorized", "Send Authorization: Bearer with the engine's KB_API_KEY."
                        )
            if host is not None and not api_key:
                check_origin(request.headers, host)
            return await handler(request)
        except EngineError as error:
            return problem_response(error)
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
        except Exception:  # a fault of ours becomes a 500 without its words, and a log entry with them
            logger.exception("unhandled failure", extra={"path": request.path, "method": request.method})
            return problem_response(
                EngineError("internal", "The engine failed; its log says why. Try again.")
            )

    return rim


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
    """The admission of an engine: what it refuses is to be sent again."""

    def refusal(detail: str) -> Callable[[web.Request], web.Response]:
        return lambda _request: problem_response(EngineError("not_ready", detail, retry_after=RETRY_SECONDS))

    return Admission(
        refusal("As many connections are in use as this engine keeps open. Try again."),
        refusal(
            "The engine is stopping, and the request had not arrived whole: nothing was kept. Send it again."
        ),
        is_probe=is_probe,
    )


def is_probe(request: web.Request) -> bool:
    """Whether the request is one of those, which have room whatever else is under way."""
    return request.path in _PROBES


# --- parsing --------------------------------------------------------------------------------------


def holds_too_many_values(raw: bytes) -> bool:
    """Whether a JSON body holds more values than may be, each of which costs many times its bytes to read.

    Every value but the first follows a comma or an opening bracket. Those in strings count as well until
    there are too many: only then the strings, of which a member has two at the most, are cut out.
    """
    if len(raw) <= MAX_VALUES or _separators(raw) <= MAX_VALUES:
        return False
    pieces = raw.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"', 4 * MAX_VALUES)
    return len(pieces) > 4 * MAX_VALUES or _separators(b"".join(pieces[::2])) > MAX_VALUES


def _separators(raw: bytes) -> int:
    return raw.count(b",") + raw.count(b"[") + raw.count(b"{")


def decode_body(raw: bytes, model: type[S]) -> S:
    """A model from a JSON body; `4.0` is an integer, as JSON Schema has it.

    Raises:
        EngineError: `invalid_request`, `missing_parameter`, `unknown_parameter` or `invalid_parameter`.
    """
    if holds_too_many_values(raw):
        raise EngineError("invalid_request", f"The body holds {TOO_MANY_VALUES}.")
    try:
        try:
            return msgspec.json.decode(raw, type=model)
        except msgspec.ValidationError as error:
            if "got `float`" not in str(error):
                raise
            return msgspec.convert(_WHOLE_NUMBERS.decode(raw), model)
    except msgspec.ValidationError as error:
        raise misfit(error, model) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngineError("invalid_request", f"The body is not valid JSON: {error}") from error


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value


_WHOLE_NUMBERS = msgspec.json.Decoder(float_hook=_number)


def convert_query(pairs: list[tuple[str, str]], model: type[S]) -> S:
    """A model from query parameters; each may stand once.

    Raises:
        EngineError: as `decode_body`, without `invalid_request`.
    """
    values: dict[str, str] = {}
    for name, value in pairs:
        if name in values:
            raise EngineError("invalid_parameter", f"Query parameter {name!r} stands twice.", parameter=name)
        values[name] = value
    types = _query_types(model)
    for name in values:
        if name not in types:
            raise _unknown(name, types)
    for name in _required(model):
        if name not in values:
            raise EngineError("missing_parameter", f"Query parameter {name!r} is required.", parameter=name)
    return model(**_converted(values, types, "Query"))


@cache
def _required(model: type[msgspec.Struct]) -> list[str]:
    return [field.name for field in msgspec.structs.fields(model) if field.required]


@cache
def _query_types(model: type[msgspec.Struct]) -> dict[str, Any]:
    """The types of a query's fields without None: a query can only leave a field out."""
    hints = get_type_hints(model, include_extras=True)
    return {name: kind for name, hint in hints.items() for kind in _kinds(hint)}


def _kinds(hint: Any) -> list[Any]:
    """What a value may be beside None."""
    if get_origin(hint) not in (Union, UnionType):
        return [hint]
    return [kind for kind in get_args(hint) if kind is not NoneType]


def convert_path(values: Mapping[str, str], types: Mapping[str, Any]) -> dict[str, Any]:
    """Path parameters, each converted to its declared type.

    Raises:
        EngineError: `invalid_parameter` that names the parameter.
    """
    return _converted({name: values[name] for name in types}, types, "Path")


def _converted(values: Mapping[str, str], types: Mapping[str, Any], where: str) -> dict[str, Any]:
    converted = {}
    for name, value in values.items():
        try:
            converted[name] = msgspec.convert(value, types[name], strict=False)
        except msgspec.ValidationError as error:
            # What the value is to be: in the contract's words where msgspec has only a pattern.
            metas = getattr(types[name], "__metadata__", ())
            words = next((meta.description for meta in metas if meta.pattern and meta.description), None)
            wanted = f" takes {words}" if words and "regex" in str(error) else f": {error}"
            raise EngineError(
                "invalid_parameter", f"{where} parameter {name!r}{wanted}.", parameter=name
            ) from error
    return converted


def misfit(error: msgspec.ValidationError, model: Any = None) -> EngineError:
    """The `EngineError` for a value that does not fit; of a `model` that is a Struct it says what is near."""
    text = str(error)
    place = _PLACE.search(text)
    prefix = f"{place['place']}." if place else ""
    if unknown := _UNKNOWN.match(text):
        return _unknown(prefix + unknown["name"], _names(model) if isinstance(model, type) else ())
    if missing := _MISSING.match(text):
        name = prefix + missing["name"]
        return EngineError("missing_parameter", f"Parameter {name!r} is required.", parameter=name)
    name = place["place"] if place else ""
    what = _BLANK.sub("it takes words, and came with blanks alone", _PLACE.sub("", text))
    return EngineError(
        "invalid_parameter",
        f"Parameter {name!r}: {what}." if name else f"The body does not fit: {what}.",
        **({"parameter": name} if name else {}),
    )


def _unknown(name: str, known: Iterable[str]) -> EngineError:
    near = get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else f" There are: {', '.join(known)}." if known else ""
    return EngineError("unknown_parameter", f"There is no parameter {name!r}.{hint}", parameter=name)


@cache
def _names(model: type[msgspec.Struct]) -> tuple[str, ...]:
    """The names of a model's members as an error gives them: `query`, `filters`, `filters.format`."""
    names: list[str] = []
    hints = get_type_hints(model)
    for field in msgspec.structs.fields(model):
        name = field.encode_name
        names.append(name)
        for kind in _kinds(hints[field.name]):
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                names += [f"{name}.{below}" for below in _names(kind)]
    return tuple(dict.fromkeys(names))


# --- web pages of strangers ----------------------------------------------------------------------


def check_origin(headers: MultiMapping[str], host: str) -> None:
    """Refuse a request by a foreign page to an engine that listens on `host`.

    Raises:
        EngineError: `unauthorized`.
    """
    origin = headers.get(hdrs.ORIGIN)
    if origin is not None and not _is_local(origin):
        raise EngineError("unauthorized", "Web pages may not use an engine that has no KB_API_KEY.")
    if _listens_locally(host) and _is_domain(f"//{headers.get(hdrs.HOST, '')}"):
        raise EngineError("unauthorized", "Without a KB_API_KEY this engine serves no Host that is a domain.")


def check_unrepeated(headers: MultiMapping[str]) -> None:
    """Refuse a request whose two `Authorization` or `Origin` headers two readers could read differently.

    Raises:
        EngineError: `unauthorized`.
    """
    for name in _ONCE:
        if len(headers.getall(name, ())) > 1:
            raise EngineError("unauthorized", f"Send the header {name} once.")


# Callers send the same few names with every request.
@lru_cache(maxsize=256)
def _is_local(url: str) -> bool:
    return is_loopback(_name(url))


_listens_locally = lru_cache(maxsize=16)(is_loopback)


@lru_cache(maxsize=256)
def _is_domain(url: str) -> bool:
    name = _name(url)
    return "." in name.strip(".") and not is_loopback(name)


def _name(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
