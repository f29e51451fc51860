"""Datasets by name: the registry, the order of sources, downloads from a real server, imports, and what is refused."""

import dataclasses
import hashlib
import io
import json
import os
import socket
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pandas.testing import assert_frame_equal
from platformdirs.macos import MacOS
from platformdirs.unix import Unix
from platformdirs.windows import Windows, get_win_folder_from_env_vars

from peerbayes.data.datasets import (
    DatasetDamaged,
    DatasetError,
    DatasetMismatch,
    DatasetUnavailable,
    DownloadFailed,
    UnknownDataset,
    fetch,
    load,
    table,
    take,
    where,
)
from peerbayes.data.datasets.entries import (
    ENTRIES,
    PAPER,
    Expected,
    Member,
    Origin,
    census,
    delimited,
    find,
    openml,
    plain,
    repaired,
    unpack,
)
from peerbayes.data.datasets.storage import LIMIT, Places, allowed, places, record_of
from shared.dataset_server import ARCHIVE, EXPECTED, TEXT, TINY, tiny, zipped

pytestmark = pytest.mark.usefixtures("held")

# The paper's table: columns of each dataset (its 510 of mnist are not ours).
PAPER_COLUMNS = {
    "skin": 3, "pulsar": 8, "catsvsdogs": 512, "bank": 16, "default": 23, "soft": 17, "adult": 14, "run": 6,
    "smartgrid": 13, "smoking": 24, "yearbook": 512, "secondary": 19, "fashion": 512, "cifar10": 512, "mnist": 512,
    "letter": 16,
}  # fmt: skip


def truncated(handler):
    handler.head(len(ARCHIVE))
    handler.wfile.write(ARCHIVE[:-20])


def stalled(handler):
    """Half of the file, then nothing until the test is over."""
    handler.head(len(ARCHIVE))
    handler.wfile.write(ARCHIVE[: len(ARCHIVE) // 2])
    handler.wfile.flush()
    handler.server.release.wait(30)


def endless(handler):
    handler.head(None)
    for _ in range(LIMIT // 2**20 + 2):
        handler.wfile.write(bytes(2**20))


def cached(held):
    return sorted(path.name for path in held.cache.iterdir()) if held.cache.exists() else []


def same(found, expected=TINY):
    assert_frame_equal(found, expected, check_dtype=False)
    return True


# Names


def test_the_papers_sixteen_and_scikit_learns_four_are_known():
    assert len(PAPER) == 16
    assert set(PAPER) == set(PAPER_COLUMNS)
    assert list(ENTRIES) == [*PAPER, "run-as-found", "iris", "wine", "breast-cancer", "digits"]


def test_no_name_means_two_datasets():
    names = [plain(name) for entry in ENTRIES.values() for name in {entry.name, *entry.aliases}]
    assert len(names) == len(set(names))
    files = [entry.file for entry in ENTRIES.values() if entry.file]
    assert len(files) == len(set(files))


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("letter", "letter"), ("letter recognition", "letter"), ("letter_recognition", "letter"), ("Adult", "adult"),
        ("SMOKING", "smoking"), ("pulsar stars", "pulsar"), ("heart-2020", "soft"), ("soft heart disease", "soft"),
        ("run or walk", "run"), ("Fashion-MNIST", "fashion"), ("CIFAR-10", "cifar10"), ("cats_vs_dogs", "catsvsdogs"),
        ("breast cancer", "breast-cancer"), ("breast_cancer", "breast-cancer"), ("smartgrid_stability", "smartgrid"),
    ],
)  # fmt: skip
def test_names_are_found_as_users_type_them(typed, name):
    assert find(typed).name == name


@pytest.mark.parametrize(
    "entry", [entry for entry in ENTRIES.values() if entry.file], ids=lambda entry: entry.name
)
def test_a_file_is_found_by_its_own_name(entry):
    assert find(Path(entry.file).stem) is entry


def test_an_unknown_name_is_answered_with_close_ones():
    with pytest.raises(UnknownDataset, match="no dataset is called 'leter'; did you mean letter"):
        load("leter")
    with pytest.raises(ValueError, match="expected one of skin, pulsar"):
        load("qqq")


def test_every_entry_says_what_a_user_needs_to_know():
    for entry in ENTRIES.values():
        assert entry.description
        assert entry.licence
        assert entry.source.startswith("https://")
        assert entry.origin is None or entry.origin.url.startswith("https://")
        assert not entry.file or (entry.origin is None) == bool(entry.by_hand)
        assert entry.expected.text <= set(entry.expected.columns)
        assert set(entry.not_in_paper) <= set(entry.expected.columns)


# Sources and their order


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [
        ("iris", (150, 4), 3),
        ("wine", (178, 13), 3),
        ("breast-cancer", (569, 30), 2),
        ("digits", (1797, 64), 10),
    ],
)
def test_what_scikit_learn_brings_along_needs_nothing(name, shape, classes):
    found = load(name, download=False)
    assert found.frame.shape == (found.rows, found.columns) == shape
    assert found.labels.nunique() == classes
    assert len(found.labels) == found.rows
    assert name in repr(found)
    assert "\n" not in repr(found)


