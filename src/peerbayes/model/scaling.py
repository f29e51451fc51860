"""From logits to probabilities: a temperature, a bias per class and a share of noise, fitted on held-out rows.

    p = (1 − ε) q + ε/C,    q = softmax(s·l + b),    s = 1/T > 0,  Σ_c b_c = 0,  0 ≤ ε < 1

Calibration and naive independence leave a model too sure or not sure enough (T), and some classes too frequent (b). A
few rows in the tails of Gaussians or in cells hardly seen have odds of millions and are wrong; one temperature that
forgives them would blur all others, so a share ε of rows has a class that the model knows nothing about. With ε = 0 it
is temperature scaling with a bias.

The log loss of held-out rows is lowered together with a prior, which is least close to the identity:

    J = −Σ_n w_n log p_n,y + κ (s − 1 − log s) + α (ε/ε₀ − 1 − log(ε/ε₀)) + λ/2 Σ_c b_c²

Fisher's scoring (Newton's method where ε = 0) needs J, its gradient and the information matrix: sums over rows. So
`sums` is a pure function of the rows of one party, `advance` a pure function of their total, and peers agree on each
step by one exact sum of few scalars. A step that raises J is halved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from peerbayes.model import core

# Fitting ends when a step promises less log loss per row, and after this many sums at the latest.
TOLERANCE, MOST_SUMS = 1e-9, 64


@dataclass(frozen=True)
class Scaling:
    """p = (1 − noise)·softmax(logits / temperature + bias) + noise / C."""

    temperature: float
    """T > 0: above 1 where the model is too sure."""
    bias: tuple[float, ...]
    """b_c, one for each class; they add up to 0."""
    noise: float = 0.0
    """ε: the share of rows whose class the model knows nothing about."""

    def __post_init__(self) -> None:
        numbers = (self.temperature, self.noise, *self.bias)
        if not (all(map(math.isfinite, numbers)) and self.temperature > 0 and 0 <= self.noise < 1):
            raise ValueError(
                f"the scaling is {numbers!r:.80}; expected a positive temperature, a share of noise below 1 and a "
                "finite bias for each class"
            )

    @classmethod
    def identity(cls, classes: int) -> Self:
        """Return the scaling that changes nothing."""
        return cls(1.0, (0.0,) * classes)

    @property
    def is_identity(self) -> bool:
        """Whether it changes nothing."""
        return self.temperature == 1.0 and self.noise == 0.0 and not any(self.bias)

    def scaled(self, logits: np.ndarray) -> np.ndarray:
        """Return l / T + b, which have the same order as p: [..., C] -> [..., C]."""
        return logits if self.is_identity else logits / self.temperature + np.array(self.bias)

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        """Return p: [..., C] -> [..., C]."""
        return (1.0 - self.noise) * core.softmax(self.scaled(logits)) + self.noise / logits.shape[-1]

    def log_probabilities(self, logits: np.ndarray) -> np.ndarray:
        """Return log p, finite where q underflows: [..., C] -> [..., C]."""
        return self.blurred(self.scaled(logits))

    def blurred(self, scores: np.ndarray) -> np.ndarray:
        """Return log p of the scores l / T + b: [..., C] -> [..., C]."""
        scores = scores - scores.max(axis=-1, keepdims=True)
        log_q = scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))
        if self.noise == 0.0:
            return log_q
        return np.logaddexp(math.log1p(-self.noise) + log_q, math.log(self.noise / scores.shape[-1]))

    def to_json(self) -> dict[str, Any]:
        """Return temperature, bias and noise as plain values."""
        return {"temperature": self.temperature, "bias": list(self.bias), "noise": self.noise}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Return the scaling that `to_json` wrote."""
        bias = tuple(float(value) for value in content["bias"])
        return cls(float(content["temperature"]), bias, float(content["noise"]))


# --- fitting: parameters are (s, ε, b_1 … b_C)


class Prior(NamedTuple):
    """The weights of the prior: see the equation of J."""

    kappa: float
    alpha: float
    noise: float  # ε₀
    lambda_: float


# κ and λ are the precisions of log T and of each bias near the identity (±30 %, ±0.1), α that of log ε near ε₀ (nearly
# free). Chosen on seeds 100 to 103; a third or three times as much does as well (docs/decisions/probabilities.md).
# A larger κ with few rows explains a model that is much too sure by noise instead of T.
PRIOR = Prior(kappa=10.0, alpha=0.3, noise=0.01, lambda_=100.0)


class Fitting(NamedTuple):
    """Fisher's scoring between two sums."""

    at: Scaling
    """Where the next sums are to be taken."""
    kept: Scaling
    """The scaling with the lowest J so far."""
    lowest: float
    """J of `kept`."""
    step: tuple[float, ...]
    """From `kept` to `at`: [2 + C]."""
    done: bool = False
    """Whether `kept` is the result."""


def size(classes: int) -> int:
    """Return the length of the vector of `sums`."""
    return 2 + (classes + 2) + (classes + 2) * (classes + 3) // 2


