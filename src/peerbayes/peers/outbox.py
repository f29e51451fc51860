"""What this peer says in a round: on disk first, and only then for neighbours to have."""

from __future__ import annotations

import asyncio
from typing import Any, Literal, NamedTuple

import numpy as np

from peerbayes.peers import wire
from peerbayes.peers.agreement import Agreed
from peerbayes.peers.ledger import Ledger
from peerbayes.peers.standing import Standing
from peerbayes.peers.store import Store


class Ready(NamedTuple):
    """Bytes that may leave."""

    body: bytes
    digest: bytes
    shape: tuple[int, ...] = ()
    group: str = ""
    """The digest of the group that a masked message was made for."""


Messages = dict[tuple[int, str], Ready]  # by round and receiver
Found = Ready | Literal["gone"] | None  # None: not yet


class Outbox:
    """This peer's messages. The last two rounds' are at hand, older ones come from the store."""

    def __init__(self, standing: Standing, store: Store, ledger: Ledger) -> None:
        self._standing, self._store, self._ledger = standing, store, ledger
        self._ready: Messages = {}

    def stored(
        self,
        agreed: Agreed,
        turn: int,
        state: Any,
        heard: tuple[str, ...] = (),
        missing: tuple[str, ...] = (),
        figures: dict[str, float | None] | None = None,
        left_out: tuple[str, ...] = (),
        reference: np.ndarray | None = None,
    ) -> Messages:
        """Store a round, and the messages of the next as bytes: only now may neighbours have them."""
        last = turn >= self._standing.terms.rounds
        outgoing, groups = ({}, {}) if last else self._outgoing(agreed, state, turn + 1)
        private = agreed.private
        release = None if private is None else private.taken()
        digests = self._store.add_round(
            turn, state, outgoing, heard, missing, figures, groups, release, left_out, reference
        )
        if private is not None and release is not None:
            self._ledger.enter(release.name)
            private.done += 1
        self._standing.stored = self._store.stored()
        bodies = {digests[name]: message for name, message in outgoing.items()}
        ready = {digest: wire.bytes_of(message) for digest, message in bodies.items()}
        return {
            (turn + 1, name): Ready(ready[digests[name]], digests[name], message.shape, groups.get(name, ""))
            for name, message in outgoing.items()
        }

    def _outgoing(
        self, agreed: Agreed, state: Any, turn: int
    ) -> tuple[dict[str, np.ndarray], dict[str, str]]:
        """The messages of a round by receiver, and the groups that they were masked for."""
        if (masked := self._standing.masked) is None:
            return agreed.learner.outgoing(state), {}
        hidden = masked.hidden(state, turn, self._standing.roster)
        return (
            {name: each.words for name, each in hidden.items()},
            {name: each.group for name, each in hidden.items()},
        )

    def show(self, messages: Messages) -> None:
        """Let neighbours have what was stored. One may be a round behind: what it lacks stays at hand, too."""
        turn = self._standing.turn
        self._ready = {key: ready for key, ready in self._ready.items() if key[0] == turn} | messages

    async def find(self, agreed: Agreed, turn: int, receiver: str) -> Found:
        """The message of a round to a neighbour."""
        if (ready := self._ready.get((turn, receiver))) is not None:
            return ready
        stored = await asyncio.to_thread(self._store.message, turn, receiver)
        if stored is None:
            return "gone" if turn < self._store.oldest() else None
        return Ready(*stored, agreed.learner.shape, self._store.group(turn, receiver))
