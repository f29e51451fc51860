"""One peer's side of a strategy: its messages to each neighbour, and its step from the messages it received.

The strategies are those of the simulator, called with a leading axis of one peer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from peerbayes.learning.corrections import (
    NEVER,
    REPAIRING,
    Corrections,
    Linked,
    Received,
    after_round,
    share_up,
)
from peerbayes.learning.few_bytes import exchanges_of, first_base, is_last_exchange, rounded_corrections
from peerbayes.learning.planning import message_shape, silent
from peerbayes.learning.relay import Relay
from peerbayes.learning.robust import rules
from peerbayes.learning.robust.invariants import Invariants
from peerbayes.learning.robust.rules import link_weights
from peerbayes.learning.strategies import Declaration, Residual, Strategy, declared
from peerbayes.learning.tree_sum import TreeSum
from peerbayes.model.families import Family

# Who sends a sum over all peers, where a round has no other messages; no member has such a name.
EVERYBODY = ""

# Bytes of a message from which on to learn a round again costs less than to store its state.
LARGE = 1 << 13

# Messages [M, C, K] -> the soft errors of their models on this peer's own rows [M].
SoftErrors = Callable[[np.ndarray], np.ndarray]


class Judged(NamedTuple):
    """A strategy's state, and the strikes against neighbours."""

    state: Any
    strikes: np.ndarray  # [neighbours] in the order of `Broadcaster.weights`
    round_index: np.ndarray  # [1] rounds so far


class Attachment(NamedTuple):
    """What a message to one neighbour has beside it: see `corrections`."""

    missed: int = 0
    """Rounds since the sender missed the receiver; 0: not lately."""
    correction: np.ndarray | None = None
    """The sender's d of this link [C, K]; None: there is nothing to repair."""


class Learner(Protocol):
    """The interface of one peer's side of a strategy."""

    @property
    def neighbours(self) -> tuple[str, ...]:
        """Return the neighbours that it hears; may be fewer than it has links."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of a message."""

    def begin(self) -> Any: ...
    def outgoing(self, state: Any) -> dict[str, np.ndarray]:
        """Return the message of the coming round to each neighbour."""

    def attached(self, state: Any) -> dict[str, Attachment]:
        """Return what neighbours get beside the message of the coming round; most get nothing."""

    def step(
        self,
        state: Any,
        heard: Mapping[str, np.ndarray],
        attached: Mapping[str, Attachment] = {},
        gone: Collection[str] = (),
    ) -> Any:
        """Return the state after a round.

        heard     the messages of neighbours
        attached  what came beside them
        gone      neighbours that are gone for good, or heard no more
        """

    def read(self, state: Any) -> np.ndarray:
        """Return S of its model: [C, K]."""

    @property
    def base(self) -> np.ndarray:
        """Return the matrix that a first message is coded beside: [C, K]."""

    @property
    def same_to_all(self) -> bool:
        """Return whether every neighbour gets the same message, so that neighbours can compare theirs."""

    def struck(self, state: Any) -> tuple[str, ...]:
        """Return the neighbours that are no longer heard, because their models failed here."""

    def apart(self, state: Any, heard: Mapping[str, np.ndarray]) -> float | None:
        """Return the disagreement with neighbours: the mean of ‖S_u − S_v‖ / ‖S_v‖. None: messages do not show it."""


