"""Networks of thousands: many invitations at once, rosters in pieces, links all over, a shallow tree for sums."""

import asyncio
import csv
import dataclasses
import importlib.util
import subprocess
import sys
from collections import Counter
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("cryptography")
pytest.importorskip("msgspec")
from peerbayes.cli import network as network_commands
from peerbayes.errors import ConfigurationError, IdentityError, RefusedMessage
from peerbayes.peer.agreement.terms import Terms
from peerbayes.peer.identity import keys
from peerbayes.peer.identity.founder import SHARED_ROSTER, Applicant, Founder, applicants_in, links_of
from peerbayes.peer.identity.roster import Member, Roster
from peerbayes.peer.protocol import client, roster_pieces, wire
from peerbayes.peer.protocol.roster_pieces import RosterPieces, piece_of
from peerbayes.peer.runs import Runs
from peerbayes.peer.runs.documents import Decision
from peerbayes.peer.state.folder import Home
from shared.commands import HANG, peerbayes
from shared.peers_in_memory import SIZES, peers_of, shared_out

ROOT = Path(__file__).parents[2]
of_file = importlib.util.spec_from_file_location("large_network", ROOT / "benchmarks" / "large_network.py")
large_network = sys.modules["large_network"] = importlib.util.module_from_spec(of_file)
of_file.loader.exec_module(large_network)

TERMS = Terms("large", "label", strategy="exact").to_toml()
REQUEST = b""  # links are chosen before requests are read


def reply(signed, start, body=None, size=None, **changes):
    body = piece_of(signed, start) if body is None else body
    fields = {"round_index": start, "roster_digest": b"\1" * 32, "shape": (size or len(signed),)} | changes
    return wire.Reply(wire.VERSION, "0" * 64, "b", "roster", "ok", body=body, **fields)


@given(st.binary(min_size=1, max_size=4000), st.integers(1, 1500))
def test_pieces_make_the_whole_again(signed, size):
    pieces, whole, sent = RosterPieces(), None, 0
    while whole is None:
        assert pieces.start == sent
        body = signed[sent : sent + size]
        whole = pieces.add(reply(signed, sent, body))
        sent += len(body)
    assert whole == signed and pieces.start == 0 and pieces.digest == ""


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (reply(b"x" * 10, 0, b"", 10), "from byte 0, not 0"),
        (reply(b"x" * 10, 4, b"xx", 10), "from byte 4, not 0"),
        (reply(b"x" * 10, 0, b"x" * 11, 10), "11 bytes of a roster of 10"),
        (reply(b"x" * 10, 0, b"x", 5 << 20), "of a roster of 5242880"),
        (reply(b"x" * 10, 0, b"x", shape=()), "of a roster of 0"),
    ],
)
def test_pieces_that_do_not_fit_are_refused_and_forgotten(wrong, says):
    pieces = RosterPieces()
    with pytest.raises(RefusedMessage, match=says):
        pieces.add(wrong)
    assert pieces.pieces == [] and pieces.start == 0


@pytest.mark.parametrize("members", [10, 300, 3000])
def test_chosen_links_keep_a_network_shallow_and_even(members):
    applicants = [Applicant(f"m{number}", REQUEST, f"h:{number + 1}") for number in range(members)]
    roster = Roster("large", "0" * 64, 0, (), ())
    new = [Member(each.name, each.address, "0" * 64) for each in applicants]
    roster = roster.with_members(new, links_of(roster, applicants)).with_closed()
    degrees = np.diff(roster.adjacency().indptr)
    assert roster.tree.hops <= 4 + 2 * np.log2(members) / 2
    assert degrees.max() <= 5 * degrees.mean()


def test_many_are_invited_at_once_and_join_with_one_roster(tmp_path, monkeypatch):
    monkeypatch.setattr("peerbayes.peer.identity.founder.SHARED_ROSTER", 500)
    founder = Founder.create(tmp_path / "network", TERMS, 3)
    with (tmp_path / "members.csv").open("w", newline="") as lines:
        writer = csv.writer(lines)
        writer.writerow(["name", "request", "address", "links"])
        for number, name in enumerate("abc"):
            Home.create(tmp_path / name, name, f"127.0.0.1:{7001 + number}", "rows.csv")
            writer.writerow(
                [
                    name,
                    f"{name}/peer.csr",
                    f"127.0.0.1:{7001 + number}",
                    "a b"[: 2 * number - 1] if number else "",
                ]
            )
    invitations = founder.invite_all(applicants_in(tmp_path / "members.csv"))
    roster = founder.roster()
    assert roster.closed and roster.version == 2 and roster.neighbours("c") == ("a", "b")
    signed = founder.roster_path.read_bytes()
    for invitation in invitations:
        home = Home(tmp_path / invitation.name)
        assert invitation.roster == ""
        with pytest.raises(IdentityError, match="comes without the roster"):
            home.join(invitation.pack())
        assert home.join(invitation.pack(), signed) == roster == home.roster()


