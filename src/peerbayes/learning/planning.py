"""The plan of a run: how a strategy is set up, from settings and facts that all peers know.

    plan(settings, facts) -> Plan        strategy, weight of the start, mixing weights, checks, form of a message

The simulator, its shards, real peers with and without noise, and the audit make the same plan from the same settings
and facts. Facts that take a measurement (how much data differ, the length of rows) are added when the plan is `missing`
them, and the plan is made again.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from peerbayes import network
from peerbayes.data.registry import Choices, Registry
from peerbayes.learning.choice import Auto
from peerbayes.learning.few_bytes import UNROUNDED, with_few_bytes
from peerbayes.learning.local_rows import LocalRows
from peerbayes.learning.relay import Relay, Tree, spanning_tree
from peerbayes.learning.robust.invariants import ROUNDING, Invariants, invariants_of
from peerbayes.learning.strategies import (
    CRC,
    STRATEGIES,
    Declaration,
    LearningSettings,
    Local,
    NetworkFacts,
    declared,
)
from peerbayes.learning.tree_sum import TreeSum
from peerbayes.model.calibration import AGREED_STEPS, evened, start_statistics
from peerbayes.model.families import Family

# Strategies that are not of the kind of `STRATEGIES`: two over a tree, and a choice.
OTHERS: dict[str, Any] = {Relay.name: Relay, TreeSum.name: TreeSum, Auto.name: Auto}

# The paper's strategy, the one without messages that every run is compared with, the one over a tree, and that by sums.
PAPER, ALONE, OVER_TREE, BY_SUMS = CRC.name, Local.name, Relay.name, TreeSum.name


def names(fits: Callable[[Declaration], bool] = lambda declaration: True) -> tuple[str, ...]:
    """Return the names of the registered strategies whose declarations fit."""
    return tuple(name for name in (*STRATEGIES, *OTHERS) if fits(declaration_of(name)))


def choices() -> Choices:
    """Return the names of all strategies, including those of outside packages, which are not imported."""
    return Choices(STRATEGIES, *OTHERS)


def registry() -> Registry[Any]:
    """Return the registry of strategies, for where a name comes from and what its package is."""
    return STRATEGIES


def load(name: str) -> None:
    """Import the strategy of an outside package by its name; built-in ones are there already."""
    if name in STRATEGIES:
        STRATEGIES[name]


def compared() -> tuple[str, ...]:
    """Return the names that a comparison of strategies has columns for: the choice first, and no `relay` by itself."""
    return Auto.name, *STRATEGIES


def kind_of(strategy: Any) -> Any:
    """Return the class of a registered strategy's name, None for another name; a strategy stays as it is.

    A strategy of an outside package is registered once it was loaded: reading an agreement imports nothing. One that is
    registered as a function is what the function returns.
    """
    if not isinstance(strategy, str):
        return strategy
    kind = OTHERS[strategy] if strategy in OTHERS else STRATEGIES.present(strategy)
    return kind if kind is None or isinstance(kind, type) else kind()


def declaration_of(strategy: Any) -> Declaration:
    """Return what a strategy declares, by its name or as it is; the defaults for a name that is not registered."""
    return declared(kind_of(strategy))


def name_of(strategy: Any) -> str:
    """Return the name of a strategy, which may be the name already."""
    return str(getattr(strategy, "name", strategy))


def of_weights(strategy: Any) -> bool:
    """Return whether a strategy, by its name or as it is, learns natural weights, and so no generative model."""
    return bool(getattr(kind_of(strategy), "of_weights", False))


def takes_old(strategy: Any) -> bool:
    """Return whether a strategy, by its name or as it is, uses messages of the previous round."""
    return bool(getattr(kind_of(strategy), "takes_old", False))


def silent(strategy: Any) -> bool:
    """Return whether a strategy, by its name or as it is, sends nothing in the rounds."""
    return getattr(kind_of(strategy), "mixing", None) == "none"


def mixing_weights(strategy: Any, links: csr_array) -> csr_array:
    """Return the weights a by which a strategy mixes over these links: [N, N] -> [N, N]."""
    return getattr(network, strategy.mixing)(links)


def tree_of(links: csr_array) -> Callable[[], Tree]:
    """Return the function that computes the spanning tree of a fixed network [N, N] when it is first needed."""
    return functools.cache(functools.partial(spanning_tree, links))


@dataclass(frozen=True, eq=False)
class Plan:
    """How all peers of a network learn.

    settings     what was agreed on
    facts        what all know
    strategy     set up for this network; over a tree, that of all peers
    missing      names of facts without which the strategy is not final: measure them, and plan again
    reason       which strategy was chosen and why, for people; empty where nothing was to choose
    """

    settings: LearningSettings
    facts: NetworkFacts
    strategy: Any
    missing: tuple[str, ...] = ()
    reason: str = ""

    @property
    def declaration(self) -> Declaration:
        """What the strategy declares: the form of a message, and what may be done with it."""
        return declared(self.strategy)

    @property
    def start_weight(self) -> float:
        """m⁰ = m / (lr·n), the equivalent sample size of the start."""
        return start_weight(self.settings.lr, self.facts)

    @property
    def sends(self) -> bool:
        """Whether peers send messages in the rounds."""
        return not silent(self.strategy)

    def weights(self, links: csr_array) -> csr_array:
        """Return the mixing weights a of a strategy that mixes: [N, N] -> [N, N]."""
        return mixing_weights(self.strategy, links)

    def noise(self, deviation: Callable[[float], float]) -> float:
        """Return the deviation of a round's privacy noise in an entry of a message, from that of b·R by the boost b.

        Over a tree, a message sums the noise of up to all peers.
        """
        spread = deviation(float(getattr(self.strategy, "boost", 1.0)))
        return spread * (math.sqrt(self.facts.peers) if self.declaration.over_tree else 1.0)

    def invariants(
        self,
        family: Family,
        start: np.ndarray,
        complete: Sequence[bool],
        gapped: bool,
        limit: float,
        rounding: float = ROUNDING,
        noise: float = 0.0,
    ) -> Invariants:
        """Return what honest messages obey: see `invariants_of`."""
        weight = self.facts.row_weight
        largest = weight if self.facts.largest is None else self.facts.largest
        checks = invariants_of(
            self.strategy, family, start, complete, gapped, weight, largest, self.start_weight,
            self.settings.local_steps, limit, self.settings.start != "ml", rounding,
        )  # fmt: skip
        if (form := getattr(self.strategy, "rounding", UNROUNDED).form) != "float64":
            checks = checks.rounded(conserved=form == "int8")
        return replace(checks, noise=noise) if noise else checks


def start_weight(lr: float, facts: NetworkFacts) -> float:
    """Return m⁰ = m / (lr·n), the equivalent sample size of the start."""
    return facts.rows / (lr * facts.peers) if facts.average is None else facts.average / lr


def message_shape(declaration: Declaration, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a message of statistics of a shape: [C, K] -> [C, K] or [matrices, C, K]."""
    return shape if declaration.matrices == 1 else (declaration.matrices, *shape)


