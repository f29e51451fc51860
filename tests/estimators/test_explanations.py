"""What a reader is told of a model is true of its rows, and what decides a prediction of the model: from `fit` to
`peerbayes explain` and a report.
"""

import json
import os
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import peerbayes as pb
from peerbayes.cli.app import app
from peerbayes.errors import DataWarning
from peerbayes.model.explain import NOT_OF_ROWS, mutual_information
from peerbayes.model.scaling import Scaling
from peerbayes.model.statistics import Statistics

# The table of most tests has constant columns, which are explained too.
CONSTANT = "ignore:constant. column 'same':peerbayes.errors.DataWarning"

FAMILIES = [pb.MixedNB, pb.QDA, pb.LDA, pb.TAN, pb.KDB]


def table(rows=400, seed=0):
    """Rows of a rare and a common class; a skewed column, constant ones, and one of categories."""
    rng = np.random.default_rng(seed)
    y = np.where(rng.random(rows) < 0.054, "rare", "common")
    rare = y == "rare"
    X = pd.DataFrame(
        {
            "level": rng.normal(size=rows) + 1.5 * rare,
            "same": 3.0,
            "word": "x",
            "income": rng.exponential(1.0 + rare),
            "ward": np.where(rng.random(rows) < 0.6 - 0.3 * rare, "u", "v"),
        }
    )
    return X, y


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda family: family.__name__)
def fitted(request):
    X, y = table()
    with pytest.warns(DataWarning, match="constant: column 'same'"):
        return request.param(calibrate=True, temperature=False, max_iter=24).fit(X, y), X, y


