"""What a search index is to the rest of the engine: the types and the protocol that every index implements.

The store is the truth; an index is derived from it and can be rebuilt at any time. A search asks it for
*candidates* with the two parts of their score, and the engine computes the score from these (`ranking.py`),
so that scores mean the same whatever index found the candidates.

    apply(changes, generation)    upserts and deletes by document; what was applied last is remembered
    search(query)                 candidates with cosine and BM25, how many match, and whether that is exact
    create, drop, stats           for a rebuild, for another embedder, for checks

RAGler's vector adapter has its four methods here: `search` is `search`, `upsert` and `deleteByFilter` are
`apply` (the store knows which documents a filter means), `createCollection` is `create`.

Nothing here gives an index access to the store, its database or its transactions: all that an index may need
to know of a document is in `IndexedDocument`. How an index is kept in step is in `kb_engine.store.store`.
`embedded/` and `postgres/` live in the store's own database and take part in its transactions instead: a
second transaction about doubles what a commit costs (for five chunks in SQLite, which syncs each to the
disk), and a search reads rows, words and vectors in one state. They answer the same `IndexQuery` with the
same `Candidates`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Protocol, TypeAlias

from kb_contracts.access.reach import Reach
from kb_contracts.api import models as m

if TYPE_CHECKING:  # the settings, which every command reads, import this module and no numpy
    import numpy as np
    from numpy.typing import NDArray

Ids: TypeAlias = "NDArray[np.int64]"
Vector: TypeAlias = "NDArray[np.float32]"
"""Shape (dimensions,), of length 1."""
Vectors: TypeAlias = "NDArray[np.float32]"
"""Shape (n, dimensions), each row of length 1."""


SIMILAR_SHARE = 3 / 7
"""Position of `Scoring.similar_floor` between `cosine_floor` and 1. Measured with MiniLM, for which it gives
a cosine of 0.6, on the 200 pairs of tests/unit/engine/index/similar_notes.txt: 98 of 100 changed facts are at
or above it, and 4 of 100 other facts in the same field."""


class IndexUnavailable(Exception):
    """The index does not answer, or cannot do this now; the message says why.

    The call may be repeated, in `retry_after` seconds where the index has said so. What was to be applied
    stays in the store until it has been.
    """

    def __init__(self, why: str, *, retry_after: float | None = None) -> None:
        super().__init__(why)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Selection:
    """Which documents may answer. Times are aware, in UTC, both inclusive.

    Among `source_types`, None stands for documents whose metadata name none (or one that is no text).

    `reach` is how far the caller reaches. It is more than a filter: what is outside is not there, so that it
    counts for nothing, in the statistics of words neither.
    """

    reach: Reach | None = None
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
    """The constants of the fused score, which belong to the embedder that they were measured with."""

    weight: float
    """The vector's share, 0 to 1; `w` in settings."""
    saturation: float
    """Which share of the query's reach (`words.py`) a passage covers whose keyword part is a half, above 0;
    `k` in settings."""
    floor: float
    """An answer of mode `hybrid` from thirty passages is weak when its best score is under this; `ranking.py`
    has what follows for other modes and sizes."""
    cosine_floor: float
    """A vector matches from here on; below lie two texts on different subjects. In mode `vector` the
    floor."""

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
    """What an index is asked for: the `top` best by the score of `scoring`.

    `vector` is None in mode `fts`, and while it is being made; `text` has no say in mode `vector`.
    `languages` are those of the documents in the base, and are filled in by the store.

    `required` are texts. A chunk in which a word of one of them is missing, in each form that the word has in
    these languages (`words.Analyser.required`), is not found, nor does it count. No score depends on them.

    `among` are the ids of the chunks that alone may be found; None: all may.
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


@dataclass(frozen=True, slots=True)
class Candidate:
    """A chunk that may answer, with the parts of its score; a part that the mode does not ask for is None."""

    chunk_id: int
    cosine: float | None
    bm25: float | None


@dataclass(frozen=True, slots=True)
class Candidates:
    """The best, in any order.

    `reach` is that of the query's words in this index (`words.py`). 0: it has none, or the mode asks for
    none; then no candidate has a BM25, in mode `hybrid` either. `size` is from how many chunks they were
    chosen: those that the filters leave, or where that is not known all. `total` is how many chunks match:
    those that hold a word of the query, or whose cosine reaches the floor, with a score of `min_score` at
    least; where not `total_exact`, there are as many at least. `exact` says that no chunk outside of `best`
    has a higher score than one inside. `generation` is that of the state that was searched. `lost` are the
    ids of chunks that have no vector and were left out; some may be gone by now, or not pass the filters.
    """

    best: Sequence[Candidate]
    total: int
    reach: float = 0.0
    size: int = 0
    exact: bool = True
    total_exact: bool = True
    generation: int = 0
    lost: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class IndexedDocument:
    """A document as an index sees it: what filters ask about, and its chunks, which are found by their ids.

    Ids of chunks are never given again. The four sequences of the chunks have the same length.
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
    """What became of documents since some generation: first `cleared`, then `deletes`, then `upserts`.

    An upsert replaces all that the index holds of the document. A document may be deleted that the index
    never had.
    """

    cleared: bool = False
    deletes: Sequence[int] = ()
    upserts: Sequence[IndexedDocument] = ()


@dataclass(frozen=True, slots=True)
class IndexStats:
    """What an index holds, to be compared with what the store holds."""

    documents: int
    chunks: int
    generation: int


class Index(Protocol):
    """An index that keeps its data for itself.

    Raises (all methods): `IndexUnavailable`.
    """

    async def generation(self) -> int:
        """That of the change applied last; 0 where there is no index, or it is being rebuilt."""

    async def apply(self, changes: Changes, generation: int) -> None:
        """Make these changes visible to searches, and remember the generation with them.

        It may be called again with what was applied before, whole or in part, and changes nothing then. A
        generation below the one that was applied last comes from somebody who was overtaken: it is left out.
        Where there is no index, or no longer, it raises: what was applied to the lost one would be missing.
        """

    async def search(self, query: IndexQuery) -> Candidates:
        """The best candidates of the state that was applied last, or of a later one."""

    async def create(self, dimensions: int) -> None:
        """Make the index, empty and of generation 0, in place of what there is.

        `dimensions` 0: those of the first vectors that it is given.
        """

    async def drop(self) -> None:
        """Remove all of it. Dropping what is not there changes nothing."""

    async def stats(self) -> IndexStats:
        """What it holds."""

    async def close(self) -> None:
        """Let go of what is held outside this process."""


INDEXES = {"qdrant": "kb_engine.index.qdrant"}
"""The indexes that keep their own data: their module by the value of `VECTOR_DB_TYPE`.

An index is one module that keeps the protocol above, its function `index_from(settings)`, and one entry here,
under the name of the extra that has its client; its settings go into `EngineSettings`. Unset, searches are
answered by the store's own index.
"""
