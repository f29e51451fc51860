"""What docs/loss.md predicts of `exact` with corrections by link, beside the simulator.

    python benchmarks/loss_theory.py [factors] [asymmetry] [mean] [critical] [constants] [memory] [--seeds 10]

factors    the convergence factor without loss, by the eigenvalues of the mixing matrix
asymmetry  the mean square of a link's asymmetry e = d_vu + d_uv, and the matrices that repairs cost
mean       how far independent loss moves the network's mean where nothing is learned (R = 0), with repairs and without
critical   the loss above which the mean square grows, with R = 0 and with a quadratic objective
constants  what other windows of repair, thresholds of silence and decays would do
memory     secure sums, which have no links to repair: the error by ρ where receivers lose rounds whole

Seeds of networks and losses: 601 and following, on which nothing was chosen.
"""

import argparse
import itertools
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import measuring  # noqa: F401  one thread
import numpy as np
from scipy.sparse import csr_array

from peerbayes.learning import corrections
from peerbayes.learning.corrections import Corrections, Received, after_round
from peerbayes.learning.strategies import Exact
from peerbayes.model.devices import NUMPY
from peerbayes.network import LossTrace, Static, adjacency, stable
from peerbayes.simulation.faults import Faults
from peerbayes.simulation.rounds import Broadcast, LinkEnds

NETWORKS, PEERS, SEED = ("tree", "ring", "tree+20"), 50, 601
LOSSES = (0.05, 0.2, 0.5)

# --- the simulator: all peers with a residual, whose messages and corrections are seen round by round


def simulated(
    links: csr_array,
    start: np.ndarray,
    residual: Callable[[np.ndarray], np.ndarray],
    loss: float,
    seed: int,
    rounds: int,
    repairs: bool = True,
) -> Iterator[tuple[np.ndarray, np.ndarray, Any]]:
    """Yield each round's message φ [N, C, K], S after it [N, C, K], and the links' state; `repairs`: by link."""
    driver = Broadcast(
        Exact(rounds, averaged=1), Static(links), residual, Faults(loss, seed), NUMPY, by_link=repairs
    )
    state = driver.begin(start)
    for round_index in range(1, rounds + 1):
        message = driver.strategy.message(state.state if repairs else state)
        state, _ = driver.advance(state, round_index)
        learned = state.state if repairs else state
        yield message, learned.recent[0], state.links if repairs else None


def nothing(stats: np.ndarray) -> np.ndarray:
    """Return R = 0."""
    return np.zeros_like(stats)


# --- without loss: r² − λ(2 − μ)r + λ(1 − μ) = 0 for each eigenvalue λ of the mixing matrix


def roots(eigenvalue: float, pull: float = 0.0) -> np.ndarray:
    """Return both roots r of the mode of an eigenvalue λ, for b·R_v(S) = μ(t_v − S)."""
    return np.roots([1.0, -eigenvalue * (2.0 - pull), eigenvalue * (1.0 - pull)])


def convergence_factor(mixing: csr_array, pull: float = 0.0) -> float:
    """Return the factor by which disagreement shrinks in a round: the largest |r| of eigenvalues other than 1."""
    others = np.linalg.eigvalsh(mixing.toarray())[:-1]
    return max(float(np.abs(roots(value, pull)).max()) for value in others)


