"""The OpenAPI 3.1 documents of the engine API and of RAGler's operations, made from the one table.

    python -m kb_contracts.openapi            write contracts/engine.openapi.yaml and ragler.openapi.yaml
    python -m kb_contracts.openapi --check    fail when one that is written lags

Nothing about an operation is said here that the table and the models do not say; this module only
knows how OpenAPI wants it said, and which failures the adapter of `mount` adds to every operation.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml

from kb_contracts import models, ragler
from kb_contracts.errors import ERRORS, PROBLEM_JSON, Problem, Retry
from kb_contracts.operations import (
    API_VERSION,
    IDEMPOTENCY_KEY,
    IF_MATCH,
    OPERATIONS,
    ClearQuery,
    NoQuery,
    Operation,
    Part,
)

Json = dict[str, Any]

FOLDER = Path(__file__).resolve().parents[1]
"""Where the documents are written."""
_SCHEMA = "#/components/schemas/{name}"
_JSON = "application/json"


@dataclass(frozen=True, slots=True)
class About:
    """What a document says of itself, and the name of its file."""

    filename: str
    title: str
    summary: str
    description: str


ABOUT: Mapping[Part, About] = {
    Part.ENGINE: About(
        "engine.openapi.yaml",
        "kb engine API",
        "Search, ingestion and documents of a knowledge base",
        """\
What every engine of kb answers. Times are RFC 3339 in UTC. Offsets and lengths of text count Unicode
code points; sizes of files are bytes. Requests refuse what they do not know; answers may gain members.
Every failure is a problem document (RFC 9457) with a stable `code`.""",
    ),
    Part.RAGLER: About(
        "ragler.openapi.yaml",
        "RAGler's operations of a kb engine",
        "Vector search over collections, at the root of the URL",
        f"""\
What an engine of kb answers to RAGler's clients, where it serves them. A collection is what carries the
tag `collection:<name>`; it has an id from then on, and a description once somebody has put one. Times are
RFC 3339 in UTC. Requests refuse what they do not know; answers may gain members. Every failure is a
problem document (RFC 9457) with a stable `code`.

