"""The adapter that mounts handlers on aiohttp: it routes, parses and encodes, and decides nothing else.

    request -> key, or origin -> route -> path, query, right, headers, body -> handler -> response as JSON
                     `------------------- any EngineError ---------------------> problem document

Engine and simulator mount the same table, so that neither can serve a route, take a field or leave one
out on its own. The tests check the responses against the committed document. From the parsing on, a call of
the same process takes the same way (`direct.py`).
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, partial
from http import HTTPStatus
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from aiohttp import hdrs, web
from aiohttp.typedefs import Handler as AiohttpHandler
from multidict import MultiMapping

from kb_contracts.access.reach import EVERYTHING, MAX_ACCESS_BYTES, REACH, Access, Reach
from kb_contracts.api.content import FileContent
from kb_contracts.api.errors import PROBLEM_JSON, EngineError
from kb_contracts.api.models import NOT_BLANK
from kb_contracts.api.operations import IDEMPOTENCY_KEY, IF_MATCH, OPERATIONS, AnyOperation
from kb_contracts.api.ragler import LIMITS, MAX_USER_CHARS, USER_ID
from kb_contracts.http import documents
from kb_contracts.http.admission import RETRY_SECONDS, Admission
from kb_contracts.http.callers import (
    AccessOf,
    access_by_token,
    caller_header,
    caller_of,
    check_framing,
    check_origin,
    check_unrepeated,
    credential_of,
    is_distinct,
    narrowed,
    right_missing,
    token_of,
    unauthorized,
)
from kb_contracts.http.downloads import file_response
from kb_contracts.semantics.requests import KeysInUse, RateWindows

if TYPE_CHECKING:
    from kb_contracts.http.multipart import SentFile

logger = logging.getLogger(__name__)

S = TypeVar("S", bound=msgspec.Struct)

JSON_BODY_BYTES = 8 * 1024 * 1024
REQUEST_LINE_BYTES = 64 * 1024
"""Two source paths of 1,000 characters are up to 24,000 bytes in a URL."""
HEADER_BYTES = MAX_ACCESS_BYTES + 1024
"""Of one header: the one that narrows an access may name many tags."""
MAX_VALUES = 100_000
"""How many values a JSON body may hold, as `holds_too_many_values` counts them."""
TOO_MANY_VALUES = f"more than {MAX_VALUES} commas and opening brackets outside of its strings"
_KEY_CHARS = 255
_ACCESS = web.RequestKey("access", Access)
_IS_KNOWN = web.RequestKey("is_known", bool)
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
    `body` is None where the operation has none and where there is a file in its place, to be read from
    `source`. `user` is what the caller's header names, where the operation reads it. `access` is what the
    caller may do; the operation is within its rights.
    """

    operation: AnyOperation
    path: Mapping[str, Any]
    query: Any
    body: Any
    if_match: int | None
    idempotency_key: str | None
    credential: str
    source: web.Request | SentFile | None
    user: str | None = None
    access: Access = EVERYTHING

    @property
    def rated_user(self) -> str | None:
        """Whose calls are counted: a user of a caller with a name or a reach is that caller's alone."""
        if self.user is None or not is_distinct(self.access):
            return self.user
        return f"{self.credential} {self.user}"


Handler = Callable[[Incoming], Awaitable[msgspec.Struct]]


@dataclass(frozen=True, slots=True)
class Sent:
    """A request as it was sent, before it is known to fit.

    `access` is what the holder of the token in `authorization` may do; headers may narrow it. `read_body`
    gives what `Incoming.body` is to be; `source` is `Incoming`'s.
    """

    path: Mapping[str, str]
    query: Iterable[tuple[str, str]]
    headers: MultiMapping[str]
    authorization: str
    read_body: Callable[[], Awaitable[Any]]
    source: web.Request | SentFile | None
    access: Access = EVERYTHING
    is_known: bool = True
    """Whether the token tells who sends it; it does not where nobody needs one."""


@dataclass(frozen=True, slots=True)
class Audited:
    """What became of a request, for an audit log. `outcome` is `ok`, the code of an error, or `cancelled`.

    `action` is the operation's id, `who` the name of the caller, `key` that of the key by which somebody else
    asked for the caller; `answer` is None where there was none.
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

Answering = Callable[[Sent], Awaitable[web.Response]]

ANSWERING: web.AppKey[Mapping[str, Answering]] = web.AppKey("ANSWERING")
"""What answers each operation of an application, by id."""


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
    access_of: AccessOf | None = None,
    audit: Audit | None = None,
    published: Reach | None = None,
) -> web.Application:
    """An application that serves `operations`, each by the handler with its id.

    Who has the `api_key` may do everything, who has another token what `access_of` says; without either
    everybody may do everything. `host` is what an engine listens on; from those who need no token it keeps
    web pages of strangers away. With `keys` no two requests of one idempotency key run at once; with `rates`
    calls are counted; `published` is how far the role `service` reaches, None: everywhere; `audit` learns of
    each request that needs a key, also of those who have none. The simulator passes none of these but
    `published` and does all itself, for each of its namespaces.

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
    app = web.Application(
        middlewares=[_rim(api_key, host, access_of, audit)], client_max_size=JSON_BODY_BYTES
    )
    answering = {
        each.id: _answering(each, handlers[each.id], keys, rates, audit, published) for each in operations
    }
    for operation in operations:
        handler = _adapt(operation, answering[operation.id])
        for path in (operation.path, *_ALSO.get(operation.path, ())):
            app.router.add_route(operation.method, path, handler)
    app[ANSWERING] = answering
    return app


