"""The inverted index: which chunks hold which words, how well they match, and how near they are.

Keywords are scored by BM25. The stand-in for meaning is the cosine between
hashed bags of words: it depends on the two texts alone, as an embedding does, is 1 for texts of the
same words and falls as fewer are shared. It knows no synonyms and does not pretend to.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar
from zlib import crc32

from kb_simulator.engine.words import content_words, words_of_query, words_of_text

K = TypeVar("K")
V = TypeVar("V")

DIMENSIONS = 4096
"""Buckets that words are hashed into."""

_K1 = 1.2
_B = 0.75

Scores = Mapping[int, float]
"""By chunk id."""


@dataclass(frozen=True, slots=True)
class _Entry:
    length: int
    counts: Mapping[str, int]
    buckets: Mapping[int, float]


@dataclass(slots=True)
class Index:
    """Chunks by words. Ids are the caller's; `add` takes each once."""

    _entries: dict[int, _Entry] = field(default_factory=dict)
    _words: dict[str, dict[int, int]] = field(default_factory=dict)
    _buckets: dict[int, dict[int, float]] = field(default_factory=dict)
    _total_length: int = 0
    _cached: dict[str, Scores] = field(default_factory=dict)

    def add(self, chunk_id: int, text: str) -> None:
        """Take a chunk in."""
        entry = _entry(text)
        self._entries[chunk_id] = entry
        self._total_length += entry.length
        for word, count in entry.counts.items():
            self._words.setdefault(word, {})[chunk_id] = count
        for bucket, weight in entry.buckets.items():
            self._buckets.setdefault(bucket, {})[chunk_id] = weight
        self._cached.clear()

    def remove(self, chunk_id: int) -> None:
        """Forget a chunk."""
        entry = self._entries.pop(chunk_id)
        self._total_length -= entry.length
        for word in entry.counts:
            _drop(self._words, word, chunk_id)
        for bucket in entry.buckets:
            _drop(self._buckets, bucket, chunk_id)
        self._cached.clear()

    def copy(self) -> Index:
        """An index that lives on by itself."""
        return Index(
            dict(self._entries),
            {word: dict(chunks) for word, chunks in self._words.items()},
            {bucket: dict(chunks) for bucket, chunks in self._buckets.items()},
            self._total_length,
        )

    def keyword_scores(self, query: str) -> Scores:
        """BM25 of every chunk that holds at least one of the words; higher is better, always over 0."""
        first, *more = [self._scores(word) for word in words_of_query(query)] or [{}]
        if not more:
            return first
        total = defaultdict(float, first)
        for scores in more:
            for chunk_id, score in scores.items():
                total[chunk_id] += score
        return total

    def cosines(self, query: str) -> Scores:
        """The cosine, over 0 to 1, of every chunk that shares a word with the query."""
        total: defaultdict[int, float] = defaultdict(float)
        for bucket, weight in _weights(tuple(words_of_query(query))).items():
            for chunk_id, there in self._buckets.get(bucket, {}).items():
                total[chunk_id] += weight * there
        return total

    def _scores(self, word: str) -> Scores:
        if (scores := self._cached.get(word)) is None:
            scores = self._cached[word] = self._bm25(self._words.get(word, {}))
        return scores

    def _bm25(self, chunks: Mapping[int, int]) -> Scores:
        if not chunks:
            return {}
        # The form that stays over 0, so that a word in most chunks still counts for a little.
        idf = math.log(1 + (len(self._entries) - len(chunks) + 0.5) / (len(chunks) + 0.5))
        average = self._total_length / len(self._entries)
        return {
            chunk_id: idf
            * count
            * (_K1 + 1)
            / (count + _K1 * (1 - _B + _B * self._entries[chunk_id].length / average))
            for chunk_id, count in chunks.items()
        }


def _drop(postings: dict[K, dict[int, V]], key: K, chunk_id: int) -> None:
    chunks = postings[key]
    del chunks[chunk_id]
    if not chunks:
        del postings[key]


def _entry(text: str) -> _Entry:
    stems = words_of_text(text)
    return _Entry(len(stems), Counter(stems), _weights(tuple(stems)))


@lru_cache(maxsize=1024)
def _weights(stems: tuple[str, ...]) -> Mapping[int, float]:
    """The bag of words as a vector of length 1, its empty buckets left out."""
    counts: dict[int, int] = {}
    for word in content_words(list(stems)):
        bucket = crc32(word.encode("utf-8", "surrogatepass")) % DIMENSIONS
        counts[bucket] = counts.get(bucket, 0) + 1
    raw = {bucket: 1.0 + math.log(count) for bucket, count in counts.items()}
    length = math.sqrt(sum(weight * weight for weight in raw.values()))
    return {bucket: weight / length for bucket, weight in raw.items()}
