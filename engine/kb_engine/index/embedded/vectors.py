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
lock.
"""

from __future__ import annotations

from dataclasses import dataclass

import apsw
import numkong
import numpy as np
from numpy.typing import NDArray

from kb_contracts.api.errors import EngineError
from kb_engine.index.port import Ids, Vectors

Rows = NDArray[np.intp]
Floats32 = NDArray[np.float32]

MOST_DIMENSIONS = 65_536
"""Of more the product of two rows of codes need not fit int32."""
LARGEST = 1e9
"""Of a component; the squares of larger ones would leave float32."""
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

    def cosines(
        self, query: QuantisedQuery, rows: slice | Rows, *, fine: bool = False
    ) -> tuple[Floats32, Floats32]:
        """For each of the rows the product with the query, and by how much it may be off.

        Where rows are few they are copied out, the others are not read.
        """
        codes = np.ascontiguousarray(self.codes[rows])
        steps = 2 if fine else 1
        found = np.empty((steps, len(codes)), np.float32)
        if len(codes):
            numkong.cdist(query.codes[:steps], codes, "dot", out=found)
        found *= np.outer(query.scales[:steps], self.scales[rows])
        cosines = found.sum(axis=0) if fine else found[0]
        slope, offset = query.bound(self.longest, steps)
        errors = self.residuals[rows] * np.float32(slope)
        errors += np.float32(offset)
        return cosines, errors


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
        largest = np.abs(exact).max(axis=1)
        if not np.all(largest <= LARGEST):  # neither is NaN
            raise ValueError(f"a vector holds a number that is not finite or above {LARGEST:g}")
        scales[rows] = largest / _LEVELS
        # A scale of 0 is that of a row of zeros, or of one that is lost in what float32 can hold.
        divisors = np.where(scales[rows] > 0, scales[rows], 1).astype(np.float64)[:, np.newaxis]
        codes[rows] = np.rint(exact / divisors).clip(-_LEVELS, _LEVELS)
        kept = codes[rows] * scales[rows].astype(np.float64)[:, np.newaxis]
        residuals[rows] = _above(np.linalg.norm(exact - kept, axis=1))
        longest = max(longest, float(_above(np.linalg.norm(kept, axis=1)).max()))
    return QuantisedVectors(codes, scales, residuals, longest)


def quantise_query(vector: NDArray[np.float32]) -> QuantisedQuery:
    """The query as codes; it need not have length 1.

    Raises:
        ValueError: as `quantise`.
    """
    vector = np.ascontiguousarray(vector, np.float32)
    rest = vector[np.newaxis].astype(np.float64)
    lengths = [_above(np.linalg.norm(rest, axis=1))]
    steps = []
    for _ in range(2):
        step = quantise(rest.astype(np.float32))
        rest = rest - step.codes * step.scales.astype(np.float64)
        steps.append(step)
        lengths.append(_above(np.linalg.norm(rest, axis=1)))
    length, *missing = (float(each[0]) for each in lengths)
    return QuantisedQuery(
        vector,
        np.concatenate([step.codes for step in steps]),
        np.concatenate([step.scales for step in steps]),
        length,
        (missing[0], missing[1]),
    )


def _above(lengths: NDArray[np.float64]) -> Floats32:
    """In float32, not below the true ones: float64 is off by far less than one part in 10^9."""
    return np.nextafter((lengths * (1 + 1e-9)).astype(np.float32), np.float32(np.inf))


def originals(db: apsw.Connection, chunk_ids: Ids) -> Vectors:
    """The vectors of these chunks, whose ids ascend, as the base holds them.

    Raises:
        EngineError: `internal` where one is damaged.
    """
    raw: bytes = db.execute(_ORIGINALS, (apsw.carray(chunk_ids),)).get or b""
    found = np.frombuffer(raw[: len(raw) // 4 * 4], "<f4")
    if not len(found) or len(found) % len(chunk_ids):
        raise EngineError("internal", "A vector of the base is damaged. Restore the base from a copy.")
    return found.reshape(len(chunk_ids), -1)
