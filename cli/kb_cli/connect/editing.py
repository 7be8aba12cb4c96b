"""Inserts or removes one member of a configuration file, with all other text unchanged.

JSON may have comments and trailing commas, as editors' settings do. It is parsed only for offsets, and the
text is edited there: serialising it would lose its comments and its layout. The result is parsed again before
it is returned.

The parser takes the second half of an escaped backslash for the beginning of an escape if `x` or `u` follows,
and refuses the path `C:\\\\xampp`. It gets two other characters instead of each, at the same offsets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import json5
import tomlkit
from json5.loader import ModelLoader
from json5.loader import loads as model_of
from json5.model import JSONObject, Node
from json5.tokenizer import tokenize
from tomlkit.exceptions import ParseError

from kb_cli.connect.clients import Format

_MARK = "\ufeff"
_ESCAPE = re.compile(r"\\.", re.DOTALL)
_PRIVATE_USE = range(0xE000, 0xF900)


class NotEditable(ValueError):
    """The text is not of its format, or the member's place has a value of another type."""


def value_of(text: str, form: Format) -> dict[str, Any]:
    """Return the value of a file; that of an empty one is an empty object.
    Raises NotEditable: the text is not of the format, or is not an object.
    """
    if not text.removeprefix(_MARK).strip():
        return {}
    try:
        found = _json_of(text.removeprefix(_MARK)) if form == "json" else tomlkit.parse(text).unwrap()
    except (ValueError, ParseError) as error:
        raise NotEditable(f"is no {form.upper()}: {error}") from error
    if not isinstance(found, dict):
        raise NotEditable("has no object at its root")
    return found


def member_of(text: str, form: Format, place: Sequence[str], name: str) -> object:
    """Return the value under a name at a place, or None if there is none. Raises NotEditable."""
    found: Any = value_of(text, form)
    for key in place:
        if key not in found:
            return None
        found = found[key]
        if not isinstance(found, dict):
            raise NotEditable(f"has a value other than an object at {'.'.join(place)}")
    return found.get(name)


def with_member(text: str, form: Format, place: Sequence[str], name: str, value: Mapping[str, Any]) -> str:
    """Return the text with a member at a place; the place is created, and an old member replaced.
    Raises NotEditable: as `member_of`.
    """
    wanted = deepcopy(value_of(text, form))
    member_of(text, form, place, name)  # refuses a place that is not an object
    inner = wanted
    for key in place:
        inner = inner.setdefault(key, {})
    inner[name] = value
    edited = (_put_into_json if form == "json" else _put_into_toml)(text, place, name, value)
    return _checked(edited, form, wanted)


def without_member(text: str, form: Format, place: Sequence[str], name: str) -> str:
    """Return the text without a member of a place, and without the place if it has no other content.
    Raises NotEditable: as `member_of`.
    """
    if member_of(text, form, place, name) is None:
        return text
    wanted = deepcopy(value_of(text, form))
    _drop(wanted, (*place, name))
    return _checked(
        (_cut_from_json if form == "json" else _cut_from_toml)(text, (*place, name)), form, wanted
    )


def _drop(found: dict[str, Any], keys: Sequence[str]) -> None:
    """Remove a member, and each object that thereby becomes empty."""
    key, *rest = keys
    if rest:
        _drop(found[key], rest)
    if not rest or not found[key]:
        del found[key]


def _checked(edited: str, form: Format, wanted: dict[str, Any]) -> str:
    if value_of(edited, form) != wanted:
        raise NotEditable("cannot be edited without changing its other settings")
    return edited


# --- TOML -----------------------------------------------------------------------------------------


def _put_into_toml(text: str, place: Sequence[str], name: str, value: Mapping[str, Any]) -> str:
    document = tomlkit.parse(text)
    table: Any = document
    for key in place:
        if key not in table:
            table[key] = tomlkit.table(is_super_table=True)
        table = table[key]
    table[name] = value
    return tomlkit.dumps(document)


def _cut_from_toml(text: str, keys: Sequence[str]) -> str:
    document = tomlkit.parse(text)
    _drop(document, keys)
    return tomlkit.dumps(document)


# --- JSON -----------------------------------------------------------------------------------------


def _json_of(text: str) -> Any:
    safe, pair = _without_escaped_backslashes(text)
    return _restored(json5.loads(safe), pair)


def _without_escaped_backslashes(text: str) -> tuple[str, str]:
    """Return the text with a pair of characters for each escaped backslash, and the pair, which it lacks."""
    lower = text.lower()
    unused = (chr(code) for code in _PRIVATE_USE if chr(code) not in text and f"{code:x}" not in lower)
    if (mark := next(unused, None)) is None:
        raise ValueError("it has every character of the private use area")
    pair = 2 * mark
    return _ESCAPE.sub(lambda found: pair if found[0] == r"\\" else found[0], text), pair


def _restored(value: Any, pair: str) -> Any:
    """Return a parsed value with backslashes for their pairs."""
    if isinstance(value, str):
        return value.replace(pair, "\\")
    if isinstance(value, list):
        return [_restored(each, pair) for each in value]
    if isinstance(value, dict):
        return {_restored(key, pair): _restored(each, pair) for key, each in value.items()}
    return value


