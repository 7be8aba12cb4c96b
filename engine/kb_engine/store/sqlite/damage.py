"""SQLite's check of the pages of a base that is not in use, and the repair of its indexes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import apsw

from kb_engine.store.sqlite.connection import damage_of, transaction
from kb_engine.store.sqlite.opening import owned


@dataclass(frozen=True, slots=True)
class Damage:
    """The repairs, and the damage that remains."""

    mended: Sequence[str]
    left: Sequence[str]

    @property
    def answer(self) -> dict[str, list[str]]:
        """Return the members of an answer; empty ones are left out, except `damage`."""
        return {"damage": [*self.left]} | ({"mended": [*self.mended]} if self.mended else {})


def examine(path: Path, *, repair: bool) -> Damage:
    """Ask SQLite about a base, and with `repair` make its indexes again. Blocks; raises `BaseRefused`."""
    with owned(path) as db:
        return reindexed(db) if repair else Damage([], damage_of(db))


def reindexed(db: apsw.Connection) -> Damage:
    """Make the indexes of a damaged base again; change nothing if its tables are damaged, too."""
    before = damage_of(db)
    if not before:
        return Damage([], [])
    with suppress(apsw.CorruptError, apsw.ConstraintError, _StillDamaged), transaction(db):
        db.execute("REINDEX")
        if damage_of(db):
            raise _StillDamaged
        return Damage(before, [])
    return Damage([], before)


class _StillDamaged(Exception):
    """The transaction is to be rolled back."""
