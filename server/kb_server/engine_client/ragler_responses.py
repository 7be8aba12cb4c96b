"""From a response of RAGler's backend to a model or a fault: pure, and liberal in what it takes."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from kb_contracts.api.operations import AnyOperation
from kb_server.engine_client.errors import EngineFault, RateLimited, Refused
from kb_server.engine_client.responses import RawResponse, fault_of, problem_of, read_json

S = TypeVar("S", bound=msgspec.Struct)

NOT_FOUND, FORBIDDEN = "collection_not_found", "forbidden"
"""Reasons of `Refused` that a status alone is enough for."""
_CAPITAL = re.compile(r"(?<=[a-z0-9])[A-Z]")


class NotThere(Refused):
    """A 404 that does not say what is missing: the collection, or the operation itself."""


def read(operation: AnyOperation, response: RawResponse, model: type[S], *, in_collection: bool = False) -> S:
    """The response as `model`, without what is null; `in_collection`: one collection was asked for.

    Members may be named `created_by` or `createdBy`: backends of this API do both.

    Raises:
        EngineFault: it is not a success, or cannot be read. A 404 about one collection is `NotThere` unless
            the backend says what is missing.
    """
    if not response.is_success:
        raise _fault(operation, response, in_collection=in_collection)
    return read_json(
        operation, response, lambda body: msgspec.convert(_normalized(msgspec.json.decode(body)), model)
    )


def _fault(operation: AnyOperation, response: RawResponse, *, in_collection: bool) -> EngineFault:
    fault = fault_of(operation, response, now=datetime.now(UTC))
    code = problem_of(response).get("code")
    match response.status:
        case 403:
            return Refused(FORBIDDEN, fault.detail)
        case 404 if in_collection and code == NOT_FOUND:
            return Refused(NOT_FOUND, fault.detail)
        case 404 if in_collection and code != "route_not_found":
            return NotThere(NOT_FOUND, fault.detail)
        case 429:
            return RateLimited(fault.detail, retry_after=fault.retry_after)
        case _:
            return fault


def _normalized(value: Any) -> Any:
    """`value` without the members that are null, their names in snake case (which counts, given both)."""
    if isinstance(value, list):
        return [_normalized(item) for item in value]
    if not isinstance(value, dict):
        return value
    members = {name: _normalized(member) for name, member in value.items() if member is not None}
    return {_CAPITAL.sub(_lowered, name): member for name, member in members.items()} | {
        name: member for name, member in members.items() if not _CAPITAL.search(name)
    }


def _lowered(capital: re.Match[str]) -> str:
    return f"_{capital.group().lower()}"
