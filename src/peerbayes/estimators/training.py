"""Training rows: labels as class indices, checked weights, without rows of weight 0."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_consistent_length, column_or_1d

from peerbayes.data.infer import infer_classes, plain_labels
from peerbayes.data.schema import Schema
from peerbayes.data.table import Table, missing_of
from peerbayes.estimators import conventions


class Training(NamedTuple):
    """Rows with their labels and weights."""

    table: Table
    labels: np.ndarray  # [n] indices among `classes`; −1 where there is no label
    classes: tuple[Any, ...]  # those that occur, in order
    weights: np.ndarray | None  # [n]

    @property
    def mass(self) -> float:
        """The total weight of the rows."""
        return float(self.table.rows if self.weights is None else self.weights.sum())

    def labels_in(self, schema: Schema) -> np.ndarray:
        """Return the labels as indices among all classes of a schema: [n]."""
        if self.classes == schema.classes:
            return self.labels
        schema_codes = schema.encode_labels(np.asarray(self.classes, dtype=object))
        return np.where(self.labels < 0, -1, schema_codes[self.labels])


def training_rows(table: Table, y: Any, sample_weight: Any, unlabelled: Any, class_weight: Any) -> Training:
    """Return rows with labels y, where `unlabelled` means no label, and weights; rows of weight 0 are left out."""
    labels, classes = _labels_of(table, y, unlabelled)
    weights = checked_weights(sample_weight, table.rows)
    if class_weight is not None:
        weights = conventions.weights_by_class(class_weight, labels, classes, weights)
    if weights is None:
        return Training(table, labels, classes, None)
    counted = weights > 0
    refuse_no_weight(counted)
    if not counted.all():
        table, weights, labels = table.take(counted), weights[counted], labels[counted]
        present = np.unique(labels[labels >= 0])
        labels = np.where(labels < 0, -1, np.searchsorted(present, labels))
        classes = tuple(classes[index] for index in present)
    return Training(table, labels, classes, weights)


def checked_weights(sample_weight: Any, rows: int) -> np.ndarray | None:
    """Return the weights of so many rows, [n], checked; None: there are none."""
    if sample_weight is None:
        return None
    weights: np.ndarray = _check_sample_weight(
        sample_weight, np.empty((rows, 0)), dtype=np.float64, ensure_non_negative=True
    )
    return weights


def refuse_no_weight(counted: np.ndarray) -> None:
    """Refuse rows of which none counts: [n]."""
    if not counted.any():
        raise ValueError("every sample_weight is 0; expected a positive weight for at least one row")


def _labels_of(table: Table, y: Any, unlabelled: Any) -> tuple[np.ndarray, tuple[Any, ...]]:
    """Return class indices [n], −1 where there is no label, and the classes that occur."""
    plain = type(y) is np.ndarray and y.ndim == 1 and y.dtype.kind in "iufbU"  # nothing that could be wrong
    labels = y if plain else column_or_1d(plain_labels(y), warn=True)
    if labels.size != table.rows:
        check_consistent_length(range(table.rows), labels)  # raises
    if unlabelled is None:
        classes, codes = infer_classes(labels)
        if any(isinstance(value, float) for value in classes):
            check_classification_targets(labels)
        return codes, classes
    unlabelled_rows = _is_unlabelled(labels, unlabelled)
    if unlabelled_rows.all():
        raise ValueError(f"every label is {unlabelled!r}, which means no label; expected some labels")
    classes, class_codes = infer_classes(labels[~unlabelled_rows] if unlabelled_rows.any() else labels)
    codes = np.full(labels.size, -1, dtype=class_codes.dtype)
    codes[~unlabelled_rows] = class_codes
    if any(isinstance(value, float) for value in classes):
        check_classification_targets(labels[~unlabelled_rows])
    return codes, classes


def _is_unlabelled(labels: np.ndarray, sentinel: Any) -> np.ndarray:
    """Return which rows have no label: the sentinel, or a missing value where it is NaN. [n]."""
    if isinstance(sentinel, float) and np.isnan(sentinel):
        return missing_of(labels)
    return np.array([value == sentinel for value in labels.tolist()], dtype=bool)
