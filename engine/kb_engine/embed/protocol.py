"""What an embedder is to the rest of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

Vectors: TypeAlias = NDArray[np.float32]
"""Shape (number of texts, dimensions); each row has the length 1."""


class ScoreWeights(msgspec.Struct, frozen=True):
    """The constants of the fused score, which belong to the embedder that they were measured with.

    `score = w * max(0, cosine) + (1 - w) * bm25 / (bm25 + k)`, where bm25 is positive and larger is
    better (SQLite's `bm25()` with its sign turned), so a score lies in 0 to 1 and means the same from
    one query to the next.
    """

    w: float
    """The vector's share, 0 to 1."""
    k: float
    """The bm25 at which the keyword part reaches a half; above 0."""
    floor: float
    """A best fused score below this says that nothing matches well. In a base of a few documents every
    bm25 is near 0; a cosine above `cosine_floor` then speaks against it."""
    cosine_floor: float
    """A cosine below this is what two texts on different subjects have."""

    def __post_init__(self) -> None:
        if not 0 <= self.w <= 1:
            raise ValueError(f"w is a share from 0 to 1, got {self.w}")
        if self.k <= 0:
            raise ValueError(f"k is above 0, got {self.k}")


class EmbedderUnavailable(Exception):
    """The embedder is out of order; the message names the command, the file or the setting that mends it.

    `retry_after` is how many seconds it makes no sense to ask again; 0: nothing is known.
    """

    def __init__(self, message: str, *, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TextRefused(Exception):
    """The embedder is in order, but takes one of these texts in no length."""


class Embedder(Protocol):
    """Turns texts into vectors that lie close when the texts mean the same.

    One object serves all threads. `embed`, `embed_query`, `count_tokens`, `load` and `close` block: call
    them off the event loop. The first use loads the model.
    """

    @property
    def name(self) -> str:
        """The model as its publisher calls it."""

    @property
    def revision(self) -> str:
        """Which build of the model; vectors of two revisions are not to be compared."""

    @property
    def dimensions(self) -> int:
        """How many numbers a vector has; 0 where only the first use will tell."""

    @property
    def max_tokens(self) -> int:
        """How many tokens of a text the model reads; what lies beyond is cut off by `embed`."""

    @property
    def device(self) -> str:
        """Where the model runs, for example "cpu"."""

    @property
    def loaded(self) -> bool:
        """Whether the first use has happened, or `load` was called."""

    @property
    def weights(self) -> ScoreWeights:
        """The constants of the fused score for this embedder."""

    @property
    def batch_size(self) -> int:
        """How many texts a call of `embed` best has. Between calls a stop is heard."""

    @property
    def queries_at_once(self) -> int:
        """How many threads may well ask at the same time for the vector of a query."""

    def expect(self, dimensions: int) -> None:
        """Give vectors of this length only, which the base has; 0: any. Called once, before the first use.

        An embedder that knows its dimensions has been compared with the base by then.
        """

    def load(self) -> None:
        """Load the model now; does nothing when it is loaded. Raises EmbedderUnavailable."""

    def count_tokens(self, text: str) -> int:
        """How many tokens the model would read, with its own marks, if there were no limit."""

    def embed(self, texts: Sequence[str]) -> Vectors:
        """One vector a passage, in the order of the texts. Raises EmbedderUnavailable or TextRefused."""

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """The vector of a question, shape (dimensions,). Raises EmbedderUnavailable or TextRefused."""

    def close(self) -> None:
        """Let go of what is held outside this process, and end calls that are under way."""
