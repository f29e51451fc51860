"""Units and bounds that no liar can move far, from signed ballots that are collected along the tree.

    middle 1–4      rows of each member, and its mean of each continuous column
    deviation 1–4   root mean square of x − M of each column, of members where it is not 0
    moments         what each member reports of a column beside these medians, in one digit

A ballot is signed by its member, so that whoever passes it on can neither change it nor vote for others; a member votes
for a digit of a number only if it voted for the digits before. The search, the reports and what they are good for are
in `peerbayes.learning.robust.bounds`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

import msgspec
import numpy as np

from peerbayes.errors import FalseReport, RefusedMessage
from peerbayes.learning.robust.bounds import (
    DIGITS,
    WIDTH,
    MemberBounds,
    Search,
    deviation_of,
    key_of,
    limit_of,
    mean_of,
    report_of,
    units_of,
)
from peerbayes.peer.agreement.summary import LARGEST
from peerbayes.peer.agreement.tree_sums import Phase, Total, members_behind
from peerbayes.peer.identity.roster import Roster
from peerbayes.peer.protocol.wire import SignedEntries, Vouch, Vouched, packed

PURPOSE = b"peerbayes ballot"
Digits = dict[str, int]  # a member's next digit of each median it has a vote on; "" is of its rows
ROWS = ""

_digits = msgspec.msgpack.Decoder(Digits)


class Ballots(SignedEntries):
    """Members' digits, as they were signed, each with its proof."""

    subject = "ballots"

    @classmethod
    def parse(cls, content: bytes) -> Ballots:
        """Return ballots from outside; who signed them is checked later."""
        if len(content) > LARGEST:
            raise RefusedMessage("too large", f"ballots of {len(content):,} bytes; at most {LARGEST:,}")
        return super().parse(content)

    def votes(self, member: str) -> Digits:
        """Return a member's digits."""
        try:
            digits = _digits.decode(self.by_member[member][0])
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError) as error:
            raise FalseReport(f"the ballot of {member} cannot be read: {error}") from error
        if any(not 0 <= digit < 1 << WIDTH for digit in digits.values()):
            raise FalseReport(f"the ballot of {member} is for what is no digit")
        return digits

    def counted(self) -> dict[str, Counter[int]]:
        """Return the votes for each digit, of each median."""
        counts: dict[str, Counter[int]] = {}
        for member in self.by_member:
            for name, digit in self.votes(member).items():
                counts.setdefault(name, Counter())[digit] += 1
        return counts


@dataclass(frozen=True)
class Voter:
    """How a member signs its ballots, and knows those of others."""

    name: str
    roster: Roster
    vouch: Vouch
    vouched: Vouched

    def ballot(self, phase: str, digits: Digits) -> Ballots:
        """Return this member's ballot."""
        content = msgspec.msgpack.encode(dict(sorted(digits.items())))
        return Ballots({self.name: (content, self.vouch(self._statement(phase, self.name, content)))})

    def check(self, phase: str, ballots: Ballots, members: Set[str]) -> None:
        """Refuse ballots that are not one of each of these members, signed by it."""
        if off := sorted(members ^ ballots.by_member.keys()):
            raise FalseReport(f"ballots of other members than lie behind that link: {off[0]!r:.80}")
        for member, (content, proof) in ballots.by_member.items():
            try:
                self.vouched(member, self._statement(phase, member, content), proof)
            except RefusedMessage as error:
                raise FalseReport(f"the ballot of {member} is not signed by it: {error}") from error

    def _statement(self, phase: str, member: str, content: bytes) -> bytes:
        return packed((PURPOSE, self.roster.run.encode(), phase.encode(), member.encode(), content))


