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

What a strategy can do beside that it declares (`Declaration`), and how it is set up for a run it decides from settings
and facts that all peers know (`planned`); drivers ask `planning.plan` for both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from array_api_compat import array_namespace

from peerbayes.data.registry import Registry
from peerbayes.data.table import Array
from peerbayes.model.residuals import (
    Residual as Residual,
)  # strategies of other packages import it from this module

# ρ of `exact` where messages get lost or late, or peers are absent; and where messages may be false.
LOSSY_MEMORY, ROBUST_MEMORY = 0.97, 0.9

# The share of the rounds that the read-out of `exact` averages where there is noise.
NOISY_WINDOW = 0.5


@dataclass(frozen=True)
class Declaration:
    """What a strategy's messages are, and what may be done with them: all that drivers know of it beside its functions.

    The defaults fit a strategy that sends one matrix of statistics to every neighbour and sees rows through R alone;
    they claim nothing that a receiver would rely on to refuse a message.
    """

    matrices: int = 1
    """Matrices [C, K] in a message; the first is the one that class sums and disagreement are taken of."""
    conserves: bool = False
    """Whether class sums of messages never change, where no completed value moves them."""
    contains_start: bool = True
    """Whether messages are S⁰ plus what was learned; otherwise they start from zero."""
    convex: bool = False
    """Whether a message is a convex mix of received ones plus one R, and the first is S⁰: its growth has a bound."""
    first_is_start: bool = False
    """Whether the first message is S⁰ itself: R is then taken after a round's messages, and none is left over."""
    summed: bool = True
    """Whether Σ_u a_vu message_u is enough, as in secure sums and shards; otherwise it needs messages singly."""
    judged: bool = False
    """Whether a message is a model by itself, so that receivers can check, clip and screen single messages."""
    exposes: str = ""
    """What would leave a peer that noise cannot protect, and what to use instead; empty: nothing."""
    over_tree: bool = False
    """Whether each neighbour on a spanning tree of a fixed network gets its own sum over the peers behind it."""
    by_sums: bool = False
    """Whether a round is one exact sum over all peers along that tree: see `tree_sum`."""
    by_link: bool = False
    """Whether it adds up what messages differ by, so that losses on one side are repaired link by link: see
    `corrections`. Its `step` then takes the share of each peer's weight whose links are up."""
    own_start: bool = False
    """Whether each peer begins with its own YᵀΦ instead of a common start."""
    uses_lr: bool = True
    """Whether the learning rate, by the weight of the start, changes what is learned."""
    uses_local_steps: bool = True
    """Whether several steps on a peer's own rows between two messages change what is learned."""

    @property
    def same_to_all(self) -> bool:
        """Whether every neighbour gets the same message, so that neighbours can compare theirs."""
        return not self.over_tree


@dataclass(frozen=True)
class LearningSettings:
    """The settings that decide how a strategy is set up; all peers of a network have the same.

    `expects_loss` says that all peers expect messages or peers to go missing: `exact` then forgets (ρ = 0.97). A
    simulation whose settings declare a probability of loss has such peers. An agreement declares none, so real peers
    run with ρ = 1, and so do simulated peers to whom a trace of lost messages happens: a trace is no setting, and
    whoever suffers it did not know of it. See docs/decisions/faults.md.
    """

    strategy: Any
    """The name of a registered strategy, or a strategy of the user's own."""
    rounds: int
    lr: float = 0.05
    local_steps: int = 1
    start: str = "uniform"
    robust: bool = False
    """Whether messages may be false, so that receivers clip them."""
    private: bool = False
    """Whether residuals carry noise."""
    expects_loss: bool = False
    messages: str = "float64"
    """The form of the numbers of messages: see `few_bytes`."""
    exchanges: int | None = None
    """Exchanges of messages in a round; None: as many as are usual for their form."""
    repairs_links: bool = False
    """Whether peers keep corrections by link: the links of a fixed network, whose single messages they see."""
    excluded: str = ""
    """Why `relay` does not go with the other settings, as a clause: see `combinations.excluded`; empty: it does."""
    sums_excluded: str = ""
    """The same of `tree-sum`."""
    tolerance: float | None = None
    """How far a natural weight may still move where all peers of `tree-sum` stop; None: they take all rounds."""


@dataclass(frozen=True, eq=False)
class NetworkFacts:
    """Facts that all peers of a network know before the first round; a plan says which of the optional ones it needs.

    peers        n
    rows         m, the number of rows of all peers, as reported
    average      rows of an average peer, where only that is known; None: rows / peers
    weight       the weight of all rows; None: as many as there are rows
    largest      the largest weight of the rows of one peer; None: as `weight`
    classes      C; 0: not known
    features     K; 0: not known
    counted      whether columns are discrete, so that statistics count their values
    tree         returns the spanning tree of a fixed network; None: the network changes
    absences     whether peers are known to be absent in some rounds
    difference   F of `choice.LinkSums`: how much peers' data differ; None: not measured
    likeness     ρ of `choice.LinkSums`: how far a peer's first residual tells a neighbour's; measured with `difference`
    mean_square  the mean of ‖φ‖² over all rows; None: not measured
    completed    whether values are missing that the family completes, so that class sums move
    crossed      whether columns are crossed, so that statistics repeat each other
    """

    peers: int
    rows: float
    average: float | None = None
    weight: float | None = None
    largest: float | None = None
    classes: int = 0
    features: int = 0
    counted: bool = False
    tree: Callable[[], Any] | None = None
    absences: bool = False
    difference: float | None = None
    likeness: float | None = None
    mean_square: float | None = None
    completed: bool = False
    crossed: bool = False

    @property
    def row_weight(self) -> float:
        """The weight of all rows."""
        return self.rows if self.weight is None else self.weight


