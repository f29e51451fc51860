"""A run names what made it, and can be made again from what it recorded."""

import getpass
import json
import socket
from dataclasses import replace
from pathlib import Path

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_wine

import peerbayes as pb
from peerbayes import network
from peerbayes.data.digest import table_digest
from peerbayes.errors import AlreadyThere, ConfigurationError, DataChanged, ModelFileError
from peerbayes.report import provenance_card
from peerbayes.simulation import config, provenance
from peerbayes.simulation.records import COLUMNS
from peerbayes.simulation.result import RUN_FILE
from shared.own_strategy import Momentum

X, Y = load_wine(return_X_y=True, as_frame=True)
SMALL = {"peers": 6, "rows_per_peer": 12, "rounds": 3, "references": False}
OLD = Path(__file__).parent / "run_of_nodes.bin"


@pytest.fixture(scope="module")
def run():
    return pb.simulate(X, Y, **{**SMALL, "references": True})


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    folder = tmp_path_factory.mktemp("old")
    (folder / RUN_FILE).write_bytes(OLD.read_bytes())
    return pb.load(folder)


# --- the digest


def test_the_same_settings_and_rows_have_the_same_digest(run, tmp_path):
    again = pb.simulate(X.to_numpy(), Y.to_numpy(), **{**SMALL, "references": True})
    assert again.digest == run.digest  # names of columns are no numbers that are learned
    run.save(tmp_path / "run")
    assert pb.load(tmp_path / "run").digest == run.digest
    assert replace(run, seconds={"rounds": 1e9}, made={}).digest == run.digest


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"lr": 0.0501}, {"strategy": "crc"}, {"references": False}], ids=str
)
def test_another_setting_has_another_digest_and_the_differences_are_named(run, change):
    other = pb.simulate(X, Y, **{**SMALL, "references": True, **change})
    assert other.digest != run.digest
    if "references" in change:
        return
    sentences = run.differences(other)
    assert "round 1 is the first that differs" in sentences[0] and "models differ by up to" in sentences[1]
    (name, value), *_ = change.items()
    assert any(
        sentence.startswith(f"{name} was ") and sentence.endswith(str(value)) for sentence in sentences
    )
    assert run.differences(run) == []


# --- what is recorded


def test_a_run_names_its_rows_what_was_asked_and_what_was_chosen(run):
    recorded = run.provenance
    assert recorded.data == {
        "source": {}, "digest": table_digest(X, Y), "rows": 178, "columns": 13, "classes": 3,
    }  # fmt: skip
    assert recorded.source == "a table in memory"
    assert recorded.asked == {**SMALL, "references": True}
    assert recorded.chosen == {"strategy": run.configuration["strategy"]}
    chosen = pb.simulate(X, Y, **SMALL, family="auto").provenance.chosen
    assert {"family", "strategy"} <= set(chosen)


def test_rows_to_test_on_have_a_digest_of_their_own():
    made = pb.simulate(X[:150], Y[:150], **SMALL, test=(X[150:], Y[150:]))
    expected = {"digest": table_digest(X[150:], Y[150:]), "rows": 28, "columns": 13}
    assert made.provenance.data["test"] == expected
    assert made.rerun().digest == made.digest
    with pytest.raises(DataChanged, match=r"the rows to test on are not those.*27 rows instead of 28"):
        made.rerun(X[:150], Y[:150], test=(X[151:], Y[151:]))


def test_the_machine_is_described_without_names_of_a_host_or_a_user(run):
    machine = run.provenance.machine
    assert set(machine) == {"processor", "cores", "threads", "blas", "system"}
    assert machine["cores"] >= 1 and machine["threads"] >= 1
    text = json.dumps(machine)
    assert socket.gethostname() not in text and f"{getpass.getuser()}@" not in text


def test_the_password_of_a_database_is_not_recorded():
    entries = {"file": "postgresql://anna:secret@db.example/rows", "query": "SELECT 1", "digest": "0"}
    assert provenance.source_of(entries) == {"file": "postgresql://db.example/rows", "query": "SELECT 1"}


