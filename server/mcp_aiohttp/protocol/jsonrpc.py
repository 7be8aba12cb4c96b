"""JSON-RPC 2.0 on the wire: bytes to messages, and answers to bytes.

JSON is read strictly: input that two parsers could read differently is refused. This covers a key that occurs
twice in one object, NaN, half a surrogate pair, and a number past 64 bits. Also refused are nesting that
could exhaust a stack, and so many values that reading them would block the event loop.

There are two readers. The careful one is the standard library's with a check in each of its hooks; it
produces the message of a refusal. The quick one is msgspec's, which takes a fifth of the time. It is as
strict, with two exceptions that are checked afterwards: it keeps the last of several values under one key,
and integers of any length. In a long body, such as a chunk of a file in base64, keys and colons are counted.
A short body is encoded again: if that gives the same bytes, as for most clients, nothing was lost.
"""

from __future__ import annotations

import asyncio
import json
import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Mapping
from dataclasses import dataclass
from math import isinf
from typing import Any, AnyStr, NoReturn

import msgspec

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
SERVER_ERROR = -32000
"""The first of the codes reserved for servers: a method of the server's own failed."""

# This package's own codes, within the range that the protocol leaves to implementations.
UNAUTHORIZED = -32010
HOST_NOT_ALLOWED = -32011
ORIGIN_NOT_ALLOWED = -32012
MESSAGE_TOO_LARGE = -32013
UNSUPPORTED_MEDIA_TYPE = -32014
METHOD_NOT_ALLOWED = -32015
BODY_TIMEOUT = -32016
TOO_MANY_CALLS = -32017
"""Used only where one connection carries many calls at once; the connection stays open."""
BAD_HANDSHAKE = -32018
SERVER_STOPPING = -32019
TOO_MANY_CONNECTIONS = -32009

_ERROR_TYPES = {
    PARSE_ERROR: "parse_error",
    INVALID_REQUEST: "invalid_request",
    METHOD_NOT_FOUND: "method_not_found",
    INVALID_PARAMS: "invalid_params",
    INTERNAL_ERROR: "internal_error",
}

RequestId = str | int
_CALL = "tools/call"


# --- JSON, strictly -------------------------------------------------------------------------------

MAX_DEPTH = 64
"""Maximum nesting depth of arrays and objects."""

MAX_VALUES = 100_000
"""Maximum number of values in a message, counted by its commas and opening brackets."""

_TOO_DEEP = f"the message is nested deeper than {MAX_DEPTH} levels"
_CONTAINERS = frozenset((dict, list))
_MAX_INTEGER_DIGITS = 19
_INTEGER_BOUND = 2**63
_LONG_INTEGER = re.compile(rb"\d{%d}" % _MAX_INTEGER_DIGITS)
_NO_DIGITS = bytes(set(range(256)) - set(b"0123456789"))
_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")
_BYTE_ORDER_MARKS = (BOM_UTF8, BOM_UTF16_LE, BOM_UTF16_BE)
_ESCAPED_COLONS = (b"\\u003a", b"\\u003A")
_MANY_BRACKETS = 2_000
_MANY_COMMAS = 20_000
_MANY_COLONS = 1_000
_SHORT = 1024
"""Length in bytes below which counting costs more than it saves; `_LONG` is in bytes too."""
_LONG = 1 << 16


class ParseError(ValueError):
    """The bytes are not JSON that this server accepts; the message says why and quotes nothing."""


def parse(body: bytes) -> Any:
    """Return the JSON value in `body`.
    Raises ParseError: it is not UTF-8, not JSON, ambiguous, nested deeper than `MAX_DEPTH`, or has too
    many values.
    """
    value = _read_compact(body) if len(body) < _SHORT else _read_quickly(body)
    return _read_carefully(body) if value is _UNSETTLED else value


