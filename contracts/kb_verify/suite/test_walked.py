"""Promises on links: every link of the contract works, and every operation succeeds once in a run."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest

from kb_contracts.api import operations as ops
from kb_contracts.api.errors import ERRORS
from kb_contracts.api.ragler import collection_id
from kb_verify.client import Client, Served, cancelled, problem
from kb_verify.files import pdf
from kb_verify.results import Tally

LINKS = tuple((operation.id, link) for operation in ops.OPERATIONS for link in operation.links)
"""Every link of the contract with the operation whose response has it."""


def value_at(answer: Any, pointer: str) -> Any:
    """Return the value at a pointer (RFC 6901)."""
    value = answer
    for step in pointer.removeprefix("/").split("/"):
        value = value[int(step)] if isinstance(value, list) else value[step]
    return value


def answer_of(kb: Client, operation: ops.AnyOperation) -> httpx.Response:
    """Return a successful response of the operation on prepared data; its body is the contract's example."""
    match operation.id:
        case "createJob":
            return kb.request(operation, json={"text": "granite quarry"})
        case "getJob":
            return kb.request(operation, kb.ended(kb.submit("granite quarry")).id)
        case "retryJob":
            return kb.request(operation, kb.ended(kb.send("a.txt", b"\xff\xfe\xfd")).id)
        case "checkCitation":
            kb.note("granite quarry")
            (found,) = kb.search("granite", top=1, citations=True).results
            return kb.request(operation, json=msgspec.to_builtins(found.citation))
        case "listTrash":
            kb.call(ops.DELETE_DOCUMENT, kb.note("granite quarry"))
            return kb.request(operation)
        case "listVersions" | "getVersion" | "restoreVersion":
            before = kb.stored_note("granite quarry")
            kb.patched(before.id, text="basalt")
            place = (before.id, before.version)
            return kb.request(operation, *place[: len(operation.path_parameters)])
        case "getOriginal":
            return kb.request(operation, kb.file("a.txt", b"granite quarry"))
        case "getPicture":
            return kb.request(operation, kb.file("a.pdf", pdf(["granite quarry " * 9])))
        case "putCollection":
            return kb.put_collection(collection_id("stones"), "stones")
    known = {"document_id": kb.note("granite quarry", tags=["collection:stones", "b"]), "tag": "b"}
    body = {} if operation.example is None else {"json": dict(operation.example)}
    if "query" in (operation.example or {}):
        body = {"json": {"query": "granite"}}
    return kb.request(operation, *(known[name] for name in operation.path_parameters), **body)


@pytest.mark.parametrize(
    ("source", "link"), LINKS, ids=[f"{source}-{link.operation}" for source, link in LINKS]
)
def test_every_link_leads_on(kb: Client, source: str, link: ops.Link) -> None:
    """With values from a response, to a success; a job that has already ended cannot be cancelled."""
    start = answer_of(kb, ops.BY_ID[source])
    assert start.is_success, f"{source} answers {start.status_code} {start.text[:300]}"
    target = ops.BY_ID[link.operation]
    place = {name: value_at(start.json(), pointer) for name, pointer in link.parameters.items()}
    body = {} if target.example is None else {"json": dict(target.example)}
    response = kb.request(target, *(place[name] for name in target.path_parameters), **body)
    kb.tally.count_link(source, link.operation, response.status_code)
    if link.operation == "cancelJob" and response.status_code == ERRORS["job_finished"].status:
        problem(response, "job_finished")
        cancelled(kb)
        kb.tally.count_link(source, link.operation, 200)
    else:
        assert response.is_success, f"{response.status_code} {response.text[:300]}"


def test_every_operation_has_succeeded(kb: Client, tally: Tally, served: Served) -> None:
    """Each served operation, at least once in this run."""
    for operation_id in ("getStatus", "getHealth", "getReadiness", "listTags"):
        kb.request(ops.BY_ID[operation_id])
    served_ids = {operation.id for operation in served.operations}
    if not kb.keeps_originals:
        served_ids -= {ops.GET_ORIGINAL.id, ops.GET_PICTURE.id}
    counts = [count for count in tally.operation_counts() if count.operation in served_ids]
    missed = [count.operation for count in counts if not count.succeeded]
    if missed == ["cancelJob"]:
        cancelled(kb)
    else:
        assert not missed, f"no success was answered by {', '.join(missed)}"
