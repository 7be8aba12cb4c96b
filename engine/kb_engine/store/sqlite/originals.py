"""The original files of a SQLite base, beside it.

    <base>.originals/    a file for each content, named by its SHA-256

A file is in place, complete and synced, before the row that names it is committed, and is removed after the
commit that deletes the row. So after a crash at any moment each row has its file; a file without a row is
removed when the base is opened.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path

from kb_engine.disk import sync
from kb_engine.store.sqlite.copying import PRIVATE


class OriginalFolder:
    """The folder of originals, filled from the spool at `spool`. All methods block."""

    def __init__(self, base: Path, spool: Path) -> None:
        self.folder = originals_of(base)
        self._spool = spool

    def path(self, sha256: str) -> Path:
        return self.folder / sha256

    def is_on_disk_of_spool(self) -> bool:
        """True if removing originals makes room for uploads."""
        there = self.folder if self.folder.exists() else self.folder.parent
        return there.stat().st_dev == self._spool.stat().st_dev

    def take(self, sha256: str, name: str) -> None:
        """Put a file of the spool in its place; it stays in the spool too.
        Raises OSError: the file does not exist, or there is no space for a copy.
        """
        if not self.folder.is_dir():
            self.folder.mkdir(mode=0o700)
            sync(self.folder.parent)
        spooled, new = self._spool / name, self.path(f"{sha256}.new")
        new.unlink(missing_ok=True)
        try:
            try:
                os.link(spooled, new)
            except FileNotFoundError:
                raise
            except OSError:  # the spool is on another disk, or the file system has no hard links
                shutil.copyfile(spooled, new)
                sync(new)
            new.chmod(PRIVATE)
            new.replace(self.path(sha256))
        finally:
            new.unlink(missing_ok=True)  # if both names are links to one file, rename() does nothing
        sync(self.folder)

    def remove(self, hashes: AbstractSet[str]) -> None:
        """Remove files. A file that cannot be removed now is removed at the next opening."""
        for sha256 in hashes:
            with suppress(OSError):
                self.path(sha256).unlink(missing_ok=True)

    def sweep(self, known: AbstractSet[str]) -> int:
        """Remove the files without a row; return their number."""
        surplus = {path.name for path in self.folder.iterdir()} - known if self.folder.is_dir() else set()
        self.remove(surplus)
        return len(surplus)


def originals_of(base: Path) -> Path:
    return base.with_name(f"{base.name}.originals")
