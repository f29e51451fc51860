"""The folder of a study: why figures are missing, one study to a folder, what made it, and tables as files."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_wine
from sklearn.naive_bayes import GaussianNB

import peerbayes as pb
from peerbayes.errors import AlreadyThere, ConfigurationError
from peerbayes.experiments import study_file
from peerbayes.experiments.results_store import Store
from peerbayes.experiments.study import STORE_FILE, Study
from peerbayes.experiments.study_plan import planned
from peerbayes.simulation.notes import NO_REFERENCES
from shared.commands import peerbayes
from shared.studies import SMALL, Here, asked, two_classes


@pytest.fixture(scope="module")
def wine():
    return load_wine(return_X_y=True)


# --- figures that are missing


@pytest.fixture(scope="module")
def holed(tmp_path_factory):
    """Cells without references, and of test rows that are all of one class: real NaN, each for its own reason."""
    X, y = two_classes()
    test = X[y == 0][:9], y[y == 0][:9]
    return asked(
        (X, y), test=test, references=[True, False], seed=[0, 1], folder=tmp_path_factory.mktemp("study") / "holed",
        baselines=GaussianNB(), metric="test_auc",
    )  # fmt: skip


def reasons_in_words(text):
    """Return the reasons of a cell by figure, from the column that people read."""
    parts = re.findall(r"((?:\w+, )*\w+): ((?:(?!\. (?:\w+, )*\w+: ).)*)", text)
    return {name: sentence.rstrip(".") for names, sentence in parts for name in names.split(", ")}


def test_each_nan_has_the_sentence_of_its_run(holed):
    assert len(holed.frame) == 4
    missing = 0
    again = pd.read_csv(path) if (path := holed.folder / "cells.csv").exists() else None
    holed.csv(path)
    again = pd.read_csv(path, keep_default_na=True)
    X, y = two_classes()
    for number, row in holed.frame.iterrows():
        run = pb.simulate(
            X, y, test=(X[y == 0][:9], y[y == 0][:9]), references=row["references"], seed=row["seed"],
            baselines=GaussianNB(), **SMALL,
        )  # fmt: skip
        figures = {name for name in run.summary() if name in holed.frame}
        absent = {name for name in figures if np.isnan(row[name])}
        assert absent == {name for name in run.missing if name in holed.frame} and "test_auc" in absent
        said = reasons_in_words(row["missing"])
        of_csv = reasons_in_words(again["missing"][number])
        for name in absent:
            assert run.missing[name] == holed.reasons[row["key"]][name]
            assert said[name] == of_csv[name] == run.missing[name].rstrip(".")
            assert np.isnan(again[name][number])
            missing += 1
    assert missing > 20


def test_a_summary_says_why_a_figure_is_missing(holed):
    of_auc = holed.summary()
    assert (of_auc["seeds"] == 0).all()
    assert all(
        note.startswith("2 of 2 seeds have no test_auc: all test rows are of the class")
        for note in of_auc["note"][:2]
    )
    of_learner = holed.summary(learners=["gaussian-nb-pooled"]).iloc[-1]
    assert (
        "2 of 2 seeds have no test_auc_gaussian_nb_pooled: all test rows are of the class"
        in of_learner["note"]
    )
    of_rc = holed.summary("test_rc").set_index("references")
    assert (
        of_rc.loc[True, "note"] == ""
        and of_rc.loc[False, "note"] == f"2 of 2 seeds have no test_rc: {NO_REFERENCES}."
    )
    assert NO_REFERENCES in holed.markdown("test_rc") and NO_REFERENCES in holed.latex(metric="test_rc")
    with pytest.raises(ValueError, match="no cell has test_auc_majority: all test rows are of the class"):
        holed.summary("test_auc_majority")


def test_a_run_says_how_its_figures_came_about(wine):
    X, y = wine
    study = asked((X, y), test=(X[y < 2][40:80], y[y < 2][40:80]), evaluate_rows=(None, 20), seed=[0])
    assert "metrics are of 20 of 40 test rows" in study.frame["notes"][0]
    assert "no test row is of the class" in study.frame["notes"][0]


def test_results_of_versions_without_reasons_say_so(wine, tmp_path):
    study = planned(*wine, folder=tmp_path, references=[True, False], **SMALL)

    class Older(Here):
        def run(self, compute, specifications):
            for index, result in super().run(compute, specifications):
                yield index, {k: v for k, v in result.items() if k not in ("missing", "notes", "learners")}

    study.run(Older())
    assert "stored by a version that kept no reasons" in study.summary("test_rc")["note"][1]
    assert study.learners == ["alone", "rc", "rc_end", "ml", "majority"]


# --- one study to a folder


def test_another_study_does_not_take_its_place(wine, tmp_path):
    first = asked(wine, strategy=["exact", "crc"], seed=[0, 1], folder=tmp_path, name="first")
    described = (tmp_path / "study.json").read_bytes()
    engine = Here()
    with pytest.raises(AlreadyThere) as refused:
        asked(wine, engine, strategy=["exact", "local"], seed=[0, 1], folder=tmp_path, name="second")
    for words in (
        "'first': 4 cells (2 strategy × 2 seed)", "'second': 4 cells (2 strategy × 2 seed)",
        "They differ in strategy (", "'crc', now ",
        "pass overwrite=True (--overwrite on the command line): results are kept",
    ):  # fmt: skip
        assert words in str(refused.value)
    assert engine.count == 0 and (tmp_path / "study.json").read_bytes() == described
    with pytest.raises(AlreadyThere, match="They differ in seed"):
        asked(wine, engine, strategy=["exact", "crc"], seed=[0], folder=tmp_path)
    with pytest.raises(AlreadyThere, match=r"They differ in rounds \(3, now 4\)"):
        asked(wine, engine, strategy=["exact", "crc"], seed=[0, 1], rounds=4, folder=tmp_path)
    second = asked(
        wine, engine, strategy=["exact", "local"], seed=[0, 1], folder=tmp_path, name="second", overwrite=True
    )
    assert engine.count == 2 and Study.load(tmp_path).name == "second"  # what both have is not computed again
    assert len(Store(tmp_path / STORE_FILE).frame()) == 6
    back = asked(wine, engine, strategy=["exact", "crc"], seed=[0, 1], folder=tmp_path, overwrite=True)
    assert engine.count == 2 and len(second.frame) == 4
    pd.testing.assert_frame_equal(back.frame, first.frame)


def test_a_study_grows_and_may_be_renamed(wine, tmp_path):
    asked(wine, strategy="exact", seed=[0], folder=tmp_path)
    asked(wine, strategy=["exact", "crc"], seed=[0, 1], folder=tmp_path, name="grown")
    asked(wine, strategy=["crc", "exact"], seed=[1, 0], folder=tmp_path, name="again", metric="train_error")
    assert Study.load(tmp_path).name == "again" and len(Study.load(tmp_path).cells) == 4


def test_a_description_that_is_damaged_is_not_replaced_unasked(wine, tmp_path):
    asked(wine, folder=tmp_path)
    (tmp_path / "study.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="does not describe a study"):
        asked(wine, folder=tmp_path)
    assert len(asked(wine, folder=tmp_path, overwrite=True).frame) == 1


@pytest.mark.parametrize("form", ["latex", "csv", "markdown"])
def test_no_table_is_overwritten_unasked(wine, tmp_path, form):
    study, path = asked(wine, strategy=["exact", "crc"], seed=[0, 1]), tmp_path / "table"
    path.write_text("mine")
    with pytest.raises(AlreadyThere, match=r"exists already.*overwrite=True"):
        getattr(study, form)(path=path)
    assert path.read_text() == "mine"
    text = getattr(study, form)(path=path, overwrite=True)
    assert path.read_text(encoding="utf-8") == (study.as_csv() if form == "csv" else text)


TOML = """
[data]
name = "wine"