@dataclass(frozen=True, eq=False)
class Broadcaster:
    """Sends the same message to all neighbours and mixes by a row of the mixing matrix; lost weight goes to itself."""

    strategy: Strategy
    weights: Mapping[str, float]
    """a_vu of each neighbour."""
    start: np.ndarray  # [C, K]
    residual: Residual  # [1, C, K] -> [1, C, K]
    known: Invariants
    """The invariants on which a mix is projected before anything is learned from it."""
    rule: str = "mean"
    """How messages are combined: see `combining`."""
    soft: SoftErrors | None = None
    """The soft errors by which a guard judges neighbours; None: there is no guard."""

    @cached_property
    def neighbours(self) -> tuple[str, ...]:
        return () if silent(self.strategy) else tuple(self.weights)

    @cached_property
    def declaration(self) -> Declaration:
        """What the strategy declares."""
        return declared(self.strategy)

    @property
    def same_to_all(self) -> bool:
        return self.declaration.same_to_all

    @property
    def shape(self) -> tuple[int, ...]:
        return message_shape(self.declaration, self.start.shape)

    @property
    def base(self) -> np.ndarray:
        return first_base(self.strategy, self.start[None])[0]

    @cached_property
    def by_link(self) -> bool:
        """Whether corrections are kept for each link, so that losses and liars leave nothing behind."""
        return self.declaration.by_link and bool(self.neighbours)

    @cached_property
    def repairs(self) -> bool:
        """Whether neighbours' corrections are believed: not where messages may be false."""
        return self.by_link and self.rule == "mean" and self.soft is None

    @cached_property
    def follows(self) -> bool:
        """Whether a state follows from the one before and the messages, for less than it costs to store it."""
        return self.soft is None and self.start.nbytes >= LARGE

    def begin(self) -> Any:
        state = self.strategy.begin(self.start[None], self.residual)
        if self.soft is not None:
            state = Judged(state, np.zeros(len(self.weights)), np.zeros(1))
        return Linked(state, Corrections.begin(len(self.weights), self.start)) if self.by_link else state

    def outgoing(self, state: Any) -> dict[str, np.ndarray]:
        message = self._message(state)[0]
        struck = self.struck(state)
        return {name: message for name in self.neighbours if name not in struck}

    def attached(self, state: Any) -> dict[str, Attachment]:
        if not self.repairs:
            return {}
        links: Corrections = state.links
        exchanges, last = exchanges_of(self.strategy), is_last_exchange(self.strategy, state.state)
        recent, sent = links.recent(exchanges), rounded_corrections(self.strategy, links.values)
        return {
            name: Attachment(
                int(links.missed[k]) if links.missed[k] <= REPAIRING * exchanges else 0,
                sent[k] if last else None,
            )
            for k, name in enumerate(self.weights)
            if recent[k]
        }

    def _message(self, state: Any) -> np.ndarray:
        return self.strategy.message(self._strategy_state(state))

    def _strategy_state(self, state: Any) -> Any:
        state = state.state if self.by_link else state
        return state if self.soft is None else state.state

    def step(
        self,
        state: Any,
        heard: Mapping[str, np.ndarray],
        attached: Mapping[str, Attachment] = {},
        gone: Collection[str] = (),
    ) -> Any:
        message, judged = self._message(state), state.state if self.by_link else state
        if self.soft is not None:
            round_index = judged.round_index + 1
            struck, doubted = self._judge(judged.strikes, heard, int(round_index[0]))
            strikes = judged.strikes + struck
            cut = self._cut(strikes)
            left_out = {
                *cut,
                *(name for name, out in zip(self.weights, struck | doubted, strict=True) if out),
            }
            heard = {name: heard[name] for name in heard if name not in left_out}
            gone = {*cut, *gone}
        mixed, differences = self._mixed(message, heard)
        strategy: Any = self.strategy
        step, begun = strategy.step, self._strategy_state(state)
        if self.by_link:
            received = self._received(heard, differences, attached, gone)
            links, added, late = after_round(
                state.links, received, getattr(strategy, "memory", 1.0), exchanges_of(strategy)
            )
            if late.links.size:
                begun = strategy.uncorrected(begun, late.values.sum(axis=0)[None])
            if self.repairs:
                share = share_up(np.array(list(self.weights.values())), links, received.gone)
                step = partial(step, share=share)
            if added.links.size:
                mixed = mixed + added.values.sum(axis=0)
        after = step(begun, self._settled(mixed), self.residual)
        after = after if self.soft is None else Judged(after, strikes, round_index)
        return Linked(after, links) if self.by_link else after

    def _received(
        self,
        heard: Collection[str],
        differences: np.ndarray,
        attached: Mapping[str, Attachment],
        gone: Collection[str],
    ) -> Received:
        """Return what arrived over each link; where messages may be false, no correction is believed."""
        names = tuple(self.weights)
        beside = [attached.get(name, Attachment()) if self.repairs else Attachment() for name in names]
        return Received(
            np.array([name in heard for name in names]),
            differences,
            np.array([k for k, item in enumerate(beside) if item.correction is not None], dtype=np.int64),
            np.array([item.correction for item in beside if item.correction is not None]).reshape(
                -1, *self.start.shape
            ),
            np.array([attachment.missed or NEVER for attachment in beside]),
            np.array([name in gone for name in names]),
        )

    def _mixed(self, message: np.ndarray, heard: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return Σ_u a_vu φ_u of the messages heard, by the rule, and a_vu(φ_u − φ_v) of each link: [1, …], [E, …].

        The remaining weight goes to this peer itself. Links that were not heard have no difference: zeros.
        """
        indices = [k for k, name in enumerate(self.weights) if name in heard]
        whole = len(indices) == len(self.weights)
        pulls = (np.empty if whole else np.zeros)((len(self.weights), *message.shape[1:]), message.dtype)
        if not indices:
            return message.copy(), pulls
        everyone = list(self.weights)
        names = [everyone[k] for k in indices]
        messages = np.concatenate([message, *(heard[name][None] for name in names)])
        senders = np.arange(1, len(messages))
        shares = np.array([self.weights[name] for name in names])
        weights = link_weights(self.rule, shares, messages, np.zeros_like(senders), senders)
        for k, name, weight in zip(indices, names, weights, strict=True):
            np.subtract(heard[name], message[0], out=pulls[k])
            pulls[k] *= weight
        row = np.concatenate([[1.0 - weights.sum()], weights])
        return (row @ messages.reshape(len(messages), -1)).reshape(message.shape), pulls

    def _settled(self, mixed: np.ndarray) -> np.ndarray:
        if not self.neighbours:
            return mixed
        if (
            self.declaration.matrices > 1
        ):  # further ones, such as tracked gradients, sum to zero by themselves
            mixed[:, 0] = self.known.settled(mixed[:, 0])
            return mixed
        return self.known.settled(mixed)

    def _judge(
        self, strikes: np.ndarray, heard: Mapping[str, np.ndarray], round_index: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return whose messages of this round are a strike, and whose the mix leaves out: two [neighbours] of bool."""
        assert self.soft is not None
        cut = self._cut(strikes)
        struck, doubted = np.zeros(strikes.size, dtype=bool), np.zeros(strikes.size, dtype=bool)
        indices = [k for k, name in enumerate(self.weights) if name in heard and name not in cut]
        if indices:
            names, together = list(self.weights), np.zeros(len(indices), dtype=np.int64)
            errors = self.soft(np.stack([heard[names[k]] for k in indices]))
            struck[indices] = rules.strikes(errors, together, 1, len(self.start), round_index)
            doubted[indices] = rules.left_out(errors, together, 1, round_index)
        return struck, doubted

    def struck(self, state: Any) -> tuple[str, ...]:
        judged = state.state if self.by_link else state
        return () if self.soft is None else self._cut(judged.strikes)

    def _cut(self, strikes: np.ndarray) -> tuple[str, ...]:
        return tuple(
            name for name, count in zip(self.weights, strikes, strict=True) if count >= rules.STRIKES
        )

    def read(self, state: Any) -> np.ndarray:
        return self.strategy.read(self._strategy_state(state))[0]

    def apart(self, state: Any, heard: Mapping[str, np.ndarray]) -> float | None:
        if not heard:
            return None
        selection = 0 if self.declaration.matrices > 1 else ...
        message = self._message(state)[0][selection]
        size = float(np.linalg.norm(message)) or 1.0
        distances = [float(np.linalg.norm(other[selection] - message)) for other in heard.values()]
        return sum(distances) / size / len(heard)


@dataclass(frozen=True, eq=False)
class Summing:
    """Adds what its rows tell to a sum over all peers in each round, and sends no other messages."""

    strategy: TreeSum
    start: np.ndarray  # [C, K]
    terms: Callable[[np.ndarray], np.ndarray]
    """S [1, C, K] -> what this peer adds: [1, C·K + 1]."""
    family: Family
    neighbours: tuple[str, ...] = ()
    steps: np.ndarray | None = None
    """[M, 2, C, K] the last steps of the run whose model it begins with; None: it begins afresh."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.start.shape

    @property
    def base(self) -> np.ndarray:
        return self.start

    @property
    def same_to_all(self) -> bool:
        return declared(self.strategy).same_to_all

    def begin(self) -> Any:
        return self.strategy.begin(self.start[None], self.steps)

    def settled(self, state: Any) -> bool:
        """Return whether all peers stop after this round."""
        return self.strategy.settled(state)

    def local(self, state: Any) -> np.ndarray:
        """Return what this peer adds to the sum of the coming round: [C·K + 1]."""
        return self.terms(state.trial)[0]

    def outgoing(self, state: Any) -> dict[str, np.ndarray]:
        return {}

    def attached(self, state: Any) -> dict[str, Attachment]:
        return {}

    def step(
        self,
        state: Any,
        heard: Mapping[str, np.ndarray],
        attached: Mapping[str, Attachment] = {},
        gone: Collection[str] = (),
    ) -> Any:
        """Return the state after a round; `heard` has the sum over all peers, under `EVERYBODY`."""
        return self.strategy.step(state, heard[EVERYBODY], self.family.weights, self.family.conditioned)

    def read(self, state: Any) -> np.ndarray:
        return self.strategy.read(state)[0]

    def struck(self, state: Any) -> tuple[str, ...]:
        return ()

    def apart(self, state: Any, heard: Mapping[str, np.ndarray]) -> float | None:
        return None  # all have the same S


@dataclass(frozen=True, eq=False)
class Relayer:
    """Sends each neighbour on the spanning tree a message of its own; the next one makes up for a lost one."""

    strategy: Relay  # over the tree as this peer sees it
    neighbours: tuple[str, ...]  # in the order of its links
    start: np.ndarray  # [C, K]
    residual: Residual

    @property
    def shape(self) -> tuple[int, ...]:
        return self.start.shape

    @property
    def base(self) -> np.ndarray:
        return first_base(self.strategy, self.start[None])[0]

    @property
    def same_to_all(self) -> bool:
        return declared(self.strategy).same_to_all

    def struck(self, state: Any) -> tuple[str, ...]:
        return ()

    def begin(self) -> Any:
        return self.strategy.adapt(self.strategy.begin(self.start[None]), self.residual)

    def outgoing(self, state: Any) -> dict[str, np.ndarray]:
        return dict(zip(self.neighbours, self.strategy.messages(state), strict=True))

    def attached(self, state: Any) -> dict[str, Attachment]:
        return {}

    def step(
        self,
        state: Any,
        heard: Mapping[str, np.ndarray],
        attached: Mapping[str, Attachment] = {},
        gone: Collection[str] = (),
    ) -> Any:
        inbox = np.stack(
            [heard.get(name, last) for name, last in zip(self.neighbours, state.inbox, strict=True)]
        ) if self.neighbours else state.inbox  # fmt: skip
        return self.strategy.adapt(self.strategy.hear(state, inbox), self.residual)

    def read(self, state: Any) -> np.ndarray:
        return self.strategy.read(state)[0]

    def apart(self, state: Any, heard: Mapping[str, np.ndarray]) -> float | None:
        return None  # messages are sums of what lies behind a link, not states of a neighbour
