"""The words of chunks in their order: phrases and exclusions are found without reading texts.

The words are those that `kb_contracts.semantics.query` compares: not stemmed, and single characters in
scripts without spaces. Each word has a number in its block, from 1 on. A row has the numbers of title,
heading and text, with a 0 behind each of them, so that no phrase continues from one into the next. Numbers
take two bytes in a block with fewer than 65,536 words, otherwise four, in two halves.

The newest rows have the keys of their words instead, which are computed for many rows at once: to number
words one by one as they come would take twice as long.

A search compares all numbers with those of a phrase. At 100,000 passages that takes 1 ms for a rare phrase
and up to 3 ms for a frequent one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
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
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
"""By number of bytes: a mask of the lowest ones."""
_SPACE = ord(" ")
END = b"\0"
"""Stands among the words of a row, behind each of title, heading and text."""


def keys_of(words: Sequence[str]) -> Keys:
    """Return the keys of words: digests of 64 bits, unique in practice."""
    return keys_in(" ".join(words).encode("utf-8", "surrogatepass"))[0]


def keys_in(spelled: bytes) -> tuple[Keys, NDArray[np.intp]]:
    """Return the keys of words between spaces, 0 for each `END`, and the places of these."""
    padded = np.frombuffer(b" %b %b" % (spelled, bytes(_DIGESTED)), np.uint8)
    is_inside = padded[: len(spelled) + 2] != _SPACE
    edges = np.flatnonzero(is_inside[1:] != is_inside[:-1]) + 1
    starts, sizes = edges[::2], edges[1::2] - edges[::2]
    from_each = np.ndarray((len(padded) - 7,), "<u8", padded, strides=(1,))
    columns = np.zeros((_DIGESTED // 8, len(starts)), np.uint64)
    for at, column in zip(range(0, _DIGESTED, 8), columns, strict=True):
        reaching = np.flatnonzero(sizes > at)  # most words have few letters
        column[reaching] = from_each[starts[reaching] + at] & _MASKS[np.minimum(sizes[reaching] - at, 8)]
    for long in np.flatnonzero(sizes > _DIGESTED).tolist():
        word = padded[starts[long] :][: sizes[long]].tobytes()
        digest = hashlib.blake2b(word, digest_size=_DIGESTED).digest()
        for column, part in zip(columns, np.frombuffer(digest, "<u8"), strict=True):
            column[long] = part
    keys = np.zeros(len(starts), np.uint64)
    for column in columns:
        keys = (keys ^ column) * _FACTOR
        keys ^= keys >> np.uint64(29)
    ends = np.flatnonzero(padded[starts] == 0)
    keys[keys == 0] = 1
    keys[ends] = 0
    return keys, ends


class Order(Protocol):
    """The words of the rows of a block in their order."""

    def passing(self, wording: Wording) -> Mask:
        """Return a mask of the rows that hold all phrases and no exclusion."""

    def numbered(self) -> WordOrder:
        """Return the whole order, for merging."""


@dataclass(frozen=True, slots=True, eq=False)
class WordOrder:
    """The numbers of all rows, in halves (`upper` may be empty), and the end of each row. Number n is the
    word with the key `keys[n - 1]`.
    """

    ends: NDArray[np.int64]
    lower: Numbers
    upper: Numbers
    keys: Keys

    def numbered(self) -> WordOrder:
        return self

    def passing(self, wording: Wording) -> Mask:
        held, barred = wording.held, wording.barred
        numbers = iter(self._numbers(keys_of(list(chain.from_iterable(held + barred)))))
        phrases = [list(islice(numbers, len(words))) for words in held]
        excluded = [found for words in barred if all(found := list(islice(numbers, len(words))))]
        if not all(map(all, phrases)):
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

    def _numbers(self, keys: Keys) -> list[int]:
        """Return the numbers of words, 0 for a word that does not occur."""
        places = self.keys.searchsorted(keys)
        occurs = places < len(self.keys)
        occurs[occurs] = self.keys[places[occurs]] == keys[occurs]
        numbers: list[int] = np.where(occurs, places + 1, 0).tolist()
        return numbers

    def _holding(self, rows: _Rows, phrase: Sequence[int]) -> Mask:
        """Return a mask of those rows that hold these numbers in a row."""
        lower, upper = self.lower[rows.places], self.upper[rows.places]
        # No phrase begins with the 0 at the end of the rows, so none goes beyond them.
        held = np.ones(len(lower), np.bool_)
        for at, number in enumerate(phrase):
            upper_half, lower_half = divmod(number, NARROW) if len(upper) else (0, number)
            held[len(held) - at :] = False
            held[: len(held) - at] &= lower[at:] == lower_half
            if len(upper):
                held[: len(held) - at] &= upper[at:] == upper_half
            if not held.any():
                break
        ends = self.ends[rows.numbers] - rows.places.start
        if np.count_nonzero(held) * _SPARSE > len(ends):
            return np.logical_or.reduceat(held, np.concatenate([[0], ends[:-1]]))
        mask = np.zeros(len(ends), np.bool_)
        mask[ends.searchsorted(np.flatnonzero(held), "right")] = True
        return mask


@dataclass(frozen=True, slots=True, eq=False)
class UnnumberedOrder:
    """The words of rows that are read when they are needed: `read` returns the ends of rows, and all keys."""

    read: Callable[[], tuple[NDArray[np.int64], Keys]]

    def passing(self, wording: Wording) -> Mask:
        ends, keys = self.read()
        return _WithKeys(ends, keys, keys[:0], keys[:0]).passing(wording)

    def numbered(self) -> WordOrder:
        ends, keys = self.read()
        found, numbers = np.unique(keys, return_inverse=True)  # the first one is 0
        return WordOrder(ends, numbers.astype(np.uint32), numbers[:0].astype(np.uint32), found[1:])


class _WithKeys(WordOrder):
    """The words of rows, with their keys as numbers."""

    def _numbers(self, keys: Keys) -> list[int]:
        numbers: list[int] = keys.tolist()
        return numbers


class _Rows(NamedTuple):
    """Some rows of a block, and the places of their numbers."""

    numbers: slice
    places: slice


class MergedOrder:
    """One block made of several: the rows of each in its mask (None: all), in the order of the blocks."""

    def __init__(self, parts: Sequence[tuple[Order, Mask | None]]) -> None:
        self._parts = [(order.numbered(), kept) for order, kept in parts]
        of_parts = [order.keys for order, _ in self._parts]
        keys = np.unique(np.concatenate(of_parts))
        self._numbers = [np.concatenate([[0], keys.searchsorted(own) + 1]) for own in of_parts]
        is_left = np.zeros(len(keys) + 1, np.bool_)
        total = 0
        for (order, kept), numbers in zip(self._parts, self._numbers, strict=True):
            if kept is None:
                is_left[numbers] = True
                total += len(order.lower)
                continue
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
    Raises ValueError: the sections do not fit one another.
    """
    keys, ends, lower, upper = (arrays[name] for name in DTYPES)
    last = int(ends[-1]) if len(ends) else 0
    if len(ends) != rows or len(lower) != last or len(upper) not in {0, last}:
        raise ValueError("its words in their order do not fit its rows")
    return WordOrder(ends, lower, upper, keys)


def _joined(lower: Numbers, upper: Numbers) -> NDArray[np.uint32]:
    found = lower.astype(np.uint32)
    if len(upper):
        found += upper * np.uint32(NARROW)
    return found
