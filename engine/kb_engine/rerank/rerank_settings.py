"""The settings of a reranker: an endpoint's URL and API, or a local model; and the time-out of a search."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from kb_config.parts import PartSettings
from kb_config.settings import Setting, SettingsError
from kb_engine.endpoint.endpoint_settings import check_key, check_url, key_warnings

TEI, JINA, COHERE, LOCAL = "tei", "jina", "cohere", "local"
_EXAMPLE = "http://127.0.0.1:8080/rerank"


class RerankSettings(PartSettings, frozen=True, kw_only=True):
    """Settings of the reranker; without a URL it is off, unless it is local. Times are seconds."""

    url: Annotated[
        str, Setting("KB_RERANK_URL", f"URL of a reranker, for example {_EXAMPLE}; empty: none")
    ] = ""
    api: Annotated[
        str,
        Setting(
            "KB_RERANK_API",
            "API of the reranker: tei, jina or cohere; local: a model on this machine",
            choices=(TEI, JINA, COHERE, LOCAL),
        ),
    ] = TEI
    model: Annotated[
        str, Setting("KB_RERANK_MODEL", "model name of the reranker, required by jina, cohere and local")
    ] = ""
    key: Annotated[str, Setting("KB_RERANK_KEY", "bearer key of the reranker; empty: none", secret=True)] = ""
    timeout: Annotated[
        float,
        Setting(
            "KB_RERANK_TIMEOUT",
            "time-out of the reranker, in seconds; later, hits keep the order of the search",
        ),
        msgspec.Meta(gt=0, le=30),
    ] = 1.0
    candidates: Annotated[
        int,
        Setting("KB_RERANK_CANDIDATES", "number of passages to rerank per search; at least the search's top"),
        msgspec.Meta(ge=1, le=300),
    ] = 50
    batch: Annotated[
        int,
        Setting("KB_RERANK_BATCH", "maximum number of passages in a request to the reranker"),
        msgspec.Meta(ge=1, le=1000),
    ] = 32
    logits: Annotated[
        bool, Setting("KB_RERANK_LOGITS", "the reranker returns logits instead of scores from 0 to 1")
    ] = False

    def __post_init__(self) -> None:
        check_key("KB_RERANK_KEY", self.key)
        if self.api == LOCAL:
            if not self.model.strip():
                raise SettingsError(
                    f"KB_RERANK_API={LOCAL} needs KB_RERANK_MODEL, as in Xenova/ms-marco-MiniLM-L-6-v2"
                )
            return
        if not self.url:
            return
        check_url("KB_RERANK_URL", self.url, key_variable="KB_RERANK_KEY", example=_EXAMPLE)
        if self.api != TEI and not self.model.strip():
            raise SettingsError(
                f"KB_RERANK_API={self.api} needs KB_RERANK_MODEL, for example bge-reranker-v2-m3"
            )
        if not self.model.isprintable():
            raise SettingsError(f"KB_RERANK_MODEL={self.model!r}: is no name of a model")

    @property
    def is_on(self) -> bool:
        """True if a URL is set, or the reranker is local."""
        return self.api == LOCAL or bool(self.url)

    def warnings(self) -> Iterator[str]:
        """Yield warnings about accepted but risky settings."""
        if self.api == LOCAL and self.url:
            yield f"KB_RERANK_URL is not used: KB_RERANK_API={LOCAL} reads on this machine"
        yield from key_warnings("KB_RERANK_URL", self.url, "KB_RERANK_KEY", self.key)
