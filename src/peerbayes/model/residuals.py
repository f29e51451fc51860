"""Residuals: what rows would add to statistics. One interface, and the one place that chooses how R is computed.

    R_v(S_v) = (Y_v − P_v)ᵀΦ_v      P_v = softmax(Φ_v θ(S_v)ᵀ)      of every peer v

    scored      a family's own log joint of each peer's rows: where it is not linear in φ
    held        Φ of the rows in memory: an array, or sparse where most of it is zero; computed anew in every call, for
                a few peers at a time, where it is too large
    gathered    entries of φ that are not zero, by the kernels: Bayesian networks on one table
    streamed    blocks of rows by the kernels: Φ of a table is never held, that of a peer stays in cache
    fused       kernels that hold x and not Φ, for naive Bayes: on the processor, or on a GPU in float32
    completed   any of these for the complete rows, and R_c = Σ (y_c − p(c | x_obs)) Φ̃_c for those with missing values
    private     sums of clipped rows with noise: `privacy` brings its own

An estimator has the rows of one table and wants errors too; simulations, shards, real peers and the audit have the rows
of peers. All call `residual_of`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, Self, overload

import numpy as np
from array_api_compat import array_namespace
from scipy.sparse import csr_array

from peerbayes.data.table import Array
from peerbayes.model import core
from peerbayes.model.devices import NUMPY, Device
from peerbayes.model.families import Aode, BayesNet, Family, NaiveBayes, Rows
from peerbayes.model.families.base import beside, here
from peerbayes.model.missing import Completion, complete
from peerbayes.model.passes import (
    Averaged,
    Data,
    Evaluated,
    Gathered,
    IncompleteData,
    Plain,
    Streamed,
    scorer_of,
)
from peerbayes.model.sources import FUSED_ROWS, are_large, averages, gathers, is_held

# Multiplications of a run above which a kernel pays for being loaded (and, once on a machine, compiled).
FUSED_WORK = 1 << 30

# Entries of Φ up to which it is kept in memory: 256 MB of float64. Beyond, blocks of this size are computed in turn.
FEATURES_HELD = 1 << 25


class Residual(Protocol):
    """R(S): statistics [..., C, K] -> [..., C, K], a new array."""

    def __call__(self, stats: Array, /) -> Array: ...


@dataclass(frozen=True, eq=False)
class TableResidual:
    """R(S) of the labelled rows of a table, and the losses of the model of S on them."""

    family: Family
    data: Data | IncompleteData
    penalised: bool = True
    """Whether the penalty of the family counts: not on rows that are held out."""

    def __call__(self, stats: Array) -> Array:
        return self.evaluate(stats).residual

    def evaluate(self, stats: np.ndarray) -> Evaluated:
        """Return R(S) [C, K], and the soft error, the 0-1 error and the log loss of θ(S), from one pass."""
        if isinstance(self.data, Gathered):
            return self.data.evaluate_at(stats)
        return self.evaluate_weights(self.family.weights(stats))

    def evaluate_weights(self, weights: np.ndarray) -> Evaluated:
        """Return the same of the model W [C, K]; a penalty is part of the residual and of the log loss."""
        evaluated = self.data.evaluate(weights)
        penalty = self.family.penalty(weights) if self.penalised else None
        if penalty is None:
            return evaluated
        value, gradient = penalty
        return evaluated._replace(
            residual=evaluated.residual - self.data.mass * gradient,
            log_loss=evaluated.log_loss + float(value),
        )

    def weights(self, stats: np.ndarray) -> np.ndarray:
        """Return W = θ(S), by the kernels where the rows pass by them: [C, K]."""
        return self.data.weights_at(stats) if isinstance(self.data, Gathered) else self.family.weights(stats)


@dataclass(frozen=True, eq=False)
class PeerRows:
    """Encoded rows, one peer's after the other's."""

    family: Family
    rows: Rows  # [m, Dc], [m, Dd]
    labels: np.ndarray  # [m] class index
    row_weights: np.ndarray  # [m]
    sizes: np.ndarray  # [N] rows of each peer
    classes: int
    device: Device = NUMPY

    @property
    def peer_count(self) -> int:
        return self.sizes.size

    @cached_property
    def offsets(self) -> np.ndarray:
        """Start of each peer's rows, and the end of the last one's: [N + 1]."""
        return np.concatenate([[0], np.cumsum(self.sizes)])

    @property
    def slices(self) -> list[slice]:
        """The rows of each peer."""
        return [slice(begin, end) for begin, end in zip(self.offsets[:-1], self.offsets[1:], strict=True)]

    @cached_property
    def masses(self) -> np.ndarray:
        """The weight of each peer's rows: [N]."""
        owner = np.repeat(np.arange(self.peer_count), self.sizes)
        return np.bincount(owner, self.row_weights, minlength=self.peer_count)

    def select(self, indices: Any) -> Rows:
        """Return some of the rows."""
        return Rows(self.rows.values[indices], self.rows.codes[indices])

    @cached_property
    def one_hot(self) -> np.ndarray:
        """Y, one-hot labels times the rows' weights: [m, C]."""
        return core.one_hot(self.labels, self.classes) * self.row_weights[:, None]

    @cached_property
    def incomplete(self) -> np.ndarray:
        """Which rows have missing values that φ cannot represent: [m]."""
        return self.family.incomplete(self.rows)

    @cached_property
    def complete(self) -> Self:
        """The complete rows alone."""
        if not self.incomplete.any():
            return self
        full = ~self.incomplete
        owner = np.repeat(np.arange(self.peer_count), self.sizes)
        return replace(
            self, rows=self.select(full), labels=self.labels[full], row_weights=self.row_weights[full],
            sizes=np.bincount(owner[full], minlength=self.peer_count),
        )  # fmt: skip

    @cached_property
    def gaps(self) -> dict[int, tuple[Completion, np.ndarray]]:
        """The incomplete rows of each peer that has any, and their Y."""
        completions = {}
        for peer, local in enumerate(self.slices):
            rows = local.start + np.flatnonzero(self.incomplete[local])
            if rows.size:
                completions[peer] = complete(self.family, self.select(rows), numbers=rows), self.one_hot[rows]
        return completions

    # --- Φ ---------------------------------------------------------------------------------------------

    @property
    def peers_at_once(self) -> int:
        """The number of peers whose Φ is held at a time."""
        return max(1, FEATURES_HELD // max(1, int(self.sizes.max()) * self.family.size))

    def blocks(self, device: Device = NUMPY) -> Iterator[tuple[slice, Array, Array]]:
        """Yield blocks of peers, their Φ [b, n, K] and Y [b, n, C]; a zero row is padding."""
        for first in range(0, self.peer_count, self.peers_at_once):
            peers = slice(first, min(first + self.peers_at_once, self.peer_count))
            local = slice(self.offsets[peers.start], self.offsets[peers.stop])
            sizes = self.sizes[peers]
            peer = np.repeat(np.arange(sizes.size), sizes)
            row_index = np.arange(local.start, local.stop) - self.offsets[first + peer]
            features = np.zeros((sizes.size, int(sizes.max()), self.family.size))
            features[peer, row_index] = self.family.features(self.select(local))
            labels = np.zeros((sizes.size, int(sizes.max()), self.classes))
            labels[peer, row_index, self.labels[local]] = self.row_weights[local]
            yield peers, device.put(features), device.put(labels)

    @cached_property
    def kept_blocks(self) -> list[tuple[slice, Array, Array]]:
        """All blocks on the device, kept in memory."""
        return list(self.blocks(self.device))

    @cached_property
    def diagonal(self) -> csr_array:
        """Φ of all peers as a sparse matrix, each peer in its own columns: [m, N·K]."""
        features = self.family.sparse(self.rows)
        entries = np.diff(features.indptr)
        first = np.repeat(np.repeat(np.arange(self.peer_count) * self.family.size, self.sizes), entries)
        shape = (features.shape[0], self.peer_count * self.family.size)
        return csr_array((features.data, features.indices + first, features.indptr), shape=shape)

    def sparse_sums(self, credit: np.ndarray) -> np.ndarray:
        """Return CᵀΦ of every peer by one product with the sparse Φ of all: [m, C] -> [N, C, K]."""
        stacked = self.diagonal.T @ credit
        return np.swapaxes(stacked.reshape(self.peer_count, self.family.size, self.classes), 1, 2)


# --- the choice


@overload
def residual_of(rows: Data | IncompleteData, family: Family, passes: int) -> TableResidual: ...
@overload
def residual_of(
    rows: PeerRows, family: Family, passes: int, steps: int = 1, of_weights: bool = False, raw: bool = False
) -> Residual: ...
def residual_of(
    rows: PeerRows | Data | IncompleteData,
    family: Family,
    passes: int,
    steps: int = 1,
    of_weights: bool = False,
    raw: bool = False,
) -> Residual:
    """Return R of these rows, computed in the way that suits their number, their missing values and their device.

    rows        of one table, or of peers
    passes      how many times R will be computed: whether a kernel pays
    steps       local iterations: R is S after them minus S before
    of_weights  S are natural weights W, and R is taken at them
    raw         R is the gradient itself: who uses it conditions the steps
    """
    if not isinstance(rows, PeerRows):
        return TableResidual(family, _for_passes(rows, passes))
    if rows.incomplete.any():
        return repeated(completed(rows, residual_of(rows.complete, family, passes), of_weights), steps)
    once = penalised(rows, _of_rows(rows, family, passes, of_weights), of_weights)
    return repeated(once if of_weights or raw else conditioned(rows, once), steps)


def _of_rows(rows: PeerRows, family: Family, passes: int, of_weights: bool) -> Residual:
    """Return R of complete rows of peers."""
    entries = rows.labels.size * family.size
    large = entries * rows.classes * passes > FUSED_WORK
    fused_residual = fused(rows) if large and not of_weights else None
    if fused_residual is not None:
        return fused_residual
    if of_weights and not family.linear:
        raise ValueError(
            f"the log joint of {family.name} is not linear in weights, and this strategy learns nothing else"
        )
    if not family.linear and rows.device == NUMPY:
        return scored(rows, passes)
    if rows.device != NUMPY:
        implementation = held
    elif family.wide:
        implementation = held_sparse
    else:
        implementation = streamed if large and entries <= FEATURES_HELD else held
    return implementation(rows, of_weights)


def _for_passes(data: Data | IncompleteData, passes: int) -> Data | IncompleteData:
    """Return the rows of a table in the form that suits the number of passes."""
    if isinstance(data, IncompleteData) and data.complete_data is not None:
        return replace(data, complete_data=_for_passes(data.complete_data, passes))  # type: ignore[arg-type]
    if not isinstance(data, Plain):
        return data
    if averages(data.family, data.source.rows, data.classes, passes):
        return _averaged(data)
    if gathers(data.family, data.source.rows, data.classes, passes):
        return _gathered(data)
    if are_large(data.family, data.source.rows, passes):
        return Streamed(data.family, data.source, data.labels, data.classes, data.weights)
    return data.held() if data.family.linear and is_held(data.family, data.source.rows) else data


def _gathered(data: Plain) -> Gathered:
    """Return the rows of a Bayesian network with their entries gathered."""
    assert isinstance(data.family, BayesNet)
    return Gathered(data.family, data.source, data.labels, data.classes, data.weights)


def _averaged(data: Plain) -> Averaged:
    """Return the rows of averaged one-dependence estimators by their codes."""
    assert isinstance(data.family, Aode)
    return Averaged(data.family, data.source, data.labels, data.classes, data.weights)


def residual_beside(first: TableResidual, rows: Data | IncompleteData, passes: int) -> TableResidual:
    """Return R of other rows of the same table: few of them are gathered, too, where the kernels are loaded anyway."""
    if isinstance(first.data, Gathered) and isinstance(rows, Plain):
        return TableResidual(first.family, _gathered(rows))
    if isinstance(first.data, Averaged) and isinstance(rows, Plain):
        return TableResidual(first.family, _averaged(rows))
    streams = isinstance(first.data, Streamed) and first.data.source.rows >= FUSED_ROWS
    if streams and isinstance(rows, Plain) and rows.family.plain_cells:  # blocks of Φ take more memory
        rows = Streamed(rows.family, rows.source, rows.labels, rows.classes, rows.weights)
    return replace(residual_of(rows, first.family, passes), penalised=False)


def penalised(rows: PeerRows, plain: Residual, of_weights: bool) -> Residual:
    """Return R less the gradient of the family's penalty, of which each row brings its share."""
    family = rows.family
    if family.penalty(np.zeros((1, family.size))) is None:
        return plain

    def residual(stats: Array) -> Array:
        penalty = family.penalty(stats if of_weights else family.weights(stats))
        assert penalty is not None
        return plain(stats) - beside(stats, rows.masses[:, None, None], stats.dtype) * penalty[1]

    return residual


def conditioned(rows: PeerRows, plain: Residual) -> Residual:
    """Return M·R, with which steps of a fixed size stay stable under a penalty: see `Family.conditioned`."""
    family = rows.family
    if family.penalty(np.zeros((1, family.size))) is None:
        return plain

    def residual(stats: Array) -> Array:
        values, change = here(stats), here(plain(stats))
        moved = [family.conditioned(*peer) for peer in zip(values, change, strict=True)]
        return beside(stats, np.stack(moved), stats.dtype)

    return residual


def repeated(once: Residual, steps: int) -> Residual:
    """Return the function S -> change of S by `steps` local iterations."""

    def residual(stats: Array) -> Array:
        moved = stats + once(stats)
        for _ in range(steps - 1):
            moved = moved + once(moved)
        return moved - stats

    return once if steps == 1 else residual


# --- the implementations for peers


def held(rows: PeerRows, of_weights: bool) -> Residual:
    """Return R by products with Φ, which is kept if it fits in memory, on any device."""
    family, keeps = rows.family, rows.peers_at_once >= rows.peer_count

    def residual(stats: Array) -> Array:
        changes = [
            core.residual(
                features,
                labels,
                stats[peers] if of_weights else family.weights(stats[peers]),
                family.log_joint,
            )
            for peers, features, labels in (rows.kept_blocks if keeps else rows.blocks(rows.device))
        ]
        return changes[0] if len(changes) == 1 else array_namespace(stats).concat(changes)

    return residual


def held_sparse(rows: PeerRows, of_weights: bool) -> Residual:
    """Return R by two products with one sparse matrix, whose blocks are the peers' Φ."""

    def residual(stats: Array) -> Array:
        weights = stats if of_weights else rows.family.weights(stats)
        transposed = np.swapaxes(weights, 1, 2).reshape(-1, rows.classes)  # [N·K, C]
        posterior = core.softmax(rows.diagonal @ transposed)
        return rows.sparse_sums(rows.one_hot - rows.row_weights[:, None] * posterior)

    return residual


def scored(rows: PeerRows, passes: int) -> Residual:
    """Return R of a family whose log joint is not linear in φ, peer by peer; sums by one sparse matrix."""
    family = rows.family
    fast = averages(family, rows.labels.size, rows.classes, passes)

    def residual(stats: Array) -> Array:
        weights = np.asarray(family.weights(stats))
        step = rows.one_hot.copy()
        for peer, local in enumerate(rows.slices):
            if local.stop > local.start:
                posterior = core.softmax(scorer_of(family, weights[peer], fast)(rows.select(local)))
                step[local] -= rows.row_weights[local, None] * posterior
        return rows.sparse_sums(step)

    return residual


def streamed(rows: PeerRows, of_weights: bool) -> Residual:
    """Return R, computed peer by peer while its numbers are in cache; a kernel computes the posterior in place."""
    from peerbayes.model.kernels import block_loops, peers

    family = rows.family
    theta = peers.line_weights(family) if peers.has_lines_only(family) else family.weights
    features = family.features(rows.rows)
    labels, row_weights = rows.labels.astype(np.int64), rows.row_weights.astype(np.float64)
    best = np.empty(int(rows.sizes.max()), dtype=np.int64)
    blocks = [
        (features[local], best[: local.stop - local.start], labels[local], row_weights[local])
        for local in rows.slices
    ]

    def residual(stats: Array) -> Array:
        weights = stats if of_weights else theta(stats)
        change = np.empty(weights.shape)
        for peer, (peer_features, *targets) in enumerate(blocks):
            logits = np.dot(weights[peer], peer_features.T)
            block_loops.residuals(logits, *targets)
            np.dot(logits, peer_features, out=change[peer])
        return change

    return residual


def fused(rows: PeerRows) -> Residual | None:
    """Return R by a fused kernel, or None where the family or the device has none."""
    family, device = rows.family, rows.device
    if not isinstance(family, NaiveBayes):
        return None
    encoded = Rows(rows.rows.values.astype(device.precision, copy=False), rows.rows.codes)
    arguments = (family, encoded, rows.labels, rows.row_weights, rows.offsets, rows.classes)
    if device.name is None:
        from peerbayes.model.kernels import peers

        return peers.FusedPeers(*arguments).residual if peers.supports(family) else None
    if device.fuses:
        from peerbayes.model.kernels import peers_gpu

        if peers_gpu.supports(family, rows.classes):
            return peers_gpu.FusedPeers(*arguments, device=device.name).residual
    return None


def completed(rows: PeerRows, of_complete: Residual, of_weights: bool) -> Residual:
    """Return R of all rows: that of the complete ones, and Σ (y_c − p(c | x_obs)) Φ̃_c of the others, peer by peer."""
    if of_weights:
        raise ValueError(
            "values are missing, and a strategy that learns weights has no model to complete them"
        )
    if rows.device != NUMPY:
        raise ValueError(
            "values are missing, and are completed in NumPy and float64 only; leave out device and dtype, use "
            "family='naive-bayes', or fill them in first"
        )

    def residual(stats: Array) -> Array:
        change, weights = of_complete(stats), rows.family.weights(stats)
        for peer, (completion, labels) in rows.gaps.items():
            change[peer] += completion.residual(weights[peer], labels)[0]
        return change

    return residual
