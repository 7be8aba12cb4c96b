"""Vectors as int8 codes, their cosines with a query, and how far these may be off.

A row `x` is kept as `x' = scale * codes`, codes from -127 to 127, with the length of what that leaves out,
`residual >= |x - x'|`. A query `q` becomes `q' = scale * codes` in the same way, with `missing >= |q - q'|`.
The product of the codes is exact in int32, and by Cauchy and Schwarz

    |q·x - q'·x'|  =  |q·(x - x') + (q - q')·x'|  <=  |q| * residual + missing * longest

where `longest >= |x'|` for all rows. Two roundings come on top, with u = 2^-24 and d dimensions. The float32
product of `q` and `x`, which the bound is about, is off by `d*u / (1 - d*u) * |q| |x|` at most, in whatever
order it is summed. The approximation, the product of the codes times both scales, is rounded three times,
hence off by `4u * |q'| |x'|` at most. What underflows is less than `_TINY`. The bound holds for every query
and every row, of whatever length and however distributed; for rows of length 1 and 384 dimensions it is
about 0.015, some 30 times the usual error.

Half of that is what the codes of the query leave out. They are quantised in turn, and for rows that are
looked at again (`fine`) both products are added: at twice the cost the bound is half as large.

A scale for each row, not for each dimension: see `quantise`. The codes are scanned by NumKong, with the
instructions that the processor has, at the speed of the memory, on one thread, without the interpreter's
lock. Of a large index that is done ahead on another thread, block by block (`Scan`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import NamedTuple

import apsw
import numkong
import numpy as np
from numpy.typing import NDArray

from kb_engine.index.port import Ids, Vectors

Rows = NDArray[np.intp]
Floats32 = NDArray[np.float32]
Mask = NDArray[np.bool_]

MOST_DIMENSIONS = 65_536
"""Of more the product of two rows of codes need not fit int32."""
LARGEST = 1e9
"""Of a component; the squares of larger ones would leave float32."""
BLOCK_ROWS = 32_768
"""So many rows are looked at together; their cosines fit the processor's cache."""
FIRST_BLOCK_ROWS = 2_048
"""Of the first block, of which all rows must be compared with one another."""
BESIDE_ROWS = 16_384
"""Of an index from which on a search is worth two threads: less takes no longer than to call another one."""
GATHER_BELOW = 0.5
"""Share of a block's rows under which copying them out beats a pass over the block."""
_ORIGINALS = (  # one value rather than rows, each of which would take the interpreter's lock
    "SELECT CAST(group_concat(vector, '' ORDER BY chunk_id) AS BLOB) FROM vectors "
    "WHERE chunk_id IN (SELECT value FROM carray(?))"
)
_ROWS_AT_ONCE = 2_048
_LEVELS = 127
_UNIT = 2.0**-24
_TINY = 2.0**-118
_UP = 1 + 2.0**-20
"""More than the roundings of the bound itself."""


