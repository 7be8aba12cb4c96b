"""JSON-RPC 2.0 on the wire: bytes to messages, and answers to bytes.

A body is parsed in one pass, strictly: what two readers could read differently (a duplicate key, NaN,
half a surrogate pair, a number past 64 bits) is refused, and so is nesting that could exhaust a stack.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import isinf
from typing import Any, NoReturn

import msgspec

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603

_ERROR_TYPES = {
    PARSE_ERROR: "parse_error",
    INVALID_REQUEST: "invalid_request",
    METHOD_NOT_FOUND: "method_not_found",
    INVALID_PARAMS: "invalid_params",
    INTERNAL_ERROR: "internal_error",
}

MAX_DEPTH = 64
"""How many arrays and objects may stand within one another."""

RequestId = str | int

_CONTAINERS = frozenset((dict, list))
_MAX_INTEGER_DIGITS = 19
_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")


class ParseError(ValueError):
    """The bytes are not JSON that this server reads; the message says why and quotes nothing."""


class InvalidRequestError(ValueError):
    """The JSON is not one JSON-RPC 2.0 message; `id` is the message's where it has a usable one."""

    def __init__(self, message: str, request_id: RequestId | None = None) -> None:
        super().__init__(message)
        self.id = request_id


@dataclass(frozen=True, slots=True)
class Request:
    """A request: it is owed an answer under `id`."""

    id: RequestId
    method: str
    params: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Notification:
    """A notification: nobody waits for an answer."""

    method: str
    params: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Reply:
    """A response from the client; this server asks for none."""


Message = Request | Notification | Reply


def parse(body: bytes) -> Any:
    """The JSON value in `body`.

    Raises:
        ParseError: it is not UTF-8, not JSON, ambiguous, or nested deeper than `MAX_DEPTH`.
    """
    try:
        value = _DECODER.decode(body.decode("utf-8"))
    except UnicodeDecodeError:
        raise ParseError("the message is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ParseError(f"the message is not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise ParseError(f"the message is nested deeper than {MAX_DEPTH} levels") from None
    if brackets(body) > MAX_DEPTH:  # counting is cheaper than walking, and settles nearly every message
        _check_depth(value)
    if b"\\u" in body and _HALF_PAIR.search(body):
        _check_encodable(value)
    return value


def brackets(body: bytes) -> int:
    """How many brackets open in `body`, those within strings too: a bound on what there is to walk."""
    return body.count(b"[") + body.count(b"{")


def as_message(value: Any) -> Message:
    """The JSON-RPC message that `value` is.

    Raises:
        InvalidRequestError: it is none, or a batch.
    """
    if not isinstance(value, dict):
        raise InvalidRequestError("the message must be one JSON-RPC 2.0 object")
    request_id = value.get("id")
    if not _usable(request_id):
        request_id = None
    if value.get("jsonrpc") != "2.0":
        raise InvalidRequestError('`jsonrpc` must be "2.0"', request_id)
    if "method" not in value and ("result" in value or "error" in value):
        return Reply()
    method, params = value.get("method"), value.get("params")
    if not isinstance(method, str):
        raise InvalidRequestError("`method` must be a string", request_id)
    if params is not None and not isinstance(params, dict):
        raise InvalidRequestError("`params` must be an object", request_id)
    if "id" not in value:
        return Notification(method, params)
    if request_id is None:
        raise InvalidRequestError("`id` must be a string or an integer")
    return Request(request_id, method, params)


def result_bytes(request_id: RequestId, result: Mapping[str, Any]) -> bytes:
    """A response that carries `result`."""
    return msgspec.json.encode({"jsonrpc": "2.0", "id": request_id, "result": result})


def error_data(code: int, data: Any) -> dict[str, Any]:
    """`data` as every error here carries it: an `error_type`, and what else there is to tell."""
    error_type = _ERROR_TYPES.get(code, "server_error")
    if isinstance(data, dict):
        return {"error_type": error_type, **data}
    return {"error_type": error_type, **({"details": data} if data else {})}


def error_bytes(request_id: RequestId | None, code: int, message: str, data: Any = None) -> bytes:
    """A response that carries an error; `request_id` None where the request's could not be read."""
    error: dict[str, Any] = {"code": code, "message": message, "data": error_data(code, data)}
    return msgspec.json.encode({"jsonrpc": "2.0", "id": request_id, "error": error})


def notification_bytes(method: str, params: Mapping[str, Any] | None) -> bytes:
    """A notification to the client."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if params is not None:
        message["params"] = params
    return msgspec.json.encode(message)


def _usable(request_id: object) -> bool:
    return isinstance(request_id, str | int) and not isinstance(request_id, bool)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ParseError("the message repeats a key within one object")
    return value


def _integer(text: str) -> int:
    if len(text) >= _MAX_INTEGER_DIGITS and (len(text) > _MAX_INTEGER_DIGITS + 1 or abs(int(text)) >= 2**63):
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


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in _children(node)]
        if not level:
            return
    raise ParseError(f"the message is nested deeper than {MAX_DEPTH} levels")


def _children(node: Any) -> list[Any]:
    inside = node.values() if type(node) is dict else node
    return [child for child in inside if type(child) in _CONTAINERS]


def _check_encodable(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ParseError("the message holds half a surrogate pair") from None
