"""A dataset as the experiments use it: numbers, kinds as in the paper, and a split into training and test by seed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from peerbayes.datasets import load
from peerbayes.errors import ConfigurationError
from peerbayes.schema import Schema

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
        order = np.random.default_rng([seed, SPLIT_STREAM]).permutation(count)
        train, test = order[:rows], order[count - tested :]
        return (self.values[train], self.labels[train]), (self.values[test], self.labels[test])


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
