"""Binned columns: edges from counts, the laws that they obey, and models of them."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.naive_bayes import CategoricalNB

import peerbayes as pb
from peerbayes import Column, Schema, SchemaError, SchemaMismatch
from peerbayes.data.bins import (
    BINS,
    GRID,
    Grid,
    between,
    cell_of,
    counted,
    cuts,
    edges_of,
    edges_of_grids,
    finer,
    finer_counts,
)
from peerbayes.data.table import Rows
from peerbayes.model import sources

VALUES = st.lists(st.integers(-40, 40).map(lambda k: k / 8), min_size=1, max_size=60).map(np.array)
SIZES = st.integers(2, 20)


def table(rows=400, seed=3):
    """A skewed amount with missing values, a number with three values, a colour, and labels that depend on them."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, rows)
    amount = np.exp(rng.normal(labels, 1.0))
    amount[rng.random(rows) < 0.05] = np.nan
    frame = pd.DataFrame(
        {
            "amount": amount,
            "size": rng.integers(0, 3, rows) + (labels == 1),
            "colour": np.array(["red", "green", "blue"], dtype=object)[rng.integers(0, 3, rows)],
        }
    )
    return frame, np.array(["a", "b", "c"])[labels]


# --- edges -------------------------------------------------------------------------------------------------


@given(VALUES, SIZES)
def test_edges_rise_and_lie_between_values(values, bins):
    edges = edges_of(values, bins=bins)
    assert list(edges) == sorted(set(edges)) and len(edges) < bins + (len(set(values)) <= bins)
    cells = cell_of(values, np.array(edges))
    assert set(cells) == set(range(len(edges) + 1))  # none is empty
    assert not set(edges) & set(values)


@given(VALUES, SIZES, st.integers(0, 2**32 - 1))
def test_the_order_of_the_rows_does_not_matter(values, bins, seed):
    rng = np.random.default_rng(seed)
    weights, order = rng.random(values.size), rng.permutation(values.size)
    assert edges_of(values[order], bins=bins) == edges_of(values, bins=bins)
    assert edges_of(values[order], weights[order], bins) == edges_of(values, weights, bins)
    same, tenths = np.ones(3), np.array([0.1, 0.2, 0.3])  # 0.1 + 0.2 + 0.3 is not 0.3 + 0.2 + 0.1
    assert counted(same, tenths)[1] == counted(same, tenths[::-1])[1]


@given(VALUES, SIZES)
def test_a_rising_function_of_the_values_has_the_same_bins(values, bins):
    cells = cell_of(values, np.array(edges_of(values, bins=bins)))
    for rising in (np.exp, np.arctan, lambda x: 1000 * x - 7, lambda x: x**3):
        moved = rising(values)
        np.testing.assert_array_equal(cell_of(moved, np.array(edges_of(moved, bins=bins))), cells)


@given(VALUES, SIZES)
def test_bins_hold_equal_shares_but_for_the_ties_of_one_value(values, bins):
    distinct, counts = np.unique(values, return_counts=True)
    cells = cell_of(values, np.array(edges_of(values, bins=bins)))
    if distinct.size <= bins:
        np.testing.assert_array_equal(np.unique(values)[cells], values)  # a bin for each value
        return
    below = np.cumsum(np.bincount(cells))[:-1]
    for k in range(1, bins):  # a cut lies as near to each quantile as ties allow
        assert np.abs(below - k * values.size / bins).min() <= counts.max() / 2


@given(VALUES, st.integers(2, 5))
def test_a_row_of_weight_three_counts_like_three(values, bins):
    weights = np.arange(values.size) % 3 + 1.0
    assert edges_of(np.repeat(values, weights.astype(int)), bins=bins) == edges_of(values, weights, bins)


@given(VALUES, SIZES)
def test_cuts_are_those_of_a_search_over_all(values, bins):
    _, counts = counted(values)
    if counts.size <= bins:
        return
    below = np.cumsum(counts)[:-1]
    nearest = {int(np.argmin(np.abs(below * bins - k * counts.sum()))) for k in range(1, bins)}
    assert set(cuts(counts, bins)) == nearest


@given(VALUES, st.lists(st.integers(-30, 30).map(lambda k: k / 8), unique=True, max_size=8))
def test_the_cell_is_the_number_of_edges_at_or_below(values, edges):
    edges = sorted(edges)
    expected = [sum(edge <= value for edge in edges) for value in values]
    assert cell_of(values, np.array(edges)).tolist() == expected
    assert cell_of(np.array([np.nan]), np.array(edges)).tolist() == [-1]


