"""The words of chunks in their order: phrases and exclusions are found without reading texts.

The words are those that `kb_contracts.semantics.query` compares: not stemmed, and single characters in
scripts without spaces. Each word has a number in its block, from 1 on. A row has the numbers of title,
heading and text, with a 0 behind each of them, so that no phrase continues from one into the next. Numbers
take two bytes in a block with fewer than 65,536 words, otherwise four, in two halves.

A search compares all numbers with those of a phrase. At 100,000 passages that takes 1 ms for a rare phrase
and up to 3 ms for a frequent one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kb_contracts.semantics.query import Wording
from kb_engine.index.embedded.array_file import ArrayFileWriter

Keys: TypeAlias = "NDArray[np.uint64]"
Numbers: TypeAlias = "NDArray[np.unsignedinteger[Any]]"
Mask: TypeAlias = "NDArray[np.bool_]"

DTYPES = {
    "order_keys": "<u8",
    "order_ends": "<i8",
    "order_numbers": "<u2",
    "order_upper": "<u2",
}
"""The sections of a file with the words of a block in their order."""
NARROW = 1 << 16
"""Number of words from which numbers have an upper half."""
_COMPARED = 2_048
"""Number of rows compared at once, so that intermediate results stay in the processor's cache."""
_MERGED = 16_384
"""Number of rows merged at once."""
_SPARSE = 4
"""If there is less than one place in `_SPARSE` rows, the row of each is looked up."""
_DIGESTED = 32
"""Number of bytes from which a key is computed: of a longer word, those of its digest."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def keys_of(words: Sequence[str]) -> Keys:
    """Return the keys of words: digests of 64 bits, unique in practice."""
    raw = [word.encode("utf-8", "surrogatepass") for word in words]
    whole = [
        each if len(each) <= _DIGESTED else hashlib.blake2b(each, digest_size=_DIGESTED).digest()
        for each in raw
    ]
    keys = np.zeros(len(whole), np.uint64)
    for column in np.array(whole, f"S{_DIGESTED}").view("<u8").reshape(-1, _DIGESTED // 8).T:
        keys = (keys ^ column) * _FACTOR
        keys ^= keys >> np.uint64(29)
    return keys


class Vocabulary(Protocol):
    """The words of a block by their numbers: number n has the key `keys[n - 1]`."""

    @property
    def keys(self) -> Keys:
        """The keys of the words."""

    def number_of(self, word: str) -> int | None:
        """Return the number of a word, or None if it does not occur."""


@dataclass(frozen=True, slots=True, eq=False)
class SavedVocabulary:
    """The words of a block in a file, by ascending keys."""

    keys: Keys

    def number_of(self, word: str) -> int | None:
        (key,) = keys_of([word])
        place = int(self.keys.searchsorted(key))
        return place + 1 if place < len(self.keys) and self.keys[place] == key else None


@dataclass(frozen=True, slots=True, eq=False)
class RecentVocabulary:
    """The words of a growing block in the order of their numbers, with later ones that its view lacks."""

    known: Mapping[str, int]

    @property
    def keys(self) -> Keys:
        return keys_of(list(self.known))

    def number_of(self, word: str) -> int | None:
        return self.known.get(word)


@dataclass(frozen=True, slots=True, eq=False)
class WordOrder:
    """The numbers of all rows, in halves (`upper` may be empty), and the end of each row."""

    vocabulary: Vocabulary
    ends: NDArray[np.int64]
    lower: Numbers
    upper: Numbers

    def passing(self, wording: Wording) -> Mask:
        """Return a mask of the rows that hold all phrases and no exclusion."""
        phrases = [self._numbered(words) for words in wording.held]
        excluded = [found for words in wording.barred if (found := self._numbered(words))]
        if not all(phrases):
            return np.zeros(len(self.ends), np.bool_)
        passing = np.ones(len(self.ends), np.bool_)
        for start in range(0, len(self.ends), _COMPARED):
            rows = self._rows(start, _COMPARED)
            own = passing[rows.numbers]
            for phrase in phrases:
                own &= self._holding(rows, phrase)
                if not own.any():
                    break
            else:
                for phrase in excluded:
                    own &= ~self._holding(rows, phrase)
        return passing

    def kept(self, mask: Mask | None) -> Iterator[NDArray[np.uint32]]:
        """Yield the numbers of the rows in a mask (None: all), some rows at a time."""
        for start in range(0, len(self.ends), _MERGED):
            rows = self._rows(start, _MERGED)
            found = _joined(self.lower[rows.places], self.upper[rows.places])
            if mask is not None:
                sizes = np.diff(self.ends[rows.numbers], prepend=rows.places.start)
                found = found[np.repeat(mask[rows.numbers], sizes)]
            yield found

    def _rows(self, start: int, count: int) -> _Rows:
        rows = slice(start, min(start + count, len(self.ends)))
        first = int(self.ends[start - 1]) if start else 0
        return _Rows(rows, slice(first, int(self.ends[rows.stop - 1])))

    def _numbered(self, words: Sequence[str]) -> list[int]:
        """Return the numbers of the words; empty if one of them does not occur."""
        found = [number for word in words if (number := self.vocabulary.number_of(word)) is not None]
        return found if len(found) == len(words) else []

    def _holding(self, rows: _Rows, phrase: Sequence[int]) -> Mask:
        """Return a mask of those rows that hold these numbers in a row."""
        lower, upper = self.lower[rows.places], self.upper[rows.places]
        # No phrase begins with the 0 at the end of the rows, so none goes beyond them.
        held = lower == phrase[0] % NARROW
        for at, number in enumerate(phrase):
            if at:
                held[-at:] = False
                held[:-at] &= lower[at:] == number % NARROW
            if len(upper):
                held[: len(held) - at] &= upper[at:] == number // NARROW
            if not held.any():
                break
        ends = self.ends[rows.numbers] - rows.places.start
        if np.count_nonzero(held) * _SPARSE > len(ends):
            return np.logical_or.reduceat(held, np.concatenate([[0], ends[:-1]]))
        mask = np.zeros(len(ends), np.bool_)
        mask[ends.searchsorted(np.flatnonzero(held), "right")] = True
        return mask


class _Rows(NamedTuple):
    """Some rows of a block, and the places of their numbers."""

    numbers: slice
    places: slice


class MergedOrder:
    """One block made of several: the rows of each in its mask (None: all), in the order of the blocks."""

    def __init__(self, parts: Sequence[tuple[WordOrder, Mask | None]]) -> None:
        self._parts = parts
        of_parts = [order.vocabulary.keys for order, _ in parts]
        keys = np.unique(np.concatenate(of_parts))
        self._numbers = [np.concatenate([[0], keys.searchsorted(own) + 1]) for own in of_parts]
        is_left = np.zeros(len(keys) + 1, np.bool_)
        total = 0
        for (order, kept), numbers in zip(parts, self._numbers, strict=True):
            for found in order.kept(kept):
                is_left[numbers[found]] = True
                total += len(found)
        is_left[0] = False
        renumbered = np.cumsum(is_left).astype(np.uint32)
        self._numbers = [renumbered[numbers] for numbers in self._numbers]
        self._keys = keys[is_left[1:]]
        self._is_wide = len(self._keys) >= NARROW
        self.lengths = {"order_numbers": total, "order_upper": total if self._is_wide else 0}
        """Lengths of the sections that are written piecewise."""

    def write(self, writer: ArrayFileWriter) -> None:
        """Write all sections of the words in their order."""
        sizes = [np.empty(0, np.int64)]
        for (order, kept), numbers in zip(self._parts, self._numbers, strict=True):
            for found in order.kept(kept):
                renumbered = numbers[found]
                writer.append("order_numbers", renumbered % NARROW)
                if self._is_wide:
                    writer.append("order_upper", renumbered // NARROW)
            of_rows = np.diff(order.ends, prepend=0)
            sizes.append(of_rows if kept is None else of_rows[kept])
        writer.add("order_ends", np.cumsum(np.concatenate(sizes)))
        writer.add("order_keys", self._keys)


def opened(arrays: Mapping[str, NDArray[Any]], rows: int) -> WordOrder:
    """Return the words in the sections of a file with so many rows.

    Raises:
        ValueError: the sections do not fit one another.
    """
    keys, ends, lower, upper = (arrays[name] for name in DTYPES)
    last = int(ends[-1]) if len(ends) else 0
    if len(ends) != rows or len(lower) != last or len(upper) not in {0, last}:
        raise ValueError("its words in their order do not fit its rows")
    return WordOrder(SavedVocabulary(keys), ends, lower, upper)


def _joined(lower: Numbers, upper: Numbers) -> NDArray[np.uint32]:
    found = lower.astype(np.uint32)
    if len(upper):
        found += upper * np.uint32(NARROW)
    return found
