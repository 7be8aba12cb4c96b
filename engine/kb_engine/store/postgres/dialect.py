"""The SQL of repositories where PostgreSQL's differs from SQLite's."""

from __future__ import annotations

import numpy as np

from kb_engine.store.postgres import content
from kb_engine.store.postgres.connection import texts
from kb_engine.store.repository.transaction import Dialect

POSTGRES = Dialect(
    content=content,
    sources="ARRAY(SELECT s.source_path FROM document_sources s WHERE s.document_id = d.id ORDER BY s.id)",
    tags="ARRAY(SELECT t.tag FROM document_tags t WHERE t.document_id = d.id ORDER BY t.id)",
    read_list=texts,
    among=lambda values: ("= ANY (?)", (list(values),)),
    # The selection is made once, and its rows are then found by their index.
    selected="= ANY (ARRAY({}))",
    statistics_index="",
    for_update=" FOR UPDATE",
    skip_locked=" FOR UPDATE SKIP LOCKED",
    abandoned=" AND lease_until < clock_timestamp()",
    no_lease="lease = NULL, lease_until = NULL",
    forget_answers=(
        "DELETE FROM idempotency WHERE ctid = ANY (ARRAY("
        "SELECT ctid FROM idempotency WHERE created_at <= ? FOR UPDATE SKIP LOCKED))"
    ),
    last_updated="SELECT last_updated FROM base",
    generation="SELECT changes FROM base",
    vector="v.vector::real[]",
    vectors_of=lambda stored: np.array(stored, np.float32).reshape(len(stored), -1 if stored else 0),
)
