"""A strategy: the paper's, with momentum."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from array_api_compat import array_namespace

from peerbayes.learning.strategies import Declaration


class State(NamedTuple):
    """What a peer remembers between rounds."""

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

    def begin(self, start: Any, residual: Any) -> State:
        return State(start, array_namespace(start).zeros_like(start))

    def message(self, state: State) -> Any:
        return state.stats

    def step(self, state: State, mixed: Any, residual: Any) -> State:
        step = residual(mixed) + self.memory * state.step
        return State(mixed + step, step)

    def read(self, state: State) -> Any:
        return state.stats