@pytest.mark.parametrize(
    ("low", "high"),
    [(0.0, 5e-324), (1.0, np.nextafter(1.0, 2)), (-1.7e308, 1.7e308), (-5e-324, 0.0), (1e-300, 3e-300)],
)
def test_an_edge_separates_any_two_numbers(low, high):
    assert low < between(low, high) <= high


def test_edges_of_a_grid_are_quantiles_to_its_resolution():
    rng = np.random.default_rng(5)
    values = np.concatenate([rng.normal(size=3000), rng.exponential(20, 1000)])
    grid = Grid(float(values.min()), float(values.max()))
    coarse = grid.counts(values)
    grids = finer(grid, coarse)
    fine = finer_counts(grid, grids, values)
    edges = edges_of_grids(grid, coarse, grids, fine)
    wrong = np.abs(
        np.subtract(*(np.searchsorted(np.sort(values), ends) for ends in (edges, edges_of(values))))
    )
    assert len(edges) == BINS - 1 and wrong.max() <= max(counts.max() for counts in fine)
    resolution = (grid.high - grid.low) / GRID**2  # where values lie closer than lines
    np.testing.assert_allclose(edges[:12], edges_of(values)[:12], atol=resolution)
    assert coarse.sum() == values.size and len(grids) < BINS


def test_a_grid_without_rows_has_no_edges():
    grid = Grid(0.0, 1.0)
    assert finer(grid, np.zeros(GRID)) == [] and edges_of_grids(grid, np.zeros(GRID), [], []) == ()


# --- schemas -----------------------------------------------------------------------------------------------


def test_numbers_are_binned_and_the_others_are_discrete():
    frame, labels = table()
    frame["same"], frame["nothing"], frame["flag"] = 7.0, np.nan, frame["size"] > 1
    schema = Schema.infer(frame, labels, kinds="binned")
    assert list(schema.kinds.values()) == ["binned", "binned", "discrete", "binned", "binned", "discrete"]
    assert schema.cardinalities == (BINS, 4, 3, 1, 1, 2) and schema.continuous == ()
    assert schema.columns[1].edges == (0.5, 1.5, 2.5) and schema.columns[1].labels == (
        "< 0.5",
        "0.5 to 1.5",
        "1.5 to 2.5",
        "≥ 2.5",
    )
    assert schema.columns[4].empty and not schema.columns[3].empty
    one = Schema.infer(frame, labels, kinds={"amount": "binned"})
    assert list(one.kinds.values())[:2] == ["binned", "continuous"]
    assert one.columns[0] == schema.columns[0]


def test_text_that_is_declared_binned_is_refused():
    with pytest.raises(SchemaError, match="'colour' is binned, but holds 'red'"):
        Schema.infer(pd.DataFrame({"colour": ["red", "blue"]}), kinds={"colour": "binned"})


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (lambda: Column("x", "binned", edges=(1.0, 1.0)), "rising"),
        (lambda: Column("x", "binned", edges=(2.0, 1.0)), "rising"),
        (lambda: Column("x", "binned", edges="12"), "a list of numbers"),
        (lambda: Column("x", "binned", edges=(1.0, np.inf)), "finite"),
        (lambda: Column("x", "binned", ("a",)), "expected edges"),
    ],
)
def test_edges_that_cannot_be_are_refused(column, reason):
    with pytest.raises(SchemaError, match=reason):
        column()


def test_infinities_are_refused_by_row():
    schema = Schema((Column("x0", "binned", edges=(0.0,)), Column("x1", "continuous")), (0, 1))
    for X in (np.array([[1.0, 2.0], [np.inf, 0.0]]), pd.DataFrame({"x0": [0.0, np.inf], "x1": 1.0})):
        with pytest.raises(SchemaError, match=r"'x0' holds infinity \(inf, row 1\)"):
            schema.encode(X)
        with pytest.raises(SchemaError, match="'x0' holds infinity"):
            Schema.infer(X, kinds="binned")
    with pytest.raises(SchemaError, match=r"'x0' holds infinity \(inf, row 1\)"):
        pb.MixedNB(schema=schema).fit(np.array([[1.0, 2.0], [np.inf, 0.0]]), [0, 1])


