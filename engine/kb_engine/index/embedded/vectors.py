"""Vectors as int8 codes, their cosines with a query, and bounds of the error.

A row `x` is stored as `x' = scale * codes`, with codes from -127 to 127 and the length of the rest, `residual
>= |x - x'|`. A query `q` becomes `q' = scale * codes` in the same way, with `missing >= |q - q'|`. The
product of the codes is exact in int32, and by Cauchy-Schwarz

    |q·x - q'·x'|  =  |q·(x - x') + (q - q')·x'|  <=  |q| * residual + missing * longest

where `longest >= |x'|` for all rows. Two rounding errors are added, with u = 2^-24 and d dimensions. The
float32 product of `q` and `x`, to which the bound refers, is off by at most `d*u / (1 - d*u) * |q| |x|`, in
any order of summation. The approximation, the product of the codes times both scales, is rounded three times
and so off by at most `4u * |q'| |x'|`. Underflow is less than `_TINY`. The bound holds for every query and
row, of any length and distribution; for rows of length 1 and 384 dimensions it is about 0.015, some 30 times
the usual error.

Half of it comes from the rest of the query. That rest is quantised in turn, and for rows that are checked
again (`fine`) both products are added: the bound is halved at twice the cost.

Scales are per row, not per dimension: see `quantise`. NumKong scans the codes with the vector instructions of
the processor, at memory speed, on one thread, without the interpreter's lock. For a large index this runs
ahead on another thread, block by block (`Scan`). If searches wait for their turn, it makes their products in
the same pass (`Turn`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, repeat, takewhile
from typing import NamedTuple

import numkong
import numpy as np
from numpy.typing import NDArray

from kb_engine.index.port import Vectors

Rows = NDArray[np.intp]
Floats = NDArray[np.float64]
Floats32 = NDArray[np.float32]
Mask = NDArray[np.bool_]

MOST_DIMENSIONS = 65_536
"""With more dimensions the product of two rows of codes may overflow int32."""
LARGEST = 1e9
"""Maximum of a component; the squares of larger ones overflow float32."""
_TOO_LARGE = f"a vector holds a number that is not finite or above {LARGEST:g}"
BLOCK_ROWS = 32_768
"""Number of rows processed together; their cosines fit the processor's cache."""
FIRST_BLOCK_ROWS = 2_048
"""Number of rows of the first block. It is small because all its rows are compared with one another."""
BESIDE_ROWS = 16_384
"""Number of rows from which a second thread is worthwhile: fewer take no longer than waking it."""
SHARED_FROM, SHARED_UP_TO = 2, 8
"""Number of queries in a shared pass; each takes 4 bytes a row."""
_PACKED = 4
"""Number of queries that a shared pass multiplies at a time: fewer take longer."""
_SHARED_ROWS = 8_192
"""Number of rows whose products with all queries of a pass fit the processor's cache."""
COPY_COST = 3
"""Time for a filtered row that is copied, in rows of a pass over all of them."""
_ROWS_AT_ONCE = 2_048
_LEVELS = 127
_LEAST_SCALE = 2.0**-126
"""The least normal number of float32."""
_UNIT = 2.0**-24
_TINY = 2.0**-118
_UP = 1 + 2.0**-20
"""Safety factor for the rounding errors of the bound itself."""


