"""Prior knowledge is a statistic: it is worth as many rows as one says."""

import numpy as np
import pandas as pd
import pytest

import peerbayes as pb


def rows(count=200, seed=0):
    rng = np.random.default_rng(seed)
    ill = np.arange(count) % 2 == 1
    X = pd.DataFrame({"age": rng.normal(50 + 10 * ill, 8), "ward": rng.choice(["a", "b"], count)})
    return X, np.where(ill, "ill", "well")


def believed(schema, worth=40):
    return pb.prior_knowledge(
        schema,
        worth,
        classes={"ill": 0.25, "well": 0.75},
        columns={"age": {"ill": (70, 5)}, "ward": {"well": {"a": 0.9, "b": 0.1}}},
    )


def test_strong_knowledge_outweighs_rows_and_the_rest_is_learnt_from_them():
    X, y = rows()
    schema = pb.Schema.infer(X, y)
    sure = pb.MixedNB(prior=believed(schema, worth=1e9), alpha=0).fit(X, y).describe()
    told = sure.set_index(["class", "feature"])
    assert told.loc[("ill", "(prior)"), "probability"].item() == pytest.approx(0.25, abs=1e-4)
    assert told.loc[("ill", "age"), "mean"].item() == pytest.approx(70, abs=1e-3)
    assert told.loc[("ill", "age"), "deviation"].item() == pytest.approx(5, abs=1e-3)
    assert told.loc[("well", "ward")].set_index("category")["probability"]["a"] == pytest.approx(
        0.9, abs=1e-4
    )
    assert told.loc[("well", "age"), "mean"].item() == pytest.approx(X["age"][y == "well"].mean(), abs=1e-6)
    share = (X["ward"][y == "ill"] == "a").mean()
    assert told.loc[("ill", "ward")].set_index("category")["probability"]["a"] == pytest.approx(
        share, abs=1e-9
    )


def test_knowledge_weighs_what_it_is_worth():
    """A belief worth n rows of a class moves the class's mean as n rows with that mean would."""
    X, y = rows()
    schema = pb.Schema.infer(X, y)
    model = pb.MixedNB(prior=pb.prior_knowledge(schema, 100, columns={"age": {"ill": (70, 5)}})).fit(X, y)
    told = model.describe().set_index(["class", "feature"])
    ages = X["age"][y == "ill"]  # 100 of them; the belief is worth 100 rows in all, so 50 of the ill
    assert told.loc[("ill", "age"), "mean"].item() == pytest.approx((ages.sum() + 50 * 70) / 150)
    assert told.loc[("ill", "(prior)"), "probability"].item() == pytest.approx(0.5)


def test_calibration_can_start_from_knowledge():
    X, y = rows()
    schema = pb.Schema.infer(X, y)
    full = {
        "age": {"ill": (60, 8), "well": (50, 8)},
        "ward": {c: {"a": 0.5, "b": 0.5} for c in ("ill", "well")},
    }
    start = pb.prior_knowledge(schema, 10, classes={"ill": 0.5, "well": 0.5}, columns=full)
    model = pb.MixedNB(calibrate=True, start=start).fit(X, y)
    assert model.score(X, y) > 0.7
    assert model.history_["soft_error"].iloc[0] < 0.4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 0}, "rows is 0; expected"),
        ({"classes": {"ill": 0.5}}, "add up to 1"),
        ({"classes": {"dead": 1.0}}, "'dead' is not a class"),
        ({"columns": {"height": {}}}, "no column 'height'"),
        ({"columns": {"age": {"ill": 70}}}, r"expected \(mean, deviation\)"),
        ({"columns": {"age": {"ill": (70, 0)}}}, "positive deviation"),
        ({"columns": {"ward": {"ill": {"z": 1.0}}}}, "expected {category: probability}"),
        ({"columns": {"ward": {"ill": {"a": 0.3}}}}, "add up to 1"),
        ({"rows": np.inf}, "rows is inf; expected"),
        ({"rows": np.nan}, "rows is nan; expected"),
        ({"classes": {"ill": 1.5, "well": -0.5}}, "add up to 1"),
        ({"columns": {"ward": {"ill": {"a": 1.5, "b": -0.5}}}}, "add up to 1"),
        ({"columns": {"age": {"ill": (70, np.inf)}}}, "positive deviation"),
        ({"columns": {"age": {"ill": (np.nan, 5)}}}, "positive deviation"),
    ],
)
def test_beliefs_that_make_no_sense_are_refused(change, message):
    X, y = rows()
    with pytest.raises(ValueError, match=message):
        pb.prior_knowledge(**{"schema": pb.Schema.infer(X, y), "rows": 10, **change})


def test_knowledge_is_the_statistics_of_rows_that_say_so():
    """Counts, Σo, Σz, Σz² and cells of 40 rows with these proportions, means and deviations."""
    X, y = rows()
    schema = pb.Schema.infer(X, y)
    prior = believed(schema)
    z, scale = (70 - schema.location[0]) / schema.scale[0], 5 / schema.scale[0]
    ill, well = (schema.classes.index(name) for name in ("ill", "well"))
    expected = np.zeros((2, 6))  # count; age: o, z, z²; ward: a, b
    expected[ill, :4] = 10, 10, 10 * z, 10 * (scale**2 + z**2)
    expected[well, 0], expected[well, 4:] = 30, (27, 3)
    np.testing.assert_allclose(prior.values, expected, rtol=1e-12)
    even = pb.prior_knowledge(schema, 40, columns={"ward": {"ill": {"a": 0.25, "b": 0.75}}})
    np.testing.assert_allclose(even.values[ill], [0, 0, 0, 0, 5, 15])
