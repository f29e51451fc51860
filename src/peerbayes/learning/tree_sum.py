"""The strategy `tree-sum`: one step of calibration for each exact sum over all peers, as if all rows were in one place.

    [R, L] = Σ_v [R_v(S), L_v(S)]          a matrix and a number, once over every link of a spanning tree and back
    S ← S + η·D                            L is the training log loss; a step that does not lower it is taken back

All peers have the same sum, and so the same S, direction D and step η: nothing is mixed, nothing lags, and data that
differ between peers change nothing. What it costs is time: a round takes as long as messages take across the tree and
back, and waits for everybody.

After a step from S, R to S′, R′, with J = ∂θ/∂S, directions are conjugate:

    D ← R′ + β·D,                      β = η ⟨R′ − R, J·R′⟩ / ⟨R − R′, W′ − W⟩, at least 0
    η ← ⟨R′, J·D⟩ / (c ⟨D, J·D⟩)       c = ⟨R − R′, W′ − W⟩ / ⟨S′ − S, W′ − W⟩; at most twice the last η

For a family with a penalty S moves by M·D in place of D, and J·M takes the place of J: see `Family.conditioned`.
After a step back η is halved, and after two in a row D is R again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from peerbayes.learning.strategies import Declaration, LearningSettings, NetworkFacts

# J·R′ is a difference over this share of a step: large enough that rounding, which differs between machines, is small.
OF_STEP = 0.01

Theta = Callable[[np.ndarray], np.ndarray]  # S [..., C, K] -> W [..., C, K]
Conditioned = Callable[[np.ndarray, np.ndarray], np.ndarray]  # S, D [..., C, K] -> M·D [..., C, K]


def unconditioned(stats: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """Return the direction as it is."""
    return direction


class TreeSumState(NamedTuple):
    """The state of `TreeSum`, the same for all peers."""

    trial: np.ndarray  # [1, C, K] S of the coming sum
    stats: np.ndarray  # [1, C, K] S with the lowest log loss so far
    residual: np.ndarray  # [1, C, K] the mean of R_v at it
    direction: np.ndarray  # [1, C, K] D
    loss: np.ndarray  # [1] L at it
    step: np.ndarray  # [1] η, in steps of the learning rate
    rises: np.ndarray  # [1] steps back in a row


@dataclass(frozen=True)
class TreeSum:
    """Adaptive calibration by exact sums over a spanning tree of a fixed network."""

    name: ClassVar[str] = "tree-sum"
    of_weights: ClassVar[bool] = False
    declaration: ClassVar[Declaration] = Declaration(
        conserves=True,
        contains_start=False,
        summed=False,
        over_tree=True,
        by_sums=True,
        exposes="tree-sum tells log losses of rows; use 'exact', 'crc' or 'relay'",
        uses_local_steps=False,
    )

    peers: int = 1

    @classmethod
    def planned(cls, settings: LearningSettings, facts: NetworkFacts) -> TreeSum:
        return cls(facts.peers)

    def begin(self, start: np.ndarray) -> TreeSumState:
        """Return the state before the first round, from the S⁰ [1, C, K] of all peers."""
        zeros, number = np.zeros_like(start), np.zeros(1)
        return TreeSumState(start, start, zeros, zeros, np.full(1, np.inf), np.ones(1), number)

    def step(
        self, state: TreeSumState, total: np.ndarray, theta: Theta, conditioned: Conditioned = unconditioned
    ) -> TreeSumState:
        """Return the state after a sum over all peers of R and L at the trial: [C·K + 1].

        conditioned  M·D of S and D, which is added to S: see `Family.conditioned`
        """
        residual, loss = total[None, :-1].reshape(state.stats.shape) / self.peers, total[-1:]
        if loss[0] < state.loss[0]:
            direction, step = residual, state.step
            if np.isfinite(state.loss[0]):
                direction, step = _next_direction(state, residual, theta, conditioned)
            accepted = state._replace(
                stats=state.trial, residual=residual, loss=loss.copy(), rises=np.zeros(1)
            )
        else:
            rises = state.rises + 1.0
            direction = state.residual if rises[0] == 2 else state.direction
            step, accepted = state.step / 2, state._replace(rises=rises)
        moved = conditioned(accepted.stats, direction)
        return accepted._replace(trial=accepted.stats + step * moved, direction=direction, step=step)

    def read(self, state: TreeSumState) -> np.ndarray:
        """Return S with the lowest log loss so far: [1, C, K]."""
        return state.stats


def _next_direction(
    state: TreeSumState, residual: np.ndarray, theta: Theta, conditioned: Conditioned
) -> tuple[np.ndarray, np.ndarray]:
    """Return D and η after the step from S to the trial, where the mean of R_v is `residual`."""
    weights = theta(state.trial)
    change = weights - theta(state.stats)
    bend = float(np.sum((state.residual - residual) * change))
    length = float(np.sum(state.step * state.direction * change))
    if not (bend > 0 and length > 0):  # the log loss falls ever faster
        return residual, 2 * state.step
    part = OF_STEP * state.step
    tangent = (theta(state.trial + part * conditioned(state.trial, residual)) - weights) / part  # J·M·R′
    share = max(0.0, float(state.step[0] * np.sum((residual - state.residual) * tangent)) / bend)
    direction, moved = residual + share * state.direction, tangent + share / state.step * change
    slope, norm = float(np.sum(residual * moved)), float(np.sum(direction * moved))
    if not (slope > 0 and norm > 0):  # no way down
        direction, slope, norm = residual, 1.0, 1.0
    return direction, np.minimum(2 * state.step, slope / norm * (length / bend))
