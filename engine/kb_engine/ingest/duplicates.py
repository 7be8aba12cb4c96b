"""Closing a job as a duplicate without having done its work.

Between asking for a duplicate and committing, the document may be removed. The commit then asks for the
chunks that were never made, which ends its transaction with `DuplicateGone`: nothing happened, and the
job is worked on like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from kb_engine.store.port import Prepared, PreparedChunk


class DuplicateGone(Exception):
    """The document that would have been the same is gone."""


class _NeverMade(Sequence[PreparedChunk]):
    def __len__(self) -> NoReturn:
        raise DuplicateGone

    def __getitem__(self, _index: object) -> NoReturn:
        raise DuplicateGone


def unprepared(title: str) -> Prepared:
    """What stands in for a preparation that a duplicate makes needless."""
    return Prepared(
        title=title,
        extraction_method="",
        pages=None,
        chunks=_NeverMade(),
        vectors=np.empty((0, 0), dtype=np.float32),
    )
