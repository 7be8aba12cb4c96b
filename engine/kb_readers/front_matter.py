"""The YAML or TOML at the beginning of a Markdown file, read so that no file can do harm by it.

Values remain the texts in the file: YAML's own rules convert `2026-01-02` to a date, `yes` to `true` and
`12:30` to 750, and each program that writes notes has different rules.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

import yaml

LARGEST = 65_536
"""Maximum number of characters between the two lines of dashes; longer front matter counts as text."""

NOTHING = ("null", "~")  # texts of YAML for no value

_DEEPEST = 16
_FENCES = re.compile(r"(?ms)---[ \t]*\r?\n(.*?)(?:^|\r?\n)(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)")
_TOML = re.compile(r"(?ms)\+\+\+[ \t]*\r?\n(.*?)(?:^|\r?\n)\+\+\+[ \t]*(?:\r?\n|\Z)")
_MEMBER = re.compile(r"\s*(?:[{?!&*]|(?!-\s).*?:(?:\s|$))")  # the first line of a mapping
_NO_TEXT = re.compile("[\0\ud800-\udfff]")
_NO_TEXT_IN_TOML = re.compile("[\ud800-\udfff]|\\\\(?:u0000|U00000000)")

_INVALID = "it has invalid characters"


class NoMapping(ValueError):
    """The front matter is not a mapping of names to values; the message has the reason."""


def split(text: str) -> tuple[str, str]:
    """Return the YAML, which may be empty, and the text below it; text between two rules is no YAML."""
    found = _FENCES.match(text, 0, LARGEST)
    if found is None:
        return "", text
    lines = (line for line in found[1].splitlines() if line.strip() and not line.lstrip().startswith("#"))
    first = next(lines, None)
    is_text = first is not None and not _MEMBER.match(first)
    return ("", text) if is_text else (found[1], text[found.end() :])


def members_of(text: str) -> dict[str, Any]:
    """Return the members of the front matter of a text: YAML, or TOML between lines of `+++` as Hugo has it.

    Without front matter it is empty. Values of TOML have the types of TOML. Raises NoMapping.
    """
    toml = _TOML.match(text, 0, LARGEST)
    if toml is None:
        return read(split(text)[0])
    if _NO_TEXT_IN_TOML.search(toml[1]):
        raise NoMapping(_INVALID)
    try:
        return tomllib.loads(toml[1].replace("\r\n", "\n"))
    except (ValueError, RecursionError) as error:
        raise NoMapping(" ".join(str(error).split())[:200]) from error


def title_in(text: str) -> str | None:
    try:
        title = members_of(text).get("title")
    except NoMapping:
        return None
    return title if isinstance(title, str) and title not in NOTHING else None


def read(source: str) -> dict[str, Any]:
    """Return the members of a front matter: texts, lists and mappings.

    Raises:
        NoMapping: it is not YAML, not a mapping, or has aliases, by which a few lines can expand to
        gigabytes.
    """
    if _NO_TEXT.search(source):
        raise NoMapping(_INVALID)
    try:
        _check(source)
        members = yaml.load(source, Loader=yaml.BaseLoader)  # noqa: S506 - makes nothing but texts
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise NoMapping(" ".join(str(error).split())[:200]) from error
    if members is None or members == "":
        return {}
    if not isinstance(members, dict):
        raise NoMapping("it is not a mapping of names to values")
    return {str(name): value for name, value in members.items()}


def _check(source: str) -> None:
    depth = 0
    for event in yaml.parse(source, Loader=yaml.BaseLoader):
        if isinstance(event, yaml.AliasEvent):
            raise NoMapping("it has aliases (*name)")
        if isinstance(event, yaml.ScalarEvent) and _NO_TEXT.search(event.value):
            raise NoMapping(_INVALID)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _DEEPEST:
            raise NoMapping(f"it is nested more than {_DEEPEST} levels deep")
