"""Releases of a peer in a run with differential privacy: one per round, each drawn once."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from peerbayes.errors import PeerError
from peerbayes.learning.local_rows import LocalRows
from peerbayes.peer.agreement.terms import Terms
from peerbayes.privacy.mechanism import squares
from peerbayes.privacy.noise import Source
from peerbayes.privacy.row_steps import RowSteps
from peerbayes.privacy.scheme import Scheme

# Name, cost and maker of a release -> its values, drawn now or before.
Buy = Callable[[str, float, Callable[[], np.ndarray]], Awaitable[np.ndarray]]


class Release(NamedTuple):
    """One entry of a peer's ledger."""

    name: str  # "units", "start", "round 1", …
    cost: float  # μ²
    values: np.ndarray  # what was released


@dataclass(eq=False)
class PrivateResidual:
    """R̃ of one peer, one release per call: [1, C, K] -> [1, C, K].

    scheme   the noise scheme of the network
    held     this peer's rows
    ahead    whether a release goes into the message of the same round (`exact`): after the last round there is none
    shared   release number -> by neighbour, the source of the noise shared with it and its sign here
    source   source of this peer's own noise
    done     number of stored releases
    """

    scheme: Scheme
    held: LocalRows
    ahead: bool
    shared: Callable[[int], Mapping[str, tuple[Source, int]]] = lambda number: {}
    source: Source = os.urandom
    done: int = 0
    resting: bool = False
    """Whether a state is being restored: nothing is released then."""
    _pending: Release | None = None

    def __post_init__(self) -> None:
        self._steps = RowSteps.of(self.held.family, self.held.rows, self.held.labels)
        self._moved = self.scheme.mechanism.rows(self.held.family, self.held.rows)
        self._lengths = squares(self._moved)

    def __call__(self, stats: np.ndarray) -> np.ndarray:
        ledger = self.scheme.ledger
        if self._pending is not None:
            raise PeerError(
                f"the strategy asks for R a second time in round {self.done + 1}; with epsilon, each is a release, and "
                "the agreement pays for one a round. Nothing of this round is sent; agree on another strategy"
            )
        if self.resting or (self.ahead and self.done >= ledger.rounds):
            return np.zeros(stats.shape)
        number = self.done + 1
        if not ledger.fits(self.done):
            raise PeerError(
                f"the budget is spent: {self.done} releases cost epsilon = {ledger.spent(self.done):.4g} of "
                f"{ledger.epsilon:g}, and the next would cost more. Nothing is sent; create another network to continue"
            )
        released = self._released(stats[0], number)[None]
        self._pending = Release(f"round {number}", ledger.each, released[0])
        return released

    def sums(self, stats: np.ndarray) -> np.ndarray:
        """Return Σ_i w_i q_i h_iᵀ at S exactly, without noise; it stays at this peer: [C, K] -> [C, K] of int64."""
        with np.errstate(all="ignore"):  # crafted statistics may overflow; non-finite values are clipped
            steps = self._steps(np.asarray(self.held.family.weights(stats)))
        return self.scheme.mechanism.clipped(steps, self._moved, lengths=self._lengths)

    def _released(self, stats: np.ndarray, number: int) -> np.ndarray:
        """Return R̃(S): [C, K] -> [C, K]."""
        mechanism, sums = self.scheme.mechanism, self.sums(stats)
        sums += mechanism.noise(sums.shape, self.source)
        for source, sign in self.shared(number).values():
            sums += sign * mechanism.noise(sums.shape, source, self.scheme.edge_sigma)
        return mechanism.opened(sums)

    def taken(self) -> Release | None:
        """Take the pending release, to be stored with the round; None: there is none."""
        pending, self._pending = self._pending, None
        return pending

    @property
    def spent(self) -> float:
        """ε of all stored releases."""
        return self.scheme.ledger.spent(self.done)


def rounds_in(ledger: Iterable[Mapping[str, Any]]) -> int:
    """Return the number of rounds in a ledger."""
    return sum(str(entry["name"]).startswith("round ") for entry in ledger)


def promised(private: PrivateResidual, terms: Terms) -> dict[str, Any]:
    """Return the privacy guarantee of a network, and its parameters."""
    scheme = private.scheme
    return {
        "epsilon": scheme.terms.epsilon, "delta": scheme.terms.delta, "spent": private.spent, "sigma": scheme.sigma,
        "clip": scheme.mechanism.clip, "rho": scheme.rho, "bought": scheme.ledger.spent(0),
        "edge_noise": scheme.terms.edge_noise, "rounds": terms.rounds,
    }  # fmt: skip
