"""The reranker that the settings of the engine choose."""

from __future__ import annotations

from kb_engine.api.reranking import Reranker
from kb_engine.rerank.rerank_settings import LOCAL, RerankSettings
from kb_engine.settings import EngineSettings


def reranker_from(settings: EngineSettings) -> Reranker:
    """Return the reranker, not connected yet. A local one may download its model.

    Raises:
        SettingsError: the model is unknown.
        StartError: the model cannot be downloaded, or a package is missing.
    """
    own = settings.of(RerankSettings)
    if own.api == LOCAL:
        from kb_engine.rerank.local import LocalReranker

        return LocalReranker(own, settings.fastembed.models)
    from kb_engine.rerank.endpoint import EndpointReranker

    return EndpointReranker(own)
