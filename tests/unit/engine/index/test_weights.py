"""Weights of words: rare words high, function words low, and the same for a query in every base."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from kb_engine.index.words import (
    BACKGROUND,
    FUNCTION_WORD_SHARE,
    TITLE_SHARE,
    UNSEEN,
    Analyser,
    weigh,
    weigh_words,
)


def test_a_weight_is_bm25s_over_a_base_that_is_larger() -> None:
    weights = weigh(["appl", "pear", "fig"], [0, 1, 9], 9)
    size = 9 + BACKGROUND
    expected = [math.log1p((size - count + 0.5) / (count + 0.5)) for count in (0, 1, 9)]
    expected[0] *= UNSEEN
    assert weights.of_terms == pytest.approx(expected)
    assert weights.total_weight == pytest.approx(sum(expected))


@pytest.mark.parametrize("size", [1, 40, 10_000, 10_000_000])
def test_a_word_in_every_chunk_counts(size: int) -> None:
    assert weigh(["appl"], [size], size).of_terms[0] > 0


@pytest.mark.parametrize("size", [1, 40, 10_000])
def test_function_words_weigh_little_however_rare_they_are(size: int) -> None:
    terms = ["what", "is", "the", "appl"]
    *function, apple = weigh(terms, [0, 1, 1, 1], size).of_terms
    assert max(function) <= -math.log(FUNCTION_WORD_SHARE) < apple / 10


def test_a_query_of_function_words_alone_is_covered_by_nothing() -> None:
    """Its words together weigh less than one unknown word."""
    terms = ["what", "is", "it", "about"]
    weights = weigh(terms, [1, 1, 1, 1], 1)
    assert weights.total_weight == pytest.approx(math.log((2 + BACKGROUND) / 0.5))
    assert sum(weights.of_terms) < weights.total_weight / 3


def test_a_query_without_a_word_has_no_reach() -> None:
    assert (weigh([], [], 5).of_terms, weigh([], [], 5).total_weight) == ([], 0.0)


def test_a_count_that_is_only_about_right_takes_nothing_below_zero() -> None:
    assert weigh(["appl"], [12], 10).of_terms == weigh(["appl"], [10], 10).of_terms


def test_a_repeated_word_weighs_more_each_time_and_ever_less_so() -> None:
    weights = []
    for times in range(1, 5):
        words = Analyser().words_of("pear " + times * "apple " + "apples")
        of_terms, total = weigh_words(words, {}, 9)
        weights.append(of_terms["appl"])
        assert total == pytest.approx(sum(of_terms.values()) / (1 + TITLE_SHARE))
    steps = [after - before for before, after in pairwise(weights)]
    assert sorted(steps, reverse=True) == steps
    assert min(steps) > 0


def test_function_words_are_left_out_while_other_words_remain() -> None:
    analyser = Analyser()
    assert analyser.words_of("what is the apple", ["de"]) == [("appl", "de|appl")]
    assert [word[0] for word in analyser.words_of("what is it")] == ["what", "is", "it"]
    assert len(analyser.required(["the apple"], [])) == 2


@pytest.mark.parametrize(
    ("query", "stems"),
    [
        ("John Doe does", ["john", "doe"]),
        ("how to quit vim", ["quit", "vim"]),
        ("IT support", ["it", "support"]),
        ("what do the WHO guidelines say", ["who", "guidelin", "sai"]),
        ("THE APPLE", ["appl"]),
    ],
)
def test_names_that_resemble_function_words_remain(query: str, stems: list[str]) -> None:
    assert [word[0] for word in Analyser().words_of(query)] == stems