def test_folder_before_cache_before_download(server, held):
    entry = tiny(server.url("tiny.zip", ARCHIVE))
    assert where(entry, held) == "download"
    assert same(table(entry, held))
    assert where(entry, held) == "cache"
    assert same(table(entry, held))
    assert server.asked["/tiny.zip"] == 1
    other = TINY.assign(a=TINY["a"] + 1)
    other.to_parquet(held.folder / "tiny.parquet")
    assert where(entry, held) == "folder"
    assert same(table(entry, held), other)


def test_load_gives_the_dataset_and_the_papers_columns(server, monkeypatch):
    url = server.url("tiny.zip", ARCHIVE)
    monkeypatch.setitem(ENTRIES, "tiny", tiny(url, not_in_paper=("b",)))
    with pytest.raises(
        DatasetUnavailable, match=r"neither in PEERBAYES_DATA nor in the cache.*import tiny FILE"
    ):
        load("tiny", download=False)
    told = []
    found = load("the tiny one", progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (len(ARCHIVE), len(ARCHIVE))
    assert list(found.frame) == ["a", "b"]
    assert found.rates == {"p": 0.25}
    assert (found.rows, found.columns, found.labels.name) == (40, 2, "out")
    assert list(load("tiny", paper=True).frame) == ["a"]


def test_a_wrong_file_in_the_folder_is_named(held):
    entry = tiny()
    TINY[:-1].to_parquet(held.folder / "tiny.parquet")
    with pytest.raises(
        DatasetMismatch, match=r"folder/tiny.parquet is not this dataset: 39 rows, expected 40"
    ):
        table(entry, held)
    (held.folder / "tiny.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DatasetDamaged, match=r"tiny.parquet cannot be read as .parquet"):
        table(entry, held)


def test_a_folder_that_is_none_is_a_mistake(monkeypatch):
    monkeypatch.setenv("PEERBAYES_DATA", "nowhere/at/all")
    with pytest.raises(DatasetError, match="PEERBAYES_DATA is 'nowhere/at/all'; expected a folder"):
        load("letter")


@pytest.mark.parametrize(
    ("platform", "environment", "folder"),
    [
        ("linux", {}, "~/.cache/peerbayes"),
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/peerbayes"),
        ("linux", {"XDG_CACHE_HOME": "not/absolute"}, "~/.cache/peerbayes"),
        ("linux", {"XDG_CACHE_HOME": "/x", "PEERBAYES_CACHE": "/mine"}, "/mine"),
        ("darwin", {}, "~/Library/Caches/peerbayes"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/peerbayes/Cache"),
        ("win32", {"PEERBAYES_CACHE": "/mine", "LOCALAPPDATA": "/local"}, "/mine"),
    ],
)
def test_the_cache_lies_where_the_system_wants_it(platform, environment, folder, monkeypatch):
    system = {"linux": Unix, "darwin": MacOS, "win32": Windows}[platform]
    monkeypatch.setattr("platformdirs.PlatformDirs", system)
    monkeypatch.setattr("platformdirs.windows.get_win_folder", get_win_folder_from_env_vars)  # on any system
    for name in ("XDG_CACHE_HOME", "PEERBAYES_CACHE", "PEERBAYES_DATA", "WIN_PD_OVERRIDE_LOCAL_APPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert places() == Places(None, Path(folder).expanduser())


def test_no_folder_is_no_folder(monkeypatch):
    monkeypatch.setenv("PEERBAYES_DATA", "")
    monkeypatch.setenv("PEERBAYES_CACHE", "/mine")
    assert places() == Places(None, Path("/mine"))


# Downloads


def test_a_download_is_kept_as_parquet_with_its_record(server, held):
    url = server.url("tiny.zip", ARCHIVE)
    assert same(fetch(tiny(url, hashlib.sha256(TEXT).hexdigest()), held))
    assert cached(held) == ["tiny.parquet", "tiny.parquet.json"]
    record = json.loads(record_of(held.cache / "tiny.parquet").read_text())
    assert record == {
        "sha256": hashlib.sha256((held.cache / "tiny.parquet").read_bytes()).hexdigest(),
        "source": url,
        "origin_sha256": hashlib.sha256(TEXT).hexdigest(),
    }


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (404, DownloadFailed, "the server answered 404"),
        (503, DownloadFailed, r"the server answered 503.*tried 3 times"),
        (truncated, DownloadFailed, r"the connection ended after [\d,]+ of [\d,]+ bytes \(tried 3 times\)"),
        (endless, DownloadFailed, "sends more than the expected maximum of 67,108,864 bytes"),
        (
            lambda handler: handler.head(10**12),
            DownloadFailed,
            "has 1,000,000,000,000 bytes; expected at most",
        ),
        (b"<html>moved</html>", DatasetDamaged, "cannot be unpacked: File is not a zip file"),
        (zipped(other_dot_csv=TEXT), DatasetDamaged, "it holds other.csv; expected tiny.csv"),
        (
            zipped(tiny_dot_csv=TEXT.replace(b"x", b"q")),
            DatasetDamaged,
            "is not the published one: its sha256 is",
        ),
    ],
    ids=["404", "503", "truncated", "endless", "too large", "no archive", "no table", "altered"],
)
def test_a_failed_download_leaves_nothing_and_says_what_to_do(server, held, answer, error, message):
    entry = tiny(server.url("tiny.zip", answer), hashlib.sha256(TEXT).hexdigest())
    with pytest.raises(error, match=message) as raised:
        fetch(entry, held)
    assert "`peerbayes datasets import tiny FILE`" in str(raised.value)
    assert cached(held) == []
    assert where(entry, held) == "download"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (TINY[:-4], r"36 rows, expected 40"),
        (TINY.drop(columns="b"), r"has 2 columns, expected 3 \(2 and the label 'out'\): it lacks 'b'"),
        (TINY.assign(c=1), r"has 4 columns, expected 3 .*it also has 'c'"),
        (TINY.assign(a="much"), r"text in 'a', expected numbers"),
        (TINY.assign(b=3), r"numbers in 'b', expected text"),
        (TINY.assign(a=TINY["a"].where(TINY["a"] > 0)), r"1 missing values, expected none"),
        (TINY.assign(out=["p", "n"] * 20), r"50.00% of the labels are 'p', expected 25.00%"),
        (TINY.assign(out="p"), r"1 classes, expected 2"),
        (TINY.assign(out=TINY["out"].where(TINY["a"] > 0)), r"1 rows without a label, expected none"),
    ],
)
def test_a_table_of_another_shape_is_refused(server, held, wrong, message):
    entry = tiny(server.url("tiny.zip", zipped(tiny_dot_csv=wrong.to_csv(index=False))))
    with pytest.raises(DatasetMismatch, match=message):
        fetch(entry, held)
    assert cached(held) == []


