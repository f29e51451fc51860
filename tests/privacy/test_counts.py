"""The release of numbers of rows, of classes and of missing values: what one row moves, and the noise that hides it."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerbayes.privacy.counts import RowCounts
from peerbayes.privacy.units import ONE


@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(0, 30),
    classes=st.integers(2, 5),
    columns=st.integers(0, 6),
)
def test_a_row_moves_the_counts_by_no_more_than_the_noise_allows_for(seed, rows, classes, columns):
    rng, cost = np.random.default_rng(seed), 0.01
    labels, missing = rng.integers(0, classes, rows + 1), rng.random((rows + 1, columns)) < 0.5
    missing[-1] |= seed % 2 == 0  # the most that a row can do: it misses everything
    counts = RowCounts(classes, columns, cost)
    moved = counts.counts(labels, missing) - counts.counts(labels[:-1], missing[:-1])
    assert np.linalg.norm(moved.astype(np.float64)) / counts.sigma <= math.sqrt(cost)


def test_the_noise_is_no_larger_than_it_must_be():
    counts = RowCounts(3, 7, 0.04)
    assert counts.deviation == pytest.approx(math.sqrt(2 + 7) / math.sqrt(0.04), rel=1e-6)
    assert counts.sigma / ONE == counts.deviation


def test_a_release_is_the_counts_and_noise_of_that_size(rng):
    counts = RowCounts(2, 3, 0.25)
    labels, missing = rng.integers(0, 2, 50), rng.random((50, 3)) < 0.2
    exact = counts.counts(labels, missing) / ONE
    assert exact.tolist() == [50, *np.bincount(labels), *missing.sum(axis=0)]
    released = np.stack([counts.release(labels, missing, rng.bytes) for _ in range(400)]) / ONE
    assert (released - exact).std() == pytest.approx(counts.deviation, rel=0.1)
    assert abs((released - exact).mean()) < 5 * counts.deviation / math.sqrt(released.size)
