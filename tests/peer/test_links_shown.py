"""Which way each link goes: what `check`, `status`, /metrics and the dashboard say of it, and whether it is true."""

import contextlib
import json
import time
from dataclasses import replace

import networkx as nx
import numpy as np
import pandas as pd
import pytest

pytest.importorskip("msgspec")
pytest.importorskip("prometheus_client")
from peerbayes.peer.agreement.terms import Limits, Terms
from peerbayes.peer.loopback import Loopback, free_ports
from peerbayes.peer.prometheus import Exported
from peerbayes.peer.state.disk import lock
from peerbayes.peer.state.links_file import links_of
from peerbayes.peer.status import member_status, status
from peerbayes.report.dashboard.peer_folder import PeerFolder
from shared.commands import HANG, peerbayes
from shared.kinds_of_links import relay, stop_relay
from shared.peers_in_memory import peers_of, shared_out

# peer-1 listens, peer-2 dials out, peer-3 waits at a relay; peer-4 is not started, so that the others wait for it.
LINKS = [(0, 1), (1, 2), (2, 3)]
EXPECTED = {
    "peer-1": {"peer-2": "reversed"},
    "peer-2": {"peer-1": "direct", "peer-3": "relayed"},
    "peer-3": {"peer-2": "relayed", "peer-4": "none"},
}
TERMS = Terms("kinds", "ill", rounds=5, strategy="exact", limits=Limits(deadline=600.0))


@pytest.fixture
def network(tmp_path):
    rng = np.random.default_rng(1)
    ill = rng.random(160) < 0.5
    rows = pd.DataFrame({"age": rng.normal(size=160) + ill, "ill": np.where(ill, "yes", "no")})
    at_relay = f"relay://{relay().address}"
    ports = free_ports(2)
    addresses = [f"127.0.0.1:{ports[0]}", "outbound", at_relay, f"127.0.0.1:{ports[1]}"]
    tables = [rows.iloc[start::4] for start in range(4)]
    made = Loopback.create(tmp_path, TERMS, tables, LINKS, addresses)
    yield made
    made.stop()
    stop_relay()


def check(home):
    """What `peer check` says, by subject."""
    done = peerbayes("peer", "check", home.folder, "--format", "json")
    return {found["what"]: (found["outcome"], found["told"]) for found in json.loads(done.stdout)}


def until(holds):
    end = time.monotonic() + HANG
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.parametrize("command", ["run", pytest.param("serve", marks=pytest.mark.long)])
def test_each_link_is_shown_as_what_it_is(network, command):
    homes = network.homes
    for name in EXPECTED:
        network.start(name, command=command)
    until(lambda: all(links_of(homes[name]) == links for name, links in EXPECTED.items()))
    for name, links in EXPECTED.items():
        found = check(homes[name])
        for other, kind in links.items():
            outcome, told = found[f"neighbour {other}"]
            if kind == "none":
                assert outcome == "warning" and "refuses connections" in told
                continue
            assert outcome == "ok" and f"; {kind}: " in told, told
            assert found[f"reached by {other}"][0] == "ok", found
    for name in ("peer-1", "peer-2"):
        _shown_elsewhere(homes[name], EXPECTED[name])

    # A neighbour that dials out and has gone: now it is true that there is no link.
    network.processes["peer-2"].kill()
    network.processes["peer-2"].wait()
    until(lambda: links_of(homes["peer-1"])["peer-2"] == "none")
    outcome, told = check(homes["peer-1"])["neighbour peer-2"]
    assert outcome == "warning" and "has none to this peer now. A run waits for it" in told
    assert links_of(homes["peer-2"]) is None  # what it wrote before it was killed says nothing now
    assert check(homes["peer-2"])["neighbour peer-1"][1].endswith(
        "direct: over a connection that this peer opened"
    )

    # The other way round: who listens does not run, and is called all the same.
    network.start("peer-2", command=command)
    network.processes["peer-1"].kill()
    network.processes["peer-1"].wait()
    until(lambda: links_of(homes["peer-2"]) == {"peer-1": "none", "peer-3": "relayed"})
    outcome, told = check(homes["peer-1"])["neighbour peer-2"]
    assert outcome == "ok" and told.endswith("reversed: over a connection that it opened")


def _shown_elsewhere(home, expected):
    shown = json.loads(peerbayes("peer", "status", home.folder, "--format", "json", code=0).stdout)
    assert shown["links"] == expected
    assert {name: state["link"] for name, state in shown["neighbours"].items()} == expected
    table = peerbayes("peer", "status", home.folder, code=0).stdout
    assert all(kind in table for kind in expected.values())
    exported = {
        (labels["neighbour"], labels["kind"]): value
        for _, metric in Exported(home).metrics()
        if metric.name == "peerbayes_neighbour_link"
        for labels, value in metric.values
    }
    assert exported == dict.fromkeys(expected.items(), 1.0)
    facts = PeerFolder(home.folder).look().facts
    assert {neighbour["name"]: neighbour["link"] for neighbour in facts["neighbours"]} == expected


def test_nobody_asks_for_a_port_where_a_neighbour_came_in_or_none_is_needed(tmp_path, rng):
    """In a later run of a site nobody may ever call this peer about that run alone."""
    peers = peers_of(tmp_path, replace(TERMS, label="label"), nx.path_graph(5), shared_out(rng))
    asked, kinds = [], dict.fromkeys(peers.names, "direct")
    node = peers.node("p1", asked_elsewhere=lambda: bool(asked))
    node.session.transport.kind_of = kinds.__getitem__
    assert node.unreached() == ""  # it reaches nobody either
    node.session.neighbour("p0").answered = True
    assert "nobody has reached this peer at localhost:2" in node.unreached()
    kinds["p2"] = "reversed"
    assert node.unreached() == ""
    kinds["p2"] = "none"
    assert node.unreached() != ""
    asked.append(1)
    assert node.unreached() == ""
    asked.clear()
    first, own, *others = peers.roster.members
    outbound = replace(own, address="outbound")
    node.session.roster = replace(peers.roster, members=(first, outbound, *others))
    assert node.unreached() == ""
    node.store.close()
    node.audit.close()


def test_what_a_process_left_is_not_believed(network):
    home = network.homes["peer-1"]
    home.links_path.write_text(json.dumps(EXPECTED["peer-1"]))
    assert links_of(home) is None  # none runs
    with lock(home):
        assert not home.links_path.exists()  # of the one before
        assert member_status(home, home.load())["links"] is None
        for text in ("", "[]", '{"peer-2": "sideways"}', '{"peer-2": {}}', "\x00"):
            home.links_path.write_text(text)
            assert links_of(home) is None, text
        home.links_path.write_text(json.dumps(EXPECTED["peer-1"]))
        assert links_of(home) == EXPECTED["peer-1"]
        with contextlib.suppress(FileNotFoundError):
            home.links_path.unlink()
        found = check(home)  # whoever has the lock says nothing of links
        assert found["neighbour peer-2"][0] == "warning" and "does not say" in found["neighbour peer-2"][1]
    assert status(home)["neighbours"]["peer-2"]["link"] is None
