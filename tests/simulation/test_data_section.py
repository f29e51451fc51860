"""[data] of a simulation chooses columns, parses dates, maps labels and names test rows; errors name the line."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import peerbayes as pb
from peerbayes.cli.app import app
from peerbayes.data import sources
from peerbayes.errors import ConfigurationError
from peerbayes.simulation import config


def table(rows=90, seed=0):
    rng = np.random.default_rng(seed)
    grade = rng.integers(0, 3, rows)
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, rows), unit="D")
    return pd.DataFrame(
        {
            "patient": [f"P{j}" for j in range(rows)],
            "age": rng.normal(50 + 5 * grade, 8).round(1),
            "admitted": days.strftime("%Y-%m-%d"),
            "dose": np.where(rng.random(rows) < 0.1, "unknown", rng.normal(30, 4, rows).round(1).astype(str)),
            "grade": grade,
        }
    )


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table().to_csv("rows.csv", index=False)
    table(40, 1).to_csv("test.csv", index=False)
    return tmp_path


def read(text):
    return written(f'[data]\nfile = "rows.csv"\nlabel = "grade"\n{text}\n')


def written(text):
    Path("run.toml").write_text(text, encoding="utf-8")
    return config.read(Path("run.toml"))


def test_columns_are_chosen(folder):
    X, y = read('columns = ["dose", "age"]').load()
    assert list(X.columns) == ["dose", "age"] and len(y) == 90


def test_columns_are_left_out(folder):
    X, _ = read('drop = ["patient", "admitted"]').load()
    assert list(X.columns) == ["age", "dose"]


@pytest.mark.parametrize(
    ("form", "expected"),
    [("days", 19723.0), ("year", 2024), ("month", "01"), ("weekday", "Monday")],
)
def test_dates_become_numbers_or_categories(folder, form, expected):
    frame = table()
    frame.loc[0, "admitted"] = "2024-01-01"
    frame.loc[1, "admitted"] = None
    frame.to_csv("rows.csv", index=False)
    X, _ = read(f'dates = {{ admitted = "{form}" }}').load()
    assert X["admitted"][0] == expected and pd.isna(X["admitted"][1])


@pytest.mark.parametrize(
    ("pattern", "written"),
    [
        ("%d.%m.%Y", ["1.1.2024", "31.12.2023"]),
        ("%d/%m/%y", ["01/01/24", "31/12/23"]),
        ("%m/%d/%Y %H:%M", ["01/01/2024 00:00", "12/31/2023 00:00"]),
        ("%Y%m%d", [20240101, 20231231]),
    ],
)
@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("days", [19723.0, 19722.0]),
        ("year", [2024, 2023]),
        ("month", ["01", "12"]),
        ("weekday", ["Monday", "Sunday"]),
    ],
)
def test_dates_are_read_as_they_are_written(pattern, written, form, expected):
    frame = pd.DataFrame({"admitted": [*written, None], "age": [1.0, 2.0, 3.0]})
    prepared = sources.prepare(frame, dates={"admitted": f"{form} {pattern}"})["admitted"]
    assert prepared[:2].tolist() == expected and pd.isna(prepared[2])


def test_the_advice_of_check_is_an_entry_that_works(folder):
    """What `check` says of dates can be written as it is said, whatever their form and the column's name."""
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(90) * 3, unit="D")
    for column, pattern in [
        ("admitted", "%d.%m.%Y"), ("admitted", "%m/%d/%Y"), ("day of birth", "%Y-%m-%d"), ('a"b', "%d.%m.%y %H:%M"),
    ]:  # fmt: skip
        frame = (
            table().drop(columns=["admitted", "dose", "patient"]).assign(**{column: days.strftime(pattern)})
        )
        frame.to_csv("rows.csv", index=False)
        [finding] = [each for each in pb.check("rows.csv", "grade") if each.name == "date"]
        [entry] = re.findall(r"a simulation by (dates = \{ .* \}) in \[data\]", finding.advice)
        X, _ = read(entry).load()
        assert X[column].tolist() == days.strftime("%m").tolist()


def test_dates_that_may_be_read_in_two_ways_are_advised_of_both(folder):
    frame = table().assign(admitted=["01/02/2024", "03/04/2024"] * 45)
    [finding] = [each for each in pb.check(frame, "grade") if each.name == "date"]
    assert '"month %d/%m/%Y"' in finding.advice and '"month %m/%d/%Y"' in finding.advice
    frame = table().assign(admitted=["10:30", "11:45"] * 45)
    [finding] = [each for each in pb.check(frame, "grade") if each.name == "date"]
    assert "[data]" not in finding.advice  # there is no date in it


def test_dates_of_another_form_are_refused_with_the_entry_that_reads_them(folder):
    table().assign(admitted="31.12.2024").to_csv("rows.csv", index=False)
    with pytest.raises(
        ConfigurationError, match=r"line 4: dates: column .admitted. holds .31\.12\.2024.*month %d\.%m\.%Y"
    ):
        read('dates = { admitted = "month" }').load()


def test_missing_values_are_named(folder):
    frame = table()
    frame["age"] = frame["age"].astype(object)
    frame.loc[:2, "age"] = -999
    frame.to_csv("rows.csv", index=False)
    X, _ = read('columns = ["age", "dose"]\nmissing = ["unknown", -999]').load()
    assert X["dose"].dtype == np.float64 == X["age"].dtype
    assert X["age"].isna().sum() == 3 and X["dose"].isna().sum() == (table()["dose"] == "unknown").sum()


