"""Softmax regression over a network: the discriminative method to compare strategies with, message by message.

    strategy = Softmax(preconditioner(features, peers), corrected=True)      exact diffusion on natural weights W
    strategy = Softmax(preconditioner(features, peers), corrected=False)     decentralised SGD, with full gradients

Both are made as good as 64 messages allow: a step of Newton's kind, by the features' second moments, with momentum, and
where rows are few an L2 penalty: see `scale_of`. For simulations, as a value: `simulate(strategy=strategy)`. It has no
name in agreements, because the second moments [K, K] would have to be agreed on first, and its penalty and step are
chosen by trial runs: see `simulation.baselines`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from array_api_compat import array_namespace, device

from peerbayes.data.table import Array
from peerbayes.learning.strategies import Declaration, Residual
from peerbayes.network.mixing import LARGEST_LINK_SUM

# Added to the second moments: values that fewer than one row in a hundred has do not get steps of their own size.
# Chosen on seeds 391 and 392 of the paper's datasets, as were the momenta and steps of `simulation.baselines`.
SMOOTHING = 0.01


class Scale(NamedTuple):
    """What scales the steps of softmax regression with an L2 penalty: W + step·(R − penalty·W)P."""

    preconditioner: np.ndarray
    """[K, K] P."""
    penalty: np.ndarray
    """[K] (m/n)·λ·Var(φ), the share of one peer."""


def scale_of(
    features: np.ndarray, peers: int, weights: np.ndarray | None = None, penalty: float = 0.0
) -> Scale:
    """Return P = (2n/m)·(ΦᵀΦ/m + 2λ·Var(φ) + smoothing)⁻¹ of all rows, and a peer's penalty: [m, K] -> [K, K], [K].

    The Hessian of the log loss is at most ½ΦᵀΦ, and that of the penalty is mλ·Var(φ), so that steps by P of the mean
    over n peers never overshoot: a factor of them up to 2 is stable.

    peers    n
    weights  [m] of the rows; None: 1 each
    penalty  λ: for each row λ/2 times the squared weights of features in standard units; constant ones have none
    """
    weights = np.ones(len(features)) if weights is None else weights
    mass = float(weights.sum())
    moments = features.T @ (features * weights[:, None]) / mass
    variance = np.maximum(np.diag(moments) - (weights @ features / mass) ** 2, 0.0)
    curvature = moments + np.diag(2.0 * penalty * variance + SMOOTHING)
    return Scale(2.0 * peers / mass * np.linalg.inv(curvature), mass / peers * penalty * variance)


def preconditioner(features: np.ndarray, peers: int, weights: np.ndarray | None = None) -> np.ndarray:
    """Return P without a penalty: see `scale_of`."""
    return scale_of(features, peers, weights).preconditioner


# The lowest eigenvalue of `stable` weights on any network, −0.303: above −1/3, which exact diffusion needs.
LOWEST_EIGENVALUE = 1.0 - LARGEST_LINK_SUM


class SoftmaxState(NamedTuple):
    """The state of `Softmax`."""

    weights: Array  # [..., C, K] W
    adapted: Array  # [..., C, K] ψ of the last round
    sent: Array  # [..., C, K] φ, the message of the coming round


@dataclass(frozen=True, eq=False)
class Softmax:
    """Gradient steps on natural weights W, mixed over the network. β: momentum; W₋, ψ₋: of the round before.

    ψ_v = W_v + step·(R_v(W_v) − penalty·W_v)P + β(W_v − W₋_v)
    W_v = Σ_u a_vu φ_u
    φ_v = ψ_v + W_v − ψ₋_v          corrected: exact diffusion, whose fixed point is that of the pooled rows
    φ_v = ψ_v                       else: decentralised SGD, which is biased where peers' rows differ
    """

    mixing: ClassVar[str] = "stable"
    of_weights: ClassVar[bool] = True
    declaration: ClassVar[Declaration] = Declaration(
        conserves=True,
        contains_start=False,
        exposes="softmax regression scales its steps by the second moments of the rows; use 'exact', 'crc' or 'relay'",
        uses_lr=False,
        uses_local_steps=False,
    )

    preconditioner: Array
    """[K, K] P."""
    step_size: float = 1.0
    momentum: float = 0.4
    corrected: bool = True
    penalty: Array | float = 0.0
    """[K], of each peer: see `Scale`."""

    @property
    def name(self) -> str:
        return "softmax" if self.corrected else "softmax-dsgd"

    @property
    def own_share(self) -> float:
        """κ: what a peer adds of its own message, so that momentum does not make peers of little weight oscillate."""
        if not self.corrected:
            return 0.0
        lowest = (
            3.0 * LOWEST_EIGENVALUE / (3.0 + 4.0 * self.momentum)
        )  # as far above its limit as without momentum
        return (lowest - LOWEST_EIGENVALUE) / (1.0 - LOWEST_EIGENVALUE)

    @property
    def takes_old(self) -> bool:
        return not self.corrected

    def begin(self, start: Array, residual: Residual) -> SoftmaxState:
        weights = array_namespace(start).zeros_like(start)
        adapted = self._adapted(weights, weights, residual)
        return SoftmaxState(weights, adapted, adapted)

    def message(self, state: SoftmaxState) -> Array:
        return state.sent

    def step(self, state: SoftmaxState, mixed: Array, residual: Residual) -> SoftmaxState:
        weights = mixed + self.own_share * (state.sent - mixed)
        adapted = self._adapted(weights, state.weights, residual)
        sent = adapted + weights - state.adapted if self.corrected else adapted
        return SoftmaxState(weights, adapted, sent)

    def read(self, state: SoftmaxState) -> Array:
        return state.weights

    def _adapted(self, weights: Array, previous: Array, residual: Residual) -> Array:
        """Return ψ: two [..., C, K] -> [..., C, K]."""
        xp = array_namespace(weights)
        penalty, scale = (
            xp.asarray(value, dtype=weights.dtype, device=device(weights))
            for value in (self.penalty, self.preconditioner)
        )
        change = (residual(weights) - penalty * weights) @ scale
        return weights + self.step_size * change + self.momentum * (weights - previous)
