"""The family that `AutoBayes` chooses: which, why, and that it is the model that its own estimator would be."""

import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import peerbayes as pb
from peerbayes.data.table import Table
from peerbayes.estimators import auto_bayes
from peerbayes.estimators.auto_bayes import (
    CANDIDATES,
    CLEARLY,
    AutoBayes,
    choice,
    comparable,
    held_out,
    spread,
)

FEW = ("naive-bayes", "tan", "aode")


def table(n: int = 150, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Return three classes in two columns of numbers, of which the second is one of few, and one of text."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    frame = pd.DataFrame(
        {
            "x": rng.normal(size=n) + y,
            "z": np.round(rng.normal(size=n) - 0.5 * (y == 1), 1),
            "colour": np.where(rng.random(n) < 0.3 + 0.2 * y, "red", "blue"),
        }
    )
    return frame, np.array(["a", "b", "c"])[y]


def interaction(n: int = 300, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Return two columns that tell of the class only together."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    flips = rng.random(n) < 0.05
    return pd.DataFrame(X, columns=["left", "right"]), ((X[:, 0] * X[:, 1] > 0) ^ flips).astype(int)


def same_model(one, other, X) -> None:
    np.testing.assert_array_equal(one.classes_, other.classes_)
    np.testing.assert_array_equal(one.predict_log_proba(X), other.predict_log_proba(X))
    np.testing.assert_array_equal(one.predict(X), other.predict(X))


# --- the choice: a pure function of losses


def test_a_single_candidate_is_taken_whatever_its_losses():
    for losses in (np.zeros(0), np.array([3.0, np.inf])):
        assert choice({"tan": losses})[0] == "tan"
    assert "no other family" in choice({"tan": np.zeros(3)})[1]


def test_without_held_out_rows_the_smallest_candidate_is_taken():
    chosen, reason = choice({"lda": np.zeros(0), "qda": np.zeros(0)})
    assert chosen == "lda"
    assert "too few rows" in reason


@given(st.lists(st.integers(0, 5), min_size=2, max_size=len(CANDIDATES)), st.integers(1, 6))
def test_without_noise_the_lowest_loss_is_taken_and_of_equal_ones_the_first(levels, rows):
    losses = {
        name: np.full(rows, float(level)) for name, level in zip(list(CANDIDATES), levels, strict=False)
    }
    chosen, reason = choice(losses)
    assert chosen == list(losses)[levels.index(min(levels))]
    assert f"log loss {min(levels):.4f} on {rows} held-out rows" in reason
    second = min(level for name, level in zip(losses, levels, strict=True) if name != chosen)
    assert f"with {second:.4f}" in reason


LOSSES = st.integers(2, 12).flatmap(
    lambda rows: st.lists(
        st.lists(st.integers(0, 20).map(lambda level: level / 4), min_size=rows, max_size=rows).map(np.array),
        min_size=2,
        max_size=5,
    )
)


def margin(of: np.ndarray, beside: np.ndarray) -> float:
    """Return by how much losses are lower than others, beyond what noise explains."""
    gain = beside - of
    return gain.mean() - CLEARLY * gain.std() / np.sqrt(gain.size)


@given(LOSSES)
def test_the_choice_is_no_worse_than_the_first_and_no_later_one_is_clearly_better(values):
    losses = dict(zip(CANDIDATES, values, strict=False))
    names = list(losses)
    chosen = names.index(choice(losses)[0])
    assert losses[names[chosen]].mean() <= losses[names[0]].mean()
    assert all(margin(losses[later], losses[names[chosen]]) <= 1e-9 for later in names[chosen + 1 :])
    clear_of_all = [
        name
        for name in names
        if all(margin(losses[name], losses[other]) > 1e-9 for other in names if other != name)
    ]
    assert clear_of_all in ([], [names[chosen]])


@given(LOSSES, st.data())
def test_whole_weights_of_losses_are_repetition_and_order_does_not_matter(values, data):
    losses = dict(zip(CANDIDATES, values, strict=False))
    rows = values[0].size
    weights = np.array(data.draw(st.lists(st.integers(1, 4), min_size=rows, max_size=rows)))
    order = np.array(data.draw(st.permutations(range(rows))))
    once = choice(losses, weights.astype(float))[0]
    repeated = choice({name: np.repeat(loss, weights) for name, loss in losses.items()})[0]
    moved = choice({name: loss[order] for name, loss in losses.items()}, weights[order].astype(float))[0]
    if all(abs(margin(one, other)) > 1e-9 for one in values for other in values if one is not other):
        assert once == repeated == moved


def test_a_gain_within_the_noise_does_not_take_a_larger_family():
    """The mean of the differences is 0.1, their deviation 1: clear for 100 rows, not for 4."""
    gain = np.array([1.1, -0.9])
    for rows, chosen in ((100, "lda"), (4, "naive-bayes")):
        losses = {"naive-bayes": 2.0 + np.tile(gain, rows // 2), "lda": np.full(rows, 2.0)}
        assert choice(losses)[0] == chosen
    few = {"naive-bayes": 2.0 + gain, "lda": np.full(2, 2.0)}
    assert choice(few, np.full(2, 50.0))[0] == "lda"
    assert choice(few, np.full(2, 2.0))[0] == "naive-bayes"


# --- what was chosen is the model that its own estimator would be


@pytest.mark.parametrize("name", list(CANDIDATES))
def test_the_chosen_model_has_the_bits_of_its_own_estimator(name):
    X, y = table()
    model = AutoBayes(families=[name]).fit(X, y)
    candidate = CANDIDATES[name]
    alone = candidate.estimator(**{"calibrate": True, **candidate.parameters}).fit(X, y)
    assert type(model.estimator_) is candidate.estimator
    same_model(model, alone, X)
    same_model(model.estimator_, alone, X)
    assert model.scaling_ == alone.scaling_


def test_the_best_of_several_is_chosen_and_says_why():
    X, y = interaction()
    model = AutoBayes(families=("ga2m", "naive-bayes", "qda")).fit(X, y)  # in any order
    assert isinstance(model.estimator_, pb.QDA)
    assert model.reason_.startswith("qda (Gaussian classes with a covariance each): log loss ")
    found = model.candidates_
    assert list(found.columns) == ["family", "log_loss", "error", "seconds", "chosen", "problem"]
    assert sorted(found["family"]) == ["ga2m", "naive-bayes", "qda"]
    assert found["family"][found["chosen"]].tolist() == ["qda"]
    assert found["family"][0] == "qda"
    assert found["problem"].isna().all()
    assert (found["seconds"] > 0).all()
    by_family = found.set_index("family")
    assert by_family.log_loss["naive-bayes"] > by_family.log_loss["qda"] + 0.1
    assert f"{by_family.log_loss['qda']:.4f}" in model.reason_
    same_model(model, clone(model.estimator_).fit(X, y), X)


def test_losses_are_those_of_rows_that_the_model_never_saw():
    """Of rows whose class is a coin, log 2 is what can be reached."""
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(60, 6)), rng.integers(0, 2, 60)
    model = AutoBayes(families=("naive-bayes", "qda")).fit(X, y)
    assert (model.candidates_.log_loss > 0.6).all()
    assert (model.candidates_.error > 0.3).all()


@pytest.mark.parametrize("seed", [1, 2])
def test_a_structure_is_judged_on_rows_that_it_was_not_chosen_on(seed):
    """Columns that are independent given the class have links by chance, which suit the rows they were chosen on."""
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(300, 8)), rng.integers(0, 2, 300)
    X[:, 0] += 0.8 * y
    model = AutoBayes(families=("naive-bayes", "tan")).fit(X, y)
    by_family = model.candidates_.set_index("family")
    assert by_family.log_loss["tan"] > by_family.log_loss["naive-bayes"]
    assert isinstance(model.estimator_, pb.MixedNB)


def test_a_structure_that_rows_agree_on_is_judged_as_if_it_were_given():
    """The link between two columns is found in every fold: the losses are those of the model with that link."""
    rng = np.random.default_rng(7)
    y = np.arange(200) % 2
    left = rng.normal(size=200)
    right = left * np.where(y == 0, 1.0, -1.0) + 0.3 * rng.normal(size=200)
    X = pd.DataFrame({"left": left, "right": right})
    model = comparable(pb.TAN(calibrate=True, shrinkage=5.0)).fit(X, y)
    links = {name: parents for name, parents in model.parents_.items() if parents}
    assert len(links) == 1
    # Pseudo-rows are a share of the rows, of which a fold has nine tenths.
    with_links = comparable(pb.BayesNetClassifier(links, calibrate=True, shrinkage=5.0 / 0.9)).fit(X, y)
    assert model.best_iter_ == with_links.best_iter_ > 1
    judged, expected = (held_out(fitted, Table.of(X)) for fitted in (model, with_links))
    np.testing.assert_array_equal(judged.rows, expected.rows)
    np.testing.assert_allclose(judged.losses, expected.losses, atol=1e-12)


@pytest.mark.parametrize(
    "kinds",
    ["auto", "paper", {"x": "auto", "z": "discrete"}, {"z": "count"}, ["binned", "auto", "auto"]],
    ids=["auto", "paper", "mapping", "count", "list"],
)
def test_all_candidates_are_judged_on_the_same_rows(kinds):
    X, y = table(60)
    if kinds == {"z": "count"}:
        X["z"] = np.abs(X["z"]).round()
    auto = AutoBayes(kinds=kinds)
    names = list(CANDIDATES) if "count" not in str(kinds) else ["naive-bayes", "bins", "ga2m"]
    rows = Table.of(X)
    reference = held_out(auto.candidate(names[0], rows).fit(X, y), rows).rows
    assert reference.any()
    for name in names[1:]:
        model = auto.candidate(name, rows).fit(X, y)
        np.testing.assert_array_equal(held_out(model, rows).rows, reference)


def test_kinds_that_are_left_open_are_bins_for_those_who_need_them():
    X, y = table()
    by_rule = AutoBayes(families=["aode"]).fit(X, y)
    for kinds in ({"x": "auto"}, {"x": "auto", "colour": "discrete"}, ["auto", "auto", "auto"], "supervised"):
        named = AutoBayes(families=["aode"], kinds=kinds).fit(X, y)
        assert list(named.schema_.kinds.values()) == ["supervised", "supervised", "discrete"]
        same_model(named, by_rule, X)
    mixed = AutoBayes(families=["aode"], kinds={"z": "discrete"}).fit(X, y)
    assert list(mixed.schema_.kinds.values()) == ["supervised", "discrete", "discrete"]
    same_model(mixed, clone(mixed.estimator_).fit(X, y), X)
    equal = AutoBayes(families=["bins"], kinds={"z": "binned"}).fit(X, y)
    assert list(equal.schema_.kinds.values()) == ["supervised", "binned", "discrete"]


def test_text_that_the_papers_rule_calls_continuous_is_discrete_where_numbers_go_into_bins():
    X, y = table()
    X = X.assign(word=[f"word {number % 12}" for number in range(len(X))])  # more than ten distinct values
    model = AutoBayes(families=["aode"], kinds="paper").fit(X, y)
    assert model.schema_.kinds["word"] == "discrete" and model.schema_.kinds["x"] == "supervised"


def test_edges_by_class_are_chosen_without_the_rows_that_judge_them():
    X, y = table()
    rows = Table.of(X)
    model = AutoBayes().candidate("bins", rows).fit(X, y)
    judged = held_out(model, rows)
    elsewhere = [
        replace(column, edges=(0.0,)) if column.kind == "supervised" else column
        for column in model.schema_.columns
    ]
    model.schema_ = replace(model.schema_, columns=tuple(elsewhere))  # those of all rows have no say
    np.testing.assert_array_equal(held_out(model, rows).losses, judged.losses)


def test_a_schema_is_the_schema_of_all_candidates():
    X, y = table()
    schema = pb.Schema.infer(X, y, kinds="binned")
    model = AutoBayes(families=("naive-bayes", "aode"), schema=schema).fit(X, y)
    assert model.candidates_["problem"].isna().all()
    assert model.schema_ == schema


# --- weights, order, labels


def test_whole_weights_are_repetition():
    X, y = table(80)
    weights = np.random.default_rng(1).integers(0, 4, len(y))
    weighted = AutoBayes(families=FEW).fit(X, y, sample_weight=weights)
    rows = np.repeat(np.arange(len(y)), weights)
    repeated = AutoBayes(families=FEW).fit(X.iloc[rows], y[rows])
    assert type(weighted.estimator_) is type(repeated.estimator_)
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), atol=1e-8)
    columns = ["log_loss", "error"]
    one, other = (model.candidates_.set_index("family") for model in (weighted, repeated))
    np.testing.assert_allclose(one[columns], other.loc[one.index, columns], atol=1e-8)