def test_labels_are_mapped(folder):
    y = read('drop = ["patient", "admitted"]\nlabels = { 0 = "no", 1 = "yes", 2 = "yes" }').load()[1]
    assert y.tolist() == np.where(table()["grade"] == 0, "no", "yes").tolist()


def test_functions_do_the_same(folder):
    frame = sources.read("rows.csv", drop=["patient"], dates={"admitted": "month"}, missing=["unknown"])
    X, y = sources.labelled(frame, "grade")
    entries = 'drop = ["patient"]\ndates = { admitted = "month" }\nmissing = ["unknown"]\n'
    of_file = read(f"{entries}labels = {{ 0 = 0, 1 = 1, 2 = 1 }}").load()
    pd.testing.assert_frame_equal(X, of_file[0])
    assert (sources.map_labels(y, {"0": 0, "1": 1, "2": 1}) == of_file[1]).all()
    prepared = sources.prepare(table(), drop=["patient"], dates={"admitted": "month"}, missing=["unknown"])
    pd.testing.assert_frame_equal(prepared, frame, check_dtype=False)


def test_a_simulation_tests_on_the_rows_of_a_file(folder):
    entries = 'drop = ["patient"]\ndates = { admitted = "month" }\nmissing = ["unknown"]\ntest = "test.csv"'
    configuration = read(f"{entries}\n[simulation]\npeers = 3\nrows_per_peer = 30\nrounds = 2")
    X, _ = configuration.load()
    test = configuration.load_test(X)["test"]
    assert list(test[0].columns) == list(X.columns) and len(test[1]) == 40
    done = CliRunner().invoke(app, ["simulate", "run.toml", "--format", "json"])
    assert done.exit_code == 0 and "no test error" not in done.stderr
    assert '"test_error": null' not in done.stdout


def test_owners_need_not_be_in_the_test_file(folder):
    table().assign(clinic=["a", "b", "c"] * 30).to_csv("rows.csv", index=False)
    entries = 'drop = ["patient", "admitted", "dose"]\ntest = "test.csv"\n[simulation]\npartition = "column:clinic"\n'
    configuration = read(f'{entries}topology = "chain"\nrounds = 2')
    done = CliRunner().invoke(app, ["simulate", "run.toml"])
    assert done.exit_code == 0, done.stderr
    assert list(configuration.load_test(configuration.load()[0])["test"][0].columns) == ["age"]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("columns = 3", "line 4: columns is 3; expected a list of names"),
        ("drop = []", "line 4: drop is []; expected a list of names"),
        ('drop = ["patient"]\ncolumns = ["age"]', "line 4: columns says what to learn from, and drop"),
        ('drop = ["grade"]', "line 4: drop names the label, 'grade'"),
        ('drop = ["patiant"]', "line 4: drop: the table has no column 'patiant' (did you mean 'patient'?)"),
        ('columns = ["agee"]', "line 4: columns: rows.csv has no column 'agee' (did you mean 'age'?)"),
        ('dates = { admitted = "hour" }', "line 4: dates.admitted is 'hour'; expected one of days, year, month"),
        ('dates = { admitted = "month %d.%m." }', "line 4: dates: column 'admitted' holds"),
        ('dates = { admitted = "days %d.%m." }', "line 4: dates.admitted is 'days %d.%m.'; expected a pattern with"),
        ('dates = { admitted = "year %H:%M" }', "line 4: dates.admitted is 'year %H:%M'; expected a pattern with"),
        ('dates = { admitted = "month %Q" }', "line 4: dates.admitted is 'month %Q'; expected a pattern with"),
        ('dates = { admitted = 3 }', "line 4: dates.admitted is 3; expected one of days, year"),
        ('dates = { age = "year" }', "line 4: dates: column 'age' holds"),
        ('dates = { patient = "year" }', "line 4: dates: column 'patient' holds 'P0' (row 1, and 89 more)"),
        ("missing = [[1]]", "line 4: missing is [[1]]; expected a list of texts and numbers"),
        ("labels = { 0 = 1.5 }", "line 4: labels.0 is 1.5; expected a class"),
        ('labels = { 0 = "a", 1 = 2 }', "line 4: labels is {'0': 'a', '1': 2}; expected classes of one type"),
        ('columns = ["age"]\nlabels = { 0 = "a", 1 = "b" }', "line 5: labels names no class for '2', in"),
        ('columns = ["age"]\ntest = "none.csv"', "the test of [data]: cannot read rows from none.csv"),
    ],
)  # fmt: skip
def test_entries_are_refused_by_line(folder, entry, message):
    with pytest.raises(ConfigurationError) as caught:
        configuration = read(entry)
        configuration.load_test(configuration.load()[0])
    assert str(caught.value).removeprefix("run.toml, ").startswith(message)


def test_a_dataset_by_name_is_prepared_too(folder):
    names = written('[data]\nname = "iris"\ndrop = ["petal width (cm)"]\n').load()[0].columns
    assert len(names) == 3 and "petal width (cm)" not in names
    with pytest.raises(ConfigurationError, match=r"line 3: test is for a `file`"):
        written('[data]\nname = "iris"\ntest = "test.csv"\n')
