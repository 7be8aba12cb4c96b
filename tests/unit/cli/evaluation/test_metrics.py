"""Metrics and intervals against values computed by hand, with the definitions of trec_eval."""

from __future__ import annotations

import pytest

from kb_cli.evaluation.metrics import difference, interval, ndcg, recall, reciprocal_rank

GAINS = {"a": 3, "b": 1, "c": 0, "d": -1}
ELEVEN = [f"x{number}" for number in range(10)]


@pytest.mark.parametrize(
    ("ranking", "expected"),
    [
        (["a", "b"], 1.0),
        # (1/log2(2) + 3/log2(3)) / (3/log2(2) + 1/log2(3)) = 2.892789 / 3.630930
        (["b", "a"], 0.796708),
        # 3/log2(4) / 3.630930: irrelevant results add nothing but take a rank.
        (["c", "d", "a"], 0.413117),
        (["x", "y"], 0.0),
        ([], 0.0),
        ([*ELEVEN, "a"], 0.0),
    ],
)
def test_ndcg_at_ten_by_hand(ranking: list[str], expected: float) -> None:
    assert ndcg(ranking, GAINS) == pytest.approx(expected, abs=1e-6)


def test_the_best_order_of_more_than_ten_relevant_documents_is_ten_of_them() -> None:
    gains = dict.fromkeys([*ELEVEN, "y"], 1)
    assert ndcg(ELEVEN, gains) == 1.0
    assert recall(ELEVEN, gains) == pytest.approx(10 / 11)


def test_recall_looks_at_a_hundred_documents() -> None:
    others = [f"x{number}" for number in range(99)]
    assert recall([*others, "a", "b"], GAINS) == 0.5
    assert recall(["d", "c"], GAINS) == 0.0


def test_the_reciprocal_rank_is_that_of_the_first_relevant_document_of_ten() -> None:
    assert reciprocal_rank(["d", "b", "a"], GAINS) == 0.5
    assert reciprocal_rank([*ELEVEN, "a"], GAINS) == 0.0


def test_an_interval_is_the_same_for_the_same_seed_and_holds_the_mean() -> None:
    values = [0.0, 1.0] * 50
    low, high = interval(values, seed=3)
    assert interval(values, seed=3) == (low, high) != interval(values, seed=4)
    # A standard error of 0.05, times 1.96 on each side.
    assert low == pytest.approx(0.4, abs=0.03)
    assert high == pytest.approx(0.6, abs=0.03)


def test_a_difference_is_taken_question_by_question() -> None:
    """If all questions gain the same, the gain is certain, however much the questions differ."""
    found = difference([0.1, 0.5, 0.9, 0.4], [0.2, 0.6, 1.0, 0.4], seed=1)
    assert (found.difference, found.better, found.worse) == (0.075, 3, 0)
    assert difference([0.0, 1.0], [0.25, 1.25], seed=1).interval == (0.25, 0.25)
