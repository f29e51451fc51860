"""A network of 10,000 members, dry: founded, summed over and changed in one process, without any learning.

    python benchmarks/large_network.py                  10,000 members
    python benchmarks/large_network.py --members 2500

Founding is real: keys, certificate requests, certificates, the signed roster and packed invitations, written to disk.
Agreeing is every member's own `TreeSums`, driven hop by hop: in one hop everybody gets what its tree neighbours had
before it. A change of the roster goes from one member to all, in pieces; every member puts the pieces together, and the
signature of one and the same document is verified once for all of them.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from fractions import Fraction
from pathlib import Path

from peerbayes.peer.agreement.summary import Sums
from peerbayes.peer.agreement.terms import Terms
from peerbayes.peer.agreement.tree_sums import Gone, Phase, TreeSums
from peerbayes.peer.identity import keys
from peerbayes.peer.identity.founder import Applicant, Founder
from peerbayes.peer.identity.roster import Roster
from peerbayes.peer.protocol import wire
from peerbayes.peer.protocol.roster_pieces import RosterPieces, piece_of
from peerbayes.peer.tasks import Changes

SECONDS, HOPS = 60.0, 40  # of processor time to found, and of links to agree, at most


class NoSums:
    """A store that keeps nothing: a dry run has nothing to recover."""

    def sums(self, phase: str) -> dict[str, bytes]:
        return {}

    def add_sum(self, phase: str, sender: str, body: bytes) -> None:
        return None


def founded(folder: Path, members: int) -> tuple[Founder, float, float]:
    """Return the founder of a network, the seconds of processor time that it took, and those of the members' keys."""
    began = time.process_time()
    applicants = [
        Applicant(f"m{number}", keys.new_request(f"m{number}")[1], f"m{number}.example.org:7070")
        for number in range(members)
    ]
    requested = time.process_time()
    founder = Founder.create(folder / "network", Terms("large", "label", strategy="exact").to_toml())
    (folder / "invitations").mkdir()
    for invitation in founder.invite_all(applicants):
        (folder / "invitations" / f"{invitation.name}.invitation").write_bytes(invitation.pack())
    founder.close()
    return founder, time.process_time() - requested, requested - began


async def agreed(roster: Roster) -> int:
    """Return after how many hops every member has the sum of all."""
    phase = Phase("rows", Sums.named("rows"))
    nobody = Gone((), ())
    sums = {}
    for number, member in enumerate(roster.members):
        local = Sums(rows=Fraction(number))
        one = sums[member.name] = TreeSums(member.name, roster, NoSums(), Changes(), lambda: nobody)
        one._phases[phase.name], one._received[phase.name] = (phase, local), {}
    hops, expected = 0, Fraction(len(sums) * (len(sums) - 1), 2)
    while lacking := [
        (name, neighbour)
        for name, one in sums.items()
        for neighbour in one.tree
        if neighbour not in one._received[phase.name]
    ]:
        before = [(name, other, sums[other].behind(name, phase.name)) for name, other in lacking]
        arrived = [(name, other, body) for name, other, body in before if body is not None]
        if not arrived:
            raise RuntimeError(f"nothing moves after {hops} hops")
        for name, other, body in arrived:
            sums[name]._received[phase.name][other] = sums[name]._checked(phase, other, body)
        hops += 1
    for one in sums.values():
        total = sum(
            (part["rows"] for part in one._received[phase.name].values()), one._phases[phase.name][1]["rows"]
        )
        if total != expected:
            raise RuntimeError(f"a member has the sum {total}; expected {expected}")
    return hops


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
        founder, took, requests = founded(Path(folder), members)
        size = founder.roster_path.stat().st_size
        roster, authority = founder.roster(), founder.authority()
        print(f"{members:,} members: a roster of {size / 1e6:.2f} MB, {len(roster.links):,} links")
        print(
            f"founded in {took:.1f} s of processor time (limit {SECONDS:.0f}); the members' own keys and requests "
            f"{requests:.1f} s"
        )
        began = time.process_time()
        hops = asyncio.run(agreed(roster))
        print(
            f"agreed after {hops} hops (limit {HOPS}; the tree has paths of at most {roster.tree.hops}), "
            f"{time.process_time() - began:.1f} s"
        )
        founder.revoke("m7")
        reach, holders, pieces = reached(roster, founder.roster_path.read_bytes(), authority)
        print(
            f"a change of the roster is with {holders:,} of {members - 1:,} members after {reach} hops, in "
            f"{pieces:,} pieces"
        )
    return took <= SECONDS and hops <= HOPS and holders == members - 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--members", type=int, default=10_000)
    sys.exit(not main(parser.parse_args().members))
