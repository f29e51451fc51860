"""Studies on a Ray cluster: the numbers of this machine, and folders that its workers reach."""

from types import SimpleNamespace

import pandas as pd
import pytest
from sklearn.datasets import load_wine

from peerbayes.experiments.engines import LocalEngine, RayEngine
from peerbayes.experiments.study_plan import planned, refuse_out_of_reach
from shared.studies import SMALL, asked


def test_a_study_on_ray_has_the_numbers_of_this_machine(tmp_path):
    pytest.importorskip("ray", reason="needs Ray")
    settings = {"strategy": ["exact", "crc"], "seed": [0, 1], "baselines": ["vote", "logistic-regression"]}
    wine = load_wine(return_X_y=True)
    of_ray = asked(wine, RayEngine(2), folder=tmp_path / "ray", **settings)
    here = asked(wine, LocalEngine(1), folder=tmp_path / "here", **settings)
    assert (of_ray.frame["status"] == "done").all() and of_ray.sessions[0]["engine"] == "ray"
    figures = [name for name in here.frame.columns if "second" not in name]
    pd.testing.assert_frame_equal(of_ray.frame[figures], here.frame[figures])
    history = [name for name in here.history.columns if "second" not in name]
    pd.testing.assert_frame_equal(of_ray.history[history], here.history[history])
    assert not of_ray.missing() and of_ray.markdown() == here.markdown()


def test_a_cluster_needs_a_folder(monkeypatch, tmp_path):
    with pytest.raises(
        ValueError, match="folder is None; expected a folder that all machines of the cluster reach"
    ):
        asked(load_wine(return_X_y=True), "ray", address="ray://somewhere:10001")
    refuse_out_of_reach(RayEngine(address="auto"), tmp_path)
    refuse_out_of_reach(RayEngine(), None)
    refuse_out_of_reach(LocalEngine(), None)
    ray = SimpleNamespace(is_initialized=lambda: True)
    monkeypatch.setitem(__import__("sys").modules, "ray", ray)
    with pytest.raises(ValueError, match="folder is None"):
        refuse_out_of_reach(RayEngine(), None)


def test_rows_that_a_machine_does_not_reach_are_named(tmp_path):
    """Where the folder is on no network drive, each cell says what its worker missed."""
    study = planned(*load_wine(return_X_y=True), folder=tmp_path / "here", **SMALL)

    class Elsewhere:
        name = "elsewhere"

        def run(self, compute, specifications):
            for index, specification in enumerate(specifications):
                yield index, compute({**specification, "folder": str(tmp_path / "there")})

    study.run(Elsewhere())
    assert study.frame["status"][0] == "refused" and str(tmp_path / "there") in study.frame["reason"][0]
