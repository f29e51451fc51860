"""Curves of a study: what is drawn is the mean over seeds with its interval, in panels with the same axes."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t as student

from peerbayes.report.study_curves import curves, settings_of

pytest.importorskip("plotly")


def history(strategies=("exact", "crc"), topologies=("tree", "ring"), seeds=(0, 1, 2), **columns):
    """Return a history whose errors can be calculated by hand."""
    rows = [
        {
            "strategy": strategy,
            "topology": topology,
            "seed": seed,
            "round": round_index,
            "bytes": 100.0 * round_index * (1 + seed),
            "seconds": 0.01 * round_index,
            "test_error": 0.1 * number + 0.02 * seed + 1 / (10 + round_index),
            "test_error_std": 0.01 * (1 + seed),
            **columns,
        }
        for number, strategy in enumerate(strategies)
        for topology in topologies
        for seed in seeds
        for round_index in (1, 2, 4)
    ]
    return pd.DataFrame(rows)


def lines(figure, role="mean"):
    return [trace for trace in figure.data if trace.meta["role"] == role]


def test_a_line_is_the_mean_over_seeds_and_its_band_the_interval_of_this_mean():
    figure = curves(history(strategies=["exact"], topologies=["tree"]))
    [mean], [low], [high] = lines(figure), lines(figure, "low"), lines(figure, "high")
    expected = 0.02 + 1 / (10 + np.array([1.0, 2.0, 4.0]))
    half = student.ppf(0.975, 2) * 0.02 / np.sqrt(3)
    np.testing.assert_allclose(mean.x, [1, 2, 4])
    np.testing.assert_allclose(mean.y, expected, rtol=1e-6)
    np.testing.assert_allclose(low.y, expected - half, rtol=1e-5)
    np.testing.assert_allclose(high.y, expected + half, rtol=1e-5)


def test_a_band_over_peers_is_the_mean_deviation_over_peers():
    figure = curves(history(strategies=["exact"], topologies=["tree"]), band="peers")
    [mean], [high] = lines(figure), lines(figure, "high")
    np.testing.assert_allclose(np.subtract(high.y, mean.y), 0.02, rtol=1e-5)


def test_one_seed_has_no_interval():
    assert not lines(curves(history(seeds=[3])), "high")
    assert lines(curves(history(seeds=[3]), band="peers"), "high")


def test_bytes_and_seconds_are_means_over_seeds_too():
    rows = history(strategies=["exact"], topologies=["tree"])
    np.testing.assert_allclose(lines(curves(rows, x="bytes"))[0].x, [200, 400, 800])
    np.testing.assert_allclose(lines(curves(rows, x="seconds"))[0].x, [0.01, 0.02, 0.04], rtol=1e-6)


def test_a_round_that_a_seed_lacks_is_not_drawn():
    rows = history(strategies=["exact"], topologies=["tree"])
    shorter = rows[(rows["seed"] != 2) | (rows["round"] < 4)]
    np.testing.assert_allclose(lines(curves(shorter))[0].x, [1, 2])


def test_panels_share_axes_and_a_value_has_one_colour_in_all_of_them():
    figure = curves(history(topologies=["tree", "ring", "star", "grid", "chain"]), log_x=True, log_y=True)
    layout = figure.to_dict()["layout"]
    others = [layout[f"{axis}axis{number}"] for axis in "xy" for number in range(2, 6)]
    assert [axis["matches"] for axis in others] == ["x"] * 4 + ["y"] * 4
    assert {axis["type"] for axis in others} == {"log"}
    assert len(layout["annotations"]) == 5
    colours = {(trace.name, trace.line.color) for trace in lines(figure)}
    assert len(colours) == 2
    assert sum(bool(trace.showlegend) for trace in lines(figure)) == 2


def test_a_strategy_has_its_colour_whatever_is_beside_it():
    of_all = {trace.name: trace.line.color for trace in lines(curves(history(["exact", "crc", "local"])))}
    of_some = {trace.name: trace.line.color for trace in lines(curves(history(["local", "mine", "crc"])))}
    assert of_all["local"] == of_some["local"]
    assert of_all["crc"] == of_some["crc"]
    assert len(set(of_some.values())) == 3


def test_a_line_is_never_a_mean_over_settings():
    rows = pd.concat([history(lr=0.1), history(lr=0.2)])
    assert settings_of(rows) == ["strategy", "topology", "lr"]
    assert len(lines(curves(rows))) == 8
    assert {trace.name for trace in lines(curves(rows, colour="lr", facet="topology"))} == {
        "lr 0.1, exact", "lr 0.1, crc", "lr 0.2, exact", "lr 0.2, crc"
    }  # fmt: skip


def test_references_are_lines_of_their_panel():
    values = pd.DataFrame({"topology": ["tree", "tree", "ring"], "seed": [0, 1, 0], "RC": [0.1, 0.2, 0.3]})
    drawn = {
        trace.xaxis: float(trace.y[0]) for trace in lines(curves(history(), references=values), "reference")
    }
    assert drawn == pytest.approx({"x": 0.15, "x2": 0.3})
    by_strategy = pd.DataFrame({"strategy": ["exact", "crc"], "RC": [0.1, 0.2]})
    figure = curves(history(topologies=["tree"]), references=by_strategy)
    colours = {trace.name: trace.line.color for trace in lines(figure)}
    of_references = {float(trace.y[0]): trace.line.color for trace in lines(figure, "reference")}
    assert {round(value, 6): colour for value, colour in of_references.items()} == {
        0.1: colours["exact"],
        0.2: colours["crc"],
    }
    assert len(lines(curves(history(), references={"ML": 0.3}), "reference")) == 2


def test_what_sends_nothing_is_named_where_it_cannot_be_drawn():
    rows = history(strategies=["exact", "local"])
    rows.loc[rows["strategy"] == "local", "bytes"] = 0.0
    names = {trace.name for trace in lines(curves(rows, x="bytes", log_x=True))}
    assert names == {"exact", "local (0 bytes)"}


@pytest.mark.parametrize("log_x", [False, True])
def test_what_sends_nothing_is_a_level_line_across_the_others(log_x):
    rows = history(strategies=["exact", "local"], topologies=["tree"])
    rows.loc[rows["strategy"] == "local", "bytes"] = 0.0
    [exact, local] = lines(curves(rows, x="bytes", log_x=log_x))
    assert (local.name, local.line.dash, local.mode) == (
        "local (0 bytes)" if log_x else "local",
        "longdashdot",
        "lines",
    )
    assert list(local.x) == [min(exact.x), max(exact.x)] and min(local.x) > 0
    at_the_end = rows[(rows["strategy"] == "local") & (rows["round"] == 4)]["test_error"].mean()
    np.testing.assert_allclose(local.y, at_the_end, rtol=1e-6)


@pytest.mark.parametrize(
    ("least", "most", "from_zero"), [(0.1, 0.9, True), (0.9, 0.95, False), (-0.2, 0.9, False)]
)
def test_an_axis_shows_what_is_drawn_and_begins_at_zero_where_that_is_near(least, most, from_zero):
    rows = history(strategies=["exact"], seeds=[0])
    rows["test_error"] = np.where(rows["round"] == 1, most, least)
    axis = curves(rows).layout.yaxis
    assert (axis.rangemode == "tozero") is from_zero
    assert from_zero or (
        axis.range[0] < least and most < axis.range[1] and np.ptp(axis.range) < 1.2 * (most - least)
    )
    assert curves(rows[rows["test_error"] > 0], log_y=True).layout.yaxis.range is None


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"x": "time"}, "x is 'time'; expected one of round, bytes, seconds"),
        ({"band": "rounds"}, "band is 'rounds'"),
        ({"metric": "auc"}, "no column 'auc'; it has the settings strategy, topology and the numbers"),
        ({"colour": "lr"}, "'lr' is not a setting of this study; expected one of strategy, topology"),
    ],
)
def test_a_mistake_is_answered_with_what_there_is(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        curves(history(), **arguments)


def test_a_metric_without_values_is_refused_with_a_reason():
    with pytest.raises(ValueError, match="Test metrics need test rows"):
        curves(history().assign(test_error=np.nan))