def test_balanced_classes_and_largest_values_are_checked(held):
    entry = tiny(expected=dataclasses.replace(EXPECTED, rates="balanced", largest=4))
    TINY.to_parquet(held.folder / "tiny.parquet")
    with pytest.raises(
        DatasetMismatch, match=r"values up to 4.875, expected at most 4; .*expected balanced classes"
    ):
        table(entry, held)


def test_a_fault_that_passes_is_tried_again(server, held):
    def at_last(handler):
        if handler.server.asked[handler.path] < 3:
            handler.send_error(503)
        else:
            handler.head(None)  # no length: the end of the connection is the end of the file
            handler.wfile.write(ARCHIVE)

    assert same(fetch(tiny(server.url("tiny.zip", at_last)), held))
    assert server.asked["/tiny.zip"] == 3


def test_what_stays_wrong_is_asked_once(server, held):
    with pytest.raises(DownloadFailed):
        fetch(tiny(server.url("tiny.zip", 404)), held)
    assert server.asked["/tiny.zip"] == 1


def test_offline_says_what_to_do(held):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/tiny.zip"
    with pytest.raises(DownloadFailed, match=r"no connection to 127.0.0.1: .*refused") as raised:
        table(tiny(url), held)
    for help_ in ("https://example.org/tiny", "`peerbayes datasets import tiny FILE`", "PEERBAYES_DATA"):
        assert help_ in str(raised.value)
    assert cached(held) == []