[simulation]
strategy = ["exact", "crc"]
peers = 4
rows_per_peer = 15
rounds = 3
"""


def test_the_command_refuses_and_overwrites(tmp_path):
    path = tmp_path / "networks.toml"
    path.write_text(TOML)
    peerbayes("study", path, "--workers", 1, code=0)
    refused = peerbayes("study", path, "--workers", 1, "--set", "rounds=2", code=2)
    assert "They differ in rounds (3, now 2)" in refused.stderr and "--overwrite" in refused.stderr
    peerbayes("study", path, "--workers", 1, "--set", "rounds=2", "--overwrite", code=0)
    table = peerbayes(
        "study", path, "--overwrite", "--spread-over-peers", "--format", "markdown", code=0
    ).stdout
    assert re.search(r"\| 0\.\d{3} \(0\.\d{3}\) \|", table) and "standard deviation over the peers" in table


# --- what made it


def test_load_opens_a_study(wine, tmp_path):
    study = asked(wine, strategy=["exact", "crc"], seed=[0, 1], folder=tmp_path / "study", metric="test_auc")
    again = pb.load(tmp_path / "study")
    assert type(again) is Study and repr(again) == repr(study)
    pd.testing.assert_frame_equal(again.frame, study.frame)
    pd.testing.assert_frame_equal(pb.load(str(tmp_path / "study")).summary(), study.summary())


def test_a_folder_says_what_made_its_study(wine, tmp_path):
    study = asked((), dataset="wine", strategy=["exact", "crc"], folder=tmp_path)
    run = pb.simulate(*wine, **SMALL)
    [session] = study.sessions
    assert set(session) == {*run.made, "machine", "engine", "cells"} - {"choice"}
    assert (
        session["machine"] == run.provenance.machine and session["engine"] == "here" and session["cells"] == 2
    )
    assert session["peerbayes"] == run.made["peerbayes"] and session["numpy"] == np.__version__
    assert study.tables["wine"]["source"] == {"name": "wine"}
    content = json.loads((tmp_path / "study.json").read_text())
    assert (
        content["sessions"] == [session]
        and content["tables"] == study.tables
        and "[simulation]" in content["toml"]
    )
    asked((), dataset="wine", strategy=["exact", "crc"], folder=tmp_path)
    assert Study.load(tmp_path).sessions == (session,)  # nothing was computed
    grown = asked((), dataset="wine", strategy=["exact", "crc"], seed=[0, 1], folder=tmp_path)
    assert [entry["cells"] for entry in grown.sessions] == [2, 2]
    assert "4 cells in 2 calls, 20" in repr(grown) and "4 cells in 2 calls, 20" in grown._repr_html_()
    assert "2 cells from" not in repr(grown) and grown.toml().count("2 cells from") == 2


def test_credentials_are_not_kept(wine, tmp_path):
    pd.DataFrame(wine[0][:, :3], columns=list("abc")).assign(y=wine[1]).to_csv(
        tmp_path / "rows.csv", index=False
    )
    study = asked((), dataset={"file": str(tmp_path / "rows.csv"), "label": "y"}, folder=tmp_path / "of")
    assert study.tables[str(tmp_path / "rows.csv")]["source"]["label"] == "y"
    from peerbayes.experiments.study_recipe import toml_of

    text = toml_of({}, [{"file": "postgresql://me:secret@host/db", "query": "SELECT 1"}], {})
    assert "secret" not in text and "postgresql://host/db" in text


@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": ["exact", "crc"], "topology": "ring", "seed": range(3)},
        {"rows_per_peer": pb.each(10, [5, 6, 7, 8]), "robust": [None, "clip"], "lr": np.array([0.05, 0.1])},
        {
            "privacy": [None, pb.Privacy(epsilon=4.0)],
            "metrics": ["auc", "roc_auc_ovr"],
            "baselines": pb.each([], "vote"),
        },
        {
            "message_loss": pb.each(0.0, 0.2),
            "faults": pb.each(None, [pb.network.Loss(0.1)]),
            "dtype": np.float32,
        },
        {"kinds": {"alcohol": "continuous"}, "evaluate_rows": (10, 20), "clip": [None, 3.0], "test_rows": 20},
    ],
)
def test_the_file_of_a_study_asks_for_the_same_cells(tmp_path, settings):
    study = planned(
        dataset="wine", folder=tmp_path / "one", compare=None, name="a b", **{**SMALL, **settings}
    )
    (tmp_path / "again.toml").write_text(study.toml(), encoding="utf-8")
    asking = study_file.read(tmp_path / "again.toml")
    again = planned(
        dataset=asking.datasets, folder=tmp_path / "two", name=asking.name, metric=asking.metric,
        test_rows=asking.test_rows, **asking.settings,
    )  # fmt: skip
    assert [cell.key for cell in again.cells] == [cell.key for cell in study.cells] and again.name == "a b"


def test_what_no_file_can_hold_is_a_comment(wine, tmp_path):
    X, y = wine
    study = planned(X, y, test=(X[:9], y[:9]), baselines=["vote", GaussianNB()], folder=tmp_path, **SMALL)
    assert "# baselines: vote, GaussianNB(), which only study.json has in full" in study.toml()
    assert (
        "# test: 9 rows that were passed" in study.toml()
        and "# The rows were a table in memory" in study.toml()
    )


def test_several_datasets_are_one_list_in_the_file(tmp_path):
    study = planned(dataset=["wine", "iris"], folder=tmp_path, **SMALL)
    assert 'name = ["wine", "iris"]' in study.toml() and "\npeers = 4\n" in study.toml()


def test_a_study_shows_its_result_in_brief(wine, tmp_path):
    study = asked(wine, strategy=["exact", "crc"], topology=["tree", "ring"], seed=[0, 1], folder=tmp_path)
    lines = repr(study).splitlines()
    assert lines[0] == "Study 'study'" and "8 cells (2 strategy × 2 topology × 2 seed); 8 done" in lines[1]
    assert "a table in memory: 178 rows, 13 columns" in lines[2]
    row = study.grid().rows[0]
    assert f"tree: exact {row[1]}, crc {row[2]}" in lines[3].replace("*", "")
    assert "by peerbayes" in repr(study) and all(len(line) < 125 for line in lines)
    assert "178 rows" in study._repr_html_() and "by peerbayes" in study._repr_html_()
    nothing = planned(*wine, folder=tmp_path / "other", **SMALL)
    assert "1 missing" in repr(nothing) and "  result " not in repr(nothing)


# --- the spread over peers


def test_the_spread_over_peers_is_named_as_such(wine):
    study = asked(wine, strategy=["exact", "crc"], seed=[0, 1], baselines="vote")
    summary = study.summary().set_index("strategy")
    [row] = study.grid(spread_over_peers=True).rows
    for text, name in zip(row, ("exact", "crc"), strict=False):
        spread = study.frame[study.frame["strategy"] == name]["test_std"].mean()
        assert text.endswith(f" ({spread:.3f})") and summary.loc[name, "std_over_peers"] == pytest.approx(
            spread
        )
    assert "(" not in row[2]  # the mean of posteriors is one model
    plain = study.markdown()
    assert "over the peers" not in plain and "(0." not in plain
    for form in (study.markdown(spread_over_peers=True), study.latex(spread_over_peers=True)):
        assert (
            "standard deviation over the peers of a run" in form
            and "nothing about how well the mean is known" in form
        )
    assert "record no standard deviation over peers" in study.markdown(
        "bytes_per_peer", spread_over_peers=True
    )