@dataclass(frozen=True, slots=True, eq=False)
class QuantisedVectors:
    """Rows of codes, in memory or mapped from a file; they never change.

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
        """How many numbers a row has."""
        return int(self.codes.shape[1])

    def cosines(self, query: QuantisedQuery, rows: slice | Rows, *, fine: bool = False) -> Floats32:
        """For each of the rows about the product with the query: off by no more than its `errors`.

        Where rows are few they are copied out, the others are not read.
        """
        return self.scaled(self.products(query, rows, steps=2 if fine else 1), query, rows)

    def products(self, query: QuantisedQuery, rows: slice | Rows, *, steps: int = 1) -> Floats32:
        """The products of the codes of these rows with the first `steps` of the query; shape (steps, n)."""
        codes = np.ascontiguousarray(self.codes[rows])
        found = np.empty((steps, len(codes)), np.float32)
        if len(codes):
            numkong.cdist(query.codes[:steps], codes, "dot", out=found)
        return found

    def scaled(self, products: Floats32, query: QuantisedQuery, rows: slice | Rows) -> Floats32:
        """The cosines that these products of the rows stand for; the products are used up."""
        scales = self.scales[rows]
        for step, scale in zip(products, query.scales, strict=False):
            step *= scales
            step *= scale
        cosines: Floats32 = products[0] if len(products) == 1 else products[0] + products[1]
        return cosines

    def errors(self, query: QuantisedQuery, rows: slice | Rows, *, fine: bool = False) -> Floats32:
        """By how much the cosine of each row may be off."""
        slope, offset = query.bound(self.longest, 2 if fine else 1)
        return self.residuals[rows] * np.float32(slope) + np.float32(offset)

    def largest_error(self, query: QuantisedQuery, rows: slice) -> float:
        """The largest of their errors."""
        largest = rows.start + int(self.residuals[rows].argmax())
        return float(self.errors(query, slice(largest, largest + 1))[0])


@dataclass(frozen=True, slots=True, eq=False)
class QuantisedQuery:
    """A query, shape (dimensions,); as codes, and what these leave out as codes, shape (2, dimensions).

    `missing`: the length of what the first codes leave out, and of what both do.
    """

    vector: Floats32
    codes: NDArray[np.int8]
    scales: Floats32
    length: float
    missing: tuple[float, float]

    def bound(self, longest: float, steps: int) -> tuple[float, float]:
        """Slope and offset: the product with a row is off by `slope * residual + offset` at most.

        `steps`: whether the first codes are multiplied with the row's, or both.
        """
        product = len(self.vector) * _UNIT / (1 - len(self.vector) * _UNIT)
        slope = self.length * (1 + product)
        # The first product is rounded as said above; the second, and the sum, take less than this again.
        rounding = product * self.length + 8 * _UNIT * (self.length + 2 * self.missing[0])
        return slope * _UP, (self.missing[steps - 1] + rounding) * longest * _UP + _TINY

    def exact(self, vectors: Vectors) -> Floats32:
        """The float32 product with each of these rows; its last bits do not depend on how many there are."""
        return np.asarray(np.vecdot(vectors, self.vector), np.float32)


def quantise(vectors: Vectors) -> QuantisedVectors:
    """The rows as codes. Shape (n, dimensions); they need not have length 1.

    Each row has its own scale. Scales by dimension leave residuals of the same size, and would have to be
    chosen before the rows are known that come later.

    Raises:
        ValueError: not a matrix, too many dimensions, or a number that is not finite or above `LARGEST`.
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
    """Codes and scales of rows, and what these amount to. Raises ValueError: as `quantise`."""
    largest = np.abs(exact).max(axis=1)
    if not np.all(largest <= LARGEST):  # neither is NaN
        raise ValueError(f"a vector holds a number that is not finite or above {LARGEST:g}")
    scales = (largest / _LEVELS).astype(np.float32)
    # A scale of 0 is that of a row of zeros, or of one that is lost in what float32 can hold.
    divisors = np.where(scales > 0, scales, 1).astype(np.float64)[:, np.newaxis]
    codes = np.rint(exact / divisors).clip(-_LEVELS, _LEVELS).astype(np.int8)
    return codes, scales, codes * scales.astype(np.float64)[:, np.newaxis]


def quantise_query(vector: NDArray[np.float32]) -> QuantisedQuery:
    """The query as codes; it need not have length 1.

    Raises:
        ValueError: as `quantise`.
    """
    vector = np.ascontiguousarray(vector, np.float32)
    rest = vector[np.newaxis].astype(np.float64)
    rests, steps = [rest], []
    for _ in range(2):
        codes, scales, kept = _rounded(rest)
        rest = rest - kept
        rests.append(rest)
        steps.append((codes, scales))
    length, *missing = _above(np.linalg.norm(np.concatenate(rests), axis=1)).tolist()
    return QuantisedQuery(
        vector,
        np.concatenate([codes for codes, _ in steps]),
        np.concatenate([scales for _, scales in steps]),
        length,
        (missing[0], missing[1]),
    )


def _above(lengths: NDArray[np.float64]) -> Floats32:
    """In float32, not below the true ones: float64 is off by far less than one part in 10^9."""
    return np.nextafter((lengths * (1 + 1e-9)).astype(np.float32), np.float32(np.inf))


class Scanned(NamedTuple):
    """A block of a segment's rows: those that may answer, their cosines, and what these are off at most."""

    segment: int
    block: slice
    rows: Rows
    cosines: Floats32
    error: float


