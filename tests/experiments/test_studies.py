"""Studies: what varies, cells and their rows, statistics, tables, the folder, and the command."""

import io
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.sparse import csr_array
from sklearn.datasets import load_wine

import peerbayes as pb
from peerbayes import network
from peerbayes.data.declarations import declarations
from peerbayes.data.table import Table
from peerbayes.errors import AlreadyThere, ConfigurationError
from peerbayes.experiments import comparison, paper_tables, study_checks, study_file, study_plan
from peerbayes.experiments.directions import more_is_better
from peerbayes.experiments.engines import LocalEngine, enduring
from peerbayes.experiments.formats import escaped
from peerbayes.experiments.levels import plain, read_back, several
from peerbayes.experiments.results_store import Store
from peerbayes.experiments.spool import keep, table_of
from peerbayes.experiments.study import Study
from peerbayes.experiments.study_cells import split
from peerbayes.experiments.study_checks import figures
from peerbayes.experiments.study_plan import Lines, StudyIncomplete, duration
from peerbayes.learning.strategies import STRATEGIES
from peerbayes.simulation.scores import BUILT_IN, figure_title
from peerbayes.simulation.settings import SimulationArguments
from shared.cells_that_fail import always_dying, dying
from shared.commands import HANG, peerbayes
from shared.studies import SMALL, Here, asked, killed_while_it_runs

SETTINGS = declarations(SimulationArguments)


@pytest.fixture(scope="module")
def wine():
    return load_wine(return_X_y=True)


@pytest.fixture(scope="module")
def small(wine, tmp_path_factory):
    """Three strategies on two networks with three seeds."""
    folder = tmp_path_factory.mktemp("study") / "small"
    return asked(
        wine, strategy=["exact", "crc", "local"], topology=["tree", "ring"], seed=range(3), folder=folder, name="small"
    )  # fmt: skip


# --- which values a setting has


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("strategy", ["exact", "crc"], ["exact", "crc"]),
        ("seed", range(3), [0, 1, 2]),
        ("lr", np.array([0.1, 0.2]), [0.1, 0.2]),
        ("topology", ("tree", "ring"), ["tree", "ring"]),
        ("partition", [np.arange(3), np.arange(3, 6)], None),
        ("topology", [[0, 1], [1, 0]], None),
        ("rows_per_peer", [20, 50], None),
        ("rows_per_peer", pb.each(20, 50), [20, 50]),
        ("rows_per_peer", {"each": [20, 50]}, [20, 50]),
        ("evaluate_rows", (10, 20), None),
        ("kinds", ["auto", "paper"], None),
        ("faults", [network.Loss(0.1)], None),
        ("message_loss", [0.0, 0.1], None),
        ("metrics", ["auc", "f1"], None),
        ("baselines", ["vote", "softmax"], None),
        ("baselines", pb.each([], ["vote"]), [[], ["vote"]]),
        ("kinds", {"a": "discrete"}, None),
        ("strategy", "exact", None),
    ],
)
def test_a_list_varies_a_setting_unless_it_may_be_one_value(name, value, expected):
    assert several(name, value, SETTINGS[name]) == expected


def test_a_list_that_is_taken_for_one_value_says_how_to_name_several(wine):
    with pytest.raises(
        TypeError, match=r"message_loss: .*; a list is one value.*pb.each\(…\).*names several values"
    ):
        asked(wine, message_loss=[0.0, 0.1])
    with pytest.raises(ValueError, match="strategy has no values"):
        asked(wine, strategy=[])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("privacy", pb.Privacy(epsilon=2.0, delta=1e-4)),
        ("attack", pb.Attack("flip", 0.25)),
        ("faults", [network.Loss(0.1), network.Away((1, 2), 2, 3), network.LossTrace({(1, 0, 1)})]),
        ("message_loss", network.LossTrace({(2, 1, 0), (1, 0, 1)})),
        ("kinds", {0: "discrete", "x1": "continuous"}),
        ("structure", [["a", "b"], ["b", "c"]]),
        ("evaluate_rows", (10, None)),
        ("rows_per_peer", [3, 4, 5]),
        ("dtype", np.float32),
        ("clip", None),
        ("lr", 0.1 + 0.2),
        ("seed", 2**100),
    ],
)
def test_a_value_is_the_same_after_it_was_stored(name, value):
    setting = SETTINGS[name]
    checked = setting.kind.check(name, value)
    stored = json.loads(json.dumps(plain(name, checked)))
    again = setting.kind.check(name, read_back(name, stored, setting))
    assert plain(name, again) == stored
    if not isinstance(value, list | tuple):
        assert again == checked


def test_a_schema_is_the_same_after_it_was_stored(wine):
    schema = pb.Schema.infer(*wine)
    assert read_back("schema", json.loads(json.dumps(plain("schema", schema))), SETTINGS["schema"]) == schema


def test_a_graph_a_matrix_and_a_file_of_the_same_links_are_one_network(tmp_path):
    graph = nx.cycle_graph(5)
    path = tmp_path / "ring.edges"
    path.write_text("# five\n0 1\n1, 2\n2 3\n3 4\n4 0\n")
    matrix = nx.to_numpy_array(graph)
    stored = [
        plain("topology", value) for value in (graph, matrix, csr_array(matrix), str(path), matrix.tolist())
    ]
    assert all(value == stored[0] for value in stored)
    np.testing.assert_array_equal(read_back("topology", stored[0], SETTINGS["topology"]).toarray(), matrix)


def test_what_cannot_be_stored_is_refused_in_a_sentence(wine):
    with pytest.raises(TypeError, match=r"topology is Changing.*change_every"):
        asked(wine, topology=[network.Changing("tree", 4), "ring"])
    with pytest.raises(
        TypeError, match=r"strategy is .*; a study stores its settings.*docs/howto/package.md"
    ):
        asked(wine, strategy=[STRATEGIES["exact"](), "exact"])
    with pytest.raises(ValueError, match="checkpoint is 'x'; expected None in a study: a study keeps"):
        asked(wine, checkpoint="x")
    with pytest.raises(TypeError, match="unexpected keyword argument 'stratgey'"):
        asked(wine, stratgey="exact")
    with pytest.raises(ValueError, match=r"partition lists rows of X.*test="):
        asked(wine, partition=[np.arange(5), np.arange(5, 9)], peers=2)
    with pytest.raises(TypeError, match="X and y, or else dataset"):
        pb.study(*wine, dataset="wine")


