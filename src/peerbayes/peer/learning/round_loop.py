"""A peer's rounds: receive, learn, evaluate, store; only then may neighbours have its next message."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

import numpy as np

from peerbayes.errors import PeerError, RefusedMessage
from peerbayes.learning.secure_sums import MIN_GROUP
from peerbayes.learning.state import restored
from peerbayes.peer.agreement.negotiate import Agreed
from peerbayes.peer.learning.held_out import Judge, ModelFile
from peerbayes.peer.learning.masked import Summed
from peerbayes.peer.learning.releases import rounds_in
from peerbayes.peer.learning.verdict import last_rounds
from peerbayes.peer.protocol.equivocation import Evidence, Parted
from peerbayes.peer.protocol.mailboxes import Inbox, Messages, Outbox, Prepared
from peerbayes.peer.protocol.session import Standing
from peerbayes.peer.state.peer_state import PeerState

QUICK = 0.01  # seconds of a round that neighbours' requests can wait for


class Rounds:
    """Runs all rounds after the last stored one."""

    def __init__(
        self,
        standing: Standing,
        store: PeerState,
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
        """Run the rounds; return S [C, K] of this peer's model."""
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
        """Write the current model. While the disk is full, the previous file stays."""
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
        """Return the state before the next round: the initial one, or the last one stored."""
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
        """Compute one round, not stored yet; in a thread if it is slow, so that neighbours are answered meanwhile."""
        before, state = state, agreed.learner.step(state, self._gathered(state, heard))
        round_index, figures = self._standing.turn + 1, {}
        if round_index == self._standing.terms.rounds or time.monotonic() > judge.due:
            figures = judge.figures(agreed.learner.read(state))
            figures["disagreement"] = agreed.learner.apart(before, heard)
        reference = None
        if round_index == self._standing.terms.rounds - last_rounds(self._standing.terms.rounds):
            reference = agreed.learner.read(state)
        return self._outbox.prepared(
            agreed, round_index, state, tuple(heard), missing, figures, self._left_out, reference
        )

    def _gathered(self, state: Any, heard: dict[str, Any]) -> Any:
        """Return the input of the learner: the messages received, or their sum where they are masked."""
        standing = self._standing
        if (masked := standing.masked) is None:
            return heard
        try:
            group_sum = masked.summed(state, heard, standing.turn + 1)
        except RefusedMessage as error:
            standing.refuse("the group", error)
            group_sum = Summed(None, why=f"refused: {error.reason}")
        if group_sum.total is None and masked.neighbours:
            standing.tell("skipped", round=standing.turn + 1, why=group_sum.why)
        return group_sum

    def _close(self, agreed: Agreed, ready: Prepared, messages: Messages) -> None:
        """Advance to the next round: what was stored may now be requested."""
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
        """Return the neighbours that have already closed the coming round: this peer's message is too late for them."""
        coming = self._standing.turn + 1
        return tuple(name for name in agreed.learner.neighbours if self._standing.line(name).done >= coming)

    def _refuse_alone(self) -> None:
        """Stop if so many members were revoked that this peer no longer has a group."""
        masked, name, roster = self._standing.masked, self._standing.name, self._standing.roster
        if masked is not None and masked.neighbours and name not in masked.groups(roster):
            raise PeerError(
                f"roster {roster.version} revoked {', '.join(roster.revoked)}, and fewer than {MIN_GROUP} "
                f"neighbours of {name} are left to sum; the model stays as it is. Create another network to continue"
            )


def _flat(nested: Any) -> list[np.ndarray]:
    return [array for inner in nested for array in _flat(inner)] if isinstance(nested, list) else [nested]
