"""Versions of a peer's model: recorded at the end of a run, chosen again, and never half-written."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time

import networkx as nx
import pytest

import peerbayes as pb
from peerbayes.errors import ModelFileDamaged, ModelFileError
from peerbayes.peer.agreement.terms import Terms
from peerbayes.peer.models.history import DRAFT, MODEL, History
from shared.commands import HANG, peerbayes
from shared.peers_in_memory import peers_of, shared_out

FACTS = {"network": "test", "rounds": 3, "data": "d", "terms": "t"}


@pytest.fixture(scope="module")
def models():
    """Bytes of two models."""
    X = [[0.0], [1.0], [0.1], [0.9]]
    first = pb.MixedNB().fit(X, [0, 1, 0, 1]).statistics_.to_bytes()
    second = pb.MixedNB().fit(X, [0, 1, 1, 0]).statistics_.to_bytes()
    return first, second


def history_of(folder, models):
    history = History(folder)
    for number, content in enumerate(models, start=1):
        (folder / MODEL).write_bytes(content)
        assert history.record(run=f"{number}" * 64, **FACTS).number == number
    return history


def test_a_run_that_ends_is_one_version(tmp_path, rng):
    """Every peer has one, of its own model and rows; a peer that starts again after the end adds none."""
    terms = Terms("test", "label", rounds=3)
    shared = shared_out(rng)
    for _ in range(2):
        peers = peers_of(tmp_path, terms, nx.path_graph(5), shared)
        asyncio.run(peers.all())
        for name in peers.names:
            (version,) = History(tmp_path / name).versions()
            assert version.run == peers.roster.run and version.rounds == 3 and version.number == 1
            assert Terms.parse(version.terms, "here") == terms
            assert version.verdict["good"] == peers.nodes[name].verdict.good
            assert History(tmp_path / name).content(1) == (tmp_path / name / MODEL).read_bytes()
            assert ("version", {"number": 1}) in peers.told[name]
    assert len({History(tmp_path / name).version(1).data for name in peers.names}) == 5


def test_use_and_back_change_what_applications_read(tmp_path, models):
    history = history_of(tmp_path, models)
    assert history.in_use() == 2 and history.numbers() == [1, 2]
    assert history.back().number == 1 and (tmp_path / MODEL).read_bytes() == models[0]
    with pytest.raises(ModelFileError, match="no version before 1 has another model"):
        history.back()
    assert history.use(2).number == 2 and history.in_use() == 2
    with pytest.raises(ModelFileError, match=r"no version 7 .* there are 1, 2"):
        history.use(7)
    (tmp_path / MODEL).write_bytes(b"a model in the middle of a run")
    assert history.in_use() is None
    with pytest.raises(ModelFileError, match="no recorded version"):
        history.back()


def test_back_without_a_model_says_that_there_is_none(tmp_path, models):
    with pytest.raises(ModelFileError, match=r"no model in .* yet, so none .*; a run that ends makes one"):
        History(tmp_path).back()
    history = history_of(tmp_path, models)
    (tmp_path / MODEL).unlink()
    with pytest.raises(ModelFileError, match=r"no model in .*; choose a version with `peerbayes model use`"):
        history.back()


def test_a_damaged_version_is_never_used(tmp_path, models):
    history = history_of(tmp_path, models)
    history.path(1).write_bytes(models[0][:-1])
    with pytest.raises(ModelFileDamaged, match="not the model that was recorded as version 1"):
        history.use(1)
    assert (tmp_path / MODEL).read_bytes() == models[1]
    (tmp_path / "models" / "2" / "version.json").write_text("{")
    with pytest.raises(ModelFileDamaged, match="cannot be read"):
        history.version(2)


def test_a_damaged_version_is_in_nobodys_way(tmp_path, models):
    """A run that ends is recorded, the others are listed and used; the damaged one is named."""
    history = history_of(tmp_path, models)
    (tmp_path / "models" / "1" / "version.json").write_text("{")
    (tmp_path / "models" / "7").mkdir()
    assert history.in_use() == 2 and [version.number for version in history.versions()] == [2]
    assert history.record(run="n" * 64, **FACTS).number == 8
    listed = command(tmp_path, "list")
    assert listed.returncode == 0 and "version 1 cannot be read" in listed.stdout
    assert "version 7 cannot be read" in listed.stdout
    shown = command(tmp_path, "show", "1")
    assert shown.returncode == 2 and "restore it from a backup" in shown.stderr


def test_back_goes_to_another_model_and_not_to_a_copy_of_the_same(tmp_path, models):
    history = history_of(tmp_path, models)
    (tmp_path / MODEL).write_bytes(models[1])
    assert history.record(run="3" * 64, **FACTS).number == 3
    assert history.in_use() == 3
    assert history.back().number == 1 and (tmp_path / MODEL).read_bytes() == models[0]


CHANGES = """
import itertools
import os
import sys
from pathlib import Path
from peerbayes.peer.models.history import MODEL, History
home = Path(sys.argv[1])
history = History(home)
print("ready", flush=True)
for count in itertools.count():
    history.use(1 + count % 2)
    history.record(run=f"{os.getpid()} {count}", network="test", rounds=1, data="d", terms="t")
