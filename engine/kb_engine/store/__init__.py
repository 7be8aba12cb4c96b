"""The store: what the engine knows, kept so that nothing acknowledged is lost."""

from kb_engine.index.port import Scoring, Selection, Vectors
from kb_engine.store.facade import Store
from kb_engine.store.failures import (
    BaseInUse,
    BaseLinked,
    BaseRefused,
    BaseTooNew,
    BaseUnreachable,
    BaseUnwritable,
    EmbedderMismatch,
    NotABase,
)
from kb_engine.store.port import (
    Counts,
    EmbedderIdentity,
    Found,
    Idempotency,
    KeptJob,
    LeasedJob,
    NewJob,
    Prepared,
    PreparedChunk,
    Query,
    StoreEvent,
)
from kb_engine.store.sqlite.reindex import reindex_sqlite
from kb_engine.store.sqlite.store import SqliteStore, open_sqlite

__all__ = [
    "BaseInUse",
    "BaseLinked",
    "BaseRefused",
    "BaseTooNew",
    "BaseUnreachable",
    "BaseUnwritable",
    "Counts",
    "EmbedderIdentity",
    "EmbedderMismatch",
    "Found",
    "Idempotency",
    "KeptJob",
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
    "StoreEvent",
    "Vectors",
    "open_sqlite",
    "reindex_sqlite",
]
