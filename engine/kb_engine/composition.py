"""Makes the parts that the settings name. A part that is not used is not imported."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from kb_engine.index.port import INDEXES, Index

if TYPE_CHECKING:
    from kb_engine.rerank.port import Reranker
    from kb_engine.rerank.settings import RerankSettings
    from kb_engine.settings import EngineSettings


def index_from(settings: EngineSettings) -> Index | None:
    """Return the index that keeps its own data, not connected yet; None for the store's own index.

    Raises:
        ModuleNotFoundError: its client is not installed.
    """
    if not settings.index:
        return None
    return cast("Index", import_module(INDEXES[settings.index]).index_from(settings))


def reranker_from(settings: RerankSettings) -> Reranker | None:
    """Return the reranker, not connected yet; None if no URL is set."""
    if not settings.url:
        return None
    from kb_engine.rerank.endpoint import EndpointReranker

    return EndpointReranker(settings)