def _adapt(operation: AnyOperation, answer: Answering) -> AiohttpHandler:
    async def serve(request: web.Request) -> web.StreamResponse:
        return await answer(
            Sent(
                path=request.match_info,
                query=request.query.items(),
                headers=request.headers,
                authorization=request.headers.get(hdrs.AUTHORIZATION, ""),
                read_body=partial(_body, operation, request),
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
) -> Answering:
    rates = rates if operation.id in LIMITS else None
    keys = keys if operation.excludes_retries else None
    audit = None if operation.public else audit

    async def carry_out(sent: Sent, access: Access, credential: str) -> msgspec.Struct:
        # In the order in which a misfit is reported: what the caller may do, URL, the caller's user, body,
        # other headers.
        headers = sent.headers
        if operation.right not in access.rights and not operation.public:
            raise right_missing(operation, headers)
        incoming = Incoming(
            operation=operation,
            path=convert_path(sent.path, types) if (types := operation.path_parameters) else {},
            query=convert_query(sent.query, operation.query),
            user=caller_header(headers, USER_ID, MAX_USER_CHARS) if operation.names_user else None,
            body=await sent.read_body(),
            if_match=_if_match(headers) if operation.if_match else None,
            idempotency_key=_idempotency_key(headers) if operation.mutates else None,
            credential=credential,
            source=sent.source,
            access=access,
        )
        if rates is not None:
            rates.count(operation.id, incoming.rated_user, incoming.credential)
        if keys is None:
            return await within_reach(incoming)
        with keys.hold(incoming.credential, operation.id, incoming.idempotency_key):
            return await within_reach(incoming)

    async def within_reach(incoming: Incoming) -> msgspec.Struct:
        before = REACH.set(incoming.access.reach)
        try:
            return await handler(incoming)
        finally:
            REACH.reset(before)  # the next request of the connection has the same context

    async def audited(sent: Sent) -> msgspec.Struct:
        outcome, answer, access = "internal", None, sent.access
        try:
            access = narrowed(access, sent.headers, published)
            answer = await carry_out(sent, access, credential_of(sent.authorization, access))
            outcome = "ok"
        except EngineError as error:
            outcome = error.code
            raise
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            if audit is not None:
                who, key = caller_of(sent.access, access, is_known=sent.is_known)
                audit(Audited(operation.id, outcome, who, sent.headers, sent.source, sent.path, answer, key))
        return answer

    async def unaudited(sent: Sent) -> msgspec.Struct:
        access = sent.access if operation.public else narrowed(sent.access, sent.headers, published)
        return await carry_out(sent, access, credential_of(sent.authorization, access))

    serve = unaudited if audit is None else audited

    async def answer_to(sent: Sent) -> web.Response:
        answer = await serve(sent)
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

    return answer_to


async def _body(operation: AnyOperation, request: web.Request) -> Any:
    if operation.body is None:
        return None
    if request.content_type == "application/json":
        try:
            raw = await request.read()
        except web.HTTPRequestEntityTooLarge as error:
            raise body_too_large() from error
        except web.RequestPayloadError as error:
            coding = request.headers.get(hdrs.CONTENT_ENCODING, "")[:40]
            why = f"is not {coding}, as its header Content-Encoding says" if coding else "broke off"
            raise EngineError("invalid_request", f"The body {why}.") from error
        return decode_body(raw, operation.body)
    if operation.multipart is not None and request.content_type == "multipart/form-data":
        return None
    taken = "application/json" + (" or multipart/form-data" if operation.multipart else "")
    raise EngineError("unsupported_media_type", f"Send Content-Type: {taken}.")


def body_too_large() -> EngineError:
    """The refusal of a JSON body of more than `JSON_BODY_BYTES`."""
    return EngineError("payload_too_large", f"A JSON body has at most {JSON_BODY_BYTES} bytes.")


def _if_match(headers: MultiMapping[str]) -> int | None:
    raw = headers.get(IF_MATCH)
    if raw is None:
        return None
    digits = raw.strip().strip('"')
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19 and int(digits) > 0):
        raise EngineError("invalid_parameter", f"{IF_MATCH} takes a document's version.", parameter=IF_MATCH)
    return int(digits)


def _idempotency_key(headers: MultiMapping[str]) -> str | None:
    key = headers.get(IDEMPOTENCY_KEY)
    if key is None:
        return None
    if not 1 <= len(key) <= _KEY_CHARS or not key.isascii() or not key.isprintable():
        raise EngineError(
            "invalid_parameter",
            f"{IDEMPOTENCY_KEY} takes 1 to {_KEY_CHARS} printable ASCII characters.",
            parameter=IDEMPOTENCY_KEY,
        )
    return key


def _rim(api_key: str, host: str | None, access_of: AccessOf | None, audit: Audit | None) -> Any:
    """The middleware that checks the key, or the origin, and makes every failure a problem document."""
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
    async def rim(request: web.Request, handler: AiohttpHandler) -> web.StreamResponse:
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
        except Exception as error:  # noqa: BLE001 - whatever a handler raises has a response
            return failure_response(error, request.method, request.path)

    return rim


def failure_response(error: Exception, method: str, path: str) -> web.Response:
    """The problem document for what a handler raised; a fault of ours goes into the log, and only there."""
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


def convert_query(pairs: Iterable[tuple[str, str]], model: type[S]) -> S:
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
