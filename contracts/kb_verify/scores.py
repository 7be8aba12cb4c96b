"""The score that an explanation explains, computed independently of any engine."""

from __future__ import annotations

from kb_contracts.api import models as m


def explained(parts: m.Explanation) -> float:
    """Return the score by the formula of `Explanation`; a part that is None counts as 0."""
    bm25 = parts.bm25 or 0.0
    words = bm25 / (bm25 + parts.saturation)
    return parts.weight * max(0.0, parts.cosine or 0.0) + (1 - parts.weight) * words
