"""docs/families.md is what benchmarks/families.py makes of its results, which the code computes again."""

import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats
from sklearn import metrics

PAGES = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(PAGES.parent / "benchmarks"))

import families  # noqa: E402
import families_models  # noqa: E402
import families_page  # noqa: E402

RESULTS = PAGES / "families.parquet"
FIGURES = ("error", "log_loss", "ece")

# Rounding of log losses between processors. A single row more or less of one peer would change an error by 2e-5.
EXACTLY = 1e-9


@pytest.fixture(scope="module")
def results():
    return families.read(RESULTS)


def test_the_page_comes_from_the_published_results(results):
    assert families_page.page(families.table_of(results)) == (PAGES / "families.md").read_text(
        encoding="utf-8"
    )


def test_published_results_come_from_committed_code(results):
    for code in {figures["code"] for figures in results.values()}:
        assert re.fullmatch(r"\d+\.\d+\.\d+ [0-9a-f]{12}", code), f"{code} is no version and commit"


@pytest.mark.parametrize("model", ["NB", "bins", "LDA", "QDA", "TAN", "KDB"])
@pytest.mark.parametrize("partition", ["iid", "drift-y"])
def test_a_published_cell_is_computed_again(paper_data, results, model, partition):
    dataset = "pulsar" if model in ("TAN", "QDA") else "skin"
    cell = families.Cell(dataset, 50, partition, "auto", model, 61)
    computed, published = families_models.measured(cell), results[cell]
    assert computed["chosen"] == published["chosen"]
    for name in FIGURES:
        assert computed[name] == pytest.approx(published[name], abs=EXACTLY), name
    assert computed["bytes"] == published["bytes"]


# --- which differences count


FIVE = arrays(np.float64, 5, elements=st.floats(0.0, 1.0).map(lambda value: round(value, 3)))


@given(FIVE, FIVE)
def test_a_difference_counts_beyond_two_standard_errors(first, second):
    """As by the statistic of a paired t-test."""
    difference = second - first
    if np.ptp(difference) > 1e-9:
        statistic = stats.ttest_rel(second, first).statistic
        if abs(statistic - 2.0) > 1e-6:
            assert families_page.is_lower(pd.Series(first), pd.Series(second)) == (statistic > 2.0)


def test_the_limit_is_two_standard_errors():
    """Of d = m ± 1 four times, the standard error is 1/√3."""
    lower, spread = pd.Series(np.zeros(4)), pd.Series([-1.0, 1.0, -1.0, 1.0])
    assert families_page.is_lower(lower, spread + 2.01 / np.sqrt(3))
    assert not families_page.is_lower(lower, spread + 1.99 / np.sqrt(3))


def test_one_seed_tells_no_difference():
    assert not families_page.is_lower(pd.Series([0.1]), pd.Series([0.9]))
    assert not families_page.is_lower(pd.Series([0.1, np.nan]), pd.Series([0.9, 0.8]))


def results_of(errors, rows=50):
    """A table of results from errors by (dataset, model): one for each seed from 1."""
    records = {}
    for (dataset, model), of_seeds in errors.items():
        pooled = model in families_page.POOLED
        for partition in ["pooled"] if pooled else ["iid", "drift-y"]:
            strategy = "" if pooled or model == "softmax" else "auto"
            for seed, error in enumerate(of_seeds, start=1):
                cell = families.Cell(dataset, rows, partition, strategy, model, seed)
                records[cell] = {"error": error, "log_loss": 2 * error, "ece": error / 2, "code": "0.1.0 abc"}
    return families.table_of(records)


FEW = {
    ("a", "NB"): [0.30, 0.31, 0.32], ("a", "TAN"): [0.20, 0.21, 0.22], ("a", "HGB"): [0.10, 0.11, 0.12],
    ("b", "NB"): [0.30, 0.31, 0.32], ("b", "TAN"): [0.20, 0.40, 0.31], ("b", "HGB"): [0.35],
}  # fmt: skip


def test_only_a_clear_winner_is_marked():
    figures = families_page.side_by_side(results_of(FEW), 50, "iid")
    lines = families_page.error_table(figures, (families_page.OURS, families_page.POOLED)).splitlines()
    assert lines[0] == "| error | NB | TAN | HGB |"
    assert lines[2] == "| a | 0.310 | **0.210** | 0.110 |"  # HGB has nothing beside it
    assert lines[3] == "| b | 0.310 | 0.303 | 0.350 |"
    assert lines[4] == "| mean | 0.310 | 0.257 | 0.230 |"


def test_others_are_compared_with_the_best_family():
    figures = families_page.side_by_side(results_of(FEW), 50, "iid")
    better, worse = families_page.beside(figures, None, "HGB")
    assert better == {"a": pytest.approx(0.10)} and not worse
    better, worse = families_page.beside(figures, "NB", "HGB")
    assert better == {"a": pytest.approx(0.20)} and not worse
    assert "| HGB | 1: a 0.100 | 0: none | 1 |" in families_page.others_table(figures, None, ("HGB",))