def told(model, path, *arguments):
    model.save(path, overwrite=True)
    result = CliRunner().invoke(app, ["explain", str(path), *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


# --- what classes look like


def test_a_calibrated_model_describes_its_rows(fitted):
    model, X, y = fitted
    described = model.describe()
    assert set(described["statistics"]) == {"maximum likelihood"}
    for label in ("common", "rare"):
        rows, part = X[y == label], described[described["class"] == label].set_index("feature")
        assert part.loc["(prior)", "probability"] == pytest.approx((y == label).mean())
        assert part.loc["level", "mean"] == pytest.approx(rows["level"].mean(), abs=0.02)
        if not isinstance(model, pb.LDA):  # which has one deviation for all classes
            assert part.loc["level", "deviation"] == pytest.approx(rows["level"].std(ddof=0), rel=0.05)
        assert part.loc["same", "mean"] == 3 and part.loc["same", "deviation"] == 0
        wards = part.loc["ward"].set_index("category")["probability"]
        assert wards["u"] == pytest.approx((rows["ward"] == "u").mean())


def test_samples_of_a_calibrated_model_look_like_its_rows(fitted):
    model, X, y = fitted
    drawn, labels = model.sample(20_000, random_state=0)
    assert (labels == "rare").mean() == pytest.approx((y == "rare").mean(), abs=0.01)
    assert drawn["level"][labels == "rare"].mean() == pytest.approx(X["level"][y == "rare"].mean(), abs=0.1)
    assert (drawn["ward"][labels == "common"] == "u").mean() == pytest.approx(
        (X["ward"][y == "common"] == "u").mean(), abs=0.02
    )


@pytest.mark.filterwarnings(CONSTANT)
def test_printed_shares_and_bits_are_those_of_the_rows(tmp_path):
    X, y = table(2000)
    model = pb.MixedNB(calibrate=True, temperature=False).fit(X, y)
    own_prior = model.family_.parameters(model.statistics_.values).log_prior
    assert np.exp(own_prior)[1] > 2 * (y == "rare").mean()  # the calibrated one is another
    text = told(model, tmp_path / "model")
    assert "Class shares in the training rows (maximum likelihood)" in text and NOT_OF_ROWS not in text
    printed = dict(line.split() for line in text.splitlines() if line.startswith(("common", "rare")))
    for label in ("common", "rare"):
        assert float(printed[label]) == pytest.approx((y == label).mean(), abs=0.01)
    entries = json.loads(told(model, tmp_path / "model", "--format", "json"))
    bits = {entry["feature"]: entry["bits"] for entry in entries["features"]}
    assert bits["same"] == bits["word"] == 0.0
    assert entries["statistics"] == "maximum likelihood"
    plain = pb.MixedNB().fit(X, y)  # bits are those of the rows, not of how the model was made
    assert mutual_information(plain.describe()).set_index("feature")["bits"].to_dict() == bits


def test_bits_of_digits_are_the_counted_ones():
    """The best columns by any measure: none is off by a fifth, with a Gaussian it was up to twice as much."""
    from sklearn.datasets import load_digits
    from sklearn.metrics import mutual_info_score

    X, y = load_digits(return_X_y=True)
    table = mutual_information(pb.MixedNB(calibrate=True, temperature=False, max_iter=2).fit(X, y).describe())
    bits = table.set_index("feature")["bits"]
    counted = pd.Series({f"x{j}": mutual_info_score(y, X[:, j]) / np.log(2) for j in range(64)})
    assert counted.max() == pytest.approx(0.67, abs=0.005)
    for names in (table["feature"][:5], counted.nlargest(5).index):
        np.testing.assert_allclose(bits[names], counted[names], rtol=0.2)


@pytest.mark.long
@pytest.mark.skipif("PEERBAYES_DATA" not in os.environ, reason="needs the datasets in PEERBAYES_DATA")
@pytest.mark.filterwarnings("ignore::peerbayes.errors.DataWarning")  # adult has "?" and 99999
def test_bits_of_adult_are_the_counted_ones():
    """Capital-gain's single values matter: Gaussians by maximum likelihood have four times its bits."""
    from sklearn.metrics import mutual_info_score

    from peerbayes.data.datasets import load

    adult = load("adult", download=False)
    table = mutual_information(
        pb.MixedNB(calibrate=True, temperature=False, max_iter=2).fit(adult.frame, adult.labels).describe()
    )
    bits = table.set_index("feature")["bits"]
    few = [name for name in adult.frame if adult.frame[name].nunique() <= 256]
    counted = pd.Series(
        {name: mutual_info_score(adult.labels, adult.frame[name]) / np.log(2) for name in few}
    )
    for names in (table["feature"][:5], counted.nlargest(5).index):
        np.testing.assert_allclose(bits[names], counted[names], rtol=0.2)


# --- what decides a prediction


def test_terms_add_up_and_constant_columns_have_none(fitted):
    model, X, _ = fitted
    gaps = X[:20].copy()
    gaps.loc[::3, "income"] = np.nan
    gaps.loc[::4, "ward"] = None
    for rows in (X[:20], gaps):
        explained = model.explain(rows, of="rare", against="common")
        odds = model.predict_joint_log_proba(rows) @ [-1, 1]
        np.testing.assert_allclose(explained.groupby("row")["log_odds"].sum(), odds, atol=1e-9)
        by_name = explained.set_index("feature")["log_odds"]
        assert (by_name["same"] == 0).all() and (by_name["word"] == 0).all()
        assert set(explained["statistics"]) == {"calibrated"}
    missing = model.explain(gaps, of="rare", against="common").set_index(["row", "feature"])["log_odds"]
    assert missing[(0, "income")] == pytest.approx(0, abs=1e-12)
    assert missing[(4, "ward")] == pytest.approx(0, abs=1e-12)


def test_the_baseline_is_the_typical_row(fitted):
    """A value that is typical has no term, also where the model depends on it through other columns."""
    model, X, _ = fitted
    means = X[["level", "same", "income"]].mean()
    typical = {**means, "word": "x", "ward": X["ward"].mode()[0]}
    explained = model.explain(typical, of="rare", against="common").set_index("feature")["log_odds"]
    assert explained.drop(["(baseline)", "(noise)"], errors="ignore").abs().max() < 1e-9
    moved = model.explain({**typical, "level": 2.0}, of="rare", against="common").set_index("feature")[
        "log_odds"
    ]
    assert moved["(baseline)"] == pytest.approx(explained["(baseline)"])
    assert moved.drop(["(baseline)", "level"]).abs().max() < 1e-9
    assert abs(moved["level"]) > 1e-3


@pytest.mark.parametrize("estimator", [pb.MixedNB, pb.QDA, pb.TAN])
def test_a_constant_column_in_the_units_of_other_rows_has_no_term(estimator):
    """Its standardised value is not 0, and the schema knows other values and categories."""
    X, y = table()
    other = X.assign(same=np.linspace(0, 1, len(X)), word=np.where(X.index % 2, "x", "y"))
    schema = pb.Schema.infer(other, y)
    model = estimator(calibrate=True, temperature=False, max_iter=24, schema=schema).fit(X, y)
    explained = model.explain(X[:9]).set_index("feature")["log_odds"]
    assert explained[["same", "word"]].abs().max() < 1e-12
    odds = np.abs(model.predict_joint_log_proba(X[:9]) @ [-1, 1])
    np.testing.assert_allclose(model.explain(X[:9]).groupby("row")["log_odds"].sum(), odds, atol=1e-9)
    bits = model.describe().set_index("feature")["bits"]
    assert bits["same"].max() == bits["word"].max() == 0


def test_what_decides_a_row_is_said_to_be_calibrated(fitted, tmp_path):
    model, X, _ = fitted
    X.to_csv(tmp_path / "rows.csv", index=False)
    text = told(model, tmp_path / "model", tmp_path / "rows.csv", "--row", 2)
    assert "by the calibrated statistics, beside a typical row (the baseline)" in text
    assert [line.split()[-1] for line in text.splitlines() if line.startswith(("same", "word"))] == [
        "+0.000"
    ] * 2


# --- files, sums, and models that kept nothing of their rows


def test_a_file_keeps_both_and_an_older_one_says_what_it_lacks(fitted, tmp_path):
    model, X, _ = fitted
    model.save(tmp_path / "model")
    loaded = pb.load(tmp_path / "model")
    pd.testing.assert_frame_equal(loaded.describe(), model.describe(), check_exact=True)
    pd.testing.assert_frame_equal(loaded.explain(X[:3]), model.explain(X[:3]), check_exact=True)
    of_bytes = Statistics.from_bytes(model.statistics_.to_bytes())
    np.testing.assert_array_equal(of_bytes.likelihood, model.statistics_.likelihood)
    kept = model.statistics_
    before = Statistics(kept.values, kept.schema, kept.family, calibrated=True, scaling=kept.scaling)
    older = type(model).from_statistics(before)
    np.testing.assert_array_equal(older.predict_proba(X), model.predict_proba(X))
    assert set(older.describe()["statistics"]) == {"calibrated"}
    assert NOT_OF_ROWS in told(older, tmp_path / "older").replace("\n", " ").strip()
    explained = older.explain(X[:5]).set_index("feature")["log_odds"]
    assert explained[["same", "word"]].abs().max() < 1e-12


@pytest.mark.filterwarnings(CONSTANT)
def test_likelihoods_follow_sums_scales_and_units():
    """Of two parties with other units and classes: what is kept beside their models is that of all their rows."""
    X, y = table(300)
    a, b = X[:150], X[150:].assign(income=X["income"][150:] + 1)
    mine, theirs = (
        pb.MixedNB(calibrate=True, temperature=False, max_iter=3, clip=None)
        .fit(part, y[part.index])
        .statistics_
        for part in (a, b)
    )
    together = mine + theirs
    expected = pb.MixedNB(clip=None, schema=together.schema).fit(pd.concat([a, b]), y).statistics_
    np.testing.assert_allclose(together.likelihood, expected.values, atol=1e-9)
    assert together.observed is None and together.of_rows is together.likelihood
    np.testing.assert_allclose((mine * 0.5).likelihood, 0.5 * mine.likelihood)
    np.testing.assert_allclose(mine.with_missing().likelihood[:, 0], mine.likelihood[:, 0])
    assert (mine + Statistics(theirs.values, theirs.schema, theirs.family, True)).likelihood is None


@pytest.mark.filterwarnings(CONSTANT)
def test_likelihoods_that_make_no_sense_are_refused():
    X, y = table(100)
    kept = pb.MixedNB(calibrate=True, temperature=False, max_iter=1).fit(X, y).statistics_
    arguments = kept.values, kept.schema, kept.family
    with pytest.raises(pb.StatisticsMismatch, match="do not fit the schema"):
        Statistics(*arguments, True, kept.likelihood[:, 1:])
    with pytest.raises(pb.StatisticsMismatch, match="NaN or infinity"):
        Statistics(*arguments, True, kept.likelihood * np.nan)
    with pytest.raises(pb.StatisticsMismatch, match="expected no others beside them"):
        Statistics(*arguments, False, kept.likelihood)
    with pytest.raises(pb.StatisticsMismatch, match=r"bits and ranges of columns have shapes \(\(4,\)"):
        Statistics(*arguments, True, None, kept.observed._replace(bits=kept.observed.bits[1:]))


@pytest.mark.parametrize("estimator", [pb.QDA, pb.TAN])
def test_rows_with_gaps_are_described_by_em(estimator):
    rng = np.random.default_rng(5)
    y = np.tile([0, 1], 200)
    X = rng.normal(size=(400, 1)) + 2.0 * y[:, None] + 0.5 * rng.normal(size=(400, 3))
    X[:, 1:][rng.random((400, 2)) < 0.1] = np.nan
    calibrated = estimator(calibrate=True, temperature=False, max_iter=8).fit(X, y).describe()
    likely = estimator(alpha=0.0).fit(X, y).describe()
    np.testing.assert_allclose(calibrated["mean"].dropna(), likely["mean"].dropna(), atol=0.05)
    np.testing.assert_allclose(calibrated["deviation"].dropna(), likely["deviation"].dropna(), rtol=0.1)


def test_a_scaled_model_is_explained_as_it_predicts(fitted):
    model, X, _ = fitted
    scaling = Scaling(2.0, (0.3, -0.3), 0.01)
    scaled = type(model).from_statistics(replace(model.statistics_, scaling=scaling))
    explained = scaled.explain(X[:9], of="rare", against="common")
    odds = scaled.predict_log_proba(X[:9]) @ [-1, 1]
    np.testing.assert_allclose(explained.groupby("row")["log_odds"].sum(), odds, atol=1e-9)
    by_name = explained.set_index("feature")["log_odds"]
    assert (by_name["same"] == 0).all() and (by_name["word"] == 0).all()
    plain = model.explain(X[:9], of="rare", against="common").set_index("feature")["log_odds"]
    np.testing.assert_allclose(by_name["level"], plain["level"] / 2)
    np.testing.assert_allclose(scaled.statistics_.likelihood, model.statistics_.likelihood)
