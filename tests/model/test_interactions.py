"""Which pairs GA2M crosses: the sums, the gain, the choice; and the start that shrinks its cells."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import log_loss

import peerbayes as pb
from peerbayes import Schema
from peerbayes.data.crosses import Cross
from peerbayes.data.table import Table
from peerbayes.model import calibration, core, interactions, passes
from peerbayes.model.families.additive import GA2M
from peerbayes.model.families.base import guarded, laid_out
from peerbayes.model.penalties import with_column_penalties
from peerbayes.model.sources import Encoded, source_of

SEEDS = st.integers(0, 2**32 - 1)


def problem(seed, rows=60, classes=3, missing=0.15):
    """A table of a binned, two discrete and a continuous column, labels, random W, and all pairs to cross."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "amount": rng.normal(size=rows),
            "colour": np.array(["red", "green", "blue"], dtype=object)[rng.integers(0, 3, rows)],
            "x": rng.normal(size=rows),
            "kind": np.array(["u", "v"], dtype=object)[rng.integers(0, 2, rows)],
        }
    )
    frame.loc[rng.random(rows) < missing, "amount"] = np.nan
    frame.loc[rng.random(rows) < missing, "colour"] = None
    labels = np.concatenate([np.arange(classes), rng.integers(0, classes, rows - classes)])
    schema = Schema.infer(frame, labels, kinds={"amount": "binned"})
    family = laid_out(GA2M, schema, missing=False)
    weights = rng.normal(size=(classes, family.size))
    cells = {schema.columns[j].name: schema.columns[j].cells for j in schema.discrete}
    sides = {name: tuple(k % min(size, 4) for k in range(size)) for name, size in cells.items()}
    pairs = [Cross((a, b), (sides[a], sides[b])) for a, b in combinations(cells, 2)]
    return frame, labels, schema, family, weights, pairs, rng


def looped(family, weights, schema, frame, labels, mass, pairs):
    """g and h of every pair, row by row."""
    rows = schema.encode(frame)
    posterior = core.posterior(family.features(rows), weights)
    half = interactions.halves(rows.codes)
    names = [schema.names[j] for j in schema.discrete]
    tables = []
    for pair in pairs:
        sums = np.zeros((2, 2, pair.cells, len(weights)))
        for i, codes in enumerate(rows.codes):
            first, second = (codes[names.index(name)] for name in pair.columns)
            if first >= 0 and second >= 0:
                cell = pair.groups[0][first] * pair.shape[1] + pair.groups[1][second]
                for c, p in enumerate(posterior[i]):
                    sums[half[i], 0, cell, c] += mass[i] * ((labels[i] == c) - p)
                    sums[half[i], 1, cell, c] += mass[i] * p * (1 - p)
        tables.append(sums)
    return np.concatenate(tables, axis=2)


# --- sums


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_pair_sums_are_those_of_loops_over_rows_and_cells(seed, weighted):
    frame, labels, schema, family, weights, pairs, rng = problem(seed)
    mass = rng.exponential(size=len(frame)) if weighted else np.ones(len(frame))
    source = source_of(schema, Table.of(frame), again=True)
    sums = interactions.pair_sums(family, weights, source, labels, mass if weighted else None, pairs)
    np.testing.assert_allclose(
        sums, looped(family, weights, schema, frame, labels, mass, pairs), rtol=1e-9, atol=1e-9
    )


@given(seed=SEEDS, cut=st.integers(0, 60))
def test_pair_sums_add_up_over_any_split_of_the_rows(seed, cut):
    frame, labels, schema, family, weights, pairs, _ = problem(seed)
    rows = schema.encode(frame)

    def sums_of(some):
        block = Encoded(schema, type(rows)(rows.values[some], rows.codes[some]))
        return interactions.pair_sums(family, weights, block, labels[some], None, pairs)

    parts = sums_of(slice(cut)) + sums_of(slice(cut, None))
    np.testing.assert_allclose(parts, sums_of(slice(None)), rtol=1e-9, atol=1e-9)


@given(seed=SEEDS)
def test_the_half_of_a_row_follows_from_its_cells_alone(seed):
    rng = np.random.default_rng(seed)
    codes = rng.integers(-1, 5, (80, 4), dtype=np.int32)
    order = rng.permutation(80)
    half = interactions.halves(codes)
    np.testing.assert_array_equal(interactions.halves(codes[order]), half[order])
    np.testing.assert_array_equal(interactions.halves(codes[7:9]), half[7:9])
    np.testing.assert_array_equal(interactions.halves(codes.astype(np.int64)), half)


