"""Differential privacy in a simulation: the scheme of its network, and R̃ of all peers at once.

The noise comes from the simulation's seed, so that it can be repeated, and therefore protects nobody. Real peers call
the same functions with the operating system's randomness.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from peerbayes.data.bins import edges_of_units
from peerbayes.data.schema import Schema
from peerbayes.data.table import Array, Table
from peerbayes.errors import SchemaError
from peerbayes.learning.local_rows import LocalRows
from peerbayes.model import core, layout
from peerbayes.model.families import Rows
from peerbayes.privacy import noise
from peerbayes.privacy.accounting import Privacy
from peerbayes.privacy.mechanism import squares, summed
from peerbayes.privacy.noise import LARGEST as WIDEST
from peerbayes.privacy.pair_tables import NoisyPairs, PairTables
from peerbayes.privacy.row_steps import RowSteps
from peerbayes.privacy.scheme import Scheme, scheme, structure_cost

# Separate streams of random numbers under one seed: noise of rounds, of links, of starts, of structures.
NOISE_STREAM, LINK_STREAM, START_STREAM, STRUCTURE_STREAM = 21, 22, 23, 24


def with_public_edges(schema: Schema, table: Table) -> Schema:
    """Return the schema with edges of binned columns as members would declare them, from mean and deviation alone.

    Like the units of other columns, these are measured on the rows, and assumed to be known to all.
    """
    positions = schema.places(table)
    columns = list(schema.columns)
    for j, column in enumerate(columns):
        if column.traits.needs_labels:
            raise SchemaError(
                f"column {column.name!r} is {column.kind!r}, whose edges lie where the classes of all rows change, and "
                "nothing hides that; expected the kind 'binned', or a schema with edges"
            )
        if column.traits.needs_edges:
            numbers = column.numbers(table.column(positions[j]))
            present = numbers[~np.isnan(numbers)]
            edges = edges_of_units(float(present.mean()), float(present.std())) if present.size else ()
            columns[j] = replace(column, edges=edges, low=None, high=None)
    return replace(schema, columns=tuple(columns))


def asked_pairs(terms: Privacy, family: str, declared: bool, schema: Schema) -> PairTables | None:
    """Return the release that the structure of a family is learned from; None: there is none.

    declared  whether the structure is; crosses that the schema has are declared too
    """
    crosses = layout.has_crosses(family)
    if declared or schema.crosses or not (crosses or family in layout.STRUCTURES):
        return None
    return PairTables.of(schema, crosses, structure_cost(terms))


def released_pairs(
    asked: PairTables, rows: Rows, labels: np.ndarray, sizes: np.ndarray, seed: int
) -> NoisyPairs:
    """Return the tables of all pairs of columns, from a release of every peer."""
    noise_of_all = asked.noise(sizes.size, np.random.default_rng([seed, STRUCTURE_STREAM]).bytes)
    return asked.opened(asked.sums(rows, labels) + noise_of_all.sum(axis=0), sizes.size)


def agreed(
    terms: Privacy,
    local_rows: LocalRows,
    rounds: int,
    lr: float,
    network: csr_array,
    start: str,
    bought_structure: bool = False,
) -> Scheme:
    """Return the scheme of a simulated network; refuse too few rows, and promises that cannot be kept."""
    few = np.flatnonzero(local_rows.sizes < terms.min_rows)
    if few.size:
        raise ValueError(
            f"privacy: peer {few[0]} has {local_rows.sizes[few[0]]} rows, fewer than min_rows = {terms.min_rows}. Give "
            "it more rows, or lower min_rows if you know what it means"
        )
    promised = scheme(
        terms, local_rows.family, local_rows.classes, float(local_rows.sizes.mean()), local_rows.peer_count, rounds, lr,
        network if terms.edge_noise else None, (local_rows.rows.codes >= 0).all(axis=0), start != "uniform",
        bought_structure=bought_structure,
    )  # fmt: skip
    widest = max(promised.mechanism.sigma, promised.edge_sigma, promised.start_sigma)
    if widest > WIDEST:
        raise ValueError(
            f"privacy: the noise would be {widest:.3g} steps of its grid wide; expected at most {WIDEST:.3g}. Use a "
            "larger epsilon, or a smaller clip or edge_noise"
        )
    return promised


class PrivateRows:
    """R̃_v(S_v) of all peers, one release per call: [N, C, K] -> [N, C, K]. Once the budget is spent, zeros."""

    def __init__(self, scheme: Scheme, local_rows: LocalRows, network: csr_array, seed: int) -> None:
        self.scheme, self.local_rows, self.network, self.seed = scheme, local_rows, network, seed
        self.calls = 0  # releases so far
        self._steps = [_steps_of(local_rows, rows) for rows in self._slices]
        self._moved = scheme.mechanism.rows(local_rows.family, local_rows.rows)
        self._lengths = squares(self._moved)

    def __call__(self, stats: Array) -> np.ndarray:
        round_index, self.calls = self.calls, self.calls + 1
        if not self.scheme.ledger.fits(round_index):
            return np.zeros(stats.shape)  # `exact` asks once more, for a message that is never sent
        mechanism = self.scheme.mechanism
        weights = np.asarray(self.local_rows.family.weights(stats))
        steps = [of_peer(peer_weights) for of_peer, peer_weights in zip(self._steps, weights, strict=True)]
        cut = mechanism.cut(np.concatenate(steps), self._moved, lengths=self._lengths)
        sums = np.stack([summed(cut[rows], self._moved[rows]) for rows in self._slices])
        sums += mechanism.noise(sums.shape, self._source(NOISE_STREAM, round_index))
        if self.scheme.edge_sigma:
            links = (self.network.nnz // 2, *sums.shape[1:])
            drawn = mechanism.noise(links, self._source(LINK_STREAM, round_index), self.scheme.edge_sigma)
            sums += noise.shared(drawn, self.network)
        return mechanism.opened(sums)

    def start(self, marginal: bool = False) -> np.ndarray:
        """Return noisy Y_vᵀΦ_v, or Σφ if `marginal`, of every peer: [N, C, K] or [N, 1, K]. Spends from the budget."""
        mechanism, clip = self.scheme.mechanism, self.scheme.start_clip
        labels = self.local_rows.labels
        steps = np.ones((len(labels), 1)) if marginal else core.one_hot(labels, self.local_rows.classes)
        sums = np.stack([mechanism.clipped(steps[rows], self._moved[rows], clip) for rows in self._slices])
        sums += mechanism.noise(sums.shape, self._source(START_STREAM, 0), self.scheme.start_sigma)
        return mechanism.opened(sums, classes=False)

    def spent(self) -> np.ndarray:
        """Return what each peer has spent so far, in the order of `SPENT`: [N, 5]."""
        released = min(self.calls, self.scheme.ledger.rounds)
        scheme = self.scheme
        figures = (scheme.sigma, released, scheme.ledger.spent(released), scheme.terms.delta, scheme.rho)
        return np.tile(np.array(figures, dtype=float), (self.local_rows.peer_count, 1))

    def _source(self, stream: int, round_index: int) -> Any:
        return np.random.default_rng([self.seed, stream, round_index]).bytes

    @property
    def _slices(self) -> list[slice]:
        ends = self.local_rows.offsets.tolist()
        return [slice(begin, end) for begin, end in itertools.pairwise(ends)]


def _steps_of(local_rows: LocalRows, block: slice) -> RowSteps:
    """Return the steps q of one peer's rows."""
    rows = Rows(local_rows.rows.values[block], local_rows.rows.codes[block])
    return RowSteps.of(local_rows.family, rows, local_rows.labels[block])
