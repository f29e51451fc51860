"""Differential privacy in a simulation: what is refused, and R̃ of all peers at once.

The noise comes from the simulation's seed, so that it can be repeated, and therefore protects nobody. Real peers call
the same functions with the operating system's randomness.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from peerbayes import core, topologies
from peerbayes.core import Array
from peerbayes.families import Rows
from peerbayes.holdings import Holdings
from peerbayes.layouts import STRUCTURES
from peerbayes.privacy import edges
from peerbayes.privacy.mechanism import squares, summed
from peerbayes.privacy.row_steps import RowSteps
from peerbayes.privacy.sampling import LARGEST as WIDEST
from peerbayes.privacy.scheme import Scheme, scheme
from peerbayes.privacy.terms import Privacy

# Sets the noise apart from other random numbers of the same seed: of rounds, of links, of starts.
NOISE_STREAM, LINK_STREAM, START_STREAM = 21, 22, 23


def refuse(
    terms: Privacy,
    strategy: Any,
    family: str,
    steps: int,
    objective: str,
    device: str | None,
    dtype: str,
    robust: str | None = None,
) -> None:
    """Say why a simulation cannot be private, if its settings do not allow it."""
    name = getattr(strategy, "name", strategy)
    reasons = (
        (name == "auto", "strategy 'auto' chooses by what rows say at the start; name 'exact' or 'relay'"),
        (
            name == "consensus-ml",
            "consensus-ml sends the sums of the rows themselves; use 'exact' with start='ml', which buys a noisy one",
        ),
        (name == "dsgd", "dsgd takes its step from the length of the rows; use 'exact', 'crc' or 'relay'"),
        (
            getattr(strategy, "of_weights", False),
            f"{name} learns weights; privacy is for strategies of statistics",
        ),
        (
            family in STRUCTURES,
            f"the structure of {family} is learned from pairs of columns of the rows, which nothing protects; use "
            "'naive-bayes', 'qda' or 'lda', or a Bayesian network whose parents are known beforehand",
        ),
        (
            robust == "guard",
            "whom a guard cuts off tells of a peer's rows, outside the account; use robust='clip'",
        ),
        (
            robust is not None and terms.edge_noise > 0,
            "edge_noise cancels in sums, and clipped messages do not add up; use edge_noise=0, or robust=None",
        ),
        (steps > 1, f"local_steps is {steps}, and every local step would be a release of its own; use 1"),
        (
            objective == "peers",
            "objective 'peers' weighs a row by how many a peer has, and so one row changes all the others' weights; "
            "use 'rows'",
        ),
        (
            device is not None or dtype != "float64",
            "exact sums need NumPy and float64; leave out device and dtype",
        ),
    )
    for applies, reason in reasons:
        if applies:
            raise ValueError(f"privacy: {reason}")


def agreed(
    terms: Privacy,
    held: Holdings,
    rounds: int,
    lr: float,
    network: topologies.Schedule,
    start: str,
    faults: bool,
) -> Scheme:
    """The scheme of a simulated network; refused where rows are too few, or it cannot hold."""
    few = np.flatnonzero(held.sizes < terms.min_rows)
    if few.size:
        raise ValueError(
            f"privacy: peer {few[0]} has {held.sizes[few[0]]} rows, and so refuses: min_rows is {terms.min_rows}. Give "
            "it more rows, or lower min_rows if you know what it means"
        )
    if held.incomplete.any():
        raise ValueError(
            f"privacy: rows miss values that {held.family.name} completes by everybody's model, so that one row's part "
            "in a release has no bound; use family='naive-bayes', or fill them in first"
        )
    if terms.edge_noise and (faults or not network.static):
        raise ValueError(
            "privacy: edge_noise cancels only where everybody is there and every message arrives, and this network "
            "changes, or loses peers or messages; use edge_noise=0"
        )
    promised = scheme(
        terms, held.family, held.classes, float(held.sizes.mean()), held.nodes, rounds, lr,
        network.at(1) if terms.edge_noise else None, (held.rows.codes >= 0).all(axis=0), start != "uniform",
    )  # fmt: skip
    widest = max(promised.mechanism.sigma, promised.edge_sigma, promised.start_sigma)
    if widest > WIDEST:
        raise ValueError(
            f"privacy: the noise would be {widest:.3g} steps of its grid wide; expected at most {WIDEST:.3g}. Use a "
            "larger epsilon, or a smaller clip or edge_noise"
        )
    return promised


class PrivateRows:
    """R̃_v(S_v) of all peers, one release a call: [N, C, K] -> [N, C, K]. Once the budget is spent, nothing."""

    def __init__(self, scheme: Scheme, held: Holdings, network: csr_array, seed: int) -> None:
        self.scheme, self.held, self.network, self.seed = scheme, held, network, seed
        self.calls = 0  # releases so far
        self._steps = [_steps_of(held, part) for part in self._parts]
        self._moved = scheme.mechanism.rows(held.family, held.rows)
        self._lengths = squares(self._moved)

    def __call__(self, stats: Array) -> np.ndarray:
        turn, self.calls = self.calls, self.calls + 1
        if not self.scheme.ledger.fits(turn):
            return np.zeros(stats.shape)  # `exact` asks once more, for a message that is never sent
        mechanism = self.scheme.mechanism
        weights = np.asarray(self.held.family.weights(stats))
        steps = [of_peer(own) for of_peer, own in zip(self._steps, weights, strict=True)]
        cut = mechanism.cut(np.concatenate(steps), self._moved, lengths=self._lengths)
        whole = np.stack([summed(cut[part], self._moved[part]) for part in self._parts])
        whole += mechanism.noise(whole.shape, self._source(NOISE_STREAM, turn))
        if self.scheme.edge_sigma:
            links = (self.network.nnz // 2, *whole.shape[1:])
            drawn = mechanism.noise(links, self._source(LINK_STREAM, turn), self.scheme.edge_sigma)
            whole += edges.shared(drawn, self.network)
        return mechanism.opened(whole)

    def start(self, marginal: bool = False) -> np.ndarray:
        """Noisy Y_vᵀΦ_v, or Σφ if `marginal`, of every peer: [N, C, K] or [N, 1, K]. Bought from the budget."""
        mechanism, clip = self.scheme.mechanism, self.scheme.start_clip
        labels = self.held.labels
        steps = np.ones((len(labels), 1)) if marginal else core.one_hot(labels, self.held.classes)
        whole = np.stack([mechanism.clipped(steps[part], self._moved[part], clip) for part in self._parts])
        whole += mechanism.noise(whole.shape, self._source(START_STREAM, 0), self.scheme.start_sigma)
        return mechanism.opened(whole, classes=False)

    def spent(self) -> np.ndarray:
        """What each peer has spent so far, in the order of `SPENT`: [N, 5]."""
        done = min(self.calls, self.scheme.ledger.rounds)
        scheme = self.scheme
        one = (scheme.sigma, done, scheme.ledger.spent(done), scheme.terms.delta, scheme.rho)
        return np.tile(np.array(one, dtype=float), (self.held.nodes, 1))

    def _source(self, stream: int, turn: int) -> Any:
        return np.random.default_rng([self.seed, stream, turn]).bytes

    @property
    def _parts(self) -> list[slice]:
        ends = self.held.offsets.tolist()
        return [slice(begin, end) for begin, end in itertools.pairwise(ends)]


def _steps_of(held: Holdings, part: slice) -> RowSteps:
    """What the rows of one peer do."""
    rows = Rows(held.rows.values[part], held.rows.codes[part])
    return RowSteps.of(held.family, rows, held.labels[part])
