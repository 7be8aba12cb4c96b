"""The registry of embedders by the value of `KB_EMBEDDER`, with their settings.

An embedder is a module with a subclass of `Embedder`, and a line in `EMBEDDERS`. Settings are a class beside
it, and a field of the embedder's name in `EmbedderSettings`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from kb_config.parts import imported
from kb_config.settings import Setting, Settings
from kb_engine.embed.fastembed_model import FastembedSettings
from kb_engine.embed.onnx import OnnxSettings
from kb_engine.embed.openai.openai_settings import OpenAISettings
from kb_engine.parts import parts

if TYPE_CHECKING:
    from kb_engine.embed.protocol import Embedder, OwnSettings

EMBEDDERS = {
    "minilm": "kb_engine.embed.minilm:MiniLM",
    "hash": "kb_engine.embed.hashing:HashEmbedder",
    "fastembed": "kb_engine.embed.fastembed_model:FastembedEmbedder",
    "onnx": "kb_engine.embed.onnx:OnnxEmbedder",
    "openai": "kb_engine.embed.openai.embedder:OpenAIEmbedder",
    **{name: made for part in parts() for name, made in part.embedders.items()},
}
"""Imported on demand: those of the core, then those of optional parts."""


class EmbedderSettings(Settings, frozen=True, kw_only=True):
    """The choice of the embedder, and the settings of each, in a field of its name."""

    embedder: Annotated[str, Setting("KB_EMBEDDER", f"embedder: {', '.join(EMBEDDERS)}")] = "minilm"
    fastembed: FastembedSettings = FastembedSettings()
    onnx: OnnxSettings = OnnxSettings()
    openai: OpenAISettings = OpenAISettings()

    def __post_init__(self) -> None:
        if (own := self.own(self.embedder)) is not None:
            own.check()

    def own(self, embedder: str) -> OwnSettings | None:
        """Return the settings of one embedder, or None if it has no settings."""
        own: OwnSettings | None = getattr(self, embedder, None) if embedder in EMBEDDERS else None
        return own

    def embedder_warnings(self) -> Iterator[str]:
        """Yield warnings about settings without effect, or worth a second look."""
        for name in EMBEDDERS:
            if (own := self.own(name)) is not None:
                yield from own.warnings(chosen=name == self.embedder)


def embedder_from(name: str, settings: EmbedderSettings | None = None) -> Embedder:
    """Return the embedder of this name; it loads nothing and calls no endpoint yet. A model of a hub that is
    not on this machine is downloaded now, because its files are part of its identity.

    Raises:
        ValueError: unknown name, or insufficient settings (SettingsError).
        StartError: a model cannot be downloaded, or a package is missing.
    """
    if name not in EMBEDDERS:
        *names, last = EMBEDDERS
        raise ValueError(f"unknown embedder {name!r}: use {', '.join(names)} or {last}")
    own = (settings or EmbedderSettings()).own(name)
    embedder: Embedder = imported(EMBEDDERS[name])(*filter(None, [own]))
    return embedder
