"""Merging: the same result by each method, in bounded memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_engine.index.embedded import postings, words_merging
from kb_engine.index.embedded.postings import KEY_TYPE, in_memory
from kb_engine.index.words import AnalysedChunk
from tests.support.word_blocks import build, chunk, in_file

CHUNKS = st.lists(
    st.lists(st.sampled_from("abcdefghijklmnop"), max_size=6).map(lambda terms: chunk(*terms)), max_size=25
)


@pytest.fixture(autouse=True, scope="module")
def small_stretches() -> Iterator[None]:
    """Small limits, so that a few rows are many stretches, and a few postings a long list."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (postings, words_merging):
            patch.setattr(module, "STRETCH", 8)
            patch.setattr(module, "LONG_FROM", 1)
        yield


@given(st.lists(CHUNKS, max_size=4), st.data())
def test_a_merged_file_is_that_of_the_chunks_that_were_kept(
    parts: list[list[AnalysedChunk]], data: st.DataObject
) -> None:
    masks = [
        data.draw(st.none() | st.lists(st.booleans(), min_size=len(part), max_size=len(part)))
        for part in parts
    ]
    remaining = [
        each
        for part, mask in zip(parts, masks, strict=True)
        for each, kept in zip(part, mask or [mask is None] * len(part), strict=True)
        if kept
    ]
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        in_file(folder / "expected", build(remaining))
        patch.setattr(words_merging, "POSTINGS_AT_ONCE", 4)
        blocks = [in_file(folder / str(number), build(part)) for number, part in enumerate(parts)]
        kept_rows = [None if mask is None else np.array(mask, np.bool_) for mask in masks]
        in_file(folder / "found", *zip(blocks, kept_rows, strict=True))
        assert (folder / "found").read_bytes() == (folder / "expected").read_bytes()


def test_a_merged_file_may_replace_one_that_is_read(tmp_path: Path) -> None:
    old = in_file(tmp_path / "words", build([chunk("a"), chunk("b")]))
    new = in_file(tmp_path / "words", old, old)
    assert (len(old.lengths), len(new.lengths)) == (2, 4)


def test_a_merge_takes_no_memory_for_the_postings_that_it_has_not_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a million postings, a column is the largest array held in memory as a whole."""
    terms, rows, share = 500, 20_000, 1_000
    keys = np.array([f"{number:016}".encode() for number in range(terms)], KEY_TYPE)
    every = np.tile(np.arange(0, rows, rows // share, dtype=np.uint32), terms)
    block = in_memory(
        keys, np.full(terms, share), every, np.ones(len(every), np.int64), np.ones(rows, np.float32)
    )
    part = (in_file(tmp_path / "part", block), np.arange(rows) % 3 > 0)
    monkeypatch.setattr(words_merging, "POSTINGS_AT_ONCE", 5_000)
    tracemalloc.start()
    try:
        in_file(tmp_path / "merged", part, part)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(every)
    finally:
        tracemalloc.stop()