@dataclass(frozen=True, eq=False)
class QuantisedVectors:
    """Rows of codes, in memory or mapped from a file; immutable.

    Shapes (n, dimensions), (n,) and (n,).
    """

    codes: NDArray[np.int8]
    scales: Floats32
    residuals: Floats32
    longest: float

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def dimensions(self) -> int:
        """Number of dimensions of a row."""
        return int(self.codes.shape[1])

    def cosines(self, query: QuantisedQuery, rows: slice | Rows, *, fine: bool = False) -> Floats32:
        """Return the approximate product of each row with the query, off by at most its `errors`.

        Given row numbers, only these rows are read and copied.
        """
        return self.scaled(self.products(query, rows, steps=2 if fine else 1), query, rows)

    def products(self, query: QuantisedQuery, rows: slice | Rows, *, steps: int = 1) -> Floats32:
        """Return the products of these rows' codes with the first `steps` codes of the query; shape (steps,
        n).
        """
        # `take` copies rows in half the time of an index.
        codes = self.codes[rows] if isinstance(rows, slice) else self.codes.take(rows, axis=0)
        found = np.empty((steps, len(codes)), np.float32)
        if len(codes):
            numkong.cdist(query.codes_of(steps), np.ascontiguousarray(codes), "dot", out=found)
        return found

    def shared_products(self, queries: Sequence[QuantisedQuery], rows: slice) -> Iterator[Floats32]:
        """Return `products` of one step for each query, in one pass over the rows."""
        filled = [*queries, *repeat(queries[0], -len(queries) % _PACKED)]
        packed = numkong.dots_pack(np.concatenate([each.first.codes for each in filled]))
        codes = self.codes[rows]
        found = np.empty((len(queries), 1, len(codes)), np.float32)
        for start in range(0, len(codes), _SHARED_ROWS):
            some = slice(start, start + _SHARED_ROWS)
            products = np.asarray(numkong.dots_packed(np.ascontiguousarray(codes[some]), packed))
            found[:, 0, some] = products.T[: len(queries)]
        return iter(found)

    def scaled(self, products: Floats32, query: QuantisedQuery, rows: slice | Rows) -> Floats32:
        """Scale these products of codes to cosines; the products are overwritten."""
        scales = self.scales[rows]
        for product, step in zip(products, query.steps(len(products)), strict=True):
            product *= scales
            product *= np.float32(step.scale)
        cosines: Floats32 = products[0] if len(products) == 1 else products[0] + products[1]
        return cosines

    def errors(self, query: QuantisedQuery, rows: slice | Rows, *, fine: bool = False) -> Floats32:
        """Return the maximum error of the cosine of each row."""
        slope, offset = query.bound(self.longest, 2 if fine else 1)
        return self.residuals[rows] * np.float32(slope) + np.float32(offset)

    def largest_error(self, query: QuantisedQuery) -> float:
        """Return the largest error of a row."""
        slope, offset = query.bound(self.longest, 1)
        return float(self._largest_residual * np.float32(slope) + np.float32(offset))

    @cached_property
    def largest_scale(self) -> float:
        """The largest scale of a row."""
        return float(self.scales.max(initial=0))

    @cached_property
    def _largest_residual(self) -> float:
        return float(self.residuals.max(initial=0))


class _Step(NamedTuple):
    """Codes of shape (1, dimensions), their scale, and what they leave of a query with its length."""

    codes: NDArray[np.int8]
    scale: float
    rest: Floats
    missing: float


@dataclass(frozen=True, eq=False)
class QuantisedQuery:
    """A query of shape (dimensions,), its length, and its codes."""

    vector: Floats32
    length: float
    first: _Step

    @cached_property
    def second(self) -> _Step:
        """The codes of the rest, which few searches need."""
        return _step(self.first.rest.copy())

    def steps(self, count: int) -> Sequence[_Step]:
        return (self.first,) if count == 1 else (self.first, self.second)

    def codes_of(self, steps: int) -> NDArray[np.int8]:
        """Return the codes of the first steps, shape (steps, dimensions)."""
        return self.first.codes if steps == 1 else np.concatenate([self.first.codes, self.second.codes])

    def bound(self, longest: float, steps: int) -> tuple[float, float]:
        """Return slope and offset: the product with a row is off by at most `slope * residual + offset`.

        `steps` is the number of the query's codes in use, 1 or 2.
        """
        product = len(self.vector) * _UNIT / (1 - len(self.vector) * _UNIT)
        slope = self.length * (1 + product)
        # The first product is rounded as described above; the second one and the sum add less than that
        # again.
        rounding = product * self.length + 8 * _UNIT * (self.length + 2 * self.first.missing)
        missing = self.steps(steps)[-1].missing
        return slope * _UP, (missing + rounding) * longest * _UP + _TINY


