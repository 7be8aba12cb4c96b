"""What every operation promises: keys, routes, fields, sizes, and never a 500 for what a caller sends."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kb_contracts.operations import OPERATIONS, Operation
from tests.contract.caller import Caller, answered, problem
from tests.contract.conftest import Start

UUID = "00000000-0000-4000-8000-000000000000"


def path_of(operation: Operation) -> str:
    """The operation's path with parameters that fit."""
    values = {"job_id": UUID, "document_id": "7", "tag": "a"}
    return operation.path.format(**values)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.id)
async def test_with_a_key_set_only_its_bearer_is_served(start: Start, operation: Operation) -> None:
    """Every operation but the probes; nothing else is looked at before."""
    kb = await start(api_key="right")
    for header in (None, "Bearer wrong", "Bearer", "Basic cmlnaHQ=", "right", "Bearer rightx"):
        headers = {} if header is None else {"Authorization": header}
        response = await kb.http.request(operation.method, path_of(operation), content=b"{", headers=headers)
        if operation.open:
            answered(response)
        else:
            problem(response, "unauthorized")
            assert response.headers["WWW-Authenticate"] == "Bearer"


async def test_the_right_key_is_served(start: Start) -> None:
    """Whatever the case of the scheme."""
    kb = await start(api_key="right")
    for scheme in ("Bearer", "bearer"):
        answered(await kb.http.get("/api/v1/status", headers={"Authorization": f"{scheme} right"}))


async def test_an_unknown_path_wants_the_key_too(start: Start) -> None:
    """What exists is not told to strangers."""
    kb = await start(api_key="right")
    problem(await kb.http.get("/api/v1/nothing"), "unauthorized")


@pytest.mark.parametrize("path", ["/", "/api/v1", "/api/v1/serch", "/api/v2/search", "/api/v1/jobs/", "//"])
async def test_an_unknown_path_is_not_found(kb: Caller, path: str) -> None:
    """With the nearest path where there is one."""
    detail = problem(await kb.http.get(path), "route_not_found")["detail"]
    if path == "/api/v1/serch":
        assert "/api/v1/search" in detail


async def test_another_method_is_told_which_are_taken(kb: Caller) -> None:
    """In words and in `Allow`."""
    response = await kb.http.put("/api/v1/jobs", json={})
    problem(response, "method_not_allowed")
    assert {"GET", "POST"} <= set(response.headers["Allow"].split(", "))


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.id)
async def test_an_unknown_query_parameter_is_refused(kb: Caller, operation: Operation) -> None:
    """By every operation, by its name."""
    response = await kb.http.request(operation.method, path_of(operation), params={"colour": "red"})
    assert problem(response, "unknown_parameter")["parameter"] == "colour"


async def test_a_query_parameter_twice_is_refused(kb: Caller) -> None:
    """Neither of them wins in silence."""
    problem(await kb.http.get("/api/v1/jobs?limit=1&limit=2"), "invalid_parameter")


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"null", b"[]", b'"x"', b"\xff", b"{'a': 1}", b"[" * 200_000],
)
async def test_a_body_that_is_no_object_is_refused(kb: Caller, content: bytes) -> None:
    """By every operation with a body."""
    headers = {"Content-Type": "application/json"}
    for operation in OPERATIONS:
        if operation.body is not None:
            response = await kb.http.request(
                operation.method, path_of(operation), content=content, headers=headers
            )
            assert response.json()["code"] in {"invalid_request", "invalid_parameter"}, response.text


async def test_a_json_body_over_the_limit_is_refused(kb: Caller) -> None:
    """The answer names the limit."""
    content = b'{"query": "' + b"x" * (9 * 1024 * 1024) + b'"}'
    response = await kb.http.post(
        "/api/v1/search", content=content, headers={"Content-Type": "application/json"}
    )
    assert "8388608" in problem(response, "payload_too_large")["detail"]


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/xml", "", "application/x-www-form-urlencoded"]
)
async def test_another_content_type_is_refused(kb: Caller, content_type: str) -> None:
    """The answer says which is taken."""
    response = await kb.http.post("/api/v1/search", content=b"{}", headers={"Content-Type": content_type})
    assert "application/json" in problem(response, "unsupported_media_type")["detail"]


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
async def test_odd_json_is_taken_in_or_refused(kb: Caller, metadata: str) -> None:
    """Taken in, it comes back in documents, lists and searches; it is never a fault of the engine."""
    response = await kb.http.post(
        "/api/v1/jobs",
        content=f'{{"text": "granite", "metadata": {metadata}}}'.encode(),
        headers={"Content-Type": "application/json"},
    )
    if response.status_code == 202:
        document = await kb.completed(response.json())
        await kb.document(document)
        await kb.documents()
        assert await kb.found("granite") == [document]
    else:
        assert response.status_code in {400, 422}, response.text


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
WITH_BODY = [operation for operation in OPERATIONS if operation.body is not None]


def near(operation: Operation) -> st.SearchStrategy[Any]:
    """Bodies whose members have the right names and any values, beside bodies that have not."""
    assert operation.body is not None
    names = operation.body.__struct_fields__
    values = JSON | st.text(min_size=1, max_size=40) | st.lists(st.text(max_size=8), max_size=3)
    return st.fixed_dictionaries({}, optional=dict.fromkeys(names, values)) | JSON


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_no_json_body_is_a_fault_of_the_engine(kb: Caller, data: st.DataObject) -> None:
    """Whatever is sent to whichever operation, the answer is not a 5xx, and a refusal is a problem."""
    operation = data.draw(st.sampled_from(WITH_BODY))
    body = data.draw(near(operation))
    response = await kb.http.request(
        operation.method,
        path_of(operation),
        content=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    assert response.status_code < 500, response.text
    if response.status_code >= 400:
        problem(response, response.json()["code"])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    operation=st.sampled_from(OPERATIONS),
    parameters=st.dictionaries(
        st.sampled_from(["limit", "offset", "status", "wait", "tag", "prefix", "chunk_offset", "sort_by"]),
        st.text(max_size=12) | st.integers().map(str),
        max_size=3,
    ),
)
async def test_no_query_string_is_a_fault_of_the_engine(
    kb: Caller, operation: Operation, parameters: dict[str, str]
) -> None:
    """Nor any query parameter."""
    if operation.id == "getJob":
        parameters.pop("wait", None)
    response: httpx.Response = await kb.http.request(operation.method, path_of(operation), params=parameters)
    assert response.status_code < 500, response.text


async def test_two_credentials_are_two_callers_and_not_logged(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """No key and no text of a note is in the log."""
    caplog.set_level("DEBUG")
    kb = await start(api_key="very-secret-key")
    headers = {"Authorization": "Bearer very-secret-key"}
    job = answered(await kb.http.post("/api/v1/jobs", json={"text": "granite quarry"}, headers=headers), 202)
    answered(await kb.http.get(f"/api/v1/jobs/{job['id']}", params={"wait": 30}, headers=headers))
    answered(await kb.http.post("/api/v1/search", json={"query": "basalt columns"}, headers=headers))
    ours = "\n".join(
        f"{record.getMessage()} {record.__dict__}"
        for record in caplog.records
        if record.name.startswith("kb_")
    )
    assert ours
    for secret in ("very-secret-key", "granite quarry", "basalt columns"):
        assert secret not in ours
