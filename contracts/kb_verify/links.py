"""The contract's links, followed one after another: each leads from a response to the operation it names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import httpx

from kb_contracts.api import operations as ops
from kb_contracts.api.ragler import collection_id
from kb_verify.client import Client

LINKS: tuple[tuple[str, ops.Link], ...] = tuple(
    (operation.id, link) for operation in ops.OPERATIONS for link in operation.links
)
"""Every link of the contract with the operation that it starts at."""


def follow(kb: Client, source: str, link: ops.Link) -> httpx.Response:
    """Call `source`, then the operation that `link` leads to; the last response."""
    start = SOURCES[source](kb)
    assert start.is_success, f"{source} answers {start.status_code} {start.text[:300]}"
    target = ops.BY_ID[link.operation]
    place = {name: value_at(start.json(), pointer) for name, pointer in link.parameters.items()}
    body = {} if target.example is None else {"json": dict(target.example)}
    response = kb.request(target, *(place[name] for name in target.path_parameters), **body)
    kb.tally.count_link(source, link.operation, response.status_code)
    return response


def value_at(answer: Any, pointer: str) -> Any:
    """What stands at a pointer (RFC 6901)."""
    value = answer
    for step in pointer.removeprefix("/").split("/"):
        value = value[int(step)] if isinstance(value, list) else value[step]
    return value


def _with_note(operation_id: str, **request: Any) -> Callable[[Client], httpx.Response]:
    """Call an operation on a note that has been taken in."""

    def send(kb: Client) -> httpx.Response:
        document = kb.note("granite quarry", tags=["a", "b"])
        known = {"document_id": document, "tag": "b"}
        operation = ops.BY_ID[operation_id]
        return kb.request(operation, *(known[name] for name in operation.path_parameters), **request)

    return send


def _in_a_collection(operation_id: str, **request: Any) -> Callable[[Client], httpx.Response]:
    """Call an operation while a note is in a collection."""

    def send(kb: Client) -> httpx.Response:
        kb.note("granite quarry", tags=["collection:stones"])
        return kb.request(ops.BY_ID[operation_id], **request)

    return send


SOURCES: Mapping[str, Callable[[Client], httpx.Response]] = {
    "search": _with_note("search", json={"query": "granite"}),
    "createJob": lambda kb: kb.request(ops.CREATE_JOB, json={"text": "granite quarry"}),
    "listJobs": _with_note("listJobs"),
    "getJob": lambda kb: kb.request(ops.GET_JOB, kb.ended(kb.submit("granite quarry")).id),
    "retryJob": lambda kb: kb.request(ops.RETRY_JOB, kb.ended(kb.send("a.txt", b"\xff\xfe\xfd")).id),
    "listDocuments": _with_note("listDocuments"),
    "getDocument": _with_note("getDocument"),
    "patchNote": _with_note("patchNote", json={"title": "Stone"}),
    "addTags": _with_note("addTags", json={"tags": ["c"]}),
    "removeTag": _with_note("removeTag"),
    "vectorSearch": _in_a_collection("vectorSearch", json={"query": "granite"}),
    "listCollections": _in_a_collection("listCollections"),
    "putCollection": lambda kb: kb.put_collection(collection_id("stones"), "stones"),
}
"""How to get a response of each operation that has links."""
