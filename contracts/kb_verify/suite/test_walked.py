"""Every link of the contract leads on, and in the whole run every operation has answered with a success."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest

from kb_contracts.api import operations as ops
from kb_contracts.api.errors import ERRORS
from kb_contracts.api.ragler import collection_id
from kb_verify.client import Client, Served, cancelled, problem
from kb_verify.results import Tally

LINKS = tuple((operation.id, link) for operation in ops.OPERATIONS for link in operation.links)
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


@pytest.mark.parametrize(
    ("source", "link"), LINKS, ids=[f"{source}-{link.operation}" for source, link in LINKS]
)
def test_every_link_leads_on(kb: Client, source: str, link: ops.Link) -> None:
    """From an answer, by what it says, to a success; a job that has ended by then cannot be cancelled."""
    response = follow(kb, source, link)
    if link.operation == "cancelJob" and response.status_code == ERRORS["job_finished"].status:
        problem(response, "job_finished")
        cancelled(kb)
        kb.tally.count_link(source, link.operation, 200)
    else:
        assert response.is_success, f"{response.status_code} {response.text[:300]}"


def test_every_operation_has_succeeded(kb: Client, tally: Tally, served: Served) -> None:
    """Each that is served at least once in this run."""
    for operation_id in ("getStatus", "getHealth", "getReadiness", "listTags"):
        kb.request(ops.BY_ID[operation_id])
    served_ids = {operation.id for operation in served.operations}
    counts = [count for count in tally.operation_counts() if count.operation in served_ids]
    missed = [count.operation for count in counts if not count.succeeded]
    if missed == ["cancelJob"]:
        cancelled(kb)
    else:
        assert not missed, f"no success was answered by {', '.join(missed)}"
