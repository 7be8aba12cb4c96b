"""What of the shared reads (`kb_engine.store.reads`) is PostgreSQL's own."""

from __future__ import annotations

import numpy as np

from kb_engine.store.postgres.connection import texts
from kb_engine.store.postgres.documents import DOCUMENT_LISTS, SUMMARY_COLUMNS
from kb_engine.store.reads import Dialect

POSTGRES = Dialect(
    summary_columns=SUMMARY_COLUMNS,
    with_lists=lambda row: [*row[:-1], texts(row[-1])],
    among=lambda ids: ("= ANY (?::bigint[])", (ids,)),
    generation="SELECT changes FROM base",
    lists=DOCUMENT_LISTS,
    list_of=texts,
    vector="v.vector::real[]",
    vectors_of=lambda kept: np.array(kept, np.float32).reshape(len(kept), -1 if kept else 0),
)