# --- tables in the folder


def test_a_table_in_the_folder_is_the_table(tmp_path):
    frame = pd.DataFrame({
        "number": [1.5, np.nan, 3.0, 4.0], "text": ["a", None, "b\n", "ä"], "flag": [True, False, True, True],
        "of": pd.Categorical(["x", "y", None, "x"], categories=["z", "y", "x"]), "mixed": [1, 1.0, True, "1"],
        "whole": np.array([1, 2, 3, 4], dtype=np.int16),
    })  # fmt: skip
    labels = np.array(["no", "yes", "no", "yes"])
    kept = keep(tmp_path, frame, labels)
    table, again = table_of(str(tmp_path), kept.key)
    assert (kept.rows, kept.columns) == (4, 6) and again.dtype == labels.dtype and (again == labels).all()
    for number in range(6):
        one, other = Table.of(frame).column(number), table.column(number)
        assert one.dtype == other.dtype and list(map(repr, one.tolist())) == list(map(repr, other.tolist()))
    assert list(table.native["of"].cat.categories) == ["z", "y", "x"]
    assert table.native["whole"].dtype == np.int16
    kinds = {"mixed": "discrete"}
    assert pb.Schema.infer(table.native, again, kinds=kinds) == pb.Schema.infer(frame, labels, kinds=kinds)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int16])
@pytest.mark.parametrize("rows", [3, 2000])
def test_a_frame_of_numbers_in_the_folder_is_that_frame(tmp_path, rng, dtype, rows):
    frame = pd.DataFrame(rng.normal(size=(rows, 3)).astype(dtype), columns=["b", "a", "a c"])
    labels = np.arange(rows) % 2
    table, again = table_of(str(tmp_path), keep(tmp_path, frame, labels).key)
    pd.testing.assert_frame_equal(table.native, frame, check_column_type=False)
    assert table.names == ("b", "a", "a c") and (again == labels).all()


def test_the_same_values_of_another_type_are_another_table(tmp_path):
    X, y = np.arange(6.0).reshape(3, 2), [0, 1, 0]
    assert keep(tmp_path, X, y).key != keep(tmp_path, X.astype(np.float32), y).key
    assert keep(tmp_path, X, y).key == keep(tmp_path, X.copy(), np.array(y)).key


def test_a_value_that_no_file_can_hold_is_refused(tmp_path):
    with pytest.raises(ValueError, match="column 'a' holds <object"):
        keep(tmp_path, pd.DataFrame({"a": [object(), object()]}), [0, 1])


# --- rows of a seed


def test_test_rows_of_a_seed_are_the_same_in_all_cells():
    labels = np.arange(100) % 3
    one, other = split(labels, 7), split(labels, 8)
    assert len(one.test) == 20 and set(one.train) | set(one.test) == set(range(100))
    assert not set(one.train) & set(one.test)
    assert set(one.test) != set(other.test)
    assert len(split(labels, 7, 33).test) == 33


def test_a_class_of_one_row_is_learned_not_tested():
    for seed in range(20):
        train, test = split(np.array(["a"] * 30 + ["b"]), seed, 10)
        assert 30 in train and 30 not in test


# --- cells


def test_a_cell_is_the_simulation_bit_by_bit(wine):
    X, y = wine
    study = asked(wine, strategy=["exact", "crc"], topology=["tree", "ring"], seed=[1, 2], lr=0.1)
    for _, row in study.frame.iterrows():
        train, test = split(y, row["seed"])
        run = pb.simulate(
            X[train], y[train], test=(X[test], y[test]), strategy=row["strategy"], topology=row["topology"],
            seed=row["seed"], lr=0.1, **SMALL,
        )  # fmt: skip
        expected = {k: v for k, v in run.summary().items() if not k.startswith("seconds") and v == v}
        assert {name: row[name] for name in expected} == expected
        by_round = run.history.groupby("round")["test_error"]
        cell = study.history
        cell = cell[(cell["strategy"] == row["strategy"]) & (cell["topology"] == row["topology"])]
        cell = cell[cell["seed"] == row["seed"]]
        assert (cell["test_error"].to_numpy() == by_round.mean().to_numpy()).all()
        assert (cell["test_error_std"].to_numpy() == by_round.std(ddof=0).to_numpy()).all()
        assert (cell["bytes"].to_numpy() == run.history.groupby("round")["bytes"].mean().to_numpy()).all()


def test_mixed_tables_and_given_test_rows(wine):
    X, y = load_wine(return_X_y=True, as_frame=True)
    X = X.assign(
        origin=pd.Categorical(np.where(X["hue"] > 1, "red", "white")), text=np.where(X["ash"] > 2.3, "a", "b")
    )
    names = y.map({0: "one", 1: "two", 2: "three"})
    train, test = np.arange(0, 178, 2), np.arange(1, 178, 2)
    given = (X.iloc[test], names.iloc[test])
    study = asked((X.iloc[train], names.iloc[train]), test=given, seed=[0, 1], references=False)
    for seed in (0, 1):
        run = pb.simulate(X.iloc[train], names.iloc[train], test=given, seed=seed, references=False, **SMALL)
        assert study.frame.loc[seed, "test_error"] == run.summary()["test_error"]
    assert "test_rc" not in study.frame  # what no cell has is no column of NaN


def test_a_permutation_of_lists_changes_nothing(wine, small):
    study = asked(wine, topology=["ring", "tree"], seed=[2, 0, 1], strategy=["local", "exact", "crc"])
    order = ["strategy", "topology", "seed"]
    without = [name for name in small.frame.columns if "second" not in name]
    one, other = (each.frame[without].sort_values(order).reset_index(drop=True) for each in (small, study))
    pd.testing.assert_frame_equal(one, other)