def test_the_command_invites_all_or_none(tmp_path):
    founder = Founder.create(tmp_path / "network", TERMS)
    for name in "ab":
        Home.create(tmp_path / name, name, "127.0.0.1:7001", "rows.csv")
    table = tmp_path / "members.csv"
    table.write_text("name,request,address\na,a/peer.csr,127.0.0.1:7001\nb,b/peer.csr,127.0.0.1:7001\n")
    options = "--network", founder.folder, "--out", tmp_path / "out"
    refused = peerbayes("network", "invite-all", table, *options)
    assert refused.returncode == 2 and "a already uses 127.0.0.1:7001; b needs" in refused.stderr
    assert founder.roster().members == () and not (tmp_path / "out").exists()
    table.write_text(table.read_text().replace("b/peer.csr,127.0.0.1:7001", "b/peer.csr,127.0.0.1:7002"))
    done = peerbayes("network", "invite-all", table, *options)
    assert done.returncode == 0 and "2 peers are members of large" in done.stdout
    joined = peerbayes("peer", "join", tmp_path / "a", tmp_path / "out" / "a.invitation")
    assert joined.returncode == 0 and "Neighbours: b" in joined.stdout


def test_an_interrupted_batch_is_completed_by_running_it_again(tmp_path, monkeypatch):
    """The roster was stored, and not all invitations: members keep certificate and place, new ones join."""
    founder = Founder.create(tmp_path / "network", TERMS)
    lines = ["name,request,address"]
    for number, name in enumerate("abcd"):
        Home.create(tmp_path / name, name, f"127.0.0.1:{7001 + number}", "rows.csv")
        lines.append(f"{name},{name}/peer.csr,127.0.0.1:{7001 + number}")
    table, written = tmp_path / "members.csv", []
    table.write_text("\ufeff" + "\n".join(lines[:4]) + "\n", encoding="utf-8")  # as spreadsheets write it
    options = "--network", founder.folder, "--out", tmp_path / "out"
    original = network_commands.write

    def full(path, content):
        written.append(path)
        if len(written) == 2:
            raise OSError(28, "No space left on device", str(path))
        original(path, content)

    monkeypatch.setattr(network_commands, "write", full)
    assert peerbayes("network", "invite-all", table, *options).returncode == 1
    members = founder.roster().members
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.invitation"] and len(members) == 3
    table.write_text("\n".join(lines) + "\n")
    done = peerbayes("network", "invite-all", table, *options, code=0)
    assert "4 peers are members of large, which has 4, 1 of them new" in done.stdout
    assert founder.roster().members[:3] == members
    before = founder.roster_path.read_bytes()
    assert "0 of them new" in peerbayes("network", "invite-all", table, *options, code=0).stdout
    assert founder.roster_path.read_bytes() == before
    for name in "abcd":
        peerbayes("peer", "join", tmp_path / name, tmp_path / "out" / f"{name}.invitation", code=0)


def test_a_member_with_another_key_or_address_is_no_member_again(tmp_path):
    founder = Founder.create(tmp_path / "network", TERMS)
    request = keys.new_request("a")[1]
    founder.invite_all([Applicant("a", request, "h:1")])
    for other in (Applicant("a", keys.new_request("a")[1], "h:1"), Applicant("a", request, "h:2")):
        with pytest.raises(IdentityError, match="already a member"):
            founder.invite_all([other])
    founder.revoke("a")
    with pytest.raises(IdentityError):
        founder.invite_all([Applicant("a", request, "h:1")])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name,address\na,h:1\n", "no column request"),
        ("name,request,address\n", "names nobody"),
        ("name,request,address\na,a.csr,h:1\n", "does not exist; expected a peer.csr"),
        ("name,request,address\na,x\n", "other many fields"),
    ],
)
def test_a_table_of_peers_that_makes_no_sense(tmp_path, text, says):
    (tmp_path / "members.csv").write_text(text)
    with pytest.raises(ConfigurationError, match=says):
        applicants_in(tmp_path / "members.csv")


