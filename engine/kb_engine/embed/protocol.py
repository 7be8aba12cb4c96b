"""What an embedder is to the rest of the engine.

Its module is imported with its settings, if it declares any, so it imports numpy and its library only when it
is used: `kb config` and the start of every command read all settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kb_config.settings import Settings
from kb_engine.index.port import Scoring, Vectors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class EmbedderUnavailable(Exception):
    """The embedder is out of order; the message names the command, the file or the setting that mends it.

    `retry_after` is how many seconds it makes no sense to ask again; 0: nothing is known.
    """

    def __init__(self, message: str, *, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TextRefused(Exception):
    """The embedder is in order, but takes one of these texts in no length."""


class OwnSettings(Settings, frozen=True, kw_only=True):
    """The settings of one embedder."""

    def check(self) -> None:
        """Raises SettingsError where the embedder cannot be made with these settings."""

    def warnings(self, *, chosen: bool) -> Iterator[str]:  # noqa: ARG002 - of those that override it
        """What is wrong with these settings without being refused; `chosen`: this embedder is used."""
        yield from ()


class Embedder:
    """Turns texts into vectors that lie close when the texts mean the same.

    One object serves all threads. `embed`, `embed_query`, `count_tokens`, `load` and `close` block: call
    them off the event loop. The first use loads the model. One with settings is made with its class of them.
    """

    name: str
    """The model as its publisher calls it."""
    dimensions: int
    """How many numbers a vector has; 0 where only the first use will tell."""
    max_tokens: int
    """How many tokens of a text the model reads; what lies beyond is cut off by `embed`."""
    device: str = "cpu"
    loaded: bool
    """Whether the first use has happened, or `load` was called."""
    scoring: Scoring
    batch_size: int = 4
    """How many texts a call of `embed` best has. Between calls a stop takes effect."""
    queries_at_once: int
    """How many threads may well ask at the same time for the vector of a query."""

    def expect(self, dimensions: int) -> None:
        """Give vectors of this length only, which the base has; 0: any. Called once, before the first use.

        An embedder that knows its dimensions has been compared with the base by then.
        """

    def load(self) -> None:
        """Load the model now; does nothing when it is loaded. Raises EmbedderUnavailable."""

    def count_tokens(self, text: str) -> int:
        """How many tokens the model would read, with its own marks, if there were no limit."""
        raise NotImplementedError

    def embed(self, texts: Sequence[str]) -> Vectors:
        """One vector a passage, in the order of the texts. Raises EmbedderUnavailable or TextRefused."""
        raise NotImplementedError

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """The vector of a question, shape (dimensions,). Raises as `embed`."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what is held outside this process, and end calls that are under way."""
