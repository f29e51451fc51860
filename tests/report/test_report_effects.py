"""Figures of what columns and pairs add to the log-odds: true of the model, and drawn."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import peerbayes as pb
from peerbayes.model.contributions import centred, effects, purified
from peerbayes.report import figures
from peerbayes.report.effect_figures import ends_of, figures_of
from peerbayes.simulation.view import View
from shared.report_runs import HOSTILE, mixed, run_of, unpacked


def table(classes, rows=600, seed=0):
    """Numbers and a category; the class depends on a product and on the category."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(
        {"a": rng.normal(size=rows), "b": rng.exponential(size=rows), "c": rng.integers(0, 3, rows)}
    )
    X["c"] = np.array(["u", "v", "w"], dtype=object)[X["c"]]
    score = 2 * X["a"] * (X["b"] - 0.7) + (X["c"] == "u") + rng.logistic(size=rows)
    return X, np.digitize(score, np.quantile(score, np.arange(1, classes) / classes))


@pytest.fixture(scope="module", params=[2, 3])
def fitted(request):
    X, y = table(request.param)
    return pb.GA2M().fit(X, y), X


def effects_of(model):
    stats = model.statistics_
    return effects(stats.schema, stats.family, stats.values, stats.of_rows, stats.scaling)


# --- contributions


def test_effects_add_up_to_the_log_odds_of_rows_up_to_a_constant(fitted):
    model, X = fitted
    assert model.crosses_
    codes = model.schema_.encode(X).codes
    total = sum(effect.contributions[:, codes[:, effect.index]] for effect in effects_of(model)).T
    joint = model.predict_joint_log_proba(X) / model.statistics_.scaling.temperature
    odds = (
        joint[:, 1:] - joint[:, :1] if len(model.classes_) == 2 else joint - joint.mean(axis=1, keepdims=True)
    )
    assert np.ptp(odds - total, axis=0).max() < 1e-6


def test_the_mean_of_an_effect_over_the_rows_is_zero_and_rows_are_counted(fitted):
    model, X = fitted
    codes = model.schema_.encode(X).codes
    for effect in effects_of(model):
        counted = np.bincount(codes[:, effect.index], minlength=effect.rows.size)
        np.testing.assert_allclose(effect.rows, counted, atol=1e-9)
        np.testing.assert_allclose(effect.contributions @ effect.rows, 0.0, atol=1e-6)
        assert effect.strength == pytest.approx(
            np.abs(effect.contributions[:, codes[:, effect.index]]).mean()
        )


