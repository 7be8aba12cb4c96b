"""Conversion of unsuccessful responses to faults: problem documents, statuses of proxies, times to wait."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from kb_contracts.api.errors import ERRORS
from kb_contracts.api.operations import AnyOperation
from kb_server.engine_client import errors
from kb_server.engine_client.http1 import RawResponse

FORBIDDEN = "forbidden"
"""The code of a refusal that concerns the caller, and not this server's own key."""
MAX_DETAIL = 300
"""Maximum number of characters taken from an engine's message."""

_JSON_TYPES = frozenset({"application/json", "application/problem+json"})
_MAX_RETRY_AFTER = 3_600.0
_BUSY = frozenset({"queue_full", "not_ready"})
_GATEWAY = frozenset({502, 504})
_NOT_THIS_API = frozenset({"route_not_found", "method_not_allowed"})
_KNOWN_MEMBERS = frozenset({"type", "title", "status", "code", "detail", "instance", "retry_after"})


def fault_of(operation: AnyOperation, response: RawResponse, *, now: datetime) -> errors.EngineFault:
    """Return the fault for a response outside of 2xx; `now` is for a `Retry-After` with a date."""
    problem = problem_of(response)
    wait = _retry_after(response.retry_after or problem.get("retry_after"), now)
    code = problem.get("code")
    detail = f"It answered with the status {response.status}."
    for member in ("message", "title", "detail"):  # the last one wins; `message` is used by foreign servers
        if isinstance(words := problem.get(member), str) and words:
            detail = words[:MAX_DETAIL]
    if response.status == 401 or (response.status == 403 and code != FORBIDDEN):
        return errors.EngineUnauthorized(detail)
    if 300 <= response.status < 400:
        return errors.EngineBadAnswer(
            f"It answered {name_of(operation)} with a redirect ({response.status})."
        )
    if code in _BUSY or response.status == 429:
        return errors.EngineBusy(detail, retry_after=wait)
    if code in _NOT_THIS_API or (code is None and response.status in (404, 405)):
        return errors.EngineBadAnswer(f"It does not serve {name_of(operation)} ({response.status}).")
    if code in ERRORS and code != "internal":
        members = {
            key: value
            for key, value in problem.items()
            if key not in _KNOWN_MEMBERS and isinstance(value, str | int | float)
        }
        return errors.Refused(code, detail, retry_after=wait, members=members)
    if response.status == 503:
        return errors.EngineBusy(detail, retry_after=wait)
    if response.status >= 500:
        return errors.EngineFailed(
            detail, retry_after=wait, gateway=code is None and response.status in _GATEWAY
        )
    if response.status < 400:
        return errors.EngineBadAnswer(f"It answered {name_of(operation)} with the status {response.status}.")
    return errors.Refused("engine_refused", detail, retry_after=wait)


def problem_of(response: RawResponse) -> dict[str, Any]:
    """Return the members of a problem document; empty if the body is not one."""
    if response.content_type not in _JSON_TYPES:
        return {}
    try:
        problem = msgspec.json.decode(response.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    if not isinstance(problem, dict):
        return {}
    return {key: value for key, value in problem.items() if key != "code" or isinstance(value, str)}


def _retry_after(raw: object, now: datetime) -> float | None:
    """Return the seconds to wait, given as a number or a date, at most an hour; None if absent or NaN."""
    if raw is None:
        return None
    try:
        seconds = float(str(raw))
    except ValueError:
        try:
            moment = parsedate_to_datetime(str(raw))
            seconds = (moment.replace(tzinfo=moment.tzinfo or UTC) - now).total_seconds()
        except ValueError:
            seconds = 0.0
    return min(max(seconds, 0.0), _MAX_RETRY_AFTER) if seconds == seconds else None


def name_of(operation: AnyOperation) -> str:
    """Return the name of the operation in faults."""
    return f"{operation.method} {operation.path}"
