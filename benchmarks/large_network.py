"""A network of 10,000 members, dry: founded, summed over, changed and in a run, in one process, without any learning.

    python benchmarks/large_network.py                  10,000 members
    python benchmarks/large_network.py --members 2500

Founding is real: keys, certificate requests, certificates, the signed roster and packed invitations, written to disk.
Agreeing is every member's own `TreeSums`, driven hop by hop: in one hop everybody gets what its tree neighbours had
before it, as requests and replies that are written and read as on the wire. A run is proposed by one member and
approved by all, each with its own key; the proposer takes every approval as it comes, and another site gets all
documents from it by the real exchange, but for sockets and the limits of requests a second. A change of the roster
goes from one member to all, in pieces; every member puts the pieces together, and the signature of one and the same
document is verified once for all of them.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

from peerbayes.peer.agreement.summary import Sums
from peerbayes.peer.agreement.terms import Terms
from peerbayes.peer.agreement.tree_sums import Gone, Phase, TreeSums
from peerbayes.peer.identity import keys
from peerbayes.peer.identity.founder import Applicant, Founder
from peerbayes.peer.identity.roster import Roster
from peerbayes.peer.protocol import wire
from peerbayes.peer.protocol.roster_pieces import RosterPieces, piece_of
from peerbayes.peer.protocol.session import Session
from peerbayes.peer.runs import Runs
from peerbayes.peer.runs.documents import Decision
from peerbayes.peer.runs.exchange import Exchange
from peerbayes.peer.state.folder import Home
from peerbayes.peer.tasks import Changes, Rate

SECONDS, HOPS = 60.0, 40  # of processor time to found, and of links to agree, at most
RUN_SECONDS = 60.0  # of processor time for a site to take 10,000 approvals
LISTED = 1000  # bytes of the request and the reply by which one more document is listed


class NoSums:
    """A store that keeps nothing: a dry run has nothing to recover."""

    def sums(self, phase: str) -> dict[str, bytes]:
        return {}

    def add_sum(self, phase: str, sender: str, body: bytes) -> None:
        return None


@dataclass(frozen=True)
class Founded:
    """A network, the members' keys and certificates, and the seconds of processor time."""

    founder: Founder
    sites: dict[str, Home]
    """Folders of the members that keep documents."""
    keys: dict[str, bytes]
    certificates: dict[str, bytes]
    seconds: float
    """To found it."""
    requests: float
    """For the members' own keys and requests, before that."""


SITES = ("m0", "m1")


def founded(folder: Path, members: int) -> Founded:
    """Found a network."""
    began = time.process_time()
    private: dict[str, bytes] = {}
    applicants, sites = [], {}
    for number in range(members):
        name, address = f"m{number}", f"m{number}.example.org:7070"
        if name in SITES:
            home = sites[name] = Home.create(folder / name, name, address, "rows.csv")
            key, request = home.read_key(), home.request_path.read_bytes()
        else:
            key, request = keys.new_request(name)
        private[name] = key
        applicants.append(Applicant(name, request, address))
    requested = time.process_time()
    founder = Founder.create(folder / "network", Terms("large", "label", strategy="exact").to_toml())
    (folder / "invitations").mkdir()
    invitations = founder.invite_all(applicants)
    for invitation in invitations:
        (folder / "invitations" / f"{invitation.name}.invitation").write_bytes(invitation.pack())
    founder.close()
    took = time.process_time() - requested
    for invitation in invitations:
        if invitation.name in sites:
            home = sites[invitation.name]
            home.join(invitation.pack(), None if invitation.roster else founder.roster_path.read_bytes())
            home.join(founder.roster_path.read_bytes())
    certificates = {invitation.name: invitation.certificate.encode() for invitation in invitations}
    return Founded(founder, sites, private, certificates, took, requested - began)


