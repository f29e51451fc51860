"""Probabilities of a model with a scaling: predictions, explanations, costs, files and statistics."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import peerbayes as pb
from peerbayes.data import files
from peerbayes.data.table import Table
from peerbayes.errors import ModelFileDamaged, StatisticsMismatch
from peerbayes.estimators import generative
from peerbayes.estimators.classifiers import ESTIMATORS
from peerbayes.learning.metrics import Outcome, log_loss
from peerbayes.model import folds
from peerbayes.model.scaling import Scaling
from peerbayes.model.statistics import Statistics

SCALING = Scaling(2.0, (0.9, -0.4, -0.5), 0.05)


def table(n: int = 300, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    frame = pd.DataFrame(
        {
            "x": rng.normal(size=n) + y,
            "z": rng.normal(size=n) - 0.5 * (y == 1),
            "colour": np.where(rng.random(n) < 0.3 + 0.2 * y, "red", "blue"),
        }
    )
    return frame, np.array(["a", "b", "c"])[y]


def of_numbers(name: str, X, y):
    """The parameters by which an estimator takes numbers: AODE takes every value for a category, if it is not told."""
    return {"schema": pb.Schema.infer(X, y, bins=4)} if name == "AODE" else {}


def scaled(name: str, scaling: Scaling = SCALING, **parameters):
    """Return a calibrated model without a scaling, the same one with it, and rows."""
    X, y = table()
    fixed = {"calibrate": True, "max_iter": 5, **of_numbers(name, X, y)}
    plain = ESTIMATORS[name](**fixed, **parameters).fit(X, y)
    plain = type(plain).from_statistics(replace(plain.statistics_, scaling=None), **fixed, **parameters)
    statistics = replace(plain.statistics_, scaling=scaling)
    return plain, type(plain).from_statistics(statistics, **fixed, **parameters), X


@pytest.mark.parametrize("name", list(ESTIMATORS))
@pytest.mark.parametrize("missing", [False, True], ids=["complete", "missing"])
def test_probabilities_are_scaled_and_the_joint_density_is_not(name, missing):
    plain, model, X = scaled(name)
    if missing:
        X = X[:60].mask(np.random.default_rng(1).random((60, 3)) < 0.2)
    joint = model.predict_joint_log_proba(X)
    np.testing.assert_array_equal(joint, plain.predict_joint_log_proba(X))
    probabilities = SCALING.probabilities(joint)
    np.testing.assert_allclose(model.predict_proba(X), probabilities, atol=1e-12)
    np.testing.assert_allclose(model.predict_log_proba(X), np.log(probabilities), atol=1e-10)
    np.testing.assert_array_equal(model.predict(X), model.classes_[probabilities.argmax(axis=1)])
    assert (model.predict(X) != plain.predict(X)).any()  # by the biases
    assert plain.scaling_ == Scaling.identity(3)


def test_costs_weigh_scaled_probabilities():
    costs = [[0, 1, 5], [1, 0, 1], [3, 1, 0]]
    _, model, X = scaled("MixedNB", costs=costs)
    expected = (model.predict_proba(X) @ np.array(costs)).argmin(axis=1)
    np.testing.assert_array_equal(model.predict(X), model.classes_[expected])


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_explanations_add_up_to_the_scaled_log_odds(name):
    plain, model, X = scaled(name)
    explained, log_proba = model.explain(X), model.predict_log_proba(X)
    sums = explained.groupby("row")["log_odds"].sum().to_numpy()
    ranked = np.sort(log_proba, axis=1)
    np.testing.assert_allclose(sums, ranked[:, -1] - ranked[:, -2], atol=1e-9)
    assert list(explained.groupby("row")["of"].first()) == list(model.predict(X))
    sides = {"of": "a", "against": "c"}
    before, after = (m.explain(X.iloc[:1], **sides).set_index("feature")["log_odds"] for m in (plain, model))
    assert after["x"] == pytest.approx(before["x"] / 2)
    assert after["(baseline)"] == pytest.approx(before["(baseline)"] / 2 + 1.4)
    assert explained.groupby("row")["feature"].last().eq("(noise)").all() and "(noise)" not in before


def test_a_file_keeps_the_scaling(tmp_path):
    _, model, X = scaled("TAN")
    model.save(tmp_path / "model")
    loaded = pb.load(tmp_path / "model")
    assert loaded.scaling_ == SCALING
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    (tmp_path / "statistics").write_bytes(model.statistics_.to_bytes())
    np.testing.assert_array_equal(pb.load(tmp_path / "statistics").predict_proba(X), model.predict_proba(X))


def test_a_model_without_a_scaling_has_no_field_for_it():
    plain, model, _ = scaled("MixedNB")
    assert "scaling" in model.statistics_.described()
    assert "scaling" not in plain.statistics_.described()


@pytest.mark.parametrize(
    "damage", [{"temperature": -1.0}, {"temperature": "warm"}, {"bias": [0.0]}, {"bias": [0.0, 0.0, None]}]
)
def test_a_damaged_scaling_is_refused(tmp_path, damage):
    _, model, _ = scaled("MixedNB")
    statistics = model.statistics_
    header = statistics.described()
    header["scaling"] |= damage
    files.write(
        tmp_path / "bad", files.pack({"kind": "statistics", **header}, {"statistics": statistics.values})
    )
    with pytest.raises(ModelFileDamaged):
        pb.load(tmp_path / "bad")


def test_statistics_carry_the_scaling_of_their_model_but_not_to_a_sum():
    _, model, _ = scaled("MixedNB")
    statistics = model.statistics_
    assert (2.0 * statistics).scaling == statistics.with_missing().scaling == SCALING
    assert (statistics + statistics).scaling is None
    order = replace(statistics.schema, classes=("c", "new", "a", "b"))
    assert statistics.expressed(order).scaling == Scaling(2.0, (-0.5, 0.0, 0.9, -0.4), 0.05)
    with pytest.raises(StatisticsMismatch, match="2 classes"):
        Statistics(statistics.values, statistics.schema, statistics.family, True, scaling=Scaling.identity(2))


# --- fitting the scaling


def repeated(n: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Return rows of two classes in which a column occurs six times: naive Bayes is much too sure."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    x = rng.normal(size=n) + y
    return pd.DataFrame({f"copy {k}": x + 0.05 * rng.normal(size=n) for k in range(6)}), y


def test_probabilities_of_new_rows_are_truer_with_the_scaling():
    (X, y), (test, truth) = repeated(400, 1), repeated(4000, 2)
    model = pb.MixedNB(calibrate=True, start="ml", max_iter=1, keep="last").fit(X, y)
    plain = pb.MixedNB.from_statistics(model.statistics_, temperature=False)
    assert plain.scaling_ == Scaling.identity(2)
    assert model.scaling_.temperature > 2
    losses, errors = [], []
    for m in (model, plain):
        losses.append(log_loss(m.predict_log_proba(test), truth))
        errors.append(Outcome.of(m.predict_proba(test), truth).calibration_error)
    assert losses[0] < losses[1] - 0.1
    assert errors[0] < 0.03 < 0.1 < errors[1]


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_the_scaling_is_of_held_out_rows_under_models_that_never_saw_them(name, monkeypatch):
    X, y = table(150)
    seen = []
    monkeypatch.setattr(generative, "fit", lambda *rows: seen.append(rows) or SCALING)
    model = ESTIMATORS[name](calibrate=True, max_iter=4, **of_numbers(name, X, y)).fit(X, y)
    ((logits, labels, weights),) = seen
    assert model.scaling_ == model.statistics_.scaling == SCALING
    assert weights is None and len(labels) == 150  # few rows are all held out, a tenth at a time
    np.testing.assert_array_equal(model.classes_[labels], y)
    plain = type(model).from_statistics(model.statistics_, temperature=False)
    of_all = plain.predict_log_proba(X)
    of_folds = Scaling.identity(3).log_probabilities(logits)
    apart = np.abs(of_folds - of_all).max(axis=1)
    assert apart.min() > 0 and apart.mean() < 2  # similar models, but not the same


def test_each_row_has_the_logits_of_the_model_without_its_fold(monkeypatch):
    X, y = table(150)
    seen = []
    monkeypatch.setattr(generative, "fit", lambda *rows: seen.append(rows) or SCALING)
    model = pb.MixedNB(calibrate=True, max_iter=6).fit(X, y)
    logits, labels, _ = seen[0]
    split = folds.split(model.schema_, Table.of(X), labels, None, 0.1)
    last = {"max_iter": model.best_iter_, "keep": "last", "validation_fraction": 0.0}
    for held in list(split.held_out())[:3]:
        other = pb.MixedNB(calibrate=True, schema=model.schema_, **last).fit(X[~held], y[~held])
        expected = other.predict_log_proba(X[held])
        np.testing.assert_allclose(Scaling.identity(3).log_probabilities(logits[held]), expected, atol=1e-6)


def test_of_many_rows_only_those_held_out_count(monkeypatch):
    X, y = table(12_000)
    seen = []
    monkeypatch.setattr(generative, "fit", lambda *rows: seen.append(rows) or SCALING)
    pb.MixedNB(calibrate=True, max_iter=2).fit(X, y)
    logits, labels, _ = seen[0]
    assert logits.shape == (len(labels), 3) and 1100 < len(labels) < 1300


def test_the_scaling_changes_nothing_else():
    X, y = table(100)
    fitted = [
        pb.MixedNB(calibrate=True, max_iter=8, temperature=temperature).fit(X, y)
        for temperature in ("auto", True, False)
    ]
    for model in fitted:
        np.testing.assert_array_equal(model.statistics_.values, fitted[0].statistics_.values)
    assert fitted[0].scaling_ == fitted[1].scaling_ != Scaling.identity(3)
    assert fitted[2].statistics_.scaling is None


def test_without_held_out_rows_there_is_no_scaling():
    X, y = table()
    for parameters in ({"calibrate": False}, {"calibrate": True, "validation_fraction": 0.0}):
        assert pb.MixedNB(**parameters).fit(X, y).scaling_ == Scaling.identity(3)
    assert pb.MixedNB(calibrate=True).fit(X[:15], y[:15]).scaling_ == Scaling.identity(3)
    with pytest.raises(ValueError, match="needs calibrate=True"):
        pb.MixedNB(temperature=True).fit(X, y)
    with pytest.raises(
        ValueError, match="needs held-out rows, but no row was held out: validation_fraction is 0"
    ):
        pb.MixedNB(calibrate=True, temperature=True, validation_fraction=0.0).fit(X, y)
    with pytest.raises(ValueError, match="needs held-out rows, but no row was held out: 15 different rows"):
        pb.MixedNB(calibrate=True, temperature=True).fit(X[:15], y[:15])
    with pytest.raises(ValueError, match="temperature is 'warm'; expected 'auto', True or False"):
        pb.MixedNB(temperature="warm").fit(X, y)


def test_rows_that_occur_several_times_count_like_weights():
    X, y = table(120)
    weights = np.random.default_rng(4).integers(1, 4, len(y))
    weighted = pb.MixedNB(calibrate=True).fit(X, y, sample_weight=weights)
    again = np.repeat(np.arange(len(y)), weights)
    copied = pb.MixedNB(calibrate=True).fit(X.iloc[again], y[again])
    np.testing.assert_allclose(weighted.predict_proba(X), copied.predict_proba(X), atol=1e-6)


def test_partial_fit_and_new_fits_forget_the_scaling():
    X, y = table()
    model = pb.MixedNB(calibrate=True).fit(X, y)
    model.set_params(calibrate=False).fit(X, y)
    assert model.scaling_ == Scaling.identity(3)
    assert pb.MixedNB().partial_fit(X, y, classes=["a", "b", "c"]).scaling_ == Scaling.identity(3)