def test_a_default_that_is_named_is_the_same_cell(wine):
    one, other = asked(wine), asked(wine, strategy="auto", lr=0.05, seed=0)
    assert one.frame["key"].tolist() == other.frame["key"].tolist()


DEFAULTS = {
    "family": "naive-bayes", "kinds": "auto", "peers": 50, "rows_per_peer": 50, "topology": "tree",
    "partition": "iid", "strategy": "auto", "start": "uniform", "rounds": 64, "lr": 0.05, "local_steps": 1,
    "messages": "float64", "exchanges": None, "penalty": "none", "objective": "rows", "seed": 0, "clip": 5.0,
    "dtype": "float64", "evaluate_every": 1, "message_loss": 0.0, "message_delay": 0.0, "peers_down": 0.0,
    "faults": None, "secure_sum": False, "start_rounds": None, "privacy": None, "robust": None, "attack": None,
    "hold_out": 0.0, "select": "last", "patience": 4, "references": True, "structure": None, "baselines": (),
    "metrics": ("balanced_accuracy", "log_loss", "auc", "f1", "brier", "ece"),
}  # fmt: skip


def test_defaults_are_those_that_stored_cells_had():
    """A cell's key leaves defaults out. If one changes, raise STUDY_REVISION, and change it here."""
    assert {name: SETTINGS[name].default for name in DEFAULTS} == DEFAULTS


def test_cells_that_are_refused_end_nothing_and_are_tried_again(wine, tmp_path):
    engine = Here()
    arguments = {"strategy": ["exact", "local"], "robust": [None, "clip"], "folder": tmp_path, "seed": [0, 1]}
    with pytest.warns(StudyIncomplete, match=r"2 of 8 cells have no figures: .*robust 'clip'"):
        study = asked(wine, engine, **arguments)
    assert engine.count == 8
    refused = study.frame[study.frame["status"] == "refused"]
    assert set(refused["strategy"]) == {"local"} and refused["reason"].str.contains("robust 'clip'").all()
    with pytest.warns(StudyIncomplete):
        asked(wine, engine, **arguments)
    assert engine.count == 10
    summary = study.summary()
    nothing = summary[(summary["robust"] == "clip") & (summary["strategy"] == "local")].iloc[0]
    assert nothing["seeds"] == 0 and "2 of 2 seeds are refused: robust 'clip'" in nothing["note"]
    assert "are refused" in study.markdown() and "are refused" in study.latex()


def test_a_study_of_refused_cells_only_says_so(wine):
    with pytest.warns(StudyIncomplete, match="1 of 1 cells"):
        study = asked(wine, strategy="local", robust="clip")
    assert "robust 'clip'" in study.frame["reason"][0]
    assert study.summary()["note"][0].startswith("1 of 1 seeds is refused: ")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"topology": ["ring", "rnig"]}, "topology is 'rnig'; expected one of tree, chain, ring"),
        ({"topology": ["ring", "hypercube"], "peers": 5}, "no cell can use topology hypercube: .*take 4 or 8"),
        ({"topology": nx.cycle_graph(5), "peers": [5, 7]}, "no cell can use peers 7: .*5 nodes; expected 7"),
        ({"rows_per_peer": 5000}, "rows_per_peer holds 5000; expected 1 to 143"),
        ({"rows_per_peer": 36}, "4 peers want 144 rows in all, the table has 143"),
        ({"rows_per_peer": pb.each(15, [20, 30])}, "no cell can use rows_per_peer 20, 30: rows_per_peer has 2 entries"),
        ({"peers": [3, 400]}, "no cell can use peers 400: peers is 400; expected 1 to 143"),
        ({"partition": ["iid", "column:hospital"]}, "no cell can use partition column:hospital: .*pass a DataFrame"),
    ],
)  # fmt: skip
def test_a_value_that_no_cell_can_use_is_refused_at_once(wine, settings, message):
    engine = Here()
    with pytest.raises(ValueError, match=message):
        asked(wine, engine, **settings)
    assert engine.count == 0


def test_values_that_some_cells_can_use_are_refused_there_only(wine):
    with pytest.warns(StudyIncomplete, match=r"1 of 4 cells .*4 peers want 144 rows"):
        study = asked(wine, peers=[2, 4], rows_per_peer=pb.each(15, 36))
    assert study.frame["status"].tolist().count("done") == 3
    assert asked(wine, partition="dirichlet-0.5", rows_per_peer=35).frame["status"].tolist() == ["done"]


# --- a column of owners beside other partitions


def of_hospitals(owners=("hospital",), rows=300):
    rng = np.random.default_rng(8)
    columns = {name: rng.choice(["A", "B", "C"], rows) for name in owners}
    ill = rng.random(rows) < np.where(columns[owners[0]] == "A", 0.9, 0.1)
    return pd.DataFrame({"age": rng.normal(50 + 5 * ill, 9), **columns}), np.where(ill, "ill", "well")


@pytest.mark.parametrize("given", [False, True])
def test_a_column_of_owners_is_a_feature_in_no_cell(given):
    X, y = of_hospitals(("hospital", "region"))
    test = of_hospitals(("hospital", "region"), 80) if given else None
    of = {"peers": 3, "rounds": 3, "seed": [0, 1], "rows_per_peer": pb.each(60), "test": test}
    study = asked((X, y), partition=["column:hospital", "column:region", "iid"], **of)
    assert set(study.frame["status"]) == {"done"}
    assert {cell.specification["data"] for cell in study.cells} == {study.cells[0].specification["data"]}
    without = X[["age"]]
    tested = None if test is None else (test[0][["age"]], test[1])
    bare = asked((without, y), partition="iid", **{**of, "test": tested}).frame
    assert (
        study.frame.loc[study.frame["partition"] == "iid", "test_log_loss"].tolist()
        == bare["test_log_loss"].tolist()
    )
    one = asked((X[["age", "hospital"]], y), partition="column:hospital", **{
        **of, "test": None if test is None else (test[0][["age", "hospital"]], test[1])
    })  # fmt: skip
    owned = study.frame[study.frame["partition"] == "column:hospital"]
    assert owned["test_log_loss"].tolist() == one.frame["test_log_loss"].tolist()


