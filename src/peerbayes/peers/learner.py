"""One peer's side of a strategy: what it sends to each neighbour, and what it makes of what it heard.

The strategies are those of the simulator, called with a leading axis of one peer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from peerbayes.peers.errors import RefusedMessage
from peerbayes.relay import Relay
from peerbayes.strategies import Residual, Strategy, Tracking

# Beside what is mathematically possible, a message may be this many times as large before it is called absurd: `exact`
# extrapolates.
ABSURD = 10.0

# Class sums are conserved; what rounding leaves is far below this share of m⁰.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Plausible:
    """What must hold of every honest message of statistics.

    sums     [K] Σ_c of the message's first matrix; further ones sum to zero. None: nothing is known
    mass     m⁰, the scale of rounding
    cells    columns of φ of each discrete feature that is never missing: they add up to the class count
    growth   how much one round can change an entry at most
    centre   [C, K] where it started
    """

    sums: np.ndarray | None
    mass: float
    cells: tuple[slice, ...]
    growth: float
    centre: np.ndarray

    def check(self, message: np.ndarray, turn: int, slack: float = 0.0) -> None:
        """Refuse a message [..., C, K] of a round that no honest peer can have sent; sums may be `slack` more off."""
        parts = message.reshape(-1, *message.shape[-2:])
        tolerance = ROUNDING * self.mass + slack
        for place, part in enumerate(parts):
            centre = self.centre if place == 0 else 0.0
            farthest = float(np.abs(part - centre).max())
            if not farthest <= ABSURD * (turn + 1) * self.growth + tolerance:
                raise RefusedMessage("absurd magnitude", f"an entry as large as {np.abs(part).max():.3g}")
            if self.sums is not None:
                expected = self.sums if place == 0 else 0.0
                apart = float(np.abs(part.sum(axis=0) - expected).max())
                if not apart <= tolerance:  # also where it is NaN
                    raise RefusedMessage(
                        "class sums", f"class sums are off by {apart:.3g}; they never change"
                    )
            for cells in self.cells:
                apart = float(np.abs(part[:, cells].sum(axis=1) - part[:, 0]).max())
                if not apart <= tolerance:  # also where it is NaN
                    raise RefusedMessage(
                        "cell sums", f"cells of a feature are off the class count by {apart:.3g}"
                    )


class Learner(Protocol):
    """What a node asks of one peer's side of a strategy."""

    @property
    def neighbours(self) -> tuple[str, ...]:
        """Whom it hears; may be fewer than it has."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a message."""

    def begin(self) -> Any: ...
    def outgoing(self, state: Any) -> dict[str, np.ndarray]:
        """The message of the coming round to each neighbour."""

    def step(self, state: Any, heard: Mapping[str, np.ndarray]) -> Any: ...
    def read(self, state: Any) -> np.ndarray:
        """S of its model: [C, K]."""

    def apart(self, state: Any, heard: Mapping[str, np.ndarray]) -> float | None:
        """How far neighbours are from this peer: the mean of ‖S_u − S_v‖ / ‖S_v‖. None: messages do not tell."""


@dataclass(frozen=True, eq=False)
class Broadcaster:
    """The same message to every neighbour, combined with the row of the mixing matrix; lost weight goes to itself."""

    strategy: Strategy
    weights: Mapping[str, float]
    """a_vu of each neighbour."""
    start: np.ndarray  # [C, K]
    residual: Residual  # [1, C, K] -> [1, C, K]

    @property
    def neighbours(self) -> tuple[str, ...]:
        return () if self.strategy.mixing == "none" else tuple(self.weights)

    @property
    def shape(self) -> tuple[int, ...]:
        return (2, *self.start.shape) if isinstance(self.strategy, Tracking) else self.start.shape

    def begin(self) -> Any:
        return self.strategy.begin(self.start[None], self.residual)

    def outgoing(self, state: Any) -> dict[str, np.ndarray]:
        message = self.strategy.message(state)[0]
        return dict.fromkeys(self.neighbours, message)

    def step(self, state: Any, heard: Mapping[str, np.ndarray]) -> Any:
        own = self.strategy.message(state)
        if not self.neighbours:
            return self.strategy.step(state, own, self.residual)
        present = {name: weight for name, weight in self.weights.items() if name in heard}
        mixed = (1.0 - sum(present.values())) * own
        for name, weight in present.items():
            mixed += weight * heard[name]
        return self.strategy.step(state, mixed, self.residual)

    def read(self, state: Any) -> np.ndarray:
        return self.strategy.read(state)[0]

    def apart(self, state: Any, heard: Mapping[str, np.ndarray]) -> float | None:
        if not heard:
            return None
        place = 0 if isinstance(self.strategy, Tracking) else ...
        own = self.strategy.message(state)[0][place]
        size = float(np.linalg.norm(own)) or 1.0
        return sum(float(np.linalg.norm(other[place] - own)) for other in heard.values()) / size / len(heard)


@dataclass(frozen=True, eq=False)
class Relayer:
    """A message of its own to every neighbour on the spanning tree; the next one makes up for one that did not come."""

    strategy: Relay  # over the tree as this peer sees it
    neighbours: tuple[str, ...]  # in the order of its links
    start: np.ndarray  # [C, K]
    residual: Residual

    @property
    def shape(self) -> tuple[int, ...]:
        return self.start.shape

    def begin(self) -> Any:
        return self.strategy.adapt(self.strategy.begin(self.start[None]), self.residual)

    def outgoing(self, state: Any) -> dict[str, np.ndarray]:
        return dict(zip(self.neighbours, self.strategy.messages(state), strict=True))

    def step(self, state: Any, heard: Mapping[str, np.ndarray]) -> Any:
        inbox = np.stack(
            [heard.get(name, last) for name, last in zip(self.neighbours, state.inbox, strict=True)]
        ) if self.neighbours else state.inbox  # fmt: skip
        return self.strategy.adapt(self.strategy.hear(state, inbox), self.residual)

    def read(self, state: Any) -> np.ndarray:
        return self.strategy.read(state)[0]

    def apart(self, state: Any, heard: Mapping[str, np.ndarray]) -> float | None:
        return None  # messages are sums of what lies behind a link, not states of a neighbour
