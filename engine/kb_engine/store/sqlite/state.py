"""What `/status` tells of a base."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import apsw

from kb_contracts.api import models as m
from kb_engine.store.port import Counts
from kb_engine.store.sqlite.connection import rows, value

Row = Sequence[Any]

GROUPS = (
    "SELECT doc_type, status, count(*), sum(chunk_count), sum(size_bytes) FROM documents "
    "GROUP BY doc_type, status"
)
QUEUE = "SELECT status, count(*) FROM jobs GROUP BY status"


def counts(db: apsw.Connection, path: Path) -> Counts:
    """Totals, from indexes alone."""
    return told(
        rows(db, GROUPS),
        [(status, count) for status, count in rows(db, QUEUE)],
        database_bytes=_bytes_on_disk(path),
        last_updated=value(db, "SELECT value FROM meta WHERE name = 'last_updated'"),
    )


def told(
    groups: Sequence[Row], queue: Iterable[tuple[str, int]], *, database_bytes: int, last_updated: str | None
) -> Counts:
    """The totals, from the rows of `GROUPS` and `QUEUE`."""
    by_status = {
        status: sum(n for _, s, n, _, _ in groups if s == status) for status in ("searchable", "empty")
    }
    by_type: dict[str, int] = {}
    for doc_type, _, documents, _, _ in groups:
        by_type[doc_type] = by_type.get(doc_type, 0) + documents
    return Counts(
        documents=m.DocumentCounts(total=sum(by_status.values()), **by_status, by_type=by_type),
        chunks=sum(int(chunks) for _, _, _, chunks, _ in groups),
        queue=_queue(dict(queue)),
        originals_bytes=sum(int(size) for _, _, _, _, size in groups),
        database_bytes=database_bytes,
        last_updated=last_updated,
    )


def _queue(found: Mapping[str, int]) -> m.QueueState:
    return m.QueueState(
        queued=found.get("queued", 0),
        running=found.get("running", 0),
        completed=found.get("completed", 0),
        failed=found.get("failed", 0),
        cancelled=found.get("cancelled", 0),
    )


def _bytes_on_disk(path: Path) -> int:
    files = (path, path.with_name(path.name + "-wal"))
    return sum(file.stat().st_size for file in files if file.exists())
