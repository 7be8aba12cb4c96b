"""The reading of a request: its caller, and its parts as the operation declares them.

    token ──▶ Access ── X-KB-Access ── X-User-Role ──▶ remaining access ──▶ the operation's right
              of the key    both only reduce it                                    │
                                   Incoming ◀── headers ◀── body ◀── user ◀── path, query

An engine that requires no key has to refuse foreign web pages. A browser on this machine can reach the
engine's port on behalf of any page that it shows. Such a page cannot read a response, but it can post a form
with a file, which is how a file is submitted; its Origin header reveals it. A page whose own name is made to
resolve to this machine (DNS rebinding) could read responses too; its Host header reveals it, which is a
domain with a dot. An engine that listens on more than loopback cannot know its own names, and checks the
Origin only. With a key set neither matters: no page knows it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache, lru_cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

import msgspec
from aiohttp import hdrs, web
from multidict import MultiMapping

from kb_contracts.access.reach import ACCESS, EVERYTHING, Access, Reach, Right, access_from, access_header
from kb_contracts.api.errors import EngineError
from kb_contracts.api.models import NOT_BLANK, FileFields
from kb_contracts.api.operations import IDEMPOTENCY_KEY, IF_MATCH, AnyOperation
from kb_contracts.api.ragler import MAX_ROLE_CHARS, MAX_USER_CHARS, SERVICE, USER_ID, USER_ROLE, may_change
from kb_contracts.semantics.documents import document_key
from kb_contracts.semantics.requests import Idempotency, request_fingerprint
from kb_contracts.semantics.validation import mismatch_of
from kb_http.limits import is_loopback

S = TypeVar("S", bound=msgspec.Struct)

AccessOf = Callable[[str], Access | None]
"""Returns the access of a token, or of no token (the empty string); None: the token is unknown."""

JSON_BODY_BYTES = 8 * 1024 * 1024
MAX_VALUES = 100_000
"""Maximum number of values in a JSON body, as `holds_too_many_values` counts them."""
TOO_MANY_VALUES = f"more than {MAX_VALUES} commas and opening brackets outside of its strings"
_BLANK = re.compile(rf"^Expected `str` matching regex {re.escape(repr(NOT_BLANK))}$")
_KEY_CHARS = 255
_ONCE = (hdrs.AUTHORIZATION, hdrs.ORIGIN)
_OF_SERVICE: frozenset[Right] = frozenset(["read"])
"""The rights of the role `SERVICE`."""


@dataclass(frozen=True, slots=True)
class SentFile:
    """A file and its fields from a caller in this process, with the content of a multipart body.

    `fields` are texts by name, `content_length` is the size of the file in bytes.
    """

    filename: str
    content_type: str
    content_length: int
    blocks: AsyncIterator[bytes]
    fields: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Incoming:
    """A request that fits its operation.

    `authorization` is the header with the key; `if_match` is the expected version; `body` is None if the
    operation has no body, and for a file, which is to be read from `source`. `user` is the value of the
    caller's header, if the operation reads it. `access` is the caller's access; the operation is within its
    rights.
    """

    operation: AnyOperation
    path: Mapping[str, Any]
    query: Any
    body: Any
    if_match: int | None
    idempotency_key: str | None
    authorization: str = field(repr=False)
    source: web.Request | SentFile | None
    user: str | None = None
    access: Access = EVERYTHING

    @property
    def document_key(self) -> int | str:
        """The number or the uid of the document in the path. Raises `EngineError`."""
        return document_key(self.path["document_id"])

    @property
    def credential(self) -> str:
        """A digest that distinguishes callers, never the key."""
        return credential_of(self.authorization, self.access)

    def idempotency(self, file: tuple[str, str, FileFields] | None = None) -> Idempotency | None:
        """Return the identity for recognising retries, with that of a received file; None without a key."""
        if self.idempotency_key is None:
            return None
        content = request_fingerprint(self.path, self.query, self.body, self.if_match, file)
        return Idempotency(self.idempotency_key, self.credential, self.operation.id, content)

    @property
    def rated_user(self) -> str | None:
        """The user whose calls are counted. A caller with a name or an access scope has its own users."""
        if self.user is None or not is_distinct(self.access):
            return self.user
        return f"{self.credential} {self.user}"


@dataclass(slots=True)
class Sent:
    """A request as it was sent, before it is validated.

    `access` is the access of the holder of the token in `authorization`, until headers narrow it. `read_body`
    returns the bytes of a JSON body, or None for a file; it is called if the operation has a body. `source`
    is the same as in `Incoming`.
    """

    path: Mapping[str, str]
    query: Iterable[tuple[str, str]]
    headers: MultiMapping[str]
    authorization: str
    read_body: Callable[[], Awaitable[bytes | None]]
    source: web.Request | SentFile | None
    access: Access = EVERYTHING
    is_known: bool = True
    """True if the token identifies the caller; False if no token is required."""


async def read_request(operation: AnyOperation, published: Reach | None, sent: Sent) -> Incoming:
    """Return a request as its operation declares it; the headers of the caller narrow `sent.access`.

    `published` is the access scope of the role `SERVICE`; None: unlimited.
    Raises EngineError: of several the first in this order: access, right, URL, user, body, other headers.
    """
    headers = sent.headers
    if not operation.public:
        sent.access = narrowed(sent.access, headers, published)
        if operation.right not in sent.access.rights:
            raise right_missing(operation, headers)
    path = convert_path(sent.path, types) if (types := operation.path_parameters) else {}
    query = convert_query(sent.query, operation.query)
    user = caller_header(headers, USER_ID, MAX_USER_CHARS) if operation.names_user else None
    body = None
    if operation.body is not None and (raw := await sent.read_body()) is not None:
        body = decode_body(raw, operation.body)
    return Incoming(
        operation=operation,
        path=path,
        query=query,
        user=user,
        body=body,
        if_match=_if_match(headers) if operation.if_match else None,
        idempotency_key=_idempotency_key(headers) if operation.mutates else None,
        authorization=sent.authorization,
        source=sent.source,
        access=sent.access,
    )


# --- framing, and repeated headers ----------------------------------------------------------------


def check_framing(request: web.Request) -> None:
    """Refuse a target with another host than the header Host, and transfer codings other than `chunked`.

    RFC 9112 ignores the header Host if the target has a host (3.2.2); in a correct request the two are equal.
    The body of a request with another coding would be read encoded (6.1).
    Raises EngineError: `invalid_request`.
    """
    codings = request.headers.getall(hdrs.TRANSFER_ENCODING, ())
    if codings and [coding.strip().lower() for coding in codings] != ["chunked"]:
        raise EngineError("invalid_request", "Only the Transfer-Encoding chunked is supported.")
    if request.raw_path.startswith("/") or request.raw_path == "*":
        return
    try:
        authority = urlsplit(request.raw_path).netloc
    except ValueError:
        authority = ""
    if authority.lower() != request.headers.get(hdrs.HOST, "").lower():
        raise EngineError(
            "invalid_request", "The target of the request has another host than its header Host."
        )


def check_unrepeated(headers: MultiMapping[str]) -> None:
    """Refuse a request with two `Authorization` or `Origin` headers: a proxy may have read the other one.
    Raises EngineError: `unauthorized`.
    """
    for name in _ONCE:
        if len(headers.getall(name, ())) > 1:
            raise EngineError("unauthorized", f"Send the header {name} once.")


# --- the caller -----------------------------------------------------------------------------------


def token_of(headers: MultiMapping[str]) -> str:
    """Return the bearer token of a request, or the empty string."""
    scheme, _, token = headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def access_by_token(api_key: str, access_of: AccessOf | None) -> AccessOf:
    """Return a function from tokens to access.

    The engine's own key has full access; `access_of` determines that of other tokens. Without both, no token
    is needed.
    """
    expected = api_key.encode()

    def access(token: str) -> Access | None:
        if api_key and hmac.compare_digest(token.encode("utf-8", "surrogateescape"), expected):
            return EVERYTHING
        if access_of is not None:
            return access_of(token)
        return None if api_key else EVERYTHING

    return access


def unauthorized() -> EngineError:
    """The refusal of a missing or unknown token."""
    return EngineError("unauthorized", "Send Authorization: Bearer with the engine's KB_API_KEY.")


def narrowed(access: Access, headers: MultiMapping[str], published: Reach | None = None) -> Access:
    """Return the access after both headers that narrow it: the access of the caller of the request.

    `published` is the access scope of the role `SERVICE`; None: unlimited.
    Raises EngineError: `invalid_parameter`.
    """
    values = headers.getall(ACCESS, ())
    if len(values) > 1:
        raise EngineError("invalid_parameter", f"Send the header {ACCESS} once.", parameter=ACCESS)
    if values:
        access = access.narrowed(access_from(values[0]))
    role = caller_header(headers, USER_ROLE, MAX_ROLE_CHARS)
    if role is None or may_change(role):
        return access
    return access.narrowed(Access(rights=_OF_SERVICE, reach=published))


def caller_of(held: Access, narrowed: Access, *, is_known: bool) -> tuple[str, str]:
    """Return the caller for an audit log, and the name of the key if the key is another caller's.

    `held` is the access of the token, and `narrowed` the access after the headers. The name in the header
    counts only with an unlimited key, as servers have, which make requests for their callers. A limited key
    determines the caller by itself, and without required keys the caller is unknown.
    """
    if not is_known:
        return "", ""
    if not held.is_unlimited:
        return held.name, ""
    return narrowed.name, held.name if held.name != narrowed.name else ""


def right_missing(operation: AnyOperation, headers: MultiMapping[str]) -> EngineError:
    """The refusal of a caller without the operation's right."""
    if operation.right not in _OF_SERVICE and not may_change(headers.get(USER_ROLE)):
        return EngineError(
            "forbidden", f"The role {SERVICE!r} may read and search, and change nothing.", parameter=USER_ROLE
        )
    return EngineError("forbidden", f"This key may not {operation.right}. Use a key with this right.")


