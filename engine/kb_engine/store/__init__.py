"""The store: what the engine knows, kept so that nothing acknowledged is lost."""

from kb_engine.store.failures import (
    BaseInUse,
    BaseTooNew,
    BaseUnwritable,
    EmbedderMismatch,
    NotABase,
    StoreError,
)
from kb_engine.store.port import (
    Counts,
    EmbedderIdentity,
    Found,
    Idempotency,
    LeasedJob,
    NewJob,
    Prepared,
    PreparedChunk,
    Query,
    Scoring,
    Selection,
    Store,
    Vectors,
)
from kb_engine.store.sqlite import SqliteStore, open_sqlite

__all__ = [
    "BaseInUse",
    "BaseTooNew",
    "BaseUnwritable",
    "Counts",
    "EmbedderIdentity",
    "EmbedderMismatch",
    "Found",
    "Idempotency",
    "LeasedJob",
    "NewJob",
    "NotABase",
    "Prepared",
    "PreparedChunk",
    "Query",
    "Scoring",
    "Selection",
    "SqliteStore",
    "Store",
    "StoreError",
    "Vectors",
    "open_sqlite",
]