def test_a_schema_survives_its_text_and_old_texts_keep_their_bytes():
    frame, labels = table()
    schema = Schema.infer(frame, labels, kinds="binned")
    again = Schema.from_json(schema.to_json())
    assert again == schema and again.fingerprint == schema.fingerprint and again.to_json() == schema.to_json()
    plain = Schema((Column("x", "continuous", location=1.5), Column("c", "discrete", ("a", "b"))), (0, 1))
    assert plain.to_json() == (
        '{"classes":[0,1],"clip":5.0,"columns":[{"categories":[],"constant":false,"count":null,"kind":"continuous",'
        '"location":1.5,"name":"x","scale":1.0},{"categories":["a","b"],"constant":false,"count":null,'
        '"kind":"discrete","location":0.0,"name":"c","scale":1.0}],"format":1,"label":"label"}'
    )
    assert plain.fingerprint == "a3a1d9c76fa3620d7224fdd3e6efb7fcaa2cc9dee988ea195585ea533b030688"
    other = Schema((Column("x", "binned", edges=(1.0,)),))
    assert other.fingerprint != Schema((Column("x", "binned", edges=(1.5,)),)).fingerprint
    assert other.fingerprint == Schema((Column("x", "binned", edges=(1.0,), low=0.0, high=3.0),)).fingerprint


def test_equal_edges_merge_and_others_are_refused():
    mine = Column("x", "binned", edges=(1.0, 2.0), count=3.0, low=0.5, high=2.5)
    theirs = Column("x", "binned", edges=(1.0, 2.0), count=2.0, low=0.7, high=9.0)
    merged = Schema((mine,)).merge(Schema((theirs,)))
    assert merged == Schema((theirs,)).merge(Schema((mine,)))
    assert merged.columns[0] == Column("x", "binned", edges=(1.0, 2.0), count=5.0, low=0.5, high=9.0)
    with pytest.raises(
        SchemaMismatch, match=r"edges \[1, 2\] in the first, \[1, 3\] in the second: agree on edges"
    ):
        Schema((mine,)).merge(Schema((Column("x", "binned", edges=(1.0, 3.0)),)))
    empty = Column("x", "binned", count=0.0)
    assert Schema((empty,)).merge(Schema((mine,))).columns == (mine,)


def test_a_decoded_value_lies_in_its_bin():
    frame, labels = table()
    schema = Schema.infer(frame, labels, kinds="binned")
    rows = schema.encode(frame)
    for rng in (None, np.random.default_rng(0)):
        decoded = schema.decode(rows, rng)
        np.testing.assert_array_equal(schema.encode(decoded).codes, rows.codes)
        inside = decoded["amount"].dropna()
        assert frame["amount"].min() <= inside.min() and inside.max() <= frame["amount"].max()
        assert decoded["amount"].isna().equals(frame["amount"].isna())
    declared = Schema((Column("x", "binned", edges=(1.0, 3.0)),))
    codes = np.array([[0], [1], [2], [-1]], dtype=np.int32)
    decoded = declared.decode(Rows(np.empty((4, 0)), codes))
    assert decoded["x"].tolist()[:3] == [0.0, 2.0, 4.0] and decoded["x"].isna().tolist() == [False] * 3 + [
        True
    ]


# --- models ------------------------------------------------------------------------------------------------


def test_a_fit_is_that_of_scikit_learn_on_the_bins():
    frame, labels = table()
    frame = frame.dropna()
    labels = labels[frame.index]
    model = pb.MixedNB(kinds="binned", alpha=1.0).fit(frame, labels)
    codes = model.schema_.encode(frame).codes
    reference = CategoricalNB(alpha=1.0, min_categories=list(model.schema_.cardinalities)).fit(codes, labels)
    np.testing.assert_allclose(model.predict_proba(frame), reference.predict_proba(codes), atol=1e-9)
    np.testing.assert_allclose(
        model.predict_joint_log_proba(frame), reference.predict_joint_log_proba(codes), atol=1e-9
    )


@pytest.mark.parametrize("calibrate", [False, True])
@pytest.mark.parametrize("estimator", [pb.MixedNB, pb.TAN])
def test_files_explanations_and_samples(estimator, calibrate, tmp_path):
    frame, labels = table()
    frame = frame.fillna(1.0)
    model = estimator(kinds="binned", calibrate=calibrate).fit(frame, labels)
    model.save(tmp_path / "model.pb")
    again = pb.load(tmp_path / "model.pb")
    np.testing.assert_array_equal(again.predict_proba(frame), model.predict_proba(frame))
    assert again.schema_ == model.schema_
    described = model.describe()
    amounts = described[(described["feature"] == "amount") & (described["class"] == "a")]
    assert amounts["category"].tolist() == list(model.schema_.columns[0].labels)
    assert amounts["probability"].sum() == pytest.approx(1.0)
    explained = model.explain(frame.iloc[:2])
    odds = explained[explained["row"] == 0]["log_odds"].sum()
    probabilities = np.sort(model.predict_proba(frame.iloc[:1])[0])
    assert odds == pytest.approx(np.log(probabilities[-1] / probabilities[-2]))
    drawn, _ = model.sample(200, random_state=1)
    assert drawn["amount"].between(frame["amount"].min(), frame["amount"].max()).all()
    assert drawn["amount"].nunique() > BINS
    if estimator is pb.TAN:
        cells = model.conditional_tables()["size"]
        assert all(set(shares) == set(model.schema_.columns[1].labels) for shares in cells.values())


