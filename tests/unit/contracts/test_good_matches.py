"""The division of search results into good and far ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kb_contracts.semantics.search import good_matches


@pytest.mark.parametrize(
    ("scores", "good"),
    [([], 0), ([0.8, 0.5, 0.3, 0.1], 2), ([0.2, 0.1, 0.8, 0.1], 3), ([0.0, 0.0], 2)],
    ids=["none", "by score", "reranked", "all alike"],
)
def test_only_results_behind_the_last_good_one_are_folded(scores: list[float], good: int) -> None:
    results: list[Any] = [SimpleNamespace(score=score) for score in scores]
    assert good_matches(results) == good
