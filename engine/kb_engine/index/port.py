"""The search index: its query, its result, and the protocol of indexes that follow the store.

The store is authoritative; an index is derived from it and can be rebuilt at any time. A search returns
*candidates* with the two parts of their score, from which the engine computes the score (`score.py`), so
that scores mean the same with every index. There are two kinds; both answer an `IndexQuery` with
`Candidates`.

The store's *own* index takes part in its transactions: `index/embedded/` for SQLite, `store/postgres/search/`
for PostgreSQL. A search reads rows, words and vectors in one snapshot. A second transaction would about
double the cost of a commit (measured with five chunks in SQLite, which syncs each to the disk).

A *following* index keeps its own data and implements `Index`: `index/qdrant/`. It has no access to the store,
its database or its transactions: `IndexedDocument` contains everything that it needs.
`kb_engine.store.store` applies the committed changes to it.

    apply(changes, generation)    upserts and deletes by document; remembers the last generation
    search(query)                 candidates with cosine and BM25, the number of matches, and exactness
    create, drop, stats           for a rebuild, for a new embedder, for checks

RAGler's vector adapter maps to these methods: `search` is `search`, `upsert` and `deleteByFilter` are `apply`
(the store resolves filters to documents), `createCollection` is `create`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from kb_contracts.access.reach import REACH, Reach
from kb_contracts.api import models as m
from kb_contracts.semantics.query import Wording

if TYPE_CHECKING:  # every command reads the settings, which import this module; numpy is not needed there
    import numpy as np
    from numpy.typing import NDArray

Ids: TypeAlias = "NDArray[np.int64]"
Vector: TypeAlias = "NDArray[np.float32]"  # shape (dimensions,), of length 1
Vectors: TypeAlias = "NDArray[np.float32]"  # shape (n, dimensions), each row of length 1


SIMILAR_SHARE = 3 / 7
"""Position of `Scoring.similar_floor` between `cosine_floor` and 1. Measured with MiniLM, for which it gives
a cosine of 0.6, on the 200 pairs of tests/unit/engine/index/similar_notes.txt: 98 of 100 changed facts are at
or above it, and 4 of 100 other facts in the same field."""


class IndexUnavailable(Exception):
    """The index does not respond or cannot do this now; the message gives the reason.

    The call may be repeated, after `retry_after` seconds if the index has given a time. Changes that were not
    applied stay in the store.
    """

    def __init__(self, why: str, *, retry_after: float | None = None) -> None:
        super().__init__(why)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Selection:
    """The filter on documents. Times are timezone-aware, in UTC, both inclusive.

    In `source_types`, None matches documents whose metadata have no source type (or one that is not a
    string).

    `reach` is the access scope, by default of the request that makes the selection: one made outside of a
    request has none. It is more than a filter: documents outside do not exist for the caller, so they do not
    count in the statistics of words either.
    """

    reach: Reach | None = field(default_factory=REACH.get)
    tags: Sequence[str] = ()
    tags_any: Sequence[str] = ()
    doc_type: m.DocType | None = None
    formats: Sequence[str] = ()
    source_types: Sequence[str | None] = ()
    source_path_prefix: str | None = None
    date_field: m.DateField = "created_at"
    date_from: datetime | None = None
    date_to: datetime | None = None


@dataclass(frozen=True, slots=True)
class Scoring:
    """The constants of the fused score. They were measured with one embedder and belong to it."""

    weight: float  # the vector's share, 0 to 1; `w` in settings
    saturation: float
    """The fraction of the query's total weight (`words.py`) at which the keyword part is one half, above 0;
    `k` in settings.
    """
    floor: float
    """A `hybrid` result from thirty passages is weak if its best score is below this. `score.py` derives
    the values for the remaining modes and sizes.
    """
    cosine_floor: float
    """Minimum cosine of a match; two texts on different subjects are below. In mode `vector` also the floor
    for weak results.
    """

    @property
    def similar_floor(self) -> float:
        """The least cosine of two notes on the same subject."""
        return self.cosine_floor + SIMILAR_SHARE * (1.0 - self.cosine_floor)

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= 1:
            raise ValueError(f"the weight is a share from 0 to 1, got {self.weight}")
        if self.saturation <= 0:
            raise ValueError(f"the saturation is above 0, got {self.saturation}")


@dataclass(frozen=True, slots=True)
class IndexQuery:
    """A query for the `top` best chunks by the score of `scoring`.

    `vector` is None in mode `fts`, and while it is being computed; `text` is ignored in mode `vector`.
    `languages` are the languages of the documents in the base, filled in by the store.

    `required` are texts. A chunk must contain each of their words in one of its forms in these languages
    (`words.Analyser.required`), otherwise it is neither found nor counted. Scores do not depend on them.

    `among` restricts the result to chunks with these ids; None: all chunks.

    `wording` is the condition on the texts of chunks. An index that knows the order of words evaluates it;
    for other indexes the store reads texts (`store/wording.py`).
    """

    text: str
    mode: m.Mode
    vector: Vector | None
    scoring: Scoring
    top: int
    selection: Selection = field(default_factory=Selection)
    min_score: float = 0.0
    languages: Sequence[str] = ()
    required: Sequence[str] = ()
    among: Sequence[int] | None = None
    wording: Wording | None = None


class Candidate(NamedTuple):
    """A chunk with the parts of its score; a part is None if the mode does not use it."""

    chunk_id: int
    cosine: float | None
    bm25: float | None


@dataclass(frozen=True, slots=True)
class Candidates:
    """The result of a query; `best` is in any order.

    `total_weight` is that of the query's words in this index (`words.py`). It is 0 if the query has no
    words or the mode does not use them; then no candidate has a BM25, even in mode `hybrid`. `size` is the
    number of chunks that pass the filters, or of all chunks if that is not known. `total` is the number of
    matches: chunks that contain a word of the query or whose cosine reaches the floor, with a score of at
    least `min_score`; it is a lower bound unless `total_exact`. `exact`: no chunk outside `best` has a higher
    score than one inside. `generation` is that of the searched state. `lost` are the ids of chunks without a
    vector, which were left out; some may be deleted by now, or fail the filters.
    """

    best: Sequence[Candidate]
    total: int
    total_weight: float = 0.0
    size: int = 0
    exact: bool = True
    total_exact: bool = True
    generation: int = 0
    lost: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class IndexedDocument:
    """A document as an index stores it: the fields for filters, and its chunks, which are identified by their
    ids.

    Chunk ids are never reused. The four sequences of the chunks have the same length.
    """

    id: int
    title: str
    doc_type: str
    format: str | None
    source_type: str | None
    source_paths: Sequence[str]
    tags: Sequence[str]
    created_at: datetime
    updated_at: datetime
    chunk_ids: Sequence[int]
    headings: Sequence[str | None]
    texts: Sequence[str]
    vectors: Vectors
    language: str | None = None


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes since a generation, in this order: `cleared`, `deletes`, `upserts`.

    An upsert replaces everything that the index holds of the document. `deletes` may contain documents that
    the index never had.
    """

    cleared: bool = False
    deletes: Sequence[int] = ()
    upserts: Sequence[IndexedDocument] = ()


