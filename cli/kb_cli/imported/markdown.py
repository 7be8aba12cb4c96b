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
from pathlib import Path
from typing import Any, Literal

from kb_cli import foreign_tags
from kb_cli.properties import Details, lifted, named_tags, text_of
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
    title = text_of(properties.pop("title", "")) or path.stem
    written = inline_tags(body) if dialect == "obsidian" else observed_tags(body)
    kept, left_out, tag_notes = foreign_tags.sorted_out([*named_tags(properties), *written], taken)
    metadata |= lifted(properties)
    for member in ("type", "permalink"):
        if value := text_of(properties.get(member)):
            metadata[member] = value
            del properties[member]
    if dialect == "basic-memory" and (found := relations(body)):
        metadata["relations"] = found[:MOST_RELATIONS]
        if len(found) > MOST_RELATIONS:
            notes.append(f"{len(found) - MOST_RELATIONS} relations more are in the text alone")
    metadata |= left_out
    metadata = _bounded(metadata, {name: value for name, value in properties.items() if value != ""}, notes)
    return Details(title[: m.MAX_TITLE_CHARS], kept, metadata, [*notes, *tag_notes])


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