# --- arguments that are not plain values


def graph():
    return nx.cycle_graph(6)


LABELS = np.asarray(Y)
ASKED = {
    "a graph": {"topology": graph()},
    "a graph with names": {"topology": nx.relabel_nodes(graph(), dict(enumerate("fbdace")))},
    "a matrix": {"topology": nx.to_numpy_array(graph())},
    "a sparse matrix": {"topology": nx.to_scipy_sparse_array(graph())},
    "a fixed schedule": {"topology": network.Static(nx.to_scipy_sparse_array(graph()))},
    "a changing network": {"topology": network.Changing("tree", 6, 2, 3)},
    "lists of rows": {"partition": [np.arange(k, 120, 6) for k in range(6)], "rows_per_peer": None},
    "a list of sizes": {"rows_per_peer": np.array([10, 11, 12, 13, 14, 15])},
    "a schema": {"schema": pb.Schema.infer(X, Y)},
    "privacy": {"privacy": pb.Privacy(epsilon=8.0, min_rows=5)},
    "an attack": {"attack": pb.Attack("flip", 0.2), "robust": "clip", "strategy": "crc"},
    "faults": {"faults": [network.Loss(0.2, peers=(1, 2)), network.Away((3,), 2, 2)]},
    "a trace": {"message_loss": network.LossTrace([(1, 0, 1), (2, 3, 2)])},
    "a fault that is a trace": {"faults": [network.LossTrace([(1, 0, 1)]), {"kind": "loss", "share": 0.1}]},
    "kinds by number": {"kinds": {0: "binned", "ash": "continuous"}},
    "a type of NumPy": {"dtype": np.float32},
    "numbers of NumPy": {"lr": np.float64(0.04), "seed": np.int64(3)},
    "pairs": {"evaluate_rows": (20, None)},
}


@pytest.mark.parametrize("name", ASKED)
def test_a_saved_run_is_made_again_whatever_was_asked(name, tmp_path):
    made = pb.simulate(X, Y, **{**SMALL, **ASKED[name]})
    made.save(tmp_path / "run")
    loaded = pb.load(tmp_path / "run")
    again = loaded.rerun(X, Y)
    assert again.digest == made.digest, made.differences(again)
    assert loaded.provenance.asked == json.loads(json.dumps(made.provenance.asked))
    config.read(tmp_path / "run" / "run.toml")  # is a file that can be read


def test_a_strategy_of_ones_own_cannot_be_written_and_the_error_says_so(tmp_path):
    made = pb.simulate(X, Y, **SMALL, strategy=Momentum())
    made.save(tmp_path / "run")
    with pytest.raises(
        ConfigurationError, match=r"strategy was a Momentum, which no file can hold.*only in Python"
    ):
        pb.load(tmp_path / "run").rerun(X, Y)
    assert "# strategy: a Momentum, which only" in (tmp_path / "run" / "run.toml").read_text()


def test_a_file_of_links_that_has_changed_is_refused(tmp_path):
    links = tmp_path / "links.txt"
    links.write_text("".join(f"{k} {k + 1}\n" for k in range(5)))
    made = pb.simulate(X, Y, **SMALL, topology=links)
    assert made.rerun().digest == made.digest
    links.write_text("".join(f"0 {k + 1}\n" for k in range(5)))
    with pytest.raises(
        ConfigurationError, match=r"links.txt, the file of links that topology names, has changed"
    ):
        made.rerun()
    links.unlink()
    with pytest.raises(ConfigurationError, match=r"links.txt.* is not here"):
        made.rerun()


# --- rows


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (X[1:], "177 rows instead of 178"),
        (X.drop(columns="ash"), "12 columns instead of 13"),
        (X[::-1], "as many rows and columns, but other values, names, labels or another order"),
        (X.rename(columns={"ash": "Ash"}), "names"),
    ],
)
def test_other_rows_are_refused(run, rows, sentence):
    with pytest.raises(DataChanged, match=sentence):
        run.rerun(rows, Y[: len(rows)])


