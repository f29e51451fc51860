"""One cell of a table: a dataset prepared, a simulation run, its figures."""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from peerbayes.data.datasets import load
from peerbayes.data.declarations import declarations
from peerbayes.data.schema import Schema
from peerbayes.errors import ConfigurationError, SingularDataWarning
from peerbayes.model.families import BayesNet, Family
from peerbayes.simulation.old_names import from_stored, to_stored

# --- a dataset as the experiments use it: numbers, kinds as in the paper, and a split into training and test by seed

MOST_TRAINING = 16_000  # the largest training set of the paper's tables
TEST_ROWS = 5_000  # at most; the same rows for every cell of a seed
FEWEST_TESTED = (
    1_000  # a dataset with fewer spare rows keeps a fifth for tests, and has no large training sets
)
SPLIT_STREAM = 11  # the random stream of splits, separate from others of the same seed

Labelled = tuple[np.ndarray, np.ndarray]


class TooFewRows(ConfigurationError):
    """A dataset that is too small for a cell."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """All rows of a dataset as numbers [m, D] (text by the index of its value in sorted order), labels and kinds."""

    name: str
    values: np.ndarray
    labels: np.ndarray
    schema: Schema

    def split(self, rows: int, seed: int) -> tuple[Labelled, Labelled]:
        """Return `rows` training rows and the test rows of a seed: the first and the last of a random order."""
        count = len(self.labels)
        spare = count - MOST_TRAINING
        tested = min(TEST_ROWS, spare) if spare >= FEWEST_TESTED else count // 5
        if rows > count - tested:
            raise TooFewRows(
                f"{self.name} has {count:,} rows, {tested:,} of them for tests; {rows:,} training rows are requested"
            )
        order = in_order(count, seed)
        train, test = order[:rows], order[count - tested :]
        return (self.values[train], self.labels[train]), (self.values[test], self.labels[test])


def in_order(count: int, seed: int) -> np.ndarray:
    """Return so many rows in the random order of a seed, of which the last are for tests: [n]."""
    return np.random.default_rng([seed, SPLIT_STREAM]).permutation(count)


@lru_cache(maxsize=2)
def prepared(dataset: str) -> Prepared:
    """Return a dataset of the registry, or a .csv or .parquet file whose last column is the label.

    A reading after a colon says which of its columns are discrete (`letter:discrete`), or how missing text is read.
    """
    name, reading = read_as(dataset)
    frame, labels = _table(name)
    values, kinds = np.empty((len(frame), frame.shape[1])), []
    for index, column in enumerate(frame.columns):
        values[:, index], distinct, text = _numbers(frame[column], gaps=reading == "gaps")
        discrete = distinct <= DISCRETE or reading == "discrete" or (reading == "text" and text)
        kinds.append("discrete" if discrete else "continuous")
    return Prepared(dataset, values, labels, Schema.infer(values, labels, kinds=kinds))


def read_as(dataset: str) -> tuple[str, str]:
    """Return the name of a dataset and how it is read: "" as the paper says."""
    name, _, reading = dataset.rpartition(":")
    return (name, reading) if name and reading in READINGS else (dataset, "")


def file_digest(dataset: str) -> str | None:
    """Return the digest of a user's file, so that another file under the same name is another dataset."""
    path = Path(read_as(dataset)[0])
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.suffix in FILES and path.is_file() else None


DISCRETE = 10  # the paper: columns of at most ten values are discrete
READINGS = {
    "text": "all text is discrete",
    "discrete": "all columns are discrete",
    "gaps": "a gap in text is a value of its own",
}
FILES = (".csv", ".parquet")


def _table(dataset: str) -> tuple[Any, np.ndarray]:
    path = Path(dataset)
    if path.suffix not in FILES:
        loaded = load(dataset, paper=True)
        return loaded.frame, loaded.labels.to_numpy()
    import pandas as pd

    if not path.is_file():
        raise ConfigurationError(f"the dataset {dataset} is not a file")
    frame = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    return frame.iloc[:, :-1], frame.iloc[:, -1].to_numpy()


