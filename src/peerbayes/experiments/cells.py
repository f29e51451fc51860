"""One cell of a table for one seed: its specification, its key in the store, and its computation."""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from peerbayes.experiments.prepared import TooFewRows, file_digest, prepared
from peerbayes.families import BayesNet, Family

# Increased when the same specification gives other numbers than before: older results are then not used again.
REVISION = 1

# Most training rows that peers are evaluated on; trajectories need no errors on training rows.
TRAINING_JUDGED, ALL = 2_500, 1_000_000


@dataclass(frozen=True)
class Cell:
    """A simulation, or with `strategy` "rc" the reference beside it: RC and ML on the pooled rows."""

    dataset: str
    seed: int
    strategy: str
    nodes: int = 50
    rows_per_node: int = 50
    topology: str = "tree"
    partition: str = "iid"
    change_every: int | None = None
    local_steps: int = 1
    rounds: int = 64
    lr: float = 0.05
    start: str = "uniform"
    family: str = "naive-bayes"
    dtype: str = "float64"
    """Of the peers; the reference is always computed in float64."""
    trajectory: bool = False
    """Whether the errors of every round are kept."""

    @property
    def rows(self) -> int:
        return self.nodes * self.rows_per_node

    @property
    def reference(self) -> Cell:
        """The cell it is compared with: the paper's RC, from the uniform start, without a network."""
        return self.reference_from("uniform")

    def reference_from(self, start: str) -> Cell:
        """Return the cell of RC and ML on the same rows, from a start."""
        return Cell(
            self.dataset, self.seed, "rc", nodes=1, rows_per_node=self.rows, topology="complete",
            rounds=self.rounds, lr=self.lr, start=start, family=self.family,
        )  # fmt: skip

    def specification(self) -> dict[str, Any]:
        """Return everything that determines the numbers."""
        return {**vars(self), "revision": REVISION, "digest": file_digest(self.dataset)}

    @property
    def key(self) -> str:
        return key_of(self.specification())

    @classmethod
    def of(cls, specification: dict[str, Any]) -> Cell:
        fields = {name: value for name, value in specification.items() if name not in ("revision", "digest")}
        return cls(**fields)


def key_of(specification: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(specification, sort_keys=True).encode()).hexdigest()


def compute(specification: dict[str, Any]) -> dict[str, Any]:
    """Compute the numbers of a cell: a function of plain values, so that any process on any machine may call it.

    Where the dataset is too small for the cell, the result holds only `refused`, the reason.
    """
    began = time.perf_counter()
    cell = Cell.of(specification)
    try:
        figures = _reference(cell) if cell.strategy == "rc" else _run(cell)
    except TooFewRows as error:
        return {"refused": str(error)}
    return {**figures, "seconds": time.perf_counter() - began}


def _reference(cell: Cell) -> dict[str, Any]:
    from sklearn.exceptions import ConvergenceWarning

    from peerbayes.estimators import ESTIMATOR_OF, LEARNED
    from peerbayes.expectation import AGREED_STEPS

    data = prepared(cell.dataset)
    train, test = data.split(cell.rows, cell.seed)
    schema = data.schema.measured_on(train[0])
    figures: dict[str, Any] = {}
    for name, calibrate in (("rc", True), ("ml", False)):
        steps: dict[str, Any] = {"em_iter": AGREED_STEPS, "em_tol": 0.0} if calibrate else {}  # as peers take
        model = {**ESTIMATOR_OF, **LEARNED}[cell.family](
            calibrate=calibrate,
            schema=schema,
            start=cell.start,
            lr=cell.lr,
            max_iter=cell.rounds,
            keep="last",
            **steps,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a reference need not converge
            model.fit(*train)
        figures[f"train_{name}"] = 1.0 - model.score(*train)
        figures[f"test_{name}"] = 1.0 - model.score(*test)
    return figures | _structure(model.statistics_.family)


def _structure(layout: Family) -> dict[str, Any]:
    """Return the parents of each column, where a structure is learned."""
    return {"parents": [list(parents) for parents in layout.parents]} if isinstance(layout, BayesNet) else {}


def _run(cell: Cell) -> dict[str, Any]:
    from peerbayes.simulate import simulate

    data = prepared(cell.dataset)
    train, test = data.split(cell.rows, cell.seed)
    run = simulate(
        *train,
        schema=data.schema,
        family=cell.family,
        nodes=cell.nodes,
        rows_per_node=cell.rows_per_node,
        topology=cell.topology,
        partition=cell.partition,
        change_every=cell.change_every,
        strategy=cell.strategy,
        start=cell.start,
        rounds=cell.rounds,
        lr=cell.lr,
        local_steps=cell.local_steps,
        test=test,
        seed=cell.seed,
        evaluate_every=1 if cell.trajectory else 0,
        evaluate_rows=(1 if cell.trajectory else TRAINING_JUDGED, ALL),
        dtype=cell.dtype,
        references=False,
    )
    summary = run.summary()
    keys = ("train_error", "train_std", "test_error", "test_std", "disagreement", "bytes_per_peer", "floored")
    figures: dict[str, Any] = {name: summary[name] for name in keys}
    figures["chosen"] = run.configuration["strategy"]
    figures |= _structure(run.layout)
    if cell.trajectory:
        by_round = run.history.groupby("round")["test_error"].mean()
        figures["trajectory"] = [float(error) for error in by_round]
    return figures


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """Return the mean and its standard error (NaN for a single value)."""
    array = np.asarray(values)
    error = float(array.std(ddof=1) / np.sqrt(array.size)) if array.size > 1 else float("nan")
    return float(array.mean()), error