def test_a_study_says_which_columns_name_owners(tmp_path):
    data = of_hospitals()
    study = asked(data, partition=["column:hospital", "iid"], peers=3, seed=[0, 1], folder=tmp_path)
    said = "Column 'hospital' names the owners of rows in some cells, so it is a feature in none."
    assert said in study.markdown() and said in study.summary().attrs["notes"]
    assert said in Study.load(tmp_path).latex()
    alone = asked(data, partition="column:hospital", peers=3, strategy=["exact", "local"])
    assert "owners" not in alone.markdown() and "owners" not in alone.cells[0].specification


# --- figures that no cell can have, or none has


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"metric": "auc"}, r"metric is 'auc'; expected a figure of a run.* Is it test_auc\?"),
        ({"metric": "test_eror"}, r"Is it test_error or "),
        ({"metric": "test_vote"}, "which the metrics and baselines of this study do not ask for"),
        ({"metric": "test_f1", "metrics": ["auc"]}, "such as test_error, test_auc, test_auc_std"),
        ({"metric": "vote_product", "baselines": "vote"}, "Is it test_vote_product"),
    ],
)  # fmt: skip
def test_a_figure_that_no_cell_can_have_is_refused_at_once(wine, settings, message):
    engine = Here()
    with pytest.raises(ValueError, match=message):
        asked(wine, engine, **settings)
    assert engine.count == 0


def test_a_figure_that_no_cell_has_is_refused_by_tables(wine):
    study = asked(wine, metric="epsilon", strategy=["exact", "crc"])
    for table in (study.summary, study.markdown, study.latex, study.grid):
        with pytest.raises(ValueError, match="no cell has epsilon: the settings of this run ask for no such"):
            table()
    assert "no cell has epsilon" in repr(study) and "no cell has epsilon" in study._repr_html_()
    assert study.summary("seconds")["mean"].notna().all()


def test_every_figure_of_a_run_is_among_those_that_runs_can_have(wine):
    baselines = ["vote", "softmax", "logistic-regression"]
    run = pb.simulate(*wine, baselines=baselines, **SMALL)
    attacked = pb.simulate(
        *wine, peers=8, rows_per_peer=15, rounds=3, robust="clip", attack="flip", topology="complete"
    )
    private = pb.simulate(*wine, privacy=pb.Privacy(epsilon=4.0, min_rows=10), **SMALL)
    for keys, names in ((run.summary(), baselines), (attacked.summary(), ()), (private.summary(), ())):
        for figure in keys:
            study_checks.refuse_impossible(figure, BUILT_IN, names)
    expected = set(figures(BUILT_IN, baselines)) - {"epsilon", "attackers", "rejected", "vanished", "seconds"}
    assert expected <= set(run.summary())


def test_nothing_is_computed_twice_and_more_seeds_are_added(wine, tmp_path):
    engine = Here()
    first = asked(wine, engine, seed=[0, 1], folder=tmp_path)
    assert engine.count == 2
    asked(wine, engine, seed=[0, 1], folder=tmp_path)
    assert engine.count == 2
    more = asked(wine, engine, seed=[0, 1, 2], folder=tmp_path)
    assert engine.count == 3
    pd.testing.assert_frame_equal(more.frame.iloc[:2], first.frame)
    changed = (wine[0] + 1.0, wine[1])
    with pytest.raises(AlreadyThere, match=r"3 cells .*rows"):
        asked(changed, engine, seed=[0, 1, 2], folder=tmp_path)
    asked(changed, engine, seed=[0, 1, 2], folder=tmp_path, overwrite=True)
    assert engine.count == 6


def test_datasets_vary_by_name_and_file(wine, tmp_path):
    path = tmp_path / "rows.csv"
    pd.DataFrame(wine[0][:, :3], columns=list("abc")).assign(y=wine[1], z=0.5).to_csv(path, index=False)
    study = pb.study(
        dataset=["wine", {"file": str(path), "label": "y"}], engine=Here(), progress=False, strategy=["exact", "crc"],
        **SMALL,
    )  # fmt: skip
    assert study.varied == ("dataset", "strategy")
    assert study.frame["dataset"].tolist() == ["wine"] * 2 + [str(path)] * 2
    assert (study.frame["status"] == "done").all()
    assert study.tables["wine"]["rows"] == 178


def test_values_that_are_long_are_written_once(wine, tmp_path):
    X, y = wine
    rows = np.arange(160)
    partition = [rows[k::4] for k in range(4)]
    settings = {"partition": [p.tolist() * 1 for p in partition], "peers": 4, "rows_per_peer": None}
    trace = network.LossTrace({(r, a, b) for r in range(1, 40) for a in range(4) for b in range(4) if a != b})
    test = (X[160:], y[160:])
    study = asked((X, y), test=test, message_loss=pb.each(0.0, trace), folder=tmp_path, **settings)
    assert len(list((tmp_path / "values").iterdir())) == 1
    run = pb.simulate(X, y, test=test, message_loss=trace, **{**SMALL, **settings})
    assert study.frame["test_error"][1] == run.summary()["test_error"]
    assert study.frame["message_loss"].nunique() == 2


# --- engines, and a folder that goes on


def test_a_cell_that_kills_its_workers_fails_alone(tmp_path):
    done = dict(enduring(LocalEngine(1), always_dying, [{"number": 7}]))
    assert "its workers died" in done[0]["failed"]
    mark = str(tmp_path / "mark")
    specifications = [{"number": n, "dies": n == 1, "mark": mark} for n in range(3)]
    assert dict(enduring(LocalEngine(2), dying, specifications)) == {n: {"twice": 2 * n} for n in range(3)}


SCRIPT = """import peerbayes as pb
from sklearn.datasets import load_digits
X, y = load_digits(return_X_y=True)
three, four = ["exact", "crc", "local"], ["tree", "ring", "star", "complete"]
study = pb.study(X, y, strategy=three, topology=four, seed=range(5), folder="FOLDER", PEERS)
print(study.markdown())
"""


