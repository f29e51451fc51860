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

    def __init__(self, plan: Plan, schema: Schema, place: Place) -> None:
        self._plan, self._schema, self._place = plan, schema, place

    def load(self, source: RowsOf | tuple[Any, Any]) -> bool:
        """Its peers' rows; whether a continuous value is missing. Not in the constructor, whose errors end an actor."""
        plan, schema = self._plan, self._schema
        X, y = source(plan.peers) if callable(source) else source
        # Copies: what comes out of Ray's store cannot be written to, and kernels are compiled for arrays that can.
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

    def drawn(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Encoded rows at these positions, and their labels."""
        return self._rows.values[positions], self._rows.codes[positions], self._labels[positions]

    def settle(self, family: Family, row_weight: np.ndarray, squares: bool) -> float:
        """The family, and the weight of a row of each peer [n]; gives Σ‖φ‖² where asked."""
        weights = np.repeat(row_weight, self._plan.sizes)
        sizes = np.array(self._plan.sizes)
        self._held = Holdings(
            family, self._rows, self._labels, weights, sizes, len(self._schema.classes), self._place
        )
        return self._held.mean_square() * float(weights.sum()) if squares else 0.0

    def begin(self, strategy: Strategy, start: np.ndarray | None, work: int, steps: int) -> list[Any]:
        """From S⁰ [C, K], or from each peer's own YᵀΦ; `work` are the rounds that decide whether a kernel pays."""
        peers = self._plan.peers.size
        whole = self._held.statistics() if start is None else np.tile(start, (peers, 1, 1))
        self._strategy = strategy
        self._residual = self._held.residual(work, steps, strategy.of_weights)
        self._state = strategy.begin(self._place.put(whole), self._residual)
        return self._out()

    def advance(self, *halos: np.ndarray) -> list[Any]:
        """One round, with the halos of the shards it hears."""
        self._state = self._strategy.step(self._state, self._mixed(halos), self._residual)
        return self._out()

    def _out(self) -> list[Any]:
        """Bytes of a message, and the halo for each shard that needs one."""
        self._message = self._strategy.message(self._state)
        return [int(self._message[0].nbytes), *(self._message[some] for some in self._plan.sends.values())]

    def _mixed(self, halos: Sequence[np.ndarray]) -> np.ndarray:
        """Σ_u a_vu message_u of each peer: [n, …]."""
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
        """Σ_v S_v over its peers: [C, K]."""
        return self._strategy.read(self._state).sum(axis=0)

    def judge_on(self, train: tuple[Rows, np.ndarray], test: tuple[Rows, np.ndarray] | None) -> None:
        """The rows that peers are judged on, encoded, and their labels."""
        self._train = self._sample(*train)
        self._test = None if test is None else self._sample(*test)

    def _sample(self, rows: Rows, labels: np.ndarray) -> metrics.Sample:
        own = Rows(np.array(rows.values), np.array(rows.codes))
        return metrics.Sample(self._held.family, own, np.array(labels), self._place)

    def judged(self, mean: np.ndarray) -> np.ndarray:
        """As `simulate` judges, against the mean over the peers of all shards: [5, n]."""
        stats = self._strategy.read(self._state)
        of_weights, family = self._strategy.of_weights, self._held.family
        return metrics.judged(stats, mean, of_weights, family, self._train, self._test)

    def stats(self, places: np.ndarray) -> np.ndarray:
        """What these of its peers have learnt: [k, C, K]."""
        return np.asarray(self._strategy.read(self._state)[places], dtype=np.float64)