def measured_factor(links: csr_array, pull: float) -> float:
    """Return the factor of the disagreement ‖S_v − S̄‖ between two halves of a run, each by its largest values.

    The run ends before rounding shows: where 1e-9 of the disagreement is left by the prediction.
    """
    rounds = int(-math.log(1e9) / math.log(convergence_factor(stable(links), pull)))
    rng = np.random.default_rng(SEED)
    start = rng.normal(size=(links.shape[0], 8, 8))
    targets = rng.normal(size=start.shape)
    spread = [
        np.linalg.norm(stats - stats.mean(axis=0))
        for _, stats, _ in simulated(
            links, start, lambda stats: pull * (targets - stats), 0.0, SEED, rounds, False
        )
    ]
    half = rounds // 2
    return float((max(spread[-half // 2 :]) / max(spread[half - half // 2 : half])) ** (1 / half))


# --- one link: what its two ends know of lost messages is a Markov chain. Transitions come from `after_round` itself.

COUNTED = [name for name in Corrections._fields if name != "values"]

Mode = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Outcome:
    """A round of a link: the chance of these messages in it, and the linear map [D, D] of its state."""

    before: int
    after: int
    heard: int
    losses: int
    attached: int  # corrections that are sent beside messages
    map: np.ndarray

    def chance(self, loss: float) -> float:
        return (1.0 - loss) ** self.heard * loss**self.losses


class Link:
    """The Markov chain of one link between two peers, with a linear state x whose first rows are d_01 and d_10."""

    def __init__(self, step: Callable[[Corrections, np.ndarray], np.ndarray], size: int) -> None:
        """step: the linear map [D, D] of a round, from what is known before it and which messages are heard [2]."""
        start = Corrections.begin(2, np.zeros((size, 1)))
        # Counters above it make no difference.
        self.cap = max(corrections.REPAIRING, corrections.DOWN) + 1
        modes: dict[Mode, int] = {self._mode(start): 0}
        waiting, self.outcomes = [start], list[Outcome]()
        for before in waiting:
            for heard in map(np.array, itertools.product((False, True), repeat=2)):
                after, *_ = after_round(before, received(before, heard, np.zeros((2, size, 1))))
                after = Corrections(*(np.minimum(counter, self.cap) for counter in after))
                if (mode := self._mode(after)) not in modes:
                    modes[mode] = len(modes)
                    waiting.append(after)
                count = int(heard.sum())
                self.outcomes.append(
                    Outcome(
                        modes[self._mode(before)],
                        modes[mode],
                        count,
                        2 - count,
                        int(before.sent.sum()),
                        step(before, heard),
                    )
                )
        self.modes = len(modes)

    def _mode(self, links: Corrections) -> Mode:
        return tuple(tuple(np.minimum(getattr(links, name), self.cap).tolist()) for name in COUNTED)

    @cached_property
    def _arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return (
            np.array([outcome.before for outcome in self.outcomes]),
            np.array([outcome.after for outcome in self.outcomes]),
            np.stack([outcome.map for outcome in self.outcomes]),
        )

    def chances(self, loss: float) -> np.ndarray:
        return np.array([outcome.chance(loss) for outcome in self.outcomes])

    def second_moment(self, moments: np.ndarray, loss: float, maps: np.ndarray | None = None) -> np.ndarray:
        """Return E[x xᵀ] by mode after a round: [M, D, D] -> [M, D, D]; `maps`: of other coordinates."""
        before, after, maps = self._arrays if maps is None else (*self._arrays[:2], maps)
        result = np.zeros_like(moments)
        np.add.at(
            result, after, self.chances(loss)[:, None, None] * (maps @ moments[before] @ maps.swapaxes(1, 2))
        )
        return result

    def spectral_radius(self, loss: float, coordinates: np.ndarray, rounds: int = 400) -> float:
        """Return the factor by which E‖Px‖² grows in a round, in the long run, from ends that agree (d_01 = −d_10).

        coordinates  [K, D] P, of which Px after a round is a function of Px before; the first are d_01 and d_10
        """
        maps = coordinates @ self._arrays[2] @ np.linalg.pinv(coordinates)
        moments, growth = np.zeros((self.modes, *maps.shape[1:])), list[float]()
        moments[0] = np.eye(len(coordinates))
        moments[0, :2, :2] = [[1, -1], [-1, 1]]
        for _ in range(rounds):
            moments = self.second_moment(moments, loss, maps)
            growth.append(float(np.log(total := np.trace(moments, axis1=1, axis2=2).sum())))
            moments /= total
        return math.exp(float(np.mean(growth[rounds // 2 :])))


def received(before: Corrections, heard: np.ndarray, differences: np.ndarray) -> Received:
    """Return what arrives over the two directions of a link."""
    return Received(
        heard,
        differences.copy(),
        np.flatnonzero(before.sent[::-1]),
        before.values[::-1][before.sent[::-1]],
        before.missed[::-1],
        np.zeros(2, dtype=bool),
    )


def moved(
    before: Corrections, heard: np.ndarray, differences: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return d after a round, and what S alone takes, as rows of coefficients of x: two [2, D].

    d before are the first two coordinates of x.
    """
    values = np.eye(2, size)[:, :, None]
    state = before._replace(values=values)
    links, _, late = after_round(state, received(state, heard, differences[:, :, None]))
    beside = np.zeros((2, size))
    beside[late.links] = late.values[:, :, 0]
    return links.values[:, :, 0], beside


def driven_link() -> Link:
    """Return a link whose δ = w(φ_u − φ_v) is given from outside: x = (d_01, d_10, δ)."""

    def step(before: Corrections, heard: np.ndarray) -> np.ndarray:
        difference = np.eye(3)[2]
        return np.vstack([moved(before, heard, np.stack([difference, -difference]), 3)[0], np.zeros(3)])

    return Link(step, 3)


def closed_link(weight: float, pull: float, targets: float = 0.0) -> Link:
    """Return two peers over one link: x = (d_01, d_10, S_0, S_1, 1), with b·R_v = μ(t_v − S_v) and t = ±targets."""

    def step(before: Corrections, heard: np.ndarray) -> np.ndarray:
        unit = np.eye(5)
        share = before.up.astype(float)[:, None]
        stats, pushed = unit[2:4], pull * (np.array([[targets], [-targets]]) * unit[4] - unit[2:4]) + unit[:2]
        message = stats + share * pushed
        values, beside = moved(before, heard, weight * (message[::-1] - message), 5)
        return np.vstack([values, message + values + beside - unit[:2], unit[4]])

    return Link(step, 5)


# What of a closed link's x decides whether it is stable: without R the mean of S is free.
AGREEMENT = np.array([[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, -1, 0]], dtype=float)
ALL = np.eye(4, 5)


@dataclass(frozen=True)
class Asymmetry:
    """What independent loss makes of a link's asymmetry e, for δ of variance 1.

    white      E e² where δ changes its sign at random
    constant   E e² where δ stays the same
    shift      E (Σ_t e_t)² for each δ that was counted on one side only
    attached   corrections that are sent, for each message
    """

    white: float
    constant: float
    shift: float
    attached: float


def asymmetry(loss: float) -> Asymmetry:
    """Return the stationary asymmetry of a link with corrections, from e ← c·e + s·δ, mode by mode.

    Links do not go down here: c is the larger of the two ends' factors, and d takes all of every difference.
    """
    with constants(TAKEN=1.0):
        link = driven_link()
    chance = np.zeros((link.modes, link.modes))
    first, square, added, mixed = (np.zeros_like(chance) for _ in range(4))
    attached = np.zeros(link.modes)
    for outcome, share in zip(link.outcomes, link.chances(loss), strict=True):
        at = outcome.after, outcome.before
        factors = outcome.map[:2].sum(axis=0)
        kept, sign = factors[:2].max(), factors[2]
        chance[at] += share
        first[at] += share * kept
        square[at] += share * kept**2
        added[at] += share * sign
        mixed[at] += share * kept * sign
        attached[outcome.before] += share * outcome.attached / 2
    alone = np.zeros_like(chance)
    for outcome, share in zip(link.outcomes, link.chances(loss), strict=True):
        alone[outcome.after, outcome.before] += share * outcome.map[:2].sum(axis=0)[2] ** 2
    stationary = np.linalg.matrix_power(chance, 4096) @ np.eye(link.modes)[0]
    unit = np.eye(link.modes)
    events = alone @ stationary
    mean = np.linalg.solve(unit - first, added @ stationary)
    sums = np.linalg.solve((unit - first).T, np.ones(link.modes))
    squares = np.linalg.solve((unit - square).T, 1.0 + 2.0 * first.T @ sums)
    return Asymmetry(
        float(np.linalg.solve(unit - square, events).sum()),
        float(np.linalg.solve(unit - square, events + 2.0 * mixed @ mean).sum()),
        float(squares @ events / events.sum()),
        float(attached @ stationary),
    )


# --- a network whose ends always send their corrections: x ← (A + Σ_e h_e u_e r_eᵀ)x, h_e = 1 where a message arrives


@dataclass(frozen=True, eq=False)
class Lifted:
    """The linear iteration of x = (S, d) [N + E] over the directed links e of a network.

    Where v hears u, r_eᵀx = w(φ_u − φ_v) − κ(d_vu + d_uv) is added to d_vu and to S_v; κ = ½ repairs, κ = 0 does not.
    """

    mixing: csr_array
    pull: float | np.ndarray = 0.0  # μ, of all peers or of each [N]
    repair: float = 0.5

    @cached_property
    def ends(self) -> LinkEnds:
        return LinkEnds.of(self.mixing)

    @cached_property
    def message(self) -> np.ndarray:
        """φ = (1 − μ)S + Σ_u d_vu: [N, N + E]."""
        peers, links = self.mixing.shape[0], len(self.ends.senders)
        return np.hstack([(1.0 - self.pull) * np.eye(peers), self.ends.summed(np.eye(links))])

    @cached_property
    def differences(self) -> np.ndarray:
        """w(φ_u − φ_v): [E, N + E]."""
        ends = self.ends
        return ends.weights[:, None] * (self.message[ends.senders] - self.message[ends.receivers])

    @cached_property
    def heard(self) -> np.ndarray:
        """r: [E, N + E]."""
        links = np.eye(len(self.ends.senders), len(self.message.T), k=len(self.message))
        return self.differences - self.repair * (links + links[self.ends.other])

    @cached_property
    def targets(self) -> np.ndarray:
        """u: [N + E, E], where what is heard over a link goes."""
        links = np.eye(len(self.ends.senders))
        return np.vstack([self.ends.summed(links), links])

    def expected(self, loss: float) -> np.ndarray:
        """Return E A, the expected iteration: [N + E, N + E]."""
        silent = np.eye(len(self.message.T))
        silent[: len(self.message)] = self.message
        return silent + (1.0 - loss) * self.targets @ self.heard

    def gain(self, loss: float, rounds: int = 20_000) -> float:
        """Return the spectral radius of G_ef = p(1 − p) Σ_t (r_eᵀ Āᵗ u_f)²: the mean square is bounded if it is < 1.

        Infinite where the expected iteration itself grows.
        """
        matrix, response = self.expected(loss), self.targets
        total = np.zeros((response.shape[1],) * 2)
        for _ in range(rounds):
            heard = self.heard @ response
            total += heard**2
            largest = np.abs(heard).max() ** 2
            if largest > 1e9:
                return math.inf
            if largest < 1e-9 * total.max():
                break
            response = matrix @ response
        return loss * (1.0 - loss) * float(np.abs(np.linalg.eigvals(total)).max())

    def moments(self, loss: float, rounds: int) -> Iterator[np.ndarray]:
        """Yield E[x xᵀ] before each round and after the last, from S of variance 1 about a mean of 0."""
        peers, matrix = len(self.message), self.expected(loss)
        moment = np.zeros((len(matrix), len(matrix)))
        moment[:peers, :peers] = np.eye(peers) - 1.0 / peers
        yield moment
        for _ in range(rounds):
            variance = loss * (1.0 - loss) * ((self.heard @ moment) * self.heard).sum(axis=1)
            moment = matrix @ moment @ matrix.T + (self.targets * variance) @ self.targets.T
            yield moment


def mean_shift(mixing: csr_array, loss: float, rounds: int, repair: float) -> float:
    """Return the predicted standard deviation of the mean's shift with R = 0, in those of S at the start.

    Without repairs it is exact. With repairs, Var S̄ = Σ_t Σ_links 2p(1 − p)·shift·E δ²/N²: each message that was
    counted on one side moves the mean until it is repaired; δ is that of ends which always send their corrections.
    """
    lifted, peers = Lifted(mixing, repair=repair), mixing.shape[0]
    if not repair:
        *_, last = lifted.moments(loss, rounds)
        return math.sqrt(last[:peers, :peers].mean())
    counted = sum(
        float(((lifted.differences @ moment) * lifted.differences).sum()) / 2
        for moment in lifted.moments(loss, rounds - 1)
    )
    return math.sqrt(2 * loss * (1 - loss) * asymmetry(loss).shift * counted) / peers


def critical_loss(grows: Callable[[float], bool]) -> float:
    """Return the least loss at which the mean square grows, to 0.001; 1 where it grows at none up to 0.99."""
    low, high = 0.0, 0.99
    if not grows(high):
        return 1.0
    while high - low > 0.001:
        middle = (low + high) / 2
        low, high = (low, middle) if grows(middle) else (middle, high)
    return high


# --- the command: predictions beside measurements


def network(topology: str, peers: int = PEERS) -> csr_array:
    return adjacency(topology, peers, np.random.default_rng(SEED))


def factors(seeds: int) -> None:
    print(
        f"{'network':<10}{'λ2':>8}{'λ min':>8}"
        + f"{'R = 0':>10}{'measured':>10}{'μ = .05':>10}{'measured':>10}"
    )
    for topology in NETWORKS:
        links = network(topology)
        mixing, values = stable(links), np.linalg.eigvalsh(stable(links).toarray())
        print(
            f"{topology:<10}{values[-2]:>8.4f}{values[0]:>8.4f}"
            + "".join(
                f"{convergence_factor(mixing, pull):>10.4f}{measured_factor(links, pull):>10.4f}"
                for pull in (0.0, 0.05)
            )
        )


def asymmetries(seeds: int) -> None:
    """R is white noise around a pull, so that peers never agree, and δ never fades."""
    print(
        f"{'loss':<8}{'4p/(2+p)':>10}{'δ white':>10}{'constant':>10}{'measured':>10}{'sent':>10}{'measured':>10}"
        "   E e² / E δ², and corrections for each message"
    )
    links = network("tree+20")
    ends = LinkEnds.of(stable(links))
    for loss in LOSSES:
        squares, counted, sent = 0.0, 0.0, 0.0
        for seed in range(SEED, SEED + seeds):
            rng = np.random.default_rng(seed)
            start = np.zeros((PEERS, 2, 2))
            noisy = lambda stats, rng=rng: rng.normal(size=stats.shape) - 0.05 * stats  # noqa: E731
            for message, _, state in itertools.islice(
                simulated(links, start, noisy, loss, seed, 200), 50, None
            ):
                squares += float(((state.values + state.values[ends.other]) ** 2).sum())
                difference = ends.weights[:, None, None] * (message[ends.senders] - message[ends.receivers])
                counted += float((difference**2).sum())
                sent += float(state.sent.mean()) / (150 * seeds)
        told = asymmetry(loss)
        print(
            f"{loss:<8g}{4 * loss / (2 + loss):>10.3f}{told.white:>10.3f}{told.constant:>10.3f}"
            f"{squares / counted:>10.3f}{told.attached:>10.3f}{sent:>10.3f}"
        )


def mean(seeds: int, rounds: int = 400, loss: float = 0.05) -> None:
    print(
        f"{'network':<10}{'ρ = 1':>10}{'measured':>10}{'by link':>10}{'measured':>10}   shift of S̄ in {rounds} rounds "
        f"of R = 0 with {loss:.0%} loss, in standard deviations of S at the start"
    )
    for topology in NETWORKS:
        links, shown = network(topology), []
        for repair in (0.0, 0.5):
            squares = []
            for seed in range(SEED, SEED + seeds):
                start = np.random.default_rng(seed).normal(size=(PEERS, 4, 8))
                *_, (_, stats, _) = simulated(links, start, nothing, loss, seed, rounds, repair > 0)
                squares.append(((stats - start).mean(axis=0) ** 2).mean())
            shown += [mean_shift(stable(links), loss, rounds, repair), math.sqrt(np.mean(squares))]
        print(f"{topology:<10}" + "".join(f"{value:>10.3f}" for value in shown), flush=True)


def critical(seeds: int) -> None:
    print(
        f"{'network':<14}{'μ':>6}"
        + "".join(f"{f'p = {loss:g}':>10}" for loss in LOSSES)
        + f"{'critical':>10}   spectral radius of G (always sent), or of E A⊗A (one link, as it is)"
    )
    pulls = {
        "0": 0.0,
        "0.05": 0.05,
        "0, 0.1": 0.1 * (np.arange(20) % 2),
        "0.2": 0.2,
    }  # the third: every other peer
    for topology, (name, pull) in itertools.product(NETWORKS, pulls.items()):
        lifted = Lifted(stable(network(topology, 20)), pull)
        limit = critical_loss(lambda loss, lifted=lifted: lifted.gain(loss) >= 1)
        print(
            f"{topology + ', 20':<14}{name:>6}"
            + "".join(f"{lifted.gain(loss):>10.3f}" for loss in LOSSES)
            + f"{limit:>10.3f}",
            flush=True,
        )
    for pull in (0.0, 0.05, 0.2):
        link, of = closed_link(0.5, pull), ALL if pull else AGREEMENT
        limit = critical_loss(lambda loss, link=link, of=of: link.spectral_radius(loss, of) >= 1)
        print(
            f"{'one link':<14}{pull:>6g}"
            + "".join(f"{link.spectral_radius(loss, of):>10.3f}" for loss in LOSSES)
            + f"{limit:>10.3f}",
            flush=True,
        )
    print(
        "\nlargest |S| in 1,000 rounds of the simulator with 20 peers, from starts and targets of deviation 1"
    )
    for topology, pull in itertools.product(NETWORKS, (0.0, 0.05)):
        largest = [max(run_largest(topology, pull, loss, SEED + k)[0] for k in range(2)) for loss in HEAVY]
        print(f"{topology:<14}{pull:>6g}" + "".join(f"{value:>10.3g}" for value in largest), flush=True)


HEAVY = (0.5, 0.7, 0.9)


def run_largest(
    topology: str, pull: float, loss: float, seed: int, rounds: int = 1000
) -> tuple[float, float]:
    """Return the largest |S| of a run of 20 peers, and the root mean square of S − t̄ at its end."""
    rng = np.random.default_rng(seed)
    start, targets = rng.normal(size=(2, 20, 2, 2))
    largest = 0.0
    for _, stats, _ in simulated(
        network(topology, 20), start, lambda stats: pull * (targets - stats), loss, seed, rounds
    ):
        largest = max(largest, float(np.abs(stats).max()))
    return largest, math.sqrt(float(((stats - targets.mean(axis=0)) ** 2).mean()))


@contextmanager
def constants(**values: float) -> Iterator[None]:
    """Set constants of `corrections` for a while."""
    before = {name: getattr(corrections, name) for name in values}
    try:
        for name, value in values.items():
            setattr(corrections, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(corrections, name, value)


def other_constants(seeds: int) -> None:
    print(
        f"{'REPAIRING':<12}"
        + "".join(f"{f'p = {loss:g}':>24}" for loss in LOSSES)
        + "   E e² / E δ², E (Σe)², sent"
    )
    for window in (1, 2, 3, 4):
        with constants(REPAIRING=window):
            told = [asymmetry(loss) for loss in LOSSES]
        print(
            f"{window:<12}"
            + "".join(f"{values.white:>8.3f}{values.shift:>8.2f}{values.attached:>8.3f}" for values in told),
            flush=True,
        )
    print(
        "\nDOWN, KEPT: ring with R = 0 and 60 % loss, largest |S|; tree with μ = 0.05 and 50 % loss, error at the end"
    )
    for down, kept in ((3, 0.99), (3, 0.999), (3, 1.0), (6, 0.99), (12, 0.99), (10_000, 1.0)):
        with constants(DOWN=down, KEPT=kept):
            largest, error = run_largest("ring", 0.0, 0.6, SEED)[0], run_largest("tree", 0.05, 0.5, SEED)[1]
        print(f"{down:<8}{kept:<8g}{largest:>10.3g}{error:>12.5f}", flush=True)


def memory(seeds: int, pull: float = 0.05, rounds: int = 64) -> None:
    """A receiver that misses one message of a secure sum misses its round, while its neighbours hear it."""
    memories = (0.9, 0.95, 0.97, 0.98, 0.99, 1.0)
    print(
        f"{'network':<12}{'rounds lost':<12}"
        + "".join(f"{f'ρ = {value:g}':>10}" for value in memories)
        + f"   root mean square of S − t̄ after {rounds} rounds, targets of deviation 1, μ = {pull:g}"
    )
    for topology, loss in itertools.product((*NETWORKS, "regular-3", "regular-6"), (0.0, 0.05, 0.2)):
        links, squares = network(topology), np.zeros(len(memories))
        for seed in range(SEED, SEED + seeds):
            rng = np.random.default_rng(seed)
            targets = rng.normal(size=(PEERS, 4, 4))
            lost = rng.random((rounds + 1, PEERS)) < loss
            neighbours = [links.indices[links.indptr[v] : links.indptr[v + 1]].tolist() for v in range(PEERS)]
            missed = [(t, u, v) for t, v in np.argwhere(lost[1:]).tolist() for u in neighbours[v]]
            faults = Faults(0.0, seed, trace=LossTrace(frozenset((t + 1, u, v) for t, u, v in missed)))
            for index, value in enumerate(memories):
                driver = Broadcast(
                    Exact(rounds, value), Static(links),
                    lambda stats, targets=targets: pull * (targets - stats), faults, NUMPY,
                )  # fmt: skip
                state = driver.begin(np.zeros_like(targets))
                for round_index in range(1, rounds + 1):
                    state, _ = driver.advance(state, round_index)
                squares[index] += ((driver.read(state) - targets.mean(axis=0)) ** 2).mean() / seeds
        print(
            f"{topology:<12}{loss:<12g}" + "".join(f"{value:>10.3f}" for value in np.sqrt(squares)),
            flush=True,
        )


SHOWN = {
    "factors": factors,
    "asymmetry": asymmetries,
    "mean": mean,
    "critical": critical,
    "constants": other_constants,
    "memory": memory,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="*", choices=[*SHOWN, []])
    parser.add_argument("--seeds", type=int, default=10)
    asked = parser.parse_args()
    for table in asked.tables or SHOWN:
        SHOWN[table](asked.seeds)
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
