"""Nodes are called peers: old names are refused with the new one, and files keep theirs, so that old ones are read."""

import inspect
import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest

import peerbayes as pb
from peerbayes.data import files
from peerbayes.experiments.cells import Cell
from peerbayes.learning.state import Checkpoint
from peerbayes.simulation.partitions import partition
from peerbayes.simulation.result import LIVE_FILE, RUN_FILE
from peerbayes.simulation.sharded.driver import simulate_shards
from peerbayes.simulation.view import Following

BEFORE = (
    Path(__file__).parent / "run_of_nodes.bin"
)  # made by `simulate(X, y, nodes=3, rows_per_node=6, rounds=2)`
X = np.linspace(-1, 1, 24)[:, None].round(2)
Y = (X[:, 0] > 0).astype(int)
SETTINGS = {"peers": 3, "rows_per_peer": 6, "rounds": 2, "topology": "chain", "references": False}


@pytest.fixture
def saved(tmp_path):
    """The folder of a run that was saved when peers were called nodes."""
    (tmp_path / RUN_FILE).write_bytes(BEFORE.read_bytes())
    return tmp_path


@pytest.fixture(scope="module")
def run():
    return pb.simulate(X, Y, **SETTINGS)


OLD_CALLS = {
    "simulate": (lambda run: pb.simulate(X, Y, nodes=50), "nodes is called peers now: write peers=50"),
    "rows": (
        lambda run: pb.simulate(X, Y, peers=2, rows_per_node=[5, 6]),
        "rows_per_node is called rows_per_peer now: write rows_per_peer=[5, 6]",
    ),
    "shards": (lambda run: simulate_shards(X, Y, nodes=3), "nodes is called peers now: write peers=3"),
    "observe": (
        lambda run: pb.audit.observe(X, Y, peer=0, nodes=3),
        "nodes is called peers now: write peers=3",
    ),
    "again": (
        lambda run: pb.audit.again(run, X, Y, peer=0, rows_per_node=6),
        "rows_per_node is called rows_per_peer now: write rows_per_peer=6",
    ),
    "partition": (
        lambda run: partition("iid", Y, None, nodes=3, rows_per_peer=6, rng=np.random.default_rng(0)),
        "nodes is called peers now: write peers=3",
    ),
    "classifier": (lambda run: run.classifier(node=1), "node is called peer now: write peer=1"),
    "statistics": (lambda run: run.statistics(node=1), "node is called peer now: write peer=1"),
}


@pytest.mark.parametrize("which", OLD_CALLS)
def test_an_old_name_is_refused_with_the_new_one(which, run):
    call, sentence = OLD_CALLS[which]
    with pytest.raises(TypeError) as refused:
        call(run)
    assert str(refused.value) == sentence


def test_the_signature_is_the_functions_own():
    names = list(inspect.signature(pb.simulate).parameters)
    assert {"peers", "rows_per_peer"} <= set(names) and not {
        "nodes",
        "rows_per_node",
        "args",
        "kwargs",
    } & set(names)


def test_results_have_a_column_and_an_index_of_peers(run):
    assert list(run.history)[:2] == ["round", "peer"] and run.privacy.index.name == "peer"
    assert run.history.peer.tolist() == [0, 1, 2] * 2


def test_a_run_saved_before_is_read_under_the_new_names(saved):
    assert b"rows_per_node" in BEFORE.read_bytes()
    old = pb.Run.load(saved)
    assert old.configuration["peers"] == 3 and old.configuration["rows_per_peer"] == 6
    assert not {"nodes", "rows_per_node"} & set(old.configuration)
    assert old.history.peer.tolist() == [0, 1, 2] and old.summary()["test_error"] == pytest.approx(1 / 6)
    assert 0 <= old.classifier(peer=1).score(X, Y) <= 1


def test_a_run_is_saved_in_the_format_of_before(saved, run, tmp_path):
    run.save(tmp_path / "new")
    path = tmp_path / "new" / RUN_FILE
    header, arrays = files.unpack(path.read_bytes(), path)
    old_header, old_arrays = files.unpack(BEFORE.read_bytes(), BEFORE)
    assert list(header["configuration"]) == list(old_header["configuration"])
    assert header["configuration"]["nodes"] == 3 and header["configuration"]["rows_per_node"] == 6
    since = {"likelihood", "bits", "ranges", "seconds by round"}  # which old files are read without
    since |= {f"histogram {part}" for part in ("counts", "rows", "edges", "columns")}
    assert set(header) - {"provenance", "relative_paths", "scores"} == set(old_header) and set(
        arrays
    ) - since <= set(old_arrays)
    assert pb.Run.load(tmp_path / "new").configuration == run.configuration


def test_checkpoints_have_the_key_of_before(tmp_path, monkeypatch):
    keyed = []
    original = Checkpoint.of.__func__
    monkeypatch.setattr(
        Checkpoint,
        "of",
        classmethod(
            lambda cls, path, configuration, *arrays: (
                keyed.append(configuration) or original(cls, path, configuration, *arrays)
            )
        ),
    )
    pb.simulate(X, Y, **SETTINGS, checkpoint=tmp_path / "checkpoint")
    [configuration] = keyed
    assert set(configuration) == set(files.unpack(BEFORE.read_bytes(), BEFORE)[0]["configuration"])
    assert configuration["nodes"] == 3 and configuration["rows_per_node"] == 6


def test_live_files_keep_the_names_of_before_and_are_shown_with_the_new_ones(tmp_path):
    pb.simulate(X, Y, **SETTINGS, live=tmp_path)
    with sqlite3.connect(tmp_path / LIVE_FILE) as db:
        [content] = db.execute("SELECT content FROM about").fetchone()
    db.close()
    assert json.loads(content)["configuration"]["nodes"] == 3
    following = Following(tmp_path)
    shown = following.look().configuration
    following.close()
    assert shown["peers"] == 3 and shown["rows_per_peer"] == 6 and "nodes" not in shown


def test_cells_have_the_specification_and_the_key_of_before():
    cell = Cell("digits", 0, "exact", peers=10)
    specification = cell.specification()
    assert specification["nodes"] == 10 and specification["rows_per_node"] == 50
    assert not {"peers", "rows_per_peer"} & set(specification)
    assert cell.key == "7a4cac3bd7411b6dc04bbb02d0b04e762eeef2abded510637e2114e81167e505"
    assert Cell.of(specification) == cell