@pytest.mark.parametrize(
    "class_weight", ["balanced", {"a": 3.0, "b": 0.5, "c": 1.0}], ids=["balanced", "mapping"]
)
def test_weights_of_classes_count_once(class_weight):
    X, y = table(120)
    keep = (y != "a") | (np.arange(len(y)) % 3 == 0)  # "a" is rare
    X, y = X[keep], y[keep]
    classes, counts = np.unique(y, return_counts=True)
    balanced = dict(zip(classes, len(y) / (len(classes) * counts), strict=True))
    factors = balanced if class_weight == "balanced" else class_weight
    row_weights = np.random.default_rng(2).uniform(0.5, 2.0, len(y))
    if class_weight == "balanced":
        row_weights = np.ones(len(y))
    by_class = AutoBayes(families=FEW, class_weight=class_weight).fit(X, y, row_weights)
    product = AutoBayes(families=FEW).fit(X, y, row_weights * np.array([factors[label] for label in y]))
    assert type(by_class.estimator_) is type(product.estimator_)
    np.testing.assert_allclose(by_class.predict_proba(X), product.predict_proba(X), atol=1e-9)
    one, other = (model.candidates_.set_index("family") for model in (by_class, product))
    np.testing.assert_allclose(one["log_loss"], other.loc[one.index, "log_loss"], atol=1e-9)


