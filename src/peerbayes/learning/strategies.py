"""Strategies of learning together: values with four pure functions, the same in a simulation and a real peer.

    state   = strategy.begin(start, residual)        before the first round
    message = strategy.message(state)                sent to every neighbour
    mixed   = Σ_u a_vu message_u                     the driver combines what arrived; `mixing` names the weights a
    state   = strategy.step(state, mixed, residual)
    stats   = strategy.read(state)                   the statistics of the peer's model

`residual(S)` is R_v(S), from the peer's own rows: [..., C, K] -> [..., C, K], a new array that the strategy may use up;
a leading axis is all peers at once.
The weight of a neighbour whose message is missing goes to the peer itself. All strategies conserve the class sums of S,
unless values are missing that the family completes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from array_api_compat import array_namespace

from peerbayes.data.registry import Choices, Registry
from peerbayes.data.table import Array

Residual = Callable[[Array], Array]

# ρ of `exact` where messages get lost or late, or peers are absent; and where messages may be false.
LOSSY_MEMORY, ROBUST_MEMORY = 0.97, 0.9

# The share of the rounds that the read-out of `exact` averages where there is noise.
NOISY_WINDOW = 0.5


class Strategy(Protocol):
    """The interface that a driver needs."""

    @property
    def name(self) -> str: ...
    @property
    def mixing(self) -> str:
        """The weights of `topologies` that messages are combined with, or "none": nothing is sent."""

    @property
    def of_weights(self) -> bool:
        """Whether it learns natural weights W (and `read` gives them) instead of statistics S."""

    @property
    def takes_old(self) -> bool:
        """Whether a neighbour's message of the previous round is better than none: not if messages are differences."""

    def begin(self, start: Array, residual: Residual) -> Any: ...
    def message(self, state: Any) -> Array: ...
    def step(self, state: Any, mixed: Array, residual: Residual) -> Any: ...
    def read(self, state: Any) -> Array: ...


@dataclass(frozen=True)
class _Simple:
    """One matrix of statistics, sent as it is."""

    name: ClassVar[str]
    mixing: ClassVar[str]
    of_weights: ClassVar[bool] = False
    takes_old: ClassVar[bool] = True

    def begin(self, start: Array, residual: Residual) -> Array:
        return start

    def message(self, state: Array) -> Array:
        return state

    def read(self, state: Array) -> Array:
        return state


@dataclass(frozen=True)
class CRC(_Simple):
    """The paper's Algorithms 2 and 3: S̄_v = mean of the neighbours' S, self excluded; S_v = S̄_v + R_v(S̄_v)."""

    name: ClassVar[str] = "crc"

    with_self: bool = False
    """Whether a peer counts among its own neighbours: Theorem 1 needs it, Algorithm 2 does not have it."""

    @property
    def mixing(self) -> str:  # type: ignore[override]
        return "closed_mean" if self.with_self else "neighbour_mean"

    def step(self, state: Array, mixed: Array, residual: Residual) -> Array:
        return _added(residual(mixed), mixed)


@dataclass(frozen=True)
class Local(_Simple):
    """No collaboration: each peer calibrates on its own rows."""

    name: ClassVar[str] = "local"
    mixing: ClassVar[str] = "none"

    def step(self, state: Array, mixed: Array, residual: Residual) -> Array:
        return _added(residual(state), state)


@dataclass(frozen=True)
class ConsensusML(_Simple):
    """Agree on the maximum likelihood statistics: the start is each peer's own YᵀΦ, and rounds only average."""

    name: ClassVar[str] = "consensus-ml"
    mixing: ClassVar[str] = "metropolis"

    def step(self, state: Array, mixed: Array, residual: Residual) -> Array:
        return mixed


@dataclass(frozen=True)
class DSGD(_Simple):
    """Decentralised softmax regression: W̄_v = Σ_u a_vu W_u, W_v = W̄_v + rate·R_v(W̄_v): R as in `CRC`, added to W."""

    name: ClassVar[str] = "dsgd"
    mixing: ClassVar[str] = "metropolis"
    of_weights: ClassVar[bool] = True

    rate: float = 1.0
    """The step size, a factor of R: 1 / (rows of a peer · half the mean of ‖φ‖²) is always stable."""

    def begin(self, start: Array, residual: Residual) -> Array:
        return array_namespace(start).zeros_like(start)

    def step(self, state: Array, mixed: Array, residual: Residual) -> Array:
        return _added(residual(mixed), mixed, self.rate)


class ExactState(NamedTuple):
    """The state of `Exact`."""

    adapted: Array  # [..., C, K] ψ of the last round
    sent: Array  # [..., C, K] φ, the message of the coming round
    recent: tuple[Array, ...]  # window × [..., C, K] S of the last rounds, the newest first
    heard: Array  # [...] rounds so far, at most `window`


