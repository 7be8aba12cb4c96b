"""Text into vectors: the protocol every embedder keeps, and the two that come with the engine.

Importing this package loads no model and none of the packages that run one.
"""

from kb_engine.embed.hashing import HashEmbedder
from kb_engine.embed.minilm import MiniLM
from kb_engine.embed.protocol import Embedder, EmbedderUnavailable, ScoreWeights, Vectors

__all__ = [
    "Embedder",
    "EmbedderUnavailable",
    "HashEmbedder",
    "MiniLM",
    "ScoreWeights",
    "Vectors",
    "embedder_from",
]

_EMBEDDERS: dict[str, type[MiniLM] | type[HashEmbedder]] = {"minilm": MiniLM, "hash": HashEmbedder}


def embedder_from(setting: str) -> Embedder:
    """The embedder that the setting names: "minilm" or "hash". Nothing is loaded yet.

    Raises ValueError for any other setting.
    """
    try:
        return _EMBEDDERS[setting]()
    except KeyError:
        known = " or ".join(_EMBEDDERS)
        raise ValueError(f"unknown embedder {setting!r}: use {known}") from None
