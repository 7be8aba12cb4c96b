"""Reads the parts of a request into the types that the contract declares: path, query and JSON body."""

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
from kb_contracts.semantics.validation import mismatch_of

S = TypeVar("S", bound=msgspec.Struct)

MAX_VALUES = 100_000
"""Maximum number of values in a JSON body, as `holds_too_many_values` counts them."""
TOO_MANY_VALUES = f"more than {MAX_VALUES} commas and opening brackets outside of its strings"
_BLANK = re.compile(rf"^Expected `str` matching regex {re.escape(repr(NOT_BLANK))}$")


def holds_too_many_values(raw: bytes) -> bool:
    """True if a JSON body holds more than `MAX_VALUES` values.

    Decoding a value needs many times the memory of its bytes. Every value but the first follows a comma or an
    opening bracket. Commas and brackets within strings count as well at first. Only if there are too many,
    the strings, at most two for each member, are cut out.
    """
    if len(raw) <= MAX_VALUES or _separators(raw) <= MAX_VALUES:
        return False
    pieces = raw.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"', 4 * MAX_VALUES)
    return len(pieces) > 4 * MAX_VALUES or _separators(b"".join(pieces[::2])) > MAX_VALUES


def _separators(raw: bytes) -> int:
    return raw.count(b",") + raw.count(b"[") + raw.count(b"{")


def decode_body(raw: bytes, model: type[S]) -> S:
    """Return a model from a JSON body; `4.0` is an integer, as in JSON Schema.

    Raises:
        EngineError: `invalid_request`, `missing_parameter`, `unknown_parameter` or `invalid_parameter`.
    """
    if holds_too_many_values(raw):
        raise EngineError("invalid_request", f"The body contains {TOO_MANY_VALUES}.")
    try:
        try:
            return msgspec.json.decode(raw, type=model)
        except msgspec.ValidationError as error:
            if "got `float`" not in str(error):
                raise
            return msgspec.convert(_WHOLE_NUMBERS.decode(raw), model)
    except msgspec.ValidationError as error:
        raise misfit(error, model) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngineError("invalid_request", f"The body is not valid JSON: {error}") from error


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value


_WHOLE_NUMBERS = msgspec.json.Decoder(float_hook=_number)


def convert_query(pairs: Iterable[tuple[str, str]], model: type[S]) -> S:
    """Return a model from query parameters; each may appear once.

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
    for name in _required(model):
        if name not in values:
            raise EngineError("missing_parameter", f"Query parameter {name!r} is required.", parameter=name)
    return model(**_converted(values, types, "Query"))


@cache
def _required(model: type[msgspec.Struct]) -> list[str]:
    return [field.name for field in msgspec.structs.fields(model) if field.required]


@cache
def _query_types(model: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the types of a query's fields without None: a query can only omit a field."""
    hints = get_type_hints(model, include_extras=True)
    return {name: kind for name, hint in hints.items() for kind in _kinds(hint)}


def _kinds(hint: Any) -> list[Any]:
    """Return the types of a hint without None."""
    if get_origin(hint) not in (Union, UnionType):
        return [hint]
    return [kind for kind in get_args(hint) if kind is not NoneType]


def convert_path(values: Mapping[str, str], types: Mapping[str, Any]) -> dict[str, Any]:
    """Return the path parameters, each converted to its declared type.

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
            # The contract's description of the value, where msgspec reports only a pattern.
            metas = getattr(types[name], "__metadata__", ())
            words = next((meta.description for meta in metas if meta.pattern and meta.description), None)
            wanted = f" takes {words}" if words and "regex" in str(error) else f": {error}"
            raise EngineError(
                "invalid_parameter", f"{where} parameter {name!r}{wanted}.", parameter=name
            ) from error
    return converted


def misfit(error: msgspec.ValidationError, model: Any = None) -> EngineError:
    """Return the `EngineError` for an invalid value; for a `model` that is a Struct it suggests a similar
    name.
    """
    mismatch = mismatch_of(error)
    name = mismatch.place.removeprefix(".")
    prefix = f"{name}." if name else ""
    if mismatch.unknown is not None:
        return _unknown(prefix + mismatch.unknown, _names(model) if isinstance(model, type) else ())
    if mismatch.missing is not None:
        name = prefix + mismatch.missing
        return EngineError("missing_parameter", f"Parameter {name!r} is required.", parameter=name)
    what = _BLANK.sub("it must contain words, but has only white space", mismatch.text)
    return EngineError(
        "invalid_parameter",
        f"Parameter {name!r}: {what}." if name else f"The body is invalid: {what}.",
        **({"parameter": name} if name else {}),
    )


def _unknown(name: str, known: Iterable[str]) -> EngineError:
    near = get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else f" There are: {', '.join(known)}." if known else ""
    return EngineError("unknown_parameter", f"There is no parameter {name!r}.{hint}", parameter=name)


@cache
def _names(model: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the names of a model's members as errors spell them: `query`, `filters`, `filters.format`."""
    names: list[str] = []
    hints = get_type_hints(model)
    for field in msgspec.structs.fields(model):
        name = field.encode_name
        names.append(name)
        for kind in _kinds(hints[field.name]):
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                names += [f"{name}.{below}" for below in _names(kind)]
    return tuple(dict.fromkeys(names))