def quantise(vectors: Vectors) -> QuantisedVectors:
    """Quantise rows of shape (n, dimensions); they need not have length 1.

    Each row has its own scale. Scales per dimension leave residuals of the same size, and would have to be
    chosen before later rows are known.
    Raises ValueError: not a matrix, too many dimensions, or a number that is not finite or above `LARGEST`.
    """
    given = np.asarray(vectors, np.float32)
    if given.ndim != 2 or not 0 < given.shape[1] <= MOST_DIMENSIONS:
        raise ValueError(f"vectors are rows of 1 to {MOST_DIMENSIONS} numbers, got shape {given.shape}")
    codes = np.empty(given.shape, np.int8)
    scales = np.empty(len(given), np.float32)
    residuals = np.empty(len(given), np.float32)
    longest = 0.0
    for start in range(0, len(given), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        exact = given[rows].astype(np.float64)
        codes[rows], scales[rows], kept = _rounded(exact)
        residuals[rows] = _above(np.linalg.norm(exact - kept, axis=1))
        longest = max(longest, float(_above(np.linalg.norm(kept, axis=1)).max()))
    return QuantisedVectors(codes, scales, residuals, longest)


def _rounded(exact: NDArray[np.float64]) -> tuple[NDArray[np.int8], Floats32, NDArray[np.float64]]:
    """Return codes and scales, and the rows that they represent. Raises ValueError like `quantise`."""
    largest = np.abs(exact).max(axis=1)
    if not np.all(largest <= LARGEST):  # false for NaN too
        raise ValueError(_TOO_LARGE)
    scales = (largest / _LEVELS).astype(np.float32)
    # The scale of a row of zeros is 0, as is one that underflows in float32.
    divisors = np.where(scales > 0, scales, 1).astype(np.float64)[:, np.newaxis]
    codes = np.rint(exact / divisors).clip(-_LEVELS, _LEVELS).astype(np.int8)
    return codes, scales, codes * scales.astype(np.float64)[:, np.newaxis]


def quantise_query(vector: NDArray[np.float32]) -> QuantisedQuery:
    """Quantise a query; it need not have length 1.
    Raises ValueError: see `quantise`.
    """
    vector = np.ascontiguousarray(vector, np.float32)
    exact = vector.astype(np.float64)
    return QuantisedQuery(vector, math.sqrt(exact @ exact) * _UP, _step(exact))


def _step(rest: Floats) -> _Step:
    """Quantise a vector, which is overwritten."""
    # As `_rounded`, with fewer calls; the scale is not rounded below the least normal number.
    largest = float(np.abs(rest).max())
    if not largest <= LARGEST:
        raise ValueError(_TOO_LARGE)
    scale = float(np.float32(largest / _LEVELS))
    scale = scale if scale >= _LEAST_SCALE else 0.0
    rounded = rest / (scale or 1.0)
    codes = np.rint(rounded, out=rounded).astype(np.int8)[np.newaxis]
    rounded *= scale
    rest -= rounded
    return _Step(codes, scale, rest, math.sqrt(rest @ rest) * _UP)


def _above(lengths: NDArray[np.float64]) -> Floats32:
    """Round up to float32: the error of float64 is far less than one part in 10^9."""
    return np.nextafter((lengths * (1 + 1e-9)).astype(np.float32), np.float32(np.inf))


@dataclass(slots=True, eq=False)
class Turn:
    """A search that waits for its turn or has it, and the products that earlier searches made for it.

    `query` is None if it shares no scan.
    """

    turns: Turns
    query: QuantisedQuery | None
    ready: dict[tuple[QuantisedVectors, int], Floats32] = field(default_factory=dict)

    @property
    def ready_rows(self) -> int:
        """Number of rows whose products are ready."""
        return sum(products.shape[1] for products in list(self.ready.values()))

    def products(self, query: QuantisedQuery, vectors: QuantisedVectors, block: slice) -> Floats32:
        """Return the products of this block, and make those of the next searches if this saves time."""
        place = (vectors, block.start)
        ready = self.ready.pop(place, None)
        if ready is not None and ready.shape[1] == block.stop - block.start:
            return ready
        # A search with filters is not delayed by products for the searches behind it.
        sharing = takewhile(lambda each: each.query is not None, self.turns.waiting)
        others = [
            (each, other)
            for each in islice(sharing, SHARED_UP_TO - 1)
            if (other := each.query) and other.vector.shape == query.vector.shape and place not in each.ready
        ]
        if len(others) < SHARED_FROM - 1:
            return vectors.products(query, block)
        own, *rest = vectors.shared_products([query, *(other for _, other in others)], block)
        for (each, _), products in zip(others, rest, strict=True):
            each.ready[place] = products
        return own


@dataclass(slots=True, eq=False)
class Turns:
    """The searches that wait for their turn, in their order of arrival.

    `waiting` is replaced, never changed, because other threads read it.
    """

    waiting: tuple[Turn, ...] = ()


class Scanned(NamedTuple):
    """The filtered rows of a block of a segment, their cosines, and the maximum error of these.

    If many rows pass the filters, `rows` are all rows of the block, and `allowed` is the mask of those that
    pass (None: all).
    """

    segment: int
    rows: slice | Rows
    cosines: Floats32
    error: float
    allowed: Mask | None = None


class Scan:
    """Iterates over all blocks of the segments, each with the rows in its mask (None: all), multiplied.

    Without a query, as in a search by words, the cosines are 0. A small block comes first. The scanner
    thread multiplies from the end. The consuming thread takes finished blocks, and if there are none,
    multiplies from the beginning. The scanner does nothing that needs the interpreter's lock, because then
    one of the two threads would wait.
    """

    def __init__(
        self,
        segments: Sequence[tuple[QuantisedVectors, Mask | None]],
        query: QuantisedQuery | None,
        scanner: Executor | None = None,
        turn: Turn | None = None,
    ) -> None:
        blocks = (
            ScanBlock(number, rows, allowed, segments[number][0], query, turn)
            for number, rows, allowed in _blocks(segments)
        )
        self._first = next(blocks, None)
        self._rest = deque(blocks)
        self._multiplied: deque[ScanBlock] = deque()
        self._ahead: Future[None] | None = None
        rows = sum(map(len, self._rest)) - (0 if turn is None else turn.ready_rows)
        if scanner and query is not None and rows >= BESIDE_ROWS:
            self._ahead = scanner.submit(self._multiply_ahead)

    def __enter__(self) -> Scan:
        return self

    def __exit__(self, *_: object) -> None:
        self._rest.clear()
        if self._ahead is not None:
            self._ahead.cancel()

    def __iter__(self) -> Iterator[ScanBlock]:
        if self._first is not None:
            self._first.multiply()
            yield self._first
        while True:
            if self._multiplied:
                block = self._multiplied.popleft()
            else:
                try:
                    block = self._rest.popleft()
                except IndexError:
                    break
                block.multiply()
            yield block
        if self._ahead is not None and not self._ahead.cancel():
            self._ahead.result()
            yield from self._multiplied

    def _multiply_ahead(self) -> None:
        while True:
            try:
                block = self._rest.pop()
            except IndexError:
                return
            block.multiply()
            self._multiplied.append(block)


def _blocks(
    segments: Sequence[tuple[QuantisedVectors, Mask | None]],
) -> Iterator[tuple[int, slice | Rows, Mask | None]]:
    size = min(FIRST_BLOCK_ROWS, BLOCK_ROWS)
    # A segment of about the size of the first block is that block.
    is_first = [size <= 4 * len(vectors) <= 6 * size for vectors, _ in segments]
    for number in sorted(range(len(segments)), key=lambda number: not is_first[number]):
        vectors, allowed = segments[number]
        count, start, largest, few = len(vectors), 0, BLOCK_ROWS, None
        if allowed is not None and np.count_nonzero(allowed) * COPY_COST < count:
            few, allowed = np.flatnonzero(allowed), None
            count, largest = len(few), BLOCK_ROWS // COPY_COST
        while start < count:
            # A small rest takes nearly as long as a block, so it belongs to the block before it.
            end = start + size if start + 1.5 * size < count else count
            some = slice(start, end)
            yield number, some if few is None else few[some], None if allowed is None else allowed[some]
            start, size = end, largest


@dataclass(slots=True, eq=False)
class ScanBlock:
    """Rows of a segment that are compared with a query in one step."""

    segment: int
    rows: slice | Rows
    allowed: Mask | None
    vectors: QuantisedVectors
    query: QuantisedQuery | None
    turn: Turn | None
    _products: Floats32 | None = None

    def __len__(self) -> int:
        return self.rows.stop - self.rows.start if isinstance(self.rows, slice) else len(self.rows)

    def multiply(self) -> None:
        """Multiply the codes, on either thread."""
        if self.query is None:
            return
        if self.turn is None or not isinstance(self.rows, slice):
            self._products = self.vectors.products(self.query, self.rows)
        else:
            self._products = self.turn.products(self.query, self.vectors, self.rows)

    @property
    def error(self) -> float:
        """The maximum error of the cosines."""
        return 0.0 if self.query is None else self.vectors.largest_error(self.query)

    def reaching(self, cosine: float) -> tuple[Rows, Floats32]:
        """Return the places of the filtered rows with at least this cosine, above 0, and their cosines."""
        assert self.query is not None, "without a query there are no cosines"
        assert self._products is not None, "the block was multiplied"
        # Few rows are scaled: those that could reach it with the largest scale.
        scale = self.vectors.largest_scale * self.query.first.scale
        near = self._products[0] >= min(cosine / (scale or _LEAST_SCALE) / _UP, LARGEST**2)
        if self.allowed is not None:
            near &= self.allowed
        places = near.nonzero()[0]
        cosines = self.cosines_at(places)
        reached = cosines >= cosine
        return places[reached], cosines[reached]

    def cosines_at(self, places: Rows) -> Floats32:
        """Return the cosines of the rows at these places."""
        assert self.query is not None, "without a query there are no cosines"
        assert self._products is not None, "the block was multiplied"
        rows = places + self.rows.start if isinstance(self.rows, slice) else self.rows[places]
        return self.vectors.scaled(self._products[:, places], self.query, rows)

    def scanned(self) -> Scanned:
        """Return all rows with their cosines; called once."""
        if self.query is None or self._products is None:
            return Scanned(self.segment, self.rows, np.zeros(len(self), np.float32), 0.0, self.allowed)
        cosines = self.vectors.scaled(self._products, self.query, self.rows)
        return Scanned(self.segment, self.rows, cosines, self.error, self.allowed)
