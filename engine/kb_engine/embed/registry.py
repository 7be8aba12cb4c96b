"""The embedders by the value of `KB_EMBEDDER`, and the settings of those that have any.

An embedder is one module or folder that keeps the protocol, and one line in `EMBEDDERS`. One with settings
declares them in a class of its own, which is named there too. A Struct has one parent: each such class
extends the one before, and `EmbedderSettings` the last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Annotated

from kb_config.settings import Setting
from kb_engine.embed.openai.settings import OpenAISettings
from kb_engine.embed.settings import OwnSettings

if TYPE_CHECKING:
    from kb_engine.embed.protocol import Embedder


@dataclass(frozen=True, slots=True)
class Kind:
    """Where an embedder is made: `make` of this module, with the settings where it has a class of them."""

    module: str
    make: str
    settings: type[OwnSettings] | None = None


EMBEDDERS = {
    "minilm": Kind("kb_engine.embed.minilm", "MiniLM"),
    "hash": Kind("kb_engine.embed.hashing", "HashEmbedder"),
    "openai": Kind("kb_engine.embed.openai.embedder", "OpenAIEmbedder", OpenAISettings),
}


class EmbedderSettings(OpenAISettings, frozen=True, kw_only=True):
    """Which embedder, and the settings of all of them."""

    embedder: Annotated[
        str, Setting("KB_EMBEDDER", "minilm, hash, or openai: an endpoint of OpenAI's API")
    ] = "minilm"

    def __post_init__(self) -> None:
        kind = EMBEDDERS.get(self.embedder)
        if kind is not None and kind.settings is not None:
            kind.settings.check(self)

    def embedder_warnings(self) -> Iterator[str]:
        """What of these settings has no effect, or one that is worth a second look."""
        for name, kind in EMBEDDERS.items():
            if kind.settings is not None:
                yield from kind.settings.warnings(self, chosen=name == self.embedder)


def embedder_from(setting: str, settings: EmbedderSettings | None = None) -> Embedder:
    """The embedder that the setting names; nothing is loaded and no endpoint called yet.

    Raises:
        ValueError: no embedder has this name, or its settings do not suffice (SettingsError).
    """
    if setting not in EMBEDDERS:
        *names, last = EMBEDDERS
        raise ValueError(f"unknown embedder {setting!r}: use {', '.join(names)} or {last}")
    kind = EMBEDDERS[setting]
    make = getattr(import_module(kind.module), kind.make)
    embedder: Embedder = make() if kind.settings is None else make(settings or EmbedderSettings())
    return embedder
