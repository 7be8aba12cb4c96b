"""Documents in the form that an index receives."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from kb_engine.index.port import IndexedDocument
from tests.support.stores import DIMENSIONS, meaning


def document(
    number: int,
    *texts: str,
    first: int = 0,
    tags: Sequence[str] = (),
    vectors: Sequence[NDArray[np.float32]] | None = None,
    dimensions: int = DIMENSIONS,
) -> IndexedDocument:
    """A document whose chunks have ids from `100 * number + first`."""
    rows = [meaning(text)[:dimensions] for text in texts] if vectors is None else vectors
    start = 100 * number + first
    return IndexedDocument(
        id=number,
        title="untitled",
        doc_type="note",
        format=None,
        source_type=None,
        source_paths=[],
        tags=tags,
        created_at=datetime(2026, 3, 1, tzinfo=UTC),
        updated_at=datetime(2026, 3, 1, tzinfo=UTC),
        chunk_ids=list(range(start, start + len(texts))),
        headings=[None] * len(texts),
        texts=texts,
        vectors=np.array(rows, np.float32).reshape(len(texts), dimensions),
    )