def plan(settings: LearningSettings, facts: NetworkFacts) -> Plan:
    """Return the plan of these settings for a network of these facts.

    A strategy of the user's own is used as it is; a registered one is set up by its `planned`, or else without
    arguments.
    """
    strategy = settings.strategy
    if not isinstance(strategy, str):
        return Plan(settings, facts, with_few_bytes(strategy, settings, facts.completed))
    load(strategy)
    kind = kind_of(strategy)
    if kind is None:
        raise ValueError(f"strategy is {strategy!r}; expected one of {', '.join(names())}")
    missing = kind.missing(settings, facts) if hasattr(kind, "missing") else ()
    reason = kind.reason(settings, facts) if hasattr(kind, "reason") else ""
    if hasattr(kind, "planned"):
        strategy = kind.planned(settings, facts)
    elif isinstance(kind, type):
        strategy = kind()
    else:
        strategy = kind
    return Plan(settings, facts, with_few_bytes(strategy, settings, facts.completed), missing, reason)


# --- the start: the statistics S⁰ that peers begin with, and the sums over all peers that it takes
#     uniform        from the family alone
#     marginal, ml   from YᵀΦ of the rows of all peers
#     own            each peer's YᵀΦ, for strategies that average it
#
# Where rows miss values that the family completes, Φ̃ stands for Φ, after a few steps of expectation-maximisation with a
# sum over all peers between two of them. How numbers are summed is the driver's business: the simulator gossips, real
# peers sum exactly along a tree.

# Yields the name of a sum and the terms of every peer of a driver [N, …], is sent what all peers agreed on as each of
# them has it [N, …], and returns S⁰.
StartSums = Generator[tuple[str, np.ndarray], np.ndarray, np.ndarray]


def start_sums(
    start: str,
    own_start: bool,
    held: LocalRows,
    weight: float,
    gapped: bool,
    local: Callable[[], np.ndarray],
) -> StartSums:
    """Return S⁰, after the sums that it takes: [1, C, K] where it needs none, else what the sum "start" gave [N, …].

    start      "uniform", "marginal" or "ml"
    own_start  whether each peer begins with its own YᵀΦ [N, C, K], whatever the start
    weight     m⁰ of the uniform start
    gapped     whether any peer has rows to complete
    local      returns every peer's YᵀΦ [N, C, K] where no row is to be completed
    """
    if start == "uniform" and not own_start:
        uniform = start_statistics("uniform", held.family, held.classes, weight)
        return uniform.astype(held.device.precision)[None]
    stats = (yield from _completed(held)) if gapped else local()
    return stats if own_start else evened(start, held.family, (yield "start", stats))


def _completed(held: LocalRows) -> StartSums:
    """Return every peer's YᵀΦ̃ [N, C, K] under the model that all agreed on; missing values follow it step by step.

    First peers agree on what is there of each column alone, then on the completed statistics of all steps but the last.
    """
    stats = held.expected(held.alone((yield "alone", held.apart())))
    for step in range(1, AGREED_STEPS):
        stats = held.expected((yield f"step {step}", stats))
    return stats


def summed_start(total: Callable[[str, np.ndarray], np.ndarray], sums: StartSums) -> np.ndarray:
    """Return S⁰ of `start_sums`, whose sums are taken by a function of their name and terms [N, …] -> [N, …]."""
    try:
        request = next(sums)
        while True:
            request = sums.send(total(*request))
    except StopIteration as end:
        return end.value


async def awaited_start(
    total: Callable[[str, np.ndarray], Awaitable[np.ndarray]], sums: StartSums
) -> np.ndarray:
    """Return S⁰ of `start_sums` as `summed_start`, where others are waited for."""
    try:
        request = next(sums)
        while True:
            request = sums.send(await total(*request))
    except StopIteration as end:
        return end.value
