"""Properties of a file beside its content: tags, aliases and dates from the front matter of Markdown.

Obsidian, Hugo, Docusaurus and Jekyll have them under different names and in different forms: a list, a text
with commas or spaces, TOML. The text is sent unchanged, front matter included, so that a search finds an
alias.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import IO, Any

from kb_cli import foreign_tags
from kb_contracts.api.errors import EngineError
from kb_contracts.api.formats import FORMATS
from kb_contracts.semantics.documents import check_metadata
from kb_contracts.semantics.encodings import codec_of

MARKDOWN = FORMATS["md"].extensions

_CREATED = ("created", "created_at", "date created", "created at", "creation date", "date")
_UPDATED = (
    *("updated", "updated_at", "modified", "date modified", "updated at", "last modified", "lastmod"),
    *("last_modified_at", "last_update"),
)
_TAGS = ("tags", "tag")
_ALIASES = ("aliases", "alias")
_NOTHING = ("null", "~")


@dataclass(frozen=True, slots=True)
class Details:
    """Properties of a file or a text beside its content. `notes`: remarks for the user."""

    title: str | None = None
    tags: Sequence[str] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()


NO_DETAILS = Details()


def of_front_matter(content: IO[bytes], taken: int, encoding: str = "") -> Details:
    """Return tags and metadata of a Markdown file; `taken` is the number of tags that all files get.

    `encoding` is the label of a declared encoding. Unreadable parts are reported in its notes. The engine
    itself reads the title.
    """
    from kb_readers import front_matter  # YAML and TOML, for Markdown alone
    from kb_readers.text import encoding_by_mark

    data = content.read(4 * front_matter.LARGEST)
    codec = encoding_by_mark(data) or codec_of(encoding) or "utf-8"
    try:
        # A byte that cannot be decoded becomes a surrogate, with which front matter is not read.
        members = front_matter.members_of(data.decode(codec, "surrogateescape"))
    except (front_matter.NoMapping, UnicodeDecodeError) as error:
        return Details(notes=[f"its front matter is not read: {error}"])
    kept, left_out, notes = foreign_tags.sorted_out(named_tags(members), taken)
    metadata = lifted(members) | left_out
    try:
        check_metadata(metadata)
    except EngineError:
        metadata, notes = {}, [*notes, "its aliases are too many to be kept beside the text"]
    return Details(None, kept, metadata, notes)


def named_tags(members: MutableMapping[str, Any]) -> list[str]:
    """Remove the tags from the members, and return them."""
    return [tag for key in _TAGS for tag in _tags(members.pop(key, None))]


def lifted(members: MutableMapping[str, Any]) -> dict[str, Any]:
    """Remove aliases and dates from the members, and return them as metadata."""
    found: dict[str, Any] = {}
    if aliases := [alias for key in _ALIASES for alias in _texts(members.pop(key, None))]:
        found["aliases"] = aliases
    for name, keys in (("created", _CREATED), ("updated", _UPDATED)):
        for key in keys:
            if date := _date(members.get(key)):
                found[name] = date
                del members[key]
                break
    return found


def text_of(value: Any) -> str:
    """Return the value on one line; empty if it is not a text."""
    text = " ".join(value.split()) if isinstance(value, str) else ""
    return "" if text in _NOTHING else text


def _tags(value: Any) -> Iterator[str]:
    """Yield the tags of a list, or of a text with commas, or with spaces as Jekyll has it."""
    if isinstance(value, str) and "," not in value:
        value = value.split()
    for text in _texts(value):
        for part in text.split(","):
            if tag := part.strip().lstrip("#").strip():
                yield tag


def _texts(value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    # A tag of Docusaurus may be a mapping with a label.
    named = (each.get("label") if isinstance(each, dict) else each for each in values)
    return [text for text in map(text_of, named) if text]


def _date(value: Any) -> str:
    """Return a date or time as it is written; empty for any other value."""
    if isinstance(value, dict):  # `last_update` of Docusaurus
        value = value.get("date")
    if hasattr(value, "isoformat"):  # TOML
        value = value.isoformat()
    if not isinstance(value, str):
        return ""
    try:
        datetime.fromisoformat(value.strip().replace(" +", "+").replace(" -", "-"))
    except ValueError:
        return ""
    return value.strip()