def test_the_order_of_rows_does_not_matter(monkeypatch):
    X, y = table()
    order = np.random.default_rng(4).permutation(len(y))
    for most in (auto_bayes.JUDGED_ROWS, 60):
        monkeypatch.setattr(auto_bayes, "JUDGED_ROWS", most)
        model = AutoBayes(families=FEW).fit(X, y)
        moved = AutoBayes(families=FEW).fit(X.iloc[order], y[order])
        assert type(moved.estimator_) is type(model.estimator_)
        np.testing.assert_allclose(model.predict_proba(X), moved.predict_proba(X), atol=1e-8)
        columns = ["log_loss", "error"]
        one, other = (fitted.candidates_.set_index("family")[columns] for fitted in (model, moved))
        np.testing.assert_allclose(one, other.loc[one.index], atol=1e-8)


@pytest.mark.parametrize("labels", [[False, True, False], [0, 1, 2], [1.0, 2.0, 5.0], ["a", "b", "c"]])
def test_labels_of_any_type_stay_what_they_are(labels):
    X, y = table()
    codes = np.array(labels)[np.searchsorted(["a", "b", "c"], y)]
    model = AutoBayes(families=("naive-bayes", "lda")).fit(X, codes)
    assert (
        model.classes_.dtype == model.estimator_.classes_.dtype == pb.MixedNB().fit(X, codes).classes_.dtype
    )
    assert set(model.predict(X).tolist()) <= set(labels)


