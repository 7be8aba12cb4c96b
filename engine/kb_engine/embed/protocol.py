"""The interface of embedders.

An embedder's module is imported with its settings, if it has any, so it must import numpy and its library
lazily: `kb config` and the start of each command read all settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Protocol

from kb_config.settings import Settings
from kb_engine.index.port import Scoring, Vectors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class EmbedderUnavailable(Exception):
    """The message names a remedy; `retry_after` is the least pause in seconds, 0 if unknown."""

    def __init__(self, message: str, *, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TextRefused(Exception):
    """The embedder works, but refuses a text even when truncated."""


class OwnSettings(Settings, frozen=True, kw_only=True):
    """The settings of one embedder."""

    def check(self) -> None:
        """Raise SettingsError if the embedder cannot be created with these settings."""

    def warnings(self, *, chosen: bool) -> Iterator[str]:  # noqa: ARG002 - used by overriding methods
        """Yield warnings about valid but risky settings; `chosen`: this embedder is in use."""
        yield from ()


class Embedder:
    """Turns texts into vectors that are close if the texts have similar meanings.

    One object serves all threads. `embed`, `embed_query`, `count_tokens`, `load` and `close` block: call
    them off the event loop, but for queries of up to `quick_chars`. The first use loads the model. A class
    with settings is called with them.
    """

    name: str
    """The publisher's name of the model."""
    dimensions: int
    """Length of a vector; 0 if it is unknown before the first use."""
    max_tokens: int
    """Window of the model in tokens; `embed` truncates longer texts."""
    device: str = "cpu"
    loaded: bool
    """True after the first use or `load`."""
    scoring: Scoring
    batch_size: int = 4
    """Best number of texts per call of `embed`. A stop takes effect between calls."""
    queries_at_once: int
    """Recommended number of threads that embed queries concurrently."""
    quick_chars: int = 0
    """Maximum length of a query that `embed_query` embeds faster than a thread is woken, in characters."""

    def expect(self, dimensions: int) -> None:
        """Require vectors of this length, which the database has; 0: any. Called once, before the first use.

        An embedder with known dimensions has been compared with the database before.
        """

    def load(self) -> None:
        """Load the model unless it is loaded. Raises EmbedderUnavailable."""

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of the untruncated text, including special tokens."""
        raise NotImplementedError

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one vector per passage, in order. Raises EmbedderUnavailable or TextRefused."""
        raise NotImplementedError

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """Return the vector of a query, shape (dimensions,). Raises as `embed`."""
        raise NotImplementedError

    def close(self) -> None:
        """Release external resources, and cancel calls in progress."""


class TextModel(Protocol):
    """A loaded model with its tokenizer; each call blocks and computes on the calling thread."""

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of the untruncated text, including special tokens."""

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return unit vectors, shape (n, dimensions). Raises TextRefused."""


class LazyEmbedder(Embedder):
    """An embedder whose model is loaded on first use, once for all threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._model: TextModel | None = None
        self.loaded = False

    def load(self) -> None:
        self._ready()

    def _ready(self) -> TextModel:
        if (model := self._model) is None:
            with self._lock:
                if (model := self._model) is None:
                    model = self._model = self._load()
                    self.loaded = True
        return model

    def _load(self) -> TextModel:
        """Return the loaded model. Raises EmbedderUnavailable."""
        raise NotImplementedError