@pytest.mark.parametrize("columns", [1, 2, 5, 20])
def test_halves_are_about_even_also_within_each_cell(columns):
    rng = np.random.default_rng(columns)
    codes = rng.integers(-1, 400 if columns == 1 else 16, (20_000, columns), dtype=np.int32)
    assert abs(interactions.halves(codes).mean() - 0.5) < (0.1 if columns <= 2 else 0.02)
    if columns > 2:
        half = interactions.halves(codes)
        for column in codes.T:
            shares = np.bincount(column + 1, half) / np.bincount(column + 1)
            assert np.abs(shares - 0.5).max() < 0.1


# --- gains


@pytest.mark.parametrize("seed", range(4))
def test_gains_are_those_of_the_formula(seed):
    *_, pairs, rng = problem(seed)
    cells, classes = sum(pair.cells for pair in pairs), 3
    sums = np.stack([rng.normal(size=(2, cells, classes)), rng.exponential(size=(2, cells, classes))], axis=1)
    gained, first = interactions.gains(pairs, sums), 0
    for pair, nats, scores in zip(pairs, gained.nats, gained.scores, strict=True):
        table = sums[:, :, first : first + pair.cells].reshape(2, 2, *pair.shape, classes)
        first += pair.cells
        g = interactions._beyond_margins(table[:, 0], table[:, 1])
        for which, strength in enumerate(interactions.STRENGTHS):
            for s, other in ((0, 1), (1, 0)):
                slope = bend = 0.0
                for a, b, c in np.ndindex(*pair.shape, classes):
                    step = g[s, a, b, c] / (table[s, 1, a, b, c] + strength)
                    slope += g[other, a, b, c] * step
                    bend += table[other, 1, a, b, c] * step**2
                np.testing.assert_allclose(nats[which, s], slope - bend / 2, rtol=1e-9, atol=1e-12)
                np.testing.assert_allclose(scores[which, s], slope / np.sqrt(bend), rtol=1e-9, atol=1e-12)


def test_cells_without_rows_gain_nothing():
    *_, pairs, rng = problem(0)
    pair = pairs[0]
    sums = np.zeros((2, 2, pair.cells, 3))
    assert all((numbers == 0).all() for numbers in interactions.gains([pair], sums))
    sums[:, 0, 0], sums[:, 1, 0] = rng.normal(size=(2, 3)), 1.0
    assert all(np.isfinite(numbers).all() for numbers in interactions.gains([pair], sums))


@given(seed=SEEDS)
def test_the_score_of_a_pair_that_tells_nothing_is_about_standard_normal(seed):
    """g ~ N(0, h) in every cell of either half: the scores of many pairs have mean 0 and variance 1."""
    rng = np.random.default_rng(seed)
    groups = tuple(range(5))
    pairs = [Cross((f"a{k}", f"b{k}"), (groups, groups)) for k in range(300)]
    spread = rng.uniform(1.0, 5.0, size=(2, 300 * 25, 3))
    sums = np.stack([rng.normal(size=spread.shape) * np.sqrt(spread), spread], axis=1)
    scores = interactions.gains(pairs, sums).scores[:, 6]
    assert abs(scores.mean()) < 0.3 and 0.6 < scores.std() < 1.2


def test_margins_are_what_steps_of_either_column_explain():
    """g = h·(α_a + β_b) is all of either column; with equal h in all cells one sweep removes all of it."""
    rng = np.random.default_rng(0)
    spread = np.ones((2, 5, 4, 3))
    additive = spread * (rng.normal(size=(2, 5, 1, 3)) + rng.normal(size=(2, 1, 4, 3)))
    assert np.abs(interactions._beyond_margins(additive, spread)).max() < 1e-12
    spread = rng.uniform(0.5, 1.5, size=(2, 5, 4, 3))
    additive = spread * (rng.normal(size=(2, 5, 1, 3)) + rng.normal(size=(2, 1, 4, 3)))
    left = interactions._beyond_margins(additive, spread)
    assert np.abs(left).max() < 0.01 * np.abs(additive).max()
    noise = rng.normal(size=spread.shape)
    left = interactions._beyond_margins(noise, spread)
    assert np.abs(left.sum(axis=2)).max() < 1e-12  # the sums of the last sweep vanish
    assert np.abs(left.sum(axis=1)).max() < 0.01


def additive_rows(rng, rows):
    """Labels whose log-odds add up over two columns, and a third that tells nothing."""
    X = rng.normal(size=(rows, 3))
    y = rng.random(rows) < 1 / (1 + np.exp(-2 * X[:, 0] - 2 * X[:, 1]))
    return X, y.astype(int)


