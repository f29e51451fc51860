"""Faults of a simulated network: which messages of a round arrive, and whose state stays because it is away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from array_api_compat import array_namespace, device
from scipy.sparse import csr_array

from peerbayes.data.table import Array
from peerbayes.network import LossTrace
from peerbayes.network.fault_kinds import Draws, Fault
from peerbayes.network.mixing import rows_of

LOSS_STREAM = 3  # separates the faults of a round from other random numbers of the same seed

State = TypeVar("State")


@dataclass(frozen=True)
class Faults:
    """Lost and late messages, and peers that are away.

    A message is lost with probability `loss`, drawn independently for each message and round, or where the trace has
    it, or by one of the `kinds`, or where its sender or its receiver is away; otherwise, with probability `late`, its
    link lags: the message of the previous round arrives instead, and in the first round none. A strategy that cannot
    use an old message goes on without it.
    """

    loss: float
    seed: int
    late: float = 0.0
    trace: LossTrace | None = None
    kinds: tuple[Fault, ...] = ()
    nodes: int = 0
    """The number of peers; only `kinds` need it."""

    @classmethod
    def of(
        cls,
        message_loss: float | LossTrace,
        message_delay: float,
        seed: int,
        faults: tuple[Fault | LossTrace, ...],
        nodes: int,
    ) -> Faults:
        """Return the faults of a simulation's settings, or refuse those of peers that do not exist."""
        kinds, trace = tuple(fault for fault in faults if isinstance(fault, Fault)), None
        for name, part in (("message_loss", message_loss), *(("faults", fault) for fault in faults)):
            if not isinstance(part, LossTrace):
                continue
            if part.nodes > nodes:
                raise ValueError(
                    f"{name} loses messages of peer {part.nodes - 1}, and there are {nodes} peers, counted from 0; "
                    "expected the trace of a network of these peers"
                )
            trace = part if trace is None else trace | part
        if (largest := max((kind.largest for kind in kinds), default=-1)) >= nodes:
            raise ValueError(
                f"faults: they name peer {largest}, and there are {nodes} peers, counted from 0; expected some of these"
            )
        loss = 0.0 if isinstance(message_loss, LossTrace) else message_loss
        return cls(loss, seed, message_delay, trace, kinds, nodes)

    @property
    def expected(self) -> bool:
        """Whether peers expect faults, and plan for them: probabilities are settings that all know.

        A trace is what happened to peers that did not know of it beforehand, as real peers do not; so are `kinds`.
        """
        return bool(self.loss or self.late)

    @property
    def occur(self) -> bool:
        """Whether any message may be missing."""
        return self.expected or bool(self.trace) or bool(self.kinds)

    def fates(
        self, round_index: int, senders: np.ndarray, receivers: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return which links deliver the message of this round, and which that of the last: two [E] of booleans.

        senders [E] and receivers [E]: the ends of each link, in the order of the mixing matrix's entries.
        """
        draws = np.random.default_rng([self.seed, LOSS_STREAM, round_index]).random(len(senders))
        in_time = draws >= self.loss + (1.0 - self.loss) * self.late
        late = (draws >= self.loss) & ~in_time
        arrives = np.ones(len(senders), dtype=bool)
        if self.trace is not None:
            arrives &= ~self.trace.lost(round_index, senders, receivers)
        if self.kinds:
            present = self.present(round_index)
            arrives &= present[senders] & present[receivers]
        for kind, drawn in self._drawn:
            arrives &= ~kind.lost(round_index, senders, receivers, drawn)
        return in_time & arrives, late & arrives

    def of_entries(self, round_index: int, mixing: csr_array) -> tuple[np.ndarray, np.ndarray]:
        """Return `fates` of the stored entries of a mixing matrix [N, N]: entry [v, u] is the message from u to v."""
        return self.fates(round_index, mixing.indices, rows_of(mixing))

    @property
    def _drawn(self) -> list[tuple[Fault, Draws]]:
        """The kinds of faults, each with random numbers of its own."""
        return [(kind, Draws(self.seed, index, self.nodes)) for index, kind in enumerate(self.kinds, start=1)]

    def present(self, round_index: int) -> np.ndarray:
        """Return which peers take part in a round: [N] of booleans."""
        present = np.ones(self.nodes, dtype=bool)
        for kind, draws in self._drawn:
            present &= ~kind.away(round_index, draws)
        return present

    def gone(self, round_index: int) -> np.ndarray:
        """Return the peers that are away in a round and do not come back: their numbers, in order."""
        gone = np.zeros(self.nodes, dtype=bool)
        for kind, draws in self._drawn:
            gone |= kind.gone(round_index, draws)
        return np.flatnonzero(gone)

    def sent(self, round_index: int, amounts: np.ndarray) -> np.ndarray:
        """Return what each peer sends in a round, nothing where it is away: [N] -> [N]."""
        return amounts * self.present(round_index) if self.kinds else amounts

    def stays(self, round_index: int, before: State, after: State, owners: np.ndarray | None = None) -> State:
        """Return the state after a round, in which peers that are away keep theirs.

        owners  [E] the peer that each entry of the state belongs to, for states by link; None: peer by peer
        """
        if not self.kinds or (present := self.present(round_index)).all():
            return after
        return unless_away(before, after, present if owners is None else present[owners])


def unless_away(before: Any, after: Any, present: Array) -> Any:
    """Return the state after a round; peers or links that take no part in it (`present` false) keep theirs before."""
    if isinstance(after, tuple):
        merged = [unless_away(old, new, present) for old, new in zip(before, after, strict=True)]
        return type(after)(*merged) if hasattr(after, "_fields") else tuple(merged)
    if after.ndim == 0:  # a count that is the same for all
        return after
    xp = array_namespace(after)
    chosen = xp.asarray(present, device=device(after)).reshape(-1, *[1] * (after.ndim - 1))
    return xp.where(chosen, after, before)
