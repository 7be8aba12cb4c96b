"""The contract, read from the published OpenAPI document: the form of requests, and the errors.

Nothing of kb is imported here; the document is this engine's only source.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

STATUSES = {
    "invalid_request": 400,
    "unauthorized": 401,
    "route_not_found": 404,
    "document_not_found": 404,
    "job_not_found": 404,
    "tag_not_found": 404,
    "source_not_found": 404,
    "version_not_found": 404,
    "page_not_found": 404,
    "original_not_kept": 404,
    "method_not_allowed": 405,
    "not_a_note": 409,
    "version_conflict": 409,
    "job_finished": 409,
    "job_not_retryable": 409,
    "idempotency_mismatch": 409,
    "in_progress": 409,
    "payload_too_large": 413,
    "unsupported_media_type": 415,
    "unsupported_format": 415,
    "invalid_parameter": 422,
    "unknown_parameter": 422,
    "missing_parameter": 422,
    "contradiction": 422,
    "undecodable_text": 422,
    "confirmation_required": 422,
    "internal": 500,
}
DEEPEST = 200
MAX_INTEGER = 2**63 - 1


class Refused(Exception):  # it is an answer
    """A request that is answered with a problem document."""

    def __init__(self, code: str, detail: str, **more: Any) -> None:
        super().__init__(detail)
        self.code = code
        self.more = more

    @property
    def status(self) -> int:
        return STATUSES[self.code]

    def document(self) -> dict[str, Any]:
        title = self.code.replace("_", " ")
        problem = {"type": "about:blank", "title": title, "status": self.status, "code": self.code}
        return {**problem, "detail": str(self), **self.more}


class Promise:
    """The operations of the document, and validation against its schemas."""

    def __init__(self, path: Path) -> None:
        self._document = yaml.safe_load(path.read_text("utf-8"))
        self.operations: dict[tuple[str, str], dict[str, Any]] = {
            (method.upper(), route): operation
            for route, item in self._document["paths"].items()
            for method, operation in item.items()
        }

    def _resolved(self, node: dict[str, Any]) -> dict[str, Any]:
        if "$ref" not in node:
            return node
        found = self._document
        for part in node["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        return dict(found)

    def members(self, schema: str) -> tuple[str, ...]:
        return tuple(self._document["components"]["schemas"][schema]["properties"])

    def parameters(self, operation: Mapping[str, Any], where: str) -> dict[str, dict[str, Any]]:
        """The parameters of an operation in path, query or header, by name."""
        listed = map(self._resolved, operation.get("parameters", ()))
        return {each["name"]: each for each in listed if each["in"] == where}

    def body_schema(self, operation: Mapping[str, Any], kind: str) -> dict[str, Any]:
        return self._resolved(operation["requestBody"]["content"][kind]["schema"])

    def check(self, value: object, schema: Mapping[str, Any], name: str = "") -> None:
        """Validate a value.

        Raises:
            Refused: with the code for the error and the parameter's name.
        """
        whole = {**schema, "components": self._document["components"]}
        errors = sorted(Draft202012Validator(whole).iter_errors(value), key=_rank)
        if errors:
            raise _refusal(errors[0], name)

    def query(self, operation: Mapping[str, Any], given: list[tuple[str, str]]) -> dict[str, Any]:
        known = self.parameters(operation, "query")
        for name, _ in given:
            if name not in known:
                raise Refused("unknown_parameter", f"There is no parameter {name!r}.", parameter=name)
        values: dict[str, Any] = {}
        for name, text in given:
            if name in values:
                raise Refused("invalid_parameter", f"{name} is given twice.", parameter=name)
            values[name] = self.value(text, known[name]["schema"], name)
        for name, each in known.items():
            if each.get("required") and name not in values:
                raise Refused("missing_parameter", f"{name} is required.", parameter=name)
        return {
            **{
                name: each["schema"]["default"] for name, each in known.items() if "default" in each["schema"]
            },
            **values,
        }

    def value(self, text: str, schema: dict[str, Any], name: str) -> Any:
        """Return a text of a path, a query or a header in the type of its schema."""
        schema = self._resolved(schema)
        value = _from_text(text, schema)
        self.check(value, schema, name)
        return value


def parsed(data: bytes) -> Any:
    """Parse JSON on which all parsers agree.

    Raises:
        Refused: it is invalid, or contains lone surrogates, infinite numbers or excessive nesting.
    """
    try:
        text = data.decode("utf-8")
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
        _measure(value)
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise Refused("invalid_request", "The body is not JSON that can be kept.") from error
    return value


def _refuse(text: str) -> float:
    raise ValueError(text)


def _finite(text: str) -> float:
    if math.isinf(float(text)):
        raise ValueError(text)
    return float(text)


def _measure(value: object) -> None:
    level = [value]
    for _ in range(DEEPEST):
        level = [
            child
            for each in level
            if isinstance(each, dict | list)
            for child in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return
    raise ValueError("too deep")


def _from_text(text: str, schema: Mapping[str, Any]) -> Any:
    kind = schema.get("type")
    if kind == "integer" and re.fullmatch(r"-?\d{1,30}", text, re.ASCII):
        return int(text)
    if kind == "number" and re.fullmatch(r"-?\d{1,30}(\.\d{1,30})?([eE][-+]?\d{1,3})?", text, re.ASCII):
        return float(text)
    if kind == "boolean" and text in {"true", "false"}:
        return text == "true"
    return text


def _rank(error: ValidationError) -> tuple[int, str]:
    order = ("additionalProperties", "required")
    return (order.index(error.validator) if error.validator in order else len(order), error.json_path)


def _refusal(error: ValidationError, name: str) -> Refused:
    if error.validator == "anyOf" and error.context:
        inner = max(error.context, key=lambda each: len(each.absolute_path))
        if inner.validator == "required" or len(inner.absolute_path) > len(error.absolute_path):
            return _refusal(inner, name)
    place = name + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in error.absolute_path)
    inside = f"{place}." if place else ""
    schema, instance, wanted = cast(
        "tuple[Any, Any, Any]", (error.schema, error.instance, error.validator_value)
    )
    if error.validator == "additionalProperties":
        known = schema["properties"]
        unknown = min(member for member in instance if member not in known)
        return Refused(
            "unknown_parameter", "There is no such member.", parameter=f"{inside}{unknown}".strip(".")
        )
    if error.validator == "required":
        missing = next(member for member in wanted if member not in instance)
        return Refused(
            "missing_parameter", f"{missing} is missing.", parameter=f"{inside}{missing}".strip(".")
        )
    if not error.absolute_path and not name:
        return Refused("invalid_request", "The body is not an object.")
    return Refused(
        "invalid_parameter", f"The value does not fit ({error.validator}).", parameter=place.strip(".")
    )
