"""The data that is shown of a run, finished or not: the peers' curves, their spread, the network, the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from peerbayes.data.schema import Schema
from peerbayes.learning.metrics import Outcome
from peerbayes.model.families import BayesNet, Family
from peerbayes.model.families.structures import Parents
from peerbayes.model.sources import columns_of
from peerbayes.model.statistics import Statistics
from peerbayes.simulation.result import COLUMNS, Run

# Figures shown of every peer and round.
CURVES = ("test_error", "train_error", "soft_error", "disagreement", "bytes")

# Figures over all peers: columns of `View.spread`.
LEVELS = ("mean", "least", "5 %", "25 %", "median", "75 %", "95 %", "most")

# The most peers times rounds whose curves are kept.
HELD = 1 << 20


@dataclass(frozen=True)
class Structure:
    """The dependencies between the columns of a Bayesian network, besides the class."""

    names: tuple[str, ...]
    """[D] names of the columns, continuous ones first."""
    continuous: int
    """Number of continuous columns."""
    parents: Parents
    """[D] the parents of each column, by number."""
    label: str
    """The name of the class."""

    @classmethod
    def of(cls, schema: Schema, family: Family) -> Structure | None:
        """Return the structure of a family with the columns of a schema; None if it is not a Bayesian network."""
        if not isinstance(family, BayesNet):
            return None
        return cls(tuple(columns_of(schema)), family.continuous, family.parents, schema.label)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Structure:
        """Return the structure from its fields, as JSON has them."""
        parents = tuple(tuple(map(int, column_parents)) for column_parents in fields["parents"])
        return cls(tuple(fields["names"]), int(fields["continuous"]), parents, str(fields["label"]))


@dataclass(frozen=True, eq=False)
class View:
    """T evaluated rounds of N peers, P of which have curves."""

    title: str
    configuration: dict[str, Any]
    made: dict[str, str]
    """When the run was made, and with which versions."""
    total: int
    """Total number of rounds."""
    round_index: int
    """Rounds done."""
    rounds: np.ndarray
    """[T] the evaluated rounds."""
    peers: np.ndarray
    """[P] numbers of the peers that have curves: all, or a sample."""
    curves: dict[str, np.ndarray]
    """[T, P] by name: see `CURVES`."""
    spread: dict[str, np.ndarray]
    """[T, 8] over all N peers by name, see `LEVELS`."""
    last: dict[str, np.ndarray]
    """[N] of every peer in the last evaluated round, by name."""
    sizes: np.ndarray
    """[N] rows of each peer."""
    links: np.ndarray
    """[E, 2] the links, each pair once."""
    names: tuple[str, ...] | None = None
    """[N] names of the peers; None: their numbers."""
    references: dict[str, float] = field(default_factory=dict)
    """Reference errors: train and test, of rc, ml and local."""
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    """Confusion matrix and reliability of "peers", "rc" and "ml"."""
    statistics: Statistics | None = None
    """The model to show; None: there is none yet, or it is not generative."""
    classes: tuple[Any, ...] = ()
    """Names of the classes; empty while a run goes on."""
    structure: Structure | None = None
    """The structure of a Bayesian network; None: the family is not one, or it is not known yet."""
    finished: bool = True

    @property
    def peer_count(self) -> int:
        return len(self.sizes)

    @property
    def error(self) -> str:
        """The name of the error curve: test, or training if there are no test rows."""
        tested = self.spread["test_error"]
        return "test_error" if len(tested) == 0 or np.isfinite(tested).any() else "train_error"

    @classmethod
    def of(cls, run: Run, title: str | None = None) -> View:
        """Return the view of a finished run; its model is that of the peer with the median error."""
        rounds = np.unique(run.records[:, 0]).astype(np.int64)
        peer_count = len(run.sizes)
        table = run.records.reshape(len(rounds), peer_count, len(COLUMNS))
        figures = {name: table[:, :, COLUMNS.index(name)] for name in CURVES}
        peers = sampled(peer_count, len(rounds))
        statistics = None if run.of_weights else run.statistics(median_peer(run))
        return cls(
            title if title is not None else str(run.configuration["strategy"]),
            run.configuration,
            run.made,
            int(run.configuration["rounds"]),
            int(rounds[-1]),
            rounds,
            peers,
            {name: values[:, peers] for name, values in figures.items()},
            {name: spread(values) for name, values in figures.items()},
            {name: values[-1] for name, values in figures.items()},
            run.sizes,
            run.links,
            None,
            run.references,
            run.outcomes,
            statistics,
            run.schema.classes,
            Structure.of(run.schema, run.layout),
        )


def sampled(peer_count: int, rounds: int, limit: int = HELD) -> np.ndarray:
    """Return the peers whose curves are kept: all, or every 2nd, 4th, 8th…, so that later samples are subsets."""
    peer_limit, step = max(1, limit // max(rounds, 1)), 1
    while -(-peer_count // step) > peer_limit:
        step *= 2
    return np.arange(0, peer_count, step)


def spread(values: np.ndarray) -> np.ndarray:
    """Return the mean, minimum, quantiles and maximum over peers: [T, N] -> [T, 8], see `LEVELS`.

    Peers that lied have no figures and do not count.
    """
    honest = ~np.isnan(values).all(axis=0)
    if honest.any():
        values = values[:, honest]
    quantiles = np.quantile(values, (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0), axis=1)
    return np.concatenate([values.mean(axis=1)[:, None], quantiles.T], axis=1)


def median_peer(run: Run) -> int:
    """Return the peer with the median error at the end, whose model is shown."""
    last = run.records[-len(run.sizes) :]
    errors = last[:, COLUMNS.index("test_error")]
    if not np.isfinite(errors).any():
        errors = last[:, COLUMNS.index("train_error")]
    return int(np.argsort(errors, kind="stable")[np.isfinite(errors).sum() // 2])


def titles(runs: Sequence[Run], names: Sequence[str]) -> list[str]:
    """Return titles of several runs: a setting that differs between them, else the names of their folders."""
    differing = [
        key for key in runs[0].configuration
        if len({repr(run.configuration.get(key)) for run in runs}) == len(runs)
    ]  # fmt: skip
    for key in ("strategy", *differing):
        if key in differing:
            return [
                str(run.configuration[key]) if key == "strategy" else f"{key} {run.configuration[key]}"
                for run in runs
            ]
    return list(names)
