"""The totals that `/status` shows of a base."""

from __future__ import annotations

from kb_contracts.api import models as m
from kb_engine.store.port import Counts
from kb_engine.store.repository.transaction import Read


async def counts(read: Read, database_bytes: int) -> Counts:
    """Totals, from indexes alone."""
    groups = await read.rows(
        "SELECT doc_type, status, count(*), sum(chunk_count), sum(size_bytes) FROM documents "
        "GROUP BY doc_type, status"
    )
    queue = {
        status: int(count)
        for status, count in await read.rows("SELECT status, count(*) FROM jobs GROUP BY status")
    }
    by_status = {
        status: sum(n for _, s, n, _, _ in groups if s == status) for status in ("searchable", "empty")
    }
    by_type: dict[str, int] = {}
    for doc_type, _, documents, _, _ in groups:
        by_type[doc_type] = by_type.get(doc_type, 0) + documents
    return Counts(
        documents=m.DocumentCounts(total=sum(by_status.values()), **by_status, by_type=by_type),
        chunks=sum(int(chunks) for _, _, _, chunks, _ in groups),
        queue=m.QueueState(
            **{
                status: queue.get(status, 0)
                for status in ("queued", "running", "completed", "failed", "cancelled")
            }
        ),
        originals_bytes=sum(int(size) for _, _, _, _, size in groups),
        database_bytes=database_bytes,
        last_updated=await read.value(read.dialect.last_updated),
    )
