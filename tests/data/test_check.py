"""What `pb.check` and `peerbayes check` say of tables: each defect by its name, and nothing of clean tables."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import datasets
from typer.testing import CliRunner

import peerbayes as pb
from peerbayes.cli.app import app
from peerbayes.data.doctor.findings import NAMES
from shared.messy_tables import LABEL, clean, messy_tables

MESSY = messy_tables()


def written(tmp_path, content, name="rows.csv"):
    path = tmp_path / name
    path.write_bytes(content)
    return path


def command(*words):
    done = CliRunner().invoke(app, ["check", *map(str, words)])
    return done.exit_code, done.stdout, done.stderr


def columns_of(findings, name):
    return {finding.column for finding in findings if finding.name == name}


def test_there_are_twenty_messy_tables_and_more():
    assert len(MESSY) >= 20 and {messy.name for messy in MESSY.values()} <= set(NAMES)


@pytest.mark.parametrize("defect", MESSY)
def test_a_messy_table_is_named_by_the_command(defect, tmp_path):
    messy = MESSY[defect]
    words = [written(tmp_path, messy.content), "--label", LABEL]
    words += [] if messy.test is None else ["--test", written(tmp_path, messy.test, "test.csv")]
    code, out, _ = command(*words, "--format", "json")
    said = json.loads(out)["findings"]
    assert code == 3
    assert messy.column in {row["column"] for row in said if row["name"] == messy.name}
    assert {row["name"] for row in said} <= {messy.name} | messy.others
    assert all(row["severity"] in ("refused", "warning") for row in said if row["name"] == messy.name)
    code, out, _ = command(*words)
    assert code == 3 and f" {messy.name}:" in out and "\x1b" not in out


@pytest.mark.parametrize("defect", MESSY)
def test_a_messy_table_is_named_in_python(defect, tmp_path):
    messy = MESSY[defect]
    path = written(tmp_path, messy.content)
    test = None if messy.test is None else written(tmp_path, messy.test, "test.csv")
    assert messy.column in columns_of(pb.check(path, LABEL, test), messy.name)
    if messy.python:
        frame = messy.frame()
        if messy.test is not None:
            rows = pd.read_csv(test)
            test = rows.drop(columns=LABEL), rows[LABEL]
        findings = pb.check(frame.drop(columns=LABEL), frame[LABEL], test)
        column = "y" if messy.column == LABEL else messy.column
        assert column in columns_of(findings, messy.name), findings
        assert findings.names <= {messy.name} | messy.others


@pytest.mark.parametrize("read", ["csv", "frame", "array"])
def test_a_clean_table_gives_no_alarm(read, tmp_path):
    frame = clean()
    if read == "csv":
        path = tmp_path / "rows.csv"
        frame.to_csv(path, index=False)
        clean(1).to_csv(tmp_path / "test.csv", index=False)
        code, out, _ = command(path, "--label", LABEL, "--test", tmp_path / "test.csv")
        assert code == 0 and out == "240 rows, 3 columns: nothing to warn of\n"
    elif read == "frame":
        assert not pb.check(frame, LABEL, (clean(1).drop(columns=LABEL), clean(1)[LABEL]))
    else:
        assert not pb.check(frame[["age", "visits"]].to_numpy(), frame[LABEL].to_numpy())


@pytest.mark.parametrize(
    ("load", "expected"),
    [("iris", set()), ("wine", set()), ("breast_cancer", set()), ("digits", {"constant"})],
)  # fmt: skip
def test_tables_of_scikit_learn_give_no_false_alarm(load, expected):
    bunch = getattr(datasets, f"load_{load}")(as_frame=True)
    findings = pb.check(bunch.data, bunch.target)
    assert findings.names == expected
    split = np.arange(len(bunch.data)) % 2 == 0
    test = bunch.data[split], bunch.target[split]
    both = pb.check(bunch.data[~split], bunch.target[~split], test)
    assert {finding.name for finding in both if finding.severity != "note"} <= expected | {"constant"}


# What is said of the paper's tables, and is right: values that stand for missing ones, columns that say the same, and
# in smartgrid the number of which the label is the sign.
RIGHT = {
    "adult": {"missing-code", "duplicated-column"},
    "smoking": {"constant"},
    "secondary": {"mostly-missing", "constant"},
    "smartgrid": {"determines-label"},
}


@pytest.mark.parametrize(
    "name", ["bank", "adult", "default", "smoking", "secondary", "smartgrid", "letter", "pulsar"]
)
def test_tables_of_the_paper_give_no_false_alarm(name):
    from peerbayes.data.datasets import DatasetUnavailable, load

    try:
        dataset = load(name, download=False)
    except DatasetUnavailable:
        pytest.skip(f"{name} is not on this machine")
    findings = pb.check(dataset.frame, dataset.labels.to_numpy())
    assert {finding.name for finding in findings if finding.severity != "note"} == RIGHT.get(name, set())


def test_labels_that_are_quantities_are_no_classes():
    bunch = datasets.load_diabetes(as_frame=True)
    assert pb.check(bunch.data, bunch.target).names == {"continuous-label"}


@pytest.mark.parametrize(
    "label", [np.arange(240) % 240, np.linspace(0.0, 1.0, 240), [f"row {j}" for j in range(240)]]
)
def test_nothing_determines_a_label_that_is_none(label):
    """Every column of numbers tells rows apart, so it would determine a label that does."""
    rng = np.random.default_rng(2)
    said = pb.check(rng.normal(size=(240, 3)), rng.permutation(np.array(label)))
    assert len(said) == 1 and said.names <= {"continuous-label", "many-classes"}


@pytest.mark.parametrize("copies", [2, 4, 12])
def test_repeated_rows_are_counted_and_make_no_columns_alike(copies):
    rng = np.random.default_rng(4)
    frame = pd.DataFrame(
        {"age": rng.normal(50, 9, 60), "bmi": rng.normal(25, 3, 60), "ward": ["a", "b", "c"] * 20}
    )
    labels = np.where(rng.random(60) < 0.4, "ill", "well")
    said = pb.check(pd.concat([frame] * copies), np.tile(labels, copies))
    assert [finding.name for finding in said] == ["repeated-rows"]
    rows = 60 * copies
    assert f"{rows - 60} of {rows} rows equal an earlier one, first row 61" == said[0].seen
    again = pd.concat([frame.assign(place=frame["ward"].map({"a": 3, "b": 1, "c": 2}))] * copies)
    assert pb.check(again, np.tile(labels, copies)).names == {"repeated-rows", "duplicated-column"}


def test_rows_of_few_categories_are_alike_by_chance():
    rng = np.random.default_rng(5)
    frame = pd.DataFrame({name: rng.choice(["a", "b", "c"], 400) for name in ("ward", "sex", "diet")})
    assert not pb.check(frame, rng.choice(["ill", "well"], 400))
    recoded = frame.assign(place=frame["ward"].map({"a": 3, "b": 1, "c": 2}))
    assert pb.check(recoded, rng.choice(["ill", "well"], 400)).names == {"duplicated-column"}


def test_two_sizes_of_things_are_no_two_units():
    """Of two sorts of rows one has larger numbers, that are spread otherwise, are few, or have others between."""
    rng = np.random.default_rng(6)
    sorts = np.arange(400) % 3 == 0
    for larger in (
        rng.normal(2500, 2, 400),
        np.where(rng.random(400) < 0.5, 2000.0, 3000.0),
        rng.lognormal(4, 1, 400),
    ):
        frame = pd.DataFrame(
            {"weight": np.where(sorts, larger, rng.normal(25, 3, 400)), "age": rng.normal(50, 9, 400)}
        )
        assert not pb.check(frame, rng.choice(["ill", "well"], 400)), larger[:3]


def test_record_numbers_near_dates_are_no_dates():
    numbers = np.arange(20200101, 20200101 + 240)
    said = pb.check(clean().drop(columns=LABEL).assign(nr=numbers), clean()[LABEL])
    assert said.names == {"identifier"}


def test_without_labels_it_says_that_they_were_not_checked(tmp_path):
    path = tmp_path / "rows.csv"
    clean().to_csv(path, index=False)
    code, out, _ = command(path)
    assert code == 0 and "labels were not checked: name their column by --label, or give y" in out
    assert json.loads(command(path, "--format", "json")[1])["checked"].endswith("or give y")


def test_numbers_with_a_comma_are_named_in_a_sentence(tmp_path):
    path = written(tmp_path, b"a;b\n3,5;x\n4,5;y\n")
    assert "column 'a': '3,5' and the like are no plain numbers." in repr(pb.check(path)).replace(
        "\n      ", " "
    )


# --- whatever arrives

CELLS = st.one_of(
    st.none(),
    st.integers(-(10**20), 10**20),
    st.floats(),
    st.booleans(),
    st.text(max_size=4),
    st.sampled_from(["2024-01-01", "1,5", "<5", " a", "A", "?", b"x", [1], pd.Timestamp("2024-01-01")]),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(CELLS, min_size=6, max_size=6), min_size=1, max_size=4),
    st.lists(st.sampled_from(["a", "b", "", "=x", "a "]), min_size=4, max_size=4),
)
def test_any_frame_is_looked_over(columns, names):
    frame = pd.DataFrame(dict(enumerate(columns)), dtype=object)
    frame.columns = names[: len(columns)]
    findings = pb.check(frame, columns[0], frame)
    assert repr(findings) and findings._repr_html_().startswith("<")
    assert len(findings.frame) == len(findings) and json.dumps(findings.to_json())


@settings(max_examples=60, deadline=None)
@given(st.lists(CELLS, min_size=4, max_size=12))
def test_a_column_is_refused_where_inference_refuses_it(values):
    """One decision in one place: what the check calls refused is what a fit refuses, and nothing else."""
    frame = pd.DataFrame({"a": pd.Series(values, dtype=object)})
    refused = any(finding.severity == "refused" for finding in pb.check(frame))
    try:
        pb.Schema.infer(frame).encode(frame)
    except (ValueError, TypeError, OverflowError):
        assert refused
    else:
        assert not refused


@settings(max_examples=80, deadline=None)
@given(
    st.one_of(st.binary(max_size=60), st.text(alphabet='ab1,;|\t"\n\r .-é\0', max_size=60).map(str.encode))
)
def test_any_file_is_looked_over(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("file") / "rows.csv"
    path.write_bytes(content)
    assert repr(pb.check(path))


def test_many_rows_are_sampled_evenly(monkeypatch):
    monkeypatch.setattr("peerbayes.data.doctor.MOST_ROWS", 100)
    frame = clean()
    findings = pb.check(frame.assign(nr=1).drop(columns=LABEL), frame[LABEL])
    assert findings.names == {"constant"} and "one in 3 is looked at" in repr(findings)
