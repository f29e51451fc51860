"""Other methods on the rows and the network of a simulation, to say where they beat the strategies of this package.

    softmax     softmax regression by exact diffusion, or by decentralised SGD: one matrix per neighbour per round
    federated   FedAvg with a server that all peers reach: one matrix up and one down per round
    vote        one-shot ensembles: the mean of the posteriors of models that peers learned alone; the product of
                posteriors is the mean of their natural weights, so one matrix per peer suffices for it

Each is made as good as can be. Penalties and steps are chosen by whole trial runs that learn from four fifths of each
peer's training rows; the models of all peers are then compared by log loss on the other fifths of all peers. Messages
of these trials are not counted, and no peer could hold all these rows: that is generous to the methods compared with.

`simulate(baselines=[…])` names them, and estimators of scikit-learn: see `learned_baselines`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from peerbayes.data.arguments import refusal
from peerbayes.learning.local_rows import LocalRows
from peerbayes.learning.softmax import Scale, Softmax, scale_of
from peerbayes.model import core
from peerbayes.model.devices import NUMPY
from peerbayes.network import Schedule
from peerbayes.simulation.faults import Faults
from peerbayes.simulation.rounds import Broadcast

# One row of each peer in so many is held back in trials.
HELD_BACK = 5

# With so few rows in all, every fifth is held back in turn: 20 rows are too few to choose by.
FEW = 250

# Steps on its own rows that a peer of FedAvg takes in a round.
LOCAL_STEPS = (1, 4)


# L2 penalties of a row, for features in standard units: see `scale_of`. Without one, φ of as many columns as there are
# rows is learned by heart. Larger ones lower the log loss where rows are few, and raise the error. Chosen on seeds 100
# to 107 of breast cancer, and 391 to 393 of the paper's datasets.
PENALTIES = (0.0, 0.001, 0.003, 0.01)


class Grid(NamedTuple):
    """Step sizes and momenta that are tried. A step of 1 never overshoots on pooled rows: see `scale_of`."""

    steps: tuple[float, ...]
    momenta: tuple[float, ...]
    usual: tuple[float, float]
    """The step size and the momentum with which penalties are tried first, so that trials are few."""
    penalties: tuple[float, ...] = PENALTIES
    """λ of `scale_of`."""


# Exact diffusion is stable with a momentum below ½. The bias of decentralised SGD asks for small steps, and it agrees
# faster with a large momentum. Chosen on seeds 391 to 393 of the paper's datasets.
CORRECTED = Grid((1 / 64, 1 / 16, 1 / 4, 1 / 2, 1.0, 2.0), (0.0, 0.4), (0.5, 0.4))
UNCORRECTED = Grid((1 / 1024, 1 / 256, 1 / 64, 1 / 16, 1 / 4, 1.0), (0.9, 0.95), (1 / 16, 0.9))
FEDERATED = Grid((1 / 64, 1 / 16, 1 / 4, 1 / 2, 1.0, 2.0), (0.5, 0.8), (1.0, 0.5))

# Rows, step size, momentum, P and penalty -> [M, C, K], a model of each peer or one of all.
Learn = Callable[[LocalRows, float, float, Scale], np.ndarray]


# --- the setting `baselines`: names, and estimators of scikit-learn

MAJORITY, FEDAVG, SOFTMAX, DSGD, VOTE = "majority", "fedavg", "softmax", "dsgd-softmax", "vote"
OVER_NETWORK = (FEDAVG, SOFTMAX, DSGD)
"""The baselines that send messages of their own: softmax regression on the peers' features."""
NAMES = (MAJORITY, *OVER_NETWORK, VOTE, "logistic-regression", "random-forest", "gradient-boosting")

IN_FILES = f"a list of {', '.join(NAMES)}"
EXPECTED = f"{IN_FILES}, or classifiers of scikit-learn"


# Rows in a leaf of boosted trees; scikit-learn's 20 leave a peer of 40 rows without any split.
FEWEST_IN_LEAF = 5


