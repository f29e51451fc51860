"""The coordinates that rows are clipped and noise is added in: h, a fixed invertible linear map of φ.

    h_0 = 1        h_k = φ_k − c_k·φ_0        h_k = (φ_k − φ_o)/√2  for the square of a column present in o

c is the mean of φ at the uniform start. There h is 0 but for counts, and its entries have about the same variance, so
that noise of one size suits all: rows are short in h where they are long in φ (for naive Bayes, ‖h‖² is on average
1 + 2d + Σ(1 − 1/r_j)). A missing value adds nothing to φ, and so nothing to a release mapped back to φ.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from peerbayes.families import Family


@dataclass(frozen=True, eq=False)
class Coordinates:
    """The map between φ of a family and h."""

    family: Family

    @cached_property
    def centre(self) -> np.ndarray:
        """Return c, the mean of φ at the uniform start: [K]."""
        return self.family.uniform(1, 1.0)[0]

    @cached_property
    def _counted(self) -> tuple[np.ndarray, np.ndarray]:
        return self.family.counted()

    @cached_property
    def _squares(self) -> np.ndarray:
        """Return the indices of the squares."""
        return np.flatnonzero(self._counted[1])

    @cached_property
    def _others(self) -> np.ndarray:
        """Return c, with 0 for squares and for the leading 1: [K]."""
        others = np.where(self._counted[1], 0.0, self.centre)
        others[0] = 0.0
        return others

    def to(self, stats: np.ndarray) -> np.ndarray:
        """Return φ or statistics in the coordinates h: [..., K] -> [..., K]."""
        moved = stats - self._others * stats[..., :1]
        over = self._counted[0][self._squares]
        moved[..., self._squares] = (stats[..., self._squares] - stats[..., over]) * np.sqrt(0.5)
        return moved

    def back(self, moved: np.ndarray) -> np.ndarray:
        """Return h, or a release in h, as statistics: [..., K] -> [..., K]."""
        stats = moved + self._others * moved[..., :1]
        over = self._counted[0][self._squares]
        stats[..., self._squares] = moved[..., self._squares] * np.sqrt(2.0) + stats[..., over]
        return stats

    @cached_property
    def length(self) -> float:
        """Return B, the root of the mean of ‖h‖² over rows of the uniform start.

        A count that is 1 with probability c contributes c(1 − c); any other entry, whose variance is 1 where its own
        count is 1, contributes the probability of that. The leading 1 contributes 1.
        """
        over, squares = self._counted
        counts = (self.centre > 0) & ~squares
        variances = np.where(counts, self.centre * (1 - self.centre), self.centre[over])
        return float(np.sqrt(1.0 + variances[1:].sum()))