def test_killed_half_way_the_same_numbers_come_out(tmp_path):
    """Three strategies, four networks and five seeds in few lines; without a guard of the main module."""
    script = SCRIPT.replace("PEERS", "peers=4, rows_per_peer=15, rounds=2, references=False, workers=2")
    paths = {}
    for name in ("whole", "cut"):
        paths[name] = tmp_path / f"{name}.py"
        paths[name].write_text(script.replace("FOLDER", str(tmp_path / name)))
    results = tmp_path / "cut" / "results.sqlite"
    killed_while_it_runs(paths["cut"], results, 5)
    before = len(Store(results).frame())
    assert 5 <= before < 60
    outputs = {}
    for name, path in paths.items():
        outputs[name] = subprocess.run(
            [sys.executable, str(path)], capture_output=True, text=True, check=True
        )
    assert outputs["cut"].stdout == outputs["whole"].stdout
    assert re.findall(r"of (\d+) cells", outputs["cut"].stderr)[-1] == str(60 - before)
    one, other = (Study.load(tmp_path / name) for name in ("whole", "cut"))
    figures = [name for name in one.frame.columns if "second" not in name]
    pd.testing.assert_frame_equal(one.frame[figures], other.frame[figures])
    history = [name for name in one.history.columns if "second" not in name]
    pd.testing.assert_frame_equal(one.history[history], other.history[history])


def test_a_folder_is_opened_again(small):
    again = Study.load(small.folder)
    pd.testing.assert_frame_equal(again.frame, small.frame)
    pd.testing.assert_frame_equal(again.history, small.history)
    pd.testing.assert_frame_equal(again.summary(), small.summary())
    assert repr(again) == repr(small)
    assert "18 cells (3 strategy × 2 topology × 3 seed); 18 done" in repr(small)
    assert "<table>" in small._repr_html_() and "<td>tree</td>" in small._repr_html_()


