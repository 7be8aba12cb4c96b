"""Snapshot copies of a base, and the copy made before a change of its layout."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw

from kb_engine.disk import sync

logger = logging.getLogger(__name__)

PRIVATE = 0o600


@contextmanager
def copied(source: apsw.Connection, to: Path) -> Iterator[apsw.Connection]:
    """Yield a connection to the new copy, a single file without a write-ahead log."""
    to.unlink(missing_ok=True)
    to.touch(mode=PRIVATE)
    with closing(apsw.Connection(str(to))) as copy:
        with copy.backup("main", source, "main") as backup:
            # In one read transaction: writers continue, and the copy never restarts because of them.
            backup.step(-1)
        copy.pragma("journal_mode", "delete")
        yield copy


def keep_layout(db: apsw.Connection, path: Path, version: int) -> None:
    """Copy the base to `<path>.layout-<version>` and remove the earlier copies.

    One of the same layout is replaced: an engine of that layout may have changed the base since.
    Without enough disk space the base is migrated without a copy, because this engine could not use it
    unmigrated.
    """
    kept = path.with_name(f"{path.name}.layout-{version}")
    size = path.stat().st_size
    if shutil.disk_usage(path.parent).free < 2 * size:
        logger.warning(
            "no room for a copy of the base before the change of its layout", extra={"bytes": size}
        )
        return
    new = kept.with_name(f"{kept.name}.new")
    with copied(db, new):
        pass
    sync(new)
    new.replace(kept)
    sync(path.parent)
    for earlier in path.parent.glob(f"{path.name}.layout-*"):
        if earlier != kept:
            earlier.unlink()
    logger.info("kept a copy of the base with its previous layout", extra={"copy": str(kept)})
