"""The contract's links, followed one after another: what an answer says leads to what it says it leads to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import httpx

from kb_contracts.api.operations import (
    BY_ID,
    CREATE_JOB,
    GET_JOB,
    OPERATIONS,
    RETRY_JOB,
    AnyOperation,
    Link,
)
from kb_contracts.api.ragler import collection_id
from kb_verify.client import Client

LINKS: tuple[tuple[str, Link], ...] = tuple(
    (operation.id, link) for operation in OPERATIONS for link in operation.links
)
"""Every link of the contract with the operation that it starts at."""


def follow(kb: Client, source: str, link: Link) -> httpx.Response:
    """Ask `source`, then where `link` leads; the last answer."""
    start = SOURCES[source](kb)
    assert start.is_success, f"{source} answers {start.status_code} {start.text[:300]}"
    target = BY_ID[link.operation]
    place = {name: value_at(start.json(), pointer) for name, pointer in link.parameters.items()}
    response = kb.ask(target, *(place[name] for name in target.path_parameters), **_body(target))
    kb.tally.followed(source, link.operation, response.status_code)
    return response


def value_at(answer: Any, pointer: str) -> Any:
    """What stands at a pointer (RFC 6901)."""
    value = answer
    for step in pointer.removeprefix("/").split("/"):
        value = value[int(step)] if isinstance(value, list) else value[step]
    return value


def _body(operation: AnyOperation) -> dict[str, Any]:
    return {"json": dict(operation.example)} if operation.example is not None else {}


def _with_note(operation_id: str, **request: Any) -> Callable[[Client], httpx.Response]:
    """Ask an operation about a note that has been taken in."""

    def ask(kb: Client) -> httpx.Response:
        document = kb.note("granite quarry", tags=["a", "b"])
        known = {"document_id": document, "tag": "b"}
        operation = BY_ID[operation_id]
        return kb.ask(operation, *(known[name] for name in operation.path_parameters), **request)

    return ask


def _accepted(kb: Client) -> httpx.Response:
    return kb.ask(CREATE_JOB, json={"text": "granite quarry"})


def _ended(kb: Client) -> httpx.Response:
    job = kb.ended(kb.submit("granite quarry"))
    return kb.ask(GET_JOB, job.id)


def _tried_again(kb: Client) -> httpx.Response:
    return kb.ask(RETRY_JOB, kb.ended(kb.send("a.txt", b"\xff\xfe\xfd")).id)


def _described(kb: Client) -> httpx.Response:
    return kb.describe(collection_id("stones"), "stones")


def _in_a_collection(operation_id: str, **request: Any) -> Callable[[Client], httpx.Response]:
    """Ask an operation while a note is in a collection."""

    def ask(kb: Client) -> httpx.Response:
        kb.note("granite quarry", tags=["collection:stones"])
        return kb.ask(BY_ID[operation_id], **request)

    return ask


SOURCES: Mapping[str, Callable[[Client], httpx.Response]] = {
    "search": _with_note("search", json={"query": "granite"}),
    "createJob": _accepted,
    "listJobs": _with_note("listJobs"),
    "getJob": _ended,
    "retryJob": _tried_again,
    "listDocuments": _with_note("listDocuments"),
    "getDocument": _with_note("getDocument"),
    "patchNote": _with_note("patchNote", json={"title": "Stone"}),
    "addTags": _with_note("addTags", json={"tags": ["c"]}),
    "removeTag": _with_note("removeTag"),
    "vectorSearch": _in_a_collection("vectorSearch", json={"query": "granite"}),
    "listCollections": _in_a_collection("listCollections"),
    "putCollection": _described,
}
"""How to come by an answer of each operation that has links."""
