"""The settings of a reranking endpoint: its URL, its API, and the time-out of a search."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from kb_config.settings import Setting, Settings, SettingsError
from kb_engine.endpoint.settings import check_key, check_url, key_warnings

TEI, JINA, COHERE = "tei", "jina", "cohere"
_EXAMPLE = "http://127.0.0.1:8080/rerank"


class RerankSettings(Settings, frozen=True, kw_only=True):
    """Settings of the reranker; without a URL it is off. Times are seconds."""

    url: Annotated[
        str, Setting("KB_RERANK_URL", f"URL of a reranker, for example {_EXAMPLE}; empty: none")
    ] = ""
    api: Annotated[
        str,
        Setting(
            "KB_RERANK_API", "what the reranker speaks: tei, jina or cohere", choices=(TEI, JINA, COHERE)
        ),
    ] = TEI
    model: Annotated[
        str, Setting("KB_RERANK_MODEL", "name of the reranker's model, which jina and cohere want")
    ] = ""
    key: Annotated[str, Setting("KB_RERANK_KEY", "bearer key of the reranker; empty: none", secret=True)] = ""
    timeout: Annotated[
        float,
        Setting("KB_RERANK_TIMEOUT", "seconds after which a search is answered in its first order"),
        msgspec.Meta(gt=0, le=30),
    ] = 1.0
    candidates: Annotated[
        int,
        Setting(
            "KB_RERANK_CANDIDATES", "passages of a search that the reranker reads, or top where that is more"
        ),
        msgspec.Meta(ge=1, le=300),
    ] = 50
    batch: Annotated[
        int,
        Setting("KB_RERANK_BATCH", "most passages in one request to the reranker"),
        msgspec.Meta(ge=1, le=1000),
    ] = 32
    logits: Annotated[
        bool, Setting("KB_RERANK_LOGITS", "the scores of the reranker are logits, not from 0 to 1")
    ] = False

    def __post_init__(self) -> None:
        check_key("KB_RERANK_KEY", self.key)
        if not self.url:
            return
        check_url("KB_RERANK_URL", self.url, key_variable="KB_RERANK_KEY", example=_EXAMPLE)
        if self.api != TEI and not self.model.strip():
            raise SettingsError(
                f"KB_RERANK_API={self.api} needs KB_RERANK_MODEL, for example bge-reranker-v2-m3"
            )
        if not self.model.isprintable():
            raise SettingsError(f"KB_RERANK_MODEL={self.model!r}: is no name of a model")

    def warnings(self) -> Iterator[str]:
        """Yield warnings about accepted but risky settings."""
        yield from key_warnings("KB_RERANK_URL", self.url, "KB_RERANK_KEY", self.key)