Limits are kept for each `X-User-ID`, in fixed windows of {ragler.WINDOW_SECONDS} seconds:
{", ".join(f"{limit} calls of `{id_}`" for id_, limit in ragler.LIMITS.items())}.""",
    ),
}

_ETAG = {
    "description": "the document's version, for If-Match",
    "required": True,
    "schema": {"type": "string", "pattern": '^"[1-9][0-9]*"$'},
}
_RETRY_AFTER = {
    "description": "seconds to wait before the same request may succeed",
    "schema": {"type": "integer", "minimum": 1},
}
_SAID = "^[\\x21-\\x7e]([\\x20-\\x7e]*[\\x21-\\x7e])?$"
_HEADERS = {
    IDEMPOTENCY_KEY: {
        "name": IDEMPOTENCY_KEY,
        "in": "header",
        "required": False,
        "description": "the same key with the same request gives the same answer and no second effect",
        "schema": {"type": "string", "pattern": "^[\\x20-\\x7e]+$", "minLength": 1, "maxLength": 255},
    },
    IF_MATCH: {
        "name": IF_MATCH,
        "in": "header",
        "required": False,
        "description": "the version that the document must have, as its ETag",
        "schema": {"type": "string", "pattern": '^"?[1-9][0-9]{0,17}"?$'},
    },
    ragler.USER_ID: {
        "name": ragler.USER_ID,
        "in": "header",
        "required": False,
        "description": "on whose behalf the call is made; limits are kept by it, or by the key without it",
        "schema": {"type": "string", "pattern": _SAID, "minLength": 1, "maxLength": ragler.MAX_USER_CHARS},
    },
    ragler.USER_ROLE: {
        "name": ragler.USER_ROLE,
        "in": "header",
        "required": False,
        "description": f"the caller's role; `{ragler.SERVICE}` may read and no more",
        "schema": {"type": "string", "pattern": _SAID, "minLength": 1, "maxLength": ragler.MAX_ROLE_CHARS},
    },
}
_DATE = {
    "anyOf": [
        {"type": "string", "format": "date"},
        {"type": "string", "format": "date-time"},
        {"type": "null"},
    ]
}
_DATES = {"allOf": [{"properties": {name: _DATE}} for name in ("date_from", "date_to")]}
# What stands between members, or inside a text: no member's type can say it, and an engine refuses it.
_REFINED: Mapping[type[msgspec.Struct], Json] = {
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
    # It has a default so that its absence has a code of its own; it is required all the same.
    ClearQuery: {
        "properties": {"confirm": {"type": "boolean", "const": True, "description": "must be true"}},
        "required": ["confirm"],
    },
}


def of_part(part: Part) -> tuple[Operation, ...]:
    """The operations of one document."""
    return tuple(operation for operation in OPERATIONS if operation.part is part)


def written(part: Part) -> str:
    """The text of one document as it is committed."""
    return as_yaml(document(of_part(part), ABOUT[part]))


def document(operations: Sequence[Operation] = OPERATIONS, about: About = ABOUT[Part.ENGINE]) -> Json:
    """An OpenAPI 3.1 document for `operations`, as JSON values; by default for all of them."""
    paths: Json = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": about.title,
            "version": API_VERSION.removeprefix("v"),
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
                name: _HEADERS[name]
                for name in _HEADERS
                if any(name in _headers(operation) for operation in operations)
            },
            "responses": _failure_components(operations),
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "KB_API_KEY, where the engine has one set",
                }
            },
        },
    }


def as_yaml(value: Json) -> str:
    """`value` as YAML in its own order, each part written out in full."""
    text: str = yaml.dump(value, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=110)
    return "# Generated by python -m kb_contracts.openapi; not edited by hand.\n" + text


class _Plain(yaml.SafeDumper):
    """A dumper without anchors: a reader need not look elsewhere for what a part says."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """Several lines as a block, so that they stay lines."""
        return self.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Plain.add_representer(str, _Plain.represent_text)


# --- operations -----------------------------------------------------------------------------------


def _operation(operation: Operation) -> Json:
    entry: Json = {"operationId": operation.id, "summary": operation.summary}
    if operation.open:
        entry["security"] = []
    if parameters := _parameters(operation):
        entry["parameters"] = parameters
    if operation.body is not None:
        entry["requestBody"] = _request_body(operation, operation.body)
    entry["responses"] = {str(int(operation.status)): _success(operation), **_failures(operation)}
    return entry


def _parameters(operation: Operation) -> list[Json]:
    parameters = [_path_parameter(name, kind) for name, kind in operation.parameters.items()]
    if operation.query is not NoQuery:
        parameters += _query_parameters(operation.query)
    parameters += [{"$ref": f"#/components/parameters/{name}"} for name in _headers(operation)]
    return parameters


def _headers(operation: Operation) -> list[str]:
    """The headers that an operation looks at, beside the key."""
    looked_at = {
        ragler.USER_ID: operation.part is Part.RAGLER,
        ragler.USER_ROLE: operation.part is Part.RAGLER,
        IF_MATCH: operation.if_match,
        IDEMPOTENCY_KEY: operation.mutates,
    }
    return [name for name, looked in looked_at.items() if looked]


def _query_parameters(query: type[msgspec.Struct]) -> list[Json]:
    schema = _own_schema(query)
    required = schema["required"]
    return [
        _parameter(name, "query", _without_null(part), required=name in required)
        for name, part in schema["properties"].items()
    ]


def _path_parameter(name: str, kind: Any) -> Json:
    return _parameter(name, "path", msgspec.json.schema(kind), required=True)


def _parameter(name: str, place: str, schema: Json, *, required: bool) -> Json:
    schema = dict(schema)
    description = schema.pop("description", None)
    head = {"name": name, "in": place, "required": required}
    return {**head, **({"description": description} if description else {}), "schema": schema}


def _request_body(operation: Operation, body: type[msgspec.Struct]) -> Json:
    plain: Json = {"schema": _reference(body)}
    if operation.example is not None:
        plain["example"] = dict(operation.example)
    content = {_JSON: plain}
    if operation.multipart is not None:
        content["multipart/form-data"] = _multipart(operation.multipart)
    return {"required": True, "content": content}


def _multipart(fields: type[msgspec.Struct]) -> Json:
    schema = _own_schema(fields)
    schema["properties"] = {
        "file": {"type": "string", "contentMediaType": "application/octet-stream"},
        **{name: _form_field(part) for name, part in schema["properties"].items()},
    }
    schema["required"] = ["file", *schema["required"]]
    disposition = {
        "description": "carries the file's name, whose extension says the format",
        "required": True,
        "schema": {"type": "string"},
        "example": 'form-data; name="file"; filename="report.txt"',
    }
    return {"schema": schema, "encoding": {"file": {"headers": {"Content-Disposition": disposition}}}}


def _form_field(schema: Json) -> Json:
    """A field of a form: text as it is, anything else as a JSON text."""
    schema = _without_null(schema)
    if schema["type"] == "string":
        return schema
    del schema["default"]
    example = [schema["items"]["examples"][0]] if schema["type"] == "array" else {}
    return {
        "type": "string",
        "contentMediaType": _JSON,
        "contentSchema": schema,
        "examples": [msgspec.json.encode(example).decode()],
    }


def _success(operation: Operation) -> Json:
    response: Json = {"description": (operation.answer.__doc__ or operation.summary).splitlines()[0]}
    if _has_version(operation.answer):
        response["headers"] = {"ETag": _ETAG}
    response["content"] = {_JSON: {"schema": _reference(operation.answer)}}
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


def _has_version(answer: type[msgspec.Struct]) -> bool:
    """Whether it is a document's version (an integer) and not the engine's."""
    return any(part.name == "version" and part.type is int for part in msgspec.structs.fields(answer))


# --- failures -------------------------------------------------------------------------------------


def possible_errors(operation: Operation) -> list[str]:
    """The codes that `operation` may answer with: its own, and those of the adapter, in the table's order."""
    codes = {"invalid_parameter", "unknown_parameter", "internal", *operation.errors}
    if not operation.open:
        codes |= {"unauthorized", "not_ready"}
    if operation.parameters:
        codes.add("route_not_found")
    if operation.body is not None:
        codes |= {"invalid_request", "missing_parameter", "payload_too_large", "unsupported_media_type"}
    return [code for code in ERRORS if code in codes]