def xor_rows(rng, rows, noise=4):
    """Labels that are the exclusive or of the first two binary columns; the others tell nothing."""
    X = rng.integers(0, 2, (rows, 2 + noise))
    return X, X[:, 0] ^ X[:, 1]


def gains_of(X, y):
    """The gain of each pair of columns in nats a row, by name: under the model without crosses, as `fit` has it."""
    schema = Schema.infer(X, y, bins=interactions.bins_for(X.shape[1]))
    source = source_of(schema, Table.of(X), again=True)
    plain = laid_out(GA2M, schema, missing=False)
    sums = passes.labelled(plain, source, y, len(schema.classes), None).statistics()
    schema = with_column_penalties(schema, sums)
    family = guarded(laid_out(GA2M, schema, missing=False), len(X), calibrate=True)
    data = passes.labelled(family, source, y, len(schema.classes), None)
    start = calibration.start_statistics("marginal", family, len(schema.classes), len(X), sums)
    stats = calibration.calibrate(family, data, start, max_iter=interactions.STEPS, keep="last").stats
    pairs = interactions.candidates(schema, sums)
    tables = interactions.pair_sums(family, family.weights(stats), source, y, None, pairs)
    gained = interactions.gains(pairs, tables).nats.sum(axis=2).max(axis=1) / len(X)
    return dict(zip([pair.columns for pair in pairs], gained, strict=True))


@pytest.mark.parametrize("seed", range(5))
def test_columns_that_add_up_gain_next_to_nothing_by_a_cross(seed):
    """What there is comes from main effects that twenty steps have not finished: a fiftieth of a product's gain."""
    X, y = additive_rows(np.random.default_rng(seed), 4000)
    product = (X[:, 0] * X[:, 1] > 0).astype(int)
    assert max(gains_of(X, y).values()) < 0.02 * gains_of(X, product)["x0", "x1"]


@pytest.mark.parametrize("seed", range(5))
def test_an_exclusive_or_gains_far_more_than_pairs_of_noise(seed):
    """Where a pair of noise is crossed by chance it is weak, and does no harm."""
    rng = np.random.default_rng(seed)
    X, y = xor_rows(rng, 600)
    y = np.where(rng.random(600) < 0.1, 1 - y, y)
    gained = gains_of(X.astype(float), y)
    xor = gained.pop(("x0", "x1"))
    assert xor > 30 * max(gained.values())
    assert pb.GA2M(max_iter=1).fit(X.astype(float), y).crosses_[0] == ("x0", "x1")
    fresh, truth = xor_rows(rng, 2000)
    losses = [
        log_loss(truth, pb.GA2M(interactions=most).fit(X.astype(float), y).predict_proba(fresh.astype(float)))
        for most in (1, "auto")
    ]
    assert losses[1] < losses[0] + 0.02


def tables_of(pairs, rng, effects, rows=40.0):
    """g and h of pairs whose cells have log-odds of so large deviations beyond margins, h the same in all cells."""
    tables = []
    for pair, effect in zip(pairs, effects, strict=True):
        log_odds = effect * rng.normal(size=(*pair.shape, 3))
        log_odds -= log_odds.mean(axis=0) + log_odds.mean(axis=1, keepdims=True) - log_odds.mean(axis=(0, 1))
        noise = np.sqrt(rows) * rng.normal(size=(2, pair.cells, 3))
        spread = np.full((2, pair.cells, 3), rows)
        tables.append(np.stack([spread * log_odds.reshape(1, pair.cells, 3) + noise, spread], axis=1))
    return np.concatenate(tables, axis=2)


def squares(count, side=6):
    """So many pairs of columns of six cells."""
    groups = tuple(range(side))
    return [Cross((f"a{k}", f"b{k}"), (groups, groups)) for k in range(count)]


@given(seed=SEEDS)
def test_pairs_that_tell_something_are_chosen_and_no_more_than_the_most(seed):
    rng = np.random.default_rng(seed)
    pairs, effects = squares(12), np.zeros(12)
    strong = rng.permutation(12)[:3]
    effects[strong] = 0.5, 1.0, 2.0
    sums = tables_of(pairs, rng, effects)
    chosen = interactions.chosen(pairs, sums)
    assert [pairs.index(cross) for cross in chosen[:3]] == strong[::-1].tolist()  # the largest gain first
    assert len(chosen) <= 5  # one of nine pairs of noise may seem to tell something
    assert len({cross.penalty for cross in chosen}) == 1 and chosen[0].penalty > 0
    assert interactions.chosen(pairs, sums, most=1) == chosen[:1]
    assert interactions.chosen(pairs, sums, most=0) == ()
    assert interactions.chosen([], sums) == ()


