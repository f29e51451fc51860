"""Figures of studies: curves where runs have figures by round, else dots at their end, both beside reference lines."""

import numpy as np
import pytest
from sklearn.datasets import load_wine

from shared.studies import asked

pytest.importorskip("plotly")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return asked(
        load_wine(return_X_y=True), strategy=["exact", "crc"], topology=["tree", "ring"], seed=range(3),
        baselines="vote", metrics=["auc"], folder=tmp_path_factory.mktemp("study") / "figures",
    )  # fmt: skip


@pytest.fixture(scope="module")
def by_rounds(tmp_path_factory):
    return asked(
        load_wine(return_X_y=True), rounds=[1, 4, 16], lr=0.2, seed=[0, 1], metrics=["auc", "log_loss"],
        folder=tmp_path_factory.mktemp("study") / "rounds",
    )  # fmt: skip


def lines(figure, role="mean"):
    return [trace for trace in figure.data if trace.meta["role"] == role]


@pytest.mark.parametrize("metric", ["test_error", "train_error"])
def test_a_curve_has_the_lines_of_rc_and_ml(study, metric):
    drawn = {
        line.name: line
        for line in lines(study.plot(y=metric, facet="topology", colour="strategy"), "reference")
    }
    kind = metric.split("_")[0]
    assert {"RC", "ML"} <= set(drawn) and ("vote" in drawn) is (kind == "test")
    for name in ("rc", "ml"):
        expected = study.frame[f"{kind}_{name}"].mean()
        np.testing.assert_allclose(drawn[name.upper()].y, expected, atol=1e-6)


def test_references_are_those_that_are_asked_for(study):
    def names(references):
        return {line.name for line in lines(study.plot(references=references), "reference")}

    assert names(False) == names(None) == set()
    assert names(["ml", "majority"]) == {"ML", "majority class"}
    assert names({"paper": 0.1}) == {"paper"}
    with pytest.raises(ValueError, match="references has 'fedavg'; expected some of majority, alone, rc"):
        names(["fedavg"])


def test_a_metric_without_curve_is_dots_with_intervals_at_the_end(study):
    figure = study.plot(y="test_auc")
    summary = study.summary("test_auc", learners=()).set_index(["strategy", "topology"])
    dots = {line.name: line for line in lines(figure)}
    assert set(dots) == {"tree", "ring"}
    assert figure.layout.xaxis.ticktext == ("exact", "crc") and figure.layout.yaxis.title.text == "test AUC"
    for name, line in dots.items():
        assert [round(place) for place in line.x] == [0, 1] and line.mode == "markers"
        for number, strategy in enumerate(("exact", "crc")):
            row = summary.loc[(strategy, name)]
            assert line.y[number] == pytest.approx(row["mean"], rel=1e-6)
            assert line.error_y.array[number] == pytest.approx(row["high"] - row["mean"], rel=1e-4)
            assert line.error_y.arrayminus[number] == pytest.approx(row["mean"] - row["low"], rel=1e-4)
    assert {line.name for line in lines(figure, "reference")} == {"RC", "ML", "vote", "vote, product"}
    of_rc = next(line for line in lines(figure, "reference") if line.name == "RC")
    np.testing.assert_allclose(of_rc.y, study.frame["test_auc_rc"].mean(), rtol=1e-6)


def test_intervals_near_one_are_not_drawn_against_an_axis_from_zero(study):
    low, high = study.plot(y="test_auc").layout.yaxis.range
    summary = study.summary("test_auc", learners=())
    assert 0.5 < low < summary["low"].min() and high > summary["high"].max()
    assert high - low < 3 * (summary["high"].max() - summary["low"].min())


def test_panels_have_the_dots_of_their_setting(study):
    figure = study.plot(x="strategy", y="test_auc", facet="topology")
    assert [line.xaxis for line in lines(figure)] == ["x", "x2"] and len(figure.layout.annotations) == 2


def test_the_end_of_an_error_is_drawn_against_a_setting(study):
    [first, second] = lines(study.plot(x="topology"))
    assert (first.name, second.name) == ("exact", "crc") and len(first.y) == 2
    assert max(first.x) - min(first.x) == pytest.approx(1.0) and first.x[0] != second.x[0]


def test_numbers_have_their_place_and_references_that_move_with_them_are_lines(by_rounds):
    figure = by_rounds.plot(y="test_log_loss", log_x=True)
    [dots] = lines(figure)
    assert list(dots.x) == [1, 4, 16] and dots.mode == "lines+markers" and figure.layout.xaxis.type == "log"
    drawn = {line.name: line for line in lines(figure, "reference")}
    means = by_rounds.frame.groupby("rounds")[["test_log_loss_rc", "test_log_loss_ml"]].mean()
    np.testing.assert_allclose(drawn["RC"].y, means["test_log_loss_rc"], rtol=1e-6)
    assert list(drawn["RC"].x) == [1, 4, 16] and len(set(drawn["ML"].y)) == 1
    assert drawn["ML"].y[0] == pytest.approx(means["test_log_loss_ml"].mean())


def test_what_cannot_be_drawn_is_said_with_what_can(study):
    with pytest.raises(
        ValueError, match=r"test_auc has no curve against bytes: runs have .*test_error.*strategy, topology"
    ):
        study.plot(x="bytes", y="test_auc")
    with pytest.raises(ValueError, match=r"metric is 'auc'; expected one of .*test_auc"):
        study.plot(y="auc")
    with pytest.raises(
        ValueError, match="x is 'lr'; expected round, bytes, seconds, or a setting that varies: strategy"
    ):
        study.plot(x="lr")
    with pytest.raises(ValueError, match="'lr' is not a setting of this study"):
        study.plot(y="test_auc", colour="lr")


def test_a_study_of_seeds_alone_is_one_dot():
    study = asked(load_wine(return_X_y=True), seed=[0, 1], metric="test_auc")
    [dot] = lines(study.plot())
    assert dot.y[0] == pytest.approx(study.frame["test_auc"].mean(), rel=1e-6)
