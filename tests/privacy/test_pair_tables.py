"""Links and crosses under privacy: what a row changes, what is spent, and what is read from tables with noise."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri
from scipy.stats import chi2, chi2_contingency
from sklearn.metrics import mutual_info_score

import peerbayes as pb
from peerbayes.data.bins import edges_of_units, normal_quantiles
from peerbayes.data.column import Column
from peerbayes.data.schema import Schema
from peerbayes.errors import StructureError
from peerbayes.model.declared import declared_crosses, declared_parents, structure_in
from peerbayes.model.families import NaiveBayes, Rows
from peerbayes.model.layout import named_parents
from peerbayes.model.structure import Pairs, kdb, tan
from peerbayes.privacy import accounting
from peerbayes.privacy.accounting import Privacy
from peerbayes.privacy.pair_tables import GROUPS, NoisyPairs, PairTables, _additive
from peerbayes.privacy.scheme import scheme, structure_cost
from peerbayes.privacy.units import ONE

CARDINALITIES = (2, 3, 7)


def drawn(rng, count, continuous=2, gaps=0.0, classes=3):
    values = 2.0 * rng.standard_normal((count, continuous))
    codes = np.stack([rng.integers(size, size=count) for size in CARDINALITIES], 1).astype(np.int32)
    values[rng.random(values.shape) < gaps] = np.nan
    codes[rng.random(codes.shape) < gaps] = -1
    return Rows(values, codes), rng.integers(classes, size=count)


def without_noise(rows, labels, continuous, cardinalities, classes):
    """The tables of rows, opened as if there were next to no noise."""
    asked = PairTables(continuous, cardinalities, classes, cost=1e30)
    opened = asked.opened(asked.sums(rows, labels), 1)
    return NoisyPairs(opened.continuous, opened.cardinalities, classes, opened.tables, 0.0)


# --- what a row changes, and what it costs


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([0.0, 0.3]), st.integers(0, 3))
def test_a_row_moves_a_release_by_the_root_of_the_pairs(seed, gaps, continuous):
    """Exactly, where no value is missing; by less where one is. Neighbouring tables, counted out in whole numbers."""
    rng = np.random.default_rng(seed)
    rows, labels = drawn(rng, 20, continuous, gaps)
    asked = PairTables(continuous, CARDINALITIES, 3, cost=0.04)
    gone = int(rng.integers(20))
    others = np.arange(20) != gone
    fewer = asked.sums(Rows(rows.values[others], rows.codes[others]), labels[others])
    squares = sum(int(change) ** 2 for change in asked.sums(rows, labels) - fewer)
    pairs = math.comb(continuous + len(CARDINALITIES), 2)
    assert (
        asked.most == pytest.approx(ONE * math.sqrt(pairs), rel=1e-15)
        and Fraction(asked.most) ** 2 >= pairs * ONE**2
    )
    present = (~np.isnan(rows.values[gone])).sum() + (rows.codes[gone] >= 0).sum()
    assert squares == math.comb(int(present), 2) * ONE**2 <= pairs * ONE**2
    assert (asked.sigma / asked.most) ** 2 * asked.cost >= 1.0  # μ² of the release is at most its cost


def test_tables_are_the_counts_of_rows_in_groups():
    rng = np.random.default_rng(1)
    rows, labels = drawn(rng, 200, gaps=0.1)
    asked = PairTables(2, CARDINALITIES, 3, cost=1.0)
    tables = asked.opened(asked.sums(rows, labels), 1).tables
    groups = [np.digitize(column, ndtri([1 / 3, 2 / 3])) for column in rows.values.T]
    groups += [rows.codes[:, 0], rows.codes[:, 1], np.array([0, 0, 0, 1, 1, 2, 2, -1])[rows.codes[:, 2]]]
    missing = [*np.isnan(rows.values).T, *(rows.codes < 0).T]
    assert max(asked.groups) == GROUPS
    for i, j in itertools.combinations(range(5), 2):
        counted = np.zeros(tables[i, j].shape)
        for row in range(200):
            if not (missing[i][row] or missing[j][row]):
                counted[labels[row], groups[i][row], groups[j][row]] += 1
        if j == 4:  # seven categories in three groups of neighbours
            assert tables[i, j].shape[2] == 3
        assert np.array_equal(counted.sum(axis=2), tables[i, j].sum(axis=2))
        if j < 4:
            assert np.array_equal(counted, tables[i, j])


def test_noise_is_that_of_the_share_of_the_budget():
    asked = PairTables(2, CARDINALITIES, 3, structure_cost(Privacy(epsilon=4.0)))
    mu = accounting.mu_of(4.0, 1e-5)
    assert (
        asked.cost
        == pytest.approx(0.05 * mu**2)
        == structure_cost(Privacy(epsilon=4.0, structure_share=0.05))
    )
    rows, labels = drawn(np.random.default_rng(2), 50)
    noise = asked.release(rows, labels, np.random.default_rng(3).bytes) - asked.sums(rows, labels)
    expected = math.sqrt(10 / 0.05) / mu * ONE
    assert (
        chi2.ppf(1e-6, noise.size) < float(((noise / expected) ** 2).sum()) < chi2.ppf(1 - 1e-6, noise.size)
    )
    assert asked.discretisation() < accounting.DISCRETE / 4
    assert asked.opened(np.zeros(asked.size, dtype=np.int64), 9).noise == pytest.approx(3 * expected / ONE)


def test_the_structure_is_paid_for_by_the_rounds():
    family, mu = NaiveBayes(cardinalities=(3, 4)), accounting.mu_of(4.0, 1e-5)
    given = (family, 2, 320.0, 50, 64, 0.05)
    plain = scheme(Privacy(epsilon=4.0), *given)
    bought = scheme(
        Privacy(epsilon=4.0, structure_share=0.2), *given, bought_start=True, bought_structure=True
    )
    assert plain.ledger.first == 0.0 and plain.start_cost == 0.0
    assert bought.start_cost == pytest.approx(0.2 * mu**2)
    assert bought.ledger.first == pytest.approx(0.4 * mu**2)
    assert bought.ledger.each == pytest.approx(0.6 * mu**2 / 64)
    assert bought.ledger.spent(64) == pytest.approx(4.0, abs=1e-8)


# --- what is read from the tables


def test_without_noise_information_is_chi_squared_less_its_mean():
    rng = np.random.default_rng(4)
    labels = rng.integers(2, size=3000)
    first = rng.integers(3, size=3000)
    second = np.where(rng.random(3000) < 0.4, first, rng.integers(3, size=3000))
    rows = Rows(np.zeros((3000, 0)), np.stack([first, second], 1).astype(np.int32))
    score = without_noise(rows, labels, 0, (3, 3), 2).score("none")
    squared = sum(
        chi2_contingency(pd.crosstab(first[labels == c], second[labels == c]), correction=False).statistic
        for c in range(2)
    )
    assert score[0, 1] == pytest.approx((squared - 2 * 4) / 6000, rel=1e-9) == score[1, 0]
    assert score[0, 0] == -math.inf
    penalised = without_noise(rows, labels, 0, (3, 3), 2).score("bic")
    assert score[0, 1] - penalised[0, 1] == pytest.approx(0.5 * math.log(3000) * 2 * 4 / 3000)


@pytest.mark.parametrize(
    ("columns", "parameters"), [((0, 1), 1), ((0, 2), 2 * (2 - 1)), ((1, 4), 2 * (7 - 1)), ((3, 4), 2 * 6)]
)
def test_a_link_adds_the_parameters_of_its_columns_and_not_of_their_groups(columns, parameters):
    asked = PairTables(2, CARDINALITIES, 3, cost=1.0)
    opened = asked.opened(np.full(asked.size, 10 * ONE), 1)
    assert opened._added(*columns) == pytest.approx(3 * parameters / opened.rows)


def test_what_columns_say_of_the_class_is_the_mutual_information_of_their_groups():
    rng = np.random.default_rng(5)
    rows, labels = drawn(rng, 400)
    pairs = without_noise(rows, labels, 2, CARDINALITIES, 3)
    assert pairs.of_class[3] == pytest.approx(mutual_info_score(rows.codes[:, 1], labels), abs=1e-12)
    groups = np.digitize(rows.values[:, 0], ndtri([1 / 3, 2 / 3]))
    assert pairs.of_class[0] == pytest.approx(mutual_info_score(groups, labels), abs=1e-12)


def chain(rng, rows, columns=5):
    """Each column copies the one before it in most rows; the first follows the class."""
    labels = rng.integers(2, size=rows)
    codes = [np.where(rng.random(rows) < 0.7, labels, rng.integers(3, size=rows))]
    for _ in range(columns - 1):
        codes.append(np.where(rng.random(rows) < 0.7, codes[-1], rng.integers(3, size=rows)))
    return Rows(np.zeros((rows, 0)), np.stack(codes, 1).astype(np.int32)), labels


@pytest.mark.parametrize("learned", [tan, kdb])
def test_with_little_noise_structures_are_those_of_exact_pairs(learned):
    rows, labels = chain(np.random.default_rng(6), 16_000)
    asked = PairTables(0, (3,) * 5, 2, structure_cost(Privacy(epsilon=16.0)))
    total = asked.sums(rows, labels) + asked.noise(10, np.random.default_rng(7).bytes).sum(axis=0)
    exact = learned(Pairs.of(rows, labels, 2, (3,) * 5))
    noisy = learned(asked.opened(total, 10))
    assert set(map(len, noisy)) <= {0, 1, 2}
    if learned is tan:
        assert noisy == exact == ((), (0,), (1,), (2,), (3,))
    else:
        assert all(set(links) <= set(of_exact) or links for links, of_exact in zip(noisy, exact, strict=True))


def test_noise_alone_links_and_crosses_next_to_nothing():
    rng = np.random.default_rng(8)
    rows = Rows(np.zeros((4000, 0)), rng.integers(3, size=(4000, 8)).astype(np.int32))
    labels = rng.integers(2, size=4000)
    schema = Schema(tuple(Column(name, "discrete", ("x", "y", "z")) for name in "abcdefgh"), (0, 1))
    linked, crossed = 0, 0
    asked = PairTables(0, (3,) * 8, 2, structure_cost(Privacy(epsilon=4.0)))
    for seed in range(40):
        total = asked.sums(rows, labels) + asked.noise(10, np.random.default_rng(seed).bytes).sum(axis=0)
        opened = asked.opened(total, 10)
        linked += int(np.isfinite(opened.score("none")).sum()) // 2
        crossed += len(opened.crosses(schema))
    assert linked <= 0.02 * 40 * 28 and crossed <= 0.02 * 40 * 28


def test_the_fit_without_interaction_keeps_all_margins():
    table = np.random.default_rng(9).uniform(5.0, 50.0, (2, 3, 3))
    fitted = _additive(table, 0.0)
    for axis in range(3):
        assert np.allclose(fitted.sum(axis=axis), table.sum(axis=axis), rtol=1e-6)
    odds = fitted[0] / fitted[1]
    ratio = np.log(odds[1:, 1:] * odds[:-1, :-1] / (odds[1:, :-1] * odds[:-1, 1:]))
    assert np.abs(ratio).max() < 1e-9


def test_columns_that_tell_only_together_are_crossed():
    rng = np.random.default_rng(10)
    codes = rng.integers(2, size=(6000, 5)).astype(np.int32)
    labels = np.where(rng.random(6000) < 0.85, codes[:, 1] ^ codes[:, 3], rng.integers(2, size=6000))
    schema = Schema(tuple(Column(name, "discrete", ("x", "y")) for name in "abcde"), (0, 1))
    asked = PairTables.of(schema, True, structure_cost(Privacy(epsilon=4.0)))
    total = asked.sums(Rows(np.zeros((6000, 0)), codes), labels)
    total += asked.noise(5, np.random.default_rng(11).bytes).sum(axis=0)
    (best, *others) = asked.opened(total, 5).crosses(schema)
    assert best.columns == ("b", "d") and best.shape == (2, 2) and len(others) <= 1


def test_one_column_has_no_pairs_and_links_nothing():
    asked = PairTables(0, (4,), 2, cost=1.0)
    opened = asked.opened(asked.sums(Rows(np.zeros((3, 0)), np.zeros((3, 1), np.int32)), np.zeros(3, int)), 4)
    assert asked.size == 0 and tan(opened) == ((),) == kdb(opened)
    assert asked.noise(3, np.random.default_rng(0).bytes).shape == (3, 0)


# --- what is declared


def test_edges_of_units_are_quantiles_of_a_normal_distribution():
    assert np.allclose(normal_quantiles(8), ndtri(np.arange(1, 8) / 8), atol=5e-7)
    assert np.allclose(edges_of_units(50.0, 2.0), 50.0 + 2.0 * ndtri(np.arange(1, 8) / 8), atol=2e-6)
    assert edges_of_units(3.0, 0.0) == () == edges_of_units(1e300, 1e-300)


SCHEMA = Schema(
    (
        Column("age", "continuous"),
        Column("dose", "binned", edges=(1.0, 2.0, 3.0, 4.0)),
        Column("sex", "discrete", ("f", "m")),
    ),
    (0, 1),
)


def test_declared_links_are_parents_and_declared_crosses_groups():
    assert declared_parents((("dose", "age"), ("sex", "dose")), "tan", SCHEMA) == ((1,), (2,), ())
    (cross,) = declared_crosses((("dose", "sex"),), SCHEMA, 3)
    assert cross.columns == ("dose", "sex") and cross.shape == (3, 2)


@pytest.mark.parametrize(
    ("structure", "family", "reason"),
    [
        (
            [["dose", "age"], ["sex", "age"]],
            "tan",
            "'age' the parents 'dose', 'sex'; expected at most 1, as tan has",
        ),
        ([["age", "dose"]], "tan", "continuous parent 'age'"),
        ([["sex", "size"]], "kdb", "names 'size'"),
        ([["dose", "sex"], ["sex", "dose"]], "tan", "cycle"),
    ],
)
def test_links_that_do_not_fit_are_refused(structure, family, reason):
    with pytest.raises(StructureError, match=reason):
        declared_parents(structure_in("structure", structure), family, SCHEMA)


def test_crosses_of_numbers_are_refused():
    with pytest.raises(StructureError, match="crosses 'age'; expected columns of cells"):
        declared_crosses((("age", "sex"),), SCHEMA, 3)


@pytest.mark.parametrize("value", ["ab", [["a"]], [["a", "a"]], [["a", 1]], {"a": ["b"]}, [1], 3])
def test_a_structure_is_a_list_of_pairs(value):
    with pytest.raises(ValueError, match=r"structure is .*; expected a list of pairs of columns"):
        structure_in("structure", value)


# --- simulations


def table(rows=1200, seed=0):
    """Two columns that tell the class only together, a copy of one of them with noise, and one that tells it alone."""
    rng = np.random.default_rng(seed)
    a, b = rng.integers(2, size=(2, rows))
    y = np.where(rng.random(rows) < 0.9, a ^ b, rng.integers(2, size=rows))
    texts = [np.array(["no", "yes"])[column] for column in (a, b, np.where(rng.random(rows) < 0.9, a, 1 - a))]
    return pd.DataFrame(dict(zip("abc", texts, strict=True)) | {"x": y + rng.normal(size=rows)}), y


def run(privacy, **more):
    X, y = table()
    given = {"peers": 8, "rows_per_peer": 120, "topology": "regular-4", "rounds": 16, "references": False,
             "evaluate_every": 0, **more}  # fmt: skip
    return pb.simulate(X, y, privacy=privacy, **given)


def test_a_private_simulation_learns_links_and_says_what_it_spent():
    private = run(Privacy(epsilon=8.0, structure_share=0.3), family="tan")
    links = {
        frozenset((child, *parents))
        for child, parents in named_parents(private.layout, private.schema).items()
    }
    assert frozenset("ac") in links
    assert private.privacy["epsilon"].iloc[0] == pytest.approx(8.0, abs=1e-6)
    again = run(Privacy(epsilon=8.0, structure_share=0.3), family="tan")
    assert np.array_equal(private.stats, again.stats)
    parents = named_parents(private.layout, private.schema)
    structure = [[parent, child] for child, of_child in parents.items() for parent in of_child]
    declared = run(Privacy(epsilon=8.0), family="tan", structure=structure)
    assert named_parents(declared.layout, declared.schema) == parents
    ratio = declared.privacy["sigma"] / private.privacy["sigma"]  # rounds have what is left of the budget
    assert ratio.to_numpy() == pytest.approx(math.sqrt(0.7), rel=1e-6)


def test_a_private_simulation_crosses_columns_and_bins_numbers_without_their_quantiles():
    private = run(Privacy(epsilon=8.0), family="ga2m")
    assert ("a", "b") in [cross.columns for cross in private.schema.crosses]
    (column,) = [column for column in private.schema.columns if column.name == "x"]
    assert column.kind == "binned" and len(column.edges) == 7
    assert np.allclose(
        np.diff(column.edges, 2)[:3] + np.diff(column.edges, 2)[:-4:-1], 0.0, atol=1e-5
    )  # symmetric
    without = run(Privacy(epsilon=8.0), family="ga2m", structure=[])
    assert without.schema.crosses == ()
    assert private.summary()["test_error"] < without.summary()["test_error"] - 0.05
    declared = run(Privacy(epsilon=8.0), family="ga2m", structure=[["b", "a"]])
    assert [cross.columns for cross in declared.schema.crosses] == [("b", "a")]


def test_a_declared_structure_needs_no_sums_and_no_epsilon():
    plain = run(None, family="kdb", structure=[["a", "c"], ["b", "c"]])
    assert named_parents(plain.layout, plain.schema)["c"] == ["a", "b"]
    hidden = run(None, family="tan", structure=[["a", "c"]], secure_sum=True, strategy="exact")
    assert hidden.summary()["test_error"] < 0.45
    crossed = run(None, family="ga2m", structure=[["a", "b"]])
    assert [cross.columns for cross in crossed.schema.crosses] == [("a", "b")]


def test_an_epsilon_lets_secure_sums_learn_a_structure():
    hidden = run(Privacy(epsilon=8.0), family="tan", secure_sum=True, strategy="exact")
    assert hidden.privacy["epsilon"].iloc[0] == pytest.approx(8.0, abs=1e-6)
    with pytest.raises(
        ValueError, match=r"secure_sum with family .tan.*expected a structure, an epsilon, or"
    ):
        run(None, family="tan", secure_sum=True, strategy="exact")
