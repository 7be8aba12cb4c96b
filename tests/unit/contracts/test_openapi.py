"""The adapter's responses fit the document: statuses, codes, headers and bodies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from io import BytesIO
from typing import Any

import msgspec
import pytest
from aiohttp import FormData, web
from aiohttp.test_utils import TestClient, TestServer
from jsonschema import Draft202012Validator

from kb_contracts.api.errors import ERRORS, EngineError
from kb_contracts.api.operations import OPERATIONS, SEARCH, AnyOperation
from kb_contracts.openapi import document, possible_errors
from kb_http.mount import build_application
from kb_http.requests import JSON_BODY_BYTES, Incoming

KEY = "secret"
DOCUMENT = document()
UUID = "3f0c5d7e-9a53-4f1c-8e2b-0b8f3f2f9b11"
PLACES = {"document_id": "42", "job_id": UUID, "tag": "email", "version": "3", "collection_id": UUID}
REQUIRED = {"removeSource": "?source_path=x"}

Client = TestClient[web.Request, web.Application]


async def fail(incoming: Incoming) -> msgspec.Struct:
    """A handler that fails with the code that the test sends."""
    assert isinstance(incoming.source, web.Request)
    raise EngineError(incoming.source.headers.get("X-Fail-With", "internal"), "As the test wants.")


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    app = build_application({entry.id: fail for entry in OPERATIONS}, api_key=KEY)
    async with TestClient(TestServer(app)) as made:
        yield made


def responses(operation: AnyOperation) -> dict[str, Any]:
    """Return the documented responses by status, with references resolved."""
    named = DOCUMENT["paths"][operation.path][operation.method.lower()]["responses"]
    shared = DOCUMENT["components"]["responses"]
    return {
        status: shared[entry["$ref"].rsplit("/", 1)[1]] if "$ref" in entry else entry
        for status, entry in named.items()
    }


async def exchange(
    client: Client,
    operation: AnyOperation,
    *,
    key: str = KEY,
    query: str = "",
    headers: dict[str, str] | None = None,
    **body: Any,
) -> tuple[int, Any]:
    """Send a request and check the response against the document; return its status and code."""
    if operation.example is not None and not body:
        body = {"json": operation.example}
    path = operation.path.format(**PLACES) + (query or REQUIRED.get(operation.id, ""))
    sent = {"Authorization": f"Bearer {key}", **(headers or {})}
    async with client.request(operation.method, path, headers=sent, **body) as response:
        answer = await response.json(content_type=None)
        documented = responses(operation)[str(response.status)]
        [(kind, content)] = documented["content"].items()
        assert response.content_type == kind
        validator = Draft202012Validator({**content["schema"], "components": DOCUMENT["components"]})
        validator.validate(answer)
        for name, header in documented.get("headers", {}).items():
            assert name in response.headers or not header.get("required")
    return response.status, answer["code"]


async def test_every_code_that_an_operation_may_fail_with_is_documented(
    client: Client, subtests: pytest.Subtests
) -> None:
    for operation in OPERATIONS:
        for code in possible_errors(operation):
            with subtests.test(operation=operation.id, code=code):
                answer = await exchange(client, operation, headers={"X-Fail-With": code})
                assert answer == (ERRORS[code].status, code)


async def test_a_query_parameter_that_does_not_exist_is_documented(
    client: Client, subtests: pytest.Subtests
) -> None:
    for operation in OPERATIONS:
        with subtests.test(operation=operation.id):
            assert await exchange(client, operation, query="?colour=red") == (422, "unknown_parameter")


async def test_the_document_names_the_operations_that_need_the_key(
    client: Client, subtests: pytest.Subtests
) -> None:
    """The probes ignore a wrong key."""
    for operation in OPERATIONS:
        with subtests.test(operation=operation.id):
            is_open = DOCUMENT["paths"][operation.path][operation.method.lower()].get("security") == []
            assert is_open == operation.public
            answer = (500, "internal") if is_open else (401, "unauthorized")
            assert await exchange(client, operation, key="wrong") == answer


@pytest.mark.parametrize(
    "operation", [entry for entry in OPERATIONS if entry.body], ids=lambda entry: entry.id
)
async def test_bodies_that_do_not_fit_are_documented(client: Client, operation: AnyOperation) -> None:
    json = {"Content-Type": "application/json"}
    assert await exchange(client, operation, data=b"{", headers=json) == (400, "invalid_request")
    assert await exchange(client, operation, json=[1]) == (422, "invalid_parameter")
    assert await exchange(client, operation, json={"colour": "red"}) == (422, "unknown_parameter")
    text = {"Content-Type": "text/plain"}
    assert await exchange(client, operation, data=b"x", headers=text) == (415, "unsupported_media_type")
    large = BytesIO(b" " * (JSON_BODY_BYTES + 1))
    assert await exchange(client, operation, data=large, headers=json) == (413, "payload_too_large")


async def test_a_giant_body_is_refused_with_the_figure_of_the_limit(client: Client) -> None:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    large = BytesIO(b" " * (JSON_BODY_BYTES + 1))
    async with client.post(SEARCH.path, data=large, headers=headers) as response:
        assert f"at most {JSON_BODY_BYTES} bytes" in (await response.json(content_type=None))["detail"]


@pytest.mark.parametrize("header", ["Idempotency-Key", "If-Match", "X-User-ID", "X-User-Role"])
async def test_a_header_that_does_not_fit_is_documented(client: Client, header: str) -> None:
    for operation in OPERATIONS:
        names = [
            entry.get("$ref", "")
            for entry in DOCUMENT["paths"][operation.path][operation.method.lower()].get("parameters", [])
        ]
        refused = await exchange(client, operation, headers={header: "\N{LATIN SMALL LETTER E WITH ACUTE}"})
        expected = "invalid_parameter" if f"#/components/parameters/{header}" in names else "internal"
        assert refused[1] == expected


async def test_a_file_goes_as_multipart(client: Client) -> None:
    [operation] = [entry for entry in OPERATIONS if entry.multipart]
    form = FormData({"tags": "[]"})
    form.add_field("file", b"text", filename="a.txt")
    assert await exchange(client, operation, data=form) == (500, "internal")


def test_the_form_has_the_file_and_each_field_of_its_model() -> None:
    """`tags` and `metadata` are JSON texts with a content schema, booleans are words, the rest is text."""
    content = DOCUMENT["paths"]["/api/v1/jobs"]["post"]["requestBody"]["content"]["multipart/form-data"]
    fields = content["schema"]["properties"]
    assert content["schema"]["required"] == ["file"]
    assert fields.keys() == {"file", "title", "tags", "metadata", "source_path", "dedup_scope", "force_ocr"}
    assert (fields["force_ocr"]["enum"], fields["force_ocr"]["default"]) == (["false", "true"], "false")
    assert {name for name, field in fields.items() if "contentSchema" in field} == {"tags", "metadata"}
    assert all(field["type"] == "string" for field in fields.values())


def test_query_parameters_carry_defaults_and_no_nulls() -> None:
    listed = DOCUMENT["paths"]["/api/v1/documents"]["get"]["parameters"]
    schemas = {entry["name"]: entry["schema"] for entry in listed if "name" in entry}
    assert schemas["limit"] == {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}
    assert schemas["tag"]["type"] == "string"
    assert "default" not in schemas["tag"]
    assert not any("anyOf" in schema for schema in schemas.values())


def test_a_confirmation_is_required_and_true() -> None:
    listed = DOCUMENT["paths"]["/api/v1/documents"]["delete"]["parameters"]
    confirm = next(entry for entry in listed if entry.get("name") == "confirm")
    assert (confirm["required"], confirm["schema"]) == (True, {"type": "boolean", "const": True})


def test_answers_with_a_documents_version_carry_an_etag() -> None:
    """The status has a version of the engine, not of a document, and no ETag."""
    tagged = {
        entry.id
        for entry in OPERATIONS
        if "ETag" in responses(entry)[str(int(entry.status))].get("headers", {})
    }
    assert tagged >= {"getDocument", "patchNote", "addTags", "removeTag"}
    assert "getStatus" not in tagged


@pytest.mark.parametrize(
    ("model", "body", "fits"),
    [
        ("NotePatch", {"text": "t"}, True),
        ("NotePatch", {"title": "t", "text": None}, True),
        ("NotePatch", {}, False),
        ("NotePatch", {"expected_version": 1, "text": None}, False),
        ("SearchRequest", {"query": "q", "mode": "fts", "fts_only": True}, True),
        ("SearchRequest", {"query": "q", "mode": None, "fts_only": True}, True),
        ("SearchRequest", {"query": "q", "mode": "vector", "fts_only": True}, False),
        ("SearchRequest", {"query": "q", "mode": "fts", "fts_only": False}, False),
        ("Filters", {"date_from": "2025-01-31", "date_to": None}, True),
        ("Filters", {"date_from": "2025-01-31T09:30:00Z"}, True),
        ("Filters", {"date_to": "yesterday"}, False),
        ("VectorFilters", {"date_to": "2025-01-31", "source_type": None}, True),
        ("VectorFilters", {"date_from": "yesterday"}, False),
        ("VectorSearchRequest", {"query": "q", "collectionName": "API Documentation"}, True),
        ("VectorSearchRequest", {"query": "q", "collection_name": "a"}, False),
        ("VectorSearchRequest", {"query": "q", "collectionName": "a,b"}, False),
    ],
)
def test_the_document_contains_rules_between_members(model: str, body: dict[str, Any], fits: bool) -> None:
    """A request that fits the document is not refused because of a rule that the document omits."""
    schema = {**DOCUMENT["components"]["schemas"][model], "components": DOCUMENT["components"]}
    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    assert validator.is_valid(body) is fits