def test_a_folder_without_a_study_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="holds no study"):
        Study.load(tmp_path)
    (tmp_path / "study.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="does not describe a study"):
        Study.load(tmp_path)


def test_rows_that_are_gone_are_named(wine, tmp_path):
    study = asked(wine, folder=tmp_path)
    (table,) = (tmp_path / "tables").iterdir()
    table_of.cache_clear()
    table.unlink()
    engine = Here()
    (specification,) = (cell.specification for cell in study.cells)
    from peerbayes.experiments.study_cells import compute

    result = compute({**specification, "folder": str(study.folder)})
    assert "cannot be read" in result["refused"] and engine.count == 0


# --- statistics


def test_intervals_and_differences_are_those_of_scipy(small):
    summary = small.summary()
    for _, row in summary.iterrows():
        values = seeds_of(small, row["strategy"], row["topology"])
        low, high = stats.t.interval(0.95, 2, values.mean(), stats.sem(values))
        assert row["mean"] == pytest.approx(values.mean()) and row["seeds"] == 3
        assert (row["low"], row["high"]) == pytest.approx((low, high))
        spread = small.frame[
            (small.frame["strategy"] == row["strategy"]) & (small.frame["topology"] == row["topology"])
        ]
        assert row["std_over_peers"] == pytest.approx(spread["test_std"].mean())
        assert row["std_over_seeds"] == pytest.approx(values.std(ddof=1))
    for topology, group in summary.groupby("topology"):
        best = group.loc[group["mean"].idxmin()]
        assert best["difference"] == 0.0 and best["compared_with"] == "itself"
        others = group[group["strategy"] != best["strategy"]]
        for _, row in others.iterrows():
            pair = seeds_of(small, row["strategy"], topology), seeds_of(small, best["strategy"], topology)
            assert row["difference"] == pytest.approx((pair[0] - pair[1]).mean())
            assert row["p"] == pytest.approx(stats.ttest_rel(*pair).pvalue)
            interval = stats.ttest_rel(*pair).confidence_interval()
            assert (row["difference_low"], row["difference_high"]) == pytest.approx(tuple(interval))
        expected = stats.false_discovery_control([1.0, 1.0])  # of the right length
        assert len(expected) == len(others)
        lower, upper = sorted(others["p"])
        assert sorted(others["p_holm"]) == pytest.approx(
            [min(1.0, 2 * lower), max(min(1.0, 2 * lower), upper)]
        )


def seeds_of(study, strategy, topology):
    frame = study.frame
    chosen = frame[(frame["strategy"] == strategy) & (frame["topology"] == topology)]
    return chosen.sort_values("seed")["test_error"].to_numpy()


def test_tests_are_those_of_scipy():
    rng = np.random.default_rng(0)
    for size in (2, 5, 9):
        differences = rng.normal(0.3, 1.0, size)
        assert comparison.t_test(differences) == pytest.approx(stats.ttest_1samp(differences, 0.0).pvalue)
        assert comparison.wilcoxon(differences) == pytest.approx(stats.wilcoxon(differences).pvalue)
        expected = stats.permutation_test(
            (differences,), np.mean, permutation_type="samples", n_resamples=np.inf, vectorized=False
        )
        assert comparison.sign_flips(differences) == pytest.approx(expected.pvalue)
    many = rng.normal(0.3, 1.0, 40)
    assert comparison.sign_flips(many) == pytest.approx(stats.ttest_1samp(many, 0.0).pvalue, abs=0.02)
    for test, _ in comparison.TESTS.values():
        assert test(np.zeros(6)) == 1.0
    for size in (2, 4, 6):  # equal differences have no variance: p is of changing signs
        for rounding in (0.0, 1e-17):
            equal = 0.5 + rounding * np.arange(size)
            assert comparison.t_test(equal) == pytest.approx(2 / 2**size) == comparison.sign_flips(equal)
    assert comparison.t_test(np.array([0.5, 0.5 + 1e-6])) < 1e-5  # a little variance is variance


def test_holm_against_its_definition():
    rng = np.random.default_rng(1)
    for size in (1, 2, 5):
        p_values = rng.random(size) ** 3
        corrected = comparison.holm(p_values)
        for level in np.linspace(0.001, 0.999, 97):
            rejected, order = set(), np.argsort(p_values)
            for rank, index in enumerate(order):  # step down: stop at the first that is not below its level
                if p_values[index] > level / (size - rank):
                    break
                rejected.add(int(index))
            assert {index for index, p in enumerate(corrected) if p <= level} == rejected


def frame_of(values, metric="test_error"):
    """A frame of cells that are done: values by level and seed."""
    rows = [
        {
            "strategy": level,
            "seed": seed,
            "status": "done",
            metric: value,
            "key": "",
            "reason": "",
            "warnings": "",
        }
        for level, of_seeds in values.items()
        for seed, value in enumerate(of_seeds)
    ]
    return pd.DataFrame(rows)


def table(values, metric="test_error", **options):
    frame = frame_of(values, metric)
    settings = {"compare": None, "baseline": None, "test": "t", "confidence": 0.95, **options}
    settings.setdefault("more", more_is_better(metric))
    return comparison.table(
        frame, ["strategy"], comparison.checked_question(frame, ["strategy"], metric, **settings)
    )


def test_the_best_is_marked_only_where_it_is_distinguishable():
    noise = np.array([0.0, 0.01, -0.01, 0.02, -0.02])
    clear = {"a": 0.1 + noise, "b": 0.2 + noise[::-1], "c": 0.3 - noise}
    assert table(clear)["best"].tolist() == [True, False, False]
    close = {"a": 0.1 + noise, "b": 0.101 + noise[::-1], "c": 0.3 - noise}
    assert not table(close)["best"].any()
    assert table(clear, "test_auc")["best"].tolist() == [False, False, True]  # of which more is better
    assert not table(clear, test="sign-flip")["best"].any()  # five seeds cannot reach 0.05
    against = table(clear, baseline="b")
    assert against["compared_with"].tolist() == ["b", "itself", "b"] and against["best"].tolist() == [
        True,
        False,
        False,
    ]


def test_one_seed_has_no_interval_and_says_so():
    summary = table({"a": [0.1], "b": [0.2]})
    assert np.isnan(summary["low"]).all() and not summary["best"].any()
    assert all("One seed: no interval and no test" in note for note in summary["note"])
    assert summary["difference"].tolist() == pytest.approx([0.0, 0.1])


def test_two_seeds_of_equal_differences_tell_nothing_apart():
    summary = table({"a": [0.1, 0.2], "b": [0.2, 0.3]})
    assert not summary["best"].any() and summary["p"][1] == 0.5
    assert (
        "the same in all 2 seeds, so their interval has no width, and p is of changing signs"
        in summary["note"][1]
    )
    assert table({"a": [0.1] * 6, "b": [0.2] * 6})["best"].tolist() == [True, False]  # six signs are enough
    assert table({"a": [0.1, 0.2], "b": [0.1, 0.2]})["note"].tolist() == ["", ""]


def test_where_nobody_said_what_is_better_others_are_compared_with_the_first_and_none_is_marked():
    noise = np.array([0.0, 0.01, -0.01, 0.02, -0.02])
    values = {"a": 0.3 + noise, "b": 0.1 - noise, "c": 0.5 + noise[::-1]}
    summary = table(values, "my_figure")
    assert not summary["best"].any() and summary["compared_with"].tolist() == ["itself", "a", "a"]
    assert (summary["p_holm"][1:] < 0.05).all() and "say it by greater_is_better" in summary.attrs["notes"][0]
    assert table(values, "my_figure", more=True)["best"].tolist() == [False, False, True]


def test_a_figure_that_is_missing_has_a_sentence():
    summary = table({"a": [0.1, np.nan, 0.2], "b": [np.nan] * 3})
    assert summary["note"][0] == "1 of 3 seeds has no test_error: its run could not compute it."
    assert summary["note"][1] == "3 of 3 seeds have no test_error: its run could not compute it."
    assert summary["seeds"].tolist() == [2, 0]


def test_nothing_is_nan_without_a_sentence(small):
    assert not small.frame.isna().any().any()
    summary = small.summary()
    assert not summary.isna().any().any() and (summary["note"] == "").all()
    assert not small.history.drop(columns="seconds").isna().any().any()


def test_questions_that_make_no_sense_are_refused(small):
    with pytest.raises(ValueError, match="metric is 'test_eror'; expected one of"):
        small.summary("test_eror")
    with pytest.raises(ValueError, match="compare is 'lr'; expected one of strategy, topology"):
        small.summary(compare="lr")
    with pytest.raises(ValueError, match="baseline is 'relay'; expected one of 'exact', 'crc', 'local'"):
        small.summary(baseline="relay")
    with pytest.raises(ValueError, match="test is 'z'"):
        small.summary(test="z")


# --- tables


def test_the_table_in_its_formats(small, tmp_path):
    lines = small.markdown().splitlines()
    assert lines[2] == "| topology | exact | crc | local |"
    assert [line.split(" | ")[0] for line in lines[4:6]] == ["| tree", "| ring"]
    assert re.search(r"0\.\d{3} ± 0\.\d{3}", lines[4])
    text = small.latex(tmp_path / "table.tex")
    assert (tmp_path / "table.tex").read_text(encoding="utf-8") == text
    for word in (r"\toprule", r"\midrule", r"\bottomrule", r"\begin{tabular}{lrrr}", r"$\pm$"):
        assert word in text
    small.csv(tmp_path / "cells.csv")
    again = pd.read_csv(tmp_path / "cells.csv")
    assert again["test_error"].tolist() == small.frame["test_error"].tolist()
    by_topology = small.markdown(compare="topology", metric="bytes_per_peer")
    assert "| strategy | tree | ring |" in by_topology and "### small: bytes per peer\n" in by_topology
    assert (
        "\nMean over seeds ± half of its 95 % t-interval. " in by_topology
        and "bytes_per_peer" not in by_topology
    )


def test_a_table_has_the_caption_and_the_label_that_are_asked_for(small):
    plain = small.latex(metric="test_auc")
    assert r"\caption{small: test AUC. Mean over seeds $\pm$" in plain and r"\label" not in plain
    text = small.latex(caption=r"Errors of \emph{three} strategies", label="tab:errors")
    assert "\\caption{Errors of \\emph{three} strategies}\n\\label{tab:errors}\n" in text
    assert "\n% Mean over seeds ± half of its 95 % t-interval. " in text  # what the numbers are is not lost
    assert small.markdown(caption="Errors").startswith("### Errors\n")


@pytest.mark.parametrize(
    ("figure", "title"),
    [
        ("test_error", "test error"), ("test_auc", "test AUC"), ("test_f1_vote", "test macro F1: vote"),
        ("test_auc_rc", "test AUC: RC, pooled rows"), ("test_local", "test error: peers alone"),
        ("test_auc_local", "test AUC: peers alone"), ("train_error", "training error"),
        ("test_average_precision", "test average precision"), ("bytes_per_peer", "bytes per peer"),
        ("test_log_loss_std", "test log loss, standard deviation over peers"),
    ],
)  # fmt: skip
def test_figures_have_names_in_words(figure, title):
    assert figure_title(figure) == title


@pytest.mark.parametrize("show", [Study.markdown, Study.summary, Study.grid, Study.plot])
def test_a_table_is_of_one_figure(small, show):
    given = (
        {"y": ["test_error", "test_auc"]} if show is Study.plot else {"metric": ["test_error", "test_auc"]}
    )
    if show is Study.plot:
        pytest.importorskip("plotly")
    with pytest.raises(
        ValueError, match=r"metric is \['test_error', 'test_auc'\].* one figure.* a table of each"
    ):
        show(small, **given)


def test_latex_escapes():
    nasty = "a_b & 50% #1 {x} $y$ ~ ^ \\ <|> ±–…×≤ εδ"
    text = escaped(nasty)
    for sign in "_&%#{}":
        assert re.search(rf"(?<!\\){re.escape(sign)}", text.replace("{}", "").replace(r"\\", "")) is None
    assert escaped("Zürich") == "Zürich" and escaped("東") == "[U+6771]"
    assert escaped("a_b") == r"a\_b" and escaped("\\") == r"\textbackslash{}"


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_latex_compiles_the_table_and_the_figure(wine, tmp_path):
    study = asked(
        wine, strategy=["exact", "crc"], seed=[0, 1], name="A_b & 50% #1 {x} $y$ ~^\\ <|> ±–… εδ 東 Zürich"
    )
    study.latex(tmp_path / "table.tex")
    figure = ""
    if find_spec("peerbayes.report.study_curves") and find_spec("kaleido") and shutil.which("chromium"):
        study.plot().write_image(tmp_path / "figure.pdf")
        figure = r"\includegraphics[width=\linewidth]{figure.pdf}"
    (tmp_path / "paper.tex").write_text(
        "\\documentclass{article}\n\\usepackage{booktabs}\n\\usepackage{graphicx}\n\\begin{document}\n"
        f"\\input{{table.tex}}\n{figure}\n\\end{{document}}\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"], cwd=tmp_path, capture_output=True,
        text=True, errors="replace", timeout=HANG,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "paper.pdf").stat().st_size > 5000


