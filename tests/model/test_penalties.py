"""The penalty of GA2M: its value and gradient, its strength, its optimum, and the steps that lead there."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import block_diag
from scipy.optimize import approx_fprime, minimize
from scipy.stats import multivariate_normal

import peerbayes as pb
from peerbayes.data.crosses import Cross
from peerbayes.learning.local_rows import LocalRows
from peerbayes.model import calibration, core, penalties
from peerbayes.model.families.additive import GA2M
from peerbayes.model.families.base import RIDGE, guarded, laid_out, penalties_of

SEEDS = st.integers(0, 2**32 - 1)
CLASSES = 3


def family(seed=0, rows=50.0):
    """A GA2M with a number, three columns and a cross, each with penalties of its own."""
    rng = np.random.default_rng(seed)
    strengths = [(0.1, 20.0), (3.0, 0.0), (0.0, 0.0), (0.7, 0.0)]
    strengths = tuple(
        (ridge * rng.uniform(0.5, 2), smooth * rng.uniform(0.1, 10)) for ridge, smooth in strengths
    )
    return GA2M(
        continuous=1,
        cardinalities=(5, 3, 2, 6),
        crosses=1,
        penalties=strengths,
        per_row=1 / rows,
        count_floor=1e-4,
    )


def matrix(layout):
    """Q of all cells, by its definition: [cells, cells]."""
    blocks = []
    for size, (ridge, smooth) in zip(layout.cardinalities, layout.penalties, strict=True):
        steps = np.diff(np.eye(size), axis=0)
        blocks.append(ridge * (np.eye(size) - 1 / size) + smooth * steps.T @ steps)
    return block_diag(*blocks)


def problem(seed, rows=120):
    """A table with labels, its family with penalties, and its features."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "dose": rng.normal(size=rows),
            "ward": rng.choice(["a", "b", "c"], rows),
            "age": rng.normal(size=rows),
        }
    )
    labels = (frame["dose"] ** 2 + rng.normal(size=rows) > 1).astype(int) + (rng.random(rows) < 0.2)
    labels = labels.to_numpy()
    schema = pb.Schema.infer(frame, labels, kinds={"dose": "binned", "age": "binned"}, bins=6)
    first = tuple(k // 2 for k in range(schema.columns[0].cells))
    plain = laid_out(GA2M, schema, missing=False)
    sums = core.statistics(plain.features(schema.encode(frame)), core.one_hot(labels, CLASSES))
    schema = penalties.with_column_penalties(schema, sums)
    schema = replace(schema, crosses=(Cross(("dose", "ward"), (first, (0, 1, 2)), penalty=0.8),))
    layout = guarded(laid_out(GA2M, schema, missing=False), rows, calibrate=True)
    return frame, labels, schema, layout, layout.features(schema.encode(frame))


# --- value and gradient


@given(seed=SEEDS)
def test_the_penalty_is_the_quadratic_form_of_its_matrix(seed):
    layout = family(seed)
    weights = np.random.default_rng(seed).normal(size=(4, CLASSES, layout.size))
    value, gradient = layout.penalty(weights)
    centred = weights - weights.mean(axis=1, keepdims=True)
    cells = centred[..., layout.dense_size :]
    expected = 0.5 * np.einsum("nck,kl,ncl->n", cells, matrix(layout), cells) / 50
    np.testing.assert_allclose(value, expected, rtol=1e-10)
    assert (gradient[..., : layout.dense_size] == 0).all()
    for peer in range(4):
        numeric = approx_fprime(
            weights[peer].ravel(), lambda flat: layout.penalty(flat.reshape(CLASSES, -1))[0], 1e-6
        )
        np.testing.assert_allclose(gradient[peer].ravel(), numeric, atol=1e-5)


@given(seed=SEEDS)
def test_its_gradient_moves_no_sum_over_classes_or_over_the_cells_of_a_column(seed):
    layout = family(seed)
    _, gradient = layout.penalty(np.random.default_rng(seed).normal(size=(CLASSES, layout.size)))
    assert np.abs(gradient.sum(axis=0)).max() < 1e-12
    for cells, _ in layout.tabled():
        assert np.abs(gradient[:, cells].sum(axis=1)).max() < 1e-12


def test_without_penalties_or_rows_there_is_none():
    layout = family()
    weights = np.ones((CLASSES, layout.size))
    for other in (replace(layout, penalties=()), replace(layout, per_row=0.0)):
        assert other.penalty(weights) is None and other.conditioned(weights, weights) is weights


# --- strength


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_evidence_is_that_of_normal_log_odds(seed, ordered):
    """g = h·δ + noise of variance h with δ ~ N(0, Q⁻¹) is N(0, h + hQ⁻¹h)."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 40, (CLASSES, 5)).astype(float)
    rows, prior = counts.sum(axis=0), counts.sum(axis=1) / counts.sum()
    steps = np.diff(np.eye(5), axis=0)
    expected = []
    for strength in penalties.STRENGTHS:
        precision = RIDGE * np.eye(5) + strength * steps.T @ steps if ordered else strength * np.eye(5)
        value = 0.0
        for c in range(CLASSES):
            h = np.diag(rows * prior[c] * (1 - prior[c]))
            covariance = h + h @ np.linalg.inv(precision) @ h
            value += multivariate_normal(np.zeros(5), covariance).logpdf(counts[c] - rows * prior[c])
        expected.append(value)
    actual = penalties.evidence(counts, ordered)
    np.testing.assert_allclose(np.diff(actual), np.diff(expected), rtol=1e-7, atol=1e-8)


def test_a_smooth_column_is_held_together_more_than_a_rough_one():
    rows, cells = 400.0, np.arange(16)
    smooth, rough = (0.5 + 0.3 * np.sin(cells / 4), 0.5 + 0.3 * (-1.0) ** cells)
    strengths = [
        penalties.column_penalty(rows * np.stack([share, 1 - share]), True) for share in (smooth, rough)
    ]
    assert strengths[0] > 10 * strengths[1]
    assert penalties.column_penalty(rows * np.full((2, 16), 0.5), True) == 2 * penalties.STRENGTHS[-1]
    assert penalties.column_penalty(np.ones((2, 1)), True) == 0.0


def test_penalties_of_a_schema_are_those_of_its_columns_and_crosses_and_stay_in_files():
    *_, schema, layout, _ = problem(0)
    dose, ward, age = (column.penalty for column in schema.columns)
    assert penalties_of(schema) == layout.penalties
    assert layout.penalties == ((RIDGE, dose), (ward, 0.0), (RIDGE, age), (0.8, 0.0))
    again = pb.Schema.from_json(schema.to_json())
    assert penalties_of(again) == layout.penalties
    plain = replace(
        schema,
        columns=tuple(replace(column, penalty=0.0) for column in schema.columns),
        crosses=tuple(replace(cross, penalty=0.0) for cross in schema.crosses),
    )
    assert plain == schema and plain.fingerprint == schema.fingerprint and penalties_of(plain) == ()
    assert "penalty" not in plain.to_json()
    for item in (schema.columns[0], schema.crosses[0]):
        with pytest.raises(pb.SchemaError, match="penalty"):
            replace(item, penalty=-1.0)


# --- the optimum and the way to it


def objective(layout, features, labels):
    """The mean log loss with the penalty, and its gradient, as functions of W."""
    one_hot = core.one_hot(labels, CLASSES)

    def values(flat):
        weights = flat.reshape(CLASSES, -1)
        posterior = core.posterior(features, weights)
        loss = -np.log(posterior[np.arange(len(labels)), labels]).mean()
        value, gradient = layout.penalty(weights)
        return loss + value, (gradient - (one_hot - posterior).T @ features / len(labels)).ravel()

    return values


@pytest.mark.parametrize("seed", range(3))
def test_calibration_leads_from_any_start_to_the_optimum_of_scipy(seed):
    frame, labels, schema, layout, features = problem(seed)
    values = objective(layout, features, labels)
    best = minimize(values, np.zeros(CLASSES * layout.size), jac=True, method="L-BFGS-B",
                    options={"maxiter": 5000, "maxfun": 9000, "ftol": 1e-15, "gtol": 1e-9})  # fmt: skip
    models = []
    for start in ("marginal", "ml", "uniform"):
        model = pb.GA2M(schema=schema, start=start, validation_fraction=0.0, **calibration.TO_THE_END)
        model.fit(frame, labels)
        np.testing.assert_allclose(values(model._weights.ravel())[0], best.fun, atol=2e-3)
        models.append(model.predict_proba(frame))
    posterior = core.posterior(features, best.x.reshape(CLASSES, -1))
    assert max(np.abs(model - posterior).max() for model in models) < 0.1


@given(seed=SEEDS)
def test_the_residual_is_minus_the_gradient_and_adds_up_over_peers(seed):
    frame, labels, schema, layout, features = problem(seed % 5)
    rng = np.random.default_rng(seed)
    weights = layout.weights(core.statistics(features, core.one_hot(labels, CLASSES)) + rng.exponential())
    _, gradient = objective(layout, features, labels)(weights.ravel())
    cut = int(rng.integers(1, len(labels)))
    peers = LocalRows(
        layout,
        schema.encode(frame),
        labels,
        np.ones(len(labels)),
        np.array([cut, len(labels) - cut]),
        CLASSES,
    )
    stats = core.statistics(features, core.one_hot(labels, CLASSES))[None]
    terms = peers.sum_terms(1)(stats).sum(axis=0)
    value, slope = objective(layout, features, labels)(layout.weights(stats[0]).ravel())
    np.testing.assert_allclose(terms[:-1], -len(labels) * slope, atol=1e-9 * len(labels))
    np.testing.assert_allclose(terms[-1], len(labels) * value, rtol=1e-9)
    assert gradient.shape == slope.shape


@given(seed=SEEDS)
def test_steps_are_conditioned_by_the_matrix_of_rows_and_penalty(seed):
    layout = family(seed)
    rng = np.random.default_rng(seed)
    stats = rng.exponential(size=(1, CLASSES, layout.size)) + 0.1
    residual = rng.normal(size=(2, CLASSES, layout.size))
    moved, dense = layout.conditioned(stats, residual), layout.dense_size
    rows = np.diag(50 * stats[0].sum(axis=0)[dense:] / stats[0, :, 0].sum() / CLASSES)
    expected = residual[..., dense:] @ np.linalg.solve(rows + matrix(layout), rows)
    np.testing.assert_allclose(moved[..., dense:], expected, rtol=1e-8, atol=1e-10)
    np.testing.assert_array_equal(moved[..., :dense], residual[..., :dense])
    np.testing.assert_allclose(
        moved.sum(axis=1)[..., dense:],
        (residual.sum(axis=1)[..., dense:]) @ np.linalg.solve(rows + matrix(layout), rows),
        atol=1e-9,
    )
    for cells, _ in layout.tabled():
        np.testing.assert_allclose(
            moved[..., cells].sum(axis=-1), residual[..., cells].sum(axis=-1), atol=1e-9
        )


def test_the_order_of_the_rows_changes_no_penalty():
    frame, labels, *_ = problem(1)
    order = np.random.default_rng(0).permutation(len(frame))
    models = [pb.GA2M().fit(frame.iloc[rows], labels[rows]) for rows in (np.arange(len(frame)), order)]
    first, second = (penalties_of(model.schema_) for model in models)
    assert first == second
