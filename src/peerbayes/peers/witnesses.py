"""Detect equivocation: neighbours sign what they send to everybody, so two different messages in one round are found.

Every message that goes to all neighbours alike comes with a signature of (run, round, digest). With its next request a
peer passes on the signatures of common neighbours; two digests of one peer and round, both signed by it, prove that it
equivocated. Peers without a common neighbour cannot compare: a tree has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from peerbayes.peers.errors import RefusedMessage
from peerbayes.peers.wire import MOST_SAID, Said

REMEMBERED = 4  # rounds around the current one whose statements are compared

Signed = Callable[[Said], bool]  # whether a statement is signed by its author


@dataclass
class Witnesses:
    """Statements of the last rounds, one for each neighbour and round."""

    signed: Signed
    _statements: dict[tuple[str, int], Said] = field(default_factory=dict)
    _first_hand: set[tuple[str, int]] = field(default_factory=set)

    def heard(self, statement: Said) -> tuple[Said, Said] | None:
        """Add a verified statement that came with a message; return two contradictory statements, or None."""
        key = statement.name, statement.turn
        earlier = self._statements.get(key)
        self._statements[key] = statement
        self._first_hand.add(key)
        return (earlier, statement) if earlier is not None and self._differ(earlier, statement) else None

    def told(self, statement: Said, by: str, round_index: int) -> tuple[Said, Said] | None:
        """Add a statement passed on by another peer, at this peer's round; return two contradictory ones, or None."""
        key = statement.name, statement.turn
        if abs(statement.turn - round_index) > REMEMBERED:
            return None
        earlier = self._statements.setdefault(key, statement)
        if earlier.digest == statement.digest:
            return None
        if not self.signed(statement):
            raise RefusedMessage(
                "false witness",
                f"{by} passed on a statement of {statement.name} in round {statement.turn} with a wrong signature",
            )
        if key not in self._first_hand and not self.signed(earlier):
            self._statements[key] = statement  # it was passed on by somebody else, and never verified
            return None
        return earlier, statement

    def of(self, names: Iterable[str], round_index: int) -> tuple[Said, ...]:
        """Return the statements of these peers in a round that this peer received first-hand."""
        keys = ((name, round_index) for name in names)
        return tuple(self._statements[key] for key in keys if key in self._first_hand)[:MOST_SAID]

    def forget(self, round_index: int) -> None:
        """Forget rounds long before this one."""
        for key in [key for key in self._statements if key[1] < round_index - REMEMBERED]:
            self._first_hand.discard(key)
            del self._statements[key]

    def _differ(self, earlier: Said, statement: Said) -> bool:
        """Return whether two statements contradict and both are signed; the second is known to be."""
        return earlier.digest != statement.digest and self.signed(earlier)
