"""A strategy that the package does not have, with all that it may declare: `crc` with momentum."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from peerbayes.learning.strategies import Declaration


class State(NamedTuple):
    stats: Any  # [..., C, K] S, and what is sent
    step: Any  # [..., C, K] what the last round added


@dataclass(frozen=True)
class Momentum:
    """S_v = S̄_v + step_v;  step_v = R_v(S̄_v) + memory·(the step before)."""

    name: ClassVar[str] = "momentum"
    mixing: ClassVar[str] = "metropolis"
    of_weights: ClassVar[bool] = False
    takes_old: ClassVar[bool] = True
    declaration: ClassVar[Declaration] = Declaration(conserves=True, first_is_start=True, judged=True)

    memory: float = 0.5

    @classmethod
    def planned(cls, settings, facts):
        """Forget faster in a long run."""
        return cls(memory=0.5 if settings.rounds < 20 else 0.25)

    def begin(self, start, residual):
        return State(start, 0.0 * start)

    def message(self, state):
        return state.stats

    def step(self, state, mixed, residual):
        step = residual(mixed) + self.memory * state.step
        return State(mixed + step, step)

    def read(self, state):
        return state.stats
