"""Several runs in one dashboard: side by side, as they begin and go on."""

import contextlib
import json

import numpy as np
import pytest
from sklearn.datasets import load_wine

import peerbayes as pb
from shared.dashboards import ROUNDS, Simulated

pytest.importorskip("starlette")
pytest.importorskip("plotly")

from peerbayes.report.dashboard import feed
from peerbayes.report.dashboard.feed import Folder
from peerbayes.report.dashboard.run_folder import runs_below


@pytest.fixture
def two(tmp_path):
    made = [Simulated(tmp_path / name, strategy=name) for name in ("exact", "crc")]
    for run in made:
        run.round()
    yield made
    for run in made:
        with contextlib.suppress(Exception):
            run.file.close()


def content(snapshot):
    return json.loads(feed.figures(snapshot, 1, 0.0))


def test_a_folder_of_runs_shows_them_side_by_side(tmp_path, two):
    assert runs_below(tmp_path) == [tmp_path / "crc", tmp_path / "exact"]
    folder = Folder(tmp_path)
    first = folder.look()
    assert first.kind == "runs" and [run["name"] for run in first.facts["runs"]] == ["crc", "exact"]
    assert folder.look().same(first)
    two[0].round()
    second = folder.look()
    assert not second.same(first) and not second.follows(first)
    assert [run["round"] for run in second.facts["runs"]] == [1, 2]
    assert b"event: reload" in feed.event(second, first, 2, 0.0)
    message = content(second)
    names = {
        trace["name"] for trace in message["figures"]["error"]["data"] if trace["meta"]["role"] == "mean"
    }
    assert names == {"crc", "exact"}
    assert message["sections"][0][1][0][0] == "error"
    ranges = [message["figures"][f"disagreement-{run}"]["layout"]["yaxis"]["range"] for run in (0, 1)]
    assert ranges[0] == ranges[1]
    listed = {name for _, figures in message["sections"] for name, *_ in figures}
    assert listed == set(message["figures"])


def test_folders_named_one_by_one_are_shown_in_their_order_and_new_runs_appear(tmp_path, two):
    folder = Folder(tmp_path / "exact", others=[tmp_path / "crc", tmp_path / "later"])
    assert [run["name"] for run in folder.look().facts["runs"]] == ["exact", "crc"]
    with contextlib.closing(Simulated(tmp_path / "later").file):
        snapshot = folder.look()
        assert [run["name"] for run in snapshot.facts["runs"]] == ["exact", "crc", "later"]
        assert snapshot.facts["rounds"] == 3 * ROUNDS
        content(snapshot)  # before its first round, too


def test_a_finished_run_stands_beside_one_that_goes_on(tmp_path, two):
    X, y = load_wine(return_X_y=True)
    pb.simulate(X, y, peers=4, rows_per_peer=20, rounds=3).save(tmp_path / "done")
    snapshot = Folder(tmp_path).look()
    assert [run["finished"] for run in snapshot.facts["runs"]] == [False, True, False]
    assert content(snapshot)["figures"]["error"]


def test_references_come_first_where_they_take_a_moment(tmp_path, monkeypatch):
    X, y = load_wine(return_X_y=True)
    seen = []

    def look(done, of):
        facts = Folder(tmp_path / "run").look().facts
        seen.append((facts["references"], facts["awaits_references"]))

    settings = {"peers": 4, "rows_per_peer": 20, "rounds": 3, "live": tmp_path / "run", "progress": look}
    watched = pb.simulate(X, y, **settings)
    assert [pending for _, pending in seen] == [False] * 3
    assert seen[0][0] == pytest.approx(
        {"rc": watched.references["test_rc"], "ml": watched.references["test_ml"]}
    )
    seen.clear()
    monkeypatch.setattr("peerbayes.simulation.run.QUICK_WORK", 0)
    late = pb.simulate(X, y, **settings)
    assert seen == [({}, True)] * 3
    assert late.references == watched.references and np.array_equal(late.stats, watched.stats)
    seen.clear()
    pb.simulate(X, y, **settings, references=False)
    assert seen == [({}, False)] * 3
