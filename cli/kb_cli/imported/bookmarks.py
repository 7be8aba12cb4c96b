"""Bookmarks of browsers and exports of read-later services: addresses with title, tags and time.

    HTML   the links of the Netscape format: Firefox, Chrome, Safari, Edge; Pocket
    CSV    rows under a line of names: Pocket, Instapaper, Readwise Reader, Raindrop
    JSON   a list of objects: Omnivore

All become rows of names and texts, in which `_FIELDS` has the names of the four fields.
"""

from __future__ import annotations

import csv
import html
import io
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from kb_cli.imported import NotOfKind

KIND: Literal["bookmarks"] = "bookmarks"
LARGEST = 64 * 2**20
"""Maximum size of an export, in bytes."""
ENDS = (".html", ".htm", ".csv")

_FIELDS = {
    "url": ("url", "href", "link"),
    "title": ("title",),
    "tags": ("tags", "document tags", "labels"),
    "time": ("time_added", "add_date", "timestamp", "saved date", "savedat", "created"),
}
_LINK = re.compile(r"<a\s(?P<attributes>[^<>]+)>(?P<title>[^<]*)</a>", re.IGNORECASE)
_ATTRIBUTE = re.compile(r'([\w-]+)="([^"]*)"')
_LONGEST_URL = 8_000


class Bookmark(NamedTuple):
    """An address; `time` is RFC 3339, or empty."""

    url: str
    title: str
    tags: list[str]
    time: str


def read(path: Path) -> list[Bookmark]:
    """Return the bookmarks of a file, each address once.

    Raises:
        NotOfKind: it has none, or is too large.
        OSError: the file cannot be read.
    """
    if (size := path.stat().st_size) > LARGEST:
        raise NotOfKind(f"{size:,} bytes are too many; at most {LARGEST:,} are read")
    text = path.read_bytes().decode("utf-8-sig", "replace")
    try:
        rows = [{name.strip().lower(): value for name, value in row.items()} for row in _rows(path, text)]
    except (ValueError, RecursionError, AttributeError, csv.Error) as error:
        raise NotOfKind(str(error)) from error
    found: dict[str, Bookmark] = {}
    for row in rows:
        values = {field: _first(row, names) for field, names in _FIELDS.items()}
        url = _text(values["url"]).strip().partition("#")[0]
        if url and len(url) <= _LONGEST_URL:
            title = " ".join(_text(values["title"]).split())
            found.setdefault(
                url,
                Bookmark(url, "" if title == url else title, _tags(values["tags"]), time_of(values["time"])),
            )
    if not found:
        raise NotOfKind("no link of HTML, column url of CSV or list with url of JSON is in it")
    return list(found.values())


def _rows(path: Path, text: str) -> Iterator[dict[str, Any]]:
    match path.suffix.lower():
        case ".csv":
            yield from csv.DictReader(io.StringIO(text, newline=""), restkey="")
        case ".json":
            yield from json.loads(text)
        case _:
            for link in _LINK.finditer(text):
                named = {name: html.unescape(value) for name, value in _ATTRIBUTE.findall(link["attributes"])}
                yield {**named, "title": html.unescape(link["title"])}


def _first(row: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((row[name] for name in names if row.get(name)), None)


def _tags(value: Any) -> list[str]:
    """Return tags of a list, or of a text with commas or bars, which may be in brackets and quotes."""
    parts = value if isinstance(value, list) else re.split("[|,]", _text(value).strip("[] "))
    # Labels of Omnivore may be objects.
    named = (part.get("name") if isinstance(part, dict) else part for part in parts)
    return [tag for part in named if isinstance(part, str) and (tag := _text(part).strip(" '\"#"))]


def _text(value: Any) -> str:
    """Return a value as text; halves of surrogate pairs, which JSON may have, become question marks."""
    return str(value or "").encode("utf-8", "replace").decode()


def time_of(value: Any) -> str:
    """Return a moment, in seconds since 1970 or ISO 8601, as RFC 3339; empty if it is absent or invalid."""
    try:
        if isinstance(value, float) or (text := str(value or "").strip()).isdecimal():
            moment = datetime.fromtimestamp(float(value), UTC)
        else:
            moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError, OSError):
        return ""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.isoformat().replace("+00:00", "Z")