def test_an_interrupted_download_leaves_nothing(server, held):
    def interrupt(done, total):
        assert 0 < done <= total
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(tiny(server.url("tiny.zip", ARCHIVE)), held, interrupt)
    assert cached(held) == []


@pytest.mark.skipif(os.name != "posix", reason="kills a process")
def test_a_killed_download_leaves_nothing(server, held):
    url = server.url("tiny.zip", stalled)
    code = textwrap.dedent(
        f"""
        import sys
        from pathlib import Path
        sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        from peerbayes.data.datasets import fetch
        from peerbayes.data.datasets.storage import Places
        from shared.dataset_server import tiny
        fetch(tiny({url!r}), Places(None, Path({str(held.cache)!r})), lambda done, total: print(done, flush=True))
        """
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert int(process.stdout.readline()) > 0
        process.kill()
    assert held.cache.is_dir()
    assert cached(held) == []


def test_only_https_and_this_machine():
    for url in ("https://example.org/x", "http://127.0.0.1:1/x", "http://localhost/x", "http://[::1]/x"):
        assert allowed(url)
    for url in (
        "http://example.org/x",
        "ftp://example.org/x",
        "file:///etc/passwd",
        "http://127.0.0.1.example.org/x",
    ):
        assert not allowed(url)


def test_nothing_is_fetched_in_the_clear(server, held):
    with pytest.raises(DownloadFailed, match=r"http://example.org/x is not https"):
        fetch(tiny("http://example.org/x"), held)
    url = server.url("moved", lambda handler: handler.head(0, 302, Location="http://example.org/x"))
    with pytest.raises(DownloadFailed, match=r"redirects to http://example.org/x, which is not https"):
        fetch(tiny(url), held)
    with pytest.raises(DownloadFailed, match="file:///etc/passwd"):
        fetch(
            tiny(server.url("local", lambda handler: handler.head(0, 302, Location="file:///etc/passwd"))),
            held,
        )


def test_a_redirect_on_this_machine_is_followed(server, held):
    server.url("tiny.zip", ARCHIVE)
    assert same(
        fetch(tiny(server.url("moved", lambda handler: handler.head(0, 302, Location="/tiny.zip"))), held)
    )


def test_two_at_once_do_not_disturb_each_other(server, held):
    entry = tiny(server.url("tiny.zip", ARCHIVE))
    with ThreadPoolExecutor(8) as pool:
        assert all(map(same, pool.map(lambda _: fetch(entry, held), range(16))))
    assert cached(held) == ["tiny.parquet", "tiny.parquet.json"]
    assert same(table(entry, held))


def test_a_cache_that_cannot_be_written_is_named(server, held, tmp_path):
    held.cache.write_text("a file, where a folder should be")
    with pytest.raises(DatasetError, match=r"cache cannot be written: .*Set PEERBAYES_CACHE"):
        fetch(tiny(server.url("tiny.zip", ARCHIVE)), held)
    (tmp_path / "a.csv").write_bytes(TEXT)
    with pytest.raises(DatasetError, match=r"cache cannot be written: .*Set PEERBAYES_CACHE"):
        take(tiny(), held, tmp_path / "a.csv")


def test_parquet_without_pyarrow_says_what_to_install(server, held, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DatasetError, match=r"pip install 'peerbayes\[data\]'"):
        fetch(tiny(server.url("tiny.zip", ARCHIVE)), held)
    assert not server.asked


# The cache


def test_an_altered_file_of_the_cache_is_found(server, held):
    entry = tiny(server.url("tiny.zip", ARCHIVE))
    fetch(entry, held)
    TINY.assign(a=0.0).to_parquet(held.cache / "tiny.parquet")
    with pytest.raises(DatasetDamaged, match=r"was altered: its sha256 is .*datasets fetch tiny --again`"):
        table(entry, held)
    assert same(fetch(entry, held))
    assert same(table(entry, held))


def test_a_file_without_a_record_is_not_used(held):
    held.cache.mkdir()
    TINY.to_parquet(held.cache / "tiny.parquet")
    with pytest.raises(DatasetDamaged, match=r"no record of its digest.*datasets import tiny FILE`"):
        table(tiny(), held)
    record_of(held.cache / "tiny.parquet").write_text("[")
    with pytest.raises(DatasetDamaged, match="cannot be read"):
        table(tiny(), held)


def test_trust_on_first_use(server, held):
    """Without a known digest the first download is believed, and a later one must be the same table."""
    entry = tiny(server.url("tiny.zip", ARCHIVE))
    fetch(entry, held)
    server.url("tiny.zip", zipped(packed_anew__tiny_dot_csv=TEXT))
    assert same(fetch(entry, held))
    changed = TINY.assign(a=TINY["a"] + 1)
    server.url("tiny.zip", zipped(tiny_dot_csv=changed.to_csv(index=False)))
    with pytest.raises(DatasetDamaged, match=r"has changed since the first download.*remove .*parquet.json"):
        fetch(entry, held)
    assert same(table(entry, held))
    record_of(held.cache / "tiny.parquet").unlink()
    assert same(fetch(entry, held), changed)


# Imports


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", TEXT),
        ("windows.csv", b"\xef\xbb\xbf" + TEXT.replace(b"\n", b"\r\n")),
        ("semicolons.csv", TINY.to_csv(index=False, sep=";").encode()),
        ("numbered.csv", TINY.to_csv().encode()),
        ("shuffled.csv", TINY[["out", "b", "a"]].assign(ID=7).to_csv(index=False).encode()),
        ("A.CSV", TEXT),
        ("the publishers.zip", ARCHIVE),
    ],
)
def test_a_file_is_imported(held, tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    entry = tiny("https://example.org/tiny.zip", ignored=("ID",))
    assert same(take(entry, held, tmp_path / name))
    assert same(table(entry, held))
    assert cached(held) == ["tiny.parquet", "tiny.parquet.json"]


def test_a_parquet_file_with_a_label_of_its_own_is_imported(held, tmp_path):
    TINY.rename(columns={"out": "result"}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(DatasetMismatch, match="lacks 'out' and also has 'result'"):
        take(tiny(), held, tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="has no column 'results'; it has a, b, result"):
        take(tiny(), held, tmp_path / "a.parquet", label="results")
    assert same(take(tiny(), held, tmp_path / "a.parquet", label="result"))


def test_a_refused_import_leaves_the_old_file(held, tmp_path):
    (tmp_path / "a.csv").write_bytes(TEXT)
    take(tiny(), held, tmp_path / "a.csv")
    (tmp_path / "a.csv").write_bytes(TEXT[:-30])
    with pytest.raises(DatasetMismatch, match="rows, expected 40"):
        take(tiny(), held, tmp_path / "a.csv")
    assert same(table(tiny(), held))


def test_what_cannot_be_imported_is_said(held, tmp_path):
    (tmp_path / "a.xls").write_bytes(b"")
    with pytest.raises(ValueError, match=r"ends in '.xls'; expected .parquet, .npz, .csv"):
        take(tiny(), held, tmp_path / "a.xls")
    with pytest.raises(ValueError, match="iris comes with scikit-learn"):
        take(ENTRIES["iris"], held, tmp_path / "a.xls")


IMAGES = tiny(
    file="tiny.npz",
    expected=Expected(40, ("f0", "f1", "f2"), "y", 2, "balanced"),
    by_hand="make the features",
)


@pytest.mark.parametrize(
    ("kept", "given"), [("float32", "float16"), ("float32", "float32"), ("float64", "float64")]
)
def test_features_of_images_are_widened(held, tmp_path, kept, given):
    features = np.random.default_rng(0).normal(size=(40, 3)).astype(given)
    np.savez(tmp_path / "a.npz", X=features, y=np.arange(40, dtype=np.int8) % 2, src=np.arange(40))
    take(IMAGES, held, tmp_path / "a.npz")
    found = table(IMAGES, held)
    assert list(found) == ["f0", "f1", "f2", "y"]
    assert set(found.dtypes[:3].astype(str)) == {kept}
    np.testing.assert_array_equal(found.iloc[:, :3].to_numpy(), features)
    assert found["y"].tolist() == [0, 1] * 20


def test_pickles_are_never_opened(held, tmp_path):
    features = np.zeros((40, 3), dtype=object)
    np.savez(tmp_path / "a.npz", X=features, y=np.arange(40) % 2)
    with pytest.raises(DatasetDamaged, match="Object arrays cannot be loaded"):
        take(IMAGES, held, tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", X=np.zeros(40), y=np.arange(40) % 2)
    with pytest.raises(DatasetDamaged, match=r"expected floats \[n, D\] and \[n\]"):
        take(IMAGES, held, tmp_path / "a.npz")


@pytest.mark.parametrize("name", ["soft", "smoking", "smartgrid", "mnist", "yearbook"])
def test_what_has_no_download_says_where_to_get_it(name, held):
    with pytest.raises(
        DatasetUnavailable, match=f"cannot be downloaded.*`peerbayes datasets import {name} FILE`"
    ) as e:
        load(name)
    assert ENTRIES[name].source in str(e.value)


# The publishers' formats


def test_digests_do_not_depend_on_line_ends():
    origin = Origin(
        "", delimited(","), (Member(("inner.zip", "tiny.csv"), hashlib.sha256(TEXT).hexdigest()),)
    )
    inner = zipped(any__folder__tiny_dot_csv=TEXT.replace(b"\n", b"\r\n"))
    frame, digest = unpack(origin, io.BytesIO(zipped(inner_dot_zip=inner)), "a test")
    assert same(frame)
    assert digest == hashlib.sha256(TEXT).hexdigest()


def test_the_census_has_two_files():
    first, second = b"39, ?, <=50K\n50, Private, >50K\n\n", b"|1x3 Cross validator\n25, Private, <=50K.\n\n"
    frame = census(("age", "work", "income"))([first, second])
    assert frame.to_dict("list") == {
        "age": [39, 50, 25], "work": ["?", "Private", "Private"], "income": ["<=50K", ">50K", "<=50K"]
    }  # fmt: skip


def test_openml_writes_whole_numbers_as_floats_and_labels_as_text():
    frame = pd.DataFrame({"x1": [1.0, 2.0], "x2": [0.5, 1.0], "y": pd.Categorical(["0", "1"])})
    found = openml(("one", "half", "label"))([frame.to_parquet()])
    assert found.dtypes.astype(str).to_dict() == {"one": "int64", "half": "float64", "label": "int64"}


def test_lost_decimal_points_are_put_back():
    frame = pd.DataFrame({"gyro_x": [0.9999, -29.296, 112.662], "activity": pd.Categorical(["0", "1", "1"])})
    assert repaired([frame.to_parquet()])["gyro_x"].tolist() == [0.9999, -2.9296, 11.2662]


# The real files


@pytest.mark.parametrize("name", [*PAPER, "run-as-found"])
def test_the_papers_datasets_load_from_the_folder(name, paper_data, monkeypatch):
    monkeypatch.setenv("PEERBAYES_DATA", str(paper_data))
    found = load(name, paper=True, download=False)
    assert found.columns == PAPER_COLUMNS.get(name, 6)
    assert load(name, download=False).columns == len(ENTRIES[name].expected.columns)
    assert found.frame.index.equals(found.labels.index)


def test_the_two_copies_of_run_or_walk_are_told_apart(paper_data, held):
    found = paper_data / "run_or_walk_openml_asfound.parquet"
    with pytest.raises(DatasetMismatch, match=r"values up to 112.662, expected at most 11.3"):
        take(ENTRIES["run"], held, found)
    same(repaired([found.read_bytes()]), pd.read_parquet(paper_data / "run_or_walk.parquet"))


def as_published(name, frame):
    """A dataset as its publisher writes it."""
    quoted = frame.map(lambda value: f'"{value}"' if isinstance(value, str) else str(value))
    head = '"' + '";"'.join(frame.columns) + '"\n'
    if name == "letter":
        return zipped(
            **{
                "letter-recognition_dot_data": frame.iloc[:, [16, *range(16)]].to_csv(
                    index=False, header=False
                )
            }
        )
    if name == "skin":
        return zipped(Skin_NonSkin_dot_txt=frame.to_csv(index=False, header=False, sep="\t"))
    if name == "pulsar":
        return zipped(HTRU_2_dot_csv=frame.to_csv(index=False, header=False))
    if name == "bank":
        text = head + "".join(";".join(row) + "\n" for row in quoted.itertuples(index=False))
        return zipped(bank_dot_zip=zipped(**{"bank-full_dot_csv": text}))
    if name == "secondary":
        text = frame.iloc[:, [20, *range(20)]].to_csv(index=False, sep=";", lineterminator="\r\n")
        return zipped(MushroomDataset_dot_zip=zipped(MushroomDataset__secondary_data_dot_csv=text))
    if name == "adult":
        lines = [", ".join(map(str, row)) for row in frame.itertuples(index=False)]
        first = "".join(f"{line}\n" for line in lines[:32561]) + "\n"
        second = "|1x3 Cross validator\n" + "".join(f"{line}.\n" for line in lines[32561:]) + "\n"
        return zipped(adult_dot_data=first, adult_dot_test=second)
    frame = frame.astype({frame.columns[-1]: str}).astype({frame.columns[-1]: "category"})
    return (
        frame.set_axis([f"x{at}" for at in range(24)], axis=1).to_parquet()
        if name == "default"
        else frame.to_parquet()
    )


@pytest.mark.parametrize("name", [name for name, entry in ENTRIES.items() if entry.origin is not None])
@pytest.mark.long
def test_the_publishers_formats_give_the_same_tables(name, paper_data, server, held):
    """Our copies, written out as UCI and OpenML do, match the known digests and come back as they were."""
    entry = ENTRIES[name]
    expected = pd.read_parquet(paper_data / entry.file)
    published = pd.read_parquet(paper_data / ENTRIES["run-as-found"].file) if name == "run" else expected
    url = server.url("file", as_published(name, published))
    found = fetch(dataclasses.replace(entry, origin=dataclasses.replace(entry.origin, url=url)), held)
    assert_frame_equal(found, expected)
