"""The files of a folder for a base, without hidden, ignored and unreadable files.

`.gitignore` and `.kbignore` have the rules for ignored files, each for its folder and all below, in Git's
syntax; a deeper file overrides a higher one, and `.kbignore` overrides `.gitignore` in the same folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pathspec import GitIgnoreSpec

from kb_cli.add import SOURCE_PATH_CHARS, Found
from kb_cli.exclusion import HOLDS_CREDENTIALS, exclusion
from kb_contracts.api import formats

IGNORE_FILES = (".gitignore", ".kbignore")

Rules = list[tuple[Path, GitIgnoreSpec]]
"""Folders with their ignore rules; the highest first."""
Stamp = tuple[int, ...]
"""File attributes that change with the file: its times, size and inode."""


@dataclass(slots=True)
class Listing:
    """The files of a folder.

    `digests` are the SHA-256 of the contents of `files`, by their sources. `unreadable` has the reasons by
    path; for an unreadable folder this is its only entry. `left_out` has the reasons of excluded files by
    path. `skipped` files are of a format that kb does not read.
    """

    files: dict[str, Found] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    unreadable: dict[Path, str] = field(default_factory=dict)
    left_out: dict[Path, str] = field(default_factory=dict)
    skipped: int = 0

    def may_hold(self, source: str) -> bool:
        """True if the source may be a file that could not be read, or one that holds credentials."""
        path = Path(source)
        if self.left_out.get(path) == HOLDS_CREDENTIALS:
            return True
        return any(each == path or each in path.parents for each in self.unreadable)


class Folder:
    """A folder that may be listed repeatedly; an unchanged file is not read again."""

    def __init__(self, path: Path) -> None:
        self.root = path.resolve()
        self._known: dict[str, tuple[Stamp, str]] = {}

    @property
    def prefix(self) -> str:
        """The common prefix of the sources of its files."""
        return str(self.root / "x")[:-1]

    def listed(self) -> Listing:
        """Return its present files."""
        listing = Listing()
        known: dict[str, tuple[Stamp, str]] = {}
        for path in _files(self.root, [], listing.unreadable):
            try:
                formats.format_of(path.name)
            except formats.UnsupportedFormat:
                listing.skipped += 1
                continue
            if (why := _no_source(path)) is not None:
                listing.unreadable[path] = why
                continue
            source = str(path)
            try:
                status = path.stat()
                stamp = (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)
                before = self._known.get(source)
                if before is not None and before[0] == stamp:
                    digest = before[1]
                elif (reason := exclusion(path, self.root)) is not None:
                    listing.left_out[path] = reason
                    continue
                else:
                    digest = _digest(path)
            except OSError as error:
                listing.unreadable[path] = error.strerror or str(error)
                continue
            known[source] = stamp, digest
            listing.files[source] = Found(path, status.st_size, named=False, source=source)
            listing.digests[source] = digest
        self._known = known
        return listing


def _files(folder: Path, above: Rules, unreadable: dict[Path, str]) -> Iterator[Path]:
    """Yield the files under a folder, in the order of their names. Links to folders are not followed."""
    try:
        rules = [*above, *_rules(folder)]
        entries = sorted(folder.iterdir())
    except OSError as error:
        unreadable[folder] = error.strerror or str(error)
        return
    for entry in entries:
        is_folder = entry.is_dir()
        if entry.name.startswith(".") or _is_ignored(entry, is_folder, rules):
            continue
        if not is_folder:
            if entry.is_file():
                yield entry
        elif not entry.is_symlink():
            yield from _files(entry, rules, unreadable)


def _no_source(path: Path) -> str | None:
    """Return the reason if the engine would not accept the path of a file as a source path."""
    if len(str(path)) > SOURCE_PATH_CHARS:
        return f"its path has more than {SOURCE_PATH_CHARS} characters"
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return "its path is not UTF-8"
    return None


def _rules(folder: Path) -> Rules:
    files = [folder / name for name in IGNORE_FILES]
    return [
        (folder, GitIgnoreSpec.from_lines(file.read_text("utf-8", "replace").splitlines()))
        for file in files
        if file.is_file()
    ]


def _is_ignored(path: Path, is_folder: bool, rules: Rules) -> bool:
    for folder, spec in reversed(rules):
        relative = path.relative_to(folder).as_posix()
        ignored = spec.check_file(f"{relative}/" if is_folder else relative).include
        if ignored is not None:
            return ignored
    return False


def _digest(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
