"""Quantised vectors: their bound holds, and a file is whole or refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kb_engine.index.files.layout import HEADER_BYTES, FileDamaged
from kb_engine.index.files.originals import open_originals, write_originals
from kb_engine.index.files.vectors import (
    LARGEST,
    QuantisedVectors,
    open_vectors,
    quantise,
    quantise_query,
    write_vectors,
)
from kb_engine.index.port import Vectors

NUMBERS = st.one_of(
    st.sampled_from([0.0, 1.0, -1.0, LARGEST, -LARGEST, 1e-38, -1e-45, 2.0**-126]),
    st.floats(-1, 1, width=32),
    st.floats(-LARGEST, LARGEST, width=32),
)
MATRICES = hnp.arrays(np.float32, st.tuples(st.integers(2, 12), st.integers(1, 70)), elements=NUMBERS)
EVERY = slice(None)


def unit(rows: int, dimensions: int = 384, seed: int = 0) -> Vectors:
    found = np.random.default_rng(seed).normal(size=(rows, dimensions)).astype(np.float32)
    return np.asarray(found / np.linalg.norm(found, axis=1, keepdims=True), np.float32)


def assert_within_bound(query: Vectors, vectors: Vectors, quantised: QuantisedVectors) -> None:
    """Both the product in float32, which searches rank by, and the true one."""
    prepared = quantise_query(query)
    for fine in (False, True):
        found, errors = quantised.cosines(prepared, EVERY, fine=fine)
        for product in (prepared.exact(vectors), vectors.astype(np.float64) @ query.astype(np.float64)):
            assert np.all(np.abs(product.astype(np.float64) - found) <= errors.astype(np.float64))


@given(MATRICES)
def test_no_product_is_further_off_than_its_bound(matrix: Vectors) -> None:
    assert_within_bound(matrix[0], matrix[1:], quantise(matrix[1:]))


@pytest.mark.parametrize("dimensions", [1, 3, 64, 384, 1_000])
def test_the_bound_holds_where_all_that_is_left_out_points_one_way(dimensions: int) -> None:
    """The query is what the codes leave out of a row: Cauchy and Schwarz leave no room."""
    vectors = unit(20, dimensions)
    quantised = quantise(vectors)
    lost = vectors - quantised.codes * quantised.scales[:, np.newaxis]
    for row in lost:
        assert_within_bound(np.asarray(row, np.float32), vectors, quantised)


def test_the_bound_of_unit_vectors_is_small() -> None:
    quantised, query = quantise(unit(1_000)), quantise_query(unit(1, seed=1)[0])
    _, errors = quantised.cosines(query, EVERY)
    _, finer = quantised.cosines(query, EVERY, fine=True)
    assert errors.max() < 0.025
    assert finer.max() < 0.6 * errors.max()


def test_some_rows_get_what_they_get_among_all() -> None:
    quantised, query = quantise(unit(5_000, 16)), quantise_query(unit(1, 16, seed=1)[0])
    found, errors = quantised.cosines(query, EVERY)
    for rows in (np.array([4_999, 7, 7]), np.array([3]), np.array([], np.intp)):
        some, their_errors = quantised.cosines(query, rows)
        assert np.array_equal(some, found[rows])
        assert np.array_equal(their_errors, errors[rows])


@pytest.mark.parametrize(
    "vectors",
    [[[0.0, np.nan]], [[np.inf, 0.0]], [[2 * LARGEST]], [0.5, 0.5], [[]]],
    ids=["nan", "infinite", "too large", "no matrix", "no dimensions"],
)
def test_what_has_no_bound_is_refused(vectors: object) -> None:
    with pytest.raises(ValueError, match="vector"):
        quantise(np.array(vectors, np.float32))


@pytest.mark.parametrize("dimensions", [1, 3, 384])
@pytest.mark.parametrize("sizes", [(), (0,), (1,), (5, 0, 3_000)])
def test_a_file_holds_the_rows_of_its_parts(tmp_path: Path, sizes: tuple[int, ...], dimensions: int) -> None:
    parts = [unit(size, dimensions, seed) for seed, size in enumerate(sizes)]
    write_vectors(tmp_path / "codes", dimensions, map(quantise, parts))
    write_originals(tmp_path / "floats", dimensions, parts)
    vectors = np.concatenate([np.empty((0, dimensions), np.float32), *parts])
    opened, expected = open_vectors(tmp_path / "codes"), quantise(vectors)
    assert np.array_equal(opened.codes, expected.codes)
    assert np.array_equal(opened.scales, expected.scales)
    assert np.array_equal(opened.residuals, expected.residuals)
    assert opened.longest == expected.longest
    every = np.arange(len(vectors))[::-1]
    assert np.array_equal(open_originals(tmp_path / "floats").rows(every), vectors[::-1])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["codes", "floats"]


def test_a_file_is_made_of_rows_of_others(tmp_path: Path) -> None:
    """As when removed rows are left out: nothing is quantised again."""
    vectors, kept = unit(100, 8), np.array([1, 5, 99])
    write_vectors(tmp_path / "old", 8, [quantise(vectors)])
    write_vectors(tmp_path / "new", 8, [open_vectors(tmp_path / "old").part(kept)])
    assert_within_bound(unit(1, 8, seed=1)[0], vectors[kept], open_vectors(tmp_path / "new"))
    assert np.array_equal(open_vectors(tmp_path / "new").codes, quantise(vectors[kept]).codes)


def test_a_file_that_is_replaced_stays_readable(tmp_path: Path) -> None:
    path, vectors = tmp_path / "codes", unit(10, 8)
    write_vectors(path, 8, [quantise(vectors)])
    opened = open_vectors(path)
    write_vectors(path, 8, [])
    assert np.array_equal(opened.codes, quantise(vectors).codes)
    assert len(open_vectors(path)) == 0


def test_a_failed_write_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "codes"
    write_vectors(path, 8, [quantise(unit(10, 8))])
    with pytest.raises(ValueError, match="of 9 numbers in a file of 8"):
        write_vectors(path, 8, [quantise(unit(3, 8)), quantise(unit(3, 9))])
    with pytest.raises(ValueError, match="8 dimensions"):
        write_originals(path, 8, [unit(3, 9)])
    assert len(open_vectors(path)) == 10
    assert [each.name for each in tmp_path.iterdir()] == ["codes"]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: data[:-1], "where 10 rows of 8 take"),
        (lambda data: data + b"\0", "where 10 rows of 8 take"),
        (lambda data: data[: HEADER_BYTES - 1], "no header"),
        (lambda data: b"", "no header"),
        (lambda data: bytes(HEADER_BYTES) + data[HEADER_BYTES:], "begins with"),
        (lambda data: data[:12] + b"\x09" + data[13:], "digest"),
    ],
    ids=["torn", "too long", "torn header", "empty", "zeros", "changed header"],
)
def test_a_damaged_file_is_refused(tmp_path: Path, damage: object, reason: str) -> None:
    assert callable(damage)
    path = tmp_path / "codes"
    write_vectors(path, 8, [quantise(unit(10, 8))])
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(FileDamaged, match=f"codes: .*{reason}"):
        open_vectors(path)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    write_originals(tmp_path / "floats", 8, [unit(10, 8)])
    with pytest.raises(FileDamaged, match="not b'kb-codes'"):
        open_vectors(tmp_path / "floats")
