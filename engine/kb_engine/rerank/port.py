"""What a reranker is to the rest of the engine. Without one a search is answered in its first order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class RerankFailed(Exception):
    """The passages were not scored in time; the message says why, and names no text and no address."""


class Reranker(Protocol):
    """Says how well passages answer a question, within a time of its own."""

    candidates: int
    """How many of the best candidates it looks at."""

    async def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """How relevant each text is, from 0 to 1, in the order of the texts. Raises RerankFailed."""

    async def close(self) -> None:
        """Let go of what is held outside this process."""
