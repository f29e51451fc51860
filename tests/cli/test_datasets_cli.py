"""`peerbayes datasets`: what it prints, and how it ends."""

import json

import pytest
from typer.testing import CliRunner

from peerbayes.cli.app import app
from peerbayes.data.datasets.entries import ENTRIES
from shared.dataset_server import ARCHIVE, TEXT, TINY, tiny

pytestmark = pytest.mark.usefixtures("held")


@pytest.fixture
def entry(server, monkeypatch):
    """A small dataset in the registry, on a server of the test's own."""
    known = tiny(server.url("tiny.zip", ARCHIVE))
    monkeypatch.setitem(ENTRIES, "tiny", known)
    return known


def datasets(*arguments, code=0):
    done = CliRunner().invoke(app, ["datasets", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done


def test_list_shows_every_dataset_and_where_it_would_come_from(entry):
    shown = datasets("list").stdout
    for name in ENTRIES:
        assert any(line.split()[:1] == [name] for line in shown.splitlines())
    for header in ("name", "rows", "columns", "classes", "licence", "from"):
        assert header in shown.splitlines()[0]
    assert "20,000" in shown


def test_list_speaks_json(entry, held):
    def places():
        return {row["name"]: row["from"] for row in json.loads(datasets("list", "--format", "json").stdout)}

    first = {row["name"]: row for row in json.loads(datasets("list", "--format", "json").stdout)}
    assert first["letter"] == {
        "name": "letter", "rows": 20000, "columns": 16, "classes": 26, "licence": "CC BY 4.0", "from": "download"
    }  # fmt: skip
    assert (places()["smoking"], places()["iris"], places()["tiny"]) == (
        "import only",
        "scikit-learn",
        "download",
    )
    datasets("fetch", "tiny")
    assert places()["tiny"] == "cache"


def test_list_tells_the_folder(entry, held, monkeypatch):
    TINY.to_parquet(held.folder / "tiny.parquet")
    monkeypatch.setenv("PEERBAYES_DATA", str(held.folder))
    assert "folder" in datasets("list").stdout
    assert f"is in {held.folder}" in datasets("fetch", "tiny").stdout


def test_fetch_downloads_once(entry, server, held):
    assert f"tiny: 40 rows are in {held.cache}" in datasets("fetch", "tiny", "iris").stdout
    assert f"tiny: is in {held.cache}" in datasets("fetch", "the tiny one").stdout
    assert server.asked["/tiny.zip"] == 1
    datasets("fetch", "tiny", "--again")
    assert server.asked["/tiny.zip"] == 2


def test_fetch_goes_on_after_a_failure_and_ends_with_1(entry, held):
    done = datasets("fetch", "smoking", "tiny", code=1)
    assert "tiny: 40 rows" in done.stdout
    assert "peerbayes: smoking cannot be downloaded" in done.stderr
    assert "datasets import smoking FILE" in done.stderr


def test_an_altered_download_ends_with_1(server, monkeypatch, held):
    monkeypatch.setitem(ENTRIES, "tiny", tiny(server.url("tiny.zip", ARCHIVE), "0" * 64))
    assert "is not the published one" in datasets("fetch", "tiny", code=1).stderr
    assert list(held.cache.iterdir()) == []


def test_import_takes_a_file(entry, held, tmp_path):
    (tmp_path / "mine.csv").write_bytes(TEXT.replace(b"out", b"result", 1))
    refused = datasets("import", "tiny", tmp_path / "mine.csv", code=1)
    assert "lacks 'out' and also has 'result'" in refused.stderr
    done = datasets("import", "tiny", tmp_path / "mine.csv", "--label", "result")
    assert f"tiny: 40 rows and 2 columns are in {held.cache}" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("list", "--format", "xml"), "--format is 'xml'; expected one of table, json"),
        (("fetch",), "Missing argument"),
        (("fetch", "iris", "leter"), "no dataset is called 'leter'; did you mean letter"),
        (("import", "tiny"), "Missing argument"),
        (("import", "leter", "x.csv"), "did you mean letter"),
        (("import", "tiny", "nowhere.csv"), "nowhere.csv is not a file"),
        (("import", "iris", __file__), "iris comes with scikit-learn"),
        (("import", "tiny", __file__), "ends in '.py'; expected .parquet, .npz, .csv"),
    ],
)
def test_a_request_that_makes_no_sense_ends_with_2(entry, arguments, message):
    assert message in datasets(*arguments, code=2).stderr


def test_a_folder_that_is_none_ends_with_1(monkeypatch):
    monkeypatch.setenv("PEERBAYES_DATA", "nowhere/at/all")
    assert "expected a folder" in datasets("list", code=1).stderr
