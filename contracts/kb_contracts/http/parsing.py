"""From bytes and strings to models, with every misfit an `EngineError` that names its place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from kb_contracts.api.errors import EngineError
from kb_contracts.api.models import NOT_BLANK

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)

MAX_VALUES = 100_000
"""How many values a JSON body may hold, as `holds_too_many_values` counts them."""
TOO_MANY_VALUES = f"more than {MAX_VALUES} commas and opening brackets outside of its strings"
MAX_METADATA_BYTES = 65_536
MAX_METADATA_DEPTH = 32

_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>[^`]*)`")
_MISSING = re.compile(r"^Object missing required field `(?P<name>[^`]*)`")
_BLANK = re.compile(rf"^Expected `str` matching regex {re.escape(repr(NOT_BLANK))}$")
_PLACE = re.compile(r" - at `\$\.?(?P<place>[^`]*)`$")


def holds_too_many_values(raw: bytes) -> bool:
    """Whether a JSON body holds more values than may be, each of which costs many times its bytes to read.

    Every value but the first follows a comma or an opening bracket. Those in strings count as well until
    there are too many: only then the strings, of which a member has two at the most, are cut out.
    """
    if len(raw) <= MAX_VALUES or _separators(raw) <= MAX_VALUES:
        return False
    pieces = raw.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"', 4 * MAX_VALUES)
    return len(pieces) > 4 * MAX_VALUES or _separators(b"".join(pieces[::2])) > MAX_VALUES


def _separators(raw: bytes) -> int:
    return raw.count(b",") + raw.count(b"[") + raw.count(b"{")


def decode_body(raw: bytes, model: type[S]) -> S:
    """A model from a JSON body; `4.0` is an integer, as JSON Schema has it.

    Raises:
        EngineError: `invalid_request`, `missing_parameter`, `unknown_parameter` or `invalid_parameter`.
    """
    if holds_too_many_values(raw):
        raise EngineError("invalid_request", f"The body holds {TOO_MANY_VALUES}.")
    try:
        return _decode(raw, model)
    except msgspec.ValidationError as error:
        raise misfit(error, model) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngineError("invalid_request", f"The body is not valid JSON: {error}") from error


def _decode(raw: bytes, model: type[S]) -> S:
    try:
        return msgspec.json.decode(raw, type=model)
    except msgspec.ValidationError as error:
        if "got `float`" not in str(error):
            raise
        return msgspec.convert(_WHOLE_NUMBERS.decode(raw), model)


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value


_WHOLE_NUMBERS = msgspec.json.Decoder(float_hook=_number)


def convert_query(pairs: list[tuple[str, str]], model: type[S]) -> S:
    """A model from query parameters; each may stand once.

    Raises:
        EngineError: as `decode_body`, without `invalid_request`.
    """
    values: dict[str, str] = {}
    for name, value in pairs:
        if name in values:
            raise EngineError("invalid_parameter", f"Query parameter {name!r} stands twice.", parameter=name)
        values[name] = value
    types = _query_types(model)
    for name in values:
        if name not in types:
            raise _unknown(name, types)
    return model(**_converted(values, types, "Query"))


@cache
def _query_types(model: type[msgspec.Struct]) -> dict[str, Any]:
    """The types of a query's fields without None: a query can only leave a field out."""
    hints = get_type_hints(model, include_extras=True)
    return {name: kind for name, hint in hints.items() for kind in _kinds(hint)}


def _kinds(hint: Any) -> list[Any]:
    """What a value may be beside None."""
    if get_origin(hint) not in (Union, UnionType):
        return [hint]
    return [kind for kind in get_args(hint) if kind is not NoneType]


def convert_path(values: Mapping[str, str], types: Mapping[str, Any]) -> dict[str, Any]:
    """Path parameters, each converted to its declared type.

    Raises:
        EngineError: `invalid_parameter` that names the parameter.
    """
    return _converted({name: values[name] for name in types}, types, "Path")


def _converted(values: Mapping[str, str], types: Mapping[str, Any], where: str) -> dict[str, Any]:
    converted = {}
    for name, value in values.items():
        try:
            converted[name] = msgspec.convert(value, types[name], strict=False)
        except msgspec.ValidationError as error:
            raise EngineError(
                "invalid_parameter",
                f"{where} parameter {name!r}{_wanted(types[name], error)}.",
                parameter=name,
            ) from error
    return converted


def _wanted(hint: Any, error: msgspec.ValidationError) -> str:
    """What the value is to be: in the contract's words where msgspec has only a pattern."""
    descriptions = [meta.description for meta in getattr(hint, "__metadata__", ()) if meta.pattern]
    return f" takes {descriptions[0]}" if "regex" in str(error) and any(descriptions) else f": {error}"


def misfit(error: msgspec.ValidationError, model: Any = None) -> EngineError:
    """The `EngineError` for a value that does not fit; of a `model` that is a Struct it says what is near."""
    text = str(error)
    place = _PLACE.search(text)
    prefix = f"{place['place']}." if place else ""
    if unknown := _UNKNOWN.match(text):
        return _unknown(prefix + unknown["name"], _names(model) if isinstance(model, type) else ())
    if missing := _MISSING.match(text):
        name = prefix + missing["name"]
        return EngineError("missing_parameter", f"Parameter {name!r} is required.", parameter=name)
    name = place["place"] if place else ""
    what = _BLANK.sub("it takes words, and came with blanks alone", _PLACE.sub("", text))
    return EngineError(
        "invalid_parameter",
        f"Parameter {name!r}: {what}." if name else f"The body does not fit: {what}.",
        **({"parameter": name} if name else {}),
    )


def _unknown(name: str, known: Iterable[str]) -> EngineError:
    near = get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else f" There are: {', '.join(known)}." if known else ""
    return EngineError("unknown_parameter", f"There is no parameter {name!r}.{hint}", parameter=name)


@cache
def _names(model: type[msgspec.Struct]) -> tuple[str, ...]:
    """The names of a model's members as an error tells them: `query`, `filters`, `filters.format`."""
    names: list[str] = []
    hints = get_type_hints(model)
    for field in msgspec.structs.fields(model):
        name = field.encode_name
        names.append(name)
        for kind in _kinds(hints[field.name]):
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                names += [f"{name}.{below}" for below in _names(kind)]
    return tuple(dict.fromkeys(names))


def check_metadata(metadata: Mapping[str, Any]) -> None:
    """Refuse metadata that is too large or too deep to travel with every result.

    Raises:
        EngineError: `invalid_parameter`, over 64 KiB as JSON or over 32 levels deep.
    """
    size = len(msgspec.json.encode(metadata))
    problem = f"is {size} bytes as JSON; at most {MAX_METADATA_BYTES} are taken"
    if size <= MAX_METADATA_BYTES:
        problem = f"is nested more than {MAX_METADATA_DEPTH} levels deep"
        level: list[Any] = [metadata]
        for _ in range(MAX_METADATA_DEPTH):
            members = [
                member for outer in level for member in (outer.values() if isinstance(outer, dict) else outer)
            ]
            level = [member for member in members if isinstance(member, dict | list)]
        if not level:
            return
    raise EngineError("invalid_parameter", f"metadata {problem}.", parameter="metadata")
