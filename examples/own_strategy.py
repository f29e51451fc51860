"""A strategy of your own: the paper's, with momentum. docs/howto/strategy.md explains it.

python examples/own_strategy.py
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from array_api_compat import array_namespace
from sklearn.datasets import load_digits

import peerbayes as pb


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


X, y = load_digits(return_X_y=True)
print("Gap of the test error to RC, 20 peers on a tree, mean over 2 seeds:\n")
for strategy in (Momentum(0.0), Momentum(0.5), "crc", "exact", "auto"):
    gaps = {}
    for partition in ("iid", "drift-y"):
        runs = [
            pb.simulate(
                X, y, peers=20, rows_per_peer=30, strategy=strategy, partition=partition, rounds=32, evaluate_every=0,
                seed=seed,
            )
            for seed in range(2)
        ]  # fmt: skip
        gaps[partition] = sum(run.summary()["test_gap_rc"] for run in runs) / len(runs)
    print(f"  {strategy!s:<22} iid {gaps['iid']:6.3f}   one class a peer {gaps['drift-y']:6.3f}")
