"""The store on SQLite: one engine, one file."""

from kb_engine.store.sqlite.reindex import reindex_sqlite
from kb_engine.store.sqlite.store import SqliteStore, open_sqlite

__all__ = ["SqliteStore", "open_sqlite", "reindex_sqlite"]
