"""Labelled rows that are read block by block in NumPy, which needs no compiler."""

from __future__ import annotations

import numpy as np

from peerbayes import core
from peerbayes.passes.blocks import all_rows
from peerbayes.passes.evaluation import Evaluation, residuals
from peerbayes.passes.features import all_features, dense_features
from peerbayes.passes.held import Held
from peerbayes.passes.passing import Passing
from peerbayes.passes.sizes import block_rows
from peerbayes.passes.sums import add_entries, split_sums


class Plain(Passing):
    """Labelled rows that are read block by block in NumPy."""

    def held(self) -> Held:
        """Return the same rows with their features kept in memory."""
        one_hot = core.one_hot(self.labels, self.classes)
        labels = one_hot if self.weights is None else one_hot * self.weights[:, None]
        if self.family.wide:
            return Held(self.family.sparse(all_rows(self.source)), labels)
        features = np.empty((self.family.size, self.source.rows))
        for start, block in self.source.blocks(block_rows(self.family.size)):
            features[:, start : start + block.values.shape[0]] = all_features(self.family, block)
        return Held(features.T, labels)

    def statistics(self) -> np.ndarray:
        """Return S = YᵀΦ, summed almost without rounding errors: [C, K].

        The rounding errors of adding two blocks' sums are accumulated separately, and added last.
        """
        family = self.family
        total, rounding_errors = np.zeros((2, self.classes, family.dense_size))
        cells = np.zeros((self.classes, family.size - family.dense_size))
        for block, labels, row_weights in self.blocks(block_rows(family.dense_size), fast=False):
            weights = None if self.weights is None else row_weights
            features = dense_features(family, block)
            if weights is not None:
                features *= weights
            upper, lower = split_sums(features, core.one_hot(labels, self.classes))
            before, total = total, total + upper
            added = total - before
            rounding_errors += (before - (total - added)) + (upper - added) + lower
            if cells.size:
                add_entries(family, block, labels, weights, cells)
        return np.concatenate([total + rounding_errors, cells], axis=1)

    def evaluate(self, weights: np.ndarray) -> Evaluation:
        """Return R = (Y − P)ᵀΦ and the errors of the model W."""
        residual = np.zeros(weights.shape)
        soft = wrong = 0.0
        for block, labels, row_weights in self.blocks(block_rows(self.family.size), fast=False):
            features = all_features(self.family, block)
            logits = np.asarray(weights @ features)
            block_errors = residuals(logits, labels, row_weights)
            soft, wrong = soft + block_errors[0], wrong + block_errors[1]
            residual += logits @ features.T
        return Evaluation(residual, soft / self.mass, wrong / self.mass)
