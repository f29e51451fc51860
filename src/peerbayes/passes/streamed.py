"""Labelled rows that are read block by block by the kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from peerbayes import core
from peerbayes.passes.evaluation import Evaluation
from peerbayes.passes.features import expander
from peerbayes.passes.logits import fast_logits
from peerbayes.passes.passing import Passing
from peerbayes.passes.shortcuts import holds_missing, shortcut
from peerbayes.passes.sizes import block_rows
from peerbayes.scans import LONG_BLOCK_ROWS


class Streamed(Passing):
    """Labelled rows that are read block by block by the kernels."""

    def statistics(self) -> np.ndarray:
        """Return S = YᵀΦ: [C, K]."""
        from peerbayes import kernels

        family, fast = self.family, shortcut(self.family)
        add: Any = None if fast is None else getattr(kernels, fast.statistics)
        size = block_rows(family.dense_size) if fast is None else LONG_BLOCK_ROWS
        expand = expander(family, size) if fast is None else None
        stats = np.zeros((self.classes, family.size))
        dense, cells = np.zeros((self.classes, family.dense_size)), stats[:, family.dense_size :]
        for block, labels, weights in self.blocks(size, fast=True):
            if expand is None:
                values, _, *units = block
                add(values, *units, holds_missing(family), labels, weights, dense)
            else:
                dense += (core.one_hot(labels, self.classes) * weights[:, None]).T @ expand(block).T
            if family.cardinalities:
                kernels.cell_statistics(block.codes, family.offsets, labels, weights, cells)
        stats[:, : family.dense_size] = dense
        return stats

    def evaluate(self, weights: np.ndarray) -> Evaluation:
        """Return R = (Y − P)ᵀΦ and the errors of the model W."""
        from peerbayes import kernels

        family, size = self.family, block_rows(self.family.dense_size)
        logits_of = fast_logits(family, weights, size)
        residual = np.zeros((self.classes, family.dense_size))
        cells = np.zeros((sum(family.cardinalities), self.classes))
        product = np.empty_like(residual)
        best = np.empty(size, dtype=np.int64)
        soft = wrong = 0.0
        for block, labels, row_weights in self.blocks(size, fast=True):
            features, logits = logits_of(block)
            block_errors = kernels.residuals(logits, best[: labels.size], labels, row_weights)
            soft, wrong = soft + block_errors[0], wrong + block_errors[1]
            residual += np.dot(logits, features.T, out=product)
            if family.cardinalities:
                kernels.scatter_cells(block.codes, family.offsets, logits, cells)
        mass = self.mass
        return Evaluation(np.concatenate([residual, cells.T], axis=1), soft / mass, wrong / mass)