def _put_into_json(text: str, place: Sequence[str], name: str, value: Mapping[str, Any]) -> str:
    keys = (*place, name)
    if not text.removeprefix(_MARK).strip():
        return json.dumps(nested(keys, value), indent=2, ensure_ascii=False) + "\n"
    layout = _Layout(text)
    found = layout.root
    for depth, key in enumerate(keys):
        if key not in (names := layout.names(found)):
            return layout.inserted(found, key, nested(keys[depth + 1 :], value))
        inner = found.values[names.index(key)]
        if depth == len(keys) - 1:
            return layout.replaced(inner, value)
        assert isinstance(inner, JSONObject)
        found = inner
    raise AssertionError(keys)


def nested(keys: Sequence[str], value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the object with `value` at the path of members `keys`, the outermost first."""
    for key in reversed(keys):
        value = {key: value}
    return value


def _cut_from_json(text: str, keys: Sequence[str]) -> str:
    layout = _Layout(text)
    found, holder, last = layout.root, layout.root, keys[0]
    for key in keys:
        if len(found.keys) > 1:
            holder, last = found, key
        inner = found.values[layout.names(found).index(key)]
        if isinstance(inner, JSONObject):
            found = inner
    return layout.cut(holder, last)


class _Layout:
    """Offsets in a text of JSON."""

    def __init__(self, text: str) -> None:
        self._text = text
        bare = text.removeprefix(_MARK)
        self._mark = len(text) - len(bare)
        safe, self._pair = _without_escaped_backslashes(bare)
        root = model_of(safe, loader=ModelLoader()).value
        assert isinstance(root, JSONObject)
        self.root = root
        self._lines = [0, *(place + 1 for place, each in enumerate(bare) if each == "\n")]
        self._commas = [token.index + self._mark for token in tokenize(safe) if token.type == "COMMA"]
        self._newline = "\r\n" if "\r\n" in text else "\n"
        self._on_one_line = bool(root.keys) and "\n" not in text.strip()

    def names(self, found: JSONObject) -> list[str]:
        """Return the names of an object's members; a name is a string, or as in JavaScript a word."""
        names = (str(getattr(key, "characters", None) or getattr(key, "name", "")) for key in found.keys)
        return [name.replace(self._pair, "\\") for name in names]

    def replaced(self, node: Node, value: Mapping[str, Any]) -> str:
        """Return the text with another value in a node's place."""
        start, end = self._span(node)
        return self._text[:start] + self._written(value, self._indentation(start)) + self._text[end:]

    def inserted(self, found: JSONObject, name: str, value: Mapping[str, Any]) -> str:
        """Return the text with one more member at the end of an object."""
        start, end = self._span(found)
        outer = self._indentation(start)
        inner = self._indentation(self._span(found.keys[0])[0]) if found.keys else outer
        if inner == outer:
            inner += self._unit()
        member = f"{json.dumps(name, ensure_ascii=False)}: {self._written(value, inner)}"
        member += "," if found.trailing_comma else ""
        closing = self._text[: end - 1].rstrip(" \t\r\n")
        if self._on_one_line:
            added = f" {member}" if found.keys else member
        else:
            added = self._newline + inner + member
            if "\n" not in self._text[len(closing) : end - 1]:
                added += self._newline + outer
        edited = closing + added + self._text[len(closing) :]
        if found.keys and not found.trailing_comma:
            last = self._span(found.values[-1])[1]
            edited = edited[:last] + "," + edited[last:]
        return edited

    def cut(self, found: JSONObject, name: str) -> str:
        """Return the text without a member of an object."""
        place = self.names(found).index(name)
        start, end = self._span(found.keys[place])[0], self._span(found.values[place])[1]
        _, closing = self._span(found)
        following = self._span(found.keys[place + 1])[0] if place + 1 < len(found.keys) else closing
        leading = self._span(found.values[place - 1])[1] if place else start
        after = [comma for comma in self._commas if end <= comma < following]
        before = [comma for comma in self._commas if leading <= comma < start]
        if after:
            end = after[0] + 1
        if self._on_one_line:
            start = before[0] if before and not after else start
            end += bool(after) and self._text[end : end + 1] == " "
            return self._text[:start] + self._text[end:]
        line = self._text.rfind("\n", 0, start)
        alone = not self._text[line + 1 : start].strip() and self._text[end:].lstrip(" \t\r").startswith("\n")
        if alone and line >= 0:
            start = line - self._text[:line].endswith("\r")  # remove the whole line
        text = self._text[:start] + self._text[end:]
        return text[: before[0]] + text[before[0] + 1 :] if before and not after else text

    def _written(self, value: Mapping[str, Any], indentation: str) -> str:
        indent = None if self._on_one_line else self._unit()
        lines = json.dumps(value, indent=indent, ensure_ascii=False).split("\n")
        return (self._newline + indentation).join(lines)

    def _unit(self) -> str:
        """Return the indentation of one level."""
        own = self._indentation(self._span(self.root.keys[0])[0]) if self.root.keys else ""
        return own or "  "

    def _indentation(self, place: int) -> str:
        """Return the blanks at the beginning of the line of an offset."""
        line = self._text[self._text.rfind("\n", 0, place) + 1 : place].removeprefix(_MARK)
        return line[: len(line) - len(line.lstrip(" \t"))]

    def _span(self, node: Node) -> tuple[int, int]:
        assert node.lineno is not None and node.col_offset is not None  # noqa: PT018 - it was parsed
        assert node.end_lineno is not None and node.end_col_offset is not None  # noqa: PT018
        start = self._lines[node.lineno - 1] + node.col_offset
        end = self._lines[node.end_lineno - 1] + node.end_col_offset
        return start + self._mark, end + self._mark
