"""What this peer says in a round: on disk first, and only then for neighbours to have."""

from __future__ import annotations

import asyncio
from typing import Any, Literal, NamedTuple

import numpy as np

from peerbayes.peers import wire
from peerbayes.peers.agreement import Agreed
from peerbayes.peers.ledger import Ledger
from peerbayes.peers.releases import Release
from peerbayes.peers.standing import Standing
from peerbayes.peers.store import Store


class Ready(NamedTuple):
    """Bytes that may leave."""

    body: bytes
    digest: bytes
    shape: tuple[int, ...] = ()
    group: str = ""
    """The digest of the group that a masked message was made for."""


class Prepared(NamedTuple):
    """A round and what follows from it, in the order of `Store.add_round`."""

    turn: int
    state: Any
    outgoing: dict[str, np.ndarray]
    heard: tuple[str, ...]
    missing: tuple[str, ...]
    figures: dict[str, float | None] | None
    groups: dict[str, str]
    release: Release | None
    left_out: tuple[str, ...]
    reference: np.ndarray | None


Messages = dict[tuple[int, str], Ready]  # by round and receiver
Found = Ready | Literal["gone"] | None  # None: not yet


class Outbox:
    """This peer's messages. The last two rounds' are at hand, older ones come from the store."""

    def __init__(self, standing: Standing, store: Store, ledger: Ledger) -> None:
        self._standing, self._store, self._ledger = standing, store, ledger
        self._ready: Messages = {}
        self._last: tuple[Prepared, dict[str, bytes]] | None = (
            None  # the round that was stored last, and its digests
        )

    def prepared(
        self,
        agreed: Agreed,
        turn: int,
        state: Any,
        heard: tuple[str, ...] = (),
        missing: tuple[str, ...] = (),
        figures: dict[str, float | None] | None = None,
        left_out: tuple[str, ...] = (),
        reference: np.ndarray | None = None,
    ) -> Prepared:
        """Return a round as it is to be stored, and the messages of the next: made once, whatever the disk does."""
        last = turn >= self._standing.terms.rounds
        outgoing, groups = ({}, {}) if last else self._outgoing(agreed, state, turn + 1)
        release = None if agreed.private is None else agreed.private.taken()
        return Prepared(turn, state, outgoing, heard, missing, figures, groups, release, left_out, reference)

    def stored(self, agreed: Agreed, ready: Prepared) -> Messages:
        """Store a round, and the messages of the next as bytes: only now may neighbours have them.

        Where that fails, it can be tried again: what was stored already is not stored twice.
        """
        if self._last is None or self._last[0] is not ready:
            self._last = ready, self._store.add_round(*ready)
        digests = self._last[1]
        if agreed.private is not None and ready.release is not None:
            self._ledger.enter(ready.release.name)
            agreed.private.done += 1
        self._standing.stored = self._store.stored()
        distinct = {digests[name]: message for name, message in ready.outgoing.items()}
        bodies = {digest: wire.bytes_of(message) for digest, message in distinct.items()}
        return {
            (ready.turn + 1, name): Ready(
                bodies[digests[name]], digests[name], message.shape, ready.groups.get(name, "")
            )
            for name, message in ready.outgoing.items()
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