def declared(strategy: Any) -> Declaration:
    """Return the declaration of a strategy or of its class; one without any has the defaults."""
    return getattr(strategy, "declaration", Declaration())


class Strategy(Protocol):
    """The interface that a driver needs.

    A strategy may also have a `declaration`; as class methods `planned`, which sets it up for a network, and `missing`,
    the facts which that takes; and `recovered`, by which the audit follows it (see `Exact`).
    """

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
    declaration: ClassVar[Declaration]

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
    declaration: ClassVar[Declaration] = Declaration(
        conserves=True, convex=True, first_is_start=True, judged=True
    )

    with_self: bool = False
    """Whether a peer counts among its own neighbours: Theorem 1 needs it, Algorithm 2 does not have it."""

    @property
    def mixing(self) -> str:  # type: ignore[override]
        return "closed_mean" if self.with_self else "neighbour_mean"

    def step(self, state: Array, mixed: Array, residual: Residual) -> Array:
        return _added(residual(mixed), mixed)

    def recovered(
        self, start: Array, heard: Sequence[Array], mixed: Sequence[Array]
    ) -> tuple[list[Array], list[Array]]:
        """Return S and R = S_v − S̄_v as in `Exact.recovered`; the first message is the start, known to all."""
        later = range(1, len(mixed))
        return [start, *mixed[1:]], [heard[1] - start, *(heard[t + 1] - mixed[t] for t in later)]


@dataclass(frozen=True)
class Local(_Simple):
    """No collaboration: each peer calibrates on its own rows."""

    name: ClassVar[str] = "local"
    mixing: ClassVar[str] = "none"
    declaration: ClassVar[Declaration] = Declaration(conserves=True, first_is_start=True)

    def step(self, state: Array, mixed: Array, residual: Residual) -> Array:
        return _added(residual(state), state)


@dataclass(frozen=True)
class ConsensusML(_Simple):
    """Agree on the maximum likelihood statistics: the start is each peer's own YᵀΦ, and rounds only average."""

    name: ClassVar[str] = "consensus-ml"
    mixing: ClassVar[str] = "metropolis"
    declaration: ClassVar[Declaration] = Declaration(
        contains_start=False,
        exposes="consensus-ml sends the sums of the rows themselves; use 'exact' with start 'ml', which adds noise to "
        "them",
        own_start=True,
        uses_lr=False,
        uses_local_steps=False,
    )

    def step(self, state: Array, mixed: Array, residual: Residual) -> Array:
        return mixed


