"""A peer's rounds: hear, learn, judge, store; only then may neighbours have what it says next."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

import numpy as np

from peerbayes.checkpoints import restored
from peerbayes.peers.agreement import Agreed
from peerbayes.peers.errors import PeerError, RefusedMessage
from peerbayes.peers.evidence import Evidence
from peerbayes.peers.inbox import Inbox
from peerbayes.peers.judge import Judge
from peerbayes.peers.masked import Summed
from peerbayes.peers.model_file import ModelFile
from peerbayes.peers.outbox import Messages, Outbox, Prepared
from peerbayes.peers.parted import Parted
from peerbayes.peers.releases import rounds_in
from peerbayes.peers.standing import Standing
from peerbayes.peers.store import Store
from peerbayes.peers.verdict import last_rounds
from peerbayes.secure_sums import MIN_GROUP

QUICK = 0.01  # seconds of a round that neighbours' requests can wait for


class Rounds:
    """From the first round, or the one after the last that is stored, to the last."""

    def __init__(
        self,
        standing: Standing,
        store: Store,
        inbox: Inbox,
        outbox: Outbox,
        parted: Parted,
        evidence: Evidence,
        model: ModelFile,
    ) -> None:
        self._standing, self._store, self._inbox, self._outbox = standing, store, inbox, outbox
        self._parted, self._evidence, self._model = parted, evidence, model
        self._left_out: tuple[str, ...] = ()

    async def run(self, agreed: Agreed, judge: Judge) -> np.ndarray:
        """S [C, K] of this peer's model."""
        standing, learner = self._standing, agreed.learner
        state = await self._begun(agreed)
        self._parted.strike_off(learner.struck(state))
        standing.news.tell()
        quick = False
        while standing.turn < standing.terms.rounds:
            self._refuse_alone()
            heard = await self._inbox.enough(agreed)
            missing = tuple(
                name for name in learner.neighbours if name not in heard and name not in self._parted
            )
            began = time.monotonic()
            if quick:  # a thread would cost more than it saves
                ready = self._learned(agreed, judge, state, heard, missing)
            else:
                ready = await asyncio.to_thread(self._learned, agreed, judge, state, heard, missing)
            messages = await standing.room.until(
                "round", partial(self._outbox.stored, agreed, ready), not quick
            )
            if time.monotonic() > self._model.due:
                await self._write_model(agreed, learner.read(ready.state), not quick)
            quick = time.monotonic() - began < QUICK
            state = ready.state
            self._close(agreed, ready, messages)
        stats = learner.read(state)
        await standing.room.until("model", partial(self._model.write, agreed, stats))
        return stats

    async def _write_model(self, agreed: Agreed, stats: np.ndarray, in_thread: bool) -> None:
        """Write the model as it is now. Where the disk is full, the one that is there stays until there is room."""
        try:
            if in_thread:
                await asyncio.to_thread(self._model.write, agreed, stats)
            else:
                self._model.write(agreed, stats)
        except OSError as error:
            if not self._standing.room.note("model", error):
                raise
        else:
            self._standing.room.clear("model")

    async def _begun(self, agreed: Agreed) -> Any:
        """The state before the next round: the first one, or the last that is stored."""
        stored = self._store.last()
        if agreed.private is not None:
            agreed.private.done = rounds_in(self._store.releases())
            agreed.private.resting = stored is not None  # its state is on disk: nothing is drawn for it again
        state = await asyncio.to_thread(agreed.learner.begin)
        if stored is None:
            ready = await asyncio.to_thread(self._outbox.prepared, agreed, 0, state)
            self._outbox.show(
                await self._standing.room.until("round", partial(self._outbox.stored, agreed, ready))
            )
        else:
            self._standing.turn, nested = stored
            state = restored(state, iter(_flat(nested)))
            self._standing.tell("resumed", round=self._standing.turn)
        if agreed.private is not None:
            agreed.private.resting = False
        self._left_out = self._ahead(agreed)
        return state

    def _learned(
        self, agreed: Agreed, judge: Judge, state: Any, heard: dict[str, Any], missing: tuple[str, ...]
    ) -> Prepared:
        """One round, not stored yet. In a thread where it takes long, so that neighbours get answers meanwhile."""
        before, state = state, agreed.learner.step(state, self._gathered(state, heard))
        turn, figures = self._standing.turn + 1, {}
        if turn == self._standing.terms.rounds or time.monotonic() > judge.due:
            figures = judge.figures(agreed.learner.read(state))
            figures["disagreement"] = agreed.learner.apart(before, heard)
        reference = None
        if turn == self._standing.terms.rounds - last_rounds(self._standing.terms.rounds):
            reference = agreed.learner.read(state)
        return self._outbox.prepared(
            agreed, turn, state, tuple(heard), missing, figures, self._left_out, reference
        )

    def _gathered(self, state: Any, heard: dict[str, Any]) -> Any:
        """What the learner takes: the messages heard, or their sum where they are masked."""
        standing = self._standing
        if (masked := standing.masked) is None:
            return heard
        try:
            found = masked.summed(state, heard, standing.turn + 1)
        except RefusedMessage as error:
            standing.refuse("the group", error)
            found = Summed(None, why=f"refused: {error.reason}")
        if found.total is None and masked.neighbours:
            standing.tell("skipped", round=standing.turn + 1, why=found.why)
        return found

    def _close(self, agreed: Agreed, ready: Prepared, messages: Messages) -> None:
        """Go on to the next round: what was stored may be asked for."""
        standing = self._standing
        standing.turn += 1
        self._left_out = self._ahead(agreed)
        self._outbox.show(messages)
        self._inbox.clear()
        self._evidence.forget()
        self._parted.strike_off(agreed.learner.struck(ready.state))
        standing.news.tell()
        spent = {} if agreed.private is None else {"epsilon": agreed.private.spent}
        standing.tell(
            "round", round=standing.turn, of=standing.terms.rounds, heard=sorted(ready.heard),
            missing=sorted(ready.missing), figures=ready.figures or {}, **spent,
        )  # fmt: skip

    def _ahead(self, agreed: Agreed) -> tuple[str, ...]:
        """Return the neighbours that have closed the coming round already: what this peer says in it comes too late."""
        coming = self._standing.turn + 1
        return tuple(name for name in agreed.learner.neighbours if self._standing.line(name).done >= coming)

    def _refuse_alone(self) -> None:
        """Stop where so many were revoked that this peer has no group any more."""
        masked, name, roster = self._standing.masked, self._standing.name, self._standing.roster
        if masked is not None and masked.neighbours and name not in masked.groups(roster):
            raise PeerError(
                f"roster {roster.version} revoked {', '.join(roster.revoked)}, and fewer than {MIN_GROUP} "
                f"neighbours of {name} are left to sum; the model stays as it is. Found another network to go on"
            )


def _flat(nested: Any) -> list[np.ndarray]:
    return [part for inner in nested for part in _flat(inner)] if isinstance(nested, list) else [nested]