def is_distinct(access: Access) -> bool:
    """True if the access belongs to one of several callers that may see different documents."""
    return bool(access.name) or access.reach is not None


@lru_cache(maxsize=256)
def credential_of(authorization: str, access: Access) -> str:
    """Return a digest of this header that differs between callers with different access scopes.

    For an access without name and scope it covers the key only, as in earlier versions: kept responses are
    stored under it.
    """
    presented = authorization.encode("utf-8", "surrogateescape")
    if is_distinct(access):
        presented += b"\n" + access_header(Access(access.name, reach=access.reach)).encode()
    return hashlib.sha256(presented).hexdigest()[:16]


def caller_header(headers: MultiMapping[str], name: str, max_chars: int) -> str | None:
    """Return the value of a caller's header, or None. A repeated header is refused, since neither value may
    win.
    """
    values = headers.getall(name, [])
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


# --- web pages of other sites ---------------------------------------------------------------------


def check_origin(headers: MultiMapping[str], host: str) -> None:
    """Refuse a request by a foreign page to an engine that listens on `host`.
    Raises EngineError: `unauthorized`.
    """
    origin = headers.get(hdrs.ORIGIN)
    if origin is not None and not _is_local(origin):
        raise EngineError("unauthorized", "Web pages may not use an engine that has no KB_API_KEY.")
    if _listens_locally(host) and _is_domain(f"//{headers.get(hdrs.HOST, '')}"):
        raise EngineError("unauthorized", "Without a KB_API_KEY this engine serves no Host that is a domain.")


