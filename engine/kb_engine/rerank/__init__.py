"""Reranking of the best candidates of a search, by a model that reads query and passage together."""

from __future__ import annotations

from kb_engine.parts import Part
from kb_engine.rerank.rerank_settings import RerankSettings

PART = Part("rerank", RerankSettings, reranker="kb_engine.rerank.configured:reranker_from")
