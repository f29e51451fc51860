"""What a peer tells of its rows in a run with differential privacy: one release a round, each drawn once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from peerbayes.holdings import Holdings
from peerbayes.peers.errors import PeerError
from peerbayes.peers.terms import Terms
from peerbayes.privacy.mechanism import squares
from peerbayes.privacy.row_steps import RowSteps
from peerbayes.privacy.sampling import Source
from peerbayes.privacy.scheme import Scheme


class Release(NamedTuple):
    """One entry of a peer's ledger."""

    name: str  # "units", "start", "round 1", …
    cost: float  # μ²
    values: np.ndarray  # what was released


@dataclass(eq=False)
class PrivateResidual:
    """R̃ of one peer, one release a call: [1, C, K] -> [1, C, K]. Rows, noise and what neighbours share.

    scheme   what everybody does
    held     this peer's rows
    ahead    whether a release goes into the message of the same round (`exact`): after the last round there is none
    shared   sources of the noise shared with neighbours, by name, and which sign it has here; given a release's number
    source   of this peer's own noise
    done     releases so far that were stored
    """

    scheme: Scheme
    held: Holdings
    ahead: bool
    shared: Callable[[int], Mapping[str, tuple[Source, int]]] = lambda number: {}
    source: Source = os.urandom
    done: int = 0
    resting: bool = False
    """Nothing is released: a state is being restored."""
    _pending: Release | None = None

    def __post_init__(self) -> None:
        self._steps = RowSteps.of(self.held.family, self.held.rows, self.held.labels)
        self._moved = self.scheme.mechanism.rows(self.held.family, self.held.rows)
        self._lengths = squares(self._moved)

    def __call__(self, stats: np.ndarray) -> np.ndarray:
        ledger = self.scheme.ledger
        assert self._pending is None, "a release must be stored before the next"
        if self.resting or (self.ahead and self.done >= ledger.rounds):
            return np.zeros(stats.shape)
        number = self.done + 1
        if not ledger.fits(self.done):
            raise PeerError(
                f"the budget is spent: {self.done} releases cost epsilon = {ledger.spent(self.done):.4g} of "
                f"{ledger.epsilon:g}, and the next would cost more. Nothing is sent; found another network to go on"
            )
        released = self._released(stats[0], number)[None]
        self._pending = Release(f"round {number}", ledger.each, released[0])
        return released

    def sums(self, stats: np.ndarray) -> np.ndarray:
        """Σ_i w_i q_i h_iᵀ at S, exactly and without noise, for this peer alone: [C, K] -> [C, K] of int64."""
        with np.errstate(all="ignore"):  # crafted statistics may overflow; what is not finite is cut
            steps = self._steps(np.asarray(self.held.family.weights(stats)))
        return self.scheme.mechanism.clipped(steps, self._moved, lengths=self._lengths)

    def _released(self, stats: np.ndarray, number: int) -> np.ndarray:
        """R̃(S): [C, K] -> [C, K]."""
        mechanism, whole = self.scheme.mechanism, self.sums(stats)
        whole += mechanism.noise(whole.shape, self.source)
        for source, sign in self.shared(number).values():
            whole += sign * mechanism.noise(whole.shape, source, self.scheme.edge_sigma)
        return mechanism.opened(whole)

    def taken(self) -> Release | None:
        """The release of this call, to be stored with the round; None: there was none."""
        pending, self._pending = self._pending, None
        return pending

    @property
    def spent(self) -> float:
        """ε of everything that was stored."""
        return self.scheme.ledger.spent(self.done)


def rounds_in(ledger: Iterable[Mapping[str, Any]]) -> int:
    """How many rounds a ledger has."""
    return sum(str(entry["name"]).startswith("round ") for entry in ledger)


def promised(private: PrivateResidual, terms: Terms) -> dict[str, Any]:
    """What a private network promises, and what it does for it."""
    scheme = private.scheme
    return {
        "epsilon": scheme.terms.epsilon, "delta": scheme.terms.delta, "spent": private.spent, "sigma": scheme.sigma,
        "clip": scheme.mechanism.clip, "rho": scheme.rho, "bought": scheme.ledger.spent(0),
        "edge_noise": scheme.terms.edge_noise, "rounds": terms.rounds,
    }  # fmt: skip
