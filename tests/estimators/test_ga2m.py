"""The estimator GA2M: what it learns, what does not matter to it, and what it says of itself."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import peerbayes as pb
from peerbayes.data.crosses import Cross
from peerbayes.errors import NotSupported


def xor(rows=800, seed=0):
    """Two binary columns whose exclusive or is the class, and three of noise."""
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 2, (rows, 5)).astype(float)
    return X, (X[:, 0] != X[:, 1]).astype(int)


def mixed(rows=500, seed=1):
    """Numbers, text and missing values; the class depends on a product of the numbers and on the text."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "amount": rng.normal(size=rows),
            "rate": rng.exponential(size=rows),
            "ward": np.array(["north", "south", "east"], dtype=object)[rng.integers(0, 3, rows)],
            "count": rng.integers(0, 4, rows),
        }
    )
    score = 3 * frame["amount"] * (frame["rate"] - 0.7) + 2 * (frame["ward"] == "north") - 0.7
    labels = np.where(score + rng.logistic(size=rows) > 0, "ill", "well").astype(object)
    labels[rng.random(rows) < 0.1] = "other"
    frame.loc[rng.random(rows) < 0.05, "rate"] = np.nan
    frame.loc[rng.random(rows) < 0.05, "ward"] = None
    return frame, labels


@pytest.fixture(scope="module")
def fitted():
    X, y = mixed()
    return pb.GA2M().fit(X, y), X, y


# --- what it learns


def test_it_learns_what_naive_bayes_cannot():
    (X, y), (test, truth) = xor(), xor(2000, seed=9)
    assert pb.GA2M().fit(X, y).score(test, truth) > 0.95
    assert pb.MixedNB(calibrate=True, kinds="binned").fit(X, y).score(test, truth) < 0.6


def test_interactions_are_as_many_as_wanted():
    X, y = xor()
    everything = pb.GA2M().fit(X, y).crosses_
    assert everything[0] == ("x0", "x1")
    assert pb.GA2M(interactions=0).fit(X, y).crosses_ == []
    assert pb.GA2M(interactions=1).fit(X, y).crosses_ == everything[:1]
    assert pb.GA2M(interactions=np.int64(64)).fit(X, y).crosses_ == everything


def test_without_crosses_and_shrinkage_it_is_naive_bayes_on_bins():
    X, y = mixed()
    settings = {"start": "marginal", "temperature": False, "max_iter": 10, "keep": "last", "shrinkage": 0.0}
    additive = pb.GA2M(interactions=0, **settings).fit(X, y)
    plain = pb.MixedNB(schema=additive.schema_, calibrate=True, **settings).fit(X, y)
    np.testing.assert_allclose(additive.predict_proba(X), plain.predict_proba(X), atol=1e-9)


def test_cells_of_few_rows_move_less():
    """Shrinkage is in the steps: how many are right is chosen on rows that are held out."""
    X = pd.DataFrame({"mark": np.repeat(["often", "seldom"], [390, 10])})
    y = np.concatenate([np.arange(390) % 2, np.ones(10, dtype=int)])
    settings = {"temperature": False, "max_iter": 3, "keep": "last"}
    seldom = [
        pb.GA2M(shrinkage=rows, **settings).fit(X, y).predict_proba(X)[-1, 1] for rows in (0, 30, 300, 3000)
    ]
    assert seldom == sorted(seldom, reverse=True)
    assert seldom[0] > 0.65 and seldom[-1] < 0.52
    assert pb.GA2M(**settings).fit(X, y).predict_proba(X)[-1, 1] == seldom[2]


def test_numbers_go_into_bins_unless_their_kind_is_named():
    X, y = mixed()
    model = pb.GA2M(kinds={"amount": "continuous"}, bins=5).fit(X, y)
    kinds = {"amount": "continuous", "rate": "binned", "ward": "discrete", "count": "binned"}
    assert model.schema_.kinds == kinds
    assert model.schema_.columns[1].cells == 5
    assert not any("amount" in pair for pair in model.crosses_)
    assert pb.GA2M().fit(X, y).schema_.columns[0].cells == 64
    wide = np.random.default_rng(0).normal(size=(200, 9))
    assert pb.GA2M(max_iter=1).fit(wide, np.arange(200) % 2).schema_.columns[0].cells == 16