async def parse_in_thread_if_long(body: bytes) -> Any:
    """Like `parse`, but parse a laborious body in a thread, so that the event loop stays responsive.
    Raises ParseError: as for `parse`.
    """
    return await asyncio.to_thread(parse, body) if is_laborious(body) else parse(body)


def is_laborious(body: bytes) -> bool:
    """True if `body` may hold so many values that parsing it would block the event loop too long."""
    if len(body) <= _MANY_BRACKETS:
        return False  # too short for so many, like nearly all
    return _openings(body, _MANY_BRACKETS) > _MANY_BRACKETS or _has_many_members(body)


# --- quickly --------------------------------------------------------------------------------------

_UNSETTLED: Any = object()
"""Returned in place of a value if the quick reader cannot decide."""


def _read_compact(body: bytes) -> Any:
    """Return the value in `body` if it is written as msgspec would write it, or `_UNSETTLED`."""
    if _openings(body, MAX_DEPTH) > MAX_DEPTH:
        return _UNSETTLED
    # Counting all digits is far cheaper than searching for a run of them, and mostly enough.
    if len(body.translate(None, _NO_DIGITS)) >= _MAX_INTEGER_DIGITS and _LONG_INTEGER.search(body):
        return _UNSETTLED
    try:
        value = msgspec.json.decode(body)
        return value if msgspec.json.encode(value) == body else _UNSETTLED
    except (msgspec.DecodeError, UnicodeError, OverflowError, RecursionError):
        return _UNSETTLED


def _read_quickly(body: bytes) -> Any:
    """Return the value in `body`, or `_UNSETTLED`.

    A key is followed by a colon, so `body` has as many keys as it has colons outside of its strings. If that
    is the number of distinct keys in the parsed value, no key occurs twice. Colons within strings are counted
    in the parsed value; with an escaped colon the two counts could not be compared.
    """
    if _openings(body, MAX_DEPTH) > MAX_DEPTH or _has_many_members(body):
        return _UNSETTLED  # walking through it would take longer than reading it carefully
    if b"\\" in body and any(escaped in body for escaped in _ESCAPED_COLONS):
        return _UNSETTLED
    colons = _count(body, b":", _MANY_COLONS)
    if colons > _MANY_COLONS:
        return _UNSETTLED
    try:
        value = msgspec.json.decode(body)
        return value if _keys_and_colons(value) == colons else _UNSETTLED
    except (msgspec.DecodeError, UnicodeDecodeError, OverflowError, RecursionError):
        return _UNSETTLED


def _keys_and_colons(value: Any) -> int:
    """Return the number of keys in `value` plus the number of colons in its strings.
    Raises OverflowError: it holds an integer past 64 bits.
    """
    found = 0
    waiting = [value]
    for node in waiting:  # grows during the loop
        kind = type(node)
        if kind is str:
            found += _count(node, ":", _MANY_COLONS)
        elif kind is dict:
            found += len(node)
            waiting += node
            waiting += node.values()
        elif kind is list:
            waiting += node
        elif kind is int and not -_INTEGER_BOUND < node < _INTEGER_BOUND:
            raise OverflowError
    return found


def _openings(body: bytes, enough: int) -> int:
    """Return the number of opening brackets in `body`, strings included: a bound on its depth and size.

    Exact up to `enough`.
    """
    return _count(body, b"[", enough) + _count(body, b"{", enough)


def _has_many_members(body: bytes) -> bool:
    """True if it has many commas, strings included."""
    return _count(body, b",", _MANY_COMMAS) > _MANY_COMMAS


def _count(text: AnyStr, sign: AnyStr, enough: int) -> int:
    """Return the number of `sign` in `text`; if it exceeds `enough`, any number above `enough`."""
    if len(text) < _LONG:
        return text.count(sign)
    found, at = 0, text.find(sign)
    while at >= 0 and found <= enough:  # skips megabytes of base64, of which count() looks at each byte
        found += 1
        at = text.find(sign, at + 1)
    return found


# --- carefully ------------------------------------------------------------------------------------