# --- candidates that cannot be judged


def test_a_family_that_refuses_the_rows_is_listed_and_left_out():
    X, y = table()
    model = AutoBayes(families=("naive-bayes", "aode"), kinds={"x": "continuous"}).fit(X, y)
    assert isinstance(model.estimator_, pb.MixedNB)
    refused = model.candidates_.set_index("family").loc["aode"]
    assert "column 'x' is continuous" in refused["problem"]
    assert np.isnan(refused["log_loss"])
    assert not refused["chosen"]
    assert "no other family" in model.reason_


def test_rows_that_all_families_refuse_are_refused_with_the_reason():
    X, y = table()
    with pytest.raises(ValueError, match="none of aode takes these rows: column 'x' is continuous"):
        AutoBayes(families=["aode"], kinds={"x": "continuous"}).fit(X, y)


@pytest.mark.parametrize("families", ["tan", [], (), ["forest"], ["tan", "forest"], 3, [["tan"]]])
def test_families_that_are_not_names_of_candidates_are_refused(families):
    X, y = table(40)
    with pytest.raises(ValueError, match=r"families .*expected some of naive-bayes, lda"):
        AutoBayes(families=families).fit(X, y)


def test_a_model_that_is_not_calibrated_is_refused():
    X, y = table(40)
    with pytest.raises(ValueError, match="calibrate=False: AutoBayes judges calibrated models"):
        AutoBayes(calibrate=False).fit(X, y)


