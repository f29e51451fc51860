"""Medians of what members have, by votes that are summed along the tree: bounds that no liar can move far.

    middle 1–4      rows of each member, and its mean of each continuous column
    deviation 1–4   root mean square of x − M of each column, of members where it is not 0

See `peerbayes.medians` for the search, and `peerbayes.member_bounds` for what the medians are good for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np

from peerbayes.errors import FalseReport
from peerbayes.medians import DIGITS, WIDTH, Search, key_of
from peerbayes.member_bounds import MemberBounds, deviation_of, mean_of
from peerbayes.peers.errors import RefusedMessage
from peerbayes.peers.pooling import Phase, Total
from peerbayes.peers.summary import LARGEST

Count = Mapping[int, int]  # members by the digit they voted for


@dataclass(frozen=True)
class Votes:
    """Votes of some members, for the next digit of each median."""

    rows: Count = field(default_factory=dict)
    columns: Mapping[str, Count] = field(default_factory=dict)

    def __add__(self, other: Votes) -> Votes:
        names = {*self.columns, *other.columns}
        columns = {name: _added(self.columns.get(name, {}), other.columns.get(name, {})) for name in names}
        return Votes(_added(self.rows, other.rows), columns)

    def pack(self) -> bytes:
        columns = {name: dict(sorted(count.items())) for name, count in sorted(self.columns.items())}
        return msgspec.msgpack.encode([dict(sorted(self.rows.items())), columns])

    @classmethod
    def parse(cls, content: bytes) -> Votes:
        """Votes from outside."""
        if len(content) > LARGEST:
            raise RefusedMessage("too large", f"votes of {len(content):,} bytes; at most {LARGEST:,}")
        try:
            rows, columns = _votes.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError) as error:
            raise RefusedMessage("unreadable", f"not votes: {error}") from error
        for count in (rows, *columns.values()):
            if any(not 0 <= digit < 1 << WIDTH or votes < 1 for digit, votes in count.items()):
                raise RefusedMessage("implausible", "votes for what is no digit, or fewer than one of them")
        return cls(rows, columns)


_votes = msgspec.msgpack.Decoder(tuple[dict[int, int], dict[str, dict[int, int]]])


def _added(mine: Count, theirs: Count) -> Count:
    return dict(Counter(mine) + Counter(theirs))


@dataclass
class LinkVotes:
    """What came over each link in the pass before, so that nobody votes where it has no vote.

    Behind a link, as many members vote for a digit as voted for the one before it that holds the median.
    """

    rows: int | None = None
    """The digit of the rows that the pass before found; None: this is the first."""
    columns: Mapping[str, int] = field(default_factory=dict)
    """The same of each column."""
    before: dict[str, Votes] = field(default_factory=dict)
    now: dict[str, Votes] = field(default_factory=dict)

    def check(self, neighbour: str, part: Votes, members: int) -> None:
        """Refuse more votes than there are members behind a link, or other members' votes than before."""
        before = self.before.get(neighbour)
        self._compare("rows", part.rows, members, None if before is None else before.rows, self.rows)
        for name in {*part.columns, *self.columns}:
            earlier = None if before is None else before.columns.get(name, {})
            self._compare(name, part.columns.get(name, {}), members, earlier, self.columns.get(name))
        self.now[neighbour] = part

    def _compare(
        self, what: str, count: Count, members: int, before: Count | None, digit: int | None
    ) -> None:
        votes = sum(count.values())
        if before is None and votes > members:
            raise FalseReport(f"{votes:,} votes on {what!r:.80}; {members} members lie behind that link")
        if before is not None and votes != (expected := 0 if digit is None else before.get(digit, 0)):
            raise FalseReport(f"{votes:,} votes on {what!r:.80}; {expected} have one, by those before")

    def after(self, rows: Search, columns: Mapping[str, Search]) -> LinkVotes:
        """Return what the next pass is held to, given what this one found."""
        last = (1 << WIDTH) - 1
        return LinkVotes(
            rows.known & last, {name: search.known & last for name, search in columns.items()}, self.now
        )


async def agreed_bounds(rows: int, values: Mapping[str, np.ndarray], total: Total) -> MemberBounds:
    """Return what members may report, from this one's rows and its present values of continuous columns [n]."""
    there = {name: present for name, present in values.items() if present.size}
    means = {name: key_of(mean_of(present)) for name, present in there.items()}
    of_rows, middles = await _medians("middle", key_of(float(rows)), means, total)
    apart = {name: deviation_of(present, middles[name]) for name, present in there.items() if name in middles}
    keys = {name: key_of(deviation) for name, deviation in apart.items() if deviation > 0.0}
    _, deviations = await _medians("deviation", None, keys, total)
    return MemberBounds.of(of_rows, middles, deviations)


async def _medians(
    what: str, rows: int | None, columns: Mapping[str, int], total: Total
) -> tuple[float, dict[str, float]]:
    """Return the median over members of the rows and of each column, from this member's keys."""
    of_rows, searches, links = Search(), dict[str, Search](), LinkVotes()
    for step in range(1, DIGITS + 1):
        own = Votes(
            _one(of_rows, rows),
            {
                name: vote
                for name, key in columns.items()
                if (vote := _one(searches.get(name, Search()), key)) and (step == 1 or name in searches)
            },
        )
        votes = await total(Phase(f"{what} {step}", Votes.parse, check=links.check), own)
        of_rows = of_rows.narrowed(votes.rows)
        names = votes.columns if step == 1 else searches
        searches = {
            name: searches.get(name, Search()).narrowed(votes.columns.get(name, {})) for name in names
        }
        links = links.after(of_rows, searches)
    return of_rows.value, {name: search.value for name, search in searches.items()}


def _one(search: Search, key: int | None) -> Count:
    digit = None if key is None else search.vote(key)
    return {} if digit is None else {digit: 1}