@dataclass(frozen=True)
class Exact:
    """Bias-corrected diffusion (exact diffusion, D²) on statistics, one matrix per neighbour per round.

        ψ_v = S_v + b·R_v(S_v)          φ_v = ψ_v + ρ·(S_v − ψ_v of the last round)          S_v = Σ_u a_vu φ_u

    The model is θ of the mean of S over the last `window` rounds; b = T/(T − (window − 1)/2) makes up for its lag.
    A mode with eigenvalue λ of the mixing matrix obeys r² − 2λr + λ = 0, so it is stable for λ > −1/3: the weights
    `stable` see to that for any network. ρ below 1 damps the errors that lost messages leave behind.
    """

    name: ClassVar[str] = "exact"
    mixing: ClassVar[str] = "stable"
    of_weights: ClassVar[bool] = False
    takes_old: ClassVar[bool] = False

    rounds: int = 64
    memory: float = 1.0
    """ρ: 1 on reliable links, 0.97 where messages get lost, 0.9 where some may be false: S − ψ integrates the error of
    a false message, also after its sender is cut off; ρ forgets it in 1/(1 − ρ) rounds."""
    averaged: int | None = None
    """Rounds that the read-out averages; None: an eighth of them, at most six. Half of them where there is noise."""

    @property
    def window(self) -> int:
        """Rounds that the read-out averages."""
        return self._usual if self.averaged is None else max(1, self.averaged)

    @property
    def _usual(self) -> int:
        return max(1, min(6, self.rounds // 8))

    @property
    def boost(self) -> float:
        """b, which makes up for the lag of the read-out."""
        return self.rounds / (self.rounds - (self.window - 1) / 2)

    def begin(self, start: Array, residual: Residual) -> ExactState:
        xp = array_namespace(start)
        adapted = _added(residual(start), start, self.boost)
        return ExactState(adapted, adapted, (start,) * self.window, xp.zeros_like(start[..., 0, 0]))

    def message(self, state: ExactState) -> Array:
        return state.sent

    def step(self, state: ExactState, mixed: Array, residual: Residual) -> ExactState:
        xp = array_namespace(mixed)
        adapted = _added(residual(mixed), mixed, self.boost)
        sent = _added(mixed - state.adapted, adapted, self.memory)
        recent = (mixed, *state.recent[: self.window - 1])
        heard = xp.clip(state.heard + 1.0, None, float(self.window))
        return ExactState(adapted, sent, recent, heard)

    def read(self, state: ExactState) -> Array:
        xp = array_namespace(state.heard)
        count = xp.clip(state.heard, 1.0, None)[..., None, None]
        total = state.recent[0] / count
        for age, stats in enumerate(state.recent[1:], start=1):
            total = total + stats * (xp.astype(age < count, stats.dtype) / count)
        return total


class TrackingState(NamedTuple):
    """The state of `Tracking`."""

    stats: Array  # [..., C, K] S
    track: Array  # [..., C, K] the peer's estimate of the network's mean residual
    residual: Array  # [..., C, K] R_v at S


@dataclass(frozen=True)
class Tracking:
    """Gradient tracking: two matrices per neighbour. S_v = Σ a (S + G)_u; G_v = Σ a G_u + R_v(S_v) − R_v(before)."""

    name: ClassVar[str] = "tracking"
    mixing: ClassVar[str] = "metropolis"
    of_weights: ClassVar[bool] = False
    takes_old: ClassVar[bool] = False

    def begin(self, start: Array, residual: Residual) -> TrackingState:
        first = residual(start)
        return TrackingState(start, first, first)

    def message(self, state: TrackingState) -> Array:
        xp = array_namespace(state.stats)
        return xp.stack([state.stats + state.track, state.track], axis=-3)

    def step(self, state: TrackingState, mixed: Array, residual: Residual) -> TrackingState:
        stats = mixed[..., 0, :, :]
        change = residual(stats)
        return TrackingState(stats, mixed[..., 1, :, :] + change - state.residual, change)

    def read(self, state: TrackingState) -> Array:
        return state.stats


def _added(change: Array, stats: Array, factor: float = 1.0) -> Array:
    """Return S + factor·change, in the memory of `change`, which the caller owns: it saves a copy per peer."""
    if factor != 1.0:
        change *= factor
    change += stats
    return change


# Names that drivers handle themselves: `relay` is no strategy of this kind, and "auto" chooses between two.
OF_DRIVERS = ("relay", "auto")

# What a driver needs of every strategy.
NEEDED = ("name", "mixing", "of_weights", "takes_old", "begin", "message", "step", "read")


def _problem(name: str, loaded: Any) -> str | None:
    """Return what is wrong with a strategy of an outside package: a class, or a function that returns a value."""
    if not callable(loaded):
        return f"it is {loaded!r:.80}; expected a class, or a function that returns a strategy"
    strategy = loaded()
    if lacking := [attribute for attribute in NEEDED if not hasattr(strategy, attribute)]:
        return f"it has no {', '.join(lacking)}; expected a value with {', '.join(NEEDED)}"
    if strategy.name != name:
        return f"its name is {strategy.name!r:.80}; expected that of its entry point"
    return None


STRATEGIES: Registry[Callable[..., Strategy]] = Registry(
    "strategy",
    "peerbayes.strategies",
    {strategy.name: strategy for strategy in (CRC, Exact, Tracking, Local, ConsensusML, DSGD)},
    _problem,
    OF_DRIVERS.__contains__,
)


def strategy_names() -> Choices:
    """Return the names of all strategies, including those of outside packages."""
    return Choices(STRATEGIES, *OF_DRIVERS)
