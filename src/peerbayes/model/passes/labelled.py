"""Labelled rows, for statistics and residuals: held as features, or encoded anew in every pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from peerbayes.data.infer import LONG_BLOCK_ROWS
from peerbayes.model import core
from peerbayes.model.families.base import Family
from peerbayes.model.passes.blocks import Block, Source, all_rows, are_large, block_rows, is_held, is_large
from peerbayes.model.passes.features import (
    Evaluation,
    all_features,
    dense_features,
    expander,
    fast_logits,
    holds_missing,
    residuals,
    shortcut,
)

# --- labelled rows that are read block by block


@dataclass(frozen=True)
class Passing:
    """A source of rows, with their labels and weights."""

    family: Family
    source: Source
    labels: np.ndarray  # [n] class indices
    classes: int
    weights: np.ndarray | None = None  # [n]

    @property
    def mass(self) -> float:
        return float(self.labels.size if self.weights is None else self.weights.sum())

    def blocks(self, size: int, fast: bool) -> Iterator[tuple[Block, np.ndarray, np.ndarray]]:
        """Yield blocks of `size` rows, each with its labels and weights."""
        ones = np.ones(min(size, self.source.rows))
        for start, block in self.source.blocks(size, fast):
            stop = start + block.values.shape[0]
            weights = ones[: stop - start] if self.weights is None else self.weights[start:stop]
            yield block, self.labels[start:stop], weights


# --- sums over the rows of each class in NumPy: dense features almost without rounding errors, and sparse entries


def split_sums(features: np.ndarray, of_class: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums of features [K, b] over the rows of each class [b, C], as an upper and a lower part: two [C, K].

    Variances are small differences of these sums. A feature is H + L, where H is its part on a grid of 2⁻²⁶ of its
    largest value: sums of H are exact in any order, and L is too small for its errors to matter.
    """
    largest = np.maximum(features.max(axis=1, initial=0.0), -features.min(axis=1, initial=0.0))
    grid = 1.5 * 2.0**26 * np.exp2(np.ceil(np.log2(np.where(largest > 0, largest, 1.0))))[:, None]
    upper = features + grid
    upper -= grid
    exact = of_class.T @ upper.T
    return exact, of_class.T @ np.subtract(features, upper, out=upper).T


def add_entries(
    family: Family, block: Block, labels: np.ndarray, weights: np.ndarray | None, stats: np.ndarray
) -> None:
    """Add a block to the statistics after the dense features: [C, K − dense]."""
    if family.plain_cells:
        _add_cells(block.codes, family.offsets, labels, weights, stats)
        return
    indices, values = family.entries(block.rows())
    if weights is not None:
        values = (
            np.broadcast_to(weights[:, None], indices.shape) if values is None else values * weights[:, None]
        )
    present = indices < family.size
    index = indices + (labels[:, None].astype(np.int64) * stats.shape[1] - family.dense_size)
    _add_at(stats, index, values, present)


def _add_cells(
    codes: np.ndarray, offsets: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, stats: np.ndarray
) -> None:
    """Add a block of category indices [b, Dd] to the statistics of the discrete columns: [C, cells]."""
    flat_index = codes + (offsets + labels[:, None].astype(np.int64) * stats.shape[1])
    values = None if weights is None else np.broadcast_to(weights[:, None], codes.shape)
    _add_at(stats, flat_index, values, codes >= 0)


def _add_at(
    stats: np.ndarray, flat_index: np.ndarray, values: np.ndarray | None, present: np.ndarray
) -> None:
    """Add values, or ones, to S at flat indices, where they are present."""
    if not present.all():
        flat_index, values = flat_index[present], None if values is None else values[present]
    if stats.size > flat_index.size:  # many categories: most cells are not touched
        np.add.at(stats.reshape(-1), flat_index, 1.0 if values is None else values)
        return
    values = None if values is None else values.ravel()
    stats += np.bincount(flat_index.ravel(), values, minlength=stats.size).reshape(stats.shape)


# --- labelled rows whose features are kept in memory: few rows, or some with many passes over them