@pytest.mark.parametrize("others", ["none", "integers", "continuous"])
def test_an_array_is_streamed_as_it_is_encoded(others):
    rng = np.random.default_rng(2)
    X = rng.normal(size=(700, 3))
    X[::50, 0] = np.nan
    kinds = ["binned", "binned", "binned"]
    if others != "none":
        X = np.column_stack([rng.integers(0, 4, 700), X])
        kinds = ["discrete" if others == "integers" else "continuous", *kinds]
    schema = Schema.infer(X, rng.integers(0, 2, 700), kinds=kinds)
    once, many = (sources.source_of(schema, sources.Table.of(X), again=again) for again in (False, True))
    assert isinstance(once, sources.Raw) and isinstance(many, sources.Celled)
    some, fewer = rng.random(700) < 0.6, rng.random(700) < 0.3
    subset = sources.taken(sources.taken(many, some), fewer[some])
    for source, rows in ((once, X), (many, X), (subset, X[some & fewer])):
        for fast in (False, True):
            starts, blocks = zip(
                *((start, block.rows()) for start, block in source.blocks(64, fast)), strict=True
            )
            codes, values = (np.concatenate([part[k] for part in blocks]) for k in (1, 0))
            assert starts == tuple(range(0, len(rows), 64)) and source.rows == len(rows)
            np.testing.assert_array_equal(codes, schema.encode(rows).codes)
            np.testing.assert_allclose(values, schema.encode(rows).values, rtol=1e-12)
        np.testing.assert_array_equal(sources.rows_at(source, np.array([3, 99])).codes, codes[[3, 99]])


def test_statistics_of_parts_add_up():
    frame, labels = table()
    schema = Schema.infer(frame, labels, kinds="binned")
    pooled = pb.MixedNB(schema=schema).fit(frame, labels).statistics_
    parts = [pb.MixedNB(schema=schema).fit(frame[k::2], labels[k::2]).statistics_ for k in range(2)]
    np.testing.assert_allclose((parts[0] + parts[1]).values, pooled.values, atol=1e-9)
    other = pb.MixedNB(kinds="binned").fit(frame[::2], labels[::2]).statistics_
    with pytest.raises(ValueError, match="agree on edges"):
        parts[0] + other


def test_parts_of_rows_need_agreed_edges():
    frame, labels = table()
    for kinds in ("binned", {"amount": "binned"}):
        with pytest.raises(ValueError, match=r"kinds='binned' needs the quantiles of all rows"):
            pb.MixedNB(kinds=kinds).partial_fit(frame, labels, classes=["a", "b", "c"])
    schema = Schema.infer(frame, labels, kinds="binned")
    whole = pb.MixedNB(schema=schema).fit(frame, labels)
    model = pb.MixedNB(schema=schema)
    for part in (slice(0, 150), slice(150, None)):
        model.partial_fit(frame[part], labels[part], classes=["a", "b", "c"])
    np.testing.assert_allclose(model.predict_proba(frame), whole.predict_proba(frame), atol=1e-12)


def test_prior_knowledge_names_the_intervals():
    schema = Schema((Column("x", "binned", edges=(1.0,)),), ("a", "b"))
    belief = {"a": {"< 1": 0.9, "≥ 1": 0.1}, "b": {"< 1": 0.2, "≥ 1": 0.8}}
    prior = pb.prior_knowledge(schema, 100, classes={"a": 0.5, "b": 0.5}, columns={"x": belief})
    model = pb.MixedNB.from_statistics(prior, alpha=0.0)
    np.testing.assert_allclose(model.predict_proba(pd.DataFrame({"x": [0.0, 1.0]}))[:, 0], [9 / 11, 1 / 9])


def test_a_simulation_and_its_report(tmp_path):
    pytest.importorskip("plotly")
    frame, labels = table()
    run = pb.simulate(frame.fillna(1.0), labels, kinds="binned", peers=4, rows_per_peer=60, rounds=4)
    assert set(run.schema.kinds.values()) == {"binned", "discrete"}
    run.report(tmp_path / "report.html")
    assert "0.5 to 1.5" in (tmp_path / "report.html").read_text(encoding="utf-8")
