"""The committed contract documents agree with the operations and are valid."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from kb_contracts.api.operations import BY_ID, OPERATIONS, ApiSurface, of_surface
from kb_contracts.openapi import ABOUT, FOLDER, main
from kb_contracts.openapi import written as as_written


def committed(part: ApiSurface) -> str:
    return (FOLDER / ABOUT[part].filename).read_text("utf-8")


@pytest.fixture(scope="module")
def documents() -> dict[ApiSurface, dict[str, Any]]:
    return {part: yaml.load(committed(part), yaml.CSafeLoader) for part in ApiSurface}


@pytest.fixture(params=list(ApiSurface))
def part(request: pytest.FixtureRequest) -> ApiSurface:
    chosen: ApiSurface = request.param
    return chosen


@pytest.fixture
def written(documents: dict[ApiSurface, dict[str, Any]], part: ApiSurface) -> dict[str, Any]:
    return documents[part]


def members(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object inside `value`."""
    if isinstance(value, dict):
        yield value
        for member in value.values():
            yield from members(member)
    elif isinstance(value, list):
        for item in value:
            yield from members(item)


def test_the_committed_document_is_the_one_that_the_operations_make(part: ApiSurface) -> None:
    assert committed(part) == as_written(part)


def test_the_document_is_valid_openapi_3_1(written: dict[str, Any]) -> None:
    assert list(OpenAPIV31SpecValidator(written).iter_errors()) == []


def test_every_operation_stands_under_its_path_and_method(written: dict[str, Any], part: ApiSurface) -> None:
    documented = {
        (path, method): entry["operationId"]
        for path, item in written["paths"].items()
        for method, entry in item.items()
    }
    assert documented == {(entry.path, entry.method.lower()): entry.id for entry in of_surface(part)}


def test_every_reference_resolves(written: dict[str, Any]) -> None:
    for entry in members(written):
        if isinstance(reference := entry.get("$ref"), str):
            _, *steps = reference.split("/")
            place = written
            for step in steps:
                place = place[step]
        if isinstance(entry.get("operationId"), str):
            assert entry["operationId"] in BY_ID


def test_every_pattern_is_a_regular_expression_that_ecma_script_shares(written: dict[str, Any]) -> None:
    """Patterns compile, and use no syntax that is specific to Python (`(?P<`, `\\A`, `\\Z`)."""
    patterns = {entry["pattern"] for entry in members(written) if isinstance(entry.get("pattern"), str)}
    assert patterns
    for pattern in patterns:
        re.compile(pattern)
        assert not re.search(r"\(\?P<|\\A|\\Z", pattern)


def test_every_schema_is_valid_json_schema(written: dict[str, Any]) -> None:
    for schema in written["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize(
    "operation", [entry for entry in OPERATIONS if entry.example], ids=lambda entry: entry.id
)
def test_every_example_fits_its_schema(documents: dict[ApiSurface, dict[str, Any]], operation: Any) -> None:
    written = documents[operation.surface]
    content = written["paths"][operation.path][operation.method.lower()]["requestBody"]["content"]
    shown = content["application/json"]
    schema = {**written["components"]["schemas"][shown["schema"]["$ref"].rsplit("/", 1)[1]]}
    schema["components"] = written["components"]
    Draft202012Validator(schema).validate(shown["example"])


def test_every_member_of_an_answer_is_required(written: dict[str, Any], part: ApiSurface) -> None:
    """A client may read any member without a check for its presence, except for the optional ones here."""
    schemas = written["components"]["schemas"]
    optional = {
        name
        for entry in of_surface(part)
        if not entry.answers_file
        for name in left_out(schemas[entry.response_model.__name__])
    } | left_out(schemas.get("VectorMetadata", {}))
    more = {"target_audience", "usage_scenarios", "context_breadcrumbs", "heading"}
    own = {
        "issues", "left_out", "outcome", "total_exact", "reranked", "rerank_failure", "incomplete",
        "next_cursor", "text", "similar", "original", "fidelity", "sandbox",
        "features", "document_id", "document_uid", "open_failures", "history",
    }  # fmt: skip
    assert optional == (more if part is ApiSurface.RAGLER else own)


def left_out(schema: dict[str, Any]) -> set[str]:
    """The optional members of an answer."""
    return schema.get("properties", {}).keys() - set(schema.get("required", []))


def test_check_passes_on_the_written_document_and_fails_on_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--check"], folder=tmp_path) == 1
    told = capsys.readouterr().err
    assert all(f"{about.filename} is out of date" in told for about in ABOUT.values())
    assert not list(tmp_path.iterdir())
    assert main([], folder=tmp_path) == 0
    assert main(["--check"], folder=tmp_path) == 0
    (tmp_path / "ragler.openapi.yaml").write_text("openapi: 3.1.0\n")
    assert main(["--check"], folder=tmp_path) == 1
    assert "engine" not in capsys.readouterr().err
