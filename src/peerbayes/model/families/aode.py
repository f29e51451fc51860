"""Averaged one-dependence estimators (AODE): the mean of as many networks as there are columns.

In network i every column depends on the class and on column i, the *super-parent*; all columns are discrete:

    p(x, c) = Σ_i w_i p(c) p(x_i | c) Π_{j≠i} p(x_j | x_i, c) / Σ_i w_i

w_i = 1 (plain), or the mutual information I(X_i; C) (weighted). The tables need counts of single values and of pairs,

    φ(x) = [ 1 | one-hots of each column | one-hots of the pairs of values of every two columns i < j ]

so that S = YᵀΦ adds over rows and peers, and W = θ(S) holds the logarithms of the tables:

    W_c = [ log p(c) | log w_i p(c) p(x_i | c) | log p(x_i, x_j | c) ]

The log joint is no longer linear in φ, but a log-sum-exp of D linear ones. p(x_j | x_i, c) is normalised within its own
pair table. A value that is missing, or that no row has, adds nothing: neither as a super-parent nor as a child. The
mean is over the super-parents that are left; where none is, p(x, c) = p(c).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from array_api_compat import array_namespace, device
from scipy.sparse import csr_array, issparse

from peerbayes.data.table import Array, Rows
from peerbayes.errors import SchemaError
from peerbayes.model.families.base import TINY, Counts, Family, Move, beside, here
from peerbayes.model.families.evidence import even_strengths

# A value has occurred if it has more than this share of all rows: less than a row of any table, more than rounding.
SEEN = 1e-9

# The least weight of a super-parent, in nats: where no column tells anything of the class, all weigh alike.
LEAST_WEIGHT = 1e-6

# The weight W of a value that no row has; real ones are above −200. Finite, as every weight must be.
LEFT_OUT = -1e6

# Logarithms of all super-parents that are held at a time: they stay in cache.
IN_CACHE = 1 << 17


class AodeParameters(NamedTuple):
    """θ(S) marginalised to each column."""

    log_prior: Array  # [..., C]
    mean: Array  # [..., C, 0]: no column is continuous
    variance: Array  # [..., C, 0]
    log_cells: Array  # [..., C, Σr] log p(x_j = k | c)


class Shape(NamedTuple):
    """Pair tables of one shape."""

    cells: np.ndarray  # [G, r_i, r_j] their cells, counted from the first pair cell


class Tables(NamedTuple):
    """W of one model, arranged for rows of codes; the last row of each table is for missing values."""

    log_prior: np.ndarray  # [C]
    singles: np.ndarray  # [Σr + 1, C] log w_i p(c) p(x_i | c) − Σ_j log p(x_i | c) of the table of i and j
    pairs: np.ndarray  # [pair cells + 1, C] log p(x_i, x_j | c)
    margins: np.ndarray  # [M, C] log p(x_i | c) within the table of i and j: see `margin_begins`
    log_shares: np.ndarray  # [D] log w_i
    seen: np.ndarray  # [Σr] whether a row has the value


@dataclass(frozen=True, kw_only=True)
class Aode(Family):
    """The mean of D networks, in each of which all columns depend on the class and one column."""

    name: ClassVar[str] = "aode"
    linear: ClassVar[bool] = False
    plain_cells: ClassVar[bool] = False
    takes: ClassVar[frozenset[str]] = frozenset({"cells"})
    calibrated_shrinkage: ClassVar[float] = 5.0

    shrinkage: float = 0.0
    """Rows of even cells added to every table of each class, as a share of all rows N."""
    weighted: bool = True
    """Whether a super-parent weighs as much as it tells of the class; if not, all weigh alike."""

    def __post_init__(self) -> None:
        if self.continuous:
            raise SchemaError(
                f"aode counts pairs of values, and {self.continuous} columns are continuous; expected discrete ones: "
                "kinds='binned' puts numbers into bins, kinds='discrete' counts every value as a category"
            )

    # --- layout of the features -----------------------------------------------------------------------

    @property
    def dense_size(self) -> int:
        return 1

    @cached_property
    def singles(self) -> int:
        """Σr, the number of cells of single columns."""
        return sum(self.cardinalities)

    @cached_property
    def first_pair(self) -> int:
        """The index in φ of the first pair cell."""
        return 1 + self.singles

    @cached_property
    def pairs(self) -> np.ndarray:
        """The columns i < j of every pair: [P, 2]."""
        return np.stack(np.triu_indices(len(self.cardinalities), 1), axis=1).astype(np.int64)

    @cached_property
    def pair_begins(self) -> np.ndarray:
        """Where the cells of each pair begin, counted from the first pair cell, and the last ones end: [P + 1]."""
        sizes = np.asarray(self.cardinalities, dtype=np.int64)
        return np.concatenate([[0], np.cumsum(sizes[self.pairs[:, 0]] * sizes[self.pairs[:, 1]])])

    @cached_property
    def size(self) -> int:
        return self.first_pair + int(self.pair_begins[-1])

    @property
    def filled(self) -> int:
        return 1 + len(self.cardinalities) + len(self.pairs)

    @cached_property
    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """The single cells of the two values of each pair cell, counted from the first one: two [pair cells]."""
        first, second = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for i, j in self.pairs:
            left, right = np.indices((self.cardinalities[i], self.cardinalities[j])).reshape(2, -1)
            first.append(self.offsets[i] + left)
            second.append(self.offsets[j] + right)
        return np.concatenate(first), np.concatenate(second)

    @cached_property
    def shapes(self) -> list[Shape]:
        """The pair tables, grouped by shape."""
        groups: dict[tuple[int, int], list[np.ndarray]] = {}
        for begin, (i, j) in zip(self.pair_begins, self.pairs, strict=False):
            shape = self.cardinalities[i], self.cardinalities[j]
            groups.setdefault(shape, []).append(begin + np.arange(math.prod(shape)).reshape(shape))
        return [Shape(np.stack(cells)) for cells in groups.values()]

    @cached_property
    def margins(self) -> tuple[np.ndarray, np.ndarray]:
        """The margins of each pair cell among those of all tables, that of its first and of its second value.

        Two [pair cells]. The margins are in the order of `shapes`: first values of all its tables, then second ones.
        """
        rows, columns = np.zeros((2, int(self.pair_begins[-1])), dtype=np.int64)
        begin = 0
        for (cells,) in self.shapes:
            tables, left, right = cells.shape
            rows[cells] = begin + np.arange(tables * left).reshape(tables, left, 1)
            begin += tables * left
            columns[cells] = begin + np.arange(tables * right).reshape(tables, 1, right)
            begin += tables * right
        return rows, columns

    @cached_property
    def margin_begins(self) -> np.ndarray:
        """Where the margins of column i in its table with column j begin: [D, D]; 0 for i = j."""
        begins = np.zeros((len(self.cardinalities),) * 2, dtype=np.int64)
        rows, columns = self.margins
        for begin, (i, j) in zip(self.pair_begins, self.pairs, strict=False):
            begins[i, j], begins[j, i] = rows[begin], columns[begin]
        return begins

    @cached_property
    def _margin_sums(self) -> csr_array:
        """The sum of the margins of each single cell over all tables of its column: [Σr, M] of zeros and ones."""
        cells = [
            self.offsets[i] + np.arange(self.cardinalities[i]) for i, _ in (*self.pairs, *self.pairs[:, ::-1])
        ]
        margins = [
            self.margin_begins[i, j] + np.arange(self.cardinalities[i])
            for i, j in (*self.pairs, *self.pairs[:, ::-1])
        ]
        owners = np.concatenate([np.zeros(0, np.int64), *cells])
        indices = np.concatenate([np.zeros(0, np.int64), *margins])
        return csr_array((np.ones(indices.size), (owners, indices)), shape=(self.singles, indices.size))

    def tabled(self) -> list[tuple[slice, tuple[int, ...]]]:
        begins = self.first_pair + self.pair_begins
        of_pairs = [
            (slice(int(begins[k]), int(begins[k + 1])), (int(i), int(j)))
            for k, (i, j) in enumerate(self.pairs)
        ]
        return [*super().tabled(), *of_pairs]

    # --- φ ---------------------------------------------------------------------------------------------

    def dense(self, values: Array) -> Array:
        xp = array_namespace(values)
        return xp.ones((*values.shape[:-1], 1), dtype=values.dtype, device=device(values))

    def incomplete(self, rows: Rows) -> np.ndarray:
        return np.zeros(rows.values.shape[:-1], dtype=bool)

    def entries(self, rows: Rows) -> tuple[np.ndarray, None]:
        codes = np.asarray(rows.codes).astype(np.int64)
        left, right = codes[..., self.pairs[:, 0]], codes[..., self.pairs[:, 1]]
        sizes = np.asarray(self.cardinalities, dtype=np.int64)[self.pairs[:, 1]]
        singles = np.where(codes < 0, self.size, codes + (1 + self.offsets))
        cells = left * sizes + right + (self.first_pair + self.pair_begins[:-1])
        return np.concatenate([singles, np.where((left < 0) | (right < 0), self.size, cells)], axis=-1), None

    def features(self, rows: Rows) -> Array:
        dense = self.dense(rows.values)
        xp = array_namespace(dense)
        indices, _ = self.entries(Rows(here(rows.values), here(rows.codes)))
        cells = np.zeros((*indices.shape[:-1], self.size))  # the last one is for missing values
        np.put_along_axis(cells, indices - 1, 1.0, axis=-1)
        return xp.concat([dense, beside(dense, cells[..., :-1], dense.dtype)], axis=-1)

    # --- θ ---------------------------------------------------------------------------------------------

    def weights(self, stats: Array) -> Array:
        xp = array_namespace(stats)
        counts = self.counts(stats)
        occurring, share = self._seen(counts)
        log_cells = self._single_logs(counts, share)
        of_columns = self._log_shares(counts, log_cells, occurring)
        column, _ = self._cells
        heads = log_cells + counts.log_prior[..., None]
        heads = heads + xp.take(of_columns, beside(stats, column), axis=-1)[..., None, :]
        heads = xp.where(occurring[..., None, :], heads, xp.full_like(heads, LEFT_OUT))
        pairs = xp.log(self._guarded_pairs(counts, share)) - xp.log(counts.classes)[..., None]
        return xp.concat([counts.log_prior[..., None], heads, pairs], axis=-1)

    def _seen(self, counts: Counts) -> tuple[Array, Array]:
        """Return which values rows have, and the even share of each such value in its column: two [..., Σr]."""
        xp = array_namespace(counts.stats)
        totals = xp.sum(counts.stats[..., 1 : self.first_pair], axis=-2)
        occurring = totals > SEEN * xp.sum(counts.classes, axis=-1, keepdims=True)
        column, _ = self._cells
        kinds = self._column_sums(xp.astype(occurring, counts.stats.dtype))
        kinds = xp.take(xp.clip(kinds, 1.0, None), beside(counts.stats, column), axis=-1)
        return occurring, xp.astype(occurring, counts.stats.dtype) / kinds

    def _column_sums(self, cells: Array) -> Array:
        """Return the sums over the cells of each column: [..., Σr] -> [..., D]."""
        xp = array_namespace(cells)
        if isinstance(cells, np.ndarray) and min(self.cardinalities, default=0) > 0:
            return np.add.reduceat(cells, self.offsets, axis=-1)
        ends = zip(self.offsets, self.cardinalities, strict=True)
        sums = [xp.sum(cells[..., int(begin) : int(begin) + size], axis=-1) for begin, size in ends]
        return xp.stack(sums, axis=-1) if sums else cells

    def _extra(self, counts: Counts) -> Array:
        """Return the rows of even cells that are added to each table: [..., 1]."""
        return self.shrinkage * array_namespace(counts.stats).sum(counts.classes, axis=-1, keepdims=True)

    def _guarded(self, counts: Counts, cells: Array, share: Array) -> Array:
        """Return counts of cells [..., C, cells] above their floor; `share`: in an even table, [..., cells]."""
        xp = array_namespace(cells)
        floor = xp.clip(counts.floor * share, TINY, None)[..., None, :]
        guarded = xp.maximum(cells, floor) + (self._extra(counts) * share)[..., None, :]
        return xp.where((share > 0)[..., None, :], guarded, xp.full_like(guarded, TINY))

    def _pair_share(self, counts: Counts, share: Array) -> Array:
        """Return the even share of each pair cell in its table: [..., Σr] -> [..., pair cells]."""
        xp = array_namespace(share)
        first, second = (beside(share, end) for end in self.ends)
        return xp.take(share, first, axis=-1) * xp.take(share, second, axis=-1)

    def _guarded_pairs(self, counts: Counts, share: Array) -> Array:
        """Return the guarded counts of the pair cells: [..., C, pair cells]."""
        return self._guarded(counts, counts.stats[..., self.first_pair :], self._pair_share(counts, share))

    def _single_logs(self, counts: Counts, share: Array) -> Array:
        """Return log p(x_j = k | c), normalised within each column: [..., C, Σr]."""
        xp = array_namespace(share)
        cells = self._guarded(counts, counts.stats[..., 1 : self.first_pair], share)
        column, _ = self._cells
        totals = xp.log(self._column_sums(cells))
        return xp.log(cells) - xp.take(totals, beside(share, column), axis=-1)

    def _log_shares(self, counts: Counts, log_cells: Array, seen: Array) -> Array:
        """Return log w_i, which add up to one: [..., D]."""
        xp = array_namespace(log_cells)
        columns = len(self.cardinalities)
        if not self.weighted or not columns:
            return xp.full_like(log_cells[..., 0, :1], -math.log(max(columns, 1))) + xp.zeros(
                (columns,), dtype=log_cells.dtype, device=device(log_cells)
            )
        classes = counts.classes / xp.sum(counts.classes, axis=-1, keepdims=True)
        joint = xp.exp(log_cells) * classes[..., None]
        marginal = xp.log(xp.clip(xp.sum(joint, axis=-2, keepdims=True), TINY, None))
        information = self._column_sums(xp.sum(joint * (log_cells - marginal), axis=-2))
        weights = xp.clip(information, LEAST_WEIGHT, None)
        return xp.log(weights) - xp.log(xp.sum(weights, axis=-1, keepdims=True))

    def floored(self, stats: Array) -> Array:
        xp = array_namespace(stats)
        counts = self.counts(stats)
        _, share = self._seen(counts)
        guarded = xp.sum(xp.astype(counts.stats[..., 0] < counts.floor, xp.int64), axis=-1)
        parts = (
            (counts.stats[..., 1 : self.first_pair], share),
            (counts.stats[..., self.first_pair :], self._pair_share(counts, share)),
        )
        for cells, even in parts:
            low = cells < xp.clip(counts.floor * even, TINY, None)[..., None, :]
            low = low & (even > 0)[..., None, :]
            guarded = guarded + xp.sum(xp.astype(low, xp.int64), axis=(-2, -1))
        return guarded

    # --- the log joint ---------------------------------------------------------------------------------

    def log_joint(self, features: Any, weights: Array) -> Array:
        """Return log p(x, c) = log Σ_i w_i p_i(x, c) − log Σ_i w_i: [..., n, K], [..., C, K] -> [..., n, C].

        By products with the features of each super-parent, on any device; from the codes where Φ is sparse.
        """
        if issparse(features):
            codes = self._codes_of(features.tocsr())  # type: ignore[attr-defined]
            return self.scorer(weights)(Rows(np.zeros((len(codes), 0)), codes))
        xp = array_namespace(features)
        head, pairs = weights[..., 1 : self.first_pair], weights[..., self.first_pair :]
        marginal = self._log_margins(pairs)
        given_first, given_second = (
            pairs - xp.take(marginal, beside(pairs, index), axis=-1) for index in self.margins
        )
        occurring = head[..., 0, :] > LEFT_OUT / 2  # [..., Σr]
        mask = xp.astype(occurring, weights.dtype)
        first, second = (xp.take(mask, beside(mask, end), axis=-1) for end in self.ends)
        both = (first * second)[..., None, :]
        given_first, given_second = given_first * both, given_second * both
        shares = self._shares_of(weights[..., 0], head)
        heads, present = [], []
        for i, (begin, size) in enumerate(zip(self.offsets, self.cardinalities, strict=True)):
            of_first, of_second = self._cells_with[i]
            own = slice(int(begin), int(begin) + size)
            one_hot = features[..., 1 + own.start : 1 + own.stop]
            value = one_hot @ head[..., own].mT
            for cells, conditional in ((of_first, given_first), (of_second, given_second)):
                index = beside(features, cells)
                of_pairs = xp.take(features[..., self.first_pair :], index, axis=-1)
                value = value + of_pairs @ xp.take(conditional, index, axis=-1).mT
            here_too = xp.sum(one_hot * mask[..., None, own], axis=-1) > 0.5  # [..., n]
            present.append(here_too)
            heads.append(xp.where(here_too[..., None], value, xp.full_like(value, LEFT_OUT)))
        of_prior = features[..., :1] @ weights[..., :1].mT
        if not heads:
            return of_prior
        heads, present = xp.stack(heads, axis=-1), xp.stack(present, axis=-1)
        shares = xp.where(present, shares[..., None, :], xp.full_like(heads[..., 0, :], LEFT_OUT))
        joint = _log_sum(heads) - _log_sum(shares)[..., None]
        return xp.where(xp.any(present, axis=-1)[..., None], joint, of_prior)

    @cached_property
    def _cells_with(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """The pair cells of each column as the first and as the second of a pair."""
        first, second = self.ends
        column, _ = self._cells
        return [
            (np.flatnonzero(column[first] == i), np.flatnonzero(column[second] == i))
            for i in range(len(self.cardinalities))
        ]

    def _log_margins(self, pairs: Array) -> Array:
        """Return log p(x_i | c) within pair tables, as `margins` orders them: [..., C, pair cells] -> [..., C, M]."""
        xp = array_namespace(pairs)
        sums = [pairs[..., :0]]
        for (cells,) in self.shapes:
            block = xp.take(pairs, beside(pairs, cells.reshape(-1)), axis=-1)
            block = xp.reshape(block, (*pairs.shape[:-1], *cells.shape))
            for axis, count in ((-1, cells.shape[1]), (-2, cells.shape[2])):
                margin = _log_sum(block, axis)
                sums.append(xp.reshape(margin, (*pairs.shape[:-1], cells.shape[0] * count)))
        return xp.concat(sums, axis=-1)

    def _shares_of(self, log_prior: Array, head: Array) -> Array:
        """Return log w_i of W, by its single cells: [..., C], [..., C, Σr] -> [..., D]."""
        xp = array_namespace(head)
        total = _log_sum(log_prior)
        shares = [
            _log_sum(_log_sum(head[..., int(begin) : int(begin) + size]))
            for begin, size in zip(self.offsets, self.cardinalities, strict=True)
        ]
        return xp.stack(shares, axis=-1) - total[..., None] if shares else head[..., 0, :]

    def _codes_of(self, features: csr_array) -> np.ndarray:
        """Return the codes of sparse features, −1 where a value is missing: [n, K] -> [n, D]."""
        codes = np.full((features.shape[0], len(self.cardinalities)), -1, dtype=np.int64)
        rows = np.repeat(np.arange(features.shape[0]), np.diff(features.indptr))
        single = (features.indices >= 1) & (features.indices < self.first_pair)
        column, level = self._cells
        cells = features.indices[single] - 1
        codes[rows[single], column[cells]] = level[cells]
        return codes

    def tables(self, weights: np.ndarray) -> Tables:
        """Return W [C, K] arranged for rows of codes."""
        head, pairs = weights[:, 1 : self.first_pair], weights[:, self.first_pair :]
        margins = np.ascontiguousarray(self._log_margins(pairs).T)
        singles = np.zeros((self.singles + 1, len(weights)))
        singles[:-1] = head.T - self._margin_sums @ margins
        pair_logs = np.zeros((pairs.shape[1] + 1, len(weights)))
        pair_logs[:-1] = pairs.T
        shares = np.asarray(self._shares_of(weights[:, 0], head))
        return Tables(
            np.ascontiguousarray(weights[:, 0]), singles, pair_logs, margins, shares, head[0] > LEFT_OUT / 2
        )

    def scorer(self, weights: np.ndarray) -> Callable[[Rows], np.ndarray]:
        """Return the function of rows to log p(x, c) [n, C] under W [C, K]. `kernels.averages` has its fast twin."""
        tables = self.tables(np.asarray(weights, dtype=np.float64))

        def joint(rows: Rows) -> np.ndarray:
            codes = self.known(np.asarray(rows.codes), tables.seen)
            out = np.empty((len(codes), len(tables.log_prior)))
            size = max(16, IN_CACHE // max(1, codes.shape[1] * out.shape[1]))
            for begin in range(0, len(codes), size):
                block = slice(begin, begin + size)
                out[block] = self._joint(tables, codes[block])
            return out

        return joint

    def known(self, codes: np.ndarray, seen: np.ndarray) -> np.ndarray:
        """Return codes with −1 for values that no row has: [n, D] -> [n, D]."""
        if not codes.size or (seen.all() and codes.dtype == np.int64):
            return codes
        return np.where((codes >= 0) & seen[np.maximum(codes, 0) + self.offsets], codes, -1).astype(np.int64)

    def heads(self, tables: Tables, codes: np.ndarray) -> np.ndarray:
        """Return log w_i p_i(x, c) of every super-parent, LEFT_OUT where it is missing: [D, n, C]."""
        missing = codes < 0
        heads = tables.singles[np.where(missing, self.singles, codes + self.offsets)].swapaxes(0, 1).copy()
        none = len(tables.pairs) - 1
        for begin, (i, j) in zip(self.pair_begins, self.pairs, strict=False):
            cells = begin + codes[:, i] * self.cardinalities[j] + codes[:, j]
            logs = tables.pairs[np.where(missing[:, i] | missing[:, j], none, cells)]
            heads[i] += logs
            heads[j] += logs
        if missing.any():
            for j in np.flatnonzero(missing.any(axis=0)):  # the margins of its tables were subtracted
                rows = np.flatnonzero(missing[:, j])
                for i in range(len(heads)):
                    heads[i, rows] += tables.margins[self.margin_begins[i, j] + np.maximum(codes[rows, i], 0)]
            heads[missing.T] = LEFT_OUT
        return heads

    def _joint(self, tables: Tables, codes: np.ndarray) -> np.ndarray:
        """Return log p(x, c) of rows of codes, −1 for a missing value: [n, D] -> [n, C]."""
        missing = codes < 0
        if not codes.shape[1]:
            return np.broadcast_to(tables.log_prior, (len(codes), len(tables.log_prior)))
        joint = np.asarray(_log_sum(self.heads(tables, codes), axis=0))
        joint -= _log_sum(np.where(missing, LEFT_OUT, tables.log_shares))[:, None]
        joint[missing.all(axis=1)] = tables.log_prior
        return joint

    # --- priors and units ------------------------------------------------------------------------------

    def uniform_moments(self) -> np.ndarray:
        return np.ones(1)

    def uniform(self, classes: int, mass: float = 1.0) -> np.ndarray:
        row = np.ones(self.size)
        for cells, _ in self.tabled():
            row[cells] = 1.0 / (cells.stop - cells.start)
        return np.tile(row * (mass / classes), (classes, 1))

    def estimated_prior(
        self, stats: np.ndarray, alpha: float | str, shrinkage: float | str | None
    ) -> np.ndarray:
        """Return `alpha` rows in every cell whose values occur; "auto": for each table by its evidence. [C, K].

        A value that no row has stays without any mass, so that θ leaves it out.
        """
        counts = self.counts(stats)
        _, share = self._seen(counts)
        even = np.concatenate([np.ones(1), share, self._pair_share(counts, share)])
        prior = np.zeros(stats.shape)
        if alpha != "auto":
            prior[:, 1:] = np.where(even > 0, alpha, 0.0)[1:]
            return prior
        slices = [cells for cells, _ in self.tabled()]
        table = np.repeat(np.arange(len(slices)), [cells.stop - cells.start for cells in slices])
        strengths = even_strengths(np.clip(stats[:, 1:], 0.0, None), even[1:], table, len(slices))
        prior[:, 1:] = strengths[table] * even[1:]
        return prior

    def moved(self, stats: np.ndarray, move: Move) -> tuple[Self, np.ndarray]:
        family = replace(self, cardinalities=move.cardinalities)
        values = np.zeros((len(stats), family.size))
        values[:, 0] = stats[:, 0]
        new_columns = {old: new for new, old in enumerate(move.columns) if old >= 0}
        for old, new in new_columns.items():
            begin = 1 + int(self.offsets[old])
            cells = stats[:, begin : begin + self.cardinalities[old]]
            values[:, 1 + int(family.offsets[new]) + move.levels[new]] = cells
        number = {(int(i), int(j)): k for k, (i, j) in enumerate(family.pairs)}
        for begin, (i, j) in zip(self.pair_begins, self.pairs, strict=False):
            if i not in new_columns or j not in new_columns:
                continue
            left, right = new_columns[i], new_columns[j]
            size = self.cardinalities[i], self.cardinalities[j]
            first = self.first_pair + int(begin)
            block = stats[:, first : first + math.prod(size)].reshape(-1, *size)
            if left > right:
                left, right, block = right, left, block.swapaxes(1, 2)
            start = family.first_pair + int(family.pair_begins[number[left, right]])
            index = move.levels[left][:, None] * family.cardinalities[right] + move.levels[right]
            values[:, start + index] = block
        return family, values

    # --- reading a model -------------------------------------------------------------------------------

    def parameters(self, stats: Array) -> AodeParameters:
        """Return the parameters of each column's marginal given the class, which is a mean over the networks:

        p(x_j | c) = Σ_i w_i Σ_{x_i} p(x_i | c) p(x_j | x_i, c)         in network j itself p(x_j | c)
        """
        xp = array_namespace(stats)
        counts = self.counts(stats)
        occurring, share = self._seen(counts)
        log_cells, none = self._single_logs(counts, share), stats[..., :0]
        if len(self.cardinalities) < 2:
            return AodeParameters(counts.log_prior, none, none, log_cells)
        column, _ = self._cells
        log_shares = self._log_shares(counts, log_cells, occurring)
        weighted = log_cells + xp.take(log_shares, beside(stats, column), axis=-1)[..., None, :]
        pairs = xp.log(self._guarded_pairs(counts, share))
        margins = self._log_margins(pairs)
        marginal = here(xp.exp(weighted))
        for parent, child, index in zip(self.ends, self.ends[::-1], self.margins, strict=True):
            given = pairs - xp.take(margins, beside(pairs, index), axis=-1)
            joint = here(xp.exp(xp.take(weighted, beside(weighted, parent), axis=-1) + given))
            onto = csr_array(
                (np.ones(child.size), (np.arange(child.size), child)), shape=(child.size, self.singles)
            )
            flat = joint.reshape(-1, child.size) @ onto
            marginal = marginal + flat.reshape(marginal.shape)
        return AodeParameters(
            counts.log_prior, none, none, beside(stats, np.log(np.maximum(marginal, TINY)), stats.dtype)
        )

    def contributions(self, stats: np.ndarray, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Column j: Σ_i ρ_i log p(x_j | x_i, c) + ρ_j log(w_j / ρ_j), ρ_i = w_i p_i(x, c) / Σ w_i p_i(x, c).

        ρ_i is how much the network of super-parent i says of the row, so that what all networks say of a column is
        averaged as they are, and the terms add up to log p(x, c); 0 for a missing value.
        """
        weights = np.asarray(self.weights(stats))
        tables = self.tables(weights)
        codes = self.known(np.asarray(rows.codes), tables.seen)
        terms = np.zeros((*codes.shape, len(weights)))  # [n, D, C]
        size = max(16, IN_CACHE // max(1, codes.shape[1] * len(weights)))
        for begin in range(0, len(codes), size):
            block = slice(begin, begin + size)
            terms[block] = self._contributions(tables, codes[block]).swapaxes(0, 1)
        return tables.log_prior, np.ascontiguousarray(terms.swapaxes(1, 2))

    def _contributions(self, tables: Tables, codes: np.ndarray) -> np.ndarray:
        """Return the terms of the columns for rows of codes: [n, D] -> [D, n, C]."""
        missing = codes < 0
        heads = self.heads(tables, codes)
        if not len(heads):
            return heads
        log_share = heads - _log_sum(heads, axis=0)  # log ρ_i
        share = np.where(missing.T[..., None], 0.0, np.exp(log_share))
        log_weights = np.where(missing, LEFT_OUT, tables.log_shares)
        log_weights = (log_weights - _log_sum(log_weights)[:, None]).T[..., None]
        own = tables.singles[np.where(missing, self.singles, codes + self.offsets)].swapaxes(0, 1)
        own = own - tables.log_prior - tables.log_shares[:, None, None]
        terms = np.where(share > 0, share * (own + log_weights - log_share), 0.0)
        for begin, (i, j) in zip(self.pair_begins, self.pairs, strict=False):
            present = ~(missing[:, i] | missing[:, j])
            cells = begin + codes[:, i] * self.cardinalities[j] + codes[:, j]
            logs = tables.pairs[np.where(present, cells, -1)]
            for parent, child in ((i, j), (j, i)):
                margin = tables.margins[self.margin_begins[parent, child] + np.maximum(codes[:, parent], 0)]
                weight = np.where(present[:, None], share[parent], 0.0)
                terms[child] += weight * (logs - margin)
                terms[parent] += share[parent] * margin  # which `singles` has subtracted
        return terms

    def sample(self, stats: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> Rows:
        """Draw the super-parent of each row by its weight, its value, and then the other columns given it."""
        weights = np.asarray(self.weights(stats))
        tables = self.tables(weights)
        codes = np.zeros((labels.size, len(self.cardinalities)), dtype=np.int32)
        counts = self.counts(stats)
        log_cells = np.asarray(self._single_logs(counts, self._seen(counts)[1]))
        parent = _drawn(rng, np.tile(np.exp(tables.log_shares), (labels.size, 1)))
        for i, (begin, size) in enumerate(zip(self.offsets, self.cardinalities, strict=True)):
            rows = np.flatnonzero(parent == i)
            codes[rows, i] = _drawn(rng, np.exp(log_cells[labels[rows], begin : begin + size]))
        for begin, (i, j) in zip(self.pair_begins, self.pairs, strict=False):
            shape = self.cardinalities[i], self.cardinalities[j]
            table = np.exp(tables.pairs[begin : begin + math.prod(shape)]).reshape(*shape, -1)
            for above, below, by in ((i, j, table), (j, i, table.swapaxes(0, 1))):
                rows = np.flatnonzero(parent == above)
                codes[rows, below] = _drawn(rng, by[codes[rows, above], :, labels[rows]])
        return Rows(np.zeros((labels.size, 0)), codes)


def _log_sum(logs: Array, axis: int = -1) -> Array:
    """Return log Σ exp over one axis, without overflow."""
    xp = array_namespace(logs)
    top = xp.max(logs, axis=axis, keepdims=True)
    return xp.squeeze(top, axis=axis) + xp.log(xp.sum(xp.exp(logs - top), axis=axis))


def _drawn(rng: np.random.Generator, shares: np.ndarray) -> np.ndarray:
    """Draw an index for each row by its shares, which need not add up to one: [n, r] -> [n]."""
    cumulative = np.cumsum(shares, axis=1)
    draws = rng.random(len(shares)) * cumulative[:, -1]
    return np.minimum(np.sum(draws[:, None] >= cumulative, axis=1), shares.shape[1] - 1)
