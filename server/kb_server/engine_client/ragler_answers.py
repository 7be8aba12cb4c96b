"""From an answer of RAGler's backend to a model or a fault: pure, and liberal in what it takes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from kb_contracts.operations import Operation
from kb_server.engine_client.answers import RawAnswer, fault_of, fitted, problem_of
from kb_server.engine_client.errors import EngineFault, RateLimited, Refused

S = TypeVar("S", bound=msgspec.Struct)

NOT_FOUND, FORBIDDEN = "collection_not_found", "forbidden"
"""Reasons of `Refused` that a status alone is enough for."""


def read(operation: Operation, answer: RawAnswer, model: type[S], *, in_collection: bool = False) -> S:
    """The answer as `model`, without what is null; `in_collection`: one collection was asked for.

    Raises:
        EngineFault: it is not a success, or cannot be read.
    """
    if not answer.is_success:
        raise _fault(operation, answer, in_collection=in_collection)
    return fitted(operation, answer, lambda body: msgspec.convert(_told(msgspec.json.decode(body)), model))


def _fault(operation: Operation, answer: RawAnswer, *, in_collection: bool) -> EngineFault:
    fault = fault_of(operation, answer, now=datetime.now(UTC))
    match answer.status:
        case 403:
            return Refused(FORBIDDEN, fault.detail)
        case 404 if in_collection and problem_of(answer).get("code") != "route_not_found":
            return Refused(NOT_FOUND, fault.detail)
        case 429:
            return RateLimited(fault.detail, retry_after=fault.retry_after)
        case _:
            return fault


def _told(value: Any) -> Any:
    """`value` without the members that are null: what is null was not told."""
    if isinstance(value, dict):
        return {name: _told(member) for name, member in value.items() if member is not None}
    return [_told(item) for item in value] if isinstance(value, list) else value
