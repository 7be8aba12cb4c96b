"""What `/status` tells of a base."""

from __future__ import annotations

from kb_engine.store.port import Counts
from kb_engine.store.postgres.connection import SCHEMA, Db, rows, value
from kb_engine.store.sqlite.state import GROUPS, QUEUE, told

# The spool counts for itself.
_BYTES = (
    "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c "
    "JOIN pg_namespace n ON n.oid = c.relnamespace "
    "WHERE n.nspname = ? AND c.relkind = 'r' AND c.relname <> 'spool_parts'"
)


async def counts(db: Db) -> Counts:
    """Totals, from indexes alone."""
    return told(
        await rows(db, GROUPS),
        [(status, count) for status, count in await rows(db, QUEUE)],
        database_bytes=int(await value(db, _BYTES, (SCHEMA,))),
        last_updated=await value(db, "SELECT last_updated FROM base"),
    )
