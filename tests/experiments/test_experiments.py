"""The paper's tables: cells, the store, engines that lose workers, and what is printed."""

import json
import re
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits

from peerbayes.data.datasets.entries import PAPER
from peerbayes.errors import ConfigurationError
from peerbayes.experiments import document, engines, formats, paper_tables
from peerbayes.experiments import document as agreement
from peerbayes.experiments.cells import READINGS, Cell, compute, prepared
from peerbayes.experiments.engines import LocalEngine, engine_of
from peerbayes.experiments.results_store import Store
from peerbayes.experiments.sweep import Sweep
from peerbayes.learning.strategies import STRATEGIES
from shared.cells_that_fail import always_dying, dying, failing
from shared.commands import HANG, peerbayes

SMALL = {"peers": 5, "rows_per_peer": 20, "rounds": 4}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A dataset of one's own: some digits, their label last."""
    X, y = load_digits(return_X_y=True, as_frame=True)
    path = tmp_path_factory.mktemp("data") / "digits.parquet"
    X.iloc[:, 20:30].assign(label=y).to_parquet(path)
    return str(path)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "results.sqlite")


def small_table(**columns):
    return paper_tables.Table(
        "04", "small", "gap", columns or {"tree": {}, "ring": {"topology": "ring"}}, SMALL
    )


# --- cells ----------------------------------------------------------------------------------------------


def test_a_cells_key_is_its_specification():
    cell = Cell("letter", 0, "crc")
    assert cell.key == Cell("letter", 0, "crc").key
    others = [Cell("letter", 1, "crc"), Cell("letter", 0, "exact"), Cell("letter", 0, "crc", lr=0.1)]
    assert len({cell.key, *(other.key for other in others)}) == 4
    assert Cell.of(cell.specification()) == cell


