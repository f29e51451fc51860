"""q = e_y − p of rows, each with the same bits in whatever table the row is.

A matrix product sums in an order that depends on the table's shape and on the row's position in it, and so do the last
bits of log joints. One more row would then change what others add to a release, if only by a step of the grid. Here
every row is computed independently of the others:

    log joint     term after term in one order; single products and sums, which IEEE 754 rounds in one way only
    exp           of arrays whose length is a multiple of LANES, so that no number is left over for another routine,
                  and of arguments from −FARTHEST to 0, which need no special treatment
    softmax       maximum and sum over classes in one order

Rows that pad the last block are zeros and are thrown away.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from peerbayes.model.families import Family, Rows

# Rows of a block: a multiple of what any processor's vectors hold.
LANES = 64

# Log joints held at a time: they stay in cache.
IN_CACHE = 1 << 15

# e⁻⁷⁰⁰ is 10⁻³⁰⁴, far below a step of any grid, and still a normal number.
FARTHEST = 700.0


@dataclass(frozen=True, eq=False)
class RowSteps:
    """Rows with their labels, prepared for computing q at any weights."""

    family: Family
    labels: np.ndarray
    """[n'] class of each row, −1 for padding."""
    count: int
    """n, the number of rows without padding."""
    dense: np.ndarray
    """[dense_size, n'] features of the continuous columns."""
    indices: np.ndarray
    """[E, n'] indices of the other features, K for none."""
    values: np.ndarray | None
    """[E, n'] the other features; None: ones."""

    @classmethod
    def of(cls, family: Family, rows: Rows, labels: np.ndarray) -> RowSteps:
        """Prepare encoded rows [n, …] with class indices [n]."""
        indices, values = family.entries(rows)
        dense = np.asarray(family.dense(rows.values))
        return cls(
            family,
            _padded(np.asarray(labels, dtype=np.int64), -1),
            len(labels),
            _padded(dense, 0.0),
            _padded(indices, family.size),
            None if values is None else _padded(values, 0.0),
        )

    def __call__(self, weights: np.ndarray) -> np.ndarray:
        """Return q at W: [C, K] -> [n, C]."""
        classes = len(weights)
        steps = np.empty((classes, self.labels.size))
        size = max(LANES, IN_CACHE // classes // LANES * LANES)
        extended = np.concatenate([weights, np.zeros((classes, 1))], axis=1)
        with np.errstate(all="ignore"):  # crafted statistics may overflow; what is not finite is cut
            for begin in range(0, self.labels.size, size):
                block = slice(begin, begin + size)
                steps[:, block] = self._steps(extended, block)
        return steps.T[: self.count]

    def _steps(self, weights: np.ndarray, block: slice) -> np.ndarray:
        """Return q of a block of rows at W with a column of zeros: [C, K + 1] -> [C, block]."""
        joint = self._log_joint(weights, block)
        joint -= joint.max(axis=0)  # a maximum is exact in any order
        joint = np.exp(np.maximum(joint, -FARTHEST, out=joint))
        total = joint[0].copy()
        for of_class in joint[1:]:
            total += of_class
        joint /= -total
        labels = self.labels[block]
        real = np.flatnonzero(labels >= 0)
        joint[labels[real], real] += 1.0
        return joint

    def _log_joint(self, weights: np.ndarray, block: slice) -> np.ndarray:
        """Return ⟨W_c, φ(x)⟩ of a block of rows: [C, K + 1] -> [C, block]."""
        dense, indices = self.dense[:, block], self.indices[:, block]
        joint = np.zeros((len(weights), indices.shape[1]))
        term = np.empty_like(joint)
        for weight, feature in zip(weights.T, dense, strict=False):  # the dense features come first
            joint += np.multiply(weight[:, None], feature, out=term)
        for entry, index in enumerate(indices):
            np.take(weights, index, axis=1, out=term, mode="clip")
            if self.values is not None:
                term *= self.values[entry, block]
            joint += term
        return joint


def _padded(values: np.ndarray, filler: float) -> np.ndarray:
    """Return values with rows last, padded with `filler` to full blocks: [n] or [n, K] -> [n'] or [K, n']."""
    padded = np.full((*values.shape[1:], len(values) + -len(values) % LANES), filler, dtype=values.dtype)
    padded[..., : len(values)] = values.T
    return padded
