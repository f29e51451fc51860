"""Sums over the rows of each class are exact but for one rounding error at the end, whatever the rows and classes."""

import math

import numpy as np
import pytest

from peerbayes.data.infer import Scratch
from peerbayes.estimators.classifiers import LDA, MixedNB
from peerbayes.model.families.gaussian import triangle
from peerbayes.model.passes import split_moments, split_products, split_sums
from peerbayes.model.sources import Block


def block_of(values, clip):
    columns = values.shape[1]
    return Block(
        values, np.zeros((len(values), 0), np.int32), np.full(columns, 0.25), np.full(columns, 0.7), clip
    )


def exact_sums(numbers, labels, classes):
    """Σ of numbers [b, K] over the rows of each class, rounded once: [C, K]."""
    return np.array([[math.fsum(column) for column in numbers[labels == c].T] for c in range(classes)])


CASES = [
    (1, 1, 1, 5.0),
    (2, 3, 2, 5.0),
    (64, 4, 30, 5.0),
    (1000, 5, 3, 5.0),
    (1024, 2, 7, np.inf),
    (700, 3, 400, 1e100),
]


def drawn(rows, columns, classes):
    rng = np.random.default_rng(rows)
    values = rng.standard_t(2.0, size=(rows, columns)) * np.logspace(-3, 2, columns)
    return values, rng.integers(0, classes, rows).astype(np.int32)


@pytest.mark.parametrize(("rows", "columns", "classes", "clip"), CASES)
@pytest.mark.parametrize("order", ["C", "F"])
def test_moments_are_rounded_once(rows, columns, classes, clip, order):
    values, labels = drawn(rows, columns, classes)
    block = block_of(np.asarray(values, order=order), clip)
    z = block.standard().T
    features = np.concatenate([np.ones((rows, 1)), z, z * z], axis=1)
    upper, lower = split_moments(block, labels, classes, Scratch())
    assert np.array_equal(upper + lower, exact_sums(features, labels, classes))
    of_class = np.equal.outer(np.arange(classes), labels).astype(float)
    by_products = split_sums(np.ascontiguousarray(features.T), of_class)
    assert np.array_equal(upper + lower, by_products[0] + by_products[1])


@pytest.mark.parametrize(("rows", "columns", "classes", "clip"), CASES)
@pytest.mark.parametrize("weighted", [False, True])
def test_products_are_rounded_almost_once(rows, columns, classes, clip, weighted):
    values, labels = drawn(rows, columns, classes)
    block = block_of(values, clip)
    z = np.concatenate([np.ones((rows, 1)), block.standard().T], axis=1).astype(np.longdouble)
    first, second, _ = triangle(1 + columns)
    weights = np.random.default_rng(0).random(rows) if weighted else None
    products = z[:, first] * z[:, second] * (1.0 if weights is None else weights[:, None])
    upper, lower = split_products(block, labels, weights, classes, Scratch())
    for c in range(classes):
        expected = products[labels == c].sum(axis=0)
        scale = np.abs(products[labels == c]).sum(axis=0)
        assert (np.abs(upper[c] + lower[c] - expected) <= 3e-16 * scale).all()


@pytest.mark.parametrize("estimator", [MixedNB, LDA])
def test_what_was_summed_before_in_the_same_memory_does_not_count(estimator):
    """Blocks of several sizes reuse one memory: the sums of two tables are those of the whole."""
    values, labels = drawn(2500, 4, 3)
    whole = estimator(clip=None).fit(values, labels).statistics_
    schema = whole.schema
    parts = [
        estimator(schema=schema, clip=None).fit(values[rows], labels[rows]).statistics_
        for rows in (slice(0, 1100), slice(1100, None))
    ]
    np.testing.assert_allclose((parts[0] + parts[1]).values, whole.values, rtol=1e-14, atol=1e-12)
