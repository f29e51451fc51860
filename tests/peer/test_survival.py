"""Peers as processes: from nothing to models by the commands, and through kill -9, SIGTERM and torn files."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import networkx as nx
import numpy as np
import pytest
from sklearn.datasets import load_digits

import peerbayes as pb
from peerbayes.peer.agreement.terms import Limits, Terms
from peerbayes.peer.loopback import Loopback, free_ports
from peerbayes.peer.state.audit_log import entries
from peerbayes.peer.state.store import Store
from shared.commands import HANG, SOAK, peerbayes, peerbayes_process
from shared.kinds_of_links import relay
from shared.link_option import RELAYED, REVERSED
from shared.peer_processes import copied, finished, history

pytestmark = pytest.mark.links

TREE = nx.Graph([(0, 1), (1, 2), (1, 3), (3, 4)])
NAMES = [f"peer-{number + 1}" for number in range(5)]


@pytest.fixture(scope="module")
def digits():
    """Rows of five peers, and rows to test on."""
    X, y = load_digits(return_X_y=True, as_frame=True)
    order = np.random.default_rng(1).permutation(len(y))
    *parts, test = np.split(order, np.cumsum((70, 150, 40, 220, 120)))
    return X, y.to_numpy(), parts, test


def tables(digits):
    X, y, parts, _ = digits
    return [X.iloc[part].assign(digit=y[part]) for part in parts]


def simulated(digits, graph, rounds):
    X, y, parts, _ = digits
    parts = parts[: len(graph)]
    return pb.simulate(
        X, y, peers=len(parts), partition=parts, topology=graph, strategy="exact", rounds=rounds,
        references=False, evaluate_every=0, test=(X, y),
    )  # fmt: skip


def difference(models, run):
    """The largest between peers' model files and the simulator's statistics."""
    stats = [pb.load(path).statistics_.expressed(run.schema).values for path in models]
    expected = [run.statistics(place).values for place in range(len(stats))]
    return float(np.abs(np.stack(stats) - np.stack(expected)).max())


def readable(folder):
    """The round of a store that is opened as a peer would open it; everything in it is whole."""
    with contextlib.closing(Store(folder / "state.sqlite")) as store:
        rounds = [entry["round"] for entry in store.history()]
        assert rounds == list(range(len(rounds)))  # none lost, none twice
        if not rounds:
            return -1
        whole, state = store.last()  # its digests are checked
        followed = dict(store.inputs(whole))
        messages = [message for inputs in followed.values() for message in inputs.messages.values()]
        assert [whole, *followed] == list(range(whole, rounds[-1] + 1))
        assert all(np.isfinite(part).all() for part in (*flat(state), *messages))
        return rounds[-1]


def flat(nested):
    return [part for inner in nested for part in flat(inner)] if isinstance(nested, list) else [nested]


@pytest.fixture
def loopback(tmp_path, digits):
    """A network on this machine that is stopped at the end."""
    made = []

    def make(rounds, graph=TREE, deadline=600.0):
        terms = Terms("survival", "digit", rounds=rounds, limits=Limits(deadline=deadline), strategy="exact")
        rows = tables(digits)[: len(graph)]
        made.append(Loopback.create(tmp_path / "peers", terms, rows, list(graph.edges)))
        return made[-1]

    yield make
    for network in made:
        network.stop()


# --- the commands ----------------------------------------------------------------------------------------


@pytest.mark.long
def test_five_folders_that_share_nothing_but_the_network(tmp_path, digits):
    X, y, _, test = digits
    founder = tmp_path / "founder"
    founder.mkdir()
    peerbayes("network", "new", "net", "--name", "clinics", "--label", "digit", "--rounds", 24, "--peers", 5,
              "--strategy", "exact",
              cwd=founder, code=0)  # fmt: skip
    folders, links = {}, {name: [] for name in NAMES}
    for first, second in TREE.edges:
        links[NAMES[second]].append(NAMES[first])
    for name, table, port in zip(NAMES, tables(digits), free_ports(5), strict=True):
        folder = folders[name] = tmp_path / f"machine of {name}"
        folder.mkdir()
        table.to_csv(folder / "rows.csv", index=False)
        address = f"127.0.0.1:{port}"
        peerbayes(
            "peer",
            "request",
            "peer",
            "--name",
            name,
            "--address",
            address,
            "--data",
            "rows.csv",
            cwd=folder,
            code=0,
        )
        sent = shutil.copy(folder / "peer" / "peer.csr", founder / f"{name}.csr")
        to = ("--links", ",".join(links[name])) if links[name] else ()
        peerbayes("network", "invite", name, "--request", sent, "--address", address, "--network", "net", *to,
                  cwd=founder, code=0)  # fmt: skip
        shutil.copy(founder / f"{name}.invitation", folder)
        assert (
            f"{name} has roster version"
            in peerbayes("peer", "join", "peer", f"{name}.invitation", cwd=folder, code=0).stdout
        )
    for name, folder in folders.items():
        found = json.loads(peerbayes("peer", "check", "peer", "--format", "json", cwd=folder, code=0).stdout)
        assert {check["outcome"] for check in found if check["what"] in ("identity", "data", "port")} == {
            "ok"
        }
        assert name == NAMES[0] or any(check["what"].startswith("neighbour") for check in found)
    running = {
        name: subprocess.Popen([sys.executable, "-m", "peerbayes", "peer", "run", "peer"], cwd=folder,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for name, folder in folders.items()
    }  # fmt: skip
    try:
        for process in running.values():
            _, told = process.communicate(timeout=HANG)
            assert process.returncode == 0, told
            assert told.count("round 24/24: heard") == 1
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    run = simulated(digits, TREE, 24)
    assert difference([folder / "peer" / "model.peerbayes" for folder in folders.values()], run) <= 1e-9
    for place, folder in enumerate(folders.values()):
        told = json.loads(peerbayes("peer", "status", "peer", "--format", "json", cwd=folder, code=0).stdout)
        assert told["done"] and told["round"] == 24 and not told["running"] and not told["missing"]
        assert set(told["neighbours"]) == {NAMES[other] for other in TREE[place]}
        assert told["sent"]["messages"] == len(list(entries(folder / "peer" / "audit.jsonl")))
    X.iloc[test].to_csv(folder / "new.csv", index=False)
    told = peerbayes(
        "predict", "peer/model.peerbayes", "new.csv", "--format", "json", cwd=folder, code=0
    ).stdout
    assert (np.array([row["predicted"] for row in json.loads(told)]) == y[test]).mean() >= 0.9


@pytest.mark.long
def test_the_demo_equals_the_simulator(tmp_path):
    told = json.loads(
        peerbayes_process("demo", "--peers", 5, "--format", "json", cwd=tmp_path, code=0).stdout
    )
    assert (told["peers"], told["rounds"]) == (5, 64)
    assert told["largest_difference"] <= 1e-9
    assert list(told["errors"]) == NAMES and all(error < 0.15 for error in told["errors"].values())


# --- kill -9 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind_of_links", "kills", "peers"),
    [
        (None, 2, 3),
        pytest.param(None, 30 if SOAK else 6, 5, marks=pytest.mark.long),
        pytest.param(REVERSED, 2, 3, marks=pytest.mark.long),
        pytest.param(RELAYED, 2, 3, marks=pytest.mark.long),
    ],
    indirect=["kind_of_links"],
)
def test_kill_9_of_random_peers_at_random_moments(kind_of_links, kills, peers, loopback, digits, tmp_path):
    """And of the relay, where there is one."""
    rounds, rng = 64, np.random.default_rng(kills)
    graph, names = TREE.subgraph(range(peers)), NAMES[:peers]
    network = loopback(rounds, graph)
    for name in names:
        network.start(name)
    stored = dict.fromkeys(names, -1)
    for number, moment in enumerate(sorted(rng.integers(0, rounds - 4, kills))):
        name = str(rng.choice(names))
        home, began = network.homes[name], time.monotonic()
        while len(history(home)) <= moment:  # of the run; the peer may be starting up
            assert time.monotonic() < began + HANG and network.processes[name].poll() is None
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.05))  # of the round
        process = network.processes[name]
        process.kill()
        assert process.wait() == -signal.SIGKILL  # it was at work
        turn = readable(copied(home.folder, tmp_path / f"copy-{number}"))
        assert stored[name] <= turn < rounds
        stored[name] = turn
        network.start(name)
        if kind_of_links == RELAYED:
            relay().kill()
            relay().start()
    finished(network)
    for home in network.homes.values():
        assert readable(home.folder) == rounds
        assert not any(entry["missing"] for entry in history(home))
        said = {}
        for entry in entries(home.audit_path):  # its chain holds, and what was said again was the same
            assert said.setdefault((entry["to"], entry["what"]), entry["digest"]) == entry["digest"]
    run = simulated(digits, graph, rounds)
    assert difference([home.model_path for home in network.homes.values()], run) <= 1e-9


@pytest.mark.long
def test_files_of_a_running_peer_are_a_whole_round_at_any_moment(loopback, tmp_path):
    """A power cut can lose the end of the write-ahead log, no more: what is left must be an earlier round."""
    rng, network = np.random.default_rng(0), loopback(400)
    for name in NAMES:
        network.start(name)
    home, process, found = network.homes["peer-2"], network.processes["peer-2"], []
    while len(history(home)) < 2:
        assert process.poll() is None
        time.sleep(0.01)
    for number in range(25):
        time.sleep(rng.uniform(0, 0.1))
        process.send_signal(signal.SIGSTOP)
        whole = copied(home.folder, tmp_path / f"whole-{number}")
        process.send_signal(signal.SIGCONT)
        torn = shutil.copytree(whole, tmp_path / f"torn-{number}")
        (torn / "state.sqlite-shm").unlink(missing_ok=True)
        if (log := torn / "state.sqlite-wal").exists():
            os.truncate(log, rng.integers(0, log.stat().st_size + 1))
        found.append(readable(whole))
        assert readable(torn) <= found[-1]
    assert found == sorted(found) and found[0] < found[-1]
    finished(network)


# --- signals and locks -----------------------------------------------------------------------------------


@pytest.mark.long
def test_sigterm_ends_well_and_a_start_goes_on(loopback, digits):
    rounds, network = 64, loopback(64)
    for name in NAMES:
        network.start(name)
    reached = {}
    for name, moment in (("peer-1", 0), ("peer-4", 10), ("peer-2", 20), ("peer-2", 30), ("peer-5", 40)):
        home = network.homes[name]
        while len(history(home)) <= moment:
            assert network.processes[name].poll() is None
            time.sleep(0.005)
        network.processes[name].terminate()
        assert network.processes[name].wait(HANG) == 0
        stopped = re.findall(
            r"stopped after round (\d+); `run` continues from there", home.log_path.read_text()
        )
        turn = readable(home.folder)
        assert (
            stopped and turn - 1 <= int(stopped[-1]) <= turn
        )  # the last one may have been stored on the way out
        assert reached.get(name, 0) <= turn
        reached[name] = turn
        network.start(name)
    finished(network)
    for name, turn in reached.items():
        assert readable(network.homes[name].folder) == rounds
        assert f"going on after round {turn}" in network.homes[name].log_path.read_text()
    run = simulated(digits, TREE, rounds)
    assert difference([home.model_path for home in network.homes.values()], run) <= 1e-9


@pytest.mark.long
def test_only_one_process_works_on_a_folder(loopback):
    network = loopback(24)
    home, first = network.homes["peer-1"], network.start("peer-1")
    while not home.state_path.exists():
        assert first.poll() is None
        time.sleep(0.01)
    told = peerbayes_process("peer", "run", home.folder, code=2)
    assert "is in use: this peer is already running" in told.stderr
    assert first.poll() is None
    first.send_signal(signal.SIGINT)
    assert first.wait(HANG) == 130
    for name in NAMES:
        network.start(name)
    finished(network)
