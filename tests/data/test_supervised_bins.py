"""Edges where the classes change: the rule of Fayyad and Irani, its laws, and models with such columns."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy

import peerbayes as pb
from peerbayes import Schema, SchemaError
from peerbayes.data.bins import cell_of
from peerbayes.data.supervised_bins import (
    COUNTS,
    MOST_BINS,
    class_counts,
    cuts_by_class,
    edges_by_class,
    fine_bins,
)

TABLES = st.integers(1, 4).flatmap(
    lambda classes: st.lists(
        st.lists(st.integers(0, 30), min_size=classes, max_size=classes), min_size=1, max_size=12
    ).map(lambda rows: np.array(rows, dtype=float))
)


def published(counts, offset=0):
    """The rule as it was published, by recursion: all cuts that are accepted."""
    best, bits = None, math.inf
    n = counts.sum()
    if n <= 2:
        return []
    for cut in range(1, len(counts)):
        left, right = counts[:cut].sum(axis=0), counts[cut:].sum(axis=0)
        if left.sum() and right.sum():
            after = (left.sum() * entropy(left, base=2) + right.sum() * entropy(right, base=2)) / n
            if after < bits - 1e-12:
                best, bits = cut, after
    if best is None:
        return []
    halves = counts[:best].sum(axis=0), counts[best:].sum(axis=0)
    whole = entropy(counts.sum(axis=0), base=2)
    k = np.count_nonzero(counts.sum(axis=0))
    delta = math.log2(3**k - 2) - k * whole
    delta += sum(np.count_nonzero(half) * entropy(half, base=2) for half in halves)
    if whole - bits <= (math.log2(n - 1) + delta) / n + 1e-12:
        return []
    return [
        *published(counts[:best], offset),
        offset + best - 1,
        *published(counts[best:], offset + best),
    ]


@given(TABLES)
def test_cuts_are_those_of_the_published_rule(counts):
    assert cuts_by_class(counts).tolist() == published(counts)


def test_a_cut_that_is_just_worth_its_cost():
    """Saved: 5·0.722 = 3.61 bits. Cost: log₂4 + log₂7 − 2·0.722 = 3.36."""
    assert cuts_by_class(np.array([[0.0, 1.0], [4.0, 0.0]])).tolist() == [0]
    assert cuts_by_class(np.array([[0.0, 1.0], [9.0, 0.0]])).tolist() == []  # 4.69 bits, and a cost of 5.04


@given(TABLES, st.integers(2, 5))
def test_fewer_bins_keep_the_best_cuts(counts, most):
    cuts = cuts_by_class(counts).tolist()
    fewer = cuts_by_class(counts, most).tolist()
    assert set(fewer) <= set(cuts) and len(fewer) == min(len(cuts), most - 1)


@given(st.integers(0, 2**32 - 1))
def test_edges_depend_on_counts_alone(seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, 60)
    values = np.round(rng.normal(labels, 0.5), 1)
    edges, order = edges_by_class(values, labels), rng.permutation(60)
    assert edges_by_class(values[order], labels[order]) == edges
    assert edges_by_class(np.repeat(values, 3), np.repeat(labels, 3)) == edges_by_class(
        values, labels, np.full(60, 3.0)
    )
    cells = cell_of(values, np.array(edges))
    moved = np.exp(values)
    np.testing.assert_array_equal(cell_of(moved, np.array(edges_by_class(moved, labels))), cells)


def test_a_step_is_found_where_it_is_and_noise_has_no_edge():
    rng = np.random.default_rng(4)
    values, labels = rng.normal(size=3000), rng.integers(0, 2, 3000)
    assert edges_by_class(values, labels) == ()
    ordered = np.sort(values)
    (edge,) = edges_by_class(values, (values >= ordered[1700]).astype(int))
    assert np.count_nonzero(ordered < edge) == pytest.approx(1700, abs=3000 / fine_bins(2))


def test_a_rare_spike_has_bins_of_its_own():
    """Nine rows of ten have no gain; those that have one differ by its size."""
    rng = np.random.default_rng(5)
    gain = np.where(rng.random(20_000) < 0.92, 0.0, rng.lognormal(8, 1, 20_000))
    labels = ((gain > 5000) | ((gain == 0) & (rng.random(20_000) < 0.2))).astype(int)
    edges = edges_by_class(gain, labels)
    assert 0 < edges[0] < 500 and len(edges) in (
        2,
        3,
    )  # 5,000 may lie within a cell, which then stays by itself
    assert np.allclose(edges[1:], 5000, rtol=0.05)


def test_rows_without_a_label_move_quantiles_and_no_more():
    values, labels = np.arange(40.0), np.repeat([0, 1], 20)
    unknown = np.where(np.arange(40) % 5 == 0, -1, labels)
    assert edges_by_class(values, unknown) == edges_by_class(values, labels) == (19.5,)
    counts = class_counts(np.array([0, 1, -1, 1]), np.array([0, 1, 1, -1]), (2, 2))
    assert counts.tolist() == [[1, 0], [0, 1]]


def test_many_classes_neither_overflow_nor_fill_the_memory():
    counts = np.eye(1000)[np.repeat(np.arange(1000), 1)] * 50
    assert len(cuts_by_class(counts)) == MOST_BINS - 1
    assert fine_bins(1000) * 1000 <= max(COUNTS, 64_000) and fine_bins(0) == fine_bins(1)


# --- columns -----------------------------------------------------------------------------------------------


def table(rows=600, seed=3):
    """An amount whose tail tells the class, a number that tells nothing, a colour; some values are missing."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, rows)
    amount = np.where(labels == 1, rng.uniform(3, 4, rows), rng.uniform(0, 5, rows))
    amount[rng.random(rows) < 0.05] = np.nan
    colours = np.array(["red", "green"], dtype=object)[rng.integers(0, 2, rows)]
    frame = pd.DataFrame({"amount": amount, "noise": rng.normal(size=rows), "colour": colours})
    return frame, np.array(["a", "b"])[labels]