@dataclass(frozen=True)
class Held:
    """Labelled rows as Φ [n, K] and Y [n, C]."""

    features: Any  # [n, K] an array, or sparse where most of it is zero
    labels: np.ndarray

    @cached_property
    def classes(self) -> np.ndarray:
        return self.labels.argmax(axis=-1)

    @cached_property
    def weights(self) -> np.ndarray:
        return self.labels.sum(axis=-1)

    @property
    def mass(self) -> float:
        return float(self.weights.sum())

    def statistics(self) -> np.ndarray:
        """Return S = YᵀΦ, summed almost without rounding errors: [C, K]."""
        features = self.features if isinstance(self.features, np.ndarray) else self.features.toarray()
        upper, lower = split_sums((features * self.weights[:, None]).T, self.labels > 0)
        return upper + lower

    def evaluate(self, weights: np.ndarray) -> Evaluation:
        """Return R = (Y − P)ᵀΦ and the errors of the model W."""
        residual, soft, wrong = np.zeros(weights.shape), 0.0, 0.0
        rows, size = self.features.shape[0], block_rows(self.features.shape[1])
        for block in (slice(start, start + size) for start in range(0, rows, size)):
            logits = weights @ self.features[block].T  # [C, b]
            block_errors = residuals(logits, self.classes[block], self.weights[block])
            soft, wrong = soft + block_errors[0], wrong + block_errors[1]
            residual += logits @ self.features[block]
        return Evaluation(residual, soft / self.mass, wrong / self.mass)


# --- labelled rows that are read block by block in NumPy, which needs no compiler


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


# --- labelled rows that are read block by block by the kernels


class Streamed(Passing):
    """Labelled rows that are read block by block by the kernels."""

    def statistics(self) -> np.ndarray:
        """Return S = YᵀΦ: [C, K]."""
        from peerbayes.model.kernels import block_loops

        family, fast = self.family, shortcut(self.family)
        add: Any = None if fast is None else getattr(block_loops, fast.statistics)
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
                block_loops.cell_statistics(block.codes, family.offsets, labels, weights, cells)
        stats[:, : family.dense_size] = dense
        return stats

    def evaluate(self, weights: np.ndarray) -> Evaluation:
        """Return R = (Y − P)ᵀΦ and the errors of the model W."""
        from peerbayes.model.kernels import block_loops

        family, size = self.family, block_rows(self.family.dense_size)
        logits_of = fast_logits(family, weights, size)
        residual = np.zeros((self.classes, family.dense_size))
        cells = np.zeros((sum(family.cardinalities), self.classes))
        product = np.empty_like(residual)
        best = np.empty(size, dtype=np.int64)
        soft = wrong = 0.0
        for block, labels, row_weights in self.blocks(size, fast=True):
            features, logits = logits_of(block)
            block_errors = block_loops.residuals(logits, best[: labels.size], labels, row_weights)
            soft, wrong = soft + block_errors[0], wrong + block_errors[1]
            residual += np.dot(logits, features.T, out=product)
            if family.cardinalities:
                block_loops.scatter_cells(block.codes, family.offsets, logits, cells)
        mass = self.mass
        return Evaluation(np.concatenate([residual, cells.T], axis=1), soft / mass, wrong / mass)


# --- the form of labelled rows that suits the number of passes over them: held, plain or streamed

Data = Held | Plain | Streamed


def labelled(
    family: Family,
    source: Source,
    labels: np.ndarray,
    classes: int,
    weights: np.ndarray | None = None,
) -> Data:
    """Return labelled rows in the form that suits one pass."""
    if is_large(family, source.rows):
        return Streamed(family, source, labels, classes, weights)
    plain = Plain(family, source, labels, classes, weights)
    return plain.held() if source.rows <= block_rows(family.size) else plain


def repeated(data: Data, passes: int) -> Data:
    """Return the same rows in the form that suits the given number of passes."""
    if not isinstance(data, Plain):
        return data
    if are_large(data.family, data.source.rows, passes):
        return Streamed(data.family, data.source, data.labels, data.classes, data.weights)
    return data.held() if is_held(data.family, data.source.rows) else data
