"""What of the shared reads (`kb_engine.store.reads`) is SQLite's own."""

from __future__ import annotations

import msgspec
import numpy as np

from kb_engine.store.reads import Dialect
from kb_engine.store.rows import DOCUMENT_LISTS, SUMMARY_COLUMNS
from kb_engine.store.sqlite.connection import marks
from kb_engine.store.sqlite.content import VECTOR_TYPE

SQLITE = Dialect(
    summary_columns=SUMMARY_COLUMNS,
    with_lists=lambda row: row,
    among=lambda ids: (f"IN ({marks(len(ids))})", ids),
    generation="SELECT seq FROM sqlite_sequence WHERE name = 'index_changes'",
    lists=DOCUMENT_LISTS,
    list_of=lambda kept: msgspec.json.decode(kept, type=list[str]),
    vector="v.vector",
    vectors_of=lambda kept: np.frombuffer(b"".join(kept), VECTOR_TYPE).reshape(len(kept), -1 if kept else 0),
)
