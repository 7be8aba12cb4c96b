"""The kind of import for a file or folder."""

from __future__ import annotations

from codecs import BOM_UTF8
from contextlib import suppress
from itertools import islice
from pathlib import Path

from kb_cli.exported import layout
from kb_cli.imported import Kind, bookmarks, markdown, memories
from kb_cli.output import CliError, UsageError

_LOOKED_AT = 200
"""Maximum number of notes that are examined for the marks of basic-memory."""


def kind_of(place: Path) -> Kind:
    """Return the kind of a file or folder, by its content. Raises CliError: the kind is unknown."""
    if place.is_file():
        return bookmarks.KIND if _has_bookmarks(place) else memories.KIND
    if not place.is_dir():
        raise UsageError(f"{place}: there is no such file or folder")
    if (place / layout.MANIFEST).exists():
        return "kb"
    notes = (path for path in place.rglob("*") if _may_be_note(path, place))
    if any(map(markdown.is_note_of_basic_memory, islice(notes, _LOOKED_AT))):
        return "basic-memory"
    if (place / ".obsidian").is_dir():
        return "obsidian"
    raise CliError(
        f"{place} is not a complete export of kb ({layout.MANIFEST} is missing, as after an interrupted "
        "export), not an Obsidian vault (.obsidian is missing) and not a folder of basic-memory (no note "
        "has title, type and permalink); name its format with --from, or add its files with kb sync"
    )


def _has_bookmarks(file: Path) -> bool:
    if file.suffix.lower() in bookmarks.ENDS:
        return True
    with suppress(OSError), file.open("rb") as content:
        return content.read(100).removeprefix(BOM_UTF8).lstrip().startswith(b"[")
    return False


def _may_be_note(path: Path, place: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(place).parts)
    return not hidden and path.suffix.lower() in markdown.ENDS and path.is_file() and not path.is_symlink()