@dataclass
class Pass:
    """One digit of every member on each column: of all medians, or a report."""

    voter: Voter
    phase: str
    behind: Mapping[str, Set[str]]
    before: Mapping[str, Digits] = field(default_factory=dict)
    """Members' digits of the pass before."""
    medians: Mapping[str, int] | None = None
    """Those of the medians: who voted for one has a vote on the next; None: in the first pass everybody has."""

    def entitled(self, member: str, name: str) -> bool:
        """Return whether a member has a vote on a median."""
        if self.medians is None:
            return True
        return name in self.medians and self.before.get(member, {}).get(name) == self.medians[name]

    def check(self, neighbour: str, part: Ballots, members: int) -> None:
        """Refuse ballots that are not signed, or for what their members have no vote on."""
        self.voter.check(self.phase, part, self.behind[neighbour])
        for member in part.by_member:
            digits = part.votes(member)
            for name in {*digits, *self.before.get(member, {})}:
                if (name in digits) != self.entitled(member, name):
                    raise FalseReport(
                        f"the ballot of {member} on {name or 'rows'!r:.80} is not of the number before"
                    )


async def agreed_bounds(
    rows: int, values: Mapping[str, np.ndarray], voter: Voter, total: Total
) -> MemberBounds:
    """Return what members may report, from this one's rows and its present values of continuous columns [n]."""
    columns = {name: present for name, present in values.items() if present.size and name != ROWS}
    means = {name: key_of(mean_of(present)) for name, present in columns.items()}
    middles = await _medians("middle", {ROWS: key_of(float(rows)), **means}, voter, total)
    of_rows = middles.pop(ROWS, float(rows))
    deviations_here = {
        name: deviation_of(present, middles[name]) for name, present in columns.items() if name in middles
    }
    keys = {name: key_of(deviation) for name, deviation in deviations_here.items() if deviation > 0.0}
    deviations = await _medians("deviation", keys, voter, total)
    units = await _units(columns, middles, deviations, voter, total)
    return MemberBounds.of(of_rows, *units)


async def _units(
    values: Mapping[str, np.ndarray],
    middles: Mapping[str, float],
    deviations: Mapping[str, float],
    voter: Voter,
    total: Total,
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the location of each column, and the scale of those that vary, from everybody's reports."""
    limit = limit_of(len(voter.roster.members))
    varying = {
        name: deviation
        for name, deviation in deviations.items()
        if 0.0 < deviation < math.inf and name in middles
    }
    digits = {
        name: report_of(values[name], middles[name], deviation, limit)
        for name, deviation in varying.items()
        if name in values
    }
    current = Pass(voter, "moments", members_behind(voter.name, voter.roster))
    reports = (await _collected(current, digits, total)).counted()
    units = {
        name: units_of(reports[name], middles[name], deviation, limit)
        for name, deviation in varying.items()
        if name in reports
    }
    locations = {name: location for name, (location, _) in units.items()}
    return {**middles, **locations}, {name: scale for name, (_, scale) in units.items()}


async def _collected(current: Pass, digits: Digits, total: Total) -> Ballots:
    """Return everybody's ballots of a pass, from this member's digits."""
    phase = Phase(current.phase, Ballots.parse, lambda part: len(part.by_member), current.check)
    union: Ballots = await total(phase, current.voter.ballot(current.phase, digits))
    return union


async def _medians(what: str, keys: Mapping[str, int], voter: Voter, total: Total) -> dict[str, float]:
    """Return the median over members of each number, from this member's keys."""
    searches, behind = dict[str, Search](), members_behind(voter.name, voter.roster)
    ballots, last = dict[str, Digits](), None
    for step in range(1, DIGITS + 1):
        current = Pass(voter, f"{what} {step}", behind, ballots, last)
        digits = {
            name: digit
            for name, key in keys.items()
            if (step == 1 or name in searches)
            and (digit := searches.get(name, Search()).vote(key)) is not None
        }
        union = await _collected(current, digits, total)
        counts = union.counted()
        ballots = {member: union.votes(member) for member in union.by_member}
        names = counts if step == 1 else searches
        searches = {name: searches.get(name, Search()).narrowed(counts.get(name, {})) for name in names}
        last = {name: search.known & ((1 << WIDTH) - 1) for name, search in searches.items()}
    return {name: search.value for name, search in searches.items()}
