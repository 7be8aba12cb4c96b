"""The indexes that keep their data for themselves, by the value of `VECTOR_DB_TYPE`.

An index is one module that keeps the protocol of `port.py`, and one line here; its settings go into
`EngineSettings`. None comes with this engine yet: unset, searches are answered by the index in the base.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kb_engine.index.port import Index
    from kb_engine.settings import EngineSettings

INDEXES: dict[str, Callable[[EngineSettings], Index]] = {}


def index_from(settings: EngineSettings) -> Index | None:
    """The index that the settings name; None for the one in the base. Nothing is called yet."""
    return INDEXES[settings.index](settings) if settings.index else None