async def agreed(roster: Roster) -> int:
    """Return after how many hops every member has the sum of all."""
    phase, nobody = Phase("rows", Sums.named("rows")), Gone((), ())
    sums = {
        member.name: TreeSums(member.name, roster, NoSums(), Changes(), lambda: nobody)
        for member in roster.members
    }
    totals = [
        asyncio.create_task(one.total(phase, Sums(rows=Fraction(number))))
        for number, one in enumerate(sums.values())
    ]
    await asyncio.sleep(0)
    hops = 0
    while asking := [
        (name, neighbour, *wanted)
        for name, one in sums.items()
        for neighbour in one.tree
        if (wanted := one.wanted(neighbour)) is not None
    ]:
        arrived = [
            (name, neighbour, kind, reply)
            for name, neighbour, kind, what in asking
            if (reply := _summed(roster, sums[neighbour], name, neighbour, kind, what)) is not None
        ]
        if not arrived:
            raise RuntimeError(f"nothing moves after {hops} hops")
        for name, neighbour, kind, reply in arrived:
            await sums[name].take(neighbour, kind, phase.name, reply)
            sums[name]._changes.notify()
        hops += 1
        await asyncio.sleep(0)
    expected = Fraction(len(sums) * (len(sums) - 1), 2)
    for total in await asyncio.gather(*totals):
        if total["rows"] != expected:
            raise RuntimeError(f"a member has the sum {total['rows']}; expected {expected}")
    return hops


def _summed(
    roster: Roster, server: TreeSums, caller: str, asked: str, kind: wire.Kind, phase: str
) -> wire.Reply | None:
    """Return the reply to a request for a sum, as it comes off the wire; None: the caller would still wait."""
    request = wire.Request(wire.VERSION, roster.run, caller, kind, phase)
    known = wire.request_in(wire.encode(request), wire.SPOKEN, caller, asked)
    body = server.behind(caller, known.phase)
    if not isinstance(body, bytes):
        return None
    reply = wire.Reply(
        wire.VERSION, roster.run, asked, kind, "ok", phase=known.phase, body=body, digest=wire.digest_of(body)
    )
    return wire.reply_in(wire.encode(reply), request, asked)


# --- one run, with one proposal and as many approvals as there are members


class Direct:
    """The transport between two sites of one process: what one asks, the other answers."""

    def __init__(self) -> None:
        self.answers: dict[str, Callable[[str, bytes], Awaitable[bytes]]] = {}
        self.name, self.bytes = "", 0

    def of(self, name: str) -> "Direct":
        other = Direct()
        other.answers, other.name = self.answers, name
        return other

    def kind_of(self, neighbour: str) -> str:
        return "none"

    async def ask(self, neighbour: str, request: bytes, timeout: float, largest: int | None = None) -> bytes:
        reply = await self.answers[neighbour](self.name, request)
        self.bytes += len(request) + len(reply)
        return reply


def _exchange(home: Home, transport: Any) -> Exchange:
    """Return the exchange of a site, without a limit of requests a second."""
    peer, nothing = home.member(), cast(Any, None)
    session = Session(peer.name, peer.terms, peer.roster, b"", nothing, transport, nothing)

    async def adopt(signed: bytes) -> None:
        raise RuntimeError("nobody has another roster")

    exchange = Exchange(session, Runs(home.folder), adopt)
    exchange._asked = exchange._paces = Rate(10**9, 0.0)
    transport.answers[peer.name] = exchange.answer
    return exchange


@dataclass(frozen=True)
class OneRun:
    """What a run of a network costs one of its members, in seconds of processor time."""

    approvals: int
    taking: float
    """To verify and store all approvals, one by one, as they come."""
    state: float
    """To say how the run stands, once all documents were read before."""
    fetching: float
    """To get all of them from a neighbour by the exchange, for both."""
    listed: int
    """Bytes by which one more document is listed over a link."""
    bytes: int
    """Bytes of all requests and replies by which a site got the documents."""


