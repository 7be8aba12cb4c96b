"""The OpenAPI 3.1 documents of the engine API and of RAGler's operations, made from the table of operations.

    python -m kb_contracts.openapi            write contracts/engine.openapi.yaml and ragler.openapi.yaml
    python -m kb_contracts.openapi --check    fail if a written document is out of date

The table and the models describe the operations. This module adds the notation of OpenAPI, the failures that
the adapter of `mount` adds to every operation, and the remaining parts of the documents: their heads,
headers, and conditions between members.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec.structs import fields

from kb_contracts.access.reach import ACCESS, MAX_ACCESS_BYTES, RIGHTS, Access, Reach
from kb_contracts.api import models, ragler
from kb_contracts.api import operations as ops
from kb_contracts.api.content import OCTETS
from kb_contracts.api.errors import ERRORS, PROBLEM_JSON, Problem, Retry

Json = dict[str, Any]

_SCHEMA = "#/components/schemas/{name}"
_JSON = "application/json"
FOLDER = Path(__file__).resolve().parents[1]
"""The folder of the documents."""


@dataclass(frozen=True, slots=True)
class About:
    """Title and description of a document, and the name of its file."""

    filename: str
    title: str
    summary: str
    description: str


ABOUT: Mapping[ops.ApiSurface, About] = {
    ops.ApiSurface.ENGINE: About(
        "engine.openapi.yaml",
        "kb engine API",
        "Search, ingestion and documents of a knowledge base",
        """\
The API of every kb engine. Times are RFC 3339 in UTC. Offsets and lengths of text count Unicode code
points; sizes of files are bytes. Requests with unknown members are refused; responses may gain members.
Every failure is a problem document (RFC 9457) with a stable `code`.""",
    ),
    ops.ApiSurface.RAGLER: About(
        "ragler.openapi.yaml",
        "RAGler's operations of a kb engine",
        "Vector search over collections, at the root of the URL",
        f"""\
The operations of a kb engine for RAGler's clients, if it serves them. A collection is the set of documents
with the tag `collection:<name>`; it has an id from the first use of its name, and a description after a PUT.
Times are RFC 3339 in UTC. Requests with unknown members are refused; responses may gain members. Every
failure is a problem document (RFC 9457) with a stable `code`.

