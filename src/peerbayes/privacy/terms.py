"""The promise of a network about one row: the value `Privacy`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from peerbayes.arguments import number, whole

AUTO = "auto"

# Noise and rows are whole numbers on grids of 64 bits, far too fine or too coarse for terms beyond these.
MOST = 1e12
LEAST_EDGE_NOISE = 1e-6


@dataclass(frozen=True)
class Privacy:
    """How much anybody may learn about one row, and how that is ensured.

    Whoever sees every message of a peer, and chooses what it hears, can tell whether a row was among its rows only as
    well as (epsilon, delta)-differential privacy allows. Adding or removing one row is what is hidden.

    epsilon     the promise, over all rounds together; smaller is safer
    delta       the probability with which the promise may fail; far below one in the number of rows
    clip        κ: a row moves the statistics by at most G = κB, B the length of a typical row; "auto": 1, and 0.5 or
                0.35 where noise dominates
    bound       standardised values are clipped to ±bound
    edge_noise  noise that neighbours add with opposite signs, besides each peer's own; 0: none. 3 is a good number
    colluders   how many peers may pool what they know (only edge noise depends on it)
    min_rows    a peer with fewer rows takes no part
    """

    epsilon: float = 4.0
    delta: float = 1e-5
    clip: float | str = AUTO
    bound: float = 3.0
    edge_noise: float = 0.0
    colluders: int = 1
    min_rows: int = 50

    def __post_init__(self) -> None:
        plain: dict[str, Any] = {
            "epsilon": _positive("epsilon", self.epsilon, "4 is common, 1 strict, 8 lenient"),
            "delta": number(
                "delta", self.delta, "a probability between 0 and 1, such as 1e-5", above=0.0, below=1.0
            ),
            "bound": _positive("bound", self.bound, "3 standard deviations lose next to nothing"),
            "edge_noise": _edge_noise(self.edge_noise),
            "colluders": whole("colluders", self.colluders, 1),
            "min_rows": whole("min_rows", self.min_rows, 1),
        }
        if not isinstance(self.clip, str) or self.clip != AUTO:
            plain["clip"] = _positive("clip", self.clip, f'or "{AUTO}"')
        for name, value in plain.items():
            object.__setattr__(self, name, value)


def _positive(name: str, value: Any, hint: str) -> float:
    return number(name, value, f"a positive number up to {MOST:g}; {hint}", above=0.0, most=MOST)


def _edge_noise(value: Any) -> float:
    expected = "0 for none, or a number such as 3"
    plain = number("edge_noise", value, expected, least=0.0, most=1 / LEAST_EDGE_NOISE)
    return number("edge_noise", value, expected, least=LEAST_EDGE_NOISE) if plain else 0.0
