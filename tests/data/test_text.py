"""Text from others is text: names that would move a cursor, turn a line around or be run as a formula do neither."""

import asyncio
import io
import json
import logging

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import peerbayes as pb
from peerbayes.cli.peer import Plain
from peerbayes.data import files
from peerbayes.report.style import label
from shared.commands import peerbayes

ESCAPE, LINE, TURNED, HIDDEN, WINDOW = (
    "\x1b[31mred",
    "two\nlines",
    "\u202egnp.exe",
    "zero\u200bwidth",
    "\x9b2J",
)
FORMULA = '=HYPERLINK("http://example.org")'
NASTY = (ESCAPE, LINE, TURNED, HIDDEN, WINDOW)


def seen(shown):
    """What is left of a text that a terminal would not just show: nothing, but for its lines' ends."""
    return "".join(c for c in shown if not c.isprintable() and c != "\n")


@given(st.text())
def test_nothing_but_visible_letters_is_left_and_their_number_stays(anything):
    shown = files.printable(anything)
    assert shown.isprintable() and len(shown) == len(anything)
    assert files.printable(shown) == shown


@pytest.mark.parametrize("name", NASTY)
def test_names_that_do_something_are_only_shown(name):
    for shown in (files.printable(name), files.in_cell(name), label(name), files.as_json(name)):
        assert shown.isprintable(), shown
    assert json.loads(files.as_json({name: [name]})) == {name: [name]}


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (FORMULA, f"'{FORMULA}"), ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"), ("-2+3", "'-2+3"),
        ("@SUM(A1)", "'@SUM(A1)"), ("\t=1+1", "' =1+1"), ("-1", "-1"), ("+3.5e2", "+3.5e2"), ("+", "+"), ("-", "-"),
        ("a=b", "a=b"), (7, 7), (-1.5, -1.5),
    ],
)  # fmt: skip
def test_a_cell_is_never_a_formula_and_numbers_stay_numbers(value, cell):
    assert files.in_cell(value) == cell


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model whose columns, categories and classes have such names; and rows for it."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            ESCAPE: rng.normal(size=60),
            TURNED: rng.choice([LINE, HIDDEN], 60),
            FORMULA: rng.choice([WINDOW, "b"], 60),
        }
    )
    classes = np.where(frame[ESCAPE] > 0, FORMULA, f"{ESCAPE}{LINE}")
    folder = tmp_path_factory.mktemp("names")
    pb.MixedNB().fit(frame, classes).save(folder / "model.peerbayes")
    frame.assign(true=classes).to_parquet(folder / "rows.parquet")
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ("explain", "model.peerbayes"),
        ("explain", "model.peerbayes", "rows.parquet", "--row", "2"),
        ("explain", "model.peerbayes", "--format", "json"),
        ("predict", "model.peerbayes", "rows.parquet", "--label", "true", "--proba"),
        ("predict", "model.peerbayes", "rows.parquet", "--format", "json"),
        ("sample", "model.peerbayes", "-n", "3"),
        ("explain", "model.peerbayes", "rows.parquet", "--row", "9999"),
    ],
    ids=lambda words: " ".join(words),
)
def test_a_terminal_shows_names_and_does_nothing_else(model, words):
    pytest.importorskip("pyarrow")
    done = peerbayes(*words, cwd=model)
    assert seen(done.stdout) == seen(done.stderr) == "", (done.stdout, done.stderr)


def test_a_spreadsheet_runs_nothing_of_a_table_of_predictions(model):
    pytest.importorskip("pyarrow")
    done = peerbayes("predict", "model.peerbayes", "rows.parquet", "--proba", cwd=model, code=0)
    table = pd.read_csv(io.StringIO(done.stdout))
    assert set(table["predicted"]) == {f"'{FORMULA}", files.printable(f"{ESCAPE}{LINE}")}
    assert len(table) == 60 and table.filter(like="p(").sum(axis=1).to_numpy() == pytest.approx(1.0)
    drawn = pd.read_csv(io.StringIO(peerbayes("sample", "model.peerbayes", cwd=model, code=0).stdout))
    assert f"'{FORMULA}" in drawn.columns and drawn[files.printable(ESCAPE)].dtype == float


def test_a_report_shows_names_as_text(tmp_path):
    pytest.importorskip("plotly")
    rng = np.random.default_rng(0)
    X = pd.DataFrame({ESCAPE: rng.normal(size=80), TURNED: rng.choice(["a", HIDDEN], 80)})
    y = np.where(X[ESCAPE] > 0, WINDOW, "fine")
    run = pb.simulate(X, y, peers=2, rows_per_peer=40, rounds=2, references=False, test=(X, y))
    page = run.report(tmp_path / "report.html").read_text(encoding="utf-8")
    for mark in ("\x1b[31m", TURNED, HIDDEN, WINDOW):
        assert mark not in page
        assert json.dumps(mark)[1:-1] not in page  # nor where a script would make it out of an escape


def test_a_log_has_one_line_for_each_event():
    record = logging.LogRecord("peerbayes.peer", logging.INFO, "", 0, f"{ESCAPE} {LINE} {TURNED}", (), None)
    line = Plain("%(asctime)s %(message)s", "%H:%M:%S").format(record)
    assert line.isprintable() and "two lines" in line


def test_tables_of_members_that_do_not_fit_are_told_without_their_tricks(tmp_path, capsys):
    """A column that only one of two members has, as the other hears of it: over the wire, into its last sentence."""
    from peerbayes.cli import exit_on_error
    from peerbayes.peer.agreement.terms import Terms
    from shared.peers_in_memory import Peers

    rows = pd.DataFrame({"x": [0.0, 1.0, 2.0, 3.0]})
    labels = np.array(["a", "b", "a", "b"])
    tables = [(rows, labels), (rows.rename(columns={"x": f"{ESCAPE}{LINE}{TURNED}"}), labels)]
    peers = Peers(tmp_path, Terms("test", "label", rounds=2), nx.path_graph(2), tables)
    errors = asyncio.run(peers.all())
    for error in errors:
        assert isinstance(error, Exception) and "red" in str(error)
        with pytest.raises(SystemExit), exit_on_error():
            raise error
    told = capsys.readouterr().err
    assert seen(told) == "" and "red" in told
