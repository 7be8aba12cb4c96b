"""The arguments of a call: checked against the tool's model, refused in words that help to mend them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec.inspect import Metadata, StructType, type_info

from kb_server.tool import INVALID, MISSING, WORDS, ToolError

A = TypeVar("A", bound=msgspec.Struct)

_PLACE = re.compile(r" - at `\$(?P<place>.*)`$")
_MISSING_FIELD = re.compile(r"^Object missing required field `(?P<field>.*)`")
_UNKNOWN_FIELD = re.compile(r"^Object contains unknown field `(?P<field>.*)`", re.DOTALL)
_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<index>\d+|\.\.\.)\]")
_MAX_QUOTED = 60

_SINGULAR = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "object": "an object",
    "array": "an array",
}
_PLURAL = {"string": "strings", "integer": "integers", "number": "numbers", "object": "objects"}


def read_arguments(raw: Mapping[str, Any], model: type[A], schema: Mapping[str, Any]) -> A:
    """`raw` as the tool's model; `schema` is its published schema, quoted in a refusal.

    `5.0` is an integer, as JSON Schema has it.

    Raises:
        ToolError: `missing_required_parameter` or `invalid_parameter`; the message names the parameter
            and what it takes, `parameter` repeats the name.
    """
    try:
        read = _converted(raw, model)
    except msgspec.ValidationError as error:
        raise _refusal(str(error), raw, schema) from None
    for name in _takes_words(model):
        if not getattr(read, name).strip():
            message = f"The parameter `{name}` takes words; got only blanks."
            raise ToolError(INVALID, message, parameter=name)
    return read


@cache
def _takes_words(model: type[msgspec.Struct]) -> list[str]:
    """The parameters declared with `WORDS`."""
    described = type_info(model)
    assert isinstance(described, StructType)
    return [
        member.name
        for member in described.fields
        if isinstance(member.type, Metadata) and (member.type.extra or {}).items() >= WORDS.items()
    ]


def _converted(raw: Mapping[str, Any], model: type[A]) -> A:
    try:
        return msgspec.convert(raw, model)
    except msgspec.ValidationError as error:
        if "got `float`" not in str(error):
            raise
        return msgspec.convert(_in_whole_numbers(raw), model)


def _in_whole_numbers(value: Any) -> Any:
    match value:
        case float() if value.is_integer():
            return int(value)
        case Mapping():
            return {name: _in_whole_numbers(member) for name, member in value.items()}
        case list():
            return [_in_whole_numbers(member) for member in value]
        case _:
            return value


def takes(schema: Mapping[str, Any]) -> str:
    """What a value of `schema` is, in words: `an integer from 1 to 100`."""
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
        words = _range(schema.get(low), schema.get(high), unit, beyond="exclusive" in low)
        if words:
            return words
    return ""


def _range(low: float | None, high: float | None, unit: str, *, beyond: bool) -> str:
    if low is not None and high is not None:
        return f" of {low} to {high}{unit}" if unit else f" from {low} to {high}"
    least, most = ("above", "below") if beyond else ("of at least", "of at most")
    if low is not None:
        return f" {least} {low}{unit}"
    return f" {most} {high}{unit}" if high is not None else ""


def _refusal(words: str, raw: Mapping[str, Any], schema: Mapping[str, Any]) -> ToolError:
    """Turn msgspec's message into ours; its place is a path such as `$.filters.tags[0]`."""
    found = _PLACE.search(words)
    place = found["place"] if found else ""
    words = _PLACE.sub("", words)
    within = _schema_at(schema, place)
    if missing := _MISSING_FIELD.match(words):
        name = _joined(place, missing["field"])
        wanted = takes(within.get("properties", {}).get(missing["field"], {}))
        return ToolError(MISSING, f"The parameter `{name}` is required: {wanted}.", parameter=name)
    if unknown := _UNKNOWN_FIELD.match(words):
        return _unknown(_joined(place, unknown["field"][:_MAX_QUOTED]), within)
    name = _joined(place, "")
    message = f"The parameter `{name}` takes {takes(within)}; got {_quoted(_value_at(raw, place))}."
    return ToolError(INVALID, message, parameter=name)


def _unknown(name: str, within: Mapping[str, Any]) -> ToolError:
    known = ", ".join(f"`{known}`" for known in within.get("properties", {}))
    hint = f"It takes {known}." if known else "It takes no parameters."
    return ToolError(INVALID, f"There is no parameter `{name}`. {hint}", parameter=name)


def _joined(place: str, field: str) -> str:
    return f"{place}.{field}".strip(".") if field else place.strip(".")


def _schema_at(schema: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    for step in _STEP.finditer(place):
        if step["name"] is not None:
            schema = schema.get("properties", {}).get(step["name"], {})
        elif step["index"] == "...":
            schema = schema.get("additionalProperties", {})
        else:
            schema = schema.get("items", {})
    return schema


_UNKNOWN = object()


def _value_at(value: Any, place: str) -> Any:
    for step in _STEP.finditer(place):
        try:
            value = value[step["name"] if step["name"] is not None else int(step["index"])]
        except (KeyError, IndexError, TypeError, ValueError):
            return _UNKNOWN  # behind a `[...]`: msgspec does not say which key of a mapping
    return value


def _quoted(value: Any) -> str:
    """A short word for what came; long strings are described, not repeated."""
    if value is _UNKNOWN:
        return "something else"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"an array of {len(value)}"
    if isinstance(value, str) and len(value) > _MAX_QUOTED:
        return f"a string of {len(value)} characters"
    return msgspec.json.encode(value).decode()
