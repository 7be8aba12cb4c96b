"""From an HTTP response to a model or a fault: pure, so that every misbehaviour can be tried in a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import msgspec

from kb_contracts.api.errors import ERRORS
from kb_contracts.api.operations import AnyOperation, Operation
from kb_server.engine_client.errors import (
    EngineBadAnswer,
    EngineBusy,
    EngineFailed,
    EngineFault,
    EngineUnauthorized,
    Refused,
)

R = TypeVar("R", bound=msgspec.Struct)
S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")

_JSON_TYPES = frozenset({"application/json", "application/problem+json"})
_MAX_DETAIL = 300
_TRUNCATED = "truncated"
"""What msgspec says of JSON that ends too early, or has not begun."""

_MAX_RETRY_AFTER = 3_600.0
_BUSY = frozenset({"queue_full", "not_ready"})
_GATEWAY = frozenset({502, 504})
_NOT_THIS_API = frozenset({"route_not_found", "method_not_allowed"})
_KNOWN_MEMBERS = frozenset({"type", "title", "status", "code", "detail", "instance", "retry_after"})


@dataclass(frozen=True, slots=True)
class RawResponse:
    """An HTTP response, read whole. `retry_after` is the header's text."""

    status: int
    content_type: str
    body: bytes
    retry_after: str | None = None

    @property
    def is_success(self) -> bool:
        """Whether its status is one of 2xx."""
        return 200 <= self.status < 300


def decode(operation: Operation[Any, R], response: RawResponse) -> R:
    """The response as the operation's model; members that it does not know are passed over.

    Raises:
        EngineFault: it is not a success, or not what the contract says.
    """
    model = operation.models.get(response.status, operation.response_model)
    return decode_as(model, operation, response)


def decode_as(model: type[S], operation: AnyOperation, response: RawResponse) -> S:
    """As `decode`, with a model of the caller's."""
    if not response.is_success:
        raise fault_of(operation, response, now=datetime.now(UTC))
    return read_json(operation, response, lambda body: msgspec.json.decode(body, type=model))


def read_json(operation: AnyOperation, response: RawResponse, read: Callable[[bytes], T]) -> T:
    """What `read` makes of the JSON of a success; it raises as msgspec does.

    Raises:
        EngineBadAnswer: it is no JSON, or `read` cannot make anything of it.
    """
    if response.content_type != "application/json":
        media_type = response.content_type[:80] or "no content type"
        raise EngineBadAnswer(f"It answered {_call(operation)} with {media_type}, not with JSON.")
    try:
        return read(response.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngineBadAnswer(
            f"Its answer to {_call(operation)} does not fit: {str(error)[:_MAX_DETAIL]}",
            broke_off=_TRUNCATED in str(error),
        ) from error


def fault_of(operation: AnyOperation, response: RawResponse, *, now: datetime) -> EngineFault:
    """The fault that a response outside of 2xx stands for; `now` is for a `Retry-After` that is a date."""
    problem = problem_of(response)
    wait = _retry_after(response, problem, now)
    code = problem.get("code")
    detail = _words(problem, response)
    if response.status in (401, 403):
        return EngineUnauthorized(detail)
    if 300 <= response.status < 400:
        return EngineBadAnswer(f"It answered {_call(operation)} with a redirect ({response.status}).")
    if code in _BUSY or response.status == 429:
        return EngineBusy(detail, retry_after=wait)
    if code in _NOT_THIS_API or (code is None and response.status in (404, 405)):
        return EngineBadAnswer(f"It does not serve {_call(operation)} ({response.status}).")
    if code in ERRORS and code != "internal":
        return Refused(code, detail, retry_after=wait, members=_members(problem))
    if response.status == 503:
        return EngineBusy(detail, retry_after=wait)
    if response.status >= 500:
        return EngineFailed(detail, retry_after=wait, gateway=code is None and response.status in _GATEWAY)
    if response.status < 400:
        return EngineBadAnswer(f"It answered {_call(operation)} with the status {response.status}.")
    return Refused("engine_refused", detail, retry_after=wait)


def problem_of(response: RawResponse) -> dict[str, Any]:
    """The members of a problem document; none where the body is something else."""
    if response.content_type not in _JSON_TYPES:
        return {}
    try:
        problem = msgspec.json.decode(response.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    if not isinstance(problem, dict):
        return {}
    return {key: value for key, value in problem.items() if key != "code" or isinstance(value, str)}


def _members(problem: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in problem.items()
        if key not in _KNOWN_MEMBERS and isinstance(value, str | int | float)
    }


def _words(problem: Mapping[str, Any], response: RawResponse) -> str:
    for member in ("detail", "title", "message"):  # the last is what others call it
        if isinstance(words := problem.get(member), str) and words:
            return words[:_MAX_DETAIL]
    return f"It answered with the status {response.status}."


def _retry_after(response: RawResponse, problem: Mapping[str, Any], now: datetime) -> float | None:
    """Seconds to wait: the header's number or date, else the document's member; at most an hour."""
    raw = response.retry_after or problem.get("retry_after")
    if raw is None:
        return None
    try:
        seconds = float(raw)
    except (TypeError, ValueError):
        seconds = _until(str(raw), now)
    return min(max(seconds, 0.0), _MAX_RETRY_AFTER) if seconds == seconds else None  # not for NaN


def _until(date: str, now: datetime) -> float:
    try:
        moment = parsedate_to_datetime(date)
    except ValueError:
        return 0.0
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - now).total_seconds()


def _call(operation: AnyOperation) -> str:
    return f"{operation.method} {operation.path}"