def _numbers(column: Any, gaps: bool) -> tuple[np.ndarray, int, bool]:
    """Return a column as numbers (NaN where missing), its count of distinct values, and whether it is text.

    `gaps`: missing text is a value of its own.
    """
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
        return values, int(column.nunique()), False
    codes, categories = pd.factorize(column.astype(object), sort=True)
    if gaps and (codes < 0).any():
        return np.where(codes < 0, len(categories), codes).astype(np.float64), len(categories) + 1, True
    return np.where(codes < 0, np.nan, codes.astype(np.float64)), len(categories), True


# --- one cell of a table for one seed: its specification, its key in the store, and its computation

# Increased when the same specification gives other numbers than before: older results are then not used again.
REVISION = 1

# Rounds of gossip by which peers agree on a start: cells were published with these.
START_ROUNDS = 32

# Most training rows that peers are evaluated on; trajectories need no errors on training rows.
TRAINING_JUDGED, ALL = 2_500, 1_000_000


@dataclass(frozen=True)
class Cell:
    """A simulation, or with `strategy` "rc" the reference beside it: RC and ML on the pooled rows."""

    dataset: str
    seed: int
    strategy: str
    peers: int = 50
    rows_per_peer: int = 50
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
        return self.peers * self.rows_per_peer

    @property
    def reference(self) -> Cell:
        """The cell it is compared with: the paper's RC, from the uniform start, without a network."""
        return self.reference_from("uniform")

    def reference_from(self, start: str) -> Cell:
        """Return the cell of RC and ML on the same rows, from a start."""
        return Cell(
            self.dataset, self.seed, "rc", peers=1, rows_per_peer=self.rows, topology="complete",
            rounds=self.rounds, lr=self.lr, start=start, family=self.family,
        )  # fmt: skip

    def specification(self) -> dict[str, Any]:
        """Return everything that determines the numbers, under the names that keys and stored results have."""
        return {**to_stored(vars(self)), "revision": REVISION, "digest": file_digest(self.dataset)}

    @property
    def key(self) -> str:
        return key_of(self.specification())

    @classmethod
    def of(cls, specification: dict[str, Any]) -> Cell:
        settings = from_stored(specification)
        return cls(**{name: settings[name] for name in settings if name not in ("revision", "digest")})


SPECIFIED = (*to_stored(Cell.__dataclass_fields__), "revision", "digest")
"""The names of a specification, as they are stored."""


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

    from peerbayes.estimators.classifiers import ESTIMATOR_OF, LEARNED
    from peerbayes.model.calibration import AGREED_STEPS

    data = prepared(cell.dataset)
    train, test = data.split(cell.rows, cell.seed)
    schema = data.schema.measured_on(train[0])
    figures: dict[str, Any] = {}
    for name, calibrate in (("rc", True), ("ml", False)):
        steps: dict[str, Any] = {"em_iter": AGREED_STEPS, "em_tol": 0.0} if calibrate else {}  # as peers take
        if cell.family in LEARNED:
            steps["penalty"] = "none"
        model = {**ESTIMATOR_OF, **LEARNED}[cell.family](
            calibrate=calibrate,
            alpha=1.0,
            shrinkage=None,
            schema=schema,
            start=cell.start,
            lr=cell.lr,
            max_iter=cell.rounds,
            keep="last",
            step="fixed",
            validation_fraction=0.0,
            **steps,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a reference need not converge
            warnings.simplefilter("ignore", SingularDataWarning)
            model.fit(*train)
        figures[f"train_{name}"] = 1.0 - model.score(*train)
        figures[f"test_{name}"] = 1.0 - model.score(*test)
    return figures | _structure(model.statistics_.family)


def _structure(layout: Family) -> dict[str, Any]:
    """Return the parents of each column, where a structure is learned."""
    return {"parents": [list(parents) for parents in layout.parents]} if isinstance(layout, BayesNet) else {}


def _run(cell: Cell) -> dict[str, Any]:
    from peerbayes.simulation.run import simulate
    from peerbayes.simulation.settings import SimulationArguments

    data = prepared(cell.dataset)
    (X, y), test = data.split(cell.rows, cell.seed)
    settings: Any = {
        name: value for name, value in vars(cell).items() if name in declarations(SimulationArguments)
    }
    run = simulate(
        X,
        y,
        **settings,
        schema=data.schema,
        test=test,
        start_rounds=START_ROUNDS,
        evaluate_every=1 if cell.trajectory else 0,
        evaluate_rows=(1 if cell.trajectory else TRAINING_JUDGED, ALL),
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
