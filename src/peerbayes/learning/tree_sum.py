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

With a `tolerance` everybody stops at the same round, since all have the same S: once no natural weight is to move by
more than it, three rounds in a row.

The last steps (s = S′ − S, y = R − R′) are kept, and with them what is known of the curvature. A run that begins with
the model of another one begins with its steps too, and its directions are those of L-BFGS, with J·s for the step in W:

    q = R − Σ α_i y_i,   α_i = ⟨J·s_i, q⟩ / ⟨J·s_i, y_i⟩                  from the last step to the first
    D = γ q + Σ (α_i − β_i) s_i,   β_i = ⟨y_i, J·D⟩ / ⟨J·s_i, y_i⟩        from the first to the last
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from peerbayes.learning.strategies import Declaration, LearningSettings, NetworkFacts

# Rounds in a row whose steps are within the tolerance: by chance a single step may be short, far from the end.
STILL = 3

# Steps back in a row after which the steps of an earlier run are no longer followed: other rows, another curvature.
MISLED = 3

# Steps that are kept: so many, as long as they have at most so many bytes. They are stored with each round.
MOST_STEPS, STEP_BYTES = 12, 1 << 20

# J·R′ is a difference over this share of a step: large enough that rounding, which differs between machines, is small.
OF_STEP = 0.01

# The same of a step that was kept from another S: a share of the largest entry of S.
OF_STATS = 1e-6

# Steps shorter than this share of the largest entry of S are not kept: they say more of rounding than of the curvature.
SHORT = 1e-10

# Steps along which R bends by less than this share of what it could are left out: rounding would decide.
FLAT = 1e-10

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
    still: np.ndarray  # [1] steps within the tolerance in a row
    warm: np.ndarray  # [1] 1: directions follow the steps that are kept
    steps: np.ndarray  # [M, 2, C, K] the last s and y, oldest first; zero where there were fewer


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
    tolerance: float | None = None
    """How far a natural weight may still move where all stop; None: they take all rounds."""

    @classmethod
    def planned(cls, settings: LearningSettings, facts: NetworkFacts) -> TreeSum:
        return cls(facts.peers, settings.tolerance)

    def begin(self, start: np.ndarray, steps: np.ndarray | None = None) -> TreeSumState:
        """Return the state before the first round, from the S⁰ [1, C, K] of all peers.

        steps  [M, 2, C, K] the last steps of the run whose model this one begins with; None: it begins afresh
        """
        zeros, number = np.zeros_like(start), np.zeros(1)
        warm = np.full(1, float(steps is not None))
        if steps is None:
            steps = np.zeros((kept_steps(start.size), 2, *start.shape[1:]))
        return TreeSumState(
            start, start, zeros, zeros, np.full(1, np.inf), np.ones(1), number, number, warm, steps
        )

    def step(
        self, state: TreeSumState, total: np.ndarray, theta: Theta, conditioned: Conditioned = unconditioned
    ) -> TreeSumState:
        """Return the state after a sum over all peers of R and L at the trial: [C·K + 1].

        conditioned  M·D of S and D, which is added to S: see `Family.conditioned`
        """
        residual, loss = total[None, :-1].reshape(state.stats.shape) / self.peers, total[-1:]
        begun = bool(np.isfinite(state.loss[0]))
        if loss[0] < state.loss[0]:
            steps = _with_step(state, residual) if begun else state.steps
            direction, step = residual, state.step
            if state.warm[0]:
                direction, step = _remembered(state.trial, residual, steps, theta, conditioned), np.ones(1)
            elif begun:
                direction, step = _next_direction(state, residual, theta, conditioned)
            accepted = state._replace(
                stats=state.trial, residual=residual, loss=loss.copy(), rises=np.zeros(1), steps=steps
            )
        else:
            rises = state.rises + 1.0
            direction = state.residual if rises[0] == 2 and not state.warm[0] else state.direction
            step, accepted = state.step / 2, state._replace(rises=rises)
            if state.warm[0] and rises[0] == MISLED:
                direction, step, accepted = state.residual, np.ones(1), accepted._replace(warm=np.zeros(1))
        trial = accepted.stats + step * conditioned(accepted.stats, direction)
        still = state.still
        if self.tolerance is not None:
            farthest = float(np.abs(theta(trial) - theta(accepted.stats)).max())
            still = still + 1.0 if farthest <= self.tolerance else np.zeros(1)
        return accepted._replace(trial=trial, direction=direction, step=step, still=still)

    def settled(self, state: TreeSumState) -> bool:
        """Return whether all peers stop after this round, by what everybody knows."""
        return self.tolerance is not None and bool(state.still[0] >= STILL)

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


# --- the steps that are kept, and the directions that follow from them


def kept_steps(size: int) -> int:
    """Return how many steps of S with so many entries are kept."""
    return min(MOST_STEPS, STEP_BYTES // (2 * 8 * max(size, 1)))


def _with_step(state: TreeSumState, residual: np.ndarray) -> np.ndarray:
    """Return the steps that are kept after the one to the trial, where the mean of R_v is `residual`."""
    step = np.stack([state.trial[0] - state.stats[0], state.residual[0] - residual[0]])
    if not len(state.steps) or np.abs(step[0]).max() <= SHORT * np.abs(state.stats).max():
        return state.steps
    return np.concatenate([state.steps[1:], step[None]])


def _remembered(
    stats: np.ndarray, residual: np.ndarray, steps: np.ndarray, theta: Theta, conditioned: Conditioned
) -> np.ndarray:
    """Return D by the steps that are kept: see L-BFGS above."""
    weights = theta(stats)

    def moved(change: np.ndarray) -> np.ndarray:
        """Return J·change, by a difference over a small share of S."""
        longest = float(np.abs(change).max())
        if longest == 0.0:
            return np.zeros_like(change)
        part = OF_STATS * float(np.abs(stats).max()) / longest
        return (theta(stats + part * change) - weights) / part

    pairs = []
    for change, bend in zip(steps[:, :1], steps[:, 1:], strict=True):
        in_weights = moved(change)
        curvature = float(np.sum(in_weights * bend))
        if curvature > FLAT * float(np.linalg.norm(in_weights) * np.linalg.norm(bend)):
            pairs.append((change, in_weights, bend, curvature))
    direction, shares = residual, list[float]()
    for _, in_weights, bend, curvature in reversed(pairs):
        shares.append(float(np.sum(in_weights * direction)) / curvature)
        direction = direction - shares[-1] * bend
    scale = 1.0
    if pairs:
        _, _, bend, curvature = pairs[-1]
        scale = curvature / float(np.sum(bend * moved(conditioned(stats, bend))))
    direction = scale * direction
    tangent = moved(conditioned(stats, direction))
    for (change, in_weights, bend, curvature), share in zip(pairs, reversed(shares), strict=True):
        rest = share - float(np.sum(bend * tangent)) / curvature
        direction, tangent = direction + rest * change, tangent + rest * in_weights
    return direction
