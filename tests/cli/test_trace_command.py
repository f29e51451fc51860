"""`peerbayes peer trace`: what peers have missed, from one folder or several, replayed by simulations."""

import json

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("cryptography")

from typer.testing import CliRunner

from peerbayes.cli.app import app
from peerbayes.network import LossTrace
from peerbayes.peer.agreement.terms import Terms
from peerbayes.peer.loopback import Loopback
from peerbayes.peer.missed_messages import missed_messages
from peerbayes.peer.state.store import RoundRecord, Store

ROUNDS = 5
ROWS = pd.DataFrame({"a": [1.0, 2.0], "label": ["x", "y"]})
MISSED = {"peer-1": {2: ["peer-3"], 4: ["peer-2", "peer-3"]}, "peer-2": {1: ["peer-1"]}, "peer-3": {}}
TRACE = LossTrace([(2, 2, 0), (4, 1, 0), (4, 2, 0), (1, 0, 1)])


def stored(home, missed, rounds=ROUNDS):
    """Write a state with this history, as a run leaves it."""
    store = Store(home.state_path)
    for turn in range(rounds + 1):
        store.add_round(RoundRecord(turn, np.zeros(2), missing=missed.get(turn, ())))
    store.close()


def network_in(folder, name="net", missed=MISSED, rounds=()):
    folder.mkdir(exist_ok=True)
    made = Loopback.create(folder, Terms(name, "label"), [ROWS] * 3, [(0, 1), (1, 2), (0, 2)])
    for peer, home in made.homes.items():
        stored(home, missed[peer], dict(rounds).get(peer, ROUNDS))
    return made


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    return network_in(tmp_path_factory.mktemp("network"))


def trace(out, *homes):
    done = CliRunner().invoke(
        app, ["peer", "trace", *(str(home.folder) for home in homes), "--out", str(out)]
    )
    return done.exit_code, " ".join(done.output.split())


def test_folders_of_all_peers_give_the_trace_by_the_rosters_numbers(network, tmp_path):
    out = tmp_path / "lost.csv"
    code, output = trace(out, *network.homes.values())
    assert code == 0 and LossTrace.load(out) == TRACE and "Wrote 4 lost messages" in output
    assert "Not read" not in output and "ended" not in output
    assert out.read_text().splitlines()[:2] == [
        "round,sender,receiver,sender_name,receiver_name",
        "1,0,1,peer-1,peer-2",
    ]
    backwards = missed_messages(reversed(network.homes.values()))
    assert backwards.trace == TRACE and backwards.names == ("peer-1", "peer-2", "peer-3")


def test_each_operator_writes_a_file_and_a_simulation_replays_them_together(network, tmp_path):
    paths = []
    for name, home in network.homes.items():
        paths.append(str(tmp_path / f"{name}.csv"))
        code, output = trace(paths[-1], home)
        others = ", ".join(other for other in network.homes if other != name)
        assert code == 0 and f"Not read: what {others} missed" in output
    assert LossTrace.load(*paths) == TRACE and len(LossTrace.load(paths[0])) == 3
    run = tmp_path / "run.toml"
    run.write_text(
        '[data]\nname = "wine"\n[simulation]\npeers = 3\ntopology = "ring"\nrounds = 5\nrows_per_peer = 20\n'
        f"message_loss = {json.dumps(paths)}\n"
    )
    done = CliRunner().invoke(app, ["simulate", str(run), "--format", "json"])
    assert done.exit_code == 0
    assert json.loads(done.output)["configuration"]["message_loss"] == str(TRACE)


def test_a_peer_that_ended_early_is_said_to_be_away(tmp_path):
    made = network_in(tmp_path / "early", rounds={"peer-3": 2}.items())
    code, output = trace(tmp_path / "lost.csv", *made.homes.values())
    assert code == 0
    assert (
        'peer-3 ended after round 2: replay it with the fault { kind = "away", peers = [2], first = 3 }'
        in output
    )


def test_folders_that_do_not_go_together_are_refused(network, tmp_path):
    first, second, _ = network.homes.values()
    other = network_in(tmp_path / "other", "another")
    out = tmp_path / "lost.csv"
    for homes, expected, words in (
        (
            (first, other.homes["peer-2"]),
            1,
            "of another with 3 members, the first folder's network is net with 3",
        ),
        ((first, second, first), 1, "is the folder of peer-1, as another one is"),
    ):
        code, output = trace(out, *homes)
        assert code == expected and words in output and not out.exists()
    home = Loopback.create(tmp_path / "fresh", Terms("net", "label"), [ROWS] * 3, [(0, 1), (1, 2)]).homes[
        "peer-1"
    ]
    code, output = trace(out, home)
    assert code == 1 and "the peer has not run" in output and not out.exists()
    code, output = trace(tmp_path / "no" / "lost.csv", first)
    assert code == 1 and "No such file or directory" in output


def test_files_of_two_networks_are_refused(network, tmp_path):
    paths = tmp_path / "a.csv", tmp_path / "b.csv"
    LossTrace([(1, 0, 1)]).save(paths[0], ["anna", "bert"])
    LossTrace([(1, 1, 0)]).save(paths[1], ["bert", "anna"])
    with pytest.raises(
        ValueError, match=r"node 1 is 'bert' in .*a.csv and 'anna' in .*b.csv; expected files of one"
    ):
        LossTrace.load(*paths)