def test_a_given_schema_keeps_its_crosses(fitted):
    model, X, y = fitted
    assert model.crosses_
    groups = tuple(tuple(range(model.schema_.columns[j].cells)) for j in (2, 3))
    schema = replace(model.schema_, crosses=(Cross(("ward", "count"), groups),))
    assert pb.GA2M(schema=schema).fit(X, y).crosses_ == [("ward", "count")]
    assert pb.GA2M(schema=schema).fit(X, y).schema_ == schema
    again = pb.GA2M(schema=model.schema_).fit(X, y)
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))


# --- what does not matter


def test_the_order_of_rows_does_not_matter(fitted):
    model, X, y = fitted
    order = np.random.default_rng(0).permutation(len(X))
    shuffled = pb.GA2M().fit(X.iloc[order], y[order])
    assert shuffled.schema_ == model.schema_
    np.testing.assert_allclose(shuffled.predict_proba(X), model.predict_proba(X), atol=1e-8)


def test_the_names_of_classes_do_not_matter(fitted):
    model, X, y = fitted
    renamed = pb.GA2M().fit(X, pd.Series(y).map({"ill": 2, "other": 0, "well": 1}).to_numpy())
    assert renamed.crosses_ == model.crosses_
    np.testing.assert_allclose(renamed.predict_proba(X)[:, [2, 0, 1]], model.predict_proba(X), atol=1e-8)


def test_weights_of_whole_numbers_are_repetitions():
    X, y = mixed(600)
    weights = np.random.default_rng(2).integers(0, 3, len(X))
    settings = {"temperature": False, "validation_fraction": 0.0, "max_iter": 20}
    weighted = pb.GA2M(**settings).fit(X, y, sample_weight=weights)
    repeated = pb.GA2M(**settings).fit(X.loc[X.index.repeat(weights)], np.repeat(y, weights))
    assert weighted.schema_.crosses == repeated.schema_.crosses and weighted.crosses_
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), atol=1e-8)


def test_arrays_and_frames_of_any_kind_give_the_same_model():
    X, y = mixed()
    polars = pytest.importorskip("polars")
    model = pb.GA2M().fit(X, y)
    other = pb.GA2M().fit(polars.from_pandas(X), y)
    np.testing.assert_array_equal(other.predict_proba(polars.from_pandas(X)), model.predict_proba(X))
    numbers, array = X.drop(columns="ward"), X.drop(columns="ward").to_numpy(dtype=float)
    np.testing.assert_allclose(
        pb.GA2M().fit(array, y).predict_proba(array),
        pb.GA2M().fit(numbers, y).predict_proba(numbers),
        atol=1e-9,
    )


def test_a_large_table_gives_what_a_small_one_gives(monkeypatch):
    """Kernels of naive Bayes fit, since θ is the same."""
    X, y = xor(12_000)
    settings = {"max_iter": 10, "temperature": False}
    fast = pb.GA2M(**settings).fit(X, y)
    monkeypatch.setenv("PEERBAYES_PLAIN", "1")
    plain = pb.GA2M(**settings).fit(X, y)
    assert fast.schema_ == plain.schema_
    np.testing.assert_allclose(fast.predict_proba(X), plain.predict_proba(X), atol=1e-8)


# --- files and explanations


def test_a_saved_model_is_the_same_to_the_bit(fitted, tmp_path):
    model, X, _ = fitted
    model.save(tmp_path / "model")
    loaded = pb.load(tmp_path / "model")
    assert type(loaded) is pb.GA2M and loaded.crosses_ == model.crosses_
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    pd.testing.assert_frame_equal(loaded.explain(X[:5]), model.explain(X[:5]))
    restored = pb.GA2M.from_statistics(model.statistics_)
    np.testing.assert_array_equal(restored.predict_joint_log_proba(X), model.predict_joint_log_proba(X))


