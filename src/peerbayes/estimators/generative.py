"""How every estimator learns: it checks its parameters and its table, keeps the sufficient statistics, and leaves the
rest to its family.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import validate_data

from peerbayes.data.arguments import number, refusal, whole
from peerbayes.data.column import Column
from peerbayes.data.doctor.quick import warn_of_data, warn_of_glance
from peerbayes.data.infer import infer_classes, inspect
from peerbayes.data.parts import needs_all_rows
from peerbayes.data.schema import Schema
from peerbayes.data.sources.blocks import Blocks
from peerbayes.data.table import FRAME_ROWS, Table, frame_of
from peerbayes.errors import SchemaError, SchemaMismatch, SingularDataWarning, StatisticsMismatch
from peerbayes.estimators import conventions
from peerbayes.estimators.file_rows import FileRows, FileSums, look, refuse_blocks
from peerbayes.estimators.prediction import Predictor, cost_table, restored
from peerbayes.estimators.training import Training, checked_weights, training_rows
from peerbayes.model import calibration, folds, passes
from peerbayes.model.calibration import STARTS, Calibrated, Fold, beginning, calibrate
from peerbayes.model.explain import log_joint, log_units
from peerbayes.model.families import Family, NaiveBayes
from peerbayes.model.families.base import guarded, laid_out
from peerbayes.model.families.gaussian import SharedGaussian
from peerbayes.model.passes import IncompleteData
from peerbayes.model.scaling import Scaling, fit
from peerbayes.model.sources import (
    Raw,
    Source,
    check_rows,
    first_missing,
    observe_later,
    source_of,
    taken,
)
from peerbayes.model.statistics import Statistics, aligned, covers_some_columns, prior_for

Labelled = passes.Data | IncompleteData

# --- an estimator's parameters: checks before any work


def check(parameters: Mapping[str, Any]) -> None:
    """Refuse invalid values by name, whether or not they are used."""

    def at_least_0(name: str, advice: str = "") -> None:
        number(name, parameters[name], f"a number of 0 or more{advice}", least=0.0)

    def positive(name: str, advice: str = "") -> None:
        number(name, parameters[name], f"a positive number{advice}", above=0.0)

    for name in ("tol", "em_tol"):
        at_least_0(name)
    positive("lr", " (the paper's is 0.05)")
    if parameters["clip"] is not None:
        positive("clip", ", or None for no clipping")
    if parameters["variance_floor"] is not None:
        positive("variance_floor", ", or None for the default")
    if parameters["count_floor"] is not None:
        at_least_0("count_floor", ", or None for the default")
    for name, words, advice in (
        ("alpha", ("auto",), ", or 'auto' to estimate it"),
        ("shrinkage", ("auto", None), ", or 'auto' to estimate it, or None for the default"),
    ):
        if not isinstance(parameters[name], str | None) or parameters[name] not in words:
            at_least_0(name, advice)
    whole("max_iter", parameters["max_iter"], 0)
    whole("em_iter", parameters["em_iter"], 1)
    if parameters["patience"] is not None:
        whole("patience", parameters["patience"], 1, advice=", or None for no early stop")
    for name, values in (("keep", ("best", "last")), ("step", ("adaptive", "fixed"))):
        if not isinstance(parameters[name], str) or parameters[name] not in values:
            raise refusal(name, parameters[name], f"{values[0]!r} or {values[1]!r}")
    share = parameters["validation_fraction"]
    number("validation_fraction", share, "a share of rows from 0 to 0.5", least=0.0, most=0.5)
    if parameters["class_weight"] is not None:
        conventions.check_class_weight(parameters["class_weight"])
    temperature = parameters["temperature"]
    if not isinstance(temperature, bool) and not (isinstance(temperature, str) and temperature == "auto"):
        raise refusal("temperature", temperature, "'auto', True or False")
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
    if parameters["temperature"] is True and not parameters["calibrate"]:
        raise ValueError("temperature=True needs calibrate=True: rows are held out by calibration alone")
    unlabelled = parameters["unlabelled"]
    if not isinstance(unlabelled, str | Real | np.generic | None):
        raise TypeError(
            f"unlabelled is {unlabelled!r:.80}; expected the label of rows without one, NaN, or None"
        )
    if unlabelled is not None and parameters["calibrate"]:
        raise ValueError(
            "unlabelled is for calibrate=False: calibration learns from labels. Leave the other rows out"
        )
    if unlabelled is not None and parameters["priors"] is not None:
        raise ValueError(
            "priors fix the class frequencies, rows without a label (unlabelled) help to learn them; leave one out"
        )
    if not isinstance(start, str | Statistics | np.ndarray) or (
        isinstance(start, str) and start not in STARTS
    ):
        raise ValueError(
            f"start is {start!r:.80}; expected one of {', '.join(STARTS)}, Statistics, or an array of them"
        )


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
            f"classes={list(named_classes)} is not the same as on last call to partial_fit, or in the schema: "
            f"{list(known_classes)}"
        )
    if len(named_classes) < 2:
        raise ValueError(f"classes names {list(named_classes)}; a classifier needs at least two classes")
    return known_classes or named_classes


def refuse_counting(kinds: Any, who: str = "partial_fit") -> None:
    """Refuse kinds that depend on how many values a column has; `who` has no more than some rows at a time."""
    if (needed := needs_all_rows(kinds)) is not None:
        rule, what = needed
        raise ValueError(
            f"kinds={rule!r} needs {what} of all rows, and {who} sees only some of them; "
            f"give a schema, for instance schema=Schema.infer(X, y, kinds={rule!r})"
        )


def kinds_so_far(schema: Schema) -> dict[str, str]:
    """Return the kinds of the columns that had a value."""
    return {column.name: column.kind for column in schema.columns if not column.empty}


def beyond_clip(table: Table, schema: Schema) -> str | None:
    """Return the name of a column with values that clipping would have changed, had all rows been known, or None."""
    if schema.clip is None:
        return None
    for _, block in Raw(replace(schema, clip=None), table).blocks(FRAME_ROWS):
        beyond = np.abs(block.rows().values) > schema.clip
        if beyond.any():
            return schema.names[schema.continuous[int(np.argmax(beyond.any(axis=0)))]]
    return None


# --- rows that leave parameters open


def warn_of_singular(
    family: Family, singular_directions: np.ndarray | None, rows: np.ndarray, classes: Sequence[Any]
) -> None:
    """Warn of classes of one row, which have no variance, and of covariances that are singular.

    family    the model, with its floors
    singular_directions  how many each covariance has: [C] or [1]; None: there is no covariance
    rows      how many training rows each class has: [C]
    """
    if family.continuous == len(getattr(family, "poisson", ())):
        return
    single = [classes[c] for c in np.flatnonzero(rows == 1).tolist()]
    if single and not isinstance(family, SharedGaussian):
        warnings.warn(
            f"class {single[0]!r} has one row{_and_others(single)}, which shows no variance: those of its columns are "
            f"what variance_floor={family.variance_floor:g} makes of 0 (1: a column's own). Add rows, leave the class "
            "out, or raise variance_floor",
            SingularDataWarning,
            stacklevel=4,
        )
    if singular_directions is None or not (short := singular_directions).any():
        return
    shared = len(short) != len(classes)
    singular = [classes[c] for c in np.flatnonzero(short).tolist() if rows[c] != 1] if not shared else []
    if shared or singular:
        owner = "shared by the classes" if shared else f"of class {singular[0]!r}{_and_others(singular)}"
        warnings.warn(
            f"the covariance {owner} is singular: rows have no variance in {int(short.max())} of {family.continuous} "
            "directions, since columns are constant or determine each other, or rows are few. "
            f"variance_floor={family.variance_floor:g} stands in for it. Leave such columns out, or raise shrinkage",
            SingularDataWarning,
            stacklevel=4,
        )


def _and_others(labels: Sequence[Any]) -> str:
    """Return how many more classes there are than the first."""
    return f" (as {len(labels) - 1} more)" if len(labels) > 1 else ""


# --- the estimator


def _learns_by_adding(estimator: GenerativeClassifier) -> bool:
    """Whether `partial_fit` is available; AttributeError with the reason if not."""
    if estimator.calibrate:
        raise AttributeError(
            "partial_fit needs calibrate=False: calibration passes over all rows many times. "
            "Use fit, or add up the statistics_ of several fits with calibrate=False"
        )
    if estimator.learns_structure:
        raise AttributeError(
            f"partial_fit of {type(estimator).__name__} would see only some of the rows that its structure is learned "
            "from; use BayesNetClassifier(structure=...), for instance with the parents_ of a model fitted on some rows"
        )
    return True


class GenerativeClassifier(Predictor):
    """The base of every estimator. Use `MixedNB`, `QDA` or `LDA`; subclass it for a family of your own."""

    learns_structure: ClassVar[bool] = False
    """Whether the structure is learned from the rows."""
    _singular: np.ndarray | None = None
    """In how many directions each covariance is singular: [C] or [1]; None: there is no covariance."""
    _keeps_held_out: bool = False
    """Whether `fit` keeps what folds say of held-out rows, by which candidates are compared: a model holds no rows."""
    _held_out: tuple[Scaling | None, np.ndarray, np.ndarray] | None
    """The scaling, the logits [n, C] of held-out rows, NaN of others, and the labels [n]."""

    # --- learning --------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn from rows X [n, D] (DataFrame or array) and labels y [n]; a row counts `sample_weight` [n] times.

        X may be `Blocks` of a file, which name the column of the labels: its rows are never all in memory.
        """
        with self._all_or_nothing():
            if isinstance(X, Blocks):
                return self._fit_blocks(X, y, sample_weight)
            return self._fit(X, y, sample_weight)

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> Self:
        training = self._training(X, y, sample_weight, reset=True)
        schema = self._schema_for(training, training.classes, kinds=self.kinds)
        classes = len(schema.classes)
        self._refuse_one_class(schema, training.classes, training.table.rows)
        self._check_classes(schema.classes)
        labels = training.labels_in(schema)
        schema = self._extended(schema, training, labels)
        held_out, validation = self._held_out_rows(schema, training, labels)  # before the cells are held
        source = source_of(schema, training.table, again=self.calibrate or self.learns_structure)
        missing = self._missing(source, training)
        layout = laid_out(self.family_type, schema, missing)
        layout = self._structured(layout, source, labels, classes, training.weights)
        family = self._guarded(layout, training.mass)
        incomplete = first_missing(source, layout, missing) is not None

        def rows_of(source: Source, rows: np.ndarray | None = None) -> Labelled:
            if rows is None:
                once = not self.calibrate
                return passes.labelled(
                    family, source, labels, classes, training.weights, missing=incomplete, once=once
                )
            weights = None if training.weights is None else training.weights[rows]
            return passes.labelled(
                family, taken(source, rows), labels[rows], classes, weights, missing=incomplete
            )

        data = rows_of(source)
        self._forget_fit()
        if isinstance(data, IncompleteData) and not isinstance(family, NaiveBayes):
            calibration.refuse_empty(data, schema)
        observed = observe_later(source, labels, classes, training.weights)
        if not self.calibrate:
            self.n_iter_ = 1  # a single pass over the rows, unless something is missing
            stats = (
                self._maximise_likelihood(data, layout, source)
                if isinstance(data, IncompleteData)
                else data.statistics()
            )
            self._adopt(Statistics(stats, schema, layout, observed=observed))
            rows = np.bincount(labels + 1, minlength=1 + classes)[1:]
            warn_of_singular(self.family_, self._singular, rows, schema.classes)
            return self
        self.validation_ = validation
        pairs = [(rows_of(source, ~held), rows_of(source, held)) for held in held_out]
        calibrated = self._calibrated(family, data, schema, pairs)
        self.history_ = calibrated.history()
        self.n_iter_, self.best_iter_ = calibrated.soft_error.size - 1, calibrated.kept
        likelihood = calibration.likelihood(data)
        fold_weights = [family.weights(stats) for stats in calibrated.fold_stats]
        del data, pairs
        logits = self._held_out_logits(family, fold_weights, held_out, source)
        del source  # rows are needed no longer: scaling has arrays of its own
        scaling = self._scaling(logits, held_out, labels, training.weights)
        if self._keeps_held_out:
            self._held_out = None
            if logits is not None:
                of_all = np.full((labels.size, classes), np.nan)
                of_all[np.any(held_out, axis=0)] = logits
                self._held_out = scaling, of_all, labels
        return self._adopt(
            Statistics(calibrated.stats, schema, layout, True, likelihood, observed, scaling=scaling)
        )

    def _fit_blocks(self, X: Blocks, y: Any, sample_weight: Any) -> Self:
        """Do what `_fit` does, from the blocks of a file."""
        rows = self._file_rows(X, y, sample_weight, self.kinds)
        if self.schema is not None and self.schema.classes:
            schema, present = self.schema, self.schema.classes
        else:
            schema, present = self._schema_of_file(rows, None, self.kinds)
        self._refuse_one_class(schema, present, rows.count)
        self._check_classes(schema.classes)
        sums = self._sums_of_file(rows, schema, schema)
        self._forget_fit()
        self.n_iter_ = 1
        self._adopt(Statistics(sums.values, schema, sums.layout, observed=sums.observed()))
        warn_of_singular(self.family_, self._singular, sums.of_class, schema.classes)
        return self

    @available_if(_learns_by_adding)
    def partial_fit(self, X: Any, y: Any = None, classes: Any = None, sample_weight: Any = None) -> Self:
        """Add rows X, y (and their `sample_weight`) to the model; any split of a table gives the model of `fit`.

        The first call must name all `classes`. Without a `schema` the location and scale of all rows are known
        only at the end: training values are then not clipped, and a warning says when that matters. Rows may
        bring new categories, not new classes. X may be `Blocks` of a file, as for `fit`.
        """
        if self.unlabelled is not None:
            raise ValueError(
                "partial_fit adds up labelled rows; rows without a label (unlabelled=...) need fit"
            )
        if isinstance(self.class_weight, str) and self.class_weight == "balanced":
            raise ValueError(
                "class_weight='balanced' needs the class frequencies of all rows, and partial_fit sees only some of "
                "them; give a mapping, for instance from sklearn.utils.class_weight.compute_class_weight"
            )
        with self._all_or_nothing():
            return self._partial_fit(X, y, classes, sample_weight)

    def _partial_fit(self, X: Any, y: Any, classes: Any, sample_weight: Any) -> Self:
        first = not hasattr(self, "statistics_")
        if self.schema is None:
            refuse_counting(self.kinds)
        kinds = self.kinds if first else kinds_so_far(self.schema_)
        training = (
            self._file_rows(X, y, sample_weight, kinds, reset=first)
            if isinstance(X, Blocks)
            else self._training(X, y, sample_weight, reset=first)
        )
        agreed = self.schema.classes if self.schema is not None else ()
        all_classes = classes_of_all(classes, agreed if first else tuple(self.schema_.classes))
        schema = (
            self._schema_of_file(training, all_classes, kinds)[0]
            if isinstance(training, FileRows)
            else self._schema_for(training, all_classes, kinds=kinds)
        )
        if schema.classes != all_classes:
            schema = replace(schema, classes=all_classes)
        self._check_classes(all_classes)
        unclipped = schema if self.schema is not None else replace(schema, clip=None)
        if isinstance(training, FileRows):
            sums = self._sums_of_file(training, schema, unclipped)
            added = Statistics(sums.values, schema, sums.layout)
        else:
            source = source_of(unclipped, training.table, again=False)
            missing = self._missing(source, training)
            layout, values = self._sums(training, training.labels_in(schema), source, schema, missing)
            added = Statistics(values, schema, layout)
        total = added if first else self.statistics_ + added
        clipped_column = None
        if self.schema is None:
            tables = (part.table for part in (training() if isinstance(training, FileRows) else [training]))
            clipped_column = next(filter(None, (beyond_clip(table, total.schema) for table in tables)), None)
        if clipped_column is not None:
            warnings.warn(
                f"column {clipped_column!r} holds values beyond {total.schema.clip} standard deviations, which fit "
                "would have clipped and partial_fit cannot; give a schema (schema=Schema.infer(sample, y)), or "
                "clip=None",
                stacklevel=3,
            )
        self.n_iter_ = 1
        return self._adopt(total)

    def _sums(
        self, training: Training, labels: np.ndarray, source: Source, schema: Schema, missing: bool
    ) -> tuple[Family, np.ndarray]:
        """Return the layout and S [C, K] of some of the rows; `missing`: whether a continuous value is missing."""
        classes = len(schema.classes)
        layout = laid_out(self.family_type, schema, missing)
        layout = self._structured(layout, source, labels, classes, training.weights)
        absent = first_missing(source, layout, missing)
        if absent is not None:
            raise SchemaError(
                f"column {absent!r} has missing values; {type(self).__name__} completes them in repeated passes over "
                "all rows, which partial_fit and blocks of a file do not have. Use fit, or MixedNB, or fill them in "
                "first, for instance with sklearn.impute.SimpleImputer"
            )
        data = passes.labelled(layout, source, labels, classes, training.weights)
        assert not isinstance(data, IncompleteData)  # refused above
        return layout, data.statistics()

    # --- rows of a file --------------------------------------------------------------------------------

    def _file_rows(self, X: Blocks, y: Any, sample_weight: Any, kinds: Any, reset: bool = True) -> FileRows:
        """Return the rows of a file; check them, and that this estimator can learn from blocks."""
        check(self.get_params(deep=False))
        refuse_blocks(self, self.learns_structure, y)
        if self.schema is None:
            refuse_counting(kinds, "a block of a file")
            if self._bins(len(X.names)) is not None:
                refuse_counting("binned", "a block of a file")
        return FileRows(
            X,
            checked_weights(sample_weight, X.row_count),
            self.class_weight,
            lambda features, first: self._block(features, first, reset),
        )

    def _block(self, features: Any, first: int, reset: bool = False) -> Table:
        """Return rows of a file as a table whose rows are numbered as in the file, from `first` on."""
        table = self._table(features, reset)
        if reset:
            self._refuse_extra(table)
        return table.numbered_from(first)

    def _schema_of_file(
        self, rows: FileRows, classes: tuple[Any, ...] | None, kinds: Any
    ) -> tuple[Schema, tuple[Any, ...]]:
        """Return the schema of the rows, or the one given, and the classes that occur; `classes`: all that may."""
        seen = look(rows, kinds, with_columns=self.schema is None)
        if self.schema is not None:
            return replace(self.schema, classes=classes or seen.classes), seen.classes
        warn_of_glance(seen.glance, seen.columns, kinds, seen.classes, stacklevel=4)
        return self._with_knowledge(seen.columns, classes or seen.classes), seen.classes

    def _sums_of_file(self, rows: FileRows, schema: Schema, encoded_in: Schema) -> FileSums:
        """Return the sums over the rows, which are encoded in the schema `encoded_in`."""
        numbers = [column.count for column in schema.columns if column.traits.reads_numbers]
        inferred = self.schema is None and rows.weights is None and self.class_weight is None
        complete = inferred and all(count == rows.count for count in numbers)
        some = covers_some_columns(self._knowledge())
        sums = FileSums(schema, rows.count)
        for training in rows():
            source = source_of(encoded_in, training.table, again=False)
            missing = some or (not complete and check_rows(source, training.table))
            labels = training.labels_in(schema)
            sums.add(training, labels, *self._sums(training, labels, source, schema, missing))
        return sums

    @classmethod
    def from_statistics(cls, statistics: Statistics, **parameters: Any) -> Self:
        """Return the model of given statistics, for instance the sum of several parties': no row is needed.

        `parameters` are the estimator's, where they should not be the defaults.
        """
        if not isinstance(statistics, Statistics):
            raise TypeError(
                f"from_statistics takes the statistics_ of a fitted {cls.__name__}, not {type(statistics).__name__}"
            )
        if statistics.family.name != cls.family_type.name:
            raise StatisticsMismatch(
                f"these are statistics of {statistics.family.name}; {cls.__name__} needs {cls.family_type.name}"
            )
        estimator = cls(**{"calibrate": statistics.calibrated, "clip": statistics.schema.clip, **parameters})
        check(estimator.get_params(deep=False))
        names = statistics.schema.names
        named = not all(re.fullmatch(r"x?\d+", name) for name in names)
        return estimator._adopt(statistics)._without_a_table(named)

    @classmethod
    def _loaded(cls, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Self:
        """Return the estimator that a file's header and arrays describe."""
        statistics = Statistics.restored(header, arrays["statistics"], arrays)
        # Files of naive Bayes that do not name a shrinkage are from before it had one.
        parameters = {"shrinkage": None, **restored(header["parameters"], arrays)}
        estimator = cls.from_statistics(statistics, **parameters)
        if parameters["costs"] is not None:
            cost_table(parameters["costs"], estimator.classes_)
        return estimator._without_a_table(header["named"] is True)

    # --- inside ----------------------------------------------------------------------------------------

    @classmethod
    @cache
    def _get_param_names(cls) -> list[str]:
        """Return the names of the parameters, which scikit-learn reads from the signature again at every fit."""
        return list(super()._get_param_names())

    def _training(self, X: Any, y: Any, sample_weight: Any, reset: bool) -> Training:
        """Return the training rows; check them and this estimator's parameters."""
        check(self.get_params(deep=False))
        if y is None and not isinstance(X, Blocks):
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        table = self._table(X, reset)
        self._refuse_extra(table)
        return training_rows(table, y, sample_weight, self.unlabelled, self.class_weight)

    def _refuse_extra(self, table: Table) -> None:
        """Refuse columns that the schema lacks."""
        if self.schema is not None and set(table.names) - set(self.schema.names) and table.frame is not None:
            extra = sorted(set(table.names) - set(self.schema.names))
            raise SchemaMismatch(
                f"the schema has no column {', '.join(extra[:5])}; leave it out of the table"
            )

    def _refuse_one_class(self, schema: Schema, present: tuple[Any, ...], rows: int) -> None:
        """Refuse rows that, with the schema, have no two classes."""
        if len(schema.classes) < 2:
            added = ", or add rows of one class to a model by partial_fit with classes=..."
            raise ValueError(
                f"y holds one class ({present[0]!r}, n_samples={rows}); a classifier needs at "
                f"least two classes. Name the others in a schema{added if hasattr(self, 'partial_fit') else ''}"
            )

    def _forget_fit(self) -> None:
        """Forget what only an earlier fit knew."""
        for name in ("history_", "n_iter_", "best_iter_", "validation_", "log_likelihood_", "_finds_columns"):
            self.__dict__.pop(name, None)

    def _schema_for(self, training: Training, classes: tuple[Any, ...], kinds: Any) -> Schema:
        """Return the given schema, or that of the rows with the categories of prior knowledge."""
        if self.schema is not None:
            return self.schema if self.schema.classes else replace(self.schema, classes=classes)
        bins = self._bins(len(training.table.names))
        columns, ends = inspect(training.table, kinds, training.weights, bins, training.labels)
        warn_of_data(
            training.table, columns, kinds, training.labels, training.classes, stacklevel=4, ends=ends
        )
        return self._with_knowledge(columns, classes)

    def _with_knowledge(self, columns: tuple[Column, ...], classes: tuple[Any, ...]) -> Schema:
        """Return the schema of these columns with the categories of prior knowledge."""
        known = self._knowledge()
        schema = Schema(columns, () if known else classes, self.clip)
        for knowledge in known:
            schema = schema.knowing(knowledge.schema)
        return schema if schema.classes == classes else replace(schema, classes=classes)

    def _knowledge(self) -> list[Statistics]:
        """Return the user's statistics: a start of calibration, a prior."""
        candidates = (self.start if self.calibrate else None, self.prior)
        return [item for item in candidates if isinstance(item, Statistics)]

    def _bins(self, columns: int) -> int | None:
        """Return how many bins the numbers of so many columns go into; None: `kinds` says so."""
        return None

    def _extended(self, schema: Schema, training: Training, labels: np.ndarray) -> Schema:
        """Return the schema with all that families see beside the columns."""
        return schema

    def _missing(self, source: Source, training: Training) -> bool:
        """Whether training values are missing, or prior knowledge covers only some columns."""
        inferred = training.weights is None and self.schema is None
        missing = check_rows(source, training.table, inferred=inferred)
        return missing or covers_some_columns(self._knowledge())

    def _structured(
        self,
        layout: Family,
        source: Source,
        labels: np.ndarray,
        classes: int,
        weights: np.ndarray | None,
    ) -> Family:
        """Return the layout with its structure, for families that have one."""
        return layout

    def _held_out_rows(
        self, schema: Schema, training: Training, labels: np.ndarray
    ) -> tuple[list[np.ndarray], str]:
        """Return which rows calibration holds out in each fold, masks [n], and a sentence about them."""
        if not (self.calibrate and self.validation_fraction):
            return [], "no row was held out: validation_fraction is 0"
        rows = folds.split(schema, training.table, labels, training.weights, self.validation_fraction)
        return list(rows.held_out()), rows.description

    def _maximise_likelihood(self, data: IncompleteData, layout: Family, source: Source) -> np.ndarray:
        """Return S of maximum likelihood where values or labels are missing: [C, K]."""
        prior = prior_for(source.schema, layout, self.alpha, self.prior)
        maximised = calibration.maximise_likelihood(
            data, prior, self.variance_floor, self.em_iter, self.em_tol
        )
        self.n_iter_ = maximised.objective.size
        units = np.broadcast_to(log_units(data.family, source), (source.rows, 1))[:, 0]
        self.log_likelihood_ = maximised.objective - units.mean()
        if not maximised.converged:
            warnings.warn(
                f"the log likelihood still changes by {self.em_tol} per row or more after em_iter={self.em_iter} steps "
                "(see log_likelihood_); raise em_iter, or em_tol",
                ConvergenceWarning,
                stacklevel=4,
            )
        return maximised.stats

    def _calibrated(
        self, family: Family, data: Labelled, schema: Schema, pairs: Sequence[tuple[Labelled, Labelled]] = ()
    ) -> Calibrated:
        """Calibrate with this estimator's parameters; `pairs` are training rows and those held out of them."""
        start = aligned(self.start, schema, family) if isinstance(self.start, Statistics) else self.start

        def first(rows: Labelled) -> np.ndarray:
            return beginning(start, family, rows, len(schema.classes), self.em_iter, self.em_tol)

        return calibrate(
            family,
            data,
            first(data),
            folds=[Fold(rows, first(rows), held_out) for rows, held_out in pairs],
            lr=self.lr,
            max_iter=self.max_iter,
            step=self.step,
            keep=self.keep,
            patience=self.patience,
            tol=self.tol,
            callback=self.callback if not self.verbose else Progress(self.max_iter, self.callback),
        )

    def _check_classes(self, classes: tuple[Any, ...]) -> None:
        """Refuse priors and weights that do not fit these classes."""
        if self.priors is not None or self.class_weight is not None:
            conventions.check_classes(self.priors, self.class_weight, classes)

    @staticmethod
    def _held_out_logits(
        family: Family, fold_weights: Sequence[np.ndarray], held_out: Sequence[np.ndarray], source: Source
    ) -> np.ndarray | None:
        """Return the logits of held-out rows in their order, each under the W [C, K] that never saw it: [h, C]."""
        if not held_out:
            return None
        held_rows = np.any(held_out, axis=0)
        logits = np.empty((int(np.count_nonzero(held_rows)), len(fold_weights[0])))
        for held, model_weights in zip(held_out, fold_weights, strict=True):
            logits[held[held_rows]] = log_joint(family, model_weights, taken(source, held))
        return logits

    def _scaling(
        self,
        logits: np.ndarray | None,
        held_out: Sequence[np.ndarray],
        labels: np.ndarray,
        weights: np.ndarray | None,
    ) -> Scaling | None:
        """Fit the map from the logits of held-out rows [h, C] to probabilities."""
        if self.temperature is True and logits is None:
            raise ValueError(f"temperature=True needs held-out rows, but {self.validation_}")
        if self.temperature is False or logits is None:
            return None
        chosen = np.any(held_out, axis=0)
        return fit(logits, labels[chosen], None if weights is None else weights[chosen])

    def _adopt(self, statistics: Statistics) -> Self:
        """Become the model of these statistics; calibrated ones need no prior."""
        schema, layout = statistics.schema, statistics.family
        family = self._guarded(layout, statistics.rows)
        if statistics.calibrated:
            prior = np.zeros(statistics.shape)
        else:
            prior = prior_for(schema, layout, self.alpha, self.prior, statistics.values, self.shrinkage)
        self._priors = None
        if self.priors is not None:
            self._priors = conventions.checked_priors(self.priors, schema.classes)
            of_rows = statistics.likelihood if statistics.calibrated else statistics.values + prior
            scaling = None if self.temperature is False else statistics.scaling
            temperature = 1.0 if scaling is None else scaling.temperature
            family = conventions.with_priors(family, of_rows, self._priors, temperature)
        self._weights, self._singular = family.adopted(statistics.values + prior)
        self.statistics_, self.prior_ = statistics, prior
        self.schema_, self.family_ = schema, family
        self.classes_ = np.array(schema.classes)
        self.n_features_in_ = len(schema.columns)
        return self

    def _without_a_table(self, named: bool) -> Self:
        """Mark a model that was not fitted to a table here: a DataFrame's columns are then matched by name."""
        self.__dict__.pop("feature_names_in_", None)
        if named:
            self.feature_names_in_ = np.array(self.schema_.names, dtype=object)
        self._finds_columns = named
        return self

    def _guarded(self, layout: Family, rows: float) -> Family:
        """Return the family with this estimator's floors."""
        return guarded(
            layout,
            rows,
            self.calibrate,
            self.variance_floor,
            self.count_floor,
            None if isinstance(self.shrinkage, str) else self.shrinkage,
        )

    def _table(self, X: Any, reset: bool) -> Table:
        """Return X as a table, after scikit-learn's checks of its shape and of its column names."""
        if isinstance(X, Table):
            return X
        if isinstance(X, Blocks):
            raise ValueError(
                f"{type(self).__name__} needs all rows at once here; read them with peerbayes.data.sources.read"
            )
        frame = frame_of(X)
        if frame is None and self._takes(X, reset):
            if reset:
                self.__dict__.pop("feature_names_in_", None)
                self.n_features_in_ = X.shape[1]
            return Table.of(X)
        if frame is None:
            X = validate_data(self, X, reset=reset, dtype=None, ensure_all_finite=False, accept_sparse=False)
            return Table.of(X)
        names = list(self.schema_.names) if not reset and getattr(self, "_finds_columns", False) else []
        table = Table.of(frame[names] if names and set(names) <= set(frame.columns) else frame)
        if table.rows == 0 or not table.names:
            raise ValueError(
                f"Found array with {table.rows} sample(s) and {len(table.names)} feature(s) "
                f"(shape={frame.shape}) while a minimum of 1 is required."
            )
        if reset or tuple(getattr(self, "feature_names_in_", ())) != table.labels:
            import pandas as pd

            named = (
                table.native if frame.implementation.is_pandas() else pd.DataFrame(columns=list(table.labels))
            )
            validate_data(self, named, reset=reset, skip_check_array=True)
        return table

    def _takes(self, X: Any, reset: bool) -> bool:
        """Whether scikit-learn's checks, which take longer than a prediction for a few rows, can only let X pass."""
        if type(X) is not np.ndarray or X.dtype.kind not in "fiu" or X.ndim != 2 or not X.size:
            return False
        return reset or (X.shape[1] == self.n_features_in_ and not hasattr(self, "feature_names_in_"))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = tags.input_tags.categorical = self.kinds != "continuous"
        return tags

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Restore the estimator as it was before, after an error."""
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise
