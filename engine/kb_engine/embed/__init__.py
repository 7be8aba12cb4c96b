"""Text into vectors: the protocol every embedder keeps, the two that come with the engine, and an endpoint.

Importing this package loads no model and none of the packages that run one.
"""

from collections.abc import Callable

from kb_engine.embed.hashing import HashEmbedder
from kb_engine.embed.minilm import MiniLM
from kb_engine.embed.openai import OpenAIEmbedder
from kb_engine.embed.protocol import Embedder, EmbedderUnavailable, ScoreWeights, TextRefused, Vectors
from kb_engine.endpoint_settings import OPENAI, EndpointSettings

__all__ = [
    "Embedder",
    "EmbedderUnavailable",
    "HashEmbedder",
    "MiniLM",
    "OpenAIEmbedder",
    "ScoreWeights",
    "TextRefused",
    "Vectors",
    "embedder_from",
]

_EMBEDDERS: dict[str, Callable[[EndpointSettings], Embedder]] = {
    "minilm": lambda _: MiniLM(),
    "hash": lambda _: HashEmbedder(),
    OPENAI: OpenAIEmbedder,
}


def embedder_from(setting: str, endpoint: EndpointSettings | None = None) -> Embedder:
    """The embedder that the setting names: "minilm", "hash", or "openai" for the endpoint of the settings.

    Nothing is loaded or asked yet.

    Raises:
        ValueError: any other setting, or no endpoint where one is needed (SettingsError).
    """
    if setting not in _EMBEDDERS:
        *names, last = _EMBEDDERS
        raise ValueError(f"unknown embedder {setting!r}: use {', '.join(names)} or {last}")
    return _EMBEDDERS[setting](endpoint or EndpointSettings())