def _read_carefully(body: bytes) -> Any:
    if len(body) > MAX_VALUES and _holds_too_many_values(body):
        raise ParseError(
            f"the message holds more than {MAX_VALUES} commas and opening brackets outside of its strings"
        )
    if body.startswith(_BYTE_ORDER_MARKS):
        raise ParseError("the message begins with a byte order mark (BOM); send it in UTF-8 without one")
    try:
        value = _DECODER.decode(body.decode("utf-8"))
    except UnicodeDecodeError:
        raise ParseError("the message is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ParseError(f"the message is not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise ParseError(_TOO_DEEP) from None
    # Counting is cheaper than walking.
    if _openings(body, MAX_DEPTH) > MAX_DEPTH and _is_too_deep(value):
        raise ParseError(_TOO_DEEP)
    if b"\\u" in body and _HALF_PAIR.search(body):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ParseError("the message holds half a surrogate pair") from None
    return value


def _holds_too_many_values(body: bytes) -> bool:
    """True if reading the values would cost many times their bytes; a value follows a comma or a bracket.

    Commas and brackets in strings count as well until the limit is exceeded. Only then the strings are cut
    out; a member has at most two.
    """
    if _separators(body) <= MAX_VALUES:
        return False
    pieces = body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"', 4 * MAX_VALUES)
    return len(pieces) > 4 * MAX_VALUES or _separators(b"".join(pieces[::2])) > MAX_VALUES


def _separators(body: bytes) -> int:
    return body.count(b",") + body.count(b"[") + body.count(b"{")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ParseError("the message repeats a key within one object")
    return value


def _integer(text: str) -> int:
    if len(text) >= _MAX_INTEGER_DIGITS and (
        len(text) > _MAX_INTEGER_DIGITS + 1 or abs(int(text)) >= _INTEGER_BOUND
    ):
        raise ParseError("the message holds an integer past 64 bits")
    return int(text)


def _number(text: str) -> float:
    value = float(text)
    if isinf(value):
        raise ParseError("the message holds a number past the range of a double")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ParseError(f"the message holds {name}, which is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_number, parse_constant=_no_constant
)


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        inside = [node.values() if type(node) is dict else node for node in level]
        level = [child for children in inside for child in children if type(child) in _CONTAINERS]
        if not level:
            return False
    return True


# --- refusals -----------------------------------------------------------------------------------


class Refusal(Exception):
    """The refusal of a request: an HTTP status, and a JSON-RPC error in its answer.

    ```
    Refusal
    ├── 401 unauthorized               no bearer token, or not the right one
    ├── 403 insufficient_scope         a token of the right caller that lacks a scope
    ├── 503 authenticator_unavailable  the token cannot be checked now
    ├── 429 too_many_wrong_tokens      the address has sent so many that it has to wait
    ├── 403 origin_not_allowed         a browser page of another site
    ├── 421 host_not_allowed           a name that is not this server's (DNS rebinding)
    ├── 405 method_not_allowed         only POST carries messages, or a WebSocket
    ├── 406 not_acceptable             the answer is a stream, and the client does not accept one
    ├── 426 upgrade_required           a WebSocket of another version
    ├── 415 unsupported_media_type     the body is not declared as plain JSON
    ├── 413 message_too_large          over the limit on one message
    ├── 408 body_timeout               the body stopped coming
    ├── 503 server_stopping            the server stops, and the body has not arrived whole
    ├── 400 bad_handshake              an invalid WebSocket handshake
    ├── 503 too_many_connections       the limit on connections is reached, in total or for one address
    ├── 503 too_many_websockets        the limit on WebSockets is reached, in total or for one address
    └── 400 ...                        JSON-RPC's own codes: not JSON, not a request, versions that disagree
    ```
    """

    def __init__(
        self,
        status: int,
        code: int,
        error_type: str,
        message: str,
        *,
        headers: Mapping[str, str] | None = None,
        close: bool = False,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """`close` ends the connection after the answer; `details` stand in the error's data."""
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = dict(headers or {})
        self.close = close
        self.data = {"error_type": error_type, **({"details": dict(details)} if details else {})}


# --- messages -------------------------------------------------------------------------------------


class InvalidRequestError(ValueError):
    """The JSON is not one JSON-RPC 2.0 message; `id` is the message's id, or None if it has no usable one."""

    def __init__(self, message: str, request_id: RequestId | None = None) -> None:
        super().__init__(message)
        self.id = request_id


class Request(msgspec.Struct, frozen=True):
    id: RequestId
    method: str
    params: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Notification:
    method: str
    params: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Reply:
    """A response from the client to a request of the server; its members are unchanged."""

    id: RequestId | None
    result: Any = None
    error: Any = None


Message = Request | Notification | Reply


def as_message(value: Any) -> Message:
    """Return the JSON-RPC message in `value`.
    Raises InvalidRequestError: it is not a message, or is a batch.
    """
    if not isinstance(value, dict):
        raise InvalidRequestError("the message must be one JSON-RPC 2.0 object")
    request_id = value.get("id")
    if isinstance(request_id, bool) or not isinstance(request_id, str | int):
        request_id = None
    if value.get("jsonrpc") != "2.0":
        raise InvalidRequestError('`jsonrpc` must be "2.0"', request_id)
    if "method" not in value and ("result" in value or "error" in value):
        return Reply(request_id, value.get("result"), value.get("error"))
    method, params = value.get("method"), value.get("params")
    if not isinstance(method, str):
        raise InvalidRequestError("`method` must be a string", request_id)
    if params is not None and not isinstance(params, dict):
        raise InvalidRequestError("`params` must be an object", request_id)
    if "id" not in value:
        return Notification(method, params)
    if request_id is None:
        raise InvalidRequestError("`id` must be a string or an integer")
    if method == _CALL and params is not None and type(params.get("arguments")) is str:
        params = {**params, "arguments": _arguments_in(params["arguments"])}
    return Request(request_id, method, params)


def _arguments_in(text: str) -> Any:
    """Return the arguments of a call that some clients send as JSON text; `text` if it is not an object."""
    try:
        arguments = parse(text.encode()) if text else {}
    except ParseError:
        return text
    return arguments if isinstance(arguments, dict) else text


def result_bytes(request_id: RequestId, result: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": request_id, "result": result})


def error_data(code: int, data: Any) -> dict[str, Any]:
    """Return `data` in the form of every error here: an `error_type`, and `details`, always an object.

    Members that the protocol itself defines in `data` stay at the top level too, where its clients expect
    them.
    """
    error_type = _ERROR_TYPES.get(code, "server_error")
    members = data if isinstance(data, dict) else {"details": data} if data else {}
    details = members.get("details", {name: members[name] for name in members if name != "error_type"})
    return {
        "error_type": error_type,
        **members,
        "details": details if isinstance(details, dict) else {"value": details},
    }


def error_bytes(request_id: RequestId | None, code: int, message: str, data: Any = None) -> bytes:
    """Return an error response; `request_id` is None if the id of the request could not be read."""
    error: dict[str, Any] = {"code": code, "message": message, "data": error_data(code, data)}
    return msgspec.json.encode({"jsonrpc": "2.0", "id": request_id, "error": error})


def request_bytes(request_id: RequestId, method: str, params: Mapping[str, Any] | None) -> bytes:
    return _sent({"jsonrpc": "2.0", "id": request_id, "method": method}, params)


def notification_bytes(method: str, params: Mapping[str, Any] | None) -> bytes:
    return _sent({"jsonrpc": "2.0", "method": method}, params)


def _sent(message: dict[str, Any], params: Mapping[str, Any] | None) -> bytes:
    if params is not None:
        message["params"] = params
    return msgspec.json.encode(message)
