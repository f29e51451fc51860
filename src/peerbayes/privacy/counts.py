"""Numbers of rows, of rows of each class and of missing values, from one noisy release.

    r = (rows, rows of each class, missing values of each column that may miss some)        r̃ = r + noise

A row counts once among all rows, once in its class, and at most once in each such column, so it moves r by at most
√(2 + columns). In whole steps of 2⁻²⁴, so that noise is discrete, as in `mechanism`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from peerbayes.privacy import accounting
from peerbayes.privacy.noise import Source, discrete_gaussian
from peerbayes.privacy.units import ONE


@dataclass(frozen=True)
class RowCounts:
    """A release of numbers of rows."""

    classes: int
    columns: int
    """That may miss values."""
    cost: float
    """μ² that the release may cost."""

    @property
    def size(self) -> int:
        """Return the number of entries of a release."""
        return 1 + self.classes + self.columns

    @property
    def sigma(self) -> int:
        """Return σ of the noise, in steps."""
        return math.ceil(ONE * math.sqrt(2 + self.columns) / math.sqrt(self.cost) * (1 + 1e-12))

    @property
    def deviation(self) -> float:
        """Return σ of the noise, in rows."""
        return self.sigma / ONE

    def discretisation(self) -> float:
        """Return what the noise being discrete may cost in ε."""
        return accounting.discretisation(self.sigma, self.size)

    def counts(self, labels: np.ndarray, missing: np.ndarray) -> np.ndarray:
        """Return r of class indices [n] and of which values are missing [n, columns]: [size] of int64, in steps."""
        by_class = np.bincount(labels, minlength=self.classes)
        return np.concatenate([[labels.size], by_class, missing.sum(axis=0)]).astype(np.int64) * ONE

    def release(self, labels: np.ndarray, missing: np.ndarray, source: Source) -> np.ndarray:
        """Return r̃: [size] of int64, in steps."""
        return self.counts(labels, missing) + discrete_gaussian(self.sigma, self.size, source)