class Scan:
    """All blocks of the rows of segments, for each the rows that may answer (None: all), with their cosines.

    Without a query, as for a search by words, the cosines are 0. The smallest block is the first. The scanner
    multiplies from the end on. The thread that needs the blocks takes what is multiplied, and where nothing
    is, multiplies from the beginning on. The scanner does nothing else, for which it would need the
    interpreter: whenever it does, one of the two threads waits.
    """

    def __init__(
        self,
        segments: Sequence[tuple[QuantisedVectors, Mask | None]],
        query: QuantisedQuery | None,
        scanner: Executor | None = None,
    ) -> None:
        blocks = (_Block(number, block, *segments[number], query) for number, block in _blocks(segments))
        self._rest = deque(blocks)
        self._multiplied: deque[_Block] = deque()
        self._ahead: Future[None] | None = None
        if scanner and query is not None and sum(len(vectors) for vectors, _ in segments) >= BESIDE_ROWS:
            self._ahead = scanner.submit(self._multiply_ahead)

    def __enter__(self) -> Scan:
        return self

    def __exit__(self, *_: object) -> None:
        self._rest.clear()
        if self._ahead is not None:
            self._ahead.cancel()

    def __iter__(self) -> Iterator[Scanned]:
        while True:
            if self._multiplied:
                block = self._multiplied.popleft()
            else:
                try:
                    block = self._rest.popleft()
                except IndexError:
                    break
                block.multiply()
            yield block.scanned()
        if self._ahead is not None and not self._ahead.cancel():
            self._ahead.result()
            for block in self._multiplied:
                yield block.scanned()

    def _multiply_ahead(self) -> None:
        while True:
            try:
                block = self._rest.pop()
            except IndexError:
                return
            block.multiply()
            self._multiplied.append(block)


def _blocks(segments: Sequence[tuple[QuantisedVectors, Mask | None]]) -> Iterator[tuple[int, slice]]:
    size = min(FIRST_BLOCK_ROWS, BLOCK_ROWS)
    for number, (vectors, _) in enumerate(segments):
        start = 0
        while start < len(vectors):
            yield number, slice(start, min(start + size, len(vectors)))
            start, size = start + size, min(4 * size, BLOCK_ROWS)


@dataclass(slots=True, eq=False)
class _Block:
    """Rows of a segment that are compared with a query in one go."""

    segment: int
    block: slice
    vectors: QuantisedVectors
    allowed: Mask | None
    query: QuantisedQuery | None
    _rows: Rows | None = None
    _products: Floats32 | None = None

    def multiply(self) -> None:
        """Multiply the codes, on whichever thread."""
        if self.query is None:
            return
        places: slice | Rows = self.block
        if self.allowed is not None:
            self._rows = self._allowed(self.allowed)
            if len(self._rows) < (self.block.stop - self.block.start) * GATHER_BELOW:
                places = self._rows
        self._products = self.vectors.products(self.query, places)

    def scanned(self) -> Scanned:
        """What came of it."""
        rows, block = self._rows, self.block
        if rows is None:
            rows = np.arange(block.start, block.stop) if self.allowed is None else self._allowed(self.allowed)
        if self.query is None or self._products is None:
            return Scanned(self.segment, block, rows, np.zeros(len(rows), np.float32), 0.0)
        products = self._products
        if products.shape[1] > len(rows):
            products = products[:, rows - block.start]
        cosines = self.vectors.scaled(
            products, self.query, block if len(rows) == block.stop - block.start else rows
        )
        return Scanned(self.segment, block, rows, cosines, self.vectors.largest_error(self.query, block))

    def _allowed(self, allowed: Mask) -> Rows:
        rows: Rows = np.flatnonzero(allowed[self.block]) + self.block.start
        return rows


class VectorsLost(Exception):
    """Chunks have no vector, or a damaged one: `lost` finds them."""


def originals(db: apsw.Connection, dimensions: int, chunk_ids: Ids) -> Vectors:
    """The vectors of these chunks, whose ids ascend, as the base holds them.

    Raises:
        VectorsLost: one is missing or damaged.
    """
    raw: bytes = db.execute(_ORIGINALS, (apsw.carray(chunk_ids),)).get or b""
    if len(raw) != 4 * dimensions * len(chunk_ids):
        raise VectorsLost
    return np.frombuffer(raw, "<f4").reshape(len(chunk_ids), dimensions)


def lost(db: apsw.Connection, dimensions: int) -> list[int]:
    """The chunks of the base that have no vector, or one of another length. It reads all of them."""
    sql = (
        "SELECT c.id FROM chunks c LEFT JOIN vectors v ON v.chunk_id = c.id "
        "WHERE v.chunk_id IS NULL OR length(v.vector) <> ?"
    )
    return [chunk_id for (chunk_id,) in db.execute(sql, (4 * dimensions,))]
