"""TOML files that cannot be read: every command that takes one ends with a sentence and exit code 2."""

import ast
from pathlib import Path

import pytest
from typer.testing import CliRunner

import peerbayes
from peerbayes.cli.app import app
from peerbayes.data import files
from peerbayes.errors import ConfigurationError
from peerbayes.simulation import config

# What a file holds, and words of the sentence about it.
BROKEN = {
    "lists in lists": (b"a = " + b"[" * 100_000, "nested too deeply"),
    "tables in tables": (b"a = " + b"{a = " * 10_000, "nested too deeply"),
    "not UTF-8": (b'[data]\nname = "\xff"\n', "byte 15 is not UTF-8"),
    "UTF-16": ("[data]\n".encode("utf-16"), "byte 0 is not UTF-8"),
    "NUL": (b"[data]\n\0", "line 2"),
    "no TOML": (b"peers: 6\n", "line 1"),
    "an open string": (b'[data]\nname = "wine\n', "line 2"),
    "the same twice": (b"[data]\n[data]\n", "line 2"),
    "5,000 digits": (b"a = " + b"9" * 5000, "expected TOML"),
    "too large": (b" " * (files.LARGEST_FILE + 1), "larger than 16 MB"),
    "a folder": (None, "Is a directory"),
}


@pytest.fixture(params=BROKEN)
def broken(request, tmp_path):
    """A file, and words of what is wrong with it."""
    content, words = BROKEN[request.param]
    path = tmp_path / "peer.toml"
    path.mkdir() if content is None else path.write_bytes(content)
    return path, words


