"""Promises on every operation: keys, routes, fields, sizes, and never a 500 caused by a request."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from kb_contracts.api import models as m
from kb_contracts.api import operations as ops
from kb_verify.client import Client, Served, decode, problem
from kb_verify.run import Target

UUID = "00000000-0000-4000-8000-000000000000"
JSON = {"Content-Type": "application/json"}
WRONG_KEYS = [None, "Bearer wrong", "Bearer", "Basic cmlnaHQ=", "Bearer {key}x", "{key}"]


def path_of(operation: ops.AnyOperation) -> str:
    return operation.path.format(job_id=UUID, document_id="7", tag="a", version=1, collection_id=UUID)


def send(kb: Client, operation: ops.AnyOperation, **request: Any) -> httpx.Response:
    return kb.http.request(operation.method, path_of(operation), **request)


@pytest.mark.parametrize("operation", ops.OPERATIONS, ids=lambda operation: operation.id)
def test_with_a_key_set_only_its_bearer_is_served(
    keyless: httpx.Client, target: Target, operation: ops.AnyOperation
) -> None:
    """Every operation except the probes; the key is checked before the rest of the request."""
    for form in WRONG_KEYS:
        headers = {} if form is None else {"Authorization": form.format(key=target.api_key)}
        response = keyless.request(operation.method, path_of(operation), content=b"{", headers=headers)
        if operation.public:
            decode(response, m.Health)
        else:
            problem(response, "unauthorized")
            assert response.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
def test_the_right_key_is_served(keyless: httpx.Client, target: Target, scheme: str) -> None:
    headers = {"Authorization": f"{scheme} {target.api_key}"}
    decode(keyless.get("/api/v1/status", headers=headers), m.Status)


@pytest.mark.parametrize("twice", ["Authorization", "Origin"])
def test_a_header_that_tells_who_asks_stands_once(keyless: httpx.Client, target: Target, twice: str) -> None:
    """A proxy in front may have read the other value; a valid key does not help."""
    headers = [("Authorization", f"Bearer {target.api_key}"), ("Origin", "http://localhost")]
    headers += [header for header in headers if header[0] == twice]
    problem(keyless.get("/api/v1/status", headers=headers), "unauthorized")


def test_an_unknown_path_wants_the_key_too(keyless: httpx.Client) -> None:
    """Existing paths are not revealed without the key."""
    problem(keyless.get("/api/v1/nothing"), "unauthorized")


@pytest.mark.parametrize("path", ["/", "/api/v1", "/api/v1/serch", "/api/v2/search", "/api/v1/jobs/", "//"])
def test_an_unknown_path_is_not_found(kb: Client, path: str) -> None:
    problem(kb.http.get(path), "route_not_found")


def test_another_method_is_told_which_are_taken(kb: Client) -> None:
    response = kb.http.put("/api/v1/jobs", json={})
    problem(response, "method_not_allowed")
    assert {"GET", "POST"} <= {method.strip() for method in response.headers["Allow"].split(",")}


@pytest.mark.parametrize("operation", ops.OPERATIONS, ids=lambda operation: operation.id)
def test_an_unknown_query_parameter_is_refused(kb: Client, operation: ops.AnyOperation) -> None:
    response = send(kb, operation, params={"colour": "red"})
    assert problem(response, "unknown_parameter").parameter == "colour"


def test_a_query_parameter_twice_is_refused(kb: Client) -> None:
    problem(kb.http.get("/api/v1/jobs?limit=1&limit=2"), "invalid_parameter")


def test_raglers_operations_are_served_whole_or_not_at_all(served: Served) -> None:
    """A client that finds one of them relies on the others."""
    assert not (served.ragler and served.missing), f"served but for {', '.join(sorted(served.missing))}"


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"{'a': 1}"])
def test_a_body_that_is_not_json_is_refused(kb: Client, served: Served, content: bytes) -> None:
    for operation in served.operations:
        if operation.body is not None:
            problem(send(kb, operation, content=content, headers=JSON), "invalid_request")


@pytest.mark.parametrize(
    "content",
    [b"null", b"[]", b'"x"', b"1", b"[" * 200_000],
    ids=["null", "array", "string", "number", "deep"],
)
def test_a_body_that_is_no_object_is_refused(kb: Client, served: Served, content: bytes) -> None:
    for operation in served.operations:
        if operation.body is not None:
            response = send(kb, operation, content=content, headers=JSON)
            code = "invalid_request" if response.status_code == 400 else "invalid_parameter"
            problem(response, code)


def test_a_giant_json_body_is_refused(kb: Client) -> None:
    """Without being read, or because its query is too long."""
    content = b'{"query": "' + b"x" * (9 * 1024 * 1024) + b'"}'
    response = kb.request(ops.SEARCH, content=content, headers=JSON)
    problem(response, "payload_too_large" if response.status_code == 413 else "invalid_parameter")


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/xml", "", "application/x-www-form-urlencoded"]
)
def test_another_content_type_is_refused(kb: Client, content_type: str) -> None:
    """Before the body is read."""
    kb.refused("unsupported_media_type", ops.SEARCH, content=b"{}", headers={"Content-Type": content_type})


@pytest.mark.parametrize(
    "metadata",
    [
        '{"n": 123456789012345678901234567890}',
        '{"n": 1e400}',
        '{"n": -1e-400}',
        '{"\\u0000": "\\u0000"}',
        '{"n": ' + "[" * 500 + "]" * 500 + "}",
        '{"n": ' + "[" * 3_000 + "]" * 3_000 + "}",
        '{"text": "\\ud800"}',
    ],
    ids=["big integer", "infinite", "tiny", "NUL", "deep", "deeper", "surrogate"],
)
def test_odd_json_is_taken_in_or_refused(kb: Client, metadata: str) -> None:
    """If accepted, they come back in documents, lists and searches; they never cause an internal error."""
    content = f'{{"text": "granite", "metadata": {metadata}}}'.encode()
    response = kb.request(ops.CREATE_JOB, content=content, headers=JSON)
    if response.status_code == 202:
        document = kb.completed(decode(response, m.Job, 202))
        kb.document(document)
        assert kb.listed() == kb.found("granite") == [document]
    else:
        problem(response, "invalid_request" if response.status_code == 400 else "invalid_parameter")
