"""One pass over the labelled rows of a table: statistics, residual and errors.

If the rows fit in one block, Φ is kept in memory. More rows are encoded, expanded and discarded block by block, so
that a pass costs two matrix products and little memory: by the `kernels` for large tables, by their NumPy twins where
loading the kernels would take longer. All give the same numbers up to rounding, and the choice depends on the call
alone, not on what the process did before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from peerbayes.data import infer
from peerbayes.data.infer import LONG_BLOCK_ROWS, Scratch
from peerbayes.data.table import Rows
from peerbayes.errors import NotSupported
from peerbayes.model import core
from peerbayes.model.families.aode import Aode
from peerbayes.model.families.base import Family
from peerbayes.model.families.bayes_net import BayesNet
from peerbayes.model.families.gaussian import Gaussian, SharedGaussian, triangle
from peerbayes.model.families.naive_bayes import NaiveBayes
from peerbayes.model.gaussian_logits import gaussian_logits
from peerbayes.model.missing import Completion, apart, complete
from peerbayes.model.sources import (
    BLOCK_ROWS,
    Block,
    Encoded,
    Source,
    all_rows,
    block_rows,
    columns_of,
    is_fused,
    is_large,
    small_blocks,
)


def holds_missing(family: Family) -> bool:
    """Whether φ marks missing continuous values."""
    return isinstance(family, NaiveBayes) and family.missing


# --- φ of a block, transposed so that inner loops run over rows: in NumPy, or by the kernels in reused memory


def dense_features(family: Family, block: Block, scratch: Scratch | None = None) -> np.ndarray:
    """Return the dense features of a block, in memory of `scratch` if it is given: [dense, b]."""
    d, rows = family.continuous, len(block.values)
    if family.kernels is None:
        return np.ascontiguousarray(np.asarray(family.dense(block.rows().values)).T)
    features = (scratch or Scratch())("features", family.dense_size, rows)
    features[0] = 1.0
    first = 1 + d * holds_missing(family)
    values = block.standard(features[first : first + d])
    if holds_missing(family):
        present = np.equal(values, values, out=features[1:first])
        values[present == 0.0] = 0.0
    k = first + d
    if isinstance(family, NaiveBayes):
        np.square(values, out=features[k:])
        return features
    for j in range(d):
        np.multiply(values[j], values[j:], out=features[k : k + d - j])
        k += d - j
    return features


def all_features(family: Family, block: Block) -> Any:
    """Return Φᵀ of a block, sparse where it is mostly zeros: [K, b]."""
    if family.wide:
        return family.sparse(block.rows()).T
    if not family.plain_cells:
        return np.ascontiguousarray(np.asarray(family.features(block.rows())).T)
    dense = dense_features(family, block)
    if not family.cardinalities:
        return dense
    rows = dense.shape[1]
    features = np.zeros((family.size + 1, rows))  # the last one is where missing values go
    features[: family.dense_size] = dense
    index = np.where(block.codes < 0, family.size, block.codes + (family.dense_size + family.offsets))
    features.reshape(-1)[index * rows + np.arange(rows)[:, None]] = 1.0
    return features[:-1]


def expander(family: Family, size: int) -> Callable[[Block], np.ndarray]:
    """Return a function for `dense_features` of blocks of at most `size` rows by the kernels, in reused memory."""
    from peerbayes.model.kernels import block_loops

    if family.kernels is None:
        return lambda block: np.ascontiguousarray(np.asarray(family.dense(block.rows().values)).T)
    kernel, missing = getattr(block_loops, family.kernels[0]), holds_missing(family)
    buffer = np.empty(family.dense_size * size)

    def expand(block: Block) -> np.ndarray:
        values, _, *units = block
        features = start_of(buffer, family.dense_size, values.shape[0])
        kernel(values, *units, missing, features)
        return features

    return expand


def start_of(buffer: np.ndarray, *shape: int) -> np.ndarray:
    """Return the start of a buffer as a view of the given shape."""
    return buffer[: math.prod(shape)].reshape(shape)


# --- logits of blocks under a model W: in NumPy, or by the kernels in reused memory

LogitsOf = Callable[[Block], np.ndarray]
"""A function of a block of rows: its logits [C, b], which the next block may overwrite."""


def plain_logits(
    family: Family, weights: np.ndarray, fast: bool = False, *, relative: bool = False
) -> LogitsOf:
    """Return the logits function in NumPy. One-hots are not expanded: a column may have very many categories.

    fast      a family whose log joint is not linear may use its kernel
    relative  terms that are the same for all classes may be left out
    """
    if not family.linear:
        scores = scorer_of(family, weights, fast)
        return lambda block: np.ascontiguousarray(scores(block.rows()).T)
    if not family.plain_cells:
        return lambda block: np.asarray(weights @ family.sparse(block.rows()).T)
    dense_logits = dense_logits_of(family, weights[:, : family.dense_size], relative)
    if not family.cardinalities:
        return dense_logits
    cells = np.pad(weights[:, family.dense_size :], ((0, 0), (0, 1)))  # the last one is for missing values

    def logits_of(block: Block) -> np.ndarray:
        logits = dense_logits(block)
        for codes, offset in zip(block.codes.T, family.offsets, strict=True):
            logits += np.take(cells, np.where(codes < 0, cells.shape[1] - 1, codes + offset), axis=1)
        return logits

    return logits_of


def logits_rows(family: Family, classes: int, relative: bool) -> int:
    """Return the rows of a block for `plain_logits`, which reuses its memory."""
    products = has_products(family)
    linear = relative and isinstance(family, SharedGaussian)
    width = (1 + family.continuous) * (1 if linear else 1 + classes) if products else family.dense_size
    return block_rows(width, LONG_BLOCK_ROWS)


def has_products(family: Family) -> TypeGuard[Gaussian]:
    """Whether the dense features are the products of `Gaussian`, which a derived family may have changed."""
    return isinstance(family, Gaussian) and family.kernels == Gaussian.kernels


def dense_logits_of(family: Family, weights: np.ndarray, relative: bool) -> LogitsOf:
    """Return the function of blocks to W φ of the dense features, W [C, dense], in NumPy."""
    if has_products(family):
        return gaussian_logits(family, weights, relative)
    scratch = Scratch()

    def logits_of(block: Block) -> np.ndarray:
        features = dense_features(family, block, scratch)
        return np.dot(weights, features, out=scratch("logits", len(weights), features.shape[1]))

    return logits_of


def scorer_of(family: Family, weights: np.ndarray, fast: bool) -> Callable[[Rows], np.ndarray]:
    """Return the function of rows to log p(x, c) [n, C] under W [C, K]; `fast`: by a kernel, where there is one."""
    if fast and isinstance(family, Aode):
        from peerbayes.model.kernels import averages

        return averages.scorer(family, weights)
    return family.scorer(weights)


def fast_logits(family: Family, weights: np.ndarray, size: int) -> LogitsOf:
    """Return the logits function by the kernels, for blocks of at most `size` rows."""
    features_of, logits_of = expander(family, size), fast_products(family, weights, size)
    return lambda block: logits_of(block, features_of(block))


def fast_products(
    family: Family, weights: np.ndarray, size: int
) -> Callable[[Block, np.ndarray], np.ndarray]:
    """Return the function of a block and its dense features [dense, b] to its logits [C, b], by the kernels."""
    from peerbayes.model.kernels import block_loops

    dense = np.ascontiguousarray(weights[:, : family.dense_size])
    cells = np.ascontiguousarray(weights[:, family.dense_size :].T)
    buffer = np.empty(weights.shape[0] * size)

    def logits_of(block: Block, features: np.ndarray) -> np.ndarray:
        logits = start_of(buffer, weights.shape[0], features.shape[1])
        np.dot(dense, features, out=logits)
        if family.cardinalities:
            block_loops.add_cells(block.codes, family.offsets, cells, logits)
        return logits

    return logits_of


# --- the residual and the errors of a model in one pass, from the logits of its blocks


class Evaluated(NamedTuple):
    """The residual of a model on labelled rows, and the weighted means of its losses."""

    residual: np.ndarray  # [C, K]
    soft_error: float  # 1 − p(y|x)
    error: float  # 1 where another class is more probable than y
    log_loss: float  # −log p(y|x)


# Classes up to which comparing whole rows of logits is faster than NumPy's argmax, which goes over each column.
FEW_CLASSES = 4


def write_highest(logits: np.ndarray, best: np.ndarray) -> None:
    """Write the class of the highest logit [C, b] to `best` [b], the first of equal ones."""
    if len(logits) > FEW_CLASSES:
        logits.argmax(axis=0, out=best)
        return
    best[:], top = 0, logits[0].copy()
    for c in range(1, len(logits)):
        np.copyto(best, c, where=logits[c] > top)
        np.maximum(top, logits[c], out=top)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Compute P = softmax over classes in place: [C, b]."""
    logits -= logits.max(axis=0)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=0)
    return logits


