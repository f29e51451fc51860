"""What every fit does first: check its settings, its table and its labels; and tell how far it is."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_consistent_length, column_or_1d

from peerbayes.data.arguments import number, refusal, whole
from peerbayes.data.infer import infer_classes
from peerbayes.data.schema import Schema
from peerbayes.data.table import Table, missing_of
from peerbayes.model import passes
from peerbayes.model.calibration import STARTS
from peerbayes.model.statistics import Statistics

# --- an estimator's parameters: checks before any work, and their form in files

# Code is not written to files.
UNSAVED = ("callback",)


def check(parameters: Mapping[str, Any]) -> None:
    """Refuse invalid values by name, whether or not they are used."""

    def at_least_0(name: str, advice: str = "") -> None:
        number(name, parameters[name], f"a number of 0 or more{advice}", least=0.0)

    def positive(name: str, advice: str = "") -> None:
        number(name, parameters[name], f"a positive number{advice}", above=0.0)

    for name in ("alpha", "tol", "em_tol"):
        at_least_0(name)
    positive("lr", " (the paper's is 0.05)")
    if parameters["clip"] is not None:
        positive("clip", ", or None for no clipping")
    if parameters["variance_floor"] is not None:
        positive("variance_floor", ", or None for the default")
    for name in ("count_floor", "shrinkage"):
        if parameters.get(name) is not None:
            at_least_0(name, ", or None for the default")
    whole("max_iter", parameters["max_iter"], 0)
    whole("em_iter", parameters["em_iter"], 1)
    if parameters["patience"] is not None:
        whole("patience", parameters["patience"], 1, advice=", or None for no early stop")
    keep = parameters["keep"]
    if not isinstance(keep, str) or keep not in ("best", "last"):
        raise refusal("keep", keep, "'best' or 'last'")
    _check_types(parameters)


def _check_types(parameters: Mapping[str, Any]) -> None:
    """Refuse parameters of the wrong type, and combinations that are not supported."""
    kinds, schema, prior, start = (parameters[name] for name in ("kinds", "schema", "prior", "start"))
    if not isinstance(kinds, str | Mapping | list | tuple):
        raise TypeError(f"kinds is {kinds!r:.80}; expected a rule, one kind per column, or a mapping")
    if not isinstance(schema, Schema | None):
        raise TypeError(f"schema is {schema!r:.80}; expected a Schema, for instance Schema.load(path)")
    if not isinstance(prior, Statistics | None):
        raise TypeError(
            f"prior is {prior!r:.80}; expected Statistics, for instance from prior_knowledge(...)"
        )
    if prior is not None and parameters["calibrate"]:
        raise ValueError(
            "prior is for calibrate=False; calibration takes knowledge as its start: start=prior"
        )
    unlabelled = parameters["unlabelled"]
    if not isinstance(unlabelled, str | Real | np.generic | None):
        raise TypeError(
            f"unlabelled is {unlabelled!r:.80}; expected the label of rows without one, NaN, or None"
        )
    if unlabelled is not None and parameters["calibrate"]:
        raise ValueError(
            "unlabelled is for calibrate=False: calibration learns from labels. Leave the other rows out"
        )
    if not isinstance(start, str | Statistics | np.ndarray) or (
        isinstance(start, str) and start not in STARTS
    ):
        raise ValueError(
            f"start is {start!r:.80}; expected one of {', '.join(STARTS)}, Statistics, or an array of them"
        )


def portable(parameters: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return parameters as plain values and arrays, for a file."""
    plain: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {}
    for name, value in parameters.items():
        if name in UNSAVED:
            continue
        if isinstance(value, Statistics):
            plain[name] = {"statistics": value.described()}
            arrays[f"parameter {name}"] = value.values
        elif isinstance(value, Schema):
            plain[name] = {"schema": value.to_json()}
        elif isinstance(value, Mapping):
            plain[name] = {"pairs": [[key, kind] for key, kind in value.items()]}
        elif isinstance(value, np.ndarray | list | tuple):
            plain[name] = {"list": np.asarray(value).tolist()}
        elif isinstance(value, float | np.floating) and math.isnan(value):
            plain[name] = {"missing": True}
        elif isinstance(value, np.generic):
            plain[name] = value.item()
        else:
            plain[name] = value
    return plain, arrays