MIXED = pd.DataFrame(
    {
        "flag": np.arange(90) % 3 == 0,
        "ward": pd.Categorical(np.array(["a", "b", "c"])[np.arange(90) % 3], categories=list("abcd")),
        "text": np.array(["x", "y"], dtype=object)[np.arange(90) % 2],
        "gap": np.where(np.arange(90) % 7, np.sin(np.arange(90)), np.nan),
        "small": (np.arange(90) % 5).astype(np.int8),
        "label": np.cos(np.arange(90)).astype(np.float32),
    }
)


@pytest.mark.parametrize("table", ["a table", "an array", "polars"])
def test_rows_saved_with_a_run_are_the_same_rows(table, tmp_path):
    pytest.importorskip("pyarrow")
    rows: object = MIXED
    if table == "an array":
        rows = MIXED[["gap", "small", "label"]].to_numpy()
    elif table == "polars":
        rows = pytest.importorskip("polars").from_pandas(MIXED)
    labels = np.array(["no", "yes"])[np.arange(90) % 2 * (np.arange(90) % 3 > 0)]
    made = pb.simulate(rows, labels, peers=4, rows_per_peer=15, rounds=2, references=False)
    made.save(tmp_path / "run", data=True)
    assert pb.load(tmp_path / "run").rerun().digest == made.digest
    made.save(tmp_path / "run", overwrite=True)
    assert not (tmp_path / "run" / "rows.parquet").exists()
    with pytest.raises(
        ConfigurationError, match=r"a table in memory: name a file.*--data FILE --label COLUMN"
    ):
        pb.load(tmp_path / "run").rerun()
    with pytest.raises(ValueError, match="was loaded and has no rows"):
        pb.load(tmp_path / "run").save(tmp_path / "other", data=True)


def test_the_settings_as_toml_make_the_same_run(run, tmp_path):
    X.assign(label=Y).to_csv(tmp_path / "rows.csv", index=False)
    text = run.toml().replace('# file = "rows.parquet"', f'file = "{tmp_path / "rows.csv"}"')
    assert f'digest = "{table_digest(X, Y)}"' in text and "rounds = 3" in text
    path = tmp_path / "run.toml"
    path.write_text(text)
    read = config.read(path)
    assert pb.simulate(*read.load(), **read.settings).digest == run.digest
    X[1:].assign(label=Y[1:]).to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(DataChanged, match=r"not those that the settings were written for"):
        read.load()


# --- what is opened, and what is not


def test_load_opens_runs_and_models_and_names_what_else_there_is(run, tmp_path):
    run.save(tmp_path / "runs" / "a")
    run.classifier(0).save(tmp_path / "model")
    assert pb.load(tmp_path / "runs" / "a").digest == run.digest
    assert pb.load(tmp_path / "runs" / "a" / RUN_FILE).digest == run.digest
    assert isinstance(pb.load(str(tmp_path / "model")), pb.MixedNB)
    run.classifier(0).save(tmp_path / "model.peerbayes")
    assert isinstance(pb.load(tmp_path), pb.MixedNB)  # as a peer's home has it
    with pytest.raises(ModelFileError, match="has several runs; open one of them: a"):
        pb.load(tmp_path / "runs")
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        ModelFileError, match=r"has neither run.peerbayes nor model.peerbayes; expected the path"
    ):
        pb.load(tmp_path / "empty")
    (tmp_path / "rows.csv").write_text("a,b\n")
    with pytest.raises(ModelFileError, match="is not from peerbayes"):
        pb.load(tmp_path / "rows.csv")
    with pytest.raises(
        FileNotFoundError, match=r"nothing does not exist; expected the path of a model, or of the"
    ):
        pb.load(tmp_path / "nothing")
    with pytest.raises(TypeError, match="path is 3"):
        pb.load(3)