def residuals(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Replace logits [C, b] by (Y − P) times the rows' weights; return the sums of `Evaluated`'s three losses: [3].

    −log p(y|x) = −log p(best|x) + logit of the best − logit of y: finite where p(y|x) itself is 0.
    """
    rows, best = np.arange(labels.size), logits.argmax(axis=0)
    wrong = weights[best != labels].sum()
    behind = logits[best, rows] - logits[labels, rows]
    softmax(logits)
    loss = weights @ (behind - np.log(logits[best, rows]))
    logits *= -weights
    logits[labels, rows] += weights
    return np.array([logits[labels, rows].sum(), wrong, loss])


def _evaluation(
    blocks: Iterable[tuple[Any, np.ndarray, np.ndarray]], weights: np.ndarray, mass: float
) -> Evaluated:
    """Return R and the losses of the model W on blocks of Φᵀ [K, b], labels [b] and row weights [b]."""
    residual, losses = np.zeros(weights.shape), np.zeros(3)
    for features, labels, row_weights in blocks:
        logits = np.asarray(weights @ features)  # [C, b]
        losses += residuals(logits, labels, row_weights)
        residual += logits @ features.T
    return Evaluated(residual, *(losses / mass).tolist())


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
        size = small_blocks(self.source, size)
        ones = np.ones(min(size, self.source.rows))
        for start, block in self.source.blocks(size, fast):
            stop = start + block.values.shape[0]
            weights = ones[: stop - start] if self.weights is None else self.weights[start:stop]
            yield block, self.labels[start:stop], weights


# --- sums over the rows of each class in NumPy that are exact but for a rounding error at the end
#
# Variances are small differences of sums. A number is H + L, where H is its part on a grid so coarse that sums of H, or
# of products of H, are exact in any order, and L is too small for its errors to matter.

# Rows of a block of which such sums are made: all that is written on the way stays in the second-level cache.
SUMMED_ROWS = 1 << 10

# The clip up to which the grid of a sum follows from it alone: the grid is then at most as many times coarser than
# one of the largest value, which is searched beyond.
NEAR_CLIP = 16.0


def split_sums(
    features: np.ndarray,
    of_class: np.ndarray,
    scratch: Scratch | None = None,
    largest: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums of features [K, b] over the rows of each class [C, b], as an upper and a lower part: two [C, K].

    The grid is 2⁻²⁶ of the largest value of a feature. `features` become L.

    largest  a bound of each feature, where one is known: [K]
    """
    upper, lower = _on_grid(features, 26, largest, (scratch or Scratch())("upper", *features.shape), features)
    return of_class @ upper.T, of_class @ lower.T


def _on_grid(
    features: np.ndarray,
    bits: int,
    largest: np.ndarray | float | None,
    upper: np.ndarray,
    lower: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return features [K, b] as H + L in `upper` and `lower`, H on a grid of 2^−bits of the `largest` value of each."""
    if largest is None:
        largest = np.maximum(features.max(axis=1, initial=0.0), -features.min(axis=1, initial=0.0))
    step = 1.5 * 2.0 ** (52 - bits)  # what is added to it is rounded to a grid of 2^−bits
    grid = step * np.exp2(np.ceil(np.log2(np.where(np.greater(largest, 0), largest, 1.0))))
    grid = grid[:, None] if np.ndim(grid) else grid
    np.add(features, grid, out=upper)
    upper -= grid
    return upper, np.subtract(features, upper, out=lower)


def bounds(family: Family, clip: float) -> np.ndarray | None:
    """Return bounds of the dense features of naive Bayes where values are clipped: [dense]; None: none are known."""
    if clip > NEAR_CLIP or not isinstance(family, NaiveBayes) or family.kernels != NaiveBayes.kernels:
        return None
    return np.repeat(
        [1.0, clip, clip * clip], [family.dense_size - 2 * family.continuous, *[family.continuous] * 2]
    )


# --- sums of squares and products: with z = H + L, zz′ = HH′ + ½ (L(H′ + z′) + (H + z)L′)
#
# The grid of H is so coarse that the sums of HH′ over a block are exact in any order.


def has_moments(family: Family) -> bool:
    """Whether the dense features are 1, z and z², none of which is missing."""
    return (
        isinstance(family, NaiveBayes)
        and family.kernels == NaiveBayes.kernels
        and not family.missing
        and family.continuous > 0
    )


def split_moments(
    block: Block, labels: np.ndarray, classes: int, scratch: Scratch
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums of 1, z and z² over the rows of each class, as an upper and a lower part: two [C, 1 + 2·d].

    Rows of a class are put side by side, so that one sum over ranges of rows is all, however many classes there are.
    """
    d, rows = block.values.shape[1], len(labels)
    values, upper, squares = (scratch(name, d, rows) for name in ("values", "upper", "squares"))
    _in_order(block, labels, classes, squares.reshape(rows, d), values)
    np.square(values, out=squares)
    _on_grid(values, _product_bits(rows), _largest(block), upper, values)
    counts = np.bincount(labels, minlength=classes)
    present = np.flatnonzero(counts)
    starts = (np.cumsum(counts) - counts)[present]
    exact, rest = np.zeros((2, classes, 1 + 2 * d))
    exact[:, 0] = counts
    exact[present, 1 : 1 + d] = np.add.reduceat(upper, starts, axis=1).T
    rest[present, 1 : 1 + d] = np.add.reduceat(values, starts, axis=1).T
    np.square(upper, out=upper)
    squares -= upper  # as exact: what is left of a square is as small as L
    exact[present, 1 + d :] = np.add.reduceat(upper, starts, axis=1).T
    rest[present, 1 + d :] = np.add.reduceat(squares, starts, axis=1).T
    return exact, rest


def split_products(
    block: Block, labels: np.ndarray, weights: np.ndarray | None, classes: int, scratch: Scratch
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums of (1, z)(1, z)ᵀ over the rows of each class, as an upper and a lower part: two [C, dense].

    Without writing products: zᵀz = HᵀH + ½ (A + Aᵀ), A = Lᵀ(H + z).
    """
    width, rows = 1 + block.values.shape[1], len(labels)
    bits = _product_bits(rows)
    in_order = scratch("in order", width, rows)
    in_order[0] = 1.0
    upper, lower, doubled = (scratch(name, width, rows) for name in ("upper", "lower", "doubled"))
    order = _in_order(block, labels, classes, doubled[1:].reshape(rows, width - 1), in_order[1:])
    upper[0], lower[0] = 1.0, 0.0
    _on_grid(in_order[1:], bits, _largest(block), upper[1:], lower[1:])
    ranges = list(pairwise([0, *np.cumsum(np.bincount(labels, minlength=classes)).tolist()]))
    if weights is not None:
        return _weighted_products(in_order, upper, lower, weights[order], bits, ranges)
    np.add(upper, in_order, out=doubled)
    exact, rest = np.empty((2, classes, width, width))
    for c, (start, stop) in enumerate(ranges):
        high = upper[:, start:stop]
        np.matmul(high, high.T, out=exact[c])
        np.matmul(lower[:, start:stop], doubled[:, start:stop].T, out=rest[c])
    rest += rest.mT.copy()
    rest *= 0.5
    first, second, _ = triangle(width)  # 1, z, and z_i z_j for i ≤ j: the order of the features
    places = first * width + second
    return exact.reshape(classes, -1).take(places, axis=1), rest.reshape(classes, -1).take(places, axis=1)


def _weighted_products(
    values: np.ndarray,
    upper: np.ndarray,
    lower: np.ndarray,
    weights: np.ndarray,
    bits: int,
    ranges: list[tuple[int, int]],
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums of weighted products, of values = H + L [1 + d, b] in ranges of rows: two [C, dense]."""
    first, second, _ = triangle(len(values))  # 1, z, and z_i z_j for i ≤ j: the order of the features
    exact, rest = np.zeros((2, len(ranges), first.size))
    for c, (start, stop) in enumerate(ranges):
        if start == stop:
            continue
        high, low, of_class = (part[:, start:stop] for part in (upper, lower, values))
        weighed = of_class * weights[start:stop]
        weighed, below = _on_grid(weighed, bits, None, np.empty_like(weighed), weighed)
        exact[c] = (weighed @ high.T)[first, second]
        rest[c] = (weighed @ low.T + below @ of_class.T)[first, second]
    return exact, rest


def _in_order(
    block: Block, labels: np.ndarray, classes: int, rows: np.ndarray, out: np.ndarray
) -> np.ndarray:
    """Write the rows of a block, class by class, to `rows` [b, d], standardised to `out` [d, b]; return the order."""
    few = labels.astype(np.int16) if classes < 1 << 15 else labels  # sorted by their digits, not by comparing
    order = np.argsort(few, kind="stable")
    np.take(block.values, order, axis=0, out=rows, mode="clip")
    block._replace(values=rows).standard(out)
    return order


def _product_bits(rows: int) -> int:
    """Return the bits of H of which products of so many rows are added up without rounding."""
    return (53 - max(rows - 1, 1).bit_length()) // 2


def _largest(block: Block) -> float | None:
    """Return a bound of the standardised values of a block; None: none is known that is near."""
    return None if block.clip > NEAR_CLIP else block.clip


# --- sums over the rows of each class in NumPy: matrix products, and sparse entries


def add_products(
    block: Block, labels: np.ndarray, weights: np.ndarray, scratch: Scratch, stats: np.ndarray
) -> None:
    """Add a block to the statistics of Gaussian classes [C, dense], as a matrix (1, z)(1, z)ᵀ of each class."""
    d = block.values.shape[1]
    upper, right = np.triu_indices(d)
    values = scratch("values", 1 + d, len(labels))
    values[0] = 1.0
    block.standard(values[1:])
    for c in np.unique(labels):
        rows = np.flatnonzero(labels == c)
        of_class = values[:, rows]
        products = (of_class * weights[rows]) @ of_class.T
        stats[c, : 1 + d] += products[0]
        stats[c, 1 + d :] += products[1 + upper, 1 + right]


def add_entries(
    family: Family, block: Block, labels: np.ndarray, weights: np.ndarray | None, stats: np.ndarray
) -> None:
    """Add a block to the statistics after the dense features: [C, K − dense]."""
    rows = Rows(block.values, block.codes) if family.plain_cells else block.rows()  # one-hots need codes only
    indices, values = family.entries(rows)
    if weights is not None:
        values = np.broadcast_to(weights[:, None], indices.shape) * (1.0 if values is None else values)
    present = indices < family.size
    index = indices + (labels[:, None].astype(np.int64) * stats.shape[1] - family.dense_size)
    if not present.all():
        index, values = index[present], None if values is None else values[present]
    if stats.size > index.size:  # many categories: most cells are not touched
        np.add.at(stats.reshape(-1), index, 1.0 if values is None else values)
        return
    values = None if values is None else values.ravel()
    stats += np.bincount(index.ravel(), values, minlength=stats.size).reshape(stats.shape)


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
        of_class = (self.labels > 0).T.astype(np.float64)
        upper, lower = split_sums((features * self.weights[:, None]).T, of_class)
        return upper + lower

    def evaluate(self, weights: np.ndarray) -> Evaluated:
        """Return R = (Y − P)ᵀΦ and the losses of the model W."""
        rows, size = self.features.shape[0], block_rows(self.features.shape[1])
        blocks = (slice(start, start + size) for start in range(0, rows, size))
        parts = ((self.features[block].T, self.classes[block], self.weights[block]) for block in blocks)
        return _evaluation(parts, weights, self.mass)


# --- labelled rows that are read block by block in NumPy, which needs no compiler


class Plain(Passing):
    """Labelled rows that are read block by block in NumPy."""

    def held(self) -> Held:
        """Return the same rows with their features kept in memory."""
        labels = np.zeros((self.source.rows, self.classes))
        labels[np.arange(self.source.rows), self.labels] = 1.0 if self.weights is None else self.weights
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
        scratch, products = Scratch(), has_products(family)
        total: np.ndarray | None = None
        cells = np.zeros((self.classes, family.size - family.dense_size))
        size = block_rows(1 + family.continuous if products else family.dense_size, SUMMED_ROWS)
        for block, labels, row_weights in self.blocks(size, fast=False):
            weights = None if self.weights is None else row_weights
            if products:
                upper, lower = split_products(block, labels, weights, self.classes, scratch)
            elif weights is None and has_moments(family):
                upper, lower = split_moments(block, labels, self.classes, scratch)
            else:
                features = dense_features(family, block, scratch)
                if weights is not None:
                    features *= weights
                of_class = np.equal.outer(np.arange(self.classes, dtype=labels.dtype), labels).astype(
                    np.float64
                )
                largest = None if weights is not None else bounds(family, block.clip)
                upper, lower = split_sums(features, of_class, scratch, largest)
            if total is None:
                total, rounding_errors = upper, lower
            else:
                before, total = total, total + upper
                added = total - before
                rounding_errors += (before - (total - added)) + (upper - added) + lower
            if cells.size:
                add_entries(family, block, labels, weights, cells)
        dense = np.zeros((self.classes, family.dense_size)) if total is None else total + rounding_errors
        return np.concatenate([dense, cells], axis=1)

    def evaluate(self, weights: np.ndarray) -> Evaluated:
        """Return R = (Y − P)ᵀΦ and the losses of the model W."""
        if not self.family.linear:
            return self._scored(weights)
        blocks = self.blocks(block_rows(self.family.size), fast=False)
        parts = ((all_features(self.family, block), *labels) for block, *labels in blocks)
        return _evaluation(parts, weights, self.mass)

    def _scored(self, weights: np.ndarray) -> Evaluated:
        """Return R and the losses of the model W of a family whose log joint is not linear in φ."""
        scores = self.family.scorer(weights)
        residual, losses = np.zeros(weights.shape), np.zeros(3)
        for block, labels, row_weights in self.blocks(BLOCK_ROWS, fast=False):
            rows = block.rows()
            logits = np.ascontiguousarray(scores(rows).T)
            losses += residuals(logits, labels, row_weights)
            residual += (self.family.sparse(rows).T @ logits.T).T
        return Evaluated(residual, *(losses / self.mass).tolist())


# --- labelled rows that are read block by block by the kernels


class Streamed(Passing):
    """Labelled rows that are read block by block by the kernels."""

    def statistics(self) -> np.ndarray:
        """Return S = YᵀΦ: [C, K]."""
        family = self.family
        if not family.cardinalities and self.source.rows * family.continuous <= infer.LARGE_NUMBERS:
            return self._products()
        from peerbayes.model.kernels import block_loops

        add: Any = None if family.kernels is None else getattr(block_loops, family.kernels[1])
        size = block_rows(family.dense_size) if add is None else LONG_BLOCK_ROWS
        expand = expander(family, size) if add is None else None
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

    def _products(self) -> np.ndarray:
        """Return S of numbers alone by matrix products, which need no kernel: [C, K]."""
        scratch, stats = Scratch(), np.zeros((self.classes, self.family.size))
        size = logits_rows(self.family, 1, relative=False)
        for block, labels, weights in self.blocks(size, fast=False):
            if has_products(self.family):
                add_products(block, labels, weights, scratch, stats)
            else:
                of_class = core.one_hot(labels, self.classes)
                of_class *= weights[:, None]
                stats += of_class.T @ dense_features(self.family, block, scratch).T
        return stats

    def evaluate(self, weights: np.ndarray) -> Evaluated:
        """Return R = (Y − P)ᵀΦ and the losses of the model W."""
        from peerbayes.model.kernels import block_loops

        if is_fused(self.family, self.source.rows):
            return self._fused(weights)
        family, size = self.family, block_rows(self.family.dense_size)
        features_of, logits_of = expander(family, size), fast_products(family, weights, size)
        residual = np.zeros((self.classes, family.dense_size))
        cells = np.zeros((sum(family.cardinalities), self.classes))
        product = np.empty_like(residual)
        best = np.empty(size, dtype=np.int64)
        losses = np.zeros(3)
        for block, labels, row_weights in self.blocks(size, fast=True):
            features = features_of(block)
            logits = logits_of(block, features)
            losses += block_loops.residuals(logits, best[: labels.size], labels, row_weights)
            residual += np.dot(logits, features.T, out=product)
            if family.cardinalities:
                block_loops.scatter_cells(block.codes, family.offsets, logits, cells)
        return Evaluated(np.concatenate([residual, cells.T], axis=1), *(losses / self.mass).tolist())

    def _fused(self, weights: np.ndarray) -> Evaluated:
        """Return R and the losses of the model W of naive Bayes, without φ."""
        from peerbayes.model.kernels.naive_bayes_pass import Sums

        sums = Sums(weights, self.family.continuous, self.family.offsets)
        for block, labels, row_weights in self.blocks(LONG_BLOCK_ROWS, fast=True):
            sums.add(tuple(block), labels, row_weights)
        return Evaluated(sums.residual(), *(sums.losses / self.mass).tolist())


# --- labelled rows of a Bayesian network: their few entries that are not zero are gathered by the kernels


class Gathered(Plain):
    """Labelled rows of a Bayesian network, of which the kernels know the entries that are not zero."""

    family: BayesNet

    def evaluate(self, weights: np.ndarray) -> Evaluated:
        """Return R = (Y − P)ᵀΦ and the losses of the model W."""
        from peerbayes.model.kernels import bayes_nets

        return self._evaluated(bayes_nets.padded(self.family, weights))

    def weights_at(self, stats: np.ndarray) -> np.ndarray:
        """Return W = θ(S): [C, K]."""
        from peerbayes.model.kernels import bayes_nets

        return bayes_nets.weights_of(self.family, stats)

    def evaluate_at(self, stats: np.ndarray) -> Evaluated:
        """Return R = (Y − P)ᵀΦ and the losses of the model θ(S)."""
        from peerbayes.model.kernels import bayes_nets

        return self._evaluated(bayes_nets.theta(self.family, stats))

    def _evaluated(self, weights: np.ndarray) -> Evaluated:
        """Return R and the losses of the model W in the layout of the kernels: [K + spare, P]."""
        from peerbayes.model.kernels import bayes_nets

        changes, losses = bayes_nets.zeros(*weights.shape), np.zeros(3)
        for block, labels, row_weights in self.blocks(BLOCK_ROWS, fast=True):
            losses += bayes_nets.add_residual(
                tuple(block), labels, row_weights, tuple(self.family.program), weights, changes
            )
        residual = np.empty((self.classes, self.family.size))
        bayes_nets.transpose(changes, residual)
        return Evaluated(residual, *(losses / self.mass).tolist())


# --- labelled rows of averaged one-dependence estimators, by their codes


class Averaged(Plain):
    """Labelled rows of averaged one-dependence estimators, whose kernel knows them by their codes."""

    family: Aode

    def evaluate(self, weights: np.ndarray) -> Evaluated:
        """Return R = (Y − P)ᵀΦ and the losses of the model W."""
        from peerbayes.model.kernels import averages, block_loops

        tables = self.family.tables(weights)
        changes, losses = np.zeros(weights.shape[::-1]), np.zeros(3)
        best = np.empty(BLOCK_ROWS, dtype=np.int64)
        for block, labels, row_weights in self.blocks(BLOCK_ROWS, fast=True):
            codes = self.family.known(block.codes, tables.seen)
            logits = averages.transposed_joint(self.family, tables, codes)
            losses += block_loops.residuals(logits, best[: labels.size], labels, row_weights)
            averages.add_residual(self.family, block.codes, logits, changes)
        return Evaluated(np.ascontiguousarray(changes.T), *(losses / self.mass).tolist())


Data = Held | Plain | Streamed


# --- labelled rows, some of which have missing values or no label


@dataclass(frozen=True, eq=False)
class IncompleteData:
    """Rows, some of which have missing values or no label. W is an argument of every computation."""

    family: Family
    complete_data: Data | None
    """Labelled rows without missing values."""
    incomplete: Completion
    labels: np.ndarray  # [n, C] one-hot times weight, of the labelled rows with gaps
    unlabelled: Completion
    unlabelled_weights: np.ndarray  # [u] of the rows without a label
    column_sums: np.ndarray  # [C, M] sums of each column by itself, over all labelled rows

    @property
    def mass(self) -> float:
        """The total weight of all rows."""
        return self.labelled_mass + float(self.unlabelled_weights.sum())

    @property
    def labelled_mass(self) -> float:
        """The total weight of the labelled rows."""
        return (0.0 if self.complete_data is None else self.complete_data.mass) + float(self.labels.sum())

    def evaluate(self, weights: np.ndarray) -> Evaluated:
        """Return R_c = Σ (y_c − p(c | x_obs)) Φ̃_c and the losses of W on the labelled rows."""
        residual, joint = self.incomplete.residual(weights, self.labels)
        best = core.one_hot(joint.argmax(axis=1), len(weights))
        lost = (1.0 - core.softmax(joint), 1.0 - best, -core.log_softmax(joint))
        losses = np.array([np.sum(self.labels * of_class) for of_class in lost])
        if self.complete_data is not None:
            of_complete, mass = self.complete_data.evaluate(weights), self.complete_data.mass
            residual += of_complete.residual
            losses += mass * np.array(of_complete[1:])
        return Evaluated(residual, *(losses / self.labelled_mass).tolist())

    def expected(self, weights: np.ndarray, complete: np.ndarray) -> tuple[np.ndarray, float]:
        """Return Σ_n y_n Φ̃ of all rows [C, K], and their log likelihood; `complete`: S of the complete rows."""
        stats, log_likelihood = self.incomplete.statistics(weights, self.labels)
        stats, log_likelihood = stats + complete, log_likelihood + float(np.sum(complete * weights))
        if self.unlabelled_weights.size:
            joint = self.unlabelled.log_joint(weights)
            credit = self.unlabelled_weights[:, None] * core.softmax(joint)
            stats = stats + self.unlabelled.statistics(weights, credit)[0]
            top = joint.max(axis=1)
            summed = top + np.log(np.exp(joint - top[:, None]).sum(axis=1))
            log_likelihood += float(self.unlabelled_weights @ summed)
        return stats, log_likelihood

    def complete_statistics(self) -> np.ndarray:
        """Return S of the labelled rows without missing values: [C, K]."""
        if self.complete_data is None:
            return np.zeros((self.labels.shape[1], self.family.size))
        return self.complete_data.statistics()


def labelled(
    family: Family,
    source: Source,
    labels: np.ndarray,
    classes: int,
    weights: np.ndarray | None = None,
    *,
    missing: bool = False,
    once: bool = False,
) -> Data | IncompleteData:
    """Return rows with class indices [n], negative without a label, in the form that suits one pass.

    missing  whether values may be missing that φ cannot represent
    once     whether the statistics of complete rows are all that is wanted: their features are then not held
    """
    unlabelled = labels < 0
    some_unlabelled = bool(unlabelled.any())
    if some_unlabelled and not family.linear:
        raise NotSupported(
            f"{family.name} learns from labelled rows alone; leave out the {int(unlabelled.sum()):,} others"
        )
    if missing or some_unlabelled:
        rows = all_rows(source)
        incomplete = family.incomplete(rows) & ~unlabelled
    if not (some_unlabelled or (missing and incomplete.any())):
        if is_large(family, source.rows):
            return Streamed(family, source, labels, classes, weights)
        plain = Plain(family, source, labels, classes, weights)
        held = family.linear and not once and source.rows <= block_rows(family.size)
        return plain.held() if held else plain

    def select(selected: np.ndarray) -> Rows:
        return Rows(rows.values[selected], rows.codes[selected])

    row_weights = np.ones(len(labels)) if weights is None else weights
    credit = core.one_hot(labels, classes) * row_weights[:, None]
    full = ~(incomplete | unlabelled)
    complete_data = None
    if full.any():
        subset = Encoded(source.schema, select(full))
        subset_weights = None if weights is None else weights[full]
        complete_data = labelled(family, subset, labels[full], classes, subset_weights)
    names = columns_of(source.schema)
    return IncompleteData(
        family,
        complete_data,  # type: ignore[arg-type]
        complete(family, select(incomplete), names, np.flatnonzero(incomplete)),
        credit[incomplete],
        complete(family, select(unlabelled), names, np.flatnonzero(unlabelled)),
        row_weights[unlabelled],
        apart(family, select(~unlabelled), credit[~unlabelled]),
    )