class Baseline(NamedTuple):
    """A baseline by its name; `estimator` is one of scikit-learn that was passed instead of a name."""

    name: str
    estimator: Any = None

    def new(self, seed: int) -> Any:
        """Return a copy of its estimator that is not fitted, whose random choices follow from the seed."""
        from sklearn.base import clone

        model = clone(_named(self.name) if self.estimator is None else self.estimator)
        random = [name for name, value in model.get_params().items() if _is_open_seed(name, value)]
        return model.set_params(**dict.fromkeys(random, seed % 2**32))


def _is_open_seed(name: str, value: Any) -> bool:
    return value is None and name.rpartition("__")[2] == "random_state"


def _named(name: str) -> Any:
    """Return the estimator of scikit-learn with a name, which takes columns in standard units."""
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression

    if name == "logistic-regression":
        return LogisticRegression(max_iter=1000)
    if name == "random-forest":
        return RandomForestClassifier()
    return HistGradientBoostingClassifier(min_samples_leaf=FEWEST_IN_LEAF)


def baselines_of(name: str, value: Any) -> tuple[Baseline, ...]:
    """Return the baselines of a setting: a name or an estimator, or a list of these."""
    entries = value if isinstance(value, list | tuple) and not isinstance(value, Baseline) else [value]
    chosen: list[Baseline] = []
    for entry in entries:
        baseline = _baseline(name, entry)
        others = [other.name for other in chosen]
        if baseline.estimator is not None and not isinstance(entry, Baseline):
            count = 1 + sum(
                other.rpartition("-")[0] == baseline.name or other == baseline.name for other in others
            )
            baseline = baseline._replace(name=f"{baseline.name}-{count}" if count > 1 else baseline.name)
        if baseline.name not in others:
            chosen.append(baseline)
    return tuple(chosen)


def _baseline(name: str, entry: Any) -> Baseline:
    if isinstance(entry, Baseline):
        return entry
    if isinstance(entry, str) and entry in NAMES:
        return Baseline(entry)
    if not isinstance(entry, str | type) and all(
        callable(getattr(entry, verb, None)) for verb in ("fit", "predict", "get_params", "set_params")
    ):
        return Baseline(_kebab(type(entry).__name__), entry)
    raise refusal(name, entry, EXPECTED)


def learners_of(name: str) -> tuple[str, ...]:
    """Return the learners of a baseline, which runs have figures of."""
    if name == VOTE:
        return VOTE, f"{VOTE}-product"
    return (name,) if name in (MAJORITY, *OVER_NETWORK) else (f"{name}-pooled", f"{name}-alone")


def _kebab(name: str) -> str:
    """Return the name of a class in small letters with hyphens: "LogisticRegression" -> "logistic-regression"."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name).lower()


# --- the choice of penalties and steps


def loss(features: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> float:
    """Return the mean log loss of models W on rows, infinite if it is not finite: [m, K], [m], [M, C, K] -> ()."""
    total = 0.0
    for model in weights:
        logits = features @ model.T
        logits = logits - logits.max(axis=1, keepdims=True)
        total += float((np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(labels.size), labels]).mean())
    return total / len(weights) if np.isfinite(total) else np.inf


def split(held: LocalRows, first: int = HELD_BACK - 1) -> tuple[LocalRows, np.ndarray]:
    """Return the rows that trials learn from, and which are held back: every fifth of each peer from `first`, [m]."""
    index = np.arange(held.labels.size) - np.repeat(held.offsets[:-1], held.sizes)
    held_back = index % HELD_BACK == first
    owner = np.repeat(np.arange(held.peer_count), held.sizes)
    kept = replace(
        held, rows=held.select(~held_back), labels=held.labels[~held_back],
        row_weights=held.row_weights[~held_back],
        sizes=np.bincount(owner[~held_back], minlength=held.peer_count),
    )  # fmt: skip
    return kept, held_back


@dataclass(frozen=True, eq=False)
class Learned:
    """What a method learned, with which choices."""

    weights: np.ndarray
    """[M, C, K] natural weights of each peer's model, or of the one that all have."""
    step_size: float
    momentum: float
    penalty: float
    """λ: see `scale_of`."""
    trial_loss: float
    """The log loss of the trial with these choices, on rows that were held back."""