def test_of_pairs_of_noise_hardly_any_is_chosen():
    rng = np.random.default_rng(0)
    chosen = [
        len(interactions.chosen(squares(30), tables_of(squares(30), rng, np.zeros(30)))) for _ in range(40)
    ]
    assert np.mean(chosen) < 0.5


@given(seed=SEEDS)
def test_weaker_effects_have_a_stronger_penalty(seed):
    rng = np.random.default_rng(seed)
    pairs = squares(4)
    strong, weak = (
        interactions.chosen(pairs, tables_of(pairs, rng, np.full(4, size))) for size in (2.0, 0.3)
    )
    assert strong[0].penalty < weak[0].penalty


def test_a_pair_must_gain_on_both_halves():
    """What holds in one half and its contrary in the other is chosen in neither."""
    *_, pairs, rng = problem(1)
    step, spread = 9.0 * rng.normal(size=(pairs[0].cells, 3)), np.ones((pairs[0].cells, 3))
    for sign, count in ((1.0, 1), (-1.0, 0)):
        sums = np.stack([np.stack([step, spread]), np.stack([sign * step, spread])])
        assert len(interactions.chosen(pairs[:1], sums)) == count


# --- candidates


def test_candidates_are_all_pairs_of_columns_with_several_cells():
    frame, labels, *_ = problem(2, missing=0.0)
    frame["same"] = "x"
    schema = Schema.infer(frame, labels, kinds={"amount": "binned"})
    family = laid_out(GA2M, schema, missing=False)
    sums = core.statistics(family.features(schema.encode(frame)), core.one_hot(labels, 3))
    pairs = interactions.candidates(schema, sums)
    assert [pair.columns for pair in pairs] == list(combinations(("amount", "colour", "kind"), 2))
    assert all(max(pair.shape) <= interactions.groups_for(len(schema.columns)) for pair in pairs)


def test_candidates_of_too_many_columns_are_those_that_tell_most(monkeypatch):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 400)
    X = rng.integers(0, 3, (400, 12))
    for column in (4, 7, 10):
        X[:, column] = np.where(rng.random(400) < 0.5, y, X[:, column])
    schema = Schema.infer(X, y, kinds="discrete")
    family = laid_out(GA2M, schema, missing=False)
    sums = core.statistics(family.features(schema.encode(X)), core.one_hot(y, 2))
    assert len(interactions.candidates(schema, sums)) == 66
    monkeypatch.setattr(
        interactions, "MOST_NUMBERS", 3 * 9 * 4 * 2
    )  # three pairs of 3 × 3 cells, g and h of two halves
    pairs = interactions.candidates(schema, sums)
    assert [pair.columns for pair in pairs] == [("x4", "x7"), ("x4", "x10"), ("x7", "x10")]
    assert sum(pair.cells for pair in pairs) * 4 * 2 == interactions.MOST_NUMBERS


# --- the start


def families():
    return {
        "cells": GA2M(cardinalities=(3, 4, 12, 6), crosses=2, shrinkage=0.1),
        "numbers": GA2M(continuous=2, cardinalities=(3, 5), shrinkage=0.4),
        "a cross alone": GA2M(continuous=1, cardinalities=(5,), crosses=1, shrinkage=0.01, missing=True),
    }


@pytest.mark.parametrize("name", families())
@given(seed=SEEDS)
def test_the_start_spreads_rows_evenly_over_the_cells_of_each_column(name, seed):
    family = families()[name]
    rng = np.random.default_rng(seed)
    sums = rng.exponential(size=(2, 3, family.size)) * 10
    evened, dense = family.evened(sums), family.dense_size
    np.testing.assert_array_equal(evened[..., :dense], sums[..., :dense])
    first = dense
    for k, size in enumerate(family.cardinalities):
        columns = len(family.cardinalities) - family.crosses
        share = family.shrinkage * (columns if k >= columns else 1.0)
        cells = sums[..., first : first + size]
        for peer, c in np.ndindex(2, 3):
            total, added = cells[peer, c].sum(), share * sums[peer, c, 0]
            expected = [total * (count + added / size) / (total + added) for count in cells[peer, c]]
            np.testing.assert_allclose(evened[peer, c, first : first + size], expected, rtol=1e-12)
        np.testing.assert_allclose(
            evened[..., first : first + size].sum(axis=-1), cells.sum(axis=-1), rtol=1e-12
        )
        first += size
    np.testing.assert_allclose(family.evened(7.0 * sums), 7.0 * evened, rtol=1e-12)
    np.testing.assert_allclose(
        family.evened(sums[1, 2]), evened[1, 2], rtol=1e-15
    )  # a leading axis is a loop
    np.testing.assert_array_equal(replace(family, shrinkage=0.0).evened(sums), sums)
