"""A plain BM25 as a reference for blocks of words, and an index's operations on several blocks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kb_engine.index.embedded.array_file import ArrayFile, new_array_file
from kb_engine.index.embedded.postings import (
    DTYPES,
    Counts,
    Postings,
    RecentView,
    RecentWords,
    Rows,
    Terms,
    WordBlock,
)
from kb_engine.index.embedded.words_merging import Kept, MergedPostings
from kb_engine.index.words import AnalysedChunk


def chunk(*terms: str, length: int | None = None) -> AnalysedChunk:
    return AnalysedChunk(list(terms), len(terms) if length is None else length)


def reference(chunks: Sequence[AnalysedChunk], terms: Sequence[str]) -> list[float]:
    """Textbook BM25 of each chunk over all terms, in double precision."""
    counted = [Counter(each.terms) for each in chunks]
    average = sum(each.length for each in chunks) / max(len(chunks), 1)
    scores = [0.0] * len(chunks)
    for term in terms:
        count = sum(term in found for found in counted)
        weight = math.log(1 + (len(chunks) - count + 0.5) / (count + 0.5))
        for row, found in enumerate(counted):
            if frequency := found[term]:
                norm = 1.5 * (1 - 0.75 + 0.75 * chunks[row].length / average)
                scores[row] += weight * frequency * 2.5 / (frequency + norm)
    return scores


def weigh(counts: Counts, size: int) -> list[float]:
    """BM25 weights of terms, given the number of chunks (of `size`) with each term."""
    return [math.log1p((size - count + 0.5) / (count + 0.5)) for count in counts.tolist()]


def scores(
    blocks: Sequence[WordBlock], terms: Sequence[str], rows: Sequence[Rows] | None = None
) -> NDArray[np.float32]:
    """The scores of all rows of all blocks, or of `rows` of each, with the statistics of all blocks."""
    question = Terms(terms)
    size = sum(len(block.lengths) for block in blocks)
    average = sum(float(block.lengths.sum(dtype=np.float64)) for block in blocks) / max(size, 1) or 1.0
    counts = sum((block.frequencies(question) for block in blocks), np.zeros(len(terms), np.int64))
    found = []
    for number, block in enumerate(blocks):
        chosen = None if rows is None else rows[number]
        found.append(np.zeros(len(block.lengths) if chosen is None else len(chosen), np.float32))
        block.add_scores(question, weigh(counts, size), average, found[-1], chosen)
    return np.concatenate([np.empty(0, np.float32), *found])


def view(chunks: Iterable[AnalysedChunk]) -> RecentView:
    """A block that could grow."""
    recent, listed = RecentWords(), list(chunks)
    recent.append(listed)
    return recent.view(len(listed))


def build(chunks: Iterable[AnalysedChunk]) -> Postings:
    """A block in memory."""
    return view(chunks).postings()


def in_file(path: Path, *blocks: Postings | tuple[Postings, Kept | None]) -> Postings:
    """Merge the blocks, or the rows of them to keep, into one file; return it opened."""
    merged = MergedPostings([each if isinstance(each, tuple) else (each, None) for each in blocks])
    with new_array_file(path, "words", 1, {}, DTYPES, merged.lengths) as writer:
        merged.write(writer)
    return Postings(**ArrayFile(path, "words", 1, DTYPES).arrays)