def sums(
    scaling: Scaling, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None
) -> np.ndarray:
    """Return Σw, the log loss, its gradient and the upper triangle of the information matrix, as one vector.

    logits: [n, C] log p(x, c); labels: [n] class indices; weights: [n], None: all 1. Vectors of several parties add up
    to that of all their rows. The length is `size(C)`.
    """
    n, classes = logits.shape
    w = np.ones(n) if weights is None else weights
    noise, rows = scaling.noise, np.arange(n)
    q = core.softmax(scaling.scaled(logits))
    p = np.maximum((1.0 - noise) * q + noise / classes, np.finfo(float).tiny)
    centred = logits - logits.max(axis=1, keepdims=True)
    distance = centred - np.sum(q * centred, axis=1, keepdims=True)  # l_c − Σ q l
    share = (1.0 - noise) * q / p  # of the model in p_c
    slope = 1.0 / classes - q  # ∂p_c/∂ε
    # −∂ log p_y
    observed = w * share[rows, labels]
    gradient = np.empty(classes + 2)
    gradient[0] = -observed @ distance[rows, labels]
    gradient[1] = -w @ (slope[rows, labels] / p[rows, labels])
    gradient[2:] = observed @ q - np.bincount(labels, observed, minlength=classes)
    # Σ_c p_c ∇log p_c (∇log p_c)ᵀ
    model, mixed = (w[:, None] * share**2 * p), w[:, None] * share * slope
    information = np.empty((classes + 2, classes + 2))
    weighted = model * distance
    information[0, 0] = np.sum(weighted * distance)
    information[0, 1] = np.sum(mixed * distance)
    information[0, 2:] = np.sum(weighted - q * weighted.sum(axis=1, keepdims=True), axis=0)
    information[1, 1] = np.sum(w[:, None] * slope**2 / p)
    information[1, 2:] = np.sum(mixed - q * mixed.sum(axis=1, keepdims=True), axis=0)
    outer = model.T @ q
    information[2:, 2:] = (
        np.diag(model.sum(axis=0)) - outer - outer.T + (q * model.sum(axis=1, keepdims=True)).T @ q
    )
    loss = -w @ np.log(p[rows, labels])
    return np.concatenate([[w.sum(), loss], gradient, information[np.triu_indices(classes + 2)]])


def begin(classes: int, prior: Prior = PRIOR) -> Fitting:
    """Return the state before the first sums: at the identity, with the noise of the prior."""
    start = Scaling(1.0, (0.0,) * classes, prior.noise)
    return Fitting(start, start, math.inf, (0.0,) * (classes + 2))


def advance(fitting: Fitting, total: np.ndarray, prior: Prior = PRIOR) -> Fitting:
    """Return the state after the sums at `fitting.at` over all rows; without rows the identity is kept."""
    at, classes = _vector(fitting.at), len(fitting.at.bias)
    s, noise, bias = at[0], at[1], at[2:]
    mass, loss = float(total[0]), float(total[1])
    if mass == 0:
        return fitting._replace(kept=Scaling.identity(classes), done=True)
    ratio = noise / prior.noise
    objective = loss + prior.kappa * (s - 1 - math.log(s)) + prior.alpha * (ratio - 1 - math.log(ratio))
    objective += prior.lambda_ / 2 * float(bias @ bias)
    if not objective <= fitting.lowest:
        half = np.array(fitting.step) / 2
        return fitting._replace(at=_scaling(_vector(fitting.kept) + half), step=tuple(half.tolist()))
    gradient, information = total[2 : classes + 4].copy(), np.zeros((classes + 2, classes + 2))
    information[np.triu_indices(classes + 2)] = total[classes + 4 :]
    information += np.triu(information, 1).T
    gradient[0] += prior.kappa * (1 - 1 / s)
    gradient[1] += prior.alpha * (1 / prior.noise - 1 / noise)
    gradient[2:] += prior.lambda_ * bias
    information[np.diag_indices(classes + 2)] += np.concatenate(
        [[prior.kappa / s**2, prior.alpha / noise**2], np.full(classes, prior.lambda_)]
    )
    step = -np.linalg.solve(information, gradient)
    step[2:] -= step[2:].mean()
    done = -float(gradient @ step) <= TOLERANCE * mass
    # T stays positive, and ε between 0 and 1.
    limit = [0.75 * value / -change for value, change in zip(at[:2], step[:2], strict=True) if change < 0]
    limit += [0.5 * (1 - noise) / step[1]] if step[1] > 0 else []
    step *= min([1.0, *limit])
    return Fitting(_scaling(at + step), fitting.at, objective, tuple(step.tolist()), done)


def fit(
    logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None, prior: Prior = PRIOR
) -> Scaling:
    """Return the scaling of held-out rows: logits [n, C], class indices [n], weights [n] or None."""
    fitting = begin(logits.shape[1], prior)
    for _ in range(MOST_SUMS):
        fitting = advance(fitting, sums(fitting.at, logits, labels, weights), prior)
        if fitting.done:
            break
    return fitting.kept


def _vector(scaling: Scaling) -> np.ndarray:
    """Return (s, ε, b)."""
    return np.array([1.0 / scaling.temperature, scaling.noise, *scaling.bias])


def _scaling(vector: np.ndarray) -> Scaling:
    s, noise, *bias = vector.tolist()
    return Scaling(1.0 / s, tuple(bias), noise)
