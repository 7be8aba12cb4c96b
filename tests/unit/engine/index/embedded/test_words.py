"""Scores over all words equal those of a plain BM25, for any block, any rows, and any way to build them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_engine.index.embedded import postings, words_merging
from kb_engine.index.embedded.postings import Postings, Terms, WordBlock
from kb_engine.index.words import AnalysedChunk
from tests.support.word_blocks import build, chunk, in_file, reference, scores, view, weigh


def near(expected: list[float]) -> Any:
    """Equal up to the rounding of single-precision sums."""
    return pytest.approx(expected, rel=1e-5, abs=1e-6)


WORDS = ["a", "b", "c", "d", "rare", "", "\0", "\ud800", "🙂", "中 国", "long" * 1_000]
TERMS = st.builds(
    lambda term, times: [term] * times,
    st.sampled_from(WORDS),
    st.sampled_from([*[1] * 8, 2, 3, 254, 255, 256, 70_000]),
)
CHUNKS = st.lists(
    st.builds(
        lambda parts, more: chunk(*chain(*parts), length=sum(map(len, parts)) + more),
        st.lists(TERMS, max_size=3),
        st.integers(0, 3),
    ),
    max_size=30,
)
QUESTIONS = st.lists(st.sampled_from([*WORDS, "of no chunk"]), min_size=1, max_size=6)


@pytest.fixture(autouse=True, scope="module")
def small_steps() -> Iterator[None]:
    """Small limits, so that a few rows span many parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postings, "ROWS_AT_ONCE", 4)
        for module in (postings, words_merging):
            patch.setattr(module, "STRETCH", 4)
            patch.setattr(module, "LONG_FROM", 1)
            patch.setattr(module, "COLUMN_SHARE", 2)
        patch.setattr(postings, "BISECT", 3)
        patch.setattr(postings, "FEW", 10)
        patch.setattr(words_merging, "POSTINGS_AT_ONCE", 5)
        yield


@given(CHUNKS, QUESTIONS)
def test_scores_are_those_of_a_plain_bm25(chunks: list[AnalysedChunk], terms: list[str]) -> None:
    assert scores([build(chunks)], terms).tolist() == near(reference(chunks, terms))


@given(CHUNKS, QUESTIONS, st.data())
def test_the_same_scores_to_the_last_bit_in_every_kind_of_block(
    chunks: list[AnalysedChunk], terms: list[str], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(chunks)))
    first, second = chunks[:cut], chunks[cut:]
    with TemporaryDirectory() as name:
        folder = Path(name)
        segments: list[list[WordBlock]] = [
            [in_file(folder / "merged", build(first), build(second))],
            [in_file(folder / "again", in_file(folder / "first", build(first)), view(second).postings())],
            [in_file(folder / "one", build(first)), view(second)],
            [view(first), build(second)],
        ]
        expected = scores([build(chunks)], terms)
        for blocks in segments:
            np.testing.assert_array_equal(scores(blocks, terms), expected)


@given(CHUNKS, QUESTIONS, st.data())
def test_some_rows_have_the_scores_that_they_have_among_all(
    chunks: list[AnalysedChunk], terms: list[str], data: st.DataObject
) -> None:
    rows = np.array(sorted(data.draw(st.sets(st.integers(0, max(len(chunks) - 1, 0))))), np.uint32)
    rows = rows[rows < len(chunks)]
    with TemporaryDirectory() as name:
        blocks: list[WordBlock] = [in_file(Path(name) / "file", build(chunks)), view(chunks), build(chunks)]
        for block in blocks:
            np.testing.assert_array_equal(scores([block], terms, [rows]), scores([block], terms)[rows])
            found = [sum(term in chunks[row].terms for row in rows.tolist()) for term in terms]
            assert block.frequencies(Terms(terms), rows).tolist() == found


def test_scores_are_added_to_what_is_there() -> None:
    question = Terms(["a"])
    found = np.ones(2, np.float32)
    build([chunk("a"), chunk("b")]).add_scores(question, [1.0], 1.0, found)
    assert found.tolist() == [pytest.approx(2.0), 1.0]


def test_scores_are_as_precise_as_their_sum(small_steps: None) -> None:
    chunks = [chunk(*"aab"), chunk("b")]
    found = np.zeros(2, np.float64)
    counts = build(chunks).frequencies(Terms(["a", "b"]))
    build(chunks).add_scores(Terms(["a", "b"]), weigh(counts, 2), 2.0, found)
    assert found.tolist() == pytest.approx(reference(chunks, ["a", "b"]), rel=1e-12)


def test_a_question_of_hundreds_of_words() -> None:
    terms = [f"w{number}" for number in range(600)]
    chunks = [chunk(*terms[row::7]) for row in range(7)]
    assert scores([build(chunks)], terms).tolist() == near(reference(chunks, terms))


def test_a_term_of_ten_megabytes_is_a_term_like_another(tmp_path: Path) -> None:
    long = "x" * 10_000_000
    block = in_file(tmp_path / "file", build([chunk(long), chunk(long + "y"), chunk("x")]))
    assert block.frequencies(Terms([long, long + "y", "x", long[:-1]])).tolist() == [1, 1, 1, 0]
    assert (tmp_path / "file").stat().st_size < 2_000


def test_terms_whose_keys_are_alike_but_for_their_last_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zero bytes at the end of a key count like any others."""
    monkeypatch.setattr(postings, "key_of", lambda term: term.encode().ljust(16, b"\0"))
    block = build([chunk("a"), chunk("a\1"), chunk("b")])
    assert block.frequencies(Terms(["a", "a\1", "a\2", "b"])).tolist() == [1, 1, 0, 1]


@given(CHUNKS)
def test_frequent_terms_are_columns_and_rare_ones_lists(chunks: list[AnalysedChunk]) -> None:
    with TemporaryDirectory() as name:
        block: Postings = in_file(Path(name) / "file", build(chunks))
    for number, count in enumerate(block.counts.tolist()):
        assert (block.starts[number] >= block.listed) == (count * postings.COLUMN_SHARE >= len(chunks))
    assert len(block.keys) == len({term for each in chunks for term in each.terms})


def test_parts_keep_what_is_theirs(tmp_path: Path) -> None:
    """Removed rows no longer count, in lists or columns, nor do terms that only they had."""
    chunks = [chunk("all", "gone")] + [chunk("all", *["wide"] * 256, f"w{row}") for row in range(20)]
    kept = np.array([row not in {0, 5, 6} for row in range(21)])
    block = in_file(tmp_path / "file", (in_file(tmp_path / "first", build(chunks)), kept))
    remaining = [each for each, stays in zip(chunks, kept, strict=True) if stays]
    terms = ["all", "wide", "gone", "w4", "w7"]
    assert block.frequencies(Terms(terms)).tolist() == [18, 18, 0, 0, 1]
    assert scores([block], terms).tolist() == near(reference(remaining, terms))
