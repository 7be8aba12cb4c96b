"""Properties of a Markdown file: title, tags, dates, and the rest of its front matter.

The text itself is sent unchanged, front matter included: so its hash is that of the file, and `kb sync` sees
it as unchanged.

Obsidian (as of 2026) has properties in front matter, among them `tags` and `aliases`, and tags in the text.
basic-memory (0.16, 0.24) has `title`, `type`, `permalink` and `tags`, and two kinds of list items:

    - [category] an observation with a #tag (context)
    - relation_type [[Target]] (context)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from kb_cli.add import Details
from kb_cli.imported import tags
from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_contracts.semantics.documents import check_metadata
from kb_readers import front_matter

Dialect = Literal["obsidian", "basic-memory"]

ENDS = (".md", ".markdown")
LARGEST = 16 * 2**20
"""Maximum size of a file that is read for its tags, in bytes."""
MOST_RELATIONS = 100
"""Maximum number of relations in metadata, which are part of every search result."""

_CREATED = ("created", "created_at", "date created", "created at", "creation date", "date")
_UPDATED = ("updated", "updated_at", "modified", "date modified", "updated at", "last modified")
_TAGS = ("tags", "tag")
_ALIASES = ("aliases", "alias")

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_CODE = re.compile(r"`[^`]*`")
_WORD = re.compile(r"(?<!\S)(?:#[\w/-]+)+")
_NUMBER = re.compile(r"[\d/-]*")
_ITEM = re.compile(r"\s*[-*+]\s+(?P<item>.*)")
_TASK = re.compile(r"\[(?:[ xX]|[^\w\s])\]")
_CATEGORY = re.compile(r"\[[^\[\]()]+\]\s+\S")
_RELATION = re.compile(
    r"(?:(?P<quote>[\"'])(?P<phrase>[^\"']+)(?P=quote)|(?P<word>[^\s\[\]\"']+))\s+"
    r"\[\[(?P<to>[^\[\]]+)\]\](?:\s*\([^()]*\))?"
)


def details_of(path: Path, name: str, dialect: Dialect, taken: int) -> Details:
    """Return the properties of a file.

    `name` is its path in the folder, and `taken` the number of tags that all files get.
    Unreadable parts are reported in its notes and never raise an error.
    """
    metadata: dict[str, Any] = {"imported_from": dialect, "path": name}
    if path.suffix.lower() not in ENDS:
        return Details(metadata=metadata)
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
        text = data.decode("utf-8-sig")
    except OSError:
        return Details(metadata=metadata)  # sending the file then fails with the reason
    except UnicodeDecodeError:
        return Details(path.stem, metadata=metadata, notes=["no UTF-8: front matter and tags are not read"])
    if len(data) > LARGEST:
        return Details(path.stem, metadata=metadata, notes=["too large: front matter and tags are not read"])
    notes: list[str] = []
    source, body = front_matter.split(text)
    try:
        properties = front_matter.read(source)
    except front_matter.NoMapping as error:
        properties = {}
        notes.append(f"its front matter is not read: {error}")
    title = _text(properties.pop("title", "")) or path.stem
    named = [tag for key in _TAGS for tag in _tags(properties.pop(key, None))]
    written = inline_tags(body) if dialect == "obsidian" else observed_tags(body)
    kept, left_out = tags.sorted_out([*named, *written], taken)
    metadata |= _lifted(properties)
    if dialect == "basic-memory" and (found := relations(body)):
        metadata["relations"] = found[:MOST_RELATIONS]
        if len(found) > MOST_RELATIONS:
            notes.append(f"{len(found) - MOST_RELATIONS} relations more are in the text alone")
    metadata |= tags.noted(left_out)
    metadata = _bounded(metadata, {name: value for name, value in properties.items() if value != ""}, notes)
    return Details(title[: m.MAX_TITLE_CHARS], kept, metadata, [*notes, *tags.note(left_out)])


def is_note_of_basic_memory(path: Path) -> bool:
    """True if the file has the front matter that basic-memory writes."""
    try:
        with path.open("rb") as file:
            text = file.read(front_matter.LARGEST).decode("utf-8-sig", "replace")
        return {"title", "type", "permalink"} <= front_matter.read(front_matter.split(text)[0]).keys()
    except (OSError, front_matter.NoMapping):
        return False


def inline_tags(body: str) -> list[str]:
    """Return Obsidian's tags in a text, without tags in code and without numbers."""
    return [tag for line in _prose(body) for tag in _hashtags(line)]


def observed_tags(body: str) -> list[str]:
    """Return the tags of basic-memory's observations."""
    found: list[str] = []
    for line in _prose(body):
        item = _ITEM.match(line)
        if item and not _TASK.match(item["item"]):
            found += _hashtags(item["item"])
    return found


def relations(body: str) -> list[dict[str, str]]:
    """Return basic-memory's explicit relations, each once: the `type`, and the target as `to`."""
    found = {}
    for line in _prose(body):
        item = _ITEM.match(line)
        if item is None or _CATEGORY.match(item["item"]):
            continue
        relation = _RELATION.fullmatch(item["item"].rstrip())
        if relation and (to := relation["to"].strip()):
            kind = (relation["phrase"] or relation["word"]).strip()
            found[kind, to] = {"type": kind, "to": to}
    return list(found.values())


def _hashtags(line: str) -> Iterator[str]:
    for word in _WORD.finditer(line):
        for tag in word[0][1:].split("#"):
            if not _NUMBER.fullmatch(tag):
                yield tag.strip("/")


def _prose(body: str) -> Iterator[str]:
    """Yield the lines outside of code."""
    fence = ""
    for line in body.splitlines():
        mark = _FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and not line[mark.end() :].strip(" \t`~"):
                fence = ""
        elif mark:
            fence = mark[1]
        else:
            yield _CODE.sub(" ", line)


def _lifted(properties: dict[str, Any]) -> dict[str, Any]:
    """Return the members with a name of their own in metadata; they are removed from `properties`."""
    lifted: dict[str, Any] = {}
    if aliases := [alias for key in _ALIASES for alias in _texts(properties.pop(key, None))]:
        lifted["aliases"] = aliases
    for name, keys in (("created", _CREATED), ("updated", _UPDATED)):
        key = next((key for key in keys if _is_date(properties.get(key))), None)
        if key is not None:
            lifted[name] = properties.pop(key)
    for name in ("type", "permalink"):
        if value := _text(properties.get(name)):
            lifted[name] = value
            del properties[name]
    return lifted


def _bounded(metadata: dict[str, Any], properties: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """Return the metadata with the other properties, within the engine's limits."""
    whole = {**metadata, "properties": properties} if properties else metadata
    base = {name: metadata[name] for name in ("imported_from", "path")}
    for each in (whole, metadata):
        try:
            check_metadata(each)
        except EngineError:
            continue
        break
    else:
        each = base
    if each is not whole:
        notes.append("its front matter is too large to be kept beside the text")
    return each


def _tags(value: Any) -> Iterator[str]:
    for text in _texts(value):
        for part in text.split(","):
            if tag := part.strip().lstrip("#").strip():
                yield tag


def _texts(value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [text for text in map(_text, values) if text]


def _text(value: Any) -> str:
    """Return the value on one line; empty if it is not a text."""
    text = " ".join(value.split()) if isinstance(value, str) else ""
    return "" if text in front_matter.NOTHING else text


def _is_date(value: Any) -> bool:
    try:
        return bool(datetime.fromisoformat(value.strip()))
    except (AttributeError, ValueError):
        return False