Rate limits apply to each `X-User-ID`, in fixed windows of {ragler.WINDOW_SECONDS} seconds:
{", ".join(f"{limit} calls of `{id_}`" for id_, limit in ragler.LIMITS.items())}.""",
    ),
}

ETAG: Json = {
    "description": "the document's version, for If-Match",
    "required": True,
    "schema": {"type": "string", "pattern": '^"[1-9][0-9]*"$'},
}
RETRY_AFTER: Json = {
    "description": "seconds to wait before the same request may succeed",
    "schema": {"type": "integer", "minimum": 1},
}


def _access_schema() -> Json:
    """Return the schema of the JSON in the header that narrows an access, without references."""
    _, components = msgspec.json.schema_components([Access], ref_template=_SCHEMA)
    access: Json = components[Access.__name__]
    access["properties"]["rights"]["default"] = sorted(RIGHTS)
    access["properties"]["reach"]["anyOf"][0] = components[Reach.__name__]
    return access


def _header(name: str, description: str, pattern: str, **bounds: int) -> Json:
    schema = {"type": "string", "pattern": pattern, **bounds}
    return {"name": name, "in": "header", "required": False, "description": description, "schema": schema}


HEADERS: Mapping[str, Json] = {
    str(header["name"]): header
    for header in (
        _header(
            ops.IDEMPOTENCY_KEY,
            "a repetition of the same request with the same key has the same response and no second effect",
            "^[\\x20-\\x7e]+$",
            minLength=1,
            maxLength=255,
        ),
        _header(
            ops.IF_MATCH, "the required version of the document, as in its ETag", '^"?[1-9][0-9]{0,17}"?$'
        ),
        _header(
            ragler.USER_ID,
            "the user of the request: rate limits apply to each user, jobs take turns by user, and each user "
            "is one voice of feedback; without a user, the key is that voice",
            ragler.CALLER_TEXT,
            minLength=1,
            maxLength=ragler.MAX_USER_CHARS,
        ),
        _header(
            ragler.USER_ROLE,
            f"the caller's role, which can only reduce rights; `{ragler.SERVICE}` may only read",
            ragler.CALLER_TEXT,
            minLength=1,
            maxLength=ragler.MAX_ROLE_CHARS,
        ),
        {
            "name": ACCESS,
            "in": "header",
            "required": False,
            "description": "the access of the caller, as JSON in ASCII of at most "
            f"{MAX_ACCESS_BYTES} bytes: it reduces the access of the key to these rights, and to the "
            "documents with a tag within `reach`",
            "content": {_JSON: {"schema": _access_schema()}},
        },
    )
}
"""The headers that operations read beside the key, as parameters."""
_DATE = {
    "anyOf": [
        {"type": "string", "format": "date"},
        {"type": "string", "format": "date-time"},
        {"type": "null"},
    ]
}
_DATES = {"allOf": [{"properties": {name: _DATE}} for name in ("date_from", "date_to")]}
# Conditions between members, or inside a text: the types of members cannot express them, but an engine
# enforces them.
REFINED: Mapping[type[msgspec.Struct], Json] = {
    models.NotePatch: {
        "anyOf": [
            {"required": [name], "properties": {name: {"type": "string"}}} for name in ("text", "title")
        ]
    },
    models.SearchRequest: {
        "not": {
            "required": ["mode", "fts_only"],
            "anyOf": [
                {"properties": {"fts_only": {"const": True}, "mode": {"enum": ["hybrid", "vector"]}}},
                {"properties": {"fts_only": {"const": False}, "mode": {"const": "fts"}}},
            ],
        }
    },
    models.Filters: _DATES,
    ragler.VectorFilters: _DATES,
    # It has a default so that its absence has an error code of its own; it is required all the same.
    ops.ClearQuery: {
        "properties": {"confirm": {"type": "boolean", "const": True, "description": "must be true"}},
        "required": ["confirm"],
    },
}


# --- the documents ------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None, *, folder: Path = FOLDER) -> int:
    """Write the documents into `folder`, or with `--check` report outdated ones; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m kb_contracts.openapi", description="Write the contract.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is out of date")
    checking = parser.parse_args(arguments).check
    status = 0
    for surface in ops.ApiSurface:
        path, text = folder / ABOUT[surface].filename, written(surface)
        if path.is_file() and path.read_text("utf-8") == text:
            continue
        if checking:
            status = 1
            sys.stderr.write(f"{path.name} is out of date; write it with {parser.prog}\n")
        else:
            path.write_text(text, "utf-8")
    return status


@cache
def written(part: ops.ApiSurface) -> str:
    """Return the committed text of a document: YAML in its own order, without references within it."""
    value = document(ops.of_surface(part), ABOUT[part])
    text: str = yaml.dump(value, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=110)
    return "# Generated by python -m kb_contracts.openapi; not edited by hand.\n" + text


def document(
    operations: Sequence[ops.AnyOperation] = ops.OPERATIONS, about: About = ABOUT[ops.ApiSurface.ENGINE]
) -> Json:
    """Return an OpenAPI 3.1 document for `operations`, as JSON values; by default for all of them."""
    paths: Json = {}
    failures = {kind for operation in operations for kind in _by_status(operation).items()}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": about.title,
            "version": ops.API_VERSION.removeprefix("v"),
            "summary": about.summary,
            "description": about.description,
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": "http://127.0.0.1:8000", "description": "an engine with default settings"}],
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": _schemas(operations),
            "parameters": {
                name: deepcopy(HEADERS[name])
                for name in HEADERS
                if any(name in _headers(operation) for operation in operations)
            },
            "responses": {".".join(codes): _failure(status, codes) for status, codes in sorted(failures)},
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "KB_API_KEY, if it is set for the engine. Two headers `Authorization`, "
                    "or two `Origin`, are refused as `unauthorized`.",
                }
            },
        },
    }


