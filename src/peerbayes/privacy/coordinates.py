"""The coordinates that rows are clipped and noise is added in: h, a fixed invertible linear map of φ.

    h_0 = 1        h_k = φ_k − c_k·φ_0        h_k = (φ_k − φ_o)/√2  for the square of a column present in o

c is the mean of φ at the uniform start. There h is 0 but for counts, and its entries have about the same variance, so
that noise of one size fits all: rows are short in h where they are long in φ (for naive Bayes, ‖h‖² is on average
1 + 2d + Σ(1 − 1/r_j)). A value that is missing adds nothing to φ, and so nothing to what is released, taken back to φ.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from peerbayes.families import Family


@dataclass(frozen=True, eq=False)
class Coordinates:
    """φ of a family, and h."""

    family: Family

    @cached_property
    def centre(self) -> np.ndarray:
        """c, the mean of φ at the uniform start: [K]."""
        return self.family.uniform(1, 1.0)[0]

    @cached_property
    def _counted(self) -> tuple[np.ndarray, np.ndarray]:
        return self.family.counted()

    @cached_property
    def _squares(self) -> np.ndarray:
        """Places of the squares."""
        return np.flatnonzero(self._counted[1])

    @cached_property
    def _others(self) -> np.ndarray:
        """c of what is not a square, without the leading 1: [K]."""
        others = np.where(self._counted[1], 0.0, self.centre)
        others[0] = 0.0
        return others

    def to(self, stats: np.ndarray) -> np.ndarray:
        """φ or statistics in h: [..., K] -> [..., K]."""
        moved = stats - self._others * stats[..., :1]
        over = self._counted[0][self._squares]
        moved[..., self._squares] = (stats[..., self._squares] - stats[..., over]) * np.sqrt(0.5)
        return moved

    def back(self, moved: np.ndarray) -> np.ndarray:
        """h or what was released in it as statistics: [..., K] -> [..., K]."""
        stats = moved + self._others * moved[..., :1]
        over = self._counted[0][self._squares]
        stats[..., self._squares] = moved[..., self._squares] * np.sqrt(2.0) + stats[..., over]
        return stats

    @cached_property
    def length(self) -> float:
        """B, the root of the mean of ‖h‖² over rows of the uniform start.

        Of a count that is there with probability c: c(1 − c); of anything else, whose variance is 1 where its own count
        is there: the probability of that. The leading 1 is 1.
        """
        over, squares = self._counted
        counts = (self.centre > 0) & ~squares
        parts = np.where(counts, self.centre * (1 - self.centre), self.centre[over])
        return float(np.sqrt(1.0 + parts[1:].sum()))
