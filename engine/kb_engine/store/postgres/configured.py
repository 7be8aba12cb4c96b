"""A base in PostgreSQL, with the settings of the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kb_engine.address import address_of
from kb_engine.store.postgres.opening import filled_by
from kb_engine.store.postgres.opening import reindex_postgres as reindex
from kb_engine.store.postgres.postgres_settings import PostgresSettings
from kb_engine.store.postgres.postgres_store import PostgresStore, open_postgres

if TYPE_CHECKING:
    from kb_engine.index.port import Index
    from kb_engine.settings import EngineSettings
    from kb_engine.spool import Spool
    from kb_engine.store.port import Bounds, EmbedderIdentity

__all__ = ["filled_by", "open_base", "reindex"]


async def open_base(
    settings: EngineSettings,
    embedder: EmbedderIdentity,
    *,
    bounds: Bounds,
    index: Index | None,
    unfinished: bool,
) -> tuple[PostgresStore, Spool]:
    """Open the base of the settings; return it with its spool. Raises as `open_postgres`."""
    own, address = settings.of(PostgresSettings), settings.address
    assert address is not None
    store = await open_postgres(
        address,
        pooler=address_of(own.postgres_pooler) if own.postgres_pooler else None,
        embedder=embedder,
        bounds=bounds,
        lease_seconds=own.lease_seconds,
        exact_below=own.postgres_exact_below,
        index=index,
        unfinished=unfinished,
    )
    return store, store.spool(settings.spool_folder)
