"""Portable JSON Schema from msgspec models, for the strictest MCP clients.

Some clients refuse `$ref`, some a union at the top, some a list of types, some an array without `items`; one
refused schema loses the whole tool list. So a schema is flattened here, once, at start: an object at the
root, everything inlined, one type per property. A model that cannot be expressed in this way is refused when
the server is built, with the path of the field, and never published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec

Schema = dict[str, Any]

_REFERENCE = "#/$defs/"
_NULL: Schema = {"type": "null"}
_FORBIDDEN = ("$ref", "$defs", "definitions", "anyOf", "oneOf", "allOf", "not", "prefixItems")
_HANDLED = ("title", "properties", "items", "prefixItems", "additionalProperties", "default", "enum")
_TYPES = ("type", "enum", "format", "properties", "items")
_JSON_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number"}


class SchemaError(TypeError):
    """A model or a schema cannot be understood by every client; the message names the path."""


@cache
def input_schema(model: type[msgspec.Struct]) -> Schema:
    """Return the portable schema of a tool's arguments, cached: do not modify it.

    An optional field `X | None` is published as X: callers leave it out instead of sending null. (The
    validator accepts null as well.) `additionalProperties: false` is set for every model that forbids unknown
    fields.
    Raises SchemaError: the model cannot be expressed in a portable schema.
    """
    schema = _flat(model, lambda schema: schema, closed=True)
    check_portable(schema)
    return schema


@cache
def output_schema(model: type[msgspec.Struct]) -> Schema:
    """Return the schema of a tool's result, cached: do not modify it.

    A nullable object or array is `anyOf` of itself and `null`, which is understood both by clients that build
    types and by clients that validate; a nullable scalar has no type. Objects are open: a newer server may
    add members.
    Raises SchemaError: the model cannot be expressed in a portable schema.
    """
    schema = _flat(model, _or_null, closed=False)
    check_portable(schema, result=True)
    return schema


@cache
def types_alone(model: type[msgspec.Struct]) -> Schema:
    """Return `output_schema` without descriptions, bounds, defaults and `required`: a third of its size.

    Members are listed for the result, and for the items of its lists; deeper values are objects without
    members. Cached: do not modify it.
    """
    return _types_of(output_schema(model), named=True, listed=True)


def _types_of(schema: Schema, *, named: bool, listed: bool) -> Schema:
    """Return the types; `named`: with the members of an object, `listed`: with those of list items."""
    types = {keyword: schema[keyword] for keyword in _TYPES if keyword in schema}
    if (properties := types.pop("properties", None)) and named:
        types["properties"] = {
            name: _types_of(child, named=False, listed=listed) for name, child in properties.items()
        }
    if "items" in types:
        types["items"] = _types_of(types["items"], named=listed, listed=False)
    if "anyOf" in schema:
        types["anyOf"] = [_types_of(each, named=named, listed=listed) for each in schema["anyOf"]]
    return types


def check_portable(schema: Mapping[str, Any], *, result: bool = False) -> None:
    """Refuse a published schema that some client would refuse; in a `result` a value may be null.
    Raises SchemaError: names the offending path, such as `$.properties.filters`.
    """
    if schema.get("type") != "object":
        raise SchemaError("$: the root must be an object")
    for path, node in _positions(schema, "$", result=result):
        for keyword in _FORBIDDEN:
            if keyword in node:
                raise SchemaError(f"{path}: `{keyword}` is not portable")
        if isinstance(node.get("type"), list):
            raise SchemaError(f"{path}: a list of types is not portable")
        if "title" in node:
            raise SchemaError(f"{path}: `title` is noise")
        if node.get("type") == "array" and not isinstance(node.get("items"), Mapping):
            raise SchemaError(f"{path}: an array needs `items`")


def _positions(
    node: Mapping[str, Any], path: str, *, result: bool
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every schema position under `node`; the values of `default`, `enum` and `examples` are data."""
    if result and path != "$" and isinstance(node.get("anyOf"), list) and node["anyOf"][1:] == [_NULL]:
        node = node["anyOf"][0]
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from _positions(child, f"{path}.properties.{name}", result=result)
    for keyword in ("items", "additionalProperties"):
        child = node.get(keyword)
        if isinstance(child, Mapping):
            yield from _positions(child, f"{path}.{keyword}", result=result)


def _flat(model: type[msgspec.Struct], nullable: Callable[[Schema], Schema], *, closed: bool) -> Schema:
    (root,), definitions = msgspec.json.schema_components((model,), ref_template=_REFERENCE + "{name}")
    schema = _Flattener(definitions, nullable, closed).flatten(root, model.__name__)
    schema.pop("description", None)  # the model's docstring is for developers; the tool has a description
    return schema


def _or_null(schema: Schema) -> Schema:
    if schema.get("type") in ("object", "array"):
        return {"anyOf": [schema, _NULL]}
    nullable = {key: value for key, value in schema.items() if key not in ("type", "format")}
    if "enum" in nullable:
        nullable["enum"] = [*nullable["enum"], None]
    return nullable


@dataclass(frozen=True, slots=True)
class _Flattener:
    """Inlines references and resolves `X | None` by `nullable`."""

    definitions: Mapping[str, Any]
    nullable: Callable[[Schema], Schema]
    closed: bool
    """True if the schema states that unknown members are forbidden."""

    def flatten(self, schema: Mapping[str, Any], path: str, within: tuple[str, ...] = ()) -> Schema:
        """Return a portable copy of `schema`; `within` are the models being inlined around it."""
        if "$ref" in schema:
            name = schema["$ref"].removeprefix(_REFERENCE)
            if name in within:
                raise SchemaError(f"{path}: {name} contains itself; a portable schema cannot say so")
            beside = {key: value for key, value in schema.items() if key != "$ref"}
            return self.flatten({**self.definitions[name], **beside}, path, (*within, name))
        if variants := schema.get("anyOf") or schema.get("oneOf"):
            given = [variant for variant in variants if variant != _NULL]
            if len(given) != 1:
                raise SchemaError(f"{path}: a union of {len(given)} types is not portable; give it one type")
            beside = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf")}
            flat = self.flatten({**given[0], **beside}, path, within)
            return self.nullable(flat) if len(given) < len(variants) else flat
        flat = {key: value for key, value in schema.items() if key not in _HANDLED}
        if schema.get("default") is not None:
            flat["default"] = schema["default"]
        if "enum" in schema:
            named = [value for value in schema["enum"] if value is not None]
            kinds = {_JSON_TYPES.get(type(value)) for value in named}
            if len(kinds) != 1 or None in kinds:
                raise SchemaError(f"{path}: an enumeration must hold values of one JSON type")
            chosen = {**flat, "type": kinds.pop(), "enum": named}
            return self.nullable(chosen) if len(named) < len(schema["enum"]) else chosen
        if "properties" in schema:
            flat["properties"] = {
                name: self.flatten(child, f"{path}.{name}", within)
                for name, child in schema["properties"].items()
            }
        if schema.get("type") == "array":
            if "prefixItems" in schema:
                raise SchemaError(f"{path}: a tuple of several types is not portable; use a list or a struct")
            items = schema.get("items")
            flat["items"] = self.flatten(items, f"{path}[]", within) if isinstance(items, Mapping) else {}
        if isinstance(values := schema.get("additionalProperties"), Mapping):
            flat["additionalProperties"] = self.flatten(values, f"{path}.*", within)
        elif values is True or (self.closed and values is False):
            flat["additionalProperties"] = values
        return flat