def test_curves_are_drawn_of_the_history(small):
    pytest.importorskip("plotly")
    pytest.importorskip("peerbayes.report.study_curves")
    figure = small.plot(x="bytes", facet="topology")
    names = {line.name for line in figure.data if line.name}
    assert {"exact", "crc", "local"} <= names


# --- progress


def test_progress_is_a_line_for_each_tenth():
    lines = []
    progress = Lines(lines.append)
    for done in range(1, 61):
        progress.show(done, 60)
    assert len(lines) == 10 and lines[-1] == "60 of 60 cells" and lines[0].startswith("6 of 60 cells, ")
    assert all(line.endswith(" left") for line in lines[:-1])
    assert [duration(seconds) for seconds in (40, 720, 12600)] == ["40 s", "12 min", "3.5 h"]


def test_the_time_left_does_not_count_what_workers_take_to_start(monkeypatch):
    lines, seconds = [], [0.0]
    monkeypatch.setattr(study_plan.time, "monotonic", lambda: seconds[0])
    progress = Lines(lines.append)
    for done in range(1, 5):
        seconds[0] = 29.0 + done  # 30 s until the first result, then one each second
        progress.show(done, 8)
    assert lines == [
        "1 of 8 cells",
        "2 of 8 cells, 6 s left",
        "3 of 8 cells, 5 s left",
        "4 of 8 cells, 4 s left",
    ]


# --- the command

FILE = """
[study]
name = "small"
metric = "test_error"

[data]
name = "wine"

[simulation]
strategy = ["exact", "crc"]
rows_per_peer = { each = [10, 15] }
seed = [0, 1]
peers = 4
rounds = 2
references = REFERENCES
"""