def restored(plain: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the parameters that `portable` wrote."""
    parameters: dict[str, Any] = {}
    for name, value in plain.items():
        if not isinstance(value, dict):
            parameters[name] = value
        elif "statistics" in value:
            parameters[name] = Statistics.restored(value["statistics"], arrays[f"parameter {name}"])
        elif "schema" in value:
            parameters[name] = Schema.from_json(value["schema"])
        elif "missing" in value:
            parameters[name] = math.nan
        elif "pairs" in value:
            parameters[name] = dict(value["pairs"])
        else:
            parameters[name] = np.asarray(value["list"]) if name == "start" else value["list"]
    return parameters


# --- progress of calibration on standard error


class Progress:
    """A callback that prints each iteration to standard error, and calls the user's callback."""

    def __init__(self, iterations: int, callback: Any) -> None:
        self.iterations, self.callback = iterations, callback

    def __call__(self, iteration: int, soft_error: float, error: float) -> object:
        message = (
            f"iteration {iteration:>4}/{self.iterations}  soft error {soft_error:.4f}  error {error:.4f}"
        )
        print(message, file=sys.stderr)
        return None if self.callback is None else self.callback(iteration, soft_error, error)


# --- incremental fitting: checks of `partial_fit`, which sees the rows in several parts


def classes_of_all(classes: Any, known_classes: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the classes of all parts, from those that the caller names and those known before; they must agree."""
    if classes is None and not known_classes:
        raise ValueError(
            "classes must be passed on the first call to partial_fit: every label that can occur"
        )
    named_classes = known_classes if classes is None else infer_classes(classes)[0]
    if known_classes and set(named_classes) != set(known_classes):
        raise ValueError(
            f"classes={list(named_classes)} is not the same as on the last call to partial_fit, or in the schema: "
            f"{list(known_classes)}"
        )
    if len(named_classes) < 2:
        raise ValueError(f"classes names {list(named_classes)}; a classifier needs at least two classes")
    return known_classes or named_classes


def refuse_counting(kinds: Any) -> None:
    """Refuse kinds that depend on how many values a column has."""
    rules = [kinds] if isinstance(kinds, str) else kinds.values() if isinstance(kinds, dict) else kinds
    if "paper" in rules:
        raise ValueError(
            "kinds='paper' counts the distinct values of all rows, and partial_fit sees only some of them; "
            "give a schema, for instance schema=Schema.infer(X, y, kinds='paper')"
        )


def kinds_so_far(schema: Schema) -> dict[str, str]:
    """Return the kinds of the columns that had a value."""
    return {column.name: column.kind for column in schema.columns if not column.empty}


def beyond_clip(table: Table, schema: Schema) -> str | None:
    """Return the name of a column with values that clipping would have changed, had all rows been known, or None."""
    if schema.clip is None:
        return None
    for _, block in passes.Raw(replace(schema, clip=None), table).blocks(passes.FRAME_ROWS):
        beyond = np.abs(block.rows().values) > schema.clip
        if beyond.any():
            return schema.names[schema.continuous[int(np.argmax(beyond.any(axis=0)))]]
    return None


# --- training rows: labels as class indices, checked weights, without rows of weight 0


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


def training_rows(table: Table, y: Any, sample_weight: Any, unlabelled: Any) -> Training:
    """Return rows with labels y, where `unlabelled` means no label, and weights; rows of weight 0 are left out."""
    labels, classes = _labels_of(table, y, unlabelled)
    if sample_weight is None:
        return Training(table, labels, classes, None)
    weights = _check_sample_weight(
        sample_weight, np.empty((table.rows, 0)), dtype=np.float64, ensure_non_negative=True
    )
    counted = weights > 0
    if not counted.any():
        raise ValueError("every sample_weight is 0; expected a positive weight for at least one row")
    if not counted.all():
        table, weights, labels = table.take(counted), weights[counted], labels[counted]
        present = np.unique(labels[labels >= 0])
        labels = np.where(labels < 0, -1, np.searchsorted(present, labels))
        classes = tuple(classes[index] for index in present)
    return Training(table, labels, classes, weights)


def _labels_of(table: Table, y: Any, unlabelled: Any) -> tuple[np.ndarray, tuple[Any, ...]]:
    """Return class indices [n], −1 where there is no label, and the classes that occur."""
    labels = column_or_1d(y, warn=True)
    check_consistent_length(range(table.rows), labels)
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
    if sentinel is None:
        return np.zeros(labels.size, dtype=bool)
    if isinstance(sentinel, float) and np.isnan(sentinel):
        return missing_of(labels)
    return np.array([value == sentinel for value in labels.tolist()], dtype=bool)