def test_a_refused_fit_leaves_the_model_as_it_was():
    X, y = table()
    model = AutoBayes(families=["naive-bayes"]).fit(X, y)
    before = model.predict_proba(X)
    with pytest.raises(ValueError, match="families"):
        model.set_params(families=["forest"]).fit(X, y)
    np.testing.assert_array_equal(model.predict_proba(X), before)


@pytest.mark.parametrize("fraction", [0.1, 0.0], ids=["few rows", "no share"])
def test_without_held_out_rows_the_smallest_family_is_taken(fraction):
    X, y = table(15 if fraction else 60)
    model = AutoBayes(families=("lda", "naive-bayes"), validation_fraction=fraction).fit(
        X, y, np.ones(len(y))
    )
    assert isinstance(model.estimator_, pb.MixedNB)
    assert "too few rows to hold any out" in model.reason_
    assert model.candidates_["log_loss"].isna().all()


# --- very many rows


def test_of_very_many_rows_some_are_judged_and_all_are_learned_from(monkeypatch):
    monkeypatch.setattr(auto_bayes, "JUDGED_ROWS", 90)
    X, y = table()
    model = AutoBayes(families=("naive-bayes", "lda")).fit(X, y)
    assert "; judged on 90 of 150 rows" in model.reason_
    same_model(model, clone(model.estimator_).fit(X, y), X)
    some = AutoBayes(families=("naive-bayes", "lda"))
    monkeypatch.undo()
    assert not np.allclose(some.fit(X, y).candidates_["log_loss"], model.candidates_["log_loss"])


def test_rows_that_are_judged_have_all_classes(monkeypatch):
    monkeypatch.setattr(auto_bayes, "JUDGED_ROWS", 30)
    X, y = table(200)
    y = np.where(np.arange(200) < 3, "rare", y)
    model = AutoBayes(families=("naive-bayes", "lda"), priors=[0.2, 0.3, 0.3, 0.2]).fit(X, y)
    assert list(model.classes_) == ["a", "b", "c", "rare"]


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 2)), min_size=1, max_size=80),
    st.integers(1, 60),
    st.data(),
)
def test_which_rows_are_judged_depends_on_which_there_are_alone(rows, count, data):
    keys, labels = (np.array(values) for values in zip(*rows, strict=True))
    taken = spread(keys.astype(np.uint64), labels, count)
    different = {row for row, is_taken in zip(rows, taken, strict=True) if is_taken}
    assert not different & {row for row, is_taken in zip(rows, taken, strict=True) if not is_taken}
    again = data.draw(st.permutations(rows)) + rows[:3]
    keys, labels = (np.array(values) for values in zip(*again, strict=True))
    taken = spread(keys.astype(np.uint64), labels, count)
    assert {row for row, is_taken in zip(again, taken, strict=True) if is_taken} == different
    for label in set(labels.tolist()):
        of_class = sorted(row for row in set(rows) if row[1] == label)
        expected = max(2, round(min(1.0, count / len(set(rows))) * len(of_class)))
        assert sorted(row for row in different if row[1] == label) == of_class[:expected]


# --- as a fitted model


def test_a_saved_model_is_that_of_the_chosen_estimator(tmp_path):
    X, y = table()
    model = AutoBayes(families=("naive-bayes", "ga2m")).fit(X, y)
    model.save(tmp_path / "model")
    loaded = pb.load(tmp_path / "model")
    assert type(loaded) is type(model.estimator_)
    assert list(loaded.feature_names_in_) == list(model.feature_names_in_) == list(X.columns)
    same_model(loaded, model, X)
    np.testing.assert_array_equal(loaded.predict_proba(X[X.columns[::-1]]), model.predict_proba(X))


