"""A reranker behind an endpoint that speaks the `/rerank` of TEI, Jina or Cohere.

    TEI            {query, texts, truncate}            ──▶  [{index, score}]
    Jina, Cohere   {model, query, documents, top_n}    ──▶  {results: [{index, relevance_score}]}

The batches of one search are requested concurrently, within one time-out. A failed batch fails the whole
reranking: scores of some candidates are not comparable with the search scores of the rest. After a failure
the endpoint is not called for some seconds, so that not every search waits for it in vain.

Error messages quote nothing of a response, because endpoints repeat the request in it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from kb_engine.api.reranking import RerankFailed, logistic
from kb_engine.endpoint.client import Endpoint, EndpointUnavailable, Reply
from kb_engine.rerank.rerank_settings import JINA, TEI, RerankSettings

logger = logging.getLogger(__name__)

REST_SECONDS = 5.0  # backoff after a failure if the endpoint gives no `Retry-After`, in seconds
_MOST_REST = 60.0
_MOST_BYTES = 1024 * 1024
_MENDED_BY = {401: "; set KB_RERANK_KEY", 403: "; set KB_RERANK_KEY", 404: "; check KB_RERANK_URL"}


class EndpointReranker:
    """The reranker of one endpoint. `clock` returns seconds, as `time.monotonic` does."""

    def __init__(self, settings: RerankSettings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.candidates = settings.candidates
        self._settings = settings
        self._endpoint = Endpoint(settings.url, settings.key)
        self._clock = clock
        self._rests_until = 0.0

    async def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        if (left := self._rests_until - self._clock()) > 0:
            raise RerankFailed(f"The reranker is out of order; it is asked again in {math.ceil(left)} s.")
        size = self._settings.batch
        batches = [texts[first : first + size] for first in range(0, len(texts), size)]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._batch(query, batch)) for batch in batches]
        except ExceptionGroup as failed:
            first = failed.exceptions[0]
            if not isinstance(first, RerankFailed):
                raise
            raise first from None
        return [score for task in tasks for score in task.result()]

    async def close(self) -> None:
        await self._endpoint.close()

    async def _batch(self, query: str, texts: Sequence[str]) -> list[float]:
        body = msgspec.json.encode(self._request(query, texts))
        try:
            reply = await self._endpoint.post(body, seconds=self._settings.timeout, most_bytes=_MOST_BYTES)
        except EndpointUnavailable as error:
            raise self._failed(error.what, REST_SECONDS) from error
        if reply.status != 200:
            raise self._failed(*_fault(reply))
        try:
            settings = self._settings
            return relevances(reply.body, api=settings.api, count=len(texts), logits=settings.logits)
        except BadAnswer as error:
            raise self._failed(f"answers with {error}", 0.0) from error

    def _request(self, query: str, texts: Sequence[str]) -> dict[str, Any]:
        if self._settings.api == TEI:
            return {"query": query, "texts": texts, "truncate": True, "raw_scores": self._settings.logits}
        request = {"model": self._settings.model, "query": query, "documents": texts, "top_n": len(texts)}
        # Jina returns the passages unless `return_documents` is false; Cohere does not know this member.
        return {**request, "return_documents": False} if self._settings.api == JINA else request

    def _failed(self, what: str, rest: float) -> RerankFailed:
        """Start a backoff of `rest` seconds, log the reason with the URL, and return the exception."""
        if rest:
            self._rests_until = max(self._rests_until, self._clock() + min(rest, _MOST_REST))
        logger.warning(
            "reranking failed: a search keeps its original order",
            extra={"url": self._settings.url, "why": what},
        )
        return RerankFailed(f"The reranker {what}.")


def _fault(reply: Reply) -> tuple[str, float]:
    """Return the reason for a status other than 200, and the backoff in seconds."""
    status = reply.status
    if 300 <= status < 400:
        return f"redirects (HTTP {status}); set KB_RERANK_URL to where that leads", REST_SECONDS
    if status in {400, 413, 422}:  # about these passages only: no backoff
        return f"refuses these passages (HTTP {status}); lower KB_RERANK_BATCH if they are too many", 0.0
    mend = _MENDED_BY.get(status, "")
    return f"answers HTTP {status}{mend}", REST_SECONDS if reply.retry_after is None else reply.retry_after


class BadAnswer(ValueError):
    """The response has no usable scores; the message says why and quotes nothing of it."""


class _TeiScore(msgspec.Struct):
    index: int
    score: float


class _Score(msgspec.Struct):
    index: int
    relevance_score: float


class _Scores(msgspec.Struct):
    results: list[_Score]


def relevances(body: bytes, *, api: str, count: int, logits: bool) -> list[float]:
    """Return the relevance of `count` texts in their order, from 0 to 1, converted if they are logits.
    Raises BadAnswer: malformed JSON, a missing or repeated index, or an invalid score.
    """
    try:
        if api == TEI:
            pairs = [(each.index, each.score) for each in msgspec.json.decode(body, type=list[_TeiScore])]
        else:
            results = msgspec.json.decode(body, type=_Scores).results
            pairs = [(each.index, each.relevance_score) for each in results]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadAnswer("no list of scores") from error
    scores = dict(pairs)
    if len(pairs) != count:
        raise BadAnswer(f"{len(pairs)} scores for {count} passages")
    if scores.keys() != set(range(count)):
        raise BadAnswer("scores whose index is missing or comes twice")
    values = [scores[place] for place in range(count)]
    if not all(map(math.isfinite, values)):
        raise BadAnswer("a score that is not finite")
    if logits:
        return [logistic(value) for value in values]
    if not all(0 <= value <= 1 for value in values):
        raise BadAnswer("a score that is not from 0 to 1; set KB_RERANK_LOGITS=true where they are logits")
    return values
