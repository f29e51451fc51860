"""Histograms of a simulation's rows: counts, which a run stores for its report; no rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from peerbayes.data.schema import Schema
from peerbayes.learning.local_rows import LocalRows
from peerbayes.model.sources import Observed, counted_rows

BINS = 24
COLUMNS = 24  # most continuous columns, those that say most about the class


@dataclass(frozen=True, eq=False)
class Histograms:
    """How many rows of which class lie where."""

    rows: np.ndarray
    """[N, C] rows of each peer by class."""
    columns: np.ndarray
    """[k] continuous columns, by number among these, the most informative first."""
    edges: np.ndarray
    """[k, B + 1] the ends of the bins, in the units of the table."""
    counts: np.ndarray
    """[k, C, B] rows in the bins by class; of very many rows, a sample."""

    @classmethod
    def of(cls, held: LocalRows, schema: Schema, honest: np.ndarray, observed: Observed) -> Histograms:
        """Return the histograms of all peers' rows, of which those at the positions `honest` are true."""
        classes = held.classes
        owners = np.repeat(np.arange(len(held.sizes)), held.sizes)
        labelled = held.labels >= 0
        cells = owners[labelled] * classes + held.labels[labelled]
        each = np.bincount(cells, minlength=len(held.sizes) * classes)
        continuous = len(schema.continuous)
        columns = np.argsort(-observed.bits[:continuous], kind="stable")[:COLUMNS]
        some = honest[counted_rows(len(honest), len(schema.columns))]
        values, labels = held.rows.values[some][:, columns].astype(np.float64), held.labels[some]
        ends = observed.ranges[columns]
        counts = [
            _counted(column, labels, pair, classes) for column, pair in zip(values.T, ends, strict=True)
        ]
        edges = np.linspace(ends[:, 0], ends[:, 1], BINS + 1, axis=1).reshape(len(columns), BINS + 1)
        edges = edges * schema.scale[columns, None] + schema.location[columns, None]
        stacked = np.array(counts, dtype=np.int64).reshape(len(columns), classes, BINS)
        return cls(each.reshape(-1, classes), columns, edges, stacked)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays as a run's file has them, by name."""
        names = ("rows", "columns", "edges", "counts")
        return {f"histogram {name}": getattr(self, name).astype(np.float64) for name in names}

    @classmethod
    def restored(cls, arrays: dict[str, np.ndarray]) -> Histograms | None:
        """Return the histograms from a run's file; None where it has none."""
        if "histogram rows" not in arrays:
            return None
        rows, columns, counts = (
            arrays[f"histogram {name}"].astype(np.int64) for name in ("rows", "columns", "counts")
        )
        return cls(rows, columns, arrays["histogram edges"], counts)


def _counted(values: np.ndarray, labels: np.ndarray, ends: np.ndarray, classes: int) -> np.ndarray:
    """Return the rows in each bin by class: [m], [m] -> [C, B]; missing values and those beyond do not count."""
    low, high = float(ends[0]), float(ends[1])
    inside = (labels >= 0) & np.isfinite(values) & (values >= low) & (values <= high)
    width = max(high - low, np.finfo(float).tiny)
    bins = np.minimum(((values[inside] - low) / width * BINS).astype(np.int64), BINS - 1)
    return np.bincount(labels[inside] * BINS + bins, minlength=classes * BINS).reshape(classes, BINS)
