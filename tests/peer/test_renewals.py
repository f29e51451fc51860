"""Renewal between neighbours: a request finds whoever may renew, every hop checks it, and it ends by itself."""

import asyncio
import errno
from datetime import UTC, datetime, timedelta

import networkx as nx
import pytest

pytest.importorskip("cryptography")
pytest.importorskip("msgspec")
from peerbayes.errors import PeerError, RefusedMessage
from peerbayes.peer.agreement.terms import Terms
from peerbayes.peer.identity import keys
from peerbayes.peer.identity.founder import Applicant, Founder
from peerbayes.peer.identity.renewal import Issuer, due_at
from peerbayes.peer.protocol import renewals
from peerbayes.peer.protocol.renewals import Renewals


class Peer:
    """One peer of a network in memory; `now` is everybody's clock."""

    def __init__(self, network, name, key):
        self.network, self.name, self.key = network, name, key
        self.certificate = network.founder.certificate_path(name).read_bytes()
        self.given, self.problems, self.issues = [], [], None
        self.renewals = Renewals(
            name, key, network.authority, lambda: network.roster, lambda: self.certificate, self.issuer, self.ask,
            self.take, self.problems.append, lambda: network.now, lambda: network.seconds,
        )  # fmt: skip

    def issuer(self):
        return (
            None if self.issues is None else Issuer.of(self.issues, self.network.roster, self.name, self.key)
        )

    async def ask(self, neighbour, name, request, hops):
        if neighbour in self.network.down:
            raise PeerError(f"{neighbour} does not answer")
        self.network.asked.append((self.name, neighbour, name, hops))
        return await self.network.peers[neighbour].renewals.answer(self.name, name, request, hops)

    def take(self, certificate, giver):
        self.certificate = certificate
        self.given.append(giver)


class Network:
    def __init__(self, folder, graph):
        self.folder, self.now, self.seconds, self.down, self.asked = folder, datetime.now(UTC), 0.0, set(), []
        self.founder = Founder.create(folder / "network", Terms("few", "y", strategy="exact").to_toml())
        made = {f"p{node}": keys.new_request(f"p{node}") for node in sorted(graph)}
        self.founder.invite_all(
            [
                Applicant(f"p{node}", made[f"p{node}"][1], f"h{node}:70", tuple(f"p{other}" for other in graph[node]
                          if other < node))
                for node in sorted(graph)
            ]
        )  # fmt: skip
        self.founder.close()
        self.roster, self.authority = self.founder.roster(), self.founder.authority()
        self.peers = {name: Peer(self, name, key) for name, (key, _) in made.items()}

    def deputy(self, name):
        self.roster = self.founder.name_deputy(name)
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        self.peers[name].issues = folder

    def step(self, *names):
        """Everybody (or some) asks once, and a minute passes."""
        self.seconds += renewals.EVERY
        for name in names or self.peers:
            neighbours = self.roster.present(name)
            asyncio.run(self.peers[name].renewals.attempt(neighbours))


@pytest.fixture
def line(tmp_path):
    """Five in a line; the last is a deputy."""
    network = Network(tmp_path, nx.path_graph(5))
    network.deputy("p4")
    return network


def test_nobody_asks_before_a_certificate_is_due(line):
    line.step()
    assert line.asked == [] and not any(peer.given for peer in line.peers.values())


def test_a_request_goes_over_four_links_and_the_certificate_comes_back_the_same_way(line):
    first = line.peers["p0"]
    before = first.certificate
    line.now = due_at(before)
    late = {name: due_at(peer.certificate) for name, peer in line.peers.items()}
    for _ in range(8):
        line.step()
    assert first.given == ["p1"] and keys.expiry(first.certificate) > keys.expiry(before)
    assert keys.key_digest(first.certificate) == keys.key_digest(before)
    assert line.roster.chain(first.certificate) == line.roster.deputies[0].certificate.encode()
    assert first.problems[-1] == "" and "nobody has renewed it yet (p1: not yet)" in first.problems
    assert all(peer.given == [] for name, peer in line.peers.items() if late[name] > line.now)
    assert not first.renewals.due
    asked = len(line.asked)
    for _ in range(3):
        line.step()
    due = {name for name, peer in line.peers.items() if peer.renewals.due}
    assert not due and all(name in due for _, _, name, _ in line.asked[asked:])  # it is quiet again


def test_a_deputy_and_a_founder_s_peer_renew_their_own_without_asking(line):
    line.now = max(due_at(peer.certificate) for peer in line.peers.values())
    line.peers["p0"].issues = line.founder.folder
    line.step("p0", "p4")
    assert line.peers["p0"].given == ["p0"] and line.peers["p4"].given == ["p4"] and line.asked == []
    assert line.roster.chain(line.peers["p0"].certificate) == b""


def test_others_are_asked_while_one_is_down(tmp_path):
    network = Network(tmp_path, nx.cycle_graph(6))
    network.deputy("p3")
    network.down = {"p1"}
    network.now = due_at(network.peers["p0"].certificate)
    for _ in range(6):
        network.step(*(name for name in network.peers if name != "p1"))
    assert network.peers["p0"].given == ["p5"]
    assert "p1: p1 does not answer" in " ".join(network.peers["p0"].problems)


