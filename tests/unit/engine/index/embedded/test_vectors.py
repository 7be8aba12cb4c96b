"""Quantised vectors: the bound of their error holds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kb_engine.index.embedded.vectors import LARGEST, QuantisedVectors, quantise, quantise_query
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
    """Check both the float32 product, which searches rank by, and the float64 one."""
    prepared = quantise_query(query)
    for fine in (False, True):
        found = quantised.cosines(prepared, EVERY, fine=fine)
        errors = quantised.errors(prepared, EVERY, fine=fine)
        exact = vectors.astype(np.float64) @ query.astype(np.float64)
        for product in (np.vecdot(vectors, prepared.vector), exact):
            assert np.all(np.abs(product.astype(np.float64) - found) <= errors.astype(np.float64))


@given(MATRICES)
def test_no_product_is_further_off_than_its_bound(matrix: Vectors) -> None:
    assert_within_bound(matrix[0], matrix[1:], quantise(matrix[1:]))


@pytest.mark.parametrize("dimensions", [1, 3, 64, 384, 1_000])
def test_the_bound_holds_where_all_that_is_left_out_points_one_way(dimensions: int) -> None:
    """The query is the quantisation error of a row, where the Cauchy-Schwarz inequality is tight."""
    vectors = unit(20, dimensions)
    quantised = quantise(vectors)
    lost = vectors - quantised.codes * quantised.scales[:, np.newaxis]
    for row in lost:
        assert_within_bound(np.asarray(row, np.float32), vectors, quantised)


def test_the_bound_of_unit_vectors_is_small() -> None:
    quantised, query = quantise(unit(1_000)), quantise_query(unit(1, seed=1)[0])
    errors = quantised.errors(query, EVERY)
    finer = quantised.errors(query, EVERY, fine=True)
    assert errors.max() < 0.025
    assert finer.max() < 0.6 * errors.max()


def test_cosines_of_selected_rows_equal_those_of_all_rows() -> None:
    quantised, query = quantise(unit(5_000, 16)), quantise_query(unit(1, 16, seed=1)[0])
    found, errors = quantised.cosines(query, EVERY), quantised.errors(query, EVERY)
    for rows in (np.array([4_999, 7, 7]), np.array([3]), np.array([], np.intp)):
        assert np.array_equal(quantised.cosines(query, rows), found[rows])
        assert np.array_equal(quantised.errors(query, rows), errors[rows])
    assert quantised.largest_error(query) == errors.max()


@pytest.mark.parametrize(
    "vectors",
    [[[0.0, np.nan]], [[np.inf, 0.0]], [[2 * LARGEST]], [0.5, 0.5], [[]]],
    ids=["nan", "infinite", "too large", "no matrix", "no dimensions"],
)
def test_vectors_that_are_not_finite_are_refused(vectors: object) -> None:
    with pytest.raises(ValueError, match="vector"):
        quantise(np.array(vectors, np.float32))