@dataclass(frozen=True, slots=True)
class IndexStats:
    """The contents of an index in numbers, for a comparison with the store."""

    documents: int
    chunks: int
    generation: int


class Index(Protocol):
    """A following index, which keeps its own data.

    Raises (all methods): `IndexUnavailable`.
    """

    async def generation(self) -> int:
        """Return the generation of the last applied change; 0 without an index, or during a rebuild."""

    async def apply(self, changes: Changes, generation: int) -> None:
        """Apply these changes, make them visible to searches, and store the generation with them.

        Idempotent: changes that were already applied, completely or in part, may be applied again. A
        generation below the last applied one comes from an overtaken engine and is ignored. If the index does
        not exist (any more), raise: the changes applied to the lost one would be missing.
        """

    async def search(self, query: IndexQuery) -> Candidates:
        """Return the best candidates of the last applied state, or of a later one."""

    async def create(self, dimensions: int) -> None:
        """Create an empty index of generation 0, replacing an existing one.

        With `dimensions` 0 it takes the dimensions of its first vectors.
        """

    async def drop(self) -> None:
        """Remove the whole index, if it exists."""

    async def stats(self) -> IndexStats:
        """Return the numbers of documents and chunks, and the generation."""

    async def close(self) -> None:
        """Release connections and other external resources."""
