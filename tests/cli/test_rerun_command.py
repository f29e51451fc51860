"""A run made again by `peerbayes rerun`, from the command to the exit code; and commands overwrite nothing unasked."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_wine

import peerbayes as pb
from peerbayes.simulation import drivers, repetition, result
from peerbayes.simulation.places import relative_paths
from shared.commands import HANG, peerbayes

SETTINGS = """
[data]
file = "rows.csv"
label = "kind"
[simulation]
peers = 6
rows_per_peer = 12
rounds = 4
family = "auto"
partition = "drift-y"
"""

ANOTHER_DAY = """
import datetime, sys
from peerbayes.simulation import result

class Later(datetime.datetime):
    @classmethod
    def now(cls, zone=None):
        return super().now(zone) + datetime.timedelta(days=400)

result.datetime = Later
from peerbayes.cli.app import app
app(prog_name="peerbayes")
"""


@pytest.fixture
def folder(tmp_path):
    X, y = load_wine(return_X_y=True, as_frame=True)
    X.assign(kind=np.array(["a", "b", "c"])[y]).to_csv(tmp_path / "rows.csv", index=False)
    (tmp_path / "settings.toml").write_text(SETTINGS)
    shown = peerbayes("simulate", "settings.toml", "--out", "run", cwd=tmp_path, code=0).stdout
    assert pb.load(tmp_path / "run").digest in shown and "peerbayes rerun run" in shown
    return tmp_path


def test_a_run_is_made_again_in_another_process_on_another_day(folder):
    words = [sys.executable, "-c", ANOTHER_DAY, "rerun", "run", "--out", "later"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=HANG, check=False)
    first, later = pb.load(folder / "run"), pb.load(folder / "later")
    assert (done.returncode, done.stdout) == (0, f"The same digest: {first.digest}\n"), done.stderr
    assert later.made["began"][:10] > first.made["began"][:10] and later.digest == first.digest
    assert later.provenance.data == first.provenance.data
    assert first.provenance.data["source"] == {"file": "rows.csv", "label": "kind"}
    (folder / "later" / "run.toml").replace(folder / "again.toml")
    peerbayes("simulate", "again.toml", "--out", "third", cwd=folder, code=0)
    assert pb.load(folder / "third").digest == first.digest


def test_a_run_is_made_again_from_wherever_one_is(folder, tmp_path_factory, monkeypatch):
    (folder / "test.csv").write_text((folder / "rows.csv").read_text())
    (folder / "links.csv").write_text("".join(f"{peer},{peer + 1}\n" for peer in range(5)))
    text = SETTINGS.replace("[simulation]", 'test = "test.csv"\n[simulation]\ntopology = "links.csv"')
    (folder / "settings.toml").write_text(text)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    peerbayes("simulate", "settings.toml", "--out", "runs/of-files", cwd=folder, code=0)
    run = folder / "runs" / "of-files"
    first = pb.load(run)
    peerbayes("rerun", ".", cwd=run, code=0)
    peerbayes("rerun", run, "--out", "again", cwd=elsewhere, code=0)
    again = pb.load(elsewhere / "again")
    assert again.provenance.data == first.provenance.data and again.provenance.asked == first.provenance.asked
    assert again.configuration == first.configuration
    peerbayes("rerun", "again", cwd=elsewhere, code=0)
    monkeypatch.chdir(elsewhere)
    assert first.rerun().digest == pb.load(run).rerun().digest == first.digest
    for place in (run, elsewhere):
        peerbayes("simulate", run / "run.toml", "--out", run / place.name, cwd=place, code=0)
        assert pb.load(run / place.name).digest == first.digest
    (folder / "runs").rename(elsewhere / "moved")
    assert (
        "put it into the run's folder" in peerbayes("rerun", "moved/of-files", cwd=elsewhere, code=2).stderr
    )


def test_a_saved_run_names_no_folder_that_it_shares_nothing_with(folder, tmp_path_factory, monkeypatch):
    saved = [path.read_bytes() for path in (folder / "run").iterdir()]
    assert not any(str(folder).encode() in content for content in saved)
    assert 'file = "../rows.csv"' in (folder / "run" / "run.toml").read_text()
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    homes = folder.parent / "homes" / "of-somebody"
    monkeypatch.setattr(Path, "home", lambda: homes)
    for target, named in ((elsewhere, False), (homes / "runs", True)):
        places = {"rows.csv": str(homes / "data" / "rows.csv")}
        assert (relative_paths(places, target) == {"rows.csv": "../data/rows.csv"}) is named


def test_rows_that_have_changed_are_refused(folder):
    rows = (folder / "rows.csv").read_text()
    (folder / "rows.csv").write_text(rows.replace("14.23", "14.24", 1))
    done = peerbayes("rerun", "run", cwd=folder, code=2)
    assert "the rows are not those that this run was made with: as many rows" in done.stderr
    (folder / "rows.csv").write_text(rows.rstrip("\n").rpartition("\n")[0])
    assert "177 rows instead of 178" in peerbayes("rerun", "run", cwd=folder, code=2).stderr
    (folder / "rows.csv").unlink()
    assert "or name a file with --data FILE" in peerbayes("rerun", "run", cwd=folder, code=2).stderr
    (folder / "elsewhere.csv").write_text(rows)
    peerbayes("rerun", "run", "--data", "elsewhere.csv", cwd=folder, code=0)
    (folder / "run" / "rows.csv").write_text(rows)  # beside the run
    peerbayes("rerun", "run", cwd=folder, code=0)
    refused = peerbayes("rerun", "run", "--data", "elsewhere.csv", "--label", "ash", cwd=folder, code=2)
    assert "other values, names, labels" in refused.stderr
    assert (
        "expected --data FILE too" in peerbayes("rerun", "run", "--label", "ash", cwd=folder, code=2).stderr
    )


def test_code_that_computes_something_else_is_noticed(folder, monkeypatch):
    begins = drivers.agreed_start

    def nudged(*arguments):
        start, sent = begins(*arguments)
        return start + 1e-9, sent

    monkeypatch.setattr(drivers, "agreed_start", nudged)
    monkeypatch.setattr(result, "code_version", lambda: "0.0.1 of another commit")
    done = peerbayes("rerun", "run", cwd=folder, code=3)
    first = pb.load(folder / "run")
    assert f"The runs differ: the digest was {first.digest}" in done.stdout
    assert "models differ by up to" in done.stdout and "now 0.0.1 of another commit" in done.stdout
    told = json.loads(peerbayes("rerun", "run", "--format", "json", cwd=folder, code=3).stdout)
    assert not told["same"] and told["digest"] == first.digest != told["again"] and told["differences"]


def test_a_setting_that_is_read_otherwise_is_noticed(folder, monkeypatch):
    read = repetition.arguments_of
    monkeypatch.setattr(repetition, "arguments_of", lambda recorded: {**read(recorded), "lr": 0.06})
    done = peerbayes("rerun", "run", cwd=folder, code=3)
    assert "round 1 is the first that differs" in done.stdout and "lr was 0.05, now 0.06" in done.stdout


def test_a_run_of_a_table_in_memory_needs_its_rows(folder):
    X, y = load_wine(return_X_y=True, as_frame=True)
    made = pb.simulate(X, y, peers=6, rows_per_peer=12, rounds=2, references=False)
    made.save(folder / "memory")
    refused = peerbayes("rerun", "memory", cwd=folder, code=2).stderr
    assert "were a table in memory: name a file that has them (--data FILE --label COLUMN)" in refused
    X.assign(target=y).to_csv(folder / "wine.csv", index=False)
    peerbayes("rerun", "memory", "--data", "wine.csv", "--label", "target", cwd=folder, code=0)


def test_rows_saved_with_a_run_are_all_that_is_needed(folder):
    pytest.importorskip("pyarrow")
    assert (
        "expected --out" in peerbayes("simulate", "settings.toml", "--with-data", cwd=folder, code=2).stderr
    )
    peerbayes("simulate", "settings.toml", "--out", "kept", "--with-data", cwd=folder, code=0)
    (folder / "rows.csv").unlink()
    peerbayes("rerun", "kept", cwd=folder, code=0)
    (folder / "kept").rename(folder / "moved")
    peerbayes("rerun", "moved", cwd=folder, code=0)


def test_everything_under_data_is_done_again(folder):
    rows = (folder / "rows.csv").read_text().splitlines(keepends=True)
    (folder / "test.csv").write_text("".join(rows[:1] + rows[-30:]))
    text = SETTINGS.replace(
        "[simulation]",
        'drop = ["ash"]\ntest = "test.csv"\nlabels = { a = "b", b = "b", c = "c" }\n[simulation]',
    )
    (folder / "settings.toml").write_text(text)
    peerbayes("simulate", "settings.toml", "--out", "prepared", cwd=folder, code=0)
    peerbayes("rerun", "prepared", cwd=folder, code=0)
    first = pb.load(folder / "prepared")
    assert first.provenance.data["columns"] == 12 and first.provenance.data["test"]["rows"] == 30
    (folder / "prepared" / "run.toml").replace(folder / "again.toml")
    peerbayes("simulate", "again.toml", "--out", "again", cwd=folder, code=0)
    assert pb.load(folder / "again").digest == first.digest
    (folder / "test.csv").write_text("".join(rows[:1] + rows[-29:]))
    done = peerbayes("rerun", "prepared", cwd=folder, code=2)
    assert "the rows to test on are not those" in done.stderr and "29 rows instead of 30" in done.stderr


def test_a_folder_without_a_run_is_refused(tmp_path):
    assert "run.peerbayes" in peerbayes("rerun", tmp_path, code=1).stderr


# --- nothing is overwritten


COMMANDS = {
    "simulate": (["simulate", "settings.toml", "--out", "kept"], "kept/run.peerbayes"),
    "rerun": (["rerun", "run", "--out", "kept"], "kept/run.peerbayes"),
    "predict": (["predict", "model", "rows.csv", "--label", "kind", "--out", "kept.csv"], "kept.csv"),
    "sample": (["sample", "model", "-n", "5", "--out", "kept.csv"], "kept.csv"),
    "report": (["report", "run", "--out", "kept.html"], "kept.html"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_overwrite_nothing_without_being_asked(name, folder):
    if name == "report":
        pytest.importorskip("plotly")
    words, made = COMMANDS[name]
    if name in ("predict", "sample"):
        pb.load(folder / "run").classifier(0).save(folder / "model")
    (folder / made).parent.mkdir(exist_ok=True)
    (folder / made).write_text("of somebody else")
    refused = peerbayes(*words, cwd=folder, code=2).stderr
    assert "exists already" in refused and "--overwrite" in refused
    assert (folder / made).read_text() == "of somebody else"
    peerbayes(*words, "--overwrite", cwd=folder, code=0)
    assert (folder / made).read_bytes() != b"of somebody else"


def test_the_page_beside_a_run_is_made_again_but_not_over_a_file_of_somebody_else(folder):
    pytest.importorskip("plotly")
    for _ in range(2):
        peerbayes("report", "run", cwd=folder, code=0)
    (folder / "run" / "report.html").write_text("<p>of somebody else")
    assert "exists already" in peerbayes("report", "run", cwd=folder, code=2).stderr


DEMO = ["demo", "--simulated-peers", "10", "--rounds", "2", "--format", "json"]


def test_a_demo_replaces_an_earlier_demo_and_nothing_else(tmp_path):
    for _ in range(2):
        peerbayes(*DEMO, cwd=tmp_path, code=0)
    assert pb.load(tmp_path / "peerbayes-demo" / "auto").rerun().digest
    mine = tmp_path / "mine" / "auto" / "run.peerbayes"
    mine.parent.mkdir(parents=True)
    mine.write_text("of somebody else")
    assert "exists already" in peerbayes(*DEMO, "--out", "mine", cwd=tmp_path, code=2).stderr
    assert mine.read_text() == "of somebody else" and [
        path.name for path in Path(mine.parents[1]).iterdir()
    ] == ["auto"]
    peerbayes(*DEMO, "--out", "mine", "--overwrite", cwd=tmp_path, code=0)


def test_results_are_exported_over_nothing(tmp_path):
    (tmp_path / "results.csv").write_text("of somebody else")
    words = ["reproduce", "4", "--no-resume", "--store", "store.sqlite", "--export", "results.csv"]
    assert "exists already" in peerbayes(*words, cwd=tmp_path, code=2).stderr
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "reproduction.md").write_text("of somebody else")
    words[-2:] = ["--document", "pages"]
    assert "exists already" in peerbayes(*words, cwd=tmp_path, code=2).stderr