def test_a_run_of_an_earlier_version_opens_but_cannot_be_made_again(old, tmp_path):
    assert old.provenance.data == {} and len(old.digest) == 64
    assert "learned" in repr(old) and "data" not in repr(old)
    with pytest.raises(ConfigurationError, match="did not record what was asked"):
        old.rerun(X, Y)
    assert "not recorded" in provenance_card.card([old], ["old"])
    old.save(tmp_path / "again")
    assert pb.load(tmp_path / "again").digest == old.digest


def saved(kind, run, path, **options):
    model = run.classifier(0)
    writers = {
        "run": lambda: run.save(path, **options),
        "model": lambda: model.save(path, **options),
        "schema": lambda: run.schema.save(path, **options),
        "report": lambda: run.report(path, **options),
        "trace": lambda: network.LossTrace([(1, 0, 1)]).save(path, **options),
    }
    writers[kind]()


@pytest.mark.parametrize("kind", ["run", "model", "schema", "report", "trace"])
def test_nothing_is_overwritten_without_being_asked(kind, run, tmp_path):
    if kind == "report":
        pytest.importorskip("plotly")
    path = tmp_path / "kept"
    saved(kind, run, path)
    content = {file: file.read_bytes() for file in [path, *path.glob("*")] if file.is_file()}
    with pytest.raises(AlreadyThere, match=r"exists already.*overwrite=True \(--overwrite"):
        saved(kind, run, path)
    assert {file: file.read_bytes() for file in content} == content
    saved(kind, run, path, overwrite=True)


# --- as Python and notebooks show it


def test_a_run_shows_itself_in_a_few_lines(run):
    text = repr(run)
    assert len(text.splitlines()) <= 8 and max(map(len, text.splitlines())) <= 120
    summary = run.summary()
    for part in (
        "6 on a tree",
        "72 rows",
        "3 rounds",
        f"{summary['test_error']:.4f} ±",
        f"RC {summary['test_rc']:.4f}",
    ):
        assert part in text
    alone = pb.simulate(X, Y, **{**SMALL, "rounds": 1})
    assert "not computed" in repr(alone) and "nan" not in repr(alone)
    assert (
        len(repr(run.schema)) < 200
        and len(repr(run.statistics(0))) < 300
        and "array" not in repr(run.statistics(0))
    )


@pytest.mark.parametrize(("sent", "shown"), [(0, "0 B"), (3226, "3.23 kB"), (12_345_678, "12.3 MB")])
def test_what_was_sent_has_a_unit_that_fits(run, sent, shown):
    records = run.records.copy()
    records[:, COLUMNS.index("bytes")] = sent
    assert f"{shown} by each peer" in repr(replace(run, records=records))


def test_runs_are_equal_only_to_themselves(run, tmp_path):
    run.save(tmp_path / "run")
    loaded = pb.load(tmp_path / "run")
    assert run == run and run != loaded and loaded.digest == run.digest and len({run, loaded}) == 2


def test_without_test_rows_a_run_shows_training_errors():
    with pytest.warns(UserWarning, match="test"):
        made = pb.simulate(X, Y, peers=6, rows_per_peer=None, rounds=1)
    assert (
        "training error" in repr(made) and "there are no test rows" in repr(made) and "nan" not in repr(made)
    )


def test_html_of_a_run_is_escaped_and_has_no_colours_of_its_own(run):
    hostile = replace(run, configuration={**run.configuration, "topology": "<script>alert(1)</script>"})
    page = hostile._repr_html_()
    assert "<script>" not in page and "&lt;script&gt;" in page
    assert "color" not in page and page.count("<tr>") == len(repr(run).splitlines()) - 1


def test_the_report_has_the_provenance(run):
    page = provenance_card.card([run], ["<b>run</b>"])
    for part in (
        run.digest,
        table_digest(X, Y),
        "peerbayes rerun",
        "rounds = 3",
        "chosen",
        run.made["numpy"],
    ):
        assert part in page
    both = provenance_card.card([run, run], ["<b>one</b>", "two"])
    assert "&lt;b&gt;one" in both and "<b>" not in both
