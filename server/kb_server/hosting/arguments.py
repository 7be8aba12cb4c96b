"""Reads the arguments of a call, as agents and their hosts send them, into the tool's model.

A value with one possible meaning is converted: `null` and empty values count as left out where the parameter
is optional, numbers and lists may come as text. An ambiguous value is refused, and so is any other type for a
parameter that confirms or destroys. One answer names all parameters that do not fit, and their types.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec.inspect import Metadata, StructType, Type, UnionType, type_info

from kb_contracts.semantics.validation import Mismatch, mismatch_of
from kb_server.schema import Schema, input_schema
from kb_server.tool import EMPTY_COUNTS, EXACT, INVALID, MISSING, WORDS, ToolError
from mcp_aiohttp.protocol import jsonrpc

A = TypeVar("A", bound=msgspec.Struct)

HOST_PARAMETERS = frozenset(("toolCallId", "sessionId", "chatInput", "action"))
"""Names that hosts of agents (n8n) add to the arguments of every tool."""

_OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "limit": ("top", "top_k"),
    "top": ("limit", "top_k"),
    "k": ("top", "top_k", "limit"),
    "top_k": ("top", "limit"),
    "n": ("top", "top_k", "limit"),
    "max_results": ("top", "top_k", "limit"),
    "q": ("query",),
    "search": ("query",),
    "question": ("query",),
    "text": ("query",),
    "content": ("text", "query"),
    "note": ("text",),
    "body": ("text",),
    "id": ("document_id", "job_id", "upload_id", "task_id", "collection_id"),
    "path": ("source_path", "file_path"),
}
"""Parameters under names that other servers give them."""

_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<index>\d+|\.\.\.)\]")
_NUMBER = re.compile(r"[+-]?[0-9]{1,15}(\.[0-9]{1,15})?")
_BOOLEANS = {"true": True, "false": False}
_MAX_QUOTED = 60
_MOST_NAMED = 8

_SINGULAR = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "object": "an object",
    "array": "an array",
}
_PLURAL = {"string": "strings", "integer": "integers", "number": "numbers", "object": "objects"}
_UNKNOWN, _LEFT_OUT = object(), object()


@dataclass(frozen=True, slots=True)
class _Parameter:
    """A member of a tool's arguments. `attribute` is its name in the model."""

    attribute: str
    kind: Any
    schema: Schema
    is_required: bool
    is_exact: bool
    takes_words: bool
    empty_counts: bool


def read_arguments(raw: Mapping[str, Any], model: type[A]) -> A:
    """Return `raw` as the tool's model.
    Raises ToolError: `missing_required_parameter` or `invalid_parameter`. The message names each wrong
    parameter and its type, `parameter` the first of them, `parameters` all if there are several.
    """
    parameters = _parameters(model)
    given = _given(raw, parameters)
    try:
        read = msgspec.convert(given, model)
    except msgspec.ValidationError:
        read = _read_one_by_one(given, model, parameters)
    for name, parameter in parameters.items():
        if parameter.takes_words and not getattr(read, parameter.attribute).strip():
            message = f"The parameter `{name}` must contain words, but has only white space."
            raise ToolError(INVALID, message, parameter=name)
    return read


@cache
def _parameters(model: type[msgspec.Struct]) -> Mapping[str, _Parameter]:
    described = type_info(model)
    assert isinstance(described, StructType)
    properties = input_schema(model)["properties"]
    marks = {member.name: _marks(member.type) for member in described.fields}
    return {
        member.encode_name: _Parameter(
            attribute=member.name,
            kind=member.type,
            schema=properties[member.encode_name],
            is_required=member.required,
            is_exact=marks[member.name].items() >= EXACT.items(),
            takes_words=marks[member.name].items() >= WORDS.items(),
            empty_counts=marks[member.name].items() >= EMPTY_COUNTS.items(),
        )
        for member in msgspec.structs.fields(model)
    }


def _marks(kind: Type) -> Mapping[str, Any]:
    """Return the marks of a parameter, from `Meta(extra=...)`; if nullable, the marks of its other type."""
    kinds = kind.types if isinstance(kind, UnionType) else (kind,)
    return next((each.extra or {} for each in kinds if isinstance(each, Metadata)), {})


# --- what counts as left out -------------------------------------------------------------------------