def test_what_was_not_run_is_said():
    table = results_of({key: errors for key, errors in FEW.items() if key != ("b", "TAN")})
    text = families_page.page(table)
    assert "- HGB, 50 × 50: 1 on b" in text and "- TAN, 50 × 50: 0 on b" in text
    assert "| b | 0.310 | – | 0.350 |" in text
    assert "| TAN | – | – | – | – | – | – |" in text  # no mean over fewer sets
    assert "TAN on 1 (a); NB on 1 (b)" in text or "NB on 1 (b); TAN on 1 (a)" in text


def test_means_are_over_seeds_then_sets():
    lines = families_page.means_table(results_of(FEW), 50, ("iid", "drift-y")).splitlines()
    assert lines[2] == "| NB | 0.310 | 0.620 | 0.155 | 0.310 | 0.620 | 0.155 |"


# --- the order of the work, and the file of results


def test_the_most_valuable_cells_come_first():
    every = list(
        families.cells(
            (*families.DATASETS, *families.DISCRETE), families.MODELS, families.ROWS,
            tuple(families.STRATEGIES), families.SEEDS,
        )
    )  # fmt: skip
    assert len(set(every)) == len(every)
    boosting = [cell.model == families.LAST for cell in every]
    assert boosting == sorted(boosting)
    sizes = [families.ROWS.index(cell.rows) for cell in every if cell.model != families.LAST]
    assert sizes == sorted(sizes)
    seeds = [cell.seed for cell in every if cell.model == families.LAST]
    assert seeds == sorted(seeds)
    assert {cell.model for cell in every} == set(families.MODELS)
    pooled = {cell for cell in every if cell.partition == "pooled"}
    assert all(cell.strategy == "" for cell in pooled)
    assert all(cell.dataset in families.DISCRETE for cell in every if cell.model in families.WEKA)


def test_results_are_read_as_they_were_written(tmp_path):
    cells = {
        families.Cell("a", 50, "iid", "auto", "NB", 1): {
            "error": 0.1, "log_loss": 0.2, "ece": 0.3, "bytes": 8.0, "seconds": 1.0, "chosen": "relay",
            "choice": "", "problem": "", "code": "0.1.0 abc",
        },
        families.Cell("a", 50, "iid", "auto", "KDB", 1): {"problem": "too large", "code": "0.1.0 abc"},
    }  # fmt: skip
    path = tmp_path / "results.parquet"
    families.write(path, cells)
    again = families.read(path)
    assert (
        again[families.Cell("a", 50, "iid", "auto", "NB", 1)]
        == cells[families.Cell("a", 50, "iid", "auto", "NB", 1)]
    )
    assert again[families.Cell("a", 50, "iid", "auto", "KDB", 1)]["problem"] == "too large"
    families.write(path, again)
    pd.testing.assert_frame_equal(families.table_of(again), families.table_of(families.read(path)))


# --- figures


def test_figures_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    posterior, truth = rng.dirichlet(np.ones(3), 200), rng.choice(["a", "b", "c"], 200)
    figures = families_models.figures(posterior, np.array(["a", "b", "c"]), truth)
    assert figures["log_loss"] == pytest.approx(metrics.log_loss(truth, posterior))
    predicted = np.array(["a", "b", "c"])[posterior.argmax(axis=1)]
    assert figures["error"] == pytest.approx(1.0 - metrics.accuracy_score(truth, predicted))


def test_a_class_that_nobody_learned_is_an_error():
    figures = families_models.figures(np.array([[0.25, 0.75]]), np.array(["a", "c"]), np.array(["b"]))
    assert figures["error"] == 1.0 and figures["log_loss"] == pytest.approx(-np.log(families_models.SMALLEST))


def test_predictions_are_read_as_weka_lists_them():
    text = """
=== Predictions on test data ===

 inst#     actual  predicted error distribution
     1      2:b-c      2:b-c       0.1,*0.9,0
     2 1:frog-eye        3:d   +   0.2,0.1,*0.7
"""
    outcome = families_models.listed_outcome(text)
    assert outcome.confusion.tolist() == [[0, 0, 1], [0, 1, 0], [0, 0, 0]]
    assert outcome.calibration_error == pytest.approx((0.1 + 0.7) / 2)


def test_a_run_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
    """Cells are added to what others wrote in the meantime, one that fails does not end the work, and time does."""
    first, second, third = (families.Cell("a", 50, "iid", "auto", "NB", seed) for seed in (1, 2, 3))
    path, figures = tmp_path / "results.parquet", {"error": 0.1, "log_loss": 0.2, "ece": 0.3}

    def measured(cell):
        if cell == first:
            families.write(path, {third: {**figures, "code": "0.1.0 abc"}})  # another process
            raise ArithmeticError("no figures")
        return figures

    monkeypatch.setattr(families, "measured", measured)
    results = {}
    assert families.fill(results, [first, second], path, 1.0) == [first]
    assert set(results) == set(families.read(path)) == {second, third}
    assert families.fill(results, [first], path, -1.0) == []
    assert "1 cells are missing" in capsys.readouterr().out
