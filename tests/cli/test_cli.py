"""The command line, run as a user runs it."""

import contextlib
import errno
import json
import re
import sqlite3

import pytest
import typer

from peerbayes.cli import exit_on_error
from peerbayes.cli.app import app
from shared.commands import peerbayes, peerbayes_process

CONFIGURATION = """
[data]
name = "wine"

[simulation]
peers = 6
rows_per_peer = 15
rounds = 5
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(CONFIGURATION)
    return path


def test_help_and_version(tmp_path):
    help_text = peerbayes_process("--help", cwd=tmp_path, code=0).stdout
    assert "demo" in help_text
    assert "simulate" in help_text
    assert peerbayes_process("--version", cwd=tmp_path, code=0).stdout.strip() == "0.1.0"


def every_command(words=(), command=None):
    """Yield the words of each command and what there is to say of it."""
    command = command or typer.main.get_command(app)
    yield words, command
    if hasattr(command, "list_commands"):
        with command.make_context("peerbayes", [], resilient_parsing=True) as context:
            for word in command.list_commands(context):
                yield from every_command((*words, word), command.get_command(context, word))


COMMANDS = {" ".join(words): (words, command) for words, command in every_command()}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_text_in_brackets_is_lost_from_help(name):
    words, command = COMMANDS[name]
    shown = re.sub(r"[\s│]", "", peerbayes(*words, "--help", code=0).stdout)
    for part in (command, *command.params):
        if getattr(part, "hidden", False):
            continue
        for text in re.findall(r"\[[^\]]*\]\S*", (getattr(part, "help", None) or "").replace("\\[", "[")):
            assert re.sub(r"\s", "", text) in shown


def test_help_names_the_sections_of_files():
    for command in ("simulate", "study"):
        shown = " ".join(peerbayes(command, "--help", code=0).stdout.split())
        assert "[data]" in shown and "[simulation]" in shown and "\\[" not in shown


def test_the_demo_shows_the_network_learn(tmp_path):
    shown = peerbayes_process("demo", "--rounds", 16, "--simulated-peers", 20, cwd=tmp_path, code=0).stdout
    for line in ("each peer alone", "together, crc", "rows pooled, ML", "rows pooled, RC"):
        assert line in shown
    assert re.search(r"together, (exact|relay|tree-sum)", shown)
    assert re.search(
        r"The peers chose the family themselves: [\w-]+ \(.+\): log loss 0\.\d+ on", " ".join(shown.split())
    )
    assert (tmp_path / "peerbayes-demo" / "auto" / "run.peerbayes").exists()


def test_the_demo_speaks_json(tmp_path):
    told = json.loads(
        peerbayes(
            "demo", "--rounds", 8, "--simulated-peers", 20, "--format", "json", cwd=tmp_path, code=0
        ).stdout
    )
    assert set(told) == {"local", "crc", "auto", "family_choice"}
    assert told["family_choice"]["reason"].startswith(told["family_choice"]["chosen"])
    assert told["auto"]["test_error"] < told["local"]["test_error"]


def test_simulate_a_file(tmp_path, file):
    shown = peerbayes("simulate", file, "--out", "kept", cwd=tmp_path, code=0).stdout
    assert "peers, exact" in shown
    told = json.loads((tmp_path / "kept" / "summary.json").read_text())
    changed = peerbayes(
        "simulate", file, "--set", "strategy=crc", "--set", "seed=3", "--format", "json", cwd=tmp_path
    )
    again = json.loads(changed.stdout)
    assert again["configuration"]["strategy"] == "crc"
    assert again["configuration"]["seed"] == 3
    assert set(again["summary"]) == set(told)


def test_simulate_a_table_of_ones_own(tmp_path, file):
    (tmp_path / "rows.csv").write_text(
        "a,b,out\n" + "".join(f"{i % 7},{'xy'[i % 2]},{i % 2}\n" for i in range(200))
    )
    file.write_text(CONFIGURATION.replace('name = "wine"', 'file = "rows.csv"\nlabel = "out"'))
    told = json.loads(peerbayes("simulate", file, "--format", "json", cwd=tmp_path, code=0).stdout)
    assert told["summary"]["test_error"] < 0.1


def test_simulate_the_rows_of_a_query(tmp_path, file):
    pytest.importorskip("sqlalchemy")
    with contextlib.closing(sqlite3.connect(tmp_path / "rows.db")) as database, database:
        database.execute("CREATE TABLE visits (a REAL, b TEXT, out TEXT)")
        rows = [(i % 7, "xy"[i % 2], str(i % 2)) for i in range(200)]
        database.executemany("INSERT INTO visits VALUES (?, ?, ?)", rows)
    url = f"sqlite:///{tmp_path / 'rows.db'}"
    file.write_text(CONFIGURATION.replace('name = "wine"', f'file = "{url}"\nquery = "SELECT * FROM visits"'))
    told = json.loads(peerbayes("simulate", file, "--format", "json", cwd=tmp_path, code=0).stdout)
    assert told["summary"]["test_error"] < 0.1


def test_a_reader_of_the_output_may_end_first():
    """As in `peerbayes datasets list | head -1`: typer ends the command then, and there is nobody to tell."""
    with pytest.raises(BrokenPipeError), exit_on_error():
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


@pytest.mark.parametrize("words", [(), ("--help",), ("run", "folder"), ("check", "--format", "json")])
def test_the_command_of_peers_had_another_name(tmp_path, words):
    refused = peerbayes("node", *words, cwd=tmp_path, code=2)
    assert refused.stderr == "`peerbayes node` is called `peerbayes peer` now\n" and refused.stdout == ""
    assert "node" not in peerbayes("--help", cwd=tmp_path, code=0).stdout


@pytest.mark.parametrize("number", [0, -1, 1001])
def test_the_demo_refuses_numbers_of_peers_that_share_no_rows(number, tmp_path):
    refused = peerbayes("demo", "--simulated-peers", number, cwd=tmp_path, code=2)
    assert f"--simulated-peers is {number}; expected 1 to 1000" in refused.stderr


def test_the_option_of_the_demo_had_another_name(tmp_path):
    refused = peerbayes("demo", "--nodes", 20, cwd=tmp_path, code=2)
    sentence = "--nodes is called --simulated-peers now: write --simulated-peers 20"
    assert refused.stderr == f"peerbayes: {sentence}\n" and not list(tmp_path.iterdir())
    assert "--nodes" not in peerbayes("demo", "--help", cwd=tmp_path, code=0).stdout


def test_clipping_can_be_turned_off(tmp_path, file):
    file.write_text(CONFIGURATION + "clip = false\n")
    told = json.loads(peerbayes("simulate", file, "--format", "json", cwd=tmp_path, code=0).stdout)
    assert told["configuration"]["clip"] is None
    refused = peerbayes("simulate", file, "--set", "clip=true", cwd=tmp_path, code=2)
    assert "clip is True; expected a positive number, or false for no clipping" in " ".join(
        refused.stderr.split()
    )


def test_a_checkpoint_of_another_simulation_is_refused(tmp_path, file):
    peerbayes("simulate", file, "--checkpoint", "saved", cwd=tmp_path, code=0)
    assert not (tmp_path / "saved").exists()  # done
    (tmp_path / "saved").write_bytes(b"no checkpoint")
    refused = peerbayes_process("simulate", file, "--checkpoint", "saved", cwd=tmp_path, code=2)
    assert "saved is not from peerbayes" in " ".join(refused.stderr.split())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("peers = 6", "nodes = 6"), "run.toml, line 6: nodes is called peers now: write peers = 6"),
        (
            ("rows_per_peer = 15", "rows_per_node = [1, 2]"),
            "run.toml, line 7: rows_per_node is called rows_per_peer now: write rows_per_peer = [1, 2]",
        ),
        (("peers = 6", "peres = 6"), "run.toml, line 6: 'peres' is not a setting; expected one of family"),
        (
            ("peers = 6", 'peers = "six"'),
            "run.toml, line 6: peers is 'six'; expected a whole number of 1 or more",
        ),
        (("peers = 6", "peers = true"), "line 6: peers is True; expected a whole number of 1 or more"),
        (("peers = 6", "peers = ["), "run.toml:"),
        (("rounds = 5", 'strategy = "magic"'), "strategy is 'magic'; expected one of crc"),
        (("rounds = 5", 'topology = "web"'), "web"),
        (('name = "wine"', 'name = "beer"'), "line 3: no dataset is called 'beer'"),
        (('name = "wine"', 'file = "none.csv"'), "none.csv, which does not exist"),
        (("[simulation]", "[simulations]"), "'simulations' is not a section"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_line(tmp_path, file, change, message):
    file.write_text(CONFIGURATION.replace(*change))
    refused = peerbayes("simulate", file, cwd=tmp_path, code=2)
    assert message in " ".join(refused.stderr.split())


@pytest.mark.parametrize(
    "content", [b"a = " + b"[" * 100_000, b"\xff\xfe", b"\0", b""], ids=["deep", "not UTF-8", "NUL", "empty"]
)
def test_a_file_that_cannot_be_read_is_refused_without_a_traceback(tmp_path, file, content):
    file.write_bytes(content)
    refused = peerbayes("simulate", file, cwd=tmp_path, code=2)
    assert refused.stderr.startswith(f"peerbayes: {file}") and refused.stderr.count("\n") == 1
    assert refused.stdout == ""


def test_bad_changes_and_formats_are_refused(tmp_path, file):
    for arguments, message in (
        (("--set", "peers"), "expected KEY=VALUE"),
        (("--set", "colour=red"), "KEY one of family"),
        (("--set", "nodes=50"), "--set nodes=50: nodes is called peers now: write --set peers=50"),
        (
            ("--set", "rows_per_node=9"),
            "rows_per_node is called rows_per_peer now: write --set rows_per_peer=9",
        ),
        (("--set", "peers=many"), "peers is 'many'; expected a whole number of 1 or more"),
        (("--format", "xml"), "--format is 'xml'; expected one of table, json"),
    ):
        assert message in " ".join(
            peerbayes("simulate", file, *arguments, cwd=tmp_path, code=2).stderr.split()
        )
    assert "cannot be read" in peerbayes("simulate", "nowhere.toml", cwd=tmp_path, code=2).stderr
