"""A base copied as it is at one moment, and the copy that is taken before its layout changes."""

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
    """A connection to the copy, which is one new file, without a log beside it."""
    to.unlink(missing_ok=True)
    to.touch(mode=PRIVATE)
    with closing(apsw.Connection(str(to))) as copy:
        with copy.backup("main", source, "main") as backup:
            backup.step(-1)  # in one read transaction: writers go on, and nothing is begun anew for them
        copy.pragma("journal_mode", "delete")
        yield copy


def keep_layout(db: apsw.Connection, path: Path, version: int) -> None:
    """Copy the base beside itself, as `<path>.layout-<version>`, in place of the copy of an earlier one.

    Where there is no room for it the base is migrated without: it would be of no use as it is.
    """
    kept = path.with_name(f"{path.name}.layout-{version}")
    if kept.exists():  # a migration was broken off; each of them is done whole or not at all
        return
    size = path.stat().st_size
    if shutil.disk_usage(path.parent).free < 2 * size:
        logger.warning(
            "there is no room for a copy of the base before its layout changes", extra={"bytes": size}
        )
        return
    new = kept.with_name(f"{kept.name}.new")
    with copied(db, new):
        pass
    sync(new)
    for earlier in path.parent.glob(f"{path.name}.layout-*"):
        if earlier != new:
            earlier.unlink()
    new.rename(kept)
    sync(path.parent)
    logger.info("the base of the earlier layout is kept", extra={"copy": str(kept)})
