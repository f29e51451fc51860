"""A peer's rounds: receive, learn, evaluate, store; only then may neighbours have its next message."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from peerbayes.errors import NeedsPerson, PeerError, RefusedMessage
from peerbayes.learning.integer_sums import MIN_GROUP
from peerbayes.learning.selection import HELD_OUT, HeldOut, Selection
from peerbayes.learning.state import arrays_of, restored
from peerbayes.model.scaling import Scaling
from peerbayes.peer.agreement.negotiate import Agreed
from peerbayes.peer.agreement.tree_sums import SumIncomplete, TreeSums, pooled
from peerbayes.peer.learning.held_out import Evaluator, ModelFile
from peerbayes.peer.learning.learner import EVERYBODY, Attachment, Broadcaster, Learner, Summing
from peerbayes.peer.learning.masks import Summed
from peerbayes.peer.learning.releases import rounds_in
from peerbayes.peer.learning.selecting import DEADLINES, Selecting
from peerbayes.peer.learning.verdict import is_reference
from peerbayes.peer.protocol import wire
from peerbayes.peer.protocol.equivocation import Blocklist, Evidence
from peerbayes.peer.protocol.mailboxes import Inbox, Messages, Outbox
from peerbayes.peer.protocol.session import Session
from peerbayes.peer.state.folder import leave_command
from peerbayes.peer.state.store import Inputs, PeerState, RoundRecord

QUICK = 0.01  # seconds that neighbours' requests can wait for: what takes less is not worth a thread

# What a message may differ by from the one that was stored, where both follow from the same rounds: another processor
# rounds differently.
SAME = 1e-9


class Rounds:
    """Runs all rounds after the last stored one."""

    def __init__(
        self,
        session: Session,
        store: PeerState,
        inbox: Inbox,
        outbox: Outbox,
        blocklist: Blocklist,
        evidence: Evidence,
        model: ModelFile,
        sums: Callable[[], TreeSums],
    ) -> None:
        self._session, self._store, self._inbox, self._outbox = session, store, inbox, outbox
        self._blocklist, self._evidence, self._model = blocklist, evidence, model
        self._left_out: tuple[str, ...] = ()
        self._sums = sums
        self.selecting: Selecting | None = None
        """What selects a round by held-out rows; None: the last one is kept."""
        self.phases: list[str] = []
        """The names of the sums of the last round, which neighbours may still need."""
        self.notes: tuple[str, ...] = ()
        """Why the run ended before its last round, if that was no agreement."""
        self.settled = ""
        """Why it did, if all stopped together since the model had settled."""

    async def run(self, agreed: Agreed, evaluator: Evaluator) -> np.ndarray:
        """Run the rounds; return S [C, K] after the last of them."""
        session, learner = self._session, agreed.learner
        if session.terms.select == HELD_OUT:
            held_out = HeldOut((evaluator.held_out,), agreed.of_weights)
            shape = len(agreed.schema.classes), agreed.family.size
            self.selecting = Selecting(session, self._sums, held_out, np.zeros(shape))
        state = await self._begun(agreed)
        self._blocklist.strike_off(learner.struck(state))
        session.changes.notify()
        learning, storing = math.inf, math.inf  # seconds of the last round
        while True:
            if self.selecting is not None and await self.selecting.check(learner.read(state)):
                session.stopped = True
            if isinstance(learner, Summing) and learner.settled(state):
                session.stopped = True
                self.settled = (
                    f"all stopped after round {session.round_index} of at most {session.terms.rounds}, since no weight "
                    f"of it was to move by more than {session.terms.tolerance:g}"
                )
            if session.round_index >= session.rounds:
                break
            self._refuse_alone()
            try:
                heard = await self._heard(agreed, state)
            except (SumIncomplete, NeedsPerson) as error:
                self._give_up(error)
                break
            attached, digests = self._inbox.attached, self._inbox.digests
            missing = tuple(
                name for name in learner.neighbours if name not in heard and name not in self._blocklist
            )
            learn = partial(self._learned, agreed, evaluator, state, heard, attached, digests, missing)
            ready, learning = (
                _clocked(learn) if learning < QUICK else await asyncio.to_thread(_clocked, learn)
            )
            began, in_thread = time.monotonic(), storing >= QUICK
            store = partial(self._outbox.stored, agreed, ready)
            messages = await session.room.until("round", store, in_thread)
            storing = time.monotonic() - began
            state = ready.state
            self._close(agreed, ready, messages)
            if time.monotonic() > self._model.due:
                await self._write_model(agreed, learner.read(state), in_thread)
        stats = learner.read(state)
        if self.selecting is not None:
            await self.selecting.fit_scaling()
            if not agreed.of_weights:
                await self.selecting.sum_statistics(agreed.local_rows, self.model(stats))
        likelihood = None if self.selecting is None else self.selecting.likelihood
        write = partial(self._model.write, agreed, self.model(stats), self.scaling, likelihood)
        await session.room.until("model", write)
        return stats

    @property
    def scaling(self) -> Scaling | None:
        """How probabilities follow from the model at the end; None: as the model says."""
        return None if self.selecting is None else self.selecting.scaling

    async def _heard(self, agreed: Agreed, state: Any) -> dict[str, Any]:
        """Return the messages of the coming round; where it is a sum over all peers, that."""
        learner = agreed.learner
        if not isinstance(learner, Summing):
            return await self._inbox.enough(agreed)
        coming, seconds = self._session.round_index + 1, DEADLINES * self._session.terms.limits.deadline
        sums = self._sums()
        self.phases = [f"bound of round {coming}", f"round {coming}"]
        local = await asyncio.to_thread(learner.local, state)
        total = await pooled(
            f"round {coming}", local, lambda phase, values: sums.total(phase, values, seconds)
        )
        for name in (f"bound of round {coming - 1}", f"round {coming - 1}"):
            await asyncio.to_thread(sums.forget, name)
        return {EVERYBODY: total}

    def _give_up(self, error: Exception) -> None:
        """End the run with the model of the last round, since no sum is completed any more."""
        session = self._session
        session.stopped = True
        self.notes = (
            f"all peers were to take {session.terms.rounds} rounds, and it ended after {session.round_index}: {error}",
        )
        session.emit("not selected", reason=self.notes[0])

    def model(self, stats: np.ndarray) -> np.ndarray:
        """Return S [C, K] of this peer's model at the end: `stats` of the last round, or of the one kept."""
        return stats if self.selecting is None else self.selecting.model(stats)

    async def _write_model(self, agreed: Agreed, stats: np.ndarray, in_thread: bool) -> None:
        """Write the current model. While the disk is full, the previous file stays."""
        with self._session.room.noting("model"):
            if in_thread:
                await asyncio.to_thread(self._model.write, agreed, stats)
            else:
                self._model.write(agreed, stats)

    async def _begun(self, agreed: Agreed) -> Any:
        """Return the state before the next round: the initial one, or the last one stored."""
        stored = self._store.last()
        if agreed.private is not None:
            agreed.private.done = rounds_in(self._store.releases())
            agreed.private.resting = stored is not None  # its state is on disk: nothing is drawn for it again
        state = await asyncio.to_thread(agreed.learner.begin)
        if stored is None:
            ready = self._with_selection(await asyncio.to_thread(self._outbox.prepared, agreed, 0, state))
            self._outbox.show(
                await self._session.room.until("round", partial(self._outbox.stored, agreed, ready))
            )
        else:
            whole, nested = stored
            arrays = _flat(nested)
            if self.selecting is not None:
                count = len(self.selecting.selection)
                self.selecting.selection = Selection(*arrays[-count:])
                arrays = arrays[:-count]
            # A run that began before there were corrections by link goes on with corrections of zero, which come last.
            state = restored(state, iter([*arrays, *arrays_of(state)[len(arrays) :]]))
            self._session.round_index, state = await asyncio.to_thread(self._followed, agreed, whole, state)
            self._session.emit("resumed", round=self._session.round_index)
        if agreed.private is not None:
            agreed.private.resting = False
        self._left_out = self._ahead(agreed)
        return state

    def _followed(self, agreed: Agreed, round_index: int, state: Any) -> tuple[int, Any]:
        """Return the last round and the state after it: that after a round, and the same steps as then."""
        learner, began = agreed.learner, round_index
        for coming, inputs in self._store.inputs(round_index):
            heard = {name: message.reshape(learner.shape) for name, message in inputs.messages.items()}
            attached = {
                name: beside
                if beside.correction is None
                else beside._replace(correction=beside.correction.reshape(learner.shape))
                for name, beside in inputs.attached.items()
            }
            round_index, state = coming, learner.step(state, heard, attached, inputs.gone)
        if round_index > began:
            self._refuse_other(learner, round_index, state)
        return round_index, state

    def _refuse_other(self, learner: Learner, round_index: int, state: Any) -> None:
        """Refuse a state whose message is not the one that was stored, and may have been sent."""
        for name, message in learner.outgoing(state).items():
            stored = self._store.message(round_index + 1, name)
            if stored is None:
                continue
            before = wire.numbers_of(stored.body, message.shape)
            if np.abs(message - before).max() > SAME * np.abs(before).max():
                raise NeedsPerson(
                    f"{self._store.path}: the rounds up to {round_index} do not give the message that was stored with "
                    "them, as if the rows or the program had changed in between. Go on with the peerbayes that they "
                    f"were learned with, or give up the run with `{leave_command(self._store.path.parent)}`"
                )

    def _learned(
        self,
        agreed: Agreed,
        evaluator: Evaluator,
        state: Any,
        heard: dict[str, Any],
        attached: dict[str, Attachment],
        digests: dict[str, bytes],
        missing: tuple[str, ...],
    ) -> RoundRecord:
        """Compute one round, not stored yet; in a thread if it is slow, so that neighbours are answered meanwhile."""
        gone = [name for name in agreed.learner.neighbours if name not in self._session.neighbours]
        before, state = state, agreed.learner.step(state, self._gathered(state, heard), attached, gone)
        round_index, figures = self._session.round_index + 1, {}
        if round_index == self._session.terms.message_rounds or evaluator.is_due:
            figures = evaluator.figures(agreed.learner.read(state))
            figures["disagreement"] = agreed.learner.apart(before, heard)
        reference = None
        if is_reference(self._session.terms, round_index):
            reference = agreed.learner.read(state)
        ready = self._outbox.prepared(
            agreed,
            round_index,
            state,
            tuple(filter(None, heard)),
            missing,
            figures,
            self._left_out,
            reference,
        )
        if self._follows(agreed, round_index, heard, digests):
            ready = ready._replace(inputs=Inputs(heard, digests, attached, tuple(gone)))
        return self._with_selection(ready)

    def _follows(
        self, agreed: Agreed, round_index: int, heard: dict[str, Any], digests: dict[str, bytes]
    ) -> bool:
        """Return whether the state after a round may be stored as what it follows from; the last one is stored whole.

        With noise it follows from what is drawn, too, and is stored whole; likewise under masks and with a selection.
        """
        return (
            isinstance(agreed.learner, Broadcaster)
            and agreed.learner.follows
            and agreed.private is None
            and self.selecting is None
            and round_index < self._session.terms.message_rounds
            and all(digests.get(name) for name in heard)
        )

    def _with_selection(self, ready: RoundRecord) -> RoundRecord:
        """Return a record with the round that is kept so far."""
        return ready if self.selecting is None else ready._replace(selection=self.selecting.selection)

    def _gathered(self, state: Any, heard: dict[str, Any]) -> Any:
        """Return the input of the learner: the messages received, or their sum where they are masked."""
        session = self._session
        if (masked := session.masked) is None:
            return heard
        try:
            group_sum = masked.summed(state, heard, session.round_index + 1)
        except RefusedMessage as error:
            session.refuse("the group", error)
            group_sum = Summed(None, why=f"refused: {error.reason}")
        if group_sum.total is None and masked.neighbours:
            session.emit("skipped", round=session.round_index + 1, why=group_sum.why)
        return group_sum

    def _close(self, agreed: Agreed, ready: RoundRecord, messages: Messages) -> None:
        """Advance to the next round: what was stored may now be requested."""
        session = self._session
        session.round_index += 1
        self._left_out = self._ahead(agreed)
        self._outbox.show(messages)
        self._inbox.clear()
        self._evidence.forget()
        self._blocklist.strike_off(agreed.learner.struck(ready.state))
        session.changes.notify()
        spent = {} if agreed.private is None else {"epsilon": agreed.private.spent}
        session.emit(
            "round", round=session.round_index, of=session.terms.message_rounds, heard=sorted(ready.heard),
            missing=sorted(ready.missing), figures=ready.figures or {}, waited=session.waiting,
            by_sum=isinstance(agreed.learner, Summing), **spent,
        )  # fmt: skip

    def _ahead(self, agreed: Agreed) -> tuple[str, ...]:
        """Return the neighbours that have already closed the coming round: this peer's message is too late for them."""
        coming = self._session.round_index + 1
        return tuple(
            name for name in agreed.learner.neighbours if self._session.neighbour(name).done >= coming
        )

    def _refuse_alone(self) -> None:
        """Stop if so many members were revoked that this peer no longer has a group."""
        masked, name, roster = self._session.masked, self._session.name, self._session.roster
        if masked is not None and masked.neighbours and name not in masked.groups(roster):
            raise PeerError(
                f"roster {roster.version} revoked {', '.join(roster.revoked)}, and fewer than {MIN_GROUP} "
                f"neighbours of {name} are left to sum; the model stays as it is. Create another network to continue"
            )


def _clocked(learn: Callable[[], RoundRecord]) -> tuple[RoundRecord, float]:
    """Return a round, and the seconds that it took this thread: waiting for the processor is no reason for another."""
    began = time.thread_time()
    return learn(), time.thread_time() - began


def _flat(nested: Any) -> list[np.ndarray]:
    return [array for inner in nested for array in _flat(inner)] if isinstance(nested, list) else [nested]
