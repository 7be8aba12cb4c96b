"""The optional parts of the engine: each is a package with a `PART`, and its line in `PARTS`.

Without the package and its line the engine starts without the part. The package itself imports its settings
alone; its other modules are imported when it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from kb_config.settings import Settings

PARTS = (
    "kb_engine.index.qdrant",
    "kb_engine.store.postgres",
    "kb_engine.embed.openvino",
    "kb_engine.rerank",
)


class PartSettings(Settings, frozen=True, kw_only=True):
    """The settings of an optional part."""

    @property
    def is_on(self) -> bool:
        """True if these settings alone switch the part on."""
        return False

    def check(self) -> None:
        """Check the settings of a part that is used. Raises SettingsError."""

    def warnings(self) -> Iterator[str]:
        """Yield warnings about valid but risky settings."""
        yield from ()


@dataclass(frozen=True, slots=True)
class Part:
    """An optional part, with the name of the extra that has its packages.

    `index` and `reranker` are `module:function`; the functions take the settings of the engine, and return an
    `Index` and a `Reranker`. `embedders` are `module:class`, by the value of `KB_EMBEDDER`. `store` is a
    module with `open_base`, `filled_by` and `reindex`, for `KB_STORE=postgresql://...`.
    """

    name: str
    settings: type[PartSettings] = PartSettings
    index: str = ""
    reranker: str = ""
    embedders: Mapping[str, str] = field(default_factory=dict)
    store: str = ""


def parts() -> Iterator[Part]:
    """Yield the parts of `PARTS`."""
    for module in PARTS:
        part: Part = import_module(module).PART
        yield part


def index_parts() -> dict[str, Part]:
    """Return the parts that are a search index, by the value of `VECTOR_DB_TYPE`."""
    return {part.name: part for part in parts() if part.index}


def store_part() -> Part | None:
    """Return the part that stores a base in PostgreSQL, if there is one."""
    return next((part for part in parts() if part.store), None)


def made(function: str, settings: Settings) -> Any:
    """Import `module:function` and call it with the settings of the engine."""
    module, _, name = function.partition(":")
    return getattr(import_module(module), name)(settings)
