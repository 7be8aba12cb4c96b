"""A write transaction of the store: what every mutation works on, and what it leaves for the index."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

import apsw

from kb_engine.index.embedded.vectors import Changes
from kb_engine.store.sqlite.schema import set_meta


@dataclass(frozen=True, slots=True)
class Write:
    """An open transaction. `now` is one instant for all that it does."""

    db: apsw.Connection
    now: str
    logs_changes: bool = False
    changes: Changes = field(default_factory=Changes)

    def touch_base(self, document_id: int | None) -> None:
        """Note that this document changed, also where it was deleted; None: that all were."""
        set_meta(self.db, "last_updated", self.now)
        if self.logs_changes:
            self.db.execute("INSERT INTO index_changes (document_id) VALUES (?)", (document_id,))
        else:
            self.db.execute("UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = 'index_changes'")


def new_uid() -> str:
    """A UUID, version 4."""
    return str(uuid.uuid4())
