"""The files of a folder for a base, without hidden, ignored and unreadable files.

`.gitignore` and `.kbignore` have the rules for ignored files, each for its folder and all below, in Git's
syntax; a deeper file overrides a higher one, and `.kbignore` overrides `.gitignore` in the same folder.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from pathspec import GitIgnoreSpec

from kb_cli.add import SOURCE_PATH_CHARS, Found
from kb_cli.documents import sha256_of
from kb_cli.exclusion import exclusion
from kb_cli.output import CliError
from kb_cli.sync.source import Listing
from kb_contracts.api import formats
from kb_contracts.api import models as m

IGNORE_FILES = (".gitignore", ".kbignore")

Rules = list[tuple[Path, GitIgnoreSpec]]
"""Folders with their ignore rules; the highest first."""
Stamp = tuple[int, ...]
"""File attributes that change with the file: its times, size and inode."""


class Folder:
    """A folder that may be listed repeatedly; an unchanged file is not read again."""

    def __init__(self, path: Path) -> None:
        self.root = path.resolve()
        self._known: dict[str, tuple[Stamp, str]] = {}

    @property
    def name(self) -> str:
        """Its path."""
        return str(self.root)

    @property
    def prefix(self) -> str:
        """The common prefix of the sources of its files."""
        return str(self.root / "x")[:-1]

    def owns(self, document: m.Document, source: str) -> bool:  # noqa: ARG002
        """True, for all documents under its prefix."""
        return True

    def opened(self, file: Found, held: Collection[str]) -> AbstractContextManager[Found]:  # noqa: ARG002
        """Return a file as it is."""
        return nullcontext(file)

    def listed(self) -> Listing:
        """Return its present files. Raises CliError: the folder cannot be read."""
        listing = Listing()
        known: dict[str, tuple[Stamp, str]] = {}
        for path in _files(self.root, [], listing.unreadable):
            try:
                formats.format_of(path.name)
            except formats.UnsupportedFormat:
                listing.skipped += 1
                continue
            if (why := _no_source(path)) is not None:
                listing.unreadable[str(path)] = why
                continue
            source = str(path)
            try:
                status = path.stat()
                stamp = (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)
                before = self._known.get(source)
                if before is not None and before[0] == stamp:
                    digest = before[1]
                elif (reason := exclusion(path, self.root)) is not None:
                    listing.left_out[source] = reason
                    continue
                else:
                    digest = sha256_of(path)
            except OSError as error:
                listing.unreadable[source] = error.strerror or str(error)
                continue
            known[source] = stamp, digest
            listing.files[source] = Found(path, status.st_size, named=False, source=source)
            listing.digests[source] = digest
        self._known = known
        if self.name in listing.unreadable:
            raise CliError(f"{self.name}: {listing.unreadable[self.name]}")
        listing.is_complete = True
        return listing


def _files(folder: Path, above: Rules, unreadable: dict[str, str]) -> Iterator[Path]:
    """Yield the files under a folder, in the order of their names. Links to folders are not followed."""
    try:
        rules = [*above, *_rules(folder)]
        entries = sorted(folder.iterdir())
    except OSError as error:
        unreadable[str(folder)] = error.strerror or str(error)
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