async def one_run(network: Founded) -> OneRun:
    """Propose a run, have all approve it, and pass the documents on to another site."""
    first, second = (network.sites[name] for name in SITES)
    runs = Runs(first.folder)
    proposal = runs.propose().proposal
    assert proposal is not None
    terms = Terms.parse(proposal.terms, "the proposal").digest
    names = [member.name for member in network.founder.roster().members]
    decisions = [
        Decision("large", 2, name, proposal.at, proposal.digest, terms, "approve")
        .signed(network.keys[name], network.certificates[name])
        for name in names if name not in SITES
    ]  # fmt: skip
    began = time.process_time()
    for document in decisions[:-1]:
        runs.add(document)
    taking = time.process_time() - began
    if runs.entry(2).state != "proposed":
        raise RuntimeError(f"run 2 is {runs.entry(2).state} before all have approved")
    line = Direct()
    exchange = _exchange(first, line.of(SITES[0]))
    other = _exchange(second, transport := line.of(SITES[1]))
    began = time.process_time()
    await other._rosters_with(SITES[0])
    while not other._progress or other._progress[SITES[0]].number < exchange._listing._last:
        await other._list(SITES[0])
        await other._fetch(SITES[0])
    fetching, sent = time.process_time() - began, transport.bytes
    runs.add(decisions[-1])
    before = transport.bytes
    await other._list(SITES[0])
    listed = transport.bytes - before
    await other._fetch(SITES[0])
    other.runs.approve(2)  # its owner, once it has read the terms
    own = other.runs.home.folder / "runs" / "2" / "decisions" / f"{proposal.digest}.{SITES[1]}.json"
    runs.add(own.read_bytes())
    began = time.process_time()
    entries = [runs.entry(2), other.runs.entry(2)]
    state = (time.process_time() - began) / 2
    for entry in entries:
        if entry.state != "approved" or len(entry.approved) != len(names):
            raise RuntimeError(
                f"run 2 is {entry.state}, with {len(entry.approved)} approvals of {len(names)}"
            )
    return OneRun(len(names), taking, state, fetching, listed, sent)


def reached(roster: Roster, signed: bytes, authority: bytes) -> tuple[int, int, int]:
    """Return after how many hops a new roster is with all, how many members have it, and the pieces that were sent."""
    newer = Roster.verified(signed, authority)
    has, hops, pieces = {roster.members[0].name}, 0, 0
    while True:
        asking = {
            name: source
            for source in has
            for name in roster.neighbours(source)
            if name not in has and name not in newer.revoked
        }
        if not asking:
            return hops, len(has), pieces
        for name in asking:
            collected, whole = RosterPieces(), None
            while whole is None:
                whole = collected.add(_reply(signed, newer, collected.start))
                pieces += 1
            assert whole == signed
            has.add(name)
        hops += 1


def _reply(signed: bytes, roster: Roster, start: int) -> wire.Reply:
    body = piece_of(signed, start)
    return wire.Reply(
        version=wire.VERSION, run=roster.run, sender="m0", kind="roster", status="ok", round_index=start,
        roster_digest=roster.digest, shape=(len(signed),), digest=wire.digest_of(body), body=body,
    )  # fmt: skip


def main(members: int) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        network = founded(Path(folder), members)
        founder = network.founder
        size = founder.roster_path.stat().st_size
        roster, authority = founder.roster(), founder.authority()
        print(f"{members:,} members: a roster of {size / 1e6:.2f} MB, {len(roster.links):,} links")
        print(
            f"founded in {network.seconds:.1f} s of processor time (limit {SECONDS:.0f}); the members' own keys and "
            f"requests {network.requests:.1f} s"
        )
        began = time.process_time()
        hops = asyncio.run(agreed(roster))
        print(
            f"agreed after {hops} hops (limit {HOPS}; the tree has paths of at most {roster.tree.hops}), "
            f"{time.process_time() - began:.1f} s"
        )
        run = asyncio.run(one_run(network))
        most = RUN_SECONDS * members / 10_000
        print(
            f"one run, {run.approvals:,} approvals: a site takes them in {run.taking:.1f} s of processor time (limit "
            f"{most:.1f}), and says how the run stands in {1000 * run.state:.0f} ms; another site gets all from it in "
            f"{run.fetching:.1f} s (both) and {run.bytes / 1e6:.1f} MB; one more is listed in "
            f"{run.listed} bytes (limit {LISTED})"
        )
        founder.revoke("m7")
        reach, holders, pieces = reached(roster, founder.roster_path.read_bytes(), authority)
        print(
            f"a change of the roster is with {holders:,} of {members - 1:,} members after {reach} hops, in "
            f"{pieces:,} pieces"
        )
    return (
        network.seconds <= SECONDS
        and hops <= HOPS
        and run.taking <= most
        and run.listed <= LISTED
        and holders == members - 1
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--members", type=int, default=10_000)
    sys.exit(not main(parser.parse_args().members))