# The same few names come with every request.
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


# --- path and query -------------------------------------------------------------------------------


def convert_query(pairs: Iterable[tuple[str, str]], model: type[S]) -> S:
    """Return a model from query parameters; each may appear once.
    Raises EngineError: as `decode_body`, without `invalid_request`.
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
    return [member.name for member in msgspec.structs.fields(model) if member.required]


@cache
def _query_types(model: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the types of a query's fields without None: a query can only omit a field."""
    hints = get_type_hints(model, include_extras=True)
    return {name: kind for name, hint in hints.items() for kind in _kinds(hint)}


def _kinds(hint: Any) -> list[Any]:
    """Return the types of a hint without None."""
    if get_origin(hint) not in (Union, UnionType):
        return [hint]
    return [kind for kind in get_args(hint) if kind is not NoneType]


def convert_path(values: Mapping[str, str], types: Mapping[str, Any]) -> dict[str, Any]:
    """Return the path parameters, each converted to its declared type.
    Raises EngineError: `invalid_parameter` that names the parameter.
    """
    return _converted({name: values[name] for name in types}, types, "Path")


def _converted(values: Mapping[str, str], types: Mapping[str, Any], where: str) -> dict[str, Any]:
    converted = {}
    for name, value in values.items():
        try:
            converted[name] = msgspec.convert(value, types[name], strict=False)
        except msgspec.ValidationError as error:
            # The contract's description of the value, where msgspec reports only a pattern.
            metas = getattr(types[name], "__metadata__", ())
            words = next((meta.description for meta in metas if meta.pattern and meta.description), None)
            wanted = f" takes {words}" if words and "regex" in str(error) else f": {error}"
            raise EngineError(
                "invalid_parameter", f"{where} parameter {name!r}{wanted}.", parameter=name
            ) from error
    return converted