def refused(*arguments):
    """The one sentence that a command ends with."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 2, done.output
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("peerbayes: "), done.stderr
    assert len(lines[0]) < 500
    return lines[0]


def test_a_simulation_of_a_broken_file_is_refused(broken):
    path, words = broken
    message = refused("simulate", path)
    assert str(path) in message and words in message


def test_an_audit_with_a_broken_file_is_refused(broken, tmp_path):
    path, words = broken
    message = refused("audit", tmp_path, "--data", path)
    assert str(path) in message and words in message


def test_a_network_of_a_broken_agreement_is_refused(broken, tmp_path):
    pytest.importorskip("cryptography")
    pytest.importorskip("msgspec")
    path, words = broken
    message = refused("network", "new", tmp_path / "net", "--terms", path)
    assert str(path) in message and words in message
    assert not (tmp_path / "net").exists()


def test_a_peer_with_broken_settings_is_refused(broken):
    for needed in ("cryptography", "msgspec"):
        pytest.importorskip(needed)
    path, words = broken
    message = refused("peer", "status", path.parent)
    assert str(path) in message and words in message


@pytest.mark.parametrize("text", ["", "\n\n", "# a comment\n"])
def test_a_file_that_says_nothing_is_refused(tmp_path, text):
    path = tmp_path / "run.toml"
    path.write_text(text)
    assert "is empty; expected a section [data] or [simulation]" in refused("simulate", path)
    path.write_text("[simulation]\n")
    assert config.read(path).data == {"name": "digits"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("data = 3\n", ", line 1: data is 3; expected a section [data]"),
        ("simulation = []\n", ", line 1: simulation is []; expected a section [simulation]"),
        ("[data]\nname = 3\n", ", line 2: name is 3; expected the name of a dataset"),
        ("[simulation]\npeers = 1.5\n", ", line 2: peers is 1.5; expected a whole number of 1 or more"),
        ("[simulation]\npeers = inf\n", ", line 2: peers is inf; expected a whole number of 1 or more"),
        ("[simulation]\nseed = [0, 1]\n", ", line 2: seed is [0, 1]; expected a whole number of 0 or more"),
        ("[simulation]\npeers = 2020-01-01\n", "expected a whole number of 1 or more"),
        (f"[simulation]\npeers = {10**30}\n", "peers is 1000000000000000000000000000000; expected"),
        ("[simulation]\nlr = nan\n", "lr is nan; expected a positive number"),
        ("[simulation]\nlr = 1e30\n", "lr is 1e+30; expected a positive number up to 2"),
        (f'[simulation]\ntopology = "{"x" * 9999}"\n', "topology is 'xxx"),
        (f"[simulation]\n{'x' * 300} = 1\n", "is not a setting"),
        ("[simulation]\nprivacy = { colour = 1 }\n", "a term is 'colour'; expected one of epsilon"),
        ("[simulation]\nprivacy = { epsilon = -1 }\n", "epsilon is -1; expected a positive number"),
        ('[simulation]\nattack = { kind = ["flip"] }\n', "the attack is ['flip']; expected one of flip"),
    ],
    ids=lambda text: text[-40:],
)
def test_a_setting_that_makes_no_sense_is_refused(tmp_path, text, words):
    path = tmp_path / "run.toml"
    path.write_text(text)
    assert words in refused("simulate", path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("peers", "expected KEY=VALUE"),
        ("=3", "expected KEY=VALUE"),
        ("peers=", "peers is ''; expected a whole number of 1 or more"),
        ("peers=nan", "peers is nan; expected a whole number of 1 or more"),
        ("peers=3\nrounds=4", "peers is '3\\nrounds=4'; expected a whole number of 1 or more"),
        ("peers=" + "9" * 5000, "peers is '999"),
        ("peers=" + "[" * 100_000, "peers is '[[["),
        ("seed=[0, 1]", "seed is [0, 1]; expected a whole number of 0 or more"),
        ("seed=-1", "seed is -1; expected a whole number of 0 or more"),
        ("evaluate_every=nan", "evaluate_every is nan; expected a whole number of 0 or more"),
        ("lr=inf", "lr is inf; expected a positive number"),
        ("lr=1e30", "lr is 1e+30"),
        ("topology=tree+", "topology is 'tree+'; expected one of tree"),
        ("partition=dirichlet-", "the partition is 'dirichlet-'; expected a positive number"),
        ("secure_sum=yes", "secure_sum is 'yes'; expected true or false"),
        ("x" * 10_000 + "=1", "expected KEY=VALUE"),
    ],
    ids=lambda text: text[:40],
)
def test_a_change_that_makes_no_sense_is_refused(tmp_path, change, words):
    path = tmp_path / "run.toml"
    path.write_text('[data]\nname = "wine"\n[simulation]\nrounds = 1\npeers = 2\n')
    done = CliRunner().invoke(app, ["simulate", str(path), "--set", change])
    assert done.exit_code == 2 and isinstance(done.exception, SystemExit), done.output
    assert words in done.stderr and len(done.stderr) < 1000, done.stderr


def test_a_file_written_elsewhere_is_read_as_it_is_here(tmp_path):
    path = tmp_path / "run.toml"
    path.write_bytes('[data]\r\nname = "wine"\r\n[simulation]\r\npeers = 6\r\nlr = "é"\r\n'.encode())
    with pytest.raises(ConfigurationError, match=r"line 5: lr is 'é'; expected a positive number up to 2"):
        config.read(path)


def test_a_simulation_without_test_rows_says_so_in_a_line(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('[data]\nname = "wine"\n[simulation]\nrounds = 1\npeers = 2\nrows_per_peer = 89\n')
    done = CliRunner().invoke(app, ["simulate", str(path), "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    [line] = done.stderr.splitlines()
    assert line.startswith("peerbayes: peers hold all rows") and "test=" in line and "rows_per_peer" in line
    assert "–" in done.stdout and "nan" not in done.stdout


def test_toml_is_read_in_one_place():
    source = Path(peerbayes.__file__).parent
    readers = {
        path.name
        for path in source.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import) and any(alias.name == "tomllib" for alias in node.names)
    }
    assert readers == {"files.py"}