@pytest.fixture
def study_toml(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(FILE.replace("references = REFERENCES\n", ""))
    return path


def test_the_command_runs_a_file_and_goes_on(study_toml, tmp_path):
    done = peerbayes("study", study_toml, "--workers", 1, "--format", "json", code=0)
    shown = json.loads(done.stdout)
    assert shown["cells"] == 8 and {row["rows_per_peer"] for row in shown["summary"]} == {10, 15}
    assert "8 cells (2 strategy × 2 rows_per_peer × 2 seed); 8 to compute" in done.stderr
    study = Study.load(tmp_path / "study")
    X, y = load_wine(return_X_y=True)
    same = asked((X, y), strategy=["exact", "crc"], rows_per_peer=pb.each(10, 15), seed=[0, 1], rounds=2)
    assert sorted(study.frame["test_error"]) == sorted(same.frame["test_error"])
    for form, word in (
        ("markdown", "| exact"),
        ("latex", r"\toprule"),
        ("csv", "dataset,strategy"),
        ("table", "exact"),
    ):
        again = peerbayes("study", study_toml, "--format", form, code=0)
        assert word in again.stdout and "0 to compute" in again.stderr
    several_metrics = peerbayes(
        "study", study_toml, "--format", "markdown", "--metric", "test_error,disagreement", code=0
    )
    assert several_metrics.stdout.count("| rows_per_peer | exact | crc |") == 2
    assert several_metrics.stdout.startswith("### small: test error\n")
    words = ["study", study_toml, "--metric", "test_error,disagreement", "--format"]
    rows = json.loads(peerbayes(*words, "json", code=0).stdout)["summary"]
    assert [row["metric"] for row in rows] == ["test_error"] * 4 + ["disagreement"] * 4
    cells = pd.read_csv(io.StringIO(peerbayes(*words, "csv", code=0).stdout))
    assert cells["key"].tolist() == study.frame["key"].tolist()
    more = peerbayes("study", study_toml, "--dry-run", "--set", "seed=[0, 1, 2]", code=0)
    assert "12 cells" in more.stderr and "4 to compute" in more.stderr


def test_a_cell_without_figures_is_in_the_exit_code(study_toml, tmp_path):
    done = peerbayes(
        "study", study_toml, "--set", "strategy=[\"exact\", \"local\"]", "--set", "robust=[false, \"clip\"]", "--set",
        "rows_per_peer=10", "--set", "seed=0", "--out", tmp_path / "out", "--workers", 1, code=1,
    )  # fmt: skip
    assert "1 of 4 cells have no figures" in done.stderr
    assert "strategy local, robust clip, seed 0: refused: robust 'clip'" in done.stderr
    assert "is refused" in done.stdout


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "wine"', 'name = ["wine", "wein"]', r"line 7: .*wein"),
        ("peers = 4", "peers = [4, 0]", r"line 13: peers is 0; expected a whole number of 1 or more"),
        ("peers = 4", "peeers = 4", r"line 13: 'peeers' is not a setting.* Is it peers\?"),
        (
            "rows_per_peer = { each = [10, 15] }",
            "message_loss = [0.0, 0.1]",
            r"line 11: message_loss: .*each = \[…\]",
        ),
        ('metric = "test_error"', 'metrics = "x"', r"line 4: 'metrics' is not an entry of \[study\]"),
        ('strategy = ["exact", "crc"]', "strategy = []", r"line 10: strategy has no values"),
        ("[study]", "[studies]", r"'studies' is not a section"),
        (
            'metric = "test_error"',
            'compare = "lr"',
            r"compare is 'lr'; expected a setting that varies: strategy",
        ),
        ('metric = "test_error"', 'metric = "test_eror"', r"metric is 'test_eror'; .* Is it test_error"),
    ],
)
def test_mistakes_in_a_file_are_refused_by_line(study_toml, old, new, message):
    study_toml.write_text(study_toml.read_text().replace(old, new))
    done = peerbayes("study", study_toml, code=2)
    assert re.search(message, done.stderr), done.stderr


def test_a_stored_study_is_shown_by_its_folder(study_toml, tmp_path):
    first = peerbayes("study", study_toml, "--workers", 1, code=0)
    study_toml.unlink()
    again = peerbayes("study", tmp_path / "study", code=0)
    assert again.stdout == first.stdout and "to compute" not in again.stderr
    latex = peerbayes(
        "study", tmp_path / "study", "--format", "latex", "--metric", "disagreement", code=0
    ).stdout
    assert r"\caption{small: disagreement." in latex
    changed = peerbayes("study", tmp_path / "study", "--set", "peers=5", code=2)
    assert "is the folder of a study, which is shown as it is; expected its TOML file" in changed.stderr
    for words, code, advice in (
        (
            ["rerun", tmp_path / "study"],
            1,
            "is the folder of a study, which has no run.peerbayes: `peerbayes study ",
        ),
        (
            ["report", tmp_path / "study"],
            2,
            "is the folder of a study, which keeps figures and no runs; `peerbayes",
        ),
        (["study", tmp_path], 2, "holds no study: study.json cannot be read"),
    ):
        assert advice in peerbayes(*words, code=code).stderr


def test_a_study_of_a_file_without_a_name_is_called_like_the_file(study_toml):
    study_toml.write_text(study_toml.read_text().replace('name = "small"', ""))
    assert study_file.read(study_toml.rename(study_toml.with_name("networks.toml"))).name == "networks"


def test_a_figure_of_the_command_is_refused_before_anything_is_computed(study_toml):
    done = peerbayes("study", study_toml, "--metric", "test_error,auc", code=2)
    assert "Is it test_auc?" in done.stderr and "to compute" not in done.stderr


@pytest.mark.parametrize(
    ("name", "command"),
    [("06.toml", "reproduce 6"), ("distance.toml", "reproduce distance"), ("copy.toml", "reproduce TABLE")],
)
def test_a_table_of_the_paper_names_the_command_that_computes_it(tmp_path, name, command):
    shipped = paper_tables.TABLES / ("06.toml" if name == "copy.toml" else name)
    (tmp_path / name).write_text(shipped.read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(pb.ConfigurationError, match=f"is a table of the paper, .* peerbayes {command}$"):
        study_file.read(tmp_path / name)


def test_a_file_has_what_python_has(study_toml):
    asking = study_file.read(study_toml, ("lr=[0.05, 0.1]",))
    assert asking.settings["lr"] == pb.each(0.05, 0.1) and asking.settings["strategy"] == pb.each(
        "exact", "crc"
    )
    assert asking.settings["peers"] == 4 and asking.datasets == [{"name": "wine"}]


@pytest.mark.long
def test_an_interrupted_command_says_how_to_go_on(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(
        "[simulation]\nseed = [0, 1, 2, 3, 4, 5, 6, 7]\npeers = 8\nrows_per_peer = 100\nrounds = 40\n"
    )
    running = subprocess.Popen(
        [sys.executable, "-m", "peerbayes", "study", str(path), "--workers", "1"],
        stderr=subprocess.PIPE,
        text=True,
    )
    results, deadline = tmp_path / "study" / "results.sqlite", time.monotonic() + HANG
    while time.monotonic() < deadline and not (results.exists() and len(Store(results).frame())):
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=HANG)
    assert running.returncode == 130 and "Run the same command to continue" in said
