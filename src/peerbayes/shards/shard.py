"""The peers of one shard: their rows, their state, and one round at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from peerbayes import metrics
from peerbayes.families import Family, Rows
from peerbayes.holdings import Holdings
from peerbayes.inputs import encoded_labelled
from peerbayes.places import Place
from peerbayes.schema import Schema
from peerbayes.shards.cut import Plan
from peerbayes.strategies import Strategy

RowsOf = Callable[[np.ndarray], tuple[Any, Any]]


class Shard:
    """The peers of one plan: their rows, their state, and one round at a time."""

    def __init__(self, plan: Plan, schema: Schema, device: Place) -> None:
        self._plan, self._schema, self._device = plan, schema, device

    def load(self, source: RowsOf | tuple[Any, Any]) -> bool:
        """Load the peers' rows; return whether a continuous value is missing. Errors in a constructor end an actor."""
        plan, schema = self._plan, self._schema
        X, y = source(plan.peers) if callable(source) else source
        # Copies: arrays from Ray's store are read-only, and kernels are compiled for writable ones.
        rows, labels = encoded_labelled(schema, (X, y), "rows_of" if callable(source) else "X and schema")
        self._rows, self._labels = Rows(np.array(rows.values), np.array(rows.codes)), np.array(labels)
        if self._labels.size != plan.sizes.sum() or len(self._rows.values) != self._labels.size:
            raise ValueError(
                f"rows_of gave {len(self._rows.values)} rows and {self._labels.size} labels for {plan.peers.size} "
                f"peers that hold {plan.sizes.sum()}; expected rows_per_node of each, one peer's after the other's"
            )

        return bool(np.isnan(self._rows.values).any())

    def ready(self) -> bool:
        return True

    def rows_at(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return encoded rows at these positions, and their labels."""
        return self._rows.values[positions], self._rows.codes[positions], self._labels[positions]

    def configure(self, family: Family, row_weight: np.ndarray, squares: bool) -> float:
        """Set the family and the weight of a row of each peer [n]; return Σ‖φ‖² if `squares`."""
        weights = np.repeat(row_weight, self._plan.sizes)
        sizes = np.array(self._plan.sizes)
        self._local_rows = Holdings(
            family, self._rows, self._labels, weights, sizes, len(self._schema.classes), self._device
        )
        return self._local_rows.mean_square() * float(weights.sum()) if squares else 0.0

    def begin(self, strategy: Strategy, start: np.ndarray | None, work: int, steps: int) -> list[Any]:
        """Start from S⁰ [C, K], or from each peer's own YᵀΦ; `work`: rounds, which decide whether a kernel pays."""
        peers = self._plan.peers.size
        statistics = self._local_rows.statistics() if start is None else np.tile(start, (peers, 1, 1))
        self._strategy = strategy
        self._residual = self._local_rows.residual(work, steps, strategy.of_weights)
        self._state = strategy.begin(self._device.put(statistics), self._residual)
        return self._outgoing()

    def advance(self, *halos: np.ndarray) -> list[Any]:
        """Advance by one round, with the halos of the shards it hears."""
        self._state = self._strategy.step(self._state, self._mixed(halos), self._residual)
        return self._outgoing()

    def _outgoing(self) -> list[Any]:
        """Return the bytes of a message, and the halo for each shard that needs one."""
        self._message = self._strategy.message(self._state)
        return [int(self._message[0].nbytes), *(self._message[peers] for peers in self._plan.sends.values())]

    def _mixed(self, halos: Sequence[np.ndarray]) -> np.ndarray:
        """Return Σ_u a_vu message_u of each peer: [n, …]."""
        plan, message = self._plan, self._message
        if plan.inner is None or plan.outer is None:
            return message
        flat = message.reshape(len(message), -1)
        mixed = plan.inner @ flat
        if plan.border.size:
            around = np.concatenate([flat[plan.near], *(halo.reshape(len(halo), -1) for halo in halos)])
            mixed[plan.border] = plan.outer @ around
        return mixed.reshape(message.shape)

    def total(self) -> np.ndarray:
        """Return Σ_v S_v over its peers: [C, K]."""
        return self._strategy.read(self._state).sum(axis=0)

    def set_evaluation_rows(
        self, train: tuple[Rows, np.ndarray], test: tuple[Rows, np.ndarray] | None
    ) -> None:
        """Set the encoded rows that peers are evaluated on, and their labels."""
        self._train = self._sample(*train)
        self._test = None if test is None else self._sample(*test)

    def _sample(self, rows: Rows, labels: np.ndarray) -> metrics.Sample:
        copied = Rows(np.array(rows.values), np.array(rows.codes))
        return metrics.Sample(self._local_rows.family, copied, np.array(labels), self._device)

    def judged(self, mean: np.ndarray) -> np.ndarray:
        """Evaluate as `simulate` does, against the mean over the peers of all shards: [5, n]."""
        stats = self._strategy.read(self._state)
        of_weights, family = self._strategy.of_weights, self._local_rows.family
        return metrics.judged(stats, mean, of_weights, family, self._train, self._test)

    def stats(self, positions: np.ndarray) -> np.ndarray:
        """Return the statistics of these peers: [k, C, K]."""
        return np.asarray(self._strategy.read(self._state)[positions], dtype=np.float64)