def test_an_explanation_adds_up_to_the_log_odds(fitted):
    model, X, _ = fitted
    rows = X[:20]
    explained = model.explain(rows, of="ill", against="well")
    odds = model.predict_log_proba(rows)
    names = set(explained["feature"])
    assert {f"{a} × {b}" for a, b in model.crosses_} <= names and {"(baseline)", *X.columns} <= names
    for i, part in explained.groupby("row"):
        assert part["log_odds"].sum() == pytest.approx(odds[i, 0] - odds[i, 2], abs=1e-9)


def test_a_description_has_the_shares_of_each_cell(fitted):
    model, X, y = fitted
    described = model.describe()
    wards = described[(described["feature"] == "ward") & (described["class"] == "ill")]
    here = X["ward"][(y == "ill") & X["ward"].notna()]
    np.testing.assert_allclose(
        wards.set_index("category")["probability"][["east", "north"]],
        [(here == "east").mean(), (here == "north").mean()], atol=1e-6,
    )  # fmt: skip
    cross = model.schema_.crosses[0]
    cells = described[(described["feature"] == cross.name) & (described["class"] == "well")]
    assert len(cells) == cross.cells and cells["probability"].sum() == pytest.approx(1)


# --- input that has little in it


def test_missing_values_tell_nothing(fitted):
    model, X, _ = fitted
    empty = pd.DataFrame({name: [None] for name in X.columns}).astype(
        {"amount": float, "rate": float, "count": float}
    )
    explained = model.explain(empty)
    assert (
        explained.loc[~explained["feature"].isin(["(baseline)", "(noise)"]), "log_odds"].abs() < 1e-9
    ).all()
    unknown = X[:1].assign(ward="a ward of no training row")
    none = X[:1].assign(ward=None)
    np.testing.assert_array_equal(model.predict_proba(unknown), model.predict_proba(none))


@pytest.mark.parametrize(
    "X",
    [np.ones((6, 3)), np.arange(6.0)[:, None], np.array([["a"], ["b"], ["a"], ["b"], ["a"], ["c"]], dtype=object),
     np.full((6, 2), np.nan), np.eye(6)],
    ids=["constant", "one column", "text", "missing", "few rows"],
)  # fmt: skip
def test_small_and_dull_tables_are_learned_from(X):
    model = pb.GA2M().fit(X, [0, 1, 0, 1, 0, 1])
    probabilities = model.predict_proba(X)
    assert np.isfinite(probabilities).all()
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)


def test_rows_of_one_class_are_refused_or_told_apart_by_nothing():
    with pytest.raises(ValueError, match="class"):
        pb.GA2M().fit(np.eye(3), [1, 1, 1])
    with pytest.raises(ValueError):
        pb.GA2M().fit([[1.0]], [1])


# --- what it cannot do, in a sentence


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"calibrate": False}, "use GA2M with calibrate=True, or MixedNB"),
        ({"interactions": -1}, "interactions"), ({"interactions": 1.5}, "interactions"),
        ({"interactions": "all"}, "interactions"), ({"interactions": True}, "interactions"),
        ({"bins": 1}, "bins"), ({"bins": "many"}, "bins"), ({"bins": None}, "bins"),
        ({"start": "mean"}, "start"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_refused(settings, sentence):
    X, y = xor(50)
    with pytest.raises(ValueError, match=sentence):
        pb.GA2M(**settings).fit(X, y)


def test_it_draws_no_rows(fitted):
    with pytest.raises(NotSupported, match=r"cannot sample rows.*use MixedNB or TAN"):
        fitted[0].sample(5)


def test_it_learns_from_all_rows_at_once():
    X, y = xor(50)
    assert not hasattr(pb.GA2M(), "partial_fit")
    with pytest.raises(ValueError, match="unlabelled is for calibrate=False: calibration learns from labels"):
        pb.GA2M(unlabelled=-1).fit(X, np.where(np.arange(50) < 5, -1, y))


def test_an_error_about_one_class_names_only_what_there_is():
    """GA2M learns no model from portions of rows, so it does not advise `partial_fit`."""
    X, _ = mixed(50)
    with pytest.raises(ValueError, match=r"Name the others in a schema$"):
        pb.GA2M().fit(X, ["ill"] * len(X))
    with pytest.raises(ValueError, match=r"partial_fit with classes=\.\.\."):
        pb.MixedNB().fit(X, ["ill"] * len(X))
