"""Rows of a file that an estimator learns from in blocks: a pass for columns and classes, a pass for the sums.

Calibration passes over the rows dozens of times and holds out rows by the order of all of them, so it takes tables.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from peerbayes.data.column import Column
from peerbayes.data.doctor.label_checks import MANY_CLASSES
from peerbayes.data.doctor.quick import Glance, step_of
from peerbayes.data.parts import ColumnsOfParts
from peerbayes.data.schema import Schema
from peerbayes.data.sources.blocks import Blocks
from peerbayes.data.table import Rows, Table, ordered
from peerbayes.estimators.prediction import Predictor
from peerbayes.estimators.training import Training, refuse_no_weight, training_rows
from peerbayes.model.families import Family, NaiveBayes
from peerbayes.model.sources import Encoded, LaterObserved, Observed, counted_rows, observe_later


def refuse_blocks(estimator: Predictor, learns_structure: bool, y: Any) -> None:
    """Refuse an estimator that needs all rows at once, and labels beside those of the file."""
    name, instead = type(estimator).__name__, "read them with peerbayes.data.sources.read, or"
    if learns_structure:
        raise ValueError(
            f"{name} learns its structure from all rows at once, not from blocks of a file; {instead} use MixedNB, or "
            "BayesNetClassifier(structure=...)"
        )
    if estimator.calibrate:
        raise ValueError(
            "calibrate=True passes over all rows many times, and blocks of a file are read twice; "
            f"{instead} use calibrate=False"
        )
    if estimator.unlabelled is not None:
        raise ValueError(
            "rows without a label (unlabelled) are completed in many passes over all rows, and blocks of a file are "
            f"read twice; {instead} leave those rows out"
        )
    if isinstance(estimator.class_weight, str):
        raise ValueError(
            "class_weight='balanced' needs the class frequencies of all rows before blocks of a file are read; "
            f"{instead} give a mapping"
        )
    if y is not None:
        raise ValueError("y is given beside blocks of a file; expected its labels there: Blocks(…, label=…)")


class FileRows:
    """The rows of a file with their labels and weights; calling it reads them again, block by block."""

    def __init__(
        self,
        blocks: Blocks,
        weights: np.ndarray | None,
        class_weight: Any,
        table: Callable[[Any, int], Table],
    ) -> None:
        self.weights = weights  # [n]
        self._blocks, self._class_weight, self._table = blocks, class_weight, table
        if weights is not None:
            refuse_no_weight(weights > 0)
        self.count = blocks.row_count if weights is None else int(np.count_nonzero(weights))

    def __call__(self) -> Iterator[Training]:
        """Yield the rows that count."""
        for features, labels in self._blocks.labelled():
            start = int(features.index[0])
            weights = None if self.weights is None else self.weights[start : start + len(features)]
            if weights is None or weights.any():
                table = self._table(features, start)
                yield training_rows(table, labels, weights, None, self._class_weight)


class Seen(NamedTuple):
    """What one pass says of the rows."""

    columns: tuple[Column, ...]
    classes: tuple[Any, ...]
    glance: Glance


def look(rows: FileRows, kinds: Any, with_columns: bool) -> Seen:
    """Return what the columns and classes of a file are, and a glance at it; columns only where they are wanted."""
    import pandas as pd

    columns, step, position = ColumnsOfParts(kinds), step_of(rows.count), 0
    of_class: Counter[Any] = Counter()
    frames, labels = [], []
    for training in rows():
        table, names = training.table, np.empty(len(training.classes), dtype=object)
        names[:] = training.classes
        counts = np.bincount(training.labels, minlength=names.size).tolist()
        of_class.update(dict(zip(training.classes, counts, strict=True)))
        if not with_columns:
            continue
        columns.add(table, training.weights)
        chosen = np.arange(-position % step, table.rows, step)
        frames.append(table.take(chosen).native)
        labels.append(names[training.labels[chosen]])
        position += table.rows
    classes = ordered(of_class)
    if not with_columns:
        return Seen((), classes, Glance(Table.of(np.zeros((0, 0))), np.zeros(0, int), 1, 0, None))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of older pandas, about blocks without any value
        some = Table.of(pd.concat(frames, ignore_index=True))
    index = {value: code for code, value in enumerate(classes)}
    codes = np.array([index[value] for value in np.concatenate(labels)], dtype=np.int64)
    many = np.array([of_class[value] for value in classes]) if len(classes) > MANY_CLASSES else None
    return Seen(columns.columns(), classes, Glance(some, codes, step, rows.count, many))


class FileSums:
    """S of the rows of a file, and what is kept of a few of them to say later what each column tells."""

    def __init__(self, schema: Schema, rows: int) -> None:
        self._schema = schema
        self._kept = counted_rows(rows, len(schema.columns))
        self._some: list[tuple[Rows, np.ndarray, np.ndarray | None]] = []
        self._position = 0
        self.of_class = np.zeros(len(schema.classes), dtype=np.int64)  # [C] rows
        self._sums: tuple[Family, np.ndarray] | None = None

    def add(self, training: Training, labels: np.ndarray, layout: Family, values: np.ndarray) -> None:
        """Add S [C, K] of a block in its layout, with its labels [b] as indices among all classes."""
        self.of_class += np.bincount(labels, minlength=self.of_class.size)
        first, self._position = self._position, self._position + training.table.rows
        low, high = np.searchsorted(self._kept, (first, self._position))
        chosen = self._kept[low:high] - first
        if chosen.size:
            rows = self._schema.encode(training.table.take(chosen))
            weights = None if training.weights is None else training.weights[chosen]
            self._some.append((rows, labels[chosen], weights))
        if self._sums is None:
            self._sums = layout, values
            return
        known, total = self._sums
        if (
            isinstance(layout, NaiveBayes)
            and isinstance(known, NaiveBayes)
            and layout.missing != known.missing
        ):
            total, values = known.spread(total), layout.spread(values)
            known = layout = known.with_missing()
        self._sums = known, total + values

    @property
    def layout(self) -> Family:
        """The layout of the sums."""
        assert self._sums is not None
        return self._sums[0]

    @property
    def values(self) -> np.ndarray:
        """S: [C, K]."""
        assert self._sums is not None
        return self._sums[1]

    def observed(self) -> Observed | LaterObserved:
        """Return what evenly spaced rows say of each column."""
        rows, labels, weights = zip(*self._some, strict=True)
        data = Rows(*(np.concatenate(parts) for parts in zip(*rows, strict=True)))
        weighted = None if weights[0] is None else np.concatenate(weights)
        source = Encoded(self._schema, data)
        return observe_later(source, np.concatenate(labels), len(self._schema.classes), weighted)
