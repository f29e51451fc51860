"""Scores of sites that are added up: those of the pooled rows, as scikit-learn computes them."""

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from peerbayes.learning.integer_sums import numbers_of_words, words_of_numbers
from peerbayes.learning.site_scores import (
    SiteScores,
    bins_for,
    figures_of_all,
    score_edges,
    total,
    vector_size,
)
from peerbayes.model.core import softmax
from peerbayes.model.scaling import Scaling


def rows(rng, count, classes, spread=3.0):
    labels = rng.integers(0, classes, count)
    logits = spread * rng.normal(size=(count, classes)) + 2.0 * np.eye(classes)[labels]
    return logits, labels


def auc_of(posterior, labels):
    if posterior.shape[1] == 2:
        return roc_auc_score(labels, posterior[:, 1])
    return roc_auc_score(labels, posterior, multi_class="ovr", average="macro")


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("spread", [0.1, 3.0, 30.0])
def test_one_site_has_the_figures_of_scikit_learn(rng, classes, spread):
    logits, labels = rows(rng, 400, classes, spread)
    figures, posterior = SiteScores.of(logits, labels).figures, softmax(logits)
    assert figures["rows"] == 400
    assert figures["error"] == pytest.approx((posterior.argmax(axis=1) != labels).mean(), abs=1e-12)
    assert figures["auc"] == pytest.approx(auc_of(posterior, labels), abs=1e-9)
    if spread < 30:  # scikit-learn holds probabilities above 2e-16
        assert figures["log_loss"] == pytest.approx(log_loss(labels, posterior), abs=1e-9)
    if classes == 2:
        assert figures["brier"] == pytest.approx(brier_score_loss(labels, posterior[:, 1]), abs=1e-9)


@pytest.mark.parametrize("classes", [2, 4, 9])
@pytest.mark.parametrize("scaling", [None, Scaling(1.7, (0.0, 0.2), 0.05)])
def test_sums_over_sites_are_those_of_pooled_rows(rng, classes, scaling):
    """Error, log loss, Brier score and calibration to 1e-9; the AUC lies in the interval, whose middle is near it."""
    if scaling is not None and classes != 2:
        scaling = Scaling(1.7, tuple(rng.normal(size=classes)), 0.05)
    logits, labels = rows(rng, 3000, classes)
    cuts = np.sort(rng.choice(3000, 6, replace=False))
    sites = [
        SiteScores.of(*site, scaling)
        for site in zip(np.split(logits, cuts), np.split(labels, cuts), strict=True)
    ]
    pooled, summed = SiteScores.of(logits, labels, scaling).figures, figures_of_all(total(sites, classes))
    for name in ("rows", "error", "log_loss", "brier", "calibration"):
        assert summed[name] == pytest.approx(pooled[name], abs=1e-9), name
    posterior = softmax(logits) if scaling is None else scaling.probabilities(logits)
    assert summed["error"] == pytest.approx((posterior.argmax(axis=1) != labels).mean(), abs=1e-12)
    assert summed["log_loss"] == pytest.approx(log_loss(labels, posterior), abs=1e-9)
    exact = auc_of(posterior, labels)
    assert summed["auc_low"] - 1e-12 <= exact <= summed["auc_high"] + 1e-12
    assert summed["auc_high"] - summed["auc_low"] < (0.003 if classes <= 8 else 0.01)
    assert abs(summed["auc"] - exact) <= (summed["auc_high"] - summed["auc_low"]) / 2 + 1e-12


@pytest.mark.parametrize("bins", [2048, 512])
def test_bins_of_scores_are_in_order_and_mirror_each_other(bins):
    edges = score_edges(bins)
    assert edges.size == bins - 1 and (np.diff(edges) >= 0).all()
    np.testing.assert_allclose(edges, 1.0 - edges[::-1], rtol=0, atol=1e-15)
    assert ((edges > 0.018) & (edges < 0.982)).sum() == pytest.approx(bins / 2, abs=2)  # log odds within ±4


def test_a_site_with_one_class_has_no_auc_and_adds_to_that_of_all(rng):
    logits, labels = rows(rng, 300, 2)
    ones, zeros = (SiteScores.of(logits[labels == c], labels[labels == c]) for c in (1, 0))
    assert ones.auc is None and zeros.auc is None
    assert ones.auc_range is None
    summed = figures_of_all(total([ones, zeros], 2))
    assert summed["auc_low"] <= roc_auc_score(labels, softmax(logits)[:, 1]) <= summed["auc_high"]


def test_certain_and_equal_scores_are_ties(rng):
    """Probabilities of 0 and 1, and many equal ones, are counted as scikit-learn counts them."""
    logits = np.array([[0.0, 2000.0], [0.0, 1000.0], [1000.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    labels = np.array([1, 0, 0, 1, 0])
    scores = SiteScores.of(logits, labels)
    assert scores.auc == pytest.approx(roc_auc_score(labels, softmax(logits)[:, 1]), abs=1e-12)
    low, high = scores.auc_range
    assert low <= scores.auc <= high
    assert np.isfinite(scores.loss)


def test_rows_of_an_unknown_class_are_wrong_and_have_no_probability(rng):
    logits, labels = rows(rng, 30, 3)
    figures = SiteScores.of(logits, labels, unknown=10).figures
    known = SiteScores.of(logits, labels).figures
    assert figures["rows"] == 40
    assert figures["error"] == pytest.approx((30 * known["error"] + 10) / 40)
    assert figures["log_loss"] == known["log_loss"]


def test_no_rows_have_no_figures():
    scores = SiteScores.of(np.zeros((0, 3)), np.zeros(0, dtype=np.int64))
    assert scores.figures == dict.fromkeys(scores.figures, None) | {"rows": 0}
    assert figures_of_all(total([scores, scores], 3))["auc"] is None


def test_words_hold_numbers_of_any_size_exactly_enough(rng):
    numbers = np.concatenate([rng.normal(size=50) * 10.0 ** rng.integers(-3, 12, 50), [0.0, -0.0, 1e12]])
    words = words_of_numbers(numbers)
    np.testing.assert_allclose(numbers_of_words(words), numbers, rtol=1e-15, atol=2.0**-41)
    summed = numbers_of_words(words + words + words)
    np.testing.assert_allclose(summed, 3 * numbers, rtol=1e-15, atol=3 * 2.0**-41)


def falsified(words, place, value):
    changed = words.copy()
    changed[place] = value
    return changed


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, -1), (0, 7), (2, -1), (2, 10_000), (3, -1), (3, 1 << 62), (4, 1 << 40), (7, -5), (7, 10_000), (22, 10_000),
        (37, 1 << 50), (67, -1), (67, 1 << 62), (-1, 10_000),
    ],
)  # fmt: skip
def test_sums_that_no_rows_have_are_refused(rng, place, value):
    words = SiteScores.of(*rows(rng, 200, 3)).words
    assert words.size == vector_size(3)
    SiteScores.of_words(words, 3)
    with pytest.raises(ValueError, match=r"rows|confidences"):
        SiteScores.of_words(falsified(words, place, value), 3)


def test_words_give_back_what_they_were_made_of(rng):
    scores = SiteScores.of(*rows(rng, 200, 2), unknown=3)
    again = SiteScores.of_words(scores.words, 2)
    assert (again.rows, again.unknown, again.wrong) == (200, 3, scores.wrong)
    assert again.loss == pytest.approx(scores.loss, abs=1e-11)
    np.testing.assert_array_equal(again.counts, scores.counts)
    assert again.counts.shape == (1, 2, bins_for(2))