def _by_status(operation: Operation) -> dict[int, tuple[str, ...]]:
    codes = possible_errors(operation)
    statuses = sorted({int(ERRORS[code].status) for code in codes})
    return {status: tuple(code for code in codes if ERRORS[code].status == status) for status in statuses}


def _failures(operation: Operation) -> Json:
    return {
        str(status): {"$ref": f"#/components/responses/{_name(codes)}"}
        for status, codes in _by_status(operation).items()
    }


def _failure_components(operations: Iterable[Operation]) -> Json:
    kinds = {
        (status, codes): None for operation in operations for status, codes in _by_status(operation).items()
    }
    return {_name(codes): _failure(status, codes) for status, codes in sorted(kinds)}


def _name(codes: tuple[str, ...]) -> str:
    return ".".join(codes)


def _failure(status: int, codes: tuple[str, ...]) -> Json:
    narrowed = {"properties": {"status": {"const": status}, "code": {"enum": list(codes)}}}
    headers: Json = {}
    if "unauthorized" in codes:
        headers["WWW-Authenticate"] = {"required": True, "schema": {"type": "string", "const": "Bearer"}}
    if any(ERRORS[code].retry is Retry.LATER for code in codes):
        headers["Retry-After"] = _RETRY_AFTER
    return {
        "description": "; ".join(f"`{code}`: {ERRORS[code].title}" for code in codes),
        **({"headers": headers} if headers else {}),
        "content": {PROBLEM_JSON: {"schema": {"allOf": [_reference(Problem), narrowed]}}},
    }


# --- schemas --------------------------------------------------------------------------------------


def _schemas(operations: Iterable[Operation]) -> Json:
    used: dict[type[msgspec.Struct], None] = {Problem: None}
    for operation in operations:
        used[operation.answer] = None
        if operation.body is not None:
            used[operation.body] = None
    _, components = msgspec.json.schema_components(list(used), ref_template=_SCHEMA)
    answers = {answer.__name__: answer for answer in _descendants(models.Answer)}
    for name, schema in components.items():
        if name in answers:
            _require_all(schema, answers[name])
    for model, beside in _REFINED.items():
        components.get(model.__name__, {}).update(beside)
    problem = components[Problem.__name__]
    problem["properties"] = {name: _without_null(part) for name, part in problem["properties"].items()}
    return {name: components[name] for name in sorted(components)}


def _descendants(parent: type[Any]) -> Iterable[type[Any]]:
    for child in parent.__subclasses__():
        yield child
        yield from _descendants(child)


def _require_all(schema: Json, answer: type[msgspec.Struct]) -> None:
    """An answer carries every member always, but those that it may leave unset.

    A default would tell a reader of an absence that never is.
    """
    for part in schema["properties"].values():
        part.pop("default", None)
    optional = {part.encode_name for part in msgspec.structs.fields(answer) if part.default is msgspec.UNSET}
    schema["required"] = [name for name in schema["properties"] if name not in optional]


def _own_schema(model: type[msgspec.Struct]) -> Json:
    """The schema of `model` written out in place."""
    _, components = msgspec.json.schema_components([model], ref_template=_SCHEMA)
    schema: Json = components[model.__name__]
    del schema["title"]
    return schema | _REFINED.get(model, {})


def _without_null(schema: Json) -> Json:
    """The schema of a value that is absent rather than null."""
    if "anyOf" not in schema:
        return schema
    options = [option for option in schema["anyOf"] if option != {"type": "null"}]
    kept = {
        key: value for key, value in schema.items() if key != "anyOf" and (key, value) != ("default", None)
    }
    return {**options[0], **kept} if len(options) == 1 else {**kept, "anyOf": options}


def _reference(model: type[msgspec.Struct]) -> Json:
    return {"$ref": _SCHEMA.format(name=model.__name__)}


# --- the command ----------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None, *, folder: Path = FOLDER) -> int:
    """Write the documents into `folder`, or with `--check` say which lag; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m kb_contracts.openapi", description="Write the contract.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file lags")
    checking = parser.parse_args(arguments).check
    lagging = [part for part in Part if not _is_written(folder / ABOUT[part].filename, part)]
    for part in lagging:
        name = ABOUT[part].filename
        if checking:
            sys.stderr.write(f"{name} lags behind the operations; write it with {parser.prog}\n")
        else:
            (folder / name).write_text(written(part), "utf-8")
    return 1 if checking and lagging else 0


def _is_written(path: Path, part: Part) -> bool:
    return path.is_file() and path.read_text("utf-8") == written(part)


if __name__ == "__main__":
    sys.exit(main())