def test_two_applicants_of_one_name_are_refused(tmp_path):
    founder = Founder.create(tmp_path / "network", TERMS)
    request = keys.new_request("a")[1]
    twice = [Applicant("a", request, "h:1"), Applicant("a", request, "h:1")]
    with pytest.raises(IdentityError, match="invited twice"):
        founder.invite_all(twice)


def test_a_roster_of_2500_members_is_larger_than_a_request_and_comes_in_pieces():
    members = tuple(
        Member(f"m{number}", f"m{number}.example.org:7070", f"{number:064x}") for number in range(2500)
    )
    key, authority = keys.new_authority("large")
    roster = dataclasses.replace(
        Roster("large", "0" * 64, 1, members, ()),
        links=tuple((f"m{n}", f"m{n // 2}") for n in range(1, 2500)),
    )
    signed = roster.signed(key)
    assert len(signed) > SHARED_ROSTER and len(signed) > roster_pieces.LARGEST_OFFERED
    pieces, whole = RosterPieces(), None
    while whole is None:
        whole = pieces.add(reply(signed, pieces.start))
    assert Roster.verified(whole, authority) == roster


def test_a_change_of_the_roster_reaches_all_peers_in_pieces(tmp_path, monkeypatch):
    """Nothing is sent along unasked: peers ask piece by piece, from one end of a path to the other."""
    monkeypatch.setattr(roster_pieces, "PIECE", 100)
    monkeypatch.setattr(client, "LARGEST_OFFERED", 0)
    key, authority = keys.new_authority("test")
    graph = nx.path_graph(len(SIZES))
    rng = np.random.default_rng(0)
    peers = peers_of(tmp_path, Terms("test", "label", rounds=30, strategy="exact"), graph, shared_out(rng))
    newer = peers.roster.with_changed(Member("p0", "localhost:99", "0" * 64))

    async def main():
        work = [
            peers.start(name, newer=lambda signed: Roster.verified(signed, authority)) for name in peers.names
        ]
        await peers.until(
            lambda: len(peers.nodes) == len(SIZES) and peers.nodes["p0"].session.round_index > 0
        )
        peers.nodes["p0"].adopt(newer.signed(key))
        try:
            await peers.until(lambda: all(node.session.roster == newer for node in peers.nodes.values()))
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    asyncio.run(main())


@pytest.mark.parametrize("members", [300, pytest.param(2500, marks=pytest.mark.long)])
def test_a_dry_run_of_a_large_network_keeps_its_limits(members):
    """benchmarks/large_network.py: founded, summed over, one run that all approve, one change of the roster."""
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "large_network.py", "--members", str(members)],
        capture_output=True, text=True, timeout=HANG,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"one run, {members:,} approvals" in done.stdout
    assert f"with {members - 1:,} of {members - 1:,} members" in done.stdout


def approvals_of(folder, members=40):
    """A network whose first member proposed a run, and the approvals of all others but two."""
    network = large_network.founded(folder, members)
    first = Runs(network.sites["m0"].folder)
    proposal = first.propose().proposal
    terms = Terms.parse(proposal.terms, "it").digest
    return network, first, [
        Decision("large", 2, name, proposal.at, proposal.digest, terms, "approve")
        .signed(network.keys[name], network.certificates[name])
        for name in list(network.keys)[2:]
    ]  # fmt: skip


def test_each_document_is_read_from_disk_once_however_often_a_run_is_looked_at(tmp_path, monkeypatch):
    _, runs, approvals = approvals_of(tmp_path)
    read = Counter()
    original = Decision.unverified.__func__

    def counted(cls, document):
        read[document] += 1
        return original(cls, document)

    monkeypatch.setattr(Decision, "unverified", classmethod(counted))
    for document in approvals:
        runs.add(document)
        runs.entries()
        runs.shared()
    assert len(runs.entry(2).approved) == len(approvals) + 1
    assert set(approvals) <= set(read)
    assert (
        max(read.values()) <= 4
    )  # to learn its name, to verify it, and once from the file; never once a look


def test_the_roster_is_verified_once_and_not_for_every_approval(tmp_path, monkeypatch):
    _, runs, approvals = approvals_of(tmp_path)
    runs.add(approvals[0])
    verified = []
    original = Roster.verified.__func__
    monkeypatch.setattr(
        Roster, "verified", classmethod(lambda cls, *given: verified.append(1) or original(cls, *given))
    )
    for document in approvals[1:]:
        runs.add(document)
    assert verified == []