def test_a_model_that_is_not_fitted_is_not_saved(tmp_path):
    with pytest.raises(NotFittedError):
        AutoBayes().save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_names_of_columns_are_checked_by_the_model_and_by_its_estimator():
    X, y = table()
    model = AutoBayes(families=("naive-bayes", "lda")).fit(X, y)
    for fitted in (model, model.estimator_):
        assert fitted.n_features_in_ == 3
        with pytest.raises(ValueError, match="feature names"):
            fitted.predict(X.rename(columns={"x": "other"}))


@pytest.mark.parametrize("name", ["naive-bayes", "tan", "ga2m", "aode"])
def test_it_explains_and_describes_as_its_estimator_does(name):
    X, y = table()
    model = AutoBayes(families=[name]).fit(X, y)
    pd.testing.assert_frame_equal(model.explain(X[:3]), model.estimator_.explain(X[:3]))
    pd.testing.assert_frame_equal(model.describe(), model.estimator_.describe())


def test_text_and_missing_values_need_no_preparation():
    X, y = table(200)
    X = X.mask(np.random.default_rng(5).random(X.shape) < 0.1)
    model = AutoBayes(families=("naive-bayes", "tan", "ga2m")).fit(X, y)
    assert model.candidates_["problem"].isna().all()
    assert model.score(X, y) > 0.5
    assert np.isfinite(model.predict_log_proba(X)).all()


def test_a_model_can_be_cloned_and_pickled():
    X, y = table()
    model = AutoBayes(families=("naive-bayes", "lda"), max_iter=50).fit(X, y)
    assert model.get_params()["families"] == ("naive-bayes", "lda")
    copy = clone(model)
    assert not hasattr(copy, "estimator_")
    assert copy.get_params() == model.get_params()
    same_model(copy.fit(X, y), model, X)
    restored = pickle.loads(pickle.dumps(model))
    same_model(restored, model, X)
    pd.testing.assert_frame_equal(restored.candidates_, model.candidates_)
    assert restored.reason_ == model.reason_


def test_a_second_fit_forgets_the_first():
    X, y = interaction()
    model = AutoBayes(families=("naive-bayes", "qda")).fit(X, y)
    others, labels = table()
    same_model(
        model.fit(others, labels), AutoBayes(families=("naive-bayes", "qda")).fit(others, labels), others
    )
    assert list(model.feature_names_in_) == list(others.columns)


def test_parameters_that_all_have_in_common_are_passed_on():
    X, y = table()
    model = AutoBayes(
        families=("naive-bayes", "lda"), max_iter=3, temperature=False, costs=1 - np.eye(3)
    ).fit(X, y)
    assert model.n_iter_ <= 3
    assert model.scaling_.is_identity
    parameters = model.estimator_.get_params()
    assert (parameters["max_iter"], parameters["temperature"]) == (3, False)
    assert parameters["costs"] is not None


@pytest.mark.parametrize("judged", [auto_bayes.JUDGED_ROWS, 60])
def test_a_model_keeps_nothing_of_single_rows(judged, monkeypatch):
    monkeypatch.setattr(auto_bayes, "JUDGED_ROWS", judged)
    X, y = table()
    models = [
        pb.MixedNB(calibrate=True).fit(X, y),
        pb.GA2M().fit(X, y),
        AutoBayes(families=("naive-bayes", "ga2m")).fit(X, y),
    ]
    for model in (*models, models[-1].estimator_):
        lengths = [len(value) for value in vars(model).values() if isinstance(value, np.ndarray | tuple)]
        assert len(X) not in lengths
        assert "_held_out" not in vars(model)


def test_statistics_of_one_family_leave_nothing_to_choose():
    X, y = table()
    with pytest.raises(TypeError, match="chooses a family by rows, and these are statistics of naive-bayes"):
        AutoBayes.from_statistics(pb.MixedNB().fit(X, y).statistics_)