def test_another_file_under_the_same_name_is_another_cell(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("a,y\n1,0\n")
    before = Cell(str(path), 0, "crc").key
    path.write_text("a,y\n2,0\n")
    assert Cell(str(path), 0, "crc").key != before
    digests = {Cell(name, 0, "crc").specification()["digest"] for name in (str(path), f"{path}:text")}
    assert len(digests) == 1 and None not in digests


def test_a_cell_is_a_function_of_its_specification(file):
    cell = Cell(file, 3, "exact", **SMALL, trajectory=True)
    one, other = (compute(cell.specification()) for _ in range(2))
    one.pop("seconds"), other.pop("seconds")
    assert one == other
    assert len(one["trajectory"]) == 4 and one["trajectory"][-1] == pytest.approx(one["test_error"])


def test_the_reference_is_calibration_of_the_same_rows(file):
    """A network of one peer is RC."""
    cell = Cell(file, 1, "crc", peers=1, rows_per_peer=200, topology="complete", rounds=8)
    run, reference = compute(cell.specification()), compute(cell.reference.specification())
    assert run["test_error"] == pytest.approx(reference["test_rc"])
    assert run["train_error"] == pytest.approx(reference["train_rc"])


@pytest.mark.parametrize("family", ["qda", "tan", "kdb"])
def test_references_of_other_families_have_the_structure_of_the_network(file, family):
    cell = Cell(file, 1, "exact", start="ml", family=family, **SMALL)
    run, reference = (compute(each.specification()) for each in (cell, cell.reference_from("ml")))
    assert run.get("parents") == reference.get("parents")
    assert ("parents" in run) == (family != "qda")


def test_splits_are_disjoint_and_share_their_test_rows(file):
    data = prepared(file)
    (train, _), (test, _) = data.split(400, 0)
    (fewer, _), (again, _) = data.split(100, 0)
    np.testing.assert_array_equal(test, again)
    np.testing.assert_array_equal(train[:100], fewer)
    assert len(test) == 1797 // 5
    with pytest.raises(ConfigurationError, match="1,797 rows, 359 of them for tests; 1,500 training rows"):
        data.split(1500, 0)


def test_columns_are_as_in_the_paper(tmp_path):
    """At most ten distinct values are discrete; text becomes numbers first."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({
        "many": rng.choice(list("abcdefghijklmn"), 300), "few": rng.choice(["x", "y"], 300),
        "number": rng.normal(size=300), "digit": rng.integers(0, 10, 300), "label": rng.choice(["no", "yes"], 300),
    })  # fmt: skip
    frame.loc[5, "few"] = None
    path = tmp_path / "rows.csv"
    frame.to_csv(path, index=False)
    data = prepared(str(path))
    assert [column.kind for column in data.schema.columns] == [
        "continuous",
        "discrete",
        "continuous",
        "discrete",
    ]
    kinds = {
        reading: "".join(c.kind[0] for c in prepared(f"{path}:{reading}").schema.columns)
        for reading in READINGS
    }
    assert kinds == {"text": "ddcd", "discrete": "dddd", "gaps": "cdcd"}
    assert prepared(f"{path}:gaps").schema.columns[1].categories == (0.0, 1.0, 2.0)
    assert data.schema.classes == ("no", "yes")
    assert np.isnan(data.values[5, 1]) and np.isfinite(np.delete(data.values, 5, axis=0)).all()


# --- the store ------------------------------------------------------------------------------------------


def test_results_are_appended_and_never_changed(store):
    store.add("k", {"a": 1}, {"x": 0.1}, "1", "local")
    store.add("k", {"a": 1}, {"x": 0.2}, "2", "local")
    assert store.results(["k", "unknown"]) == {"k": {"x": 0.1}}
    assert store.codes(["k"]) == {"1"}
    with sqlite3.connect(store.path) as database:
        for statement in ("UPDATE results SET code = ''", "DELETE FROM results"):
            with pytest.raises(sqlite3.IntegrityError, match="appended, never"):
                database.execute(statement)


def test_numbers_survive_the_store_to_the_last_bit(store):
    value = 0.1 + 0.2
    store.add("k", {}, {"x": value}, "1", "local")
    assert store.results(["k"])["k"]["x"] == value


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_results_are_exported(store, tmp_path, ending):
    store.add("k", Cell("iris", 0, "crc").specification(), {"x": 0.5, "trajectory": [1.0]}, "1", "local")
    path = tmp_path / f"all.{ending}"
    assert store.export(path) == 1
    frame = pd.read_csv(path) if ending == "csv" else pd.read_parquet(path)
    assert frame.loc[0, "x"] == 0.5 and frame.loc[0, "dataset"] == "iris"
    with pytest.raises(ConfigurationError, match=r"a \.csv or a \.parquet file"):
        store.export(tmp_path / "all.txt")


def test_exported_results_make_a_store_again(file, store, tmp_path):
    table = paper_tables.Table("11", "", "iterations", {"iter1_gap": {"trajectory": True}}, SMALL)
    sweep = Sweep((small_table(), table), (file,), ("crc",), (0,))
    sweep.compute(store, LocalEngine(1))
    store.export(tmp_path / "all.parquet")
    again = Store(tmp_path / "again.sqlite")
    assert again.restore(tmp_path / "all.parquet") == len(sweep.cells())
    keys = [cell.key for cell in sweep.cells()]
    assert again.results(keys) == store.results(keys)
    assert again.codes(keys) == store.codes(keys)
    changed = pd.read_parquet(tmp_path / "all.parquet").assign(seed=9)
    changed.to_parquet(tmp_path / "changed.parquet")
    with pytest.raises(ConfigurationError, match="has the key"):
        Store(tmp_path / "other.sqlite").restore(tmp_path / "changed.parquet")


def test_a_file_that_is_no_store_is_refused(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to look at" * 50)
    with pytest.raises(ConfigurationError, match="cannot be used as a store"):
        Store(path)


# --- sweeps and engines ---------------------------------------------------------------------------------


@pytest.mark.long
def test_a_sweep_computes_what_is_missing_and_nothing_twice(file, store):
    sweep = Sweep((small_table(),), (file,), ("crc", "exact"), (0, 1))
    assert len(sweep.cells()) == 2 * (2 * 2 + 1)  # columns x strategies, and one reference, for each seed
    assert len(sweep.missing(store)) == 10
    assert sweep.compute(store, LocalEngine(2)) == set()
    assert sweep.missing(store) == []
    records = sweep.records(store)
    assert [(r.column, r.strategy) for r in records] == [
        ("tree", "crc"), ("tree", "exact"), ("ring", "crc"), ("ring", "exact"),
    ]  # fmt: skip
    for record in records:
        assert record.seeds == 2 and record.stderr is not None
        cells = [Cell(file, seed, record.strategy, topology=record.column, **SMALL) for seed in (0, 1)]
        gaps = [
            compute(c.specification())["test_error"] - compute(c.reference.specification())["test_rc"]
            for c in cells
        ]
        assert record.gap == pytest.approx(np.mean(gaps), abs=1e-12)


def test_a_worker_that_dies_costs_nothing_but_time(tmp_path):
    specifications = [{"number": n, "dies": n == 3, "mark": str(tmp_path / "mark")} for n in range(8)]
    found = dict(LocalEngine(2).run(dying, specifications))
    assert found == {n: {"twice": 2 * n} for n in range(8)}


def test_a_pool_that_breaks_while_cells_are_handed_out_loses_none(monkeypatch):
    """A worker may die between two cells that are handed out: the one that is not taken is computed later."""

    class Pool(ThreadPoolExecutor):
        handed_out = 0

        def submit(self, *work):
            Pool.handed_out += 1
            if Pool.handed_out == 3:
                raise BrokenProcessPool
            return super().submit(*work)

    monkeypatch.setattr(engines, "_pool", Pool)
    specifications = [{"number": n, "dies": False, "mark": "unused"} for n in range(8)]
    assert dict(LocalEngine(2).run(dying, specifications)) == {n: {"twice": 2 * n} for n in range(8)}


def test_a_cell_that_always_kills_its_worker_is_named():
    with pytest.raises(
        ConfigurationError, match=r"a worker died 3 times while computing one of .*'number': 7"
    ):
        list(LocalEngine(1).run(always_dying, [{"number": 7}]))


def test_an_error_of_a_cell_is_raised():
    with pytest.raises(ValueError, match="this cell makes no sense"):
        list(LocalEngine(1).run(failing, [{}]))


def test_engines_are_known_by_name():
    assert isinstance(engine_of("local", 2), LocalEngine)
    with pytest.raises(ConfigurationError, match="expected one of local, ray"):
        engine_of("cloud", None)
    with pytest.raises(ConfigurationError, match="workers is 0"):
        engine_of("local", 0)


def test_distances_are_records_too(tmp_path):
    done = peerbayes("reproduce", "distance", "--format", "json", cwd=tmp_path, code=0)
    found = {(r["dataset"], r["column"]): r["gap"] for r in json.loads(done.stdout)}
    assert 0.9 < found["50", "within_16"] <= 1.0 and found["320", "within_4"] < found["50", "within_4"]


@pytest.mark.long
def test_an_interrupt_keeps_what_was_computed(tmp_path):
    file, store = large_file(tmp_path), tmp_path / "cut.sqlite"
    words = ["reproduce", "4", "--datasets", file, "--seeds", "3", "--workers", "1", "--store", str(store)]
    running = subprocess.Popen([sys.executable, "-m", "peerbayes", *words], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + HANG
    while time.monotonic() < deadline and not (store.exists() and len(Store(store).frame())):
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    _, told = running.communicate(timeout=HANG)
    assert running.returncode == 130 and "run the same command to continue" in told
    assert len(Store(store).frame())


@pytest.mark.long
def test_cells_that_a_dataset_is_too_small_for_are_left_out(file, tmp_path):
    done = peerbayes(
        "reproduce", "8", "--datasets", file, "--columns", "rows20,rows320", "--seeds", 1, "--strategies", "crc",
        "--format", "json", cwd=tmp_path, code=0,
    )  # fmt: skip
    assert "skipped: " in done.stderr and "16,000 training rows are requested" in done.stderr
    few, many = json.loads(done.stdout)
    assert few["gap"] is not None and few["seeds"] == 1
    assert many["gap"] is None and many["seeds"] == 0


def large_file(tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 4000)
    frame = pd.DataFrame(rng.normal(size=(4000, 4)) + labels[:, None] * 0.7)
    frame.columns = [f"x{j}" for j in range(4)]
    path = tmp_path / "rows.parquet"
    frame.assign(label=labels).to_parquet(path)
    return str(path)


@pytest.mark.long
def test_reproduce_survives_a_kill(tmp_path):
    """Killed with -9 it goes on where it was, and ends with the numbers of an uninterrupted run."""
    file = large_file(tmp_path)

    def words(store):
        return [
            sys.executable, "-m", "peerbayes", "reproduce", "4", "6", "--datasets", file, "--seeds", "2",
            "--workers", "1", "--format", "json", "--store", str(store),
        ]  # fmt: skip

    whole = subprocess.run(words(tmp_path / "whole.sqlite"), capture_output=True, text=True, check=True)
    cut = tmp_path / "cut.sqlite"
    running = subprocess.Popen(words(cut), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    count = 0
    deadline = time.monotonic() + HANG
    while count < 5 and time.monotonic() < deadline:
        time.sleep(0.05)
        if cut.exists():
            count = len(Store(cut).frame())
    running.kill()
    running.wait()
    before = len(Store(cut).frame())
    again = subprocess.run(words(cut), capture_output=True, text=True, check=True)
    total = len(Store(cut).frame())
    assert 5 <= before < total
    assert json.loads(again.stdout) == json.loads(whole.stdout)
    assert f"{total - before:,} of {total:,} cells to compute" in again.stderr


# --- tables ---------------------------------------------------------------------------------------------


def test_the_papers_tables_are_there():
    assert paper_tables.numbers() == (*(f"{n:02}" for n in range(2, 13)), "distance")
    cells = {number: len(paper_tables.table(number).columns) for number in paper_tables.GAP_TABLES}
    assert 16 * sum(cells.values()) == 656
    assert paper_tables.table("4").columns["plus10"] == {"topology": "tree+10"}
    with pytest.raises(ConfigurationError, match="there is no table '13'; expected one of 2, 3"):
        paper_tables.table("13")


def test_fragments_share_their_rows():
    table = paper_tables.table("10")
    assert {table.cells("letter", column, "crc", 0)[0].rows for column in table.columns} == {12_800}


def test_columns_are_named_as_in_the_papers_tables():
    if paper_tables.folder() is None:
        pytest.skip("needs the paper's tables: PEERBAYES_PAPER")
    for number in paper_tables.numbers()[:-1]:
        assert {column for _, column in paper_tables.printed(number)} == set(
            paper_tables.table(number).columns
        ), number


def test_kinds_of_columns():
    run = {
        "test_error": 0.3,
        "test_std": 0.02,
        "train_error": 0.2,
        "train_std": 0.01,
        "trajectory": [0.5, 0.254, 0.3],
    }
    reference = {"test_rc": 0.25, "train_rc": 0.15, "test_ml": 0.4, "train_ml": 0.35}
    assert paper_tables.KINDS["gap"]("tree", [run, reference]) == pytest.approx(0.05)
    assert paper_tables.KINDS["size"]("gap_m20", [{"test_rc": 0.4}, reference]) == pytest.approx(0.15)
    assert paper_tables.KINDS["size"]("rc_test_error_m10240", [reference, reference]) == 0.25
    assert paper_tables.KINDS["convergence"]("train_ml_gap", [reference]) == pytest.approx(0.2)
    assert paper_tables.KINDS["convergence"]("test_crc_std", [run, reference]) == 0.02
    assert paper_tables.KINDS["convergence"]("test_rc_error", [reference]) == 0.25
    assert paper_tables.KINDS["iterations"]("iter1_round", [run, reference]) == 2
    assert paper_tables.KINDS["iterations"]("iter1_gap", [run, reference]) == pytest.approx(0.004)
    never = {**run, "trajectory": [0.5, 0.4]}
    assert paper_tables.KINDS["iterations"]("iter1_round", [never, reference]) is None
    assert paper_tables.KINDS["iterations"]("iter1_gap", [never, reference]) == pytest.approx(0.15)


def test_distances_grow_to_one():
    shares = paper_tables.Distances("", (10, 40), (1, 4, 40), trees=5).shares
    assert shares.shape == (2, 3)
    assert (np.diff(shares, axis=1) > 0).all() and shares[0, -1] == shares[1, -1] == 1.0
    assert shares[0, 0] == pytest.approx((10 + 2 * 9) / 100)


RECORDS = [
    paper_tables.Record("04", "adult", "tree", "crc", 0.0084, 0.001, 5, paper=0.01),
    paper_tables.Record("04", "adult", "tree", "exact", 0.0003, None, 1, paper=0.01),
    paper_tables.Record("04", "letter", "tree", "crc", 0.063, 0.004, 5, paper=0.74),
    paper_tables.Record("04", "letter", "tree", "exact", 0.029, 0.001, 5, paper=0.74),
]


def test_gaps_are_marked_as_in_the_paper():
    text = formats.as_markdown(small_table(tree={}), RECORDS, ["crc", "exact"])
    assert "| adult | 0.01 | **0.008 ± 0.001** | **0.000** |" in text
    assert "| letter | 0.74 | 0.063 ± 0.004 | *0.029 ± 0.001* |" in text
    latex = formats.as_latex(small_table(tree={}), RECORDS, ["crc", "exact"])
    assert r"letter & 0.74 & 0.063 $\pm$ 0.004 & \textbf{\textcolor{gray}{0.029 $\pm$ 0.001}} \\" in latex


def test_cells_that_converge_are_counted():
    header, rows = formats.counts(RECORDS, ["crc", "exact"])
    assert header[:6] == [
        "table", "cells", "paper ≤ 0.01", "crc, printed ≤ 0.01", "crc < 0.01", "exact < 0.01",
    ]  # fmt: skip
    assert rows == [
        ["4", "2", "1", "1", "1", "1", "0.063", "0.029"],
        ["all", "2", "1", "1", "1", "1", "0.063", "0.029"],
    ]


def test_programs_read_json_and_csv():
    record = json.loads(formats.as_json(RECORDS))[0]
    assert {"table", "dataset", "column", "strategy", "gap", "stderr", "seeds", "paper"} <= set(record)
    lines = formats.as_csv(RECORDS).splitlines()
    assert lines[0].startswith("table,dataset,column,strategy,gap,stderr,seeds,paper") and len(lines) == 5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["13"], "there is no table '13'"),
        (["4", "--strategies", "magic"], "'magic' is not a strategy; expected one of crc"),
        (["4", "--columns", "web"], "'web' is not a column; expected one of tree, chain"),
        (["4", "--datasets", "beer"], "no dataset is called 'beer'"),
        (["4", "--seeds", "0"], "--seeds is 0"),
        (["4", "--format", "pdf"], "--format is 'pdf'"),
        (["4", "--engine", "cloud"], "the engine is 'cloud'"),
    ],
)
def test_requests_that_make_no_sense_are_refused(words, message, tmp_path):
    assert message in peerbayes("reproduce", *words, cwd=tmp_path, code=2).stderr


@pytest.mark.long
def test_pages_are_written_from_the_store(tmp_path):
    file = large_file(tmp_path)
    words = ["4", "--datasets", file, "--columns", "tree,plus80", "--seeds", "2", "--strategies", "crc,exact"]
    peerbayes("reproduce", *words, "--document", "pages", cwd=tmp_path, code=0)
    page = (tmp_path / "pages" / "reproduction.md").read_text(encoding="utf-8")
    assert "## Cells that converge" in page and "### Table 4." in page and "### Figure." in page
    beside = (tmp_path / "pages" / "strategies.md").read_text(encoding="utf-8")
    assert "| i.i.d., tree |" in beside and "`dsgd`" in beside
    assert len(pd.read_parquet(tmp_path / "pages" / "results.parquet")) == 2 * (2 * 2 + 1)


PAGES = Path(__file__).parents[2] / "docs"


@pytest.mark.skipif(not (PAGES / "results.parquet").exists(), reason="no results were published yet")
@pytest.mark.long
def test_the_published_pages_come_from_the_published_results(tmp_path, monkeypatch):
    """Every number in docs/reproduction.md is in docs/results.parquet."""
    store = Store(tmp_path / "published.sqlite")
    store.restore(PAGES / "results.parquet")
    page = (PAGES / "reproduction.md").read_text(encoding="utf-8")
    words = re.search(r"`peerbayes reproduce (.*?) --document docs`", page)[1]
    chosen = words.split(" --strategies ")[1].split(",")
    seeds = tuple(range(int(words.split(" --seeds ")[1].split()[0])))
    every = tuple(paper_tables.table(number) for number in paper_tables.numbers() if number != "distance")
    sweep = Sweep(every, PAPER, tuple(chosen), seeds)
    assert not sweep.missing(store)
    monkeypatch.setattr(sys.modules["peerbayes.experiments.sweep"], "printed", lambda number: {})
    numbers = re.compile(r"-?\d\.\d{3} ± \d\.\d{3}")
    assert numbers.findall(page) == numbers.findall(document.reproduction(sweep, store, words))
    beside = document.strategies(sweep, store, ("auto", *STRATEGIES))
    assert (PAGES / "strategies.md").read_text(encoding="utf-8") == beside


def test_what_differs_from_the_paper_is_read_again(store):
    every = tuple(paper_tables.table(number) for number in ("02", "03", "04"))
    again = agreement.evidence(Sweep(every, ("adult", "letter", "run"), ("crc",), (0,)))
    assert again.datasets == ("letter:discrete", "run-as-found")
    assert {cell.strategy for cell in again.cells()} == {"rc"} and len(again.cells()) == 4
    told = agreement.section(
        again, store, [paper_tables.Record("03", "adult", "test_rc_error", "crc", 0.2, None, 1, 0.16)]
    )
    assert "0 of 1 are within 0.03" in told and "adult 3/test_rc_error 0.200 (0.16)" in told
