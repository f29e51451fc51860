"""Faults of a simulated network: which messages of a round arrive."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from peerbayes.network import LossTrace
from peerbayes.network.mixing import rows_of

LOSS_STREAM = 3  # separates the faults of a round from other random numbers of the same seed


@dataclass(frozen=True)
class Faults:
    """Lost and late messages: drawn independently for each message and round, or listed in a trace.

    A message is lost with probability `loss`, or where the trace has it; otherwise, with probability `late`, its link
    lags: the message of the previous round arrives instead, and in the first round none. A strategy that cannot use an
    old message goes on without it.
    """

    loss: float
    seed: int
    late: float = 0.0
    trace: LossTrace | None = None

    @classmethod
    def of(cls, message_loss: float | LossTrace, message_delay: float, seed: int) -> Faults:
        """Return the faults of a simulation's settings."""
        if isinstance(message_loss, LossTrace):
            return cls(0.0, seed, message_delay, message_loss)
        return cls(message_loss, seed, message_delay)

    @property
    def expected(self) -> bool:
        """Whether peers expect faults, and plan for them: probabilities are settings that all know.

        A trace is what happened to peers that did not know of it beforehand, as real peers do not.
        """
        return bool(self.loss or self.late)

    @property
    def occur(self) -> bool:
        """Whether any message may be missing."""
        return self.expected or bool(self.trace)

    def fates(
        self, round_index: int, senders: np.ndarray, receivers: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return which links deliver the message of this round, and which that of the last: two [E] of booleans.

        senders [E] and receivers [E]: the ends of each link, in the order of the mixing matrix's entries.
        """
        draws = np.random.default_rng([self.seed, LOSS_STREAM, round_index]).random(len(senders))
        in_time = draws >= self.loss + (1.0 - self.loss) * self.late
        late = (draws >= self.loss) & ~in_time
        if self.trace is None:
            return in_time, late
        arrives = ~self.trace.lost(round_index, senders, receivers)
        return in_time & arrives, late & arrives

    def of_entries(self, round_index: int, mixing: csr_array) -> tuple[np.ndarray, np.ndarray]:
        """Return `fates` of the stored entries of a mixing matrix [N, N]: entry [v, u] is the message from u to v."""
        return self.fates(round_index, mixing.indices, rows_of(mixing))