def test_columns_of_a_table():
    frame, labels = table()
    frame["same"] = 7.0
    schema = Schema.infer(frame, labels, kinds="supervised")
    assert list(schema.kinds.values()) == ["supervised", "supervised", "discrete", "supervised"]
    amount, noise = schema.columns[:2]
    assert np.allclose(amount.edges, [3, 4], atol=0.1) and noise.edges == ()
    assert noise.labels == ("any number",) and schema.silent == {"same": "constant"}
    again = Schema.from_json(schema.to_json())
    assert again == schema and again.fingerprint == schema.fingerprint


def test_labels_are_needed():
    frame, labels = table(60)
    with pytest.raises(SchemaError, match=r"'amount' is 'supervised', .* there are no labels; expected them"):
        Schema.infer(frame, kinds="supervised")
    with pytest.raises(ValueError, match=r"kinds='supervised' needs the classes of the values of all rows"):
        pb.MixedNB(kinds="supervised").partial_fit(frame, labels, classes=["a", "b"])


def test_a_row_of_weight_zero_is_no_row():
    frame, labels = table()
    weights = np.r_[np.ones(400), np.zeros(200)]
    weighed = Schema.infer(frame, labels, kinds="supervised", sample_weight=weights)
    assert weighed.columns == Schema.infer(frame[:400], labels[:400], kinds="supervised").columns


@pytest.mark.parametrize("estimator", [pb.MixedNB, pb.TAN, pb.GA2M, pb.AODE])
def test_models_of_such_columns(estimator, tmp_path):
    frame, labels = table()
    frame = frame.fillna(2.0)
    model = estimator(kinds="supervised").fit(frame, labels)
    assert [column.kind for column in model.schema_.columns][:2] == ["supervised", "supervised"]
    best = ((frame["amount"] >= 3) & (frame["amount"] < 4)) == (labels == "b")
    assert (model.predict(frame) == labels).mean() >= best.mean() - 0.01
    model.save(tmp_path / "model.pb")
    np.testing.assert_array_equal(
        pb.load(tmp_path / "model.pb").predict_proba(frame), model.predict_proba(frame)
    )


def test_a_simulation_takes_the_edges_of_the_rows_that_peers_hold():
    frame, labels = table()
    run = pb.simulate(frame.fillna(2.0), labels, kinds="supervised", peers=4, rows_per_peer=60, rounds=4)
    amount, noise = run.schema.columns[:2]
    assert amount.kind == noise.kind == "supervised" and noise.edges == ()
    assert np.allclose(amount.edges, [3, 4], atol=0.3) and amount.count == 240
