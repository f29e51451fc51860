"""One peer's side of a strategy with secure sums: it sends masked words, and learns from its group's sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from peerbayes.errors import PeerError, RefusedMessage
from peerbayes.learning.planning import mixing_weights
from peerbayes.learning.robust.invariants import Invariants
from peerbayes.learning.secure_sums import projected, rounding
from peerbayes.peer.identity.roster import Roster
from peerbayes.peer.learning.learner import Broadcaster
from peerbayes.peer.learning.masks import Group, Masker, groups, summed


class Words(NamedTuple):
    """A masked message: the digest of the group that it was made for, and m_u."""

    group: str
    words: np.ndarray  # uint64


class Summed(NamedTuple):
    """The result of a round: Σ_u a_vu φ_u of the group and Σ_u a_vu. None: the peer keeps its own statistics."""

    total: np.ndarray | None
    share: float = 0.0
    why: str = ""


@dataclass(frozen=True, eq=False)
class Masked:
    """A broadcaster whose single messages nobody can read."""

    plain: Broadcaster
    plausible: Invariants
    masker: Masker
    keys: Mapping[str, bytes]
    """Public keys by name."""
    sending_weights: Mapping[str, float]
    """a_vu of each receiver v, with u this peer: senders apply the weights, since a receiver cannot."""
    _groups_by_version: dict[int, dict[str, tuple[str, ...]]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        plain: Broadcaster,
        plausible: Invariants,
        masker: Masker,
        keys: Mapping[str, bytes],
        roster: Roster,
    ) -> Masked:
        """Make a masked learner with the mixing weights of the roster's links."""
        sending_weights: dict[str, float] = {}
        if plain.neighbours:
            own_index = roster.place(masker.name)
            column = mixing_weights(plain.strategy, roster.adjacency())[:, [own_index]].toarray()[:, 0]
            sending_weights = {name: float(column[roster.place(name)]) for name in plain.neighbours}
        return cls(plain, plausible, masker, keys, sending_weights)

    @property
    def neighbours(self) -> tuple[str, ...]:
        return self.plain.neighbours

    @property
    def shape(self) -> tuple[int, ...]:
        return self.plain.shape

    @property
    def same_to_all(self) -> bool:
        return False

    def struck(self, state: Any) -> tuple[str, ...]:
        return ()

    def begin(self) -> Any:
        return self.plain.begin()

    def read(self, state: Any) -> np.ndarray:
        return self.plain.read(state)

    def apart(self, state: Any, heard: Any) -> float | None:
        return None  # single messages are unknown

    def outgoing(self, state: Any) -> dict[str, np.ndarray]:
        raise AssertionError(
            "a masked message is made for a round and a roster; nothing leaves without a mask"
        )

    def groups(self, roster: Roster) -> dict[str, tuple[str, ...]]:
        """Return the group of each receiver under a roster."""
        if roster.version not in self._groups_by_version:
            self._groups_by_version.clear()
            self._groups_by_version[roster.version] = groups(roster)
        return self._groups_by_version[roster.version]

    def hidden(self, state: Any, round_index: int, roster: Roster) -> dict[str, Words]:
        """Return the masked message of a round to every neighbour whose group includes this peer."""
        masked, all_groups = {}, self.groups(roster)
        for receiver, message in self.plain.outgoing(state).items():
            names = all_groups.get(receiver, ())
            if self.masker.name not in names:
                continue
            group = self._group(receiver, names)
            try:
                words = self.masker.words(self.sending_weights[receiver] * message, round_index, group)
            except ValueError as error:
                raise PeerError(
                    f"nothing can be sent to {receiver} in round {round_index}: {error}. Create a network with a "
                    "larger lr, or without secure_sum"
                ) from error
            masked[receiver] = Words(group.digest, words)
        return masked

    def summed(self, state: Any, heard: Mapping[str, Words], round_index: int) -> Summed:
        """Return the group's sum, if it is complete; RefusedMessage where no honest group can have it."""
        if not heard:
            return Summed(None, why="nobody was heard")
        digests = {words.group for words in heard.values()}
        if self._group(self.masker.name, tuple(sorted(heard))).digest not in digests or len(digests) > 1:
            lacking = [name for name in self.neighbours if name not in heard]
            if not lacking:
                raise RefusedMessage(
                    "other group", "neighbours masked for other groups than the one that was heard"
                )
            return Summed(None, why=f"not heard: {', '.join(lacking)}")
        share = sum(self.plain.weights[name] for name in heard)
        total = summed(heard[name].words for name in sorted(heard))
        classes = total.shape[-2]
        widest = max([classes, *(cells.stop - cells.start + 1 for cells in self.plausible.cells)])
        slack = rounding(len(heard), widest) / share
        if (violation := self.plausible.violation(total / share, round_index, slack)) is not None:
            raise RefusedMessage.of(violation)
        own_message = self.plain.strategy.message(state)[0]
        conserved = self.plausible.sums is not None
        return Summed(projected(total, own_message, share, conserved, self.plausible.cells), share)

    def step(self, state: Any, heard: Any) -> Any:
        """Learn from a `Summed`."""
        own_message = self.plain.strategy.message(state)
        mixed = own_message if heard.total is None else (1.0 - heard.share) * own_message + heard.total[None]
        return self.plain.strategy.step(state, mixed, self.plain.residual)

    def _group(self, receiver: str, names: tuple[str, ...]) -> Group:
        return Group(receiver, {name: self.keys[name] for name in names})
