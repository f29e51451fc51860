"""Evaluation: how the errors of many models on the same rows are counted."""

import itertools

import numpy as np
import pytest

from peerbayes.learning import metrics
from peerbayes.model.families import NaiveBayes, Rows


def counted_by_hand(sample, weights):
    """Errors and soft errors of each model from all logits [N, m, C]; `argmax` takes the first of equal ones."""
    logits = np.einsum("mk,nck->nmc", sample.family.features(sample.rows), weights)
    rows = np.arange(sample.labels.size)
    likely = np.exp(logits - logits.max(axis=-1, keepdims=True))
    likely /= likely.sum(axis=-1, keepdims=True)
    wrong = logits.argmax(axis=-1) != sample.labels
    return wrong.mean(axis=1), 1.0 - likely[:, rows, sample.labels].mean(axis=1)


WAYS = {"arrays": (1 << 62, 1 << 62), "apart": (1 << 62, 1), "kernel": (0, 1 << 62)}
"""Logits above which the kernel counts, and models times rows of a class from which classes are counted apart."""


def take(way, monkeypatch):
    """Let errors be counted in one of these ways."""
    logits, apart = WAYS[way]
    monkeypatch.setattr(metrics, "KERNEL_LOGITS", logits)
    monkeypatch.setattr(metrics, "KERNEL_CLASSES", 0)
    monkeypatch.setattr(metrics, "CLASS_BY_CLASS", apart)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("classes", [1, 2, 5])
@pytest.mark.parametrize("marked", [False, True], ids=["complete", "marked"])
def test_errors_are_counted_as_by_hand(way, classes, marked, monkeypatch):
    """However few logits are held at a time, with values missing, and with classes that no row has."""
    rng = np.random.default_rng(classes)
    family = NaiveBayes(continuous=3, cardinalities=(4,), missing=marked)
    values = rng.normal(size=(301, 3))
    values[rng.random(values.shape) < 0.2 * marked] = np.nan
    rows = Rows(values, rng.integers(0, 4, (301, 1)))
    sample = metrics.Sample(family, rows, rng.integers(0, max(1, classes - 2), 301))
    weights = rng.normal(size=(9, classes, family.size))
    expected = counted_by_hand(sample, weights)
    take(way, monkeypatch)
    for held in (1, 1000, 1 << 20):
        monkeypatch.setattr(metrics, "KERNEL_CACHE", held)
        monkeypatch.setattr(metrics, "ARRAY_CACHE", held)
        for soft in (True, False):
            wrong, lost = sample.errors(weights, soft=soft)
            np.testing.assert_array_equal(wrong, expected[0])
            np.testing.assert_allclose(lost, expected[1] if soft else 0.0, rtol=1e-12, atol=1e-15)
        wrong, lost = sample.errors(weights.astype(np.float32), soft=True)
        np.testing.assert_allclose(wrong, expected[0], atol=2 / 300)
        np.testing.assert_allclose(lost, expected[1], atol=1e-5)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("classes", [1, 2, 3, 6])
def test_of_equal_scores_the_first_counts(way, classes, monkeypatch):
    """Logits that are small whole numbers are often equal, and none is rounded."""
    rng = np.random.default_rng(classes)
    family = NaiveBayes(continuous=1)
    rows = Rows(rng.integers(-1, 2, (200, 1)).astype(float), np.zeros((200, 0), dtype=np.int64))
    sample = metrics.Sample(family, rows, rng.integers(0, classes, 200))
    weights = rng.integers(-1, 2, (12, classes, family.size)).astype(float)
    weights[0] = 0.0
    expected = counted_by_hand(sample, weights)
    assert expected[0][0] == np.mean(sample.labels != 0)
    take(way, monkeypatch)
    for soft in (True, False):
        wrong, lost = sample.errors(weights, soft=soft)
        np.testing.assert_array_equal(wrong, expected[0])
        np.testing.assert_allclose(lost, expected[1] if soft else 0.0, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("way", ["arrays", "apart"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
@pytest.mark.parametrize("classes", [2, 4])
def test_models_that_diverged_are_counted_as_by_hand(way, classes, bad, monkeypatch):
    """Logits that are no numbers, of all classes or of one; the errors of other models stay."""
    rng = np.random.default_rng(3)
    family = NaiveBayes(continuous=2)
    rows = Rows(rng.normal(size=(60, 2)), np.zeros((60, 0), dtype=np.int64))
    sample = metrics.Sample(family, rows, rng.integers(0, classes, 60))
    weights = rng.normal(size=(3, classes, family.size))
    weights[1] = bad
    weights[2, classes - 1, 0] = bad
    take(way, monkeypatch)
    with np.errstate(invalid="ignore"):
        expected = counted_by_hand(sample, weights)
    wrong, lost = sample.errors(weights, soft=True)
    np.testing.assert_array_equal(wrong, expected[0])
    np.testing.assert_allclose(lost, expected[1], rtol=1e-12)


def test_a_sparse_table_is_counted_as_by_hand(monkeypatch):
    """Features of many categories are mostly zeros; some models on many rows are multiplied at a time."""
    rng = np.random.default_rng(5)
    family = NaiveBayes(continuous=1, cardinalities=(90, 80, 3))
    assert family.wide
    codes = np.stack([rng.integers(0, cells, 150) for cells in family.cardinalities], axis=1)
    sample = metrics.Sample(family, Rows(rng.normal(size=(150, 1)), codes), rng.integers(0, 4, 150))
    weights = rng.normal(size=(7, 4, family.size))
    expected = counted_by_hand(sample, weights)
    for way, held, at_once in itertools.product(WAYS, (1, 700, 1 << 20), (1, 100, 1 << 12)):
        take(way, monkeypatch)
        monkeypatch.setattr(metrics, "KERNEL_CACHE", held)
        monkeypatch.setattr(metrics, "ARRAY_CACHE", held)
        monkeypatch.setattr(metrics, "SPARSE_ROWS", at_once)
        wrong, lost = sample.errors(weights, soft=True)
        np.testing.assert_array_equal(wrong, expected[0])
        np.testing.assert_allclose(lost, expected[1], rtol=1e-12)
