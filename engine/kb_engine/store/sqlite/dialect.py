"""The SQL of repositories where SQLite's differs from PostgreSQL's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from kb_engine.store.repository.transaction import Dialect, placeholders
from kb_engine.store.sqlite import content

_MOST_PLACEHOLDERS = 100
"""Beyond, values come as one list; SQLite takes a limited number of them."""


def _among(values: Sequence[Any]) -> tuple[str, Sequence[Any]]:
    if len(values) > _MOST_PLACEHOLDERS:
        return "IN (SELECT value FROM json_each(?))", (json.dumps(list(values)),)
    return f"IN ({placeholders(len(values))})", values


SQLITE = Dialect(
    content=content,
    sources=(
        "(SELECT json_group_array(s.source_path ORDER BY s.id) FROM document_sources s "
        "WHERE s.document_id = d.id) AS source_paths"
    ),
    tags=(
        "(SELECT json_group_array(t.tag ORDER BY t.id) FROM document_tags t "
        "WHERE t.document_id = d.id) AS tags"
    ),
    read_list=msgspec.json.Decoder(list[str]).decode,
    among=_among,
    selected="IN ({})",
    # Row after row of the index alone: SQLite would take the table by its key, and read the metadata too.
    statistics_index=" INDEXED BY documents_figures",
    for_update="",
    skip_locked="",
    abandoned="",
    no_lease="lease = NULL",
    forget_answers="DELETE FROM idempotency WHERE created_at <= ?",
    last_updated="SELECT value FROM meta WHERE name = 'last_updated'",
    generation="SELECT seq FROM sqlite_sequence WHERE name = 'index_changes'",
    vector="v.vector",
    vectors_of=lambda stored: np.frombuffer(b"".join(stored), content.VECTOR_TYPE).reshape(
        len(stored), -1 if stored else 0
    ),
)
