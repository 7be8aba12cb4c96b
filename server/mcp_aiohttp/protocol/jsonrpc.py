"""JSON-RPC 2.0 on the wire: JSON values to messages, and answers to bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
SERVER_ERROR = -32000
"""The first of the codes that are left to servers: a method of its own cannot do its work."""

_ERROR_TYPES = {
    PARSE_ERROR: "parse_error",
    INVALID_REQUEST: "invalid_request",
    METHOD_NOT_FOUND: "method_not_found",
    INVALID_PARAMS: "invalid_params",
    INTERNAL_ERROR: "internal_error",
}

RequestId = str | int


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
    """`data` as every error here carries it: an `error_type`, and `details`, always an object.

    What the protocol itself puts into `data` stands there too, where its clients look for it.
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
