"""A write transaction of the store: what every mutation works on, and what it leaves for the index."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

import apsw

from kb_engine.index.embedded.vectors import Changes
from kb_engine.store.schema import set_meta


@dataclass(frozen=True, slots=True)
class Write:
    """An open transaction. `now` is one instant for all that it does."""

    db: apsw.Connection
    now: str
    changes: Changes = field(default_factory=Changes)

    def touch_base(self) -> None:
        """Note that documents changed, also where only a deletion did."""
        set_meta(self.db, "last_updated", self.now)


def new_uid() -> str:
    """A UUID, version 4."""
    return str(uuid.uuid4())
