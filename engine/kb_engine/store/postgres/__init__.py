"""The store on PostgreSQL with pgvector: many engines on one base."""

from kb_engine.store.postgres.reindex import reindex_postgres
from kb_engine.store.postgres.spool import PostgresSpool
from kb_engine.store.postgres.store import PostgresStore, open_postgres

__all__ = ["PostgresSpool", "PostgresStore", "open_postgres", "reindex_postgres"]