@dataclass(frozen=True)
class DSGD(_Simple):
    """Decentralised softmax regression: W̄_v = Σ_u a_vu W_u, W_v = W̄_v + rate·R_v(W̄_v): R as in `CRC`, added to W."""

    name: ClassVar[str] = "dsgd"
    mixing: ClassVar[str] = "metropolis"
    of_weights: ClassVar[bool] = True
    declaration: ClassVar[Declaration] = Declaration(
        conserves=True,
        contains_start=False,
        exposes="dsgd takes its step from the length of the rows; use 'exact', 'crc' or 'relay'",
        uses_lr=False,
    )

    rate: float = 1.0
    """The step size, a factor of R: 1 / (rows of a peer · half the mean of ‖φ‖²) is always stable."""

    @classmethod
    def missing(cls, settings: LearningSettings, facts: NetworkFacts) -> tuple[str, ...]:
        return ("mean_square",) if facts.mean_square is None else ()

    @classmethod
    def planned(cls, settings: LearningSettings, facts: NetworkFacts) -> DSGD:
        if facts.mean_square is None:
            return cls()
        return cls(rate=facts.peers / facts.row_weight / (0.5 * facts.mean_square))

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
    declaration: ClassVar[Declaration] = Declaration(conserves=True, judged=True, by_link=True)

    rounds: int = 64
    memory: float = 1.0
    """ρ: 1 on reliable links, 0.97 where messages get lost, 0.9 where some may be false: S − ψ integrates the error of
    a false message, also after its sender is cut off; ρ forgets it in 1/(1 − ρ) rounds."""
    averaged: int | None = None
    """Rounds that the read-out averages; None: an eighth of them, at most six. Half of them where there is noise."""

    @classmethod
    def planned(cls, settings: LearningSettings, facts: NetworkFacts) -> Exact:
        """Return the strategy for a network: ρ by what its messages suffer, a long read-out where there is noise."""
        forgets = settings.expects_loss and not settings.repairs_links
        memory = ROBUST_MEMORY if settings.robust else LOSSY_MEMORY if forgets else 1.0
        averaged = int(settings.rounds * NOISY_WINDOW) if settings.private else None
        return cls(settings.rounds, memory, averaged)

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

    def step(
        self, state: ExactState, mixed: Array, residual: Residual, share: Array | None = None
    ) -> ExactState:
        """Return the state after a round.

        share  [...] the share of each peer's weight whose links are up: φ = S + σ(b·R + D), D = S − ψ of the last
               round, so that a peer that hears little does not push the others. None: all are up, σ = 1
        """
        xp = array_namespace(mixed)
        adapted = _added(residual(mixed), mixed, self.boost)
        sent = _added(mixed - state.adapted, adapted, self.memory)
        if share is not None:
            some = share < 1.0  # most peers hear all their neighbours
            correction = sent[some] - adapted[some]
            sent[some] = mixed[some] + share[some][..., None, None] * (sent[some] - mixed[some])
            adapted[some] = sent[some] - correction
        recent = (mixed, *state.recent[: self.window - 1])
        heard = xp.clip(state.heard + 1.0, None, float(self.window))
        return ExactState(adapted, sent, recent, heard)

    def uncorrected(self, state: ExactState, late: Array) -> ExactState:
        """Return the state before a step whose mix has [..., C, K] that is no correction: D = S − ψ without it."""
        return state._replace(adapted=state.adapted + late)

    def read(self, state: ExactState) -> Array:
        xp = array_namespace(state.heard)
        count = xp.clip(state.heard, 1.0, None)[..., None, None]
        total = state.recent[0] / count
        for age, stats in enumerate(state.recent[1:], start=1):
            total = total + stats * (xp.astype(age < count, stats.dtype) / count)
        return total

    def recovered(
        self, start: Array, heard: Sequence[Array], mixed: Sequence[Array]
    ) -> tuple[list[Array], list[Array]]:
        """Return what a neighbour computes of a peer: statistics [C, K], and R_v at each, oldest first.

        ψ = φ_v − ρ(S_v − previous ψ),  R = (ψ − S_v)/b

        start  [C, K] S⁰, which everybody knows
        heard  the peer's messages, round by round
        mixed  S_v after each round but the last, where the neighbour can compute it; empty: only the first R shows
        """
        stats, changes, adapted = [start], [(heard[0] - start) / self.boost], heard[0]
        for message, mix in zip(heard[1:], mixed, strict=False):
            adapted = message - self.memory * (mix - adapted)
            stats.append(mix)
            changes.append((adapted - mix) / self.boost)
        return stats, changes


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
    declaration: ClassVar[Declaration] = Declaration(matrices=2, conserves=True)

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

    def recovered(
        self, start: Array, heard: Sequence[Array], mixed: Sequence[Array]
    ) -> tuple[list[Array], list[Array]]:
        """Return S and R = G_v − Σ_u a_vu G_u + previous R as in `Exact.recovered`."""
        stats, changes = [start], [heard[0][1]]
        for message, mix in zip(heard[1:], mixed, strict=False):
            stats.append(mix[0])
            changes.append(message[1] - mix[1] + changes[-1])
        return stats, changes


def _added(change: Array, stats: Array, factor: float = 1.0) -> Array:
    """Return S + factor·change, in the memory of `change`, which the caller owns: it saves a copy per peer."""
    if factor != 1.0:
        change *= factor
    change += stats
    return change


# Names that drivers handle themselves: those over a tree are no strategies of this kind, and "auto" chooses one.
OF_DRIVERS = ("relay", "tree-sum", "auto")

# What a driver needs of every strategy.
NEEDED = ("name", "mixing", "of_weights", "takes_old", "begin", "message", "step", "read")

# Mixing weights that a strategy may name, functions of `peerbayes.network`; "none": it sends nothing.
MIXINGS = ("neighbour_mean", "closed_mean", "metropolis", "stable", "none")


def _problem(name: str, loaded: Any) -> str | None:
    """Return what is wrong with a strategy of an outside package: a class, or a function that returns a value."""
    if not callable(loaded):
        return f"it is {loaded!r:.80}; expected a class, or a function that returns a strategy"
    strategy = loaded()
    if lacking := [attribute for attribute in NEEDED if not hasattr(strategy, attribute)]:
        return f"it has no {', '.join(lacking)}; expected a value with {', '.join(NEEDED)}"
    if strategy.name != name:
        return f"its name is {strategy.name!r:.80}; expected that of its entry point"
    if strategy.mixing not in MIXINGS:
        return f"its mixing is {strategy.mixing!r:.80}; expected one of {', '.join(MIXINGS)}"
    if not isinstance(declared(strategy), Declaration) or declared(strategy).over_tree:
        return (
            f"its declaration is {declared(strategy)!r:.80}; expected a Declaration whose over_tree is False"
        )
    return None


STRATEGIES: Registry[Callable[..., Strategy]] = Registry(
    "strategy",
    "peerbayes.strategies",
    {strategy.name: strategy for strategy in (CRC, Exact, Tracking, Local, ConsensusML, DSGD)},
    _problem,
    OF_DRIVERS.__contains__,
)