def _given(raw: Mapping[str, Any], parameters: Mapping[str, _Parameter]) -> Mapping[str, Any]:
    """Return `raw` without `null`, and without the empty values of optional parameters."""
    left_out = []
    changed = {}
    for name, value in raw.items():
        parameter = parameters.get(name)
        if parameter is None:
            if name in HOST_PARAMETERS:
                left_out.append(name)
        elif value is None or not (parameter.is_required or parameter.is_exact or parameter.empty_counts):
            if _counts_as_left_out(value, parameter.schema):
                left_out.append(name)
            elif type(value) is dict and _is_declared(parameter.schema):
                changed[name] = _given_members(value, parameter.schema)
    if not left_out and not changed:
        return raw
    return {**{name: raw[name] for name in raw if name not in left_out}, **changed}


def _given_members(value: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """Return a declared object, such as `filters`, without the members that count as left out."""
    properties, required = schema["properties"], schema.get("required", ())
    kept = {
        name: member
        for name, member in value.items()
        if name not in properties or name in required or not _counts_as_left_out(member, properties[name])
    }
    return {
        name: _given_members(member, properties[name])
        if type(member) is dict and _is_declared(properties.get(name, {}))
        else member
        for name, member in kept.items()
    }


def _is_declared(schema: Schema) -> bool:
    """True for an object with fixed members, such as `filters`; `metadata` takes any."""
    return schema.get("additionalProperties") is False


def _counts_as_left_out(value: Any, schema: Schema) -> bool:
    """True if an optional value is empty: `null`, "", an empty array, or 0 where the minimum is above it."""
    if value or value is False:
        return False
    if value is None or value == "":
        return True
    if type(value) is list:
        return schema.get("type") == "array"
    return type(value) in (int, float) and (
        schema.get("minimum", 0) > 0 or schema.get("exclusiveMinimum", -1) >= 0
    )


# --- one parameter after the other, where they do not fit as they are --------------------------------


def _read_one_by_one(given: Mapping[str, Any], model: type[A], parameters: Mapping[str, _Parameter]) -> A:
    values: dict[str, Any] = {}
    problems: list[ToolError] = []
    for name, value in given.items():
        if (parameter := parameters.get(name)) is None:
            problems.append(_unknown(name, given, parameters))
            continue
        try:
            read = _read(value, parameter)
        except msgspec.ValidationError as error:
            problems.append(_refusal(mismatch_of(error), name, value, parameter.schema))
        else:
            if read is not _LEFT_OUT:
                values[parameter.attribute] = read
    problems += [
        _missing(name, parameter.schema)
        for name, parameter in parameters.items()
        if parameter.is_required and name not in given
    ]
    if not problems:
        return model(**values)
    raise problems[0] if len(problems) == 1 else _together(problems)


def _together(problems: Sequence[ToolError]) -> ToolError:
    names = [problem.details["parameter"] for problem in problems]
    messages = [problem.message for problem in problems[:_MOST_NAMED]]
    if more := len(problems) - len(messages):
        messages.append(f"{more} more do not fit.")
    return ToolError(problems[0].code, " ".join(messages), parameter=names[0], parameters=names[:_MOST_NAMED])


def _read(value: Any, parameter: _Parameter) -> Any:
    """Convert a value to its type, from text too, or return `_LEFT_OUT`.
    Raises msgspec.ValidationError: of the value as it came.
    """
    try:
        return msgspec.convert(value, parameter.kind)
    except msgspec.ValidationError:
        if parameter.is_exact:
            raise
        understood = _understood(value, parameter.schema)
        if not parameter.is_required and _counts_as_left_out(understood, parameter.schema):
            return _LEFT_OUT
        try:
            return msgspec.convert(understood, parameter.kind)
        except msgspec.ValidationError:
            if type(understood) is type(value):  # then the place of the original error is better
                raise
        raise


def _understood(value: Any, schema: Schema) -> Any:
    """Convert `value` to the type of `schema` if it has one possible meaning, or return it unchanged."""
    kind = schema.get("type")
    if isinstance(value, str):
        value = _from_text(value, schema)
    match value:
        case float() if kind == "integer" and value.is_integer():
            return int(value)
        case dict() if kind == "object" and _is_declared(schema):
            properties = schema["properties"]
            members = {name: _understood(each, properties.get(name, {})) for name, each in value.items()}
            return _given_members(members, schema)
        case list() if kind == "array":
            return [_understood(each, schema.get("items", {})) for each in value]
        case _:
            return value


def _from_text(text: str, schema: Schema) -> Any:
    match schema.get("type"):
        case "integer" | "number" if _NUMBER.fullmatch(text):
            return float(text) if "." in text else int(text)
        case "boolean":
            return _BOOLEANS.get(text, text)
        case "object":
            return _from_json(text, dict)
        case "array":
            if text.lstrip().startswith("["):
                return _from_json(text, list)
            return [text] if schema["items"].get("type") == "string" else text
        case _:
            return text


def _from_json(text: str, kind: type) -> Any:
    try:
        value = jsonrpc.parse(text.encode())
    except (jsonrpc.ParseError, UnicodeEncodeError):
        return text
    return value if type(value) is kind else text


# --- refusals ----------------------------------------------------------------------------------------


def takes(schema: Mapping[str, Any]) -> str:
    """Describe the values of `schema` in words: `an integer from 1 to 100`."""
    if "enum" in schema:
        return "one of " + ", ".join(msgspec.json.encode(value).decode() for value in schema["enum"])
    kind = schema.get("type", "")
    words = _SINGULAR.get(kind, "a JSON value")
    if kind == "array":
        of = schema.get("items", {}).get("type", "")
        words += f" of {_PLURAL[of]}" if of in _PLURAL else ""
    return words + _bounds(schema) + (f" ({schema['format']})" if "format" in schema else "")


def _bounds(schema: Mapping[str, Any]) -> str:
    if "pattern" in schema:
        return f" that matches {schema['pattern']}"
    for low, high, unit in (
        ("minimum", "maximum", ""),
        ("exclusiveMinimum", "exclusiveMaximum", ""),
        ("minLength", "maxLength", " characters"),
        ("minItems", "maxItems", " items"),
    ):
        least, most = schema.get(low), schema.get(high)
        if least is not None and most is not None:
            return f" of {least} to {most}{unit}" if unit else f" from {least} to {most}"
        if least is not None:
            unit = unit.removesuffix("s") if least == 1 else unit
            return f" {'above' if 'exclusive' in low else 'of at least'} {least}{unit}"
        if most is not None:
            return f" {'below' if 'exclusive' in low else 'of at most'} {most}{unit}"
    return ""


def _missing(name: str, schema: Schema) -> ToolError:
    return ToolError(MISSING, f"The parameter `{name}` is required: {takes(schema)}.", parameter=name)


def _unknown(name: str, given: Mapping[str, Any], known: Mapping[str, Any], place: str = "") -> ToolError:
    """The error for an unknown parameter, with the probable one; `place` is the path of its object."""
    free = [each for each in known if each not in given]
    plain = {each.replace("_", ""): each for each in free}
    meant = [each for each in _OTHER_NAMES.get(name, ()) if each in free]
    meant = meant or [
        plain[each] for each in get_close_matches(name.replace("_", "").lower(), plain, 1, 0.75)
    ]
    name = f"{place}.{name[:_MAX_QUOTED]}".strip(".")
    if meant:
        hint = f"Did you mean `{meant[0]}`?"
    else:
        hint = f"It takes {', '.join(f'`{each}`' for each in known)}." if known else "It takes no parameters."
    return ToolError(INVALID, f"There is no parameter `{name}`. {hint}", parameter=name)


def _refusal(mismatch: Mismatch, name: str, raw: Any, schema: Mapping[str, Any]) -> ToolError:
    """Return the error for a mismatch within the value of the parameter `name`."""
    for step in _STEP.finditer(mismatch.place):
        if step["name"] is not None:
            schema = schema.get("properties", {}).get(step["name"], {})
        else:
            schema = schema.get("additionalProperties" if step["index"] == "..." else "items", {})
        try:
            raw = raw[step["name"] if step["name"] is not None else int(step["index"])]
        except (KeyError, IndexError, TypeError, ValueError):
            raw = _UNKNOWN  # behind a `[...]`: msgspec does not say which key of a mapping
    name += mismatch.place
    properties = schema.get("properties", {})
    if (field := mismatch.missing) is not None:
        return _missing(f"{name}.{field}", properties.get(field, {}))
    if mismatch.unknown is not None:
        return _unknown(mismatch.unknown, raw if isinstance(raw, dict) else {}, properties, name)
    words = f"The parameter `{name}` takes {takes(schema)}; got {_quoted(raw)}."
    return ToolError(INVALID, words, parameter=name)


def _quoted(value: Any) -> str:
    """Describe a received value in a few words; a long string by its length."""
    if value is _UNKNOWN:
        return "something else"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"an array of {len(value)}"
    if isinstance(value, str) and len(value) > _MAX_QUOTED:
        return f"a string of {len(value)} characters"
    return msgspec.json.encode(value).decode()
