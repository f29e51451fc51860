"""What a network promises about one row: the value `Privacy`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

AUTO = "auto"


@dataclass(frozen=True)
class Privacy:
    """How much anybody may learn of one row, and what is done for it.

    Whoever sees every message of a peer, and chooses what it hears, can tell whether a row was among its rows only as
    well as (epsilon, delta)-differential privacy allows. Adding or removing one row is what is hidden.

    epsilon     the promise, over all rounds together; smaller is safer
    delta       the probability with which the promise may fail; far below one in the number of rows
    clip        κ: a row moves the statistics by at most G = κB, B the length of a typical row; "auto": 1, and 0.5 or
                0.35 where noise dominates
    bound       standardised values are held within ±bound
    edge_noise  noise that neighbours add with opposite signs, beside that of each alone; 0: none. 3 is a good number
    colluders   how many peers may put together what they know (only edge noise depends on it)
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
        _positive("epsilon", self.epsilon, "4 is common, 1 strict, 8 lenient")
        if not (_number(self.delta) and 0 < self.delta < 1):
            raise ValueError(f"delta is {self.delta!r}; expected a probability between 0 and 1, such as 1e-5")
        if self.clip != AUTO:
            _positive("clip", self.clip, f'or "{AUTO}"')
        _positive("bound", self.bound, "3 standard deviations lose next to nothing")
        if not (_number(self.edge_noise) and 0 <= self.edge_noise < math.inf):
            raise ValueError(f"edge_noise is {self.edge_noise!r}; expected 0 for none, or a number such as 3")
        for name, least in (("colluders", 1), ("min_rows", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name} is {value!r}; expected a whole number of {least} or more")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _positive(name: str, value: Any, hint: str) -> None:
    if not (_number(value) and 0 < value < math.inf):
        raise ValueError(f"{name} is {value!r}; expected a positive number; {hint}")