def best(held: LocalRows, grid: Grid, learn: Learn) -> Learned:
    """Return what a method learns from all rows with the choices whose trial has the lowest loss.

    The penalty is chosen first, with the usual step size and momentum, then these with that penalty. Beside the grid, a
    step of 0 is a choice: its weights of zero lose log C. Choices that lose more on the training rows are left out, so
    no choice diverges.
    """
    features, peers, highest = held.features_of(slice(None)), held.peer_count, float(np.log(held.classes))
    in_turn = held.labels.size <= FEW and held.sizes.min() >= HELD_BACK
    splits = [split(held, first) for first in (range(HELD_BACK) if in_turn else [HELD_BACK - 1])]

    def trial(step_size: float, momentum: float, penalty: float) -> float:
        losses = []
        for kept, held_back in splits:
            tested = held_back if held_back.any() else ~held_back
            scale = scale_of(features[~held_back], peers, kept.row_weights, penalty)
            losses.append(
                loss(features[tested], held.labels[tested], learn(kept, step_size, momentum, scale))
            )
        return float(np.mean(losses))

    with np.errstate(all="ignore"):  # steps that are too long diverge
        penalty = min(grid.penalties, key=lambda penalty: trial(*grid.usual, penalty))
        trials = [(trial(*setting, penalty), *setting) for setting in product(grid.steps, grid.momenta)]
        scale = scale_of(features, peers, held.row_weights, penalty)
        for choice in sorted([(highest, 0.0, 0.0), *trials]):
            weights = learn(held, *choice[1:], scale)
            if loss(features, held.labels, weights) <= highest + 1e-9:
                break
    trial_loss, step_size, momentum = choice
    return Learned(weights, step_size, momentum, penalty, trial_loss)


# --- the methods


def softmax(held: LocalRows, network: Schedule, rounds: int, corrected: bool = True) -> Learned:
    """Return softmax regression over a network: by exact diffusion, or else by decentralised SGD."""
    return best(held, CORRECTED if corrected else UNCORRECTED, diffusion(network, rounds, corrected))


def diffusion(network: Schedule, rounds: int, corrected: bool = True) -> Learn:
    """Return the function that runs `Softmax` over a network without faults."""

    def learn(rows: LocalRows, step_size: float, momentum: float, scale: Scale) -> np.ndarray:
        strategy = Softmax(scale.preconditioner, step_size, momentum, corrected, scale.penalty)
        driver = Broadcast(strategy, network, rows.residual(rounds, 1, True), Faults(0.0, 0), NUMPY)
        state = driver.begin(np.zeros((rows.peer_count, rows.classes, rows.family.size)))
        for round_index in range(1, rounds + 1):
            state, _ = driver.advance(state, round_index)
        return driver.read(state)

    return learn


def federated(held: LocalRows, rounds: int) -> Learned:
    """Return FedAvg: the better of one and of four local steps a round."""
    choices = (best(held, FEDERATED, federated_averaging(rounds, steps)) for steps in LOCAL_STEPS)
    return min(choices, key=lambda learned: learned.trial_loss)


def federated_averaging(rounds: int, local_steps: int) -> Learn:
    """Return FedAvg with momentum at the server, W ← W + V, V ← βV + Σ_v (m_v/m)·(W_v − W); full local gradients."""

    def learn(rows: LocalRows, step_size: float, momentum: float, scale: Scale) -> np.ndarray:
        residual = rows.residual(rounds, 1, True)
        owner = np.repeat(np.arange(rows.peer_count), rows.sizes)
        mass = np.bincount(owner, rows.row_weights, rows.peer_count)
        share = mass / mass.sum()
        # P is for the m/n rows of an average peer; this is for the peer's own m_v
        own = np.where(mass > 0, share * rows.peer_count, 1.0)[:, None, None]
        weights = np.zeros((rows.classes, rows.family.size))
        velocity = weights
        for _ in range(rounds):
            local = np.broadcast_to(weights, (rows.peer_count, *weights.shape))
            for _ in range(local_steps):
                change = residual(local) / own - scale.penalty * local
                local = local + step_size * (change @ scale.preconditioner)
            velocity = momentum * velocity + np.tensordot(share, local, 1) - weights
            weights = weights + velocity
        return weights[None]

    return learn


def vote(features: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the mean posterior of several models: [n, K], [M, C, K] -> [n, C]."""
    return np.mean([core.posterior(features, model) for model in weights], axis=0)