# --- the body -------------------------------------------------------------------------------------


async def json_body(operation: AnyOperation, request: web.Request) -> bytes | None:
    """Return the JSON body of a request, or None if it has a file for the operation.
    Raises EngineError: `payload_too_large`, `invalid_request` or `unsupported_media_type`.
    """
    if request.content_type == "application/json":
        return await whole_body(request)
    if operation.multipart is not None and request.content_type == "multipart/form-data":
        return None
    taken = "application/json" + (" or multipart/form-data" if operation.multipart else "")
    raise EngineError("unsupported_media_type", f"Send Content-Type: {taken}.")


async def whole_body(request: web.Request) -> bytes:
    """Return the body of a request.
    Raises EngineError: `payload_too_large` or `invalid_request`.
    """
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise body_too_large() from error
    except web.RequestPayloadError as error:
        coding = request.headers.get(hdrs.CONTENT_ENCODING, "")[:40]
        why = f"is not {coding}, as its header Content-Encoding says" if coding else "broke off"
        raise EngineError("invalid_request", f"The body {why}.") from error


def body_too_large() -> EngineError:
    """The refusal of a JSON body of more than `JSON_BODY_BYTES`."""
    return EngineError("payload_too_large", f"A JSON body has at most {JSON_BODY_BYTES} bytes.")


def holds_too_many_values(raw: bytes) -> bool:
    """True if a JSON body holds more than `MAX_VALUES` values.

    Decoding a value needs many times the memory of its bytes. Every value but the first follows a comma or an
    opening bracket. Commas and brackets within strings count as well at first. Only if there are too many,
    the strings, at most two for each member, are cut out.
    """
    if len(raw) <= MAX_VALUES or _separators(raw) <= MAX_VALUES:
        return False
    pieces = raw.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"', 4 * MAX_VALUES)
    return len(pieces) > 4 * MAX_VALUES or _separators(b"".join(pieces[::2])) > MAX_VALUES


def _separators(raw: bytes) -> int:
    return raw.count(b",") + raw.count(b"[") + raw.count(b"{")


def decode_body(raw: bytes, model: type[S]) -> S:
    """Return a model from a JSON body; `4.0` is an integer, as in JSON Schema.
    Raises EngineError: `invalid_request`, `missing_parameter`, `unknown_parameter` or `invalid_parameter`.
    """
    if holds_too_many_values(raw):
        raise EngineError("invalid_request", f"The body contains {TOO_MANY_VALUES}.")
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


# --- headers of changes ---------------------------------------------------------------------------


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


# --- values that do not fit -----------------------------------------------------------------------


def misfit(error: msgspec.ValidationError, model: Any = None) -> EngineError:
    """Return the `EngineError` for an invalid value; for a `model` that is a Struct it suggests a similar
    name.
    """
    mismatch = mismatch_of(error)
    name = mismatch.place.removeprefix(".")
    prefix = f"{name}." if name else ""
    if mismatch.unknown is not None:
        return _unknown(prefix + mismatch.unknown, _names(model) if isinstance(model, type) else ())
    if mismatch.missing is not None:
        name = prefix + mismatch.missing
        return EngineError("missing_parameter", f"Parameter {name!r} is required.", parameter=name)
    what = _BLANK.sub("it must contain words, but has only white space", mismatch.text)
    return EngineError(
        "invalid_parameter",
        f"Parameter {name!r}: {what}." if name else f"The body is invalid: {what}.",
        **({"parameter": name} if name else {}),
    )


def _unknown(name: str, known: Iterable[str]) -> EngineError:
    near = get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else f" There are: {', '.join(known)}." if known else ""
    return EngineError("unknown_parameter", f"There is no parameter {name!r}.{hint}", parameter=name)


@cache
def _names(model: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the names of a model's members as errors spell them: `query`, `filters`, `filters.format`."""
    names: list[str] = []
    hints = get_type_hints(model)
    for member in msgspec.structs.fields(model):
        name = member.encode_name
        names.append(name)
        for kind in _kinds(hints[member.name]):
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                names += [f"{name}.{below}" for below in _names(kind)]
    return tuple(dict.fromkeys(names))