"""


def test_killed_while_the_model_changes_leaves_a_whole_file(tmp_path, models):
    """A process that changes the model and records versions is killed with SIGKILL, again and again, anywhere.

    An application that reads the file meanwhile has a whole model each time.
    """
    history = history_of(tmp_path, models)
    read = set()
    for moment in range(12):
        process = subprocess.Popen(
            [sys.executable, "-c", CHANGES, str(tmp_path)], stdout=subprocess.PIPE, env=os.environ
        )
        assert process.stdout.readline() == b"ready\n"
        before = len(history.numbers())
        end = time.monotonic() + HANG
        while len(history.numbers()) < before + 2 + moment:  # the kill falls anywhere in what follows
            assert time.monotonic() < end
            assert process.poll() is None
            read.add((tmp_path / MODEL).read_bytes())
            threading.Event().wait(0.001 * (1 + moment % 3))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        assert (tmp_path / MODEL).read_bytes() in models
        assert pb.load(tmp_path / MODEL).classes_.tolist() == [0, 1]
        for number in history.numbers():
            assert history.content(number) in models
        assert history.numbers() == list(range(1, len(history.numbers()) + 1))
    assert read == set(models)
    (tmp_path / "models" / f"{DRAFT}1").mkdir()
    (tmp_path / MODEL).write_bytes(models[0])
    history.record(run="t" * 64, **FACTS)
    assert not list((tmp_path / "models").glob(f"{DRAFT}*"))


def command(folder, *words):
    """Run `peerbayes model` as a process."""
    call = [sys.executable, "-m", "peerbayes", "model", *words, "--folder", str(folder)]
    return subprocess.run(call, capture_output=True, text=True, timeout=120, check=False)


def test_commands_list_show_use_and_go_back(tmp_path, models):
    history_of(tmp_path, models)
    listed = json.loads(command(tmp_path, "list", "--format", "json").stdout)
    assert [(version["number"], version["in_use"]) for version in listed] == [(1, False), (2, True)]
    back = command(tmp_path, "back")
    assert back.returncode == 0 and "is version 1 now" in back.stdout
    assert (tmp_path / MODEL).read_bytes() == models[0]
    shown = json.loads(command(tmp_path, "show", "1", "--format", "json").stdout)
    assert shown["in_use"] and shown["run"] == "1" * 64
    text = command(tmp_path, "show", "1").stdout
    assert "in use" in text and "1" * 64 in text and "card.md and card.html" in text
    (tmp_path / MODEL).write_bytes(b"a model in the middle of a run")
    assert "is none of them" in command(tmp_path, "list").stdout
    missing = command(tmp_path, "use", "9")
    assert missing.returncode == 2 and "there is no version 9" in missing.stderr
    assert command(tmp_path, "use", "0").returncode == 2


def test_models_change_while_a_site_serves_but_not_while_a_run_writes_over_them(tmp_path, models):
    pytest.importorskip("cryptography")
    from peerbayes.peer.state.disk import lock
    from peerbayes.peer.state.folder import Home

    history_of(tmp_path, models)
    with lock(Home(tmp_path)) as held:
        for phase in ("starting", "rounds", "staying for its neighbours", "waiting for disk space"):
            held.tell(phase)
            for words in (("use", "1"), ("back",)):
                refused = peerbayes("model", *words, "--folder", tmp_path, code=2)
                assert f"runs ({phase}) and would write its own model over this one" in refused.stderr
            assert (tmp_path / MODEL).read_bytes() == models[1]
        held.tell("serving: run 2 (rounds)")
        assert "version 1 now" in peerbayes("model", "back", "--folder", tmp_path, code=0).stdout
        assert "version 2 now" in peerbayes("model", "use", 2, "--folder", tmp_path, code=0).stdout


def test_the_first_run_of_a_site_is_not_taken_for_a_later_one(tmp_path):
    """From the moment that it is started, before anything of it is prepared."""
    pytest.importorskip("cryptography")
    from peerbayes.peer.site import Site
    from peerbayes.peer.state.disk import lock, phase
    from shared.runs_of_folders import Folders

    folders = Folders(tmp_path)
    home = folders.network.homes["peer-1"]

    async def begin(held, number):
        held.tell("serving")
        site = Site(home, process_lock=held)
        site._run = lambda entry: asyncio.sleep(0)
        site._ended = lambda number: None
        site._start(folders.runs["peer-1"].entry(number))
        return phase(home)

    with lock(home) as held:
        assert asyncio.run(begin(held, 1)) == "starting"
        folders.runs["peer-1"].propose()
        assert asyncio.run(begin(held, 2)) == "serving"


def test_a_site_says_that_its_first_run_writes_the_model_and_a_later_one_does_not(tmp_path):
    """What the commands go by, at every moment of both runs; and its versions say who approved which, and how."""
    pytest.importorskip("cryptography")
    from peerbayes.peer.loopback import Loopback
    from peerbayes.peer.state.disk import phase
    from shared.runs_of_folders import some_rows, terms_of
    from shared.served_sites import agreed_run, outcome, served

    terms = terms_of(rounds=40, features={"a": "continuous", "b": "continuous"})
    homes = [*Loopback.create(tmp_path, terms, [some_rows(1), some_rows(2)], ((0, 1),)).homes.values()]
    (homes[1].folder / "consent.toml").write_text('label = "y"\ncolumns = ["a", "b"]\n')
    phases = {1: [], 2: []}

    def at_work(number):
        if homes[0].of_run(number).model_path.exists() and not outcome(homes[0], number):
            phases[number].append(phase(homes[0]))
        return all(outcome(home, number) for home in homes)

    served(homes, lambda: at_work(1))
    assert phases[1] and not any(each.startswith("serving") for each in phases[1]), phases[1]
    agreed_run(homes[:1])
    served(homes, lambda: at_work(2))
    assert phases[2] and all(each.startswith("serving") for each in phases[2]), phases[2]
    first, second = History(homes[0].folder).versions()
    assert first.approvals == () and first.approved == ("peer-1", "peer-2")
    said = [(each["name"], each["by"]) for each in second.approvals]
    assert said == [("peer-1", "owner"), ("peer-2", "standing consent")]
    assert all(abs(each["at"] - time.time()) < HANG for each in second.approvals)
    text = (homes[0].folder / "models" / "2" / "card.md").read_text()
    assert "| peer-2 |" in text and "| standing consent |" in text