def test_a_cross_keeps_only_what_neither_column_says(fitted):
    model, _ = fitted
    for effect in effects_of(model)[len(model.schema_.discrete) :]:
        cross = model.schema_.crosses[effect.index - len(model.schema_.discrete)]
        values, rows = effect.contributions.reshape(-1, *cross.shape), effect.rows.reshape(cross.shape)
        for axis in (1, 2):
            np.testing.assert_allclose((values * rows).sum(axis=axis), 0.0, atol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_purified_tables_are_the_residuals_of_weighted_least_squares(seed):
    rng = np.random.default_rng(seed)
    table, rows = rng.normal(size=(2, 4, 3)), rng.exponential(size=(4, 3))
    rows[0, 1] = 0.0
    pure, first, second = purified(table, rows)
    np.testing.assert_allclose(pure + first[:, :, None] + second[:, None, :], table, atol=1e-12)
    design = np.concatenate([np.repeat(np.eye(4), 3, axis=0), np.tile(np.eye(3), (4, 1))], axis=1)
    root = np.sqrt(rows.ravel())
    for got, target in zip(pure, table, strict=True):
        solution, *_ = np.linalg.lstsq(root[:, None] * design, root * target.ravel(), rcond=None)
        np.testing.assert_allclose(root * got.ravel(), root * (target.ravel() - design @ solution), atol=1e-7)


def test_cells_of_no_row_are_centred_by_their_number():
    np.testing.assert_allclose(centred(np.array([[1.0, 3.0]]), np.zeros(2)), [[-1.0, 1.0]])
    np.testing.assert_allclose(centred(np.array([[1.0, 3.0]]), np.array([3.0, 1.0])), [[-0.5, 1.5]])


def test_only_models_of_cells_whose_rows_are_known_have_effects(fitted):
    model, X = fitted
    stats = model.statistics_
    assert effects(stats.schema, stats.family, stats.values, None) == []
    y = model.predict(X)
    for other in (pb.QDA().fit(X, y), pb.TAN().fit(X, y), pb.MixedNB().fit(X[["a", "b"]], y)):
        assert figures_of(other.statistics_) == {}
    assert set(figures_of(pb.MixedNB().fit(X, y).statistics_)) == {"shapes"}
    assert figures_of(None) == {}


# --- figures


def test_shapes_and_maps_hold_the_contributions(fitted):
    model, _ = fitted
    specs, found = figures_of(model.statistics_), effects_of(model)
    assert set(specs) == {"shapes", "pairs"}
    columns = sorted(found[: len(model.schema_.discrete)], key=lambda effect: -effect.strength)
    drawn = [trace for trace in specs["shapes"]["data"] if trace["meta"]["role"] == "shape"]
    below = [trace for trace in specs["shapes"]["data"] if trace["meta"]["role"] == "rows"]
    expected = [(effect, values) for effect in columns for values in effect.contributions]
    for trace, (effect, values) in zip(drawn, expected, strict=True):
        np.testing.assert_allclose(unpacked(trace["y"])[: values.size], values, rtol=1e-5, atol=1e-6)
        column = model.schema_.columns[model.schema_.discrete[effect.index]]
        if column.edges:
            np.testing.assert_allclose(unpacked(trace["x"]), ends_of(column), rtol=1e-5)
            assert trace["line"]["shape"] == "hv"
    for trace, effect in zip(below, columns, strict=True):
        np.testing.assert_allclose(unpacked(trace["customdata"]), effect.rows)
        tops = unpacked(trace["base"]) + unpacked(trace["y"])
        assert tops.max() < effect.contributions.min()  # below the shapes
    crosses = sorted(found[len(model.schema_.discrete) :], key=lambda effect: -effect.strength)
    for trace, effect in zip(specs["pairs"]["data"], crosses, strict=False):
        rows = unpacked(trace["customdata"])
        np.testing.assert_allclose(rows.ravel(), effect.rows)
        np.testing.assert_array_equal(np.isnan(unpacked(trace["z"])), rows == 0)


def test_ends_of_bins_are_those_of_the_values():
    column = pb.Schema.infer(np.arange(100.0)[:, None], kinds="binned").columns[0]
    ends = ends_of(column)
    assert ends[0] == 0 and ends[-1] == 99 and (np.diff(ends) > 0).all() and ends.size == column.cells + 1
    assert (np.diff(ends_of(replace(column, low=None, high=None))) > 0).all()


def test_a_model_file_keeps_all_that_the_figures_need(fitted, tmp_path):
    model, _ = fitted
    model.save(tmp_path / "model")
    assert figures_of(pb.load(tmp_path / "model").statistics_) == figures_of(model.statistics_)


def test_names_from_data_are_escaped():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({name: rng.choice(HOSTILE, 200) for name in HOSTILE[:3]})
    specs = figures_of(pb.GA2M().fit(X, rng.choice(HOSTILE[:2], 200)).statistics_)
    for spec in specs.values():
        assert "<script" in spec["layout"].pop("meta")["summary"]  # text for screen readers, not HTML
        assert "<script" not in str(spec) and "%{meta" not in str(spec)


# --- the page


@pytest.mark.parametrize("width", [390, 1280])
def test_contributions_are_drawn_on_a_page(open_page, tmp_path, monkeypatch, width):
    from peerbayes import report

    statistics = pb.GA2M().fit(*table(2)).statistics_
    of = View.of
    monkeypatch.setattr(View, "of", lambda *arguments: replace(of(*arguments), statistics=statistics))
    path = report.write(tmp_path / "report.html", [run_of(*mixed())])
    page = open_page(path.as_uri(), viewport={"width": width, "height": 900})
    for name in ("shapes", "pairs"):
        page.locator(f"#figure-{name}").scroll_into_view_if_needed()
        page.wait_for_selector(f"#figure-{name}[data-drawn] .main-svg", state="attached")
        box = page.locator(f"#figure-{name}").bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width
    assert page.locator("#figure-shapes .lines path").count() >= 2  # of both columns of bins
    assert page.locator("#figure-pairs .heatmaplayer image").count() >= 1
    assert figures.CAPTIONS["shapes"][1] in page.locator("figure:has(#figure-shapes) figcaption").inner_text()
