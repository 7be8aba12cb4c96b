"""An embedder whose model is in a folder of this machine: prefixes, loading, constants of the score."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kb_engine.embed.own_model import ModelSettings, as_setting, scoring_for
from kb_engine.embed.protocol import EmbedderUnavailable, LazyEmbedder, TextModel
from kb_engine.index.port import Vectors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_WINDOWS = (
    ("sentence_bert_config.json", "max_seq_length"),
    ("tokenizer_config.json", "model_max_length"),
    ("config.json", "max_position_embeddings"),
)

logger = logging.getLogger(__name__)


class LocalEmbedder(LazyEmbedder):
    """A model of one folder, loaded on first use. Its dimensions are known then, or from `expect`."""

    queries_at_once = 4
    changed_by: str  # advice if the base has vectors of another length

    def __init__(self, settings: ModelSettings, name: str, max_tokens: int) -> None:
        super().__init__()
        self._settings = settings
        self.name = settings.base_name(name)
        self.max_tokens = max_tokens
        self.dimensions = 0
        self.scoring = scoring_for(None, settings.chosen_scoring)

    def open(self) -> TextModel:
        """Return the loaded model. Raises EmbedderUnavailable."""
        raise NotImplementedError

    def expect(self, dimensions: int) -> None:
        self.dimensions = dimensions

    def count_tokens(self, text: str) -> int:
        """Return the model's own count, including the prefix of passages."""
        return self._ready().count_tokens(self._settings.embedding_document_prefix + text)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one vector per passage; a passage beyond the window is truncated."""
        model = self._ready()
        if not texts:
            import numpy as np

            return np.empty((0, self.dimensions), np.float32)
        return model.embed([self._settings.embedding_document_prefix + text for text in texts])

    def embed_query(self, text: str) -> NDArray[np.float32]:
        vector: NDArray[np.float32] = self._ready().embed([self._settings.embedding_query_prefix + text])[0]
        return vector

    def _load(self) -> TextModel:
        model = self.open()
        questions, passages = map(model.embed, self._settings.probes())
        if self.dimensions not in (0, passages.shape[1]):
            raise EmbedderUnavailable(
                f"the model {self.name} makes vectors of {passages.shape[1]} numbers, and the base has "
                f"some of {self.dimensions}: {self.changed_by}, or run kb reindex"
            )
        self.dimensions = passages.shape[1]
        self.scoring = scoring_for(questions @ passages.T, self._settings.chosen_scoring)
        logger.info(
            "embedding model loaded",
            extra={"model": self.name, "dimensions": self.dimensions, "scoring": as_setting(self.scoring)},
        )
        return model


def window(folder: Path, most: int) -> int:
    """Return the number of tokens that the model in `folder` reads, at most `most`."""
    stated = [members(folder / file).get(member) for file, member in _WINDOWS]
    return min([most, *(each for each in stated if isinstance(each, int) and each > 2)])


def members(path: Path) -> dict[str, Any]:
    """Read the members of a JSON object; empty if the file is missing or malformed."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return {}
