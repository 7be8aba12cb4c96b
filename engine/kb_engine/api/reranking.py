"""The interface of a reranker. Without one, search results keep their original order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol


class RerankFailed(Exception):
    """The passages were not scored in time; the message says why, and contains no text and no address."""


class Reranker(Protocol):
    """Scores how well passages answer a query, within its own time-out."""

    candidates: int  # number of best candidates to rerank

    async def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return the relevance of each text, from 0 to 1, in the order of the texts. Raises RerankFailed."""

    async def close(self) -> None:
        """Close connections and other external resources."""


def logistic(logit: float) -> float:
    """Return the relevance of a logit, in a form that cannot overflow."""
    return 0.5 + 0.5 * math.tanh(logit / 2)