def test_requests_that_nobody_makes_any_more_die_out_in_a_circle(tmp_path):
    """Nobody renews, and the origin is stopped: its neighbours do not ask each other for ever."""
    network = Network(tmp_path, nx.complete_graph(4))
    network.now = due_at(network.peers["p0"].certificate)
    others = ("p1", "p2", "p3")
    dues = {name: due_at(network.peers[name].certificate) for name in others}
    for _ in range(3):
        network.step()
    assert any("p0" in network.peers[name].renewals.asking for name in others)
    steps = 0
    while any("p0" in network.peers[name].renewals.asking for name in others):
        network.step(*others)
        steps += 1
        assert steps < renewals.HOPS * (renewals.KEPT / renewals.EVERY + 2), dues


def test_what_is_no_renewal_is_refused_at_the_first_hop(line):
    second = line.peers["p1"].renewals
    request = keys.request_of(line.peers["p0"].key, "p0")

    def refused(caller, name, content, reason, hops=3):
        with pytest.raises(RefusedMessage) as error:
            asyncio.run(second.answer(caller, name, content, hops))
        assert error.value.reason == reason
        line.seconds += 3600
        second._rate._due.clear()

    refused("p0", "p0", keys.new_request("p0")[1], "bad renewal")  # another key
    refused("p0", "p2", request, "bad renewal")  # another name
    refused("p0", "nobody", request, "bad renewal")
    refused("p0", "p0", b"", "bad renewal")
    refused("p0", "p0", b"x" * 5000, "too large")
    refused("p3", "p0", request, "not a neighbour")
    assert second.asking == {}
    line.roster = line.founder.revoke("p2")
    refused("p0", "p2", keys.request_of(line.peers["p2"].key, "p2"), "bad renewal")
    for _ in range(renewals.RATE[0]):
        asyncio.run(second.answer("p0", "p0", request, 3))
    with pytest.raises(RefusedMessage, match="more renewals than"):
        asyncio.run(second.answer("p0", "p0", request, 3))


def test_a_certificate_that_a_neighbour_makes_up_is_not_taken_nor_passed_on(line):
    second, last = line.peers["p1"], line.peers["p4"]
    line.now = due_at(line.peers["p0"].certificate)
    key, authority = keys.new_authority("few")
    member, deputy = line.peers["p0"].certificate, line.roster.deputies[0].certificate.encode()
    other = keys.new_request("p0")[1]
    forged = {
        "another authority": keys.reissue(key, authority, member, now=line.now),
        "another key": keys.issue(last.key, deputy, other, "p0", now=line.now),
        "another member's": keys.reissue(last.key, deputy, second.certificate, now=line.now),
        "it ends soon": keys.reissue(last.key, deputy, member, 0.01, line.now - timedelta(minutes=14)),
        "ended": keys.reissue(last.key, deputy, member, 1.0, line.now - timedelta(days=2)),
        "too large": b"-----BEGIN CERTIFICATE-----" + b"x" * 5000,
        "nothing": b"",
    }
    for case, certificate in forged.items():

        async def lying(neighbour, name, request, hops, certificate=certificate):
            return certificate

        line.peers["p0"].renewals.ask = second.renewals.ask = lying
        second.renewals.asking.clear()
        asyncio.run(second.renewals.answer("p0", "p0", keys.request_of(line.peers["p0"].key, "p0"), 9))
        line.step("p0", "p1")
        assert line.peers["p0"].given == [] and second.renewals.answers == {}, case
        assert "nobody has renewed it yet" in line.peers["p0"].problems[-1]


def test_only_so_many_requests_of_others_are_kept(line, monkeypatch):
    monkeypatch.setattr(renewals, "MOST", 2)
    third = line.peers["p2"].renewals
    for name in ("p0", "p1", "p3"):
        asyncio.run(third.answer("p1", name, keys.request_of(line.peers[name].key, name), 9))
    assert list(third.asking) == ["p0", "p1"]
    asyncio.run(third.answer("p1", "p0", keys.request_of(line.peers["p0"].key, "p0"), 1))
    assert third.asking["p0"].hops == 8  # one that has come round does not count


def test_a_deputy_whose_disk_is_full_passes_requests_on_and_says_so_once(line, monkeypatch):
    last, told = line.peers["p4"].renewals, []
    last.tell = told.append
    request = keys.request_of(line.peers["p3"].key, "p3")

    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("peerbayes.peer.identity.renewal.write", full)
    for _ in range(3):
        assert asyncio.run(last.answer("p3", "p3", request, 9)) is None
    assert len(told) == 1 and "p3 is not renewed here" in told[0] and "No space left" in told[0]
    assert last.asking["p3"].hops == 8 and line.peers["p4"].problems == []  # its own certificate is well
    monkeypatch.undo()
    assert keys.name_of(asyncio.run(last.answer("p3", "p3", request, 9))) == "p3"