class _Plain(yaml.SafeDumper):
    """A dumper without anchors, so that each part is readable by itself."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """Write several lines as a block, so that they remain lines."""
        return self.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Plain.add_representer(str, _Plain.represent_text)


# --- operations -----------------------------------------------------------------------------------


def _operation(operation: ops.AnyOperation) -> Json:
    entry: Json = {"operationId": operation.id, "summary": operation.summary}
    if operation.public:
        entry["security"] = []
    parameters = [
        _parameter(name, "path", msgspec.json.schema(kind), required=True)
        for name, kind in operation.path_parameters.items()
    ]
    if operation.query is not ops.NoQuery:
        schema = _own_schema(operation.query)
        parameters += [
            _parameter(name, "query", _without_null(part), required=name in schema["required"])
            for name, part in schema["properties"].items()
        ]
    parameters += [{"$ref": f"#/components/parameters/{name}"} for name in _headers(operation)]
    if parameters:
        entry["parameters"] = parameters
    if operation.body is not None:
        content: Json = {_JSON: {"schema": _reference(operation.body)}}
        if operation.example is not None:
            content[_JSON]["example"] = dict(operation.example)
        if operation.multipart is not None:
            content["multipart/form-data"] = _multipart(operation.multipart)
        entry["requestBody"] = {"required": True, "content": content}
    responses = {str(int(operation.status)): _success(operation)}
    if operation.accepted is not None:
        responses[str(int(HTTPStatus.ACCEPTED))] = {
            "description": "The work continues as this job.",
            "content": {_JSON: {"schema": _reference(operation.accepted)}},
        }
    for status, codes in _by_status(operation).items():
        responses[str(status)] = {"$ref": f"#/components/responses/{'.'.join(codes)}"}
    entry["responses"] = responses
    return entry


def _headers(operation: ops.AnyOperation) -> list[str]:
    """Return the headers that an operation reads, beside the key."""
    used = {
        ragler.USER_ID: operation.names_user,
        ragler.USER_ROLE: not operation.public,
        ACCESS: not operation.public,
        ops.IF_MATCH: operation.if_match,
        ops.IDEMPOTENCY_KEY: operation.mutates,
    }
    return [name for name, is_used in used.items() if is_used]


def _parameter(name: str, place: str, schema: Json, *, required: bool) -> Json:
    schema = dict(schema)
    description = schema.pop("description", None)
    head = {"name": name, "in": place, "required": required}
    return {**head, **({"description": description} if description else {}), "schema": schema}


def _multipart(model: type[msgspec.Struct]) -> Json:
    schema = _own_schema(model)
    schema["properties"] = {
        "file": {"type": "string", "contentMediaType": "application/octet-stream"},
        **{name: _form_field(part) for name, part in schema["properties"].items()},
    }
    schema["required"] = ["file", *schema["required"]]
    disposition = {
        "description": "contains the filename, whose extension determines the format",
        "required": True,
        "schema": {"type": "string"},
        "example": 'form-data; name="file"; filename="report.txt"',
    }
    return {"schema": schema, "encoding": {"file": {"headers": {"Content-Disposition": disposition}}}}


def _form_field(schema: Json) -> Json:
    """Return the schema of a form field: text as it is, a boolean as its word, other values as JSON text."""
    schema = _without_null(schema)
    if schema["type"] == "string":
        return schema
    if schema["type"] == "boolean":
        default = msgspec.json.encode(schema["default"]).decode()
        return {**schema, "type": "string", "enum": ["false", "true"], "default": default}
    del schema["default"]
    example = [schema["items"]["examples"][0]] if schema["type"] == "array" else {}
    return {
        "type": "string",
        "contentMediaType": _JSON,
        "contentSchema": schema,
        "examples": [msgspec.json.encode(example).decode()],
    }


def _file(operation: ops.AnyOperation) -> Json:
    """Return the success response of an operation that returns a file."""
    headers = {
        "ETag": {"description": "the SHA-256 of the file", "required": True, "schema": {"type": "string"}},
        "Content-Disposition": {
            "description": "the name under which the file is saved (RFC 6266)",
            "required": True,
            "schema": {"type": "string", "pattern": "^attachment; "},
        },
    }
    return {"description": operation.summary, "headers": headers, "content": {OCTETS: {}}}


def _success(operation: ops.AnyOperation) -> Json:
    if operation.answers_file:
        return _file(operation)
    response: Json = {"description": (operation.response_model.__doc__ or operation.summary).splitlines()[0]}
    # A document's version is an integer, the engine's is a string.
    if any(part.name == "version" and part.type is int for part in fields(operation.response_model)):
        response["headers"] = {"ETag": ETAG}
    response["content"] = {_JSON: {"schema": _reference(operation.response_model)}}
    if operation.links:
        response["links"] = {
            link.operation: {
                "operationId": link.operation,
                "parameters": {
                    name: f"$response.body#{pointer}" for name, pointer in link.parameters.items()
                },
            }
            for link in operation.links
        }
    return response


# --- failures -------------------------------------------------------------------------------------


def possible_errors(operation: ops.AnyOperation) -> list[str]:
    """Return the codes of an operation and of its adapter, in the table's order."""
    codes = {"invalid_parameter", "unknown_parameter", "internal", *operation.errors}
    if not operation.public:
        codes |= {"unauthorized", "forbidden", "not_ready"}
    if operation.mutates:
        codes |= {"idempotency_mismatch", "in_progress", "storage_full"}
    if operation.path_parameters:
        codes.add("route_not_found")
        named = (name for name in operation.path_parameters if name != "collection_id")  # a PUT creates it
        codes |= {f"{name.removesuffix('_id')}_not_found" for name in named}
    if operation.if_match:
        codes.add("version_conflict")
    if operation.id in ragler.LIMITS:
        codes.add("rate_limited")
    if any(field.required for field in msgspec.structs.fields(operation.query)):
        codes.add("missing_parameter")
    if operation.body is not None:
        codes |= {"invalid_request", "missing_parameter", "payload_too_large", "unsupported_media_type"}
    return [code for code in ERRORS if code in codes]


