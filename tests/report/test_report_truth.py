"""A report says of classes and columns what is true of the peers' rows, and says where it cannot."""

import html
import json
import re

import numpy as np
import pytest

import peerbayes as pb
from peerbayes.model.explain import NOT_OF_ROWS
from peerbayes.report.figures import OF_GAUSSIANS, OF_ROWS
from peerbayes.simulation.result import Run
from peerbayes.simulation.view import View, median_peer
from shared.report_runs import numbers

# The constant column of `table`, which is meant.
pytestmark = pytest.mark.filterwarnings("ignore:constant:peerbayes.errors.DataWarning")

SETTINGS = {"peers": 6, "topology": "ring", "rounds": 16, "strategy": "exact", "references": False, "seed": 3}


def table(rows=900):
    """A class of one row in twenty, a column that is never negative, a constant one, and noise."""
    rng = np.random.default_rng(0)
    y = (rng.random(rows) < 0.054).astype(int)
    return np.stack([rng.exponential(1.0 + 2.0 * y), np.full(rows, 3.0), rng.normal(size=rows)], axis=1), y


def page_of(run, path):
    """The report of a run as a reader has it: its text, and its figures."""
    text = run.report(path).read_text(encoding="utf-8")
    content = json.loads(re.search(r'id="report-content">(.*?)</script>', text, flags=re.DOTALL).group(1))
    return html.unescape(text), content


@pytest.fixture(scope="module")
def run():
    X, y = table()
    return pb.simulate(X, y, rows_per_peer=120, **SETTINGS), X, y


def test_shares_are_those_of_the_peers_rows(run, tmp_path):
    made, _, y = run
    text, content = page_of(made, tmp_path / "report.html")
    shares = numbers(content["figures"]["priors"]["data"][0]["y"])
    assert shares == pytest.approx(np.bincount(y) / len(y), abs=0.01)
    calibrated = made.layout.parameters(made.statistics(0).values)
    assert np.exp(calibrated.log_prior)[1] > 0.1  # which would have been shown
    assert text.count(OF_ROWS) == 4 and NOT_OF_ROWS not in text and OF_GAUSSIANS not in text


def test_a_columns_figure_lies_within_its_data(run, tmp_path):
    made, X, _ = run
    _, content = page_of(made, tmp_path / "report.html")
    columns = content["features"]["feature"]
    assert len(columns) == 3
    for spec in columns:
        name = spec["layout"]["xaxis"]["title"]["text"]
        low, high = X[:, int(name[1:])].min(), X[:, int(name[1:])].max()
        shown = spec["layout"]["xaxis"]["range"]
        if low == high:  # a point has no range
            assert shown == [2.5, 3.5]
            continue
        assert low - 1e-9 <= shown[0] < shown[1] <= high + 1e-9
        assert shown[1] - shown[0] > 0.6 * (high - low)
        for curve in spec["data"]:
            assert curve["x0"] == shown[0]
            assert curve["x0"] + (len(numbers(curve["y"])) - 1) * curve["dx"] == pytest.approx(shown[1])
    bits = dict(zip(content["figures"]["telling"]["data"][0]["text"],
                    numbers(content["figures"]["telling"]["data"][0]["x"]), strict=True))  # fmt: skip
    assert bits["x1"] == 0.0 and bits["x0"] > 0.01


def test_every_peers_model_keeps_the_rows_of_all_also_in_a_file(run, tmp_path):
    """They are YᵀΦ of all peers' rows, and no row of a test."""
    made, _, y = run
    first, last = made.classifier(0).statistics_, made.classifier(5).statistics_
    np.testing.assert_array_equal(first.likelihood, last.likelihood)
    assert first.likelihood[:, 0].sum() == made.sizes.sum() < len(y)
    made.save(tmp_path)
    loaded = Run.load(tmp_path)
    np.testing.assert_array_equal(loaded.likelihood, made.likelihood)
    np.testing.assert_array_equal(loaded.observed.bits, made.observed.bits)
    assert loaded.statistics(2).observed.ranges.shape == (3, 2)


@pytest.mark.parametrize("family", ["naive-bayes", "qda", "tan"])
def test_what_is_kept_is_maximum_likelihood_of_the_pooled_rows(family):
    X, y = table(180)
    X[::7, 2] = np.nan
    with pytest.warns(UserWarning, match="no test error"):
        made = pb.simulate(X, y, rows_per_peer=30, family=family, **SETTINGS)
    kept = made.classifier(0)
    means = kept.describe().set_index(["class", "feature"])["mean"]
    for label in (0, 1):
        assert means[label, "x0"] == pytest.approx(X[y == label, 0].mean(), abs=0.1 * X[:, 0].std())
        assert means[label, "x2"] == pytest.approx(np.nanmean(X[y == label, 2]), abs=0.2)


def test_rows_of_liars_do_not_count():
    X, y = table(600)
    with pytest.warns(UserWarning, match="no test error"):
        made = pb.simulate(
            X,
            y,
            rows_per_peer=100,
            attack=pb.Attack("label", fraction=0.34),
            **SETTINGS | {"topology": "complete"},
        )
    assert made.attackers.size == 2
    assert made.likelihood[:, 0].sum() == 400
    assert made.likelihood[1, 0] / 400 < 0.1


def test_private_rows_are_not_described_and_the_report_says_so(tmp_path):
    X, y = table(600)
    with pytest.warns(UserWarning, match="no test error"):
        made = pb.simulate(X, y, rows_per_peer=100, privacy=pb.Privacy(epsilon=8.0), **SETTINGS)
    assert made.likelihood is None and made.observed is None
    text, _ = page_of(made, tmp_path / "report.html")
    assert text.count(NOT_OF_ROWS) == 4 and OF_ROWS not in text
    assert set(made.classifier(0).describe()["statistics"]) == {"calibrated"}


def test_a_report_of_sums_without_counts_says_whose_bits_they_are(run, tmp_path):
    """Real peers agree on YᵀΦ and count nothing else."""
    from dataclasses import replace

    made = replace(run[0], observed=None)
    text, content = page_of(made, tmp_path / "report.html")
    assert text.count(OF_GAUSSIANS) == 1 and text.count(OF_ROWS) == 4
    assert View.of(made).statistics.likelihood is not None and 0 <= median_peer(made) < 6
    assert numbers(content["figures"]["telling"]["data"][0]["x"]).min() == pytest.approx(0, abs=1e-9)
