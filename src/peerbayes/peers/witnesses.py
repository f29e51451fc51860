"""What neighbours said to everybody, by their own signatures: whoever says two things in one round is found out.

Every message that goes to all neighbours alike comes with a signature of (run, round, digest). With its next request a
peer passes on what it got from neighbours that the other has, too; two digests of one peer and round, both signed by
it, prove that it told two stories. Peers without a common neighbour cannot compare: a tree has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from peerbayes.peers.errors import RefusedMessage
from peerbayes.peers.wire import MOST_SAID, Said

REMEMBERED = 4  # rounds around the current one whose statements are compared

Signed = Callable[[Said], bool]  # whether a statement is by whom it says


@dataclass
class Witnesses:
    """Statements of the last rounds, one for each neighbour and round."""

    signed: Signed
    _said: dict[tuple[str, int], Said] = field(default_factory=dict)
    _first_hand: set[tuple[str, int]] = field(default_factory=set)

    def heard(self, said: Said) -> tuple[Said, Said] | None:
        """A statement that came with a message, and was checked; the two that do not fit, where there are such."""
        key = said.name, said.turn
        other = self._said.get(key)
        self._said[key] = said
        self._first_hand.add(key)
        return (other, said) if other is not None and self._differ(other, said) else None

    def told(self, said: Said, by: str, turn: int) -> tuple[Said, Said] | None:
        """What another peer says it was told, at round `turn` of this one; the two that do not fit."""
        key = said.name, said.turn
        if abs(said.turn - turn) > REMEMBERED:
            return None
        other = self._said.setdefault(key, said)
        if other.digest == said.digest:
            return None
        if not self.signed(said):
            raise RefusedMessage(
                "false witness",
                f"{by} says what {said.name} said in round {said.turn}, and its signature does not fit",
            )
        if key not in self._first_hand and not self.signed(other):
            self._said[key] = said  # it was told by somebody else, and never checked
            return None
        return other, said

    def of(self, names: Iterable[str], turn: int) -> tuple[Said, ...]:
        """What these said in a round, as far as this peer heard it itself."""
        keys = ((name, turn) for name in names)
        return tuple(self._said[key] for key in keys if key in self._first_hand)[:MOST_SAID]

    def forget(self, turn: int) -> None:
        """Let go of rounds long before this one."""
        for key in [key for key in self._said if key[1] < turn - REMEMBERED]:
            self._first_hand.discard(key)
            del self._said[key]

    def _differ(self, told: Said, heard: Said) -> bool:
        """Whether both are the sender's word; the second one is known to be."""
        return told.digest != heard.digest and self.signed(told)