def _by_status(operation: ops.AnyOperation) -> dict[int, tuple[str, ...]]:
    codes = possible_errors(operation)
    statuses = sorted({int(ERRORS[code].status) for code in codes})
    return {status: tuple(code for code in codes if ERRORS[code].status == status) for status in statuses}


def _failure(status: int, codes: tuple[str, ...]) -> Json:
    narrowed = {"properties": {"status": {"const": status}, "code": {"enum": list(codes)}}}
    headers: Json = {}
    if "unauthorized" in codes:
        headers["WWW-Authenticate"] = {"required": True, "schema": {"type": "string", "const": "Bearer"}}
    if any(ERRORS[code].retry is Retry.LATER for code in codes):
        headers["Retry-After"] = RETRY_AFTER
    return {
        "description": "; ".join(f"`{code}`: {ERRORS[code].title}" for code in codes),
        **({"headers": headers} if headers else {}),
        "content": {PROBLEM_JSON: {"schema": {"allOf": [_reference(Problem), narrowed]}}},
    }


# --- schemas --------------------------------------------------------------------------------------


def _schemas(operations: Iterable[ops.AnyOperation]) -> Json:
    used: dict[type[msgspec.Struct], None] = {Problem: None}
    for operation in operations:
        answer = None if operation.answers_file else operation.response_model
        used |= dict.fromkeys(filter(None, (answer, operation.accepted, operation.body)))
    _, components = msgspec.json.schema_components(list(used), ref_template=_SCHEMA)
    # A response has every member except those that may be unset, so a default never applies.
    for model in _descendants(models.Response):
        if (schema := components.get(model.__name__)) is not None:
            for part in schema["properties"].values():
                part.pop("default", None)
            optional = {part.encode_name for part in fields(model) if part.default is msgspec.UNSET}
            schema["required"] = [name for name in schema["properties"] if name not in optional]
    for model, beside in REFINED.items():
        components.get(model.__name__, {}).update(beside)
    problem = components[Problem.__name__]
    problem["properties"] = {name: _without_null(part) for name, part in problem["properties"].items()}
    return {name: components[name] for name in sorted(components)}


def _descendants(parent: type[Any]) -> Iterable[type[Any]]:
    for child in parent.__subclasses__():
        yield child
        yield from _descendants(child)


def _own_schema(model: type[msgspec.Struct]) -> Json:
    """Return the schema of `model` without references to its own name."""
    _, components = msgspec.json.schema_components([model], ref_template=_SCHEMA)
    schema: Json = components[model.__name__]
    del schema["title"]
    refined = REFINED.get(model, {})
    properties = schema["properties"] | refined.get("properties", {})
    return schema | refined | {"properties": properties}


def _without_null(schema: Json) -> Json:
    """Return the schema of a value that is absent rather than null."""
    if "anyOf" not in schema:
        return schema
    options = [option for option in schema["anyOf"] if option != {"type": "null"}]
    kept = {
        key: value for key, value in schema.items() if key != "anyOf" and (key, value) != ("default", None)
    }
    return {**options[0], **kept} if len(options) == 1 else {**kept, "anyOf": options}


def _reference(model: type[msgspec.Struct]) -> Json:
    return {"$ref": _SCHEMA.format(name=model.__name__)}


if __name__ == "__main__":
    sys.exit(main())
