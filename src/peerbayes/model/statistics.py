"""Sufficient statistics as a value: added, saved, and prior knowledge that is added to them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from peerbayes.data import files
from peerbayes.data.schema import Schema
from peerbayes.errors import ModelFileDamaged, StatisticsMismatch
from peerbayes.model.families import FAMILIES
from peerbayes.model.families.base import Family, Move, laid_out, poisson_columns
from peerbayes.model.families.naive_bayes import NaiveBayes
from peerbayes.model.scaling import Scaling
from peerbayes.model.sources import LaterObserved, Observed

# --- sufficient statistics with their schema and family, so that they can be added
#     S = Σ_rows y φ(x)ᵀ      so S(A ∪ B) = S(A) + S(B)
#
# Two parties that each fitted a model can add their statistics to get the model of all their rows, even where
# their categories, classes, column order, location or scale differ: S is first expressed in the merged schema,
# which is exact because φ in other units is linear in φ. Only clipping is not linear: values that each side clipped
# at its own limits stay clipped there. Agree on a schema first where tails are heavy.


class _Counted:
    """The field of what was counted in the rows, which may be counted when it is first read."""

    def __get__(self, statistics: Statistics | None, owner: type) -> Observed | None:
        observed = None if statistics is None else statistics.__dict__["observed"]
        return observed.counted() if isinstance(observed, LaterObserved) else observed

    def __set__(self, statistics: Statistics, observed: Observed | LaterObserved | None) -> None:
        statistics.__dict__["observed"] = observed


@dataclass(frozen=True, eq=False, repr=False)
class Statistics:
    """S [C, K] with its schema and its family's layout. `s1 + s2` pools rows, `s1 - s2` removes them again,
    `s * 0.5` makes them count half.
    """

    values: np.ndarray
    """The numbers: [C, K]."""
    schema: Schema
    """The columns and classes."""
    family: Family
    """The layout of the numbers."""
    calibrated: bool = False
    """Whether they come from calibration: they then describe a model, no longer a set of rows."""
    likelihood: np.ndarray | None = None
    """YᵀΦ of the rows that calibrated statistics learned from, [C, K]: what the classes look like. None: not kept."""
    observed: _Counted = _Counted()
    """How much each column tells of the class, and its range, as counted in the rows. None: not counted."""
    scaling: Scaling | None = field(default=None, kw_only=True)
    """The map from its logits to probabilities, where one was fitted. Sums of statistics have none."""

    def __repr__(self) -> str:
        of = "a calibrated model" if self.calibrated else "rows"
        classes, features = self.values.shape
        return f"<Statistics of {of}: {self.family.name}, {classes} classes, {features} features; {self.schema!r}>"

    def __post_init__(self) -> None:
        layout = len(self.schema.continuous), self.schema.cardinalities
        if not self.schema.classes or layout != (self.family.continuous, self.family.cardinalities):
            raise StatisticsMismatch(
                f"the schema has {len(self.schema.classes)} classes, {layout[0]} continuous columns and categories "
                f"{layout[1]}; the family is laid out for {self.family.continuous} and {self.family.cardinalities}"
            )
        if getattr(self.family, "poisson", ()) != poisson_columns(self.schema):
            raise StatisticsMismatch("the columns that are counts in the schema are not those of the family")
        if not isinstance(self.calibrated, bool):
            raise StatisticsMismatch(f"calibrated is {self.calibrated!r}; expected true or false")
        if self.scaling is not None and len(self.scaling.bias) != len(self.schema.classes):
            raise StatisticsMismatch(
                f"the scaling has {len(self.scaling.bias)} classes, the schema {len(self.schema.classes)}"
            )
        object.__setattr__(self, "values", self._checked(self.values))
        if self.likelihood is not None:
            if not self.calibrated:
                raise StatisticsMismatch(
                    "statistics of rows are those of maximum likelihood themselves; expected no others beside them"
                )
            object.__setattr__(self, "likelihood", self._checked(self.likelihood))
        observed = self.__dict__["observed"]
        if observed is not None and not isinstance(observed, LaterObserved):
            self._check_observed(observed)

    def _check_observed(self, observed: Observed) -> None:
        """Refuse bits and ranges that do not fit the columns."""
        shapes = tuple(np.shape(numbers) for numbers in observed)
        columns, continuous = len(self.schema.feature_names), len(self.schema.continuous)
        if shapes != ((columns,), (continuous, 2)):
            raise StatisticsMismatch(
                f"bits and ranges of columns have shapes {shapes}; the schema has {columns} columns, "
                f"{continuous} of them continuous"
            )
        if not all(np.isfinite(numbers).all() for numbers in observed):
            raise StatisticsMismatch("bits and ranges of columns hold NaN or infinity; expected numbers")

    def _checked(self, numbers: np.ndarray) -> np.ndarray:
        """Return statistics [C, K] as a copy that nobody else can change, of the right shape and finite."""
        values = np.array(numbers, dtype=np.float64)
        expected = (len(self.schema.classes), self.family.size)
        if values.shape != expected:
            raise StatisticsMismatch(
                f"statistics of shape {values.shape} do not fit the schema and the {self.family.name} family, "
                f"which need {expected[0]} classes x {expected[1]} features"
            )
        if not np.isfinite(values).all():
            raise StatisticsMismatch("the statistics hold NaN or infinity; expected finite numbers")
        values.setflags(write=False)
        return values

    @property
    def rows(self) -> float:
        """The number of rows: Σ_c S_c0."""
        return float(self.values[:, 0].sum())

    @property
    def of_rows(self) -> np.ndarray | None:
        """The statistics of maximum likelihood, [C, K]: of the rows, or beside a calibrated model; None: not kept."""
        return self.likelihood if self.calibrated else self.values

    @classmethod
    def of_model(
        cls,
        values: np.ndarray,
        schema: Schema,
        family: Family,
        rows: float,
        likelihood: np.ndarray | None = None,
        observed: Observed | LaterObserved | None = None,
    ) -> Statistics:
        """Return a calibrated model as statistics of `rows` rows; guards that count pseudo-rows then act as they did.

        Peers calibrate statistics of weight m⁰; θ(aS) = θ(S), so their scale is free.

        values   S [C, K], of any weight
        schema   the columns and classes
        family   the layout of the numbers
        rows     how many rows the model was made from
        likelihood, observed  YᵀΦ of these rows, and what was counted of their columns, where they are known
        """
        mass = float(values[:, 0].sum())
        scaled = values * (rows / mass) if mass > 0 else values
        return cls(scaled, schema, family, True, likelihood, observed)

    @property
    def shape(self) -> tuple[int, ...]:
        """(C, K)."""
        return self.values.shape

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.values.setflags(write=False)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.values, dtype=dtype, copy=copy)

    def __mul__(self, factor: float) -> Statistics:
        likelihood = None if self.likelihood is None else self.likelihood * float(factor)
        return replace(self, values=self.values * float(factor), likelihood=likelihood)

    __rmul__ = __mul__

    def __sub__(self, other: Any) -> Statistics:
        return self + -1.0 * other if isinstance(other, Statistics) else NotImplemented

    def __add__(self, other: Any) -> Statistics:
        if isinstance(other, int | float) and other == 0:  # so that sum() works
            return self
        if not isinstance(other, Statistics):
            return NotImplemented
        if self.family.name != other.family.name:
            raise StatisticsMismatch(
                f"statistics of {self.family.name} and of {other.family.name} cannot be added; "
                "fit both with the same estimator"
            )
        if self.calibrated != other.calibrated:
            raise StatisticsMismatch(
                "calibrated statistics describe a model, others a set of rows: they cannot be added. "
                "Fit both with the same value of calibrate"
            )
        merged = self.schema.merge(other.schema)
        mine, theirs = self.expressed(merged), other.expressed(merged)
        missing = any(isinstance(s.family, NaiveBayes) and s.family.missing for s in (mine, theirs))
        if missing:
            mine, theirs = mine.with_missing(), theirs.with_missing()
        both = mine.likelihood is not None and theirs.likelihood is not None
        likelihood = mine.likelihood + theirs.likelihood if both else None  # type: ignore[operator]
        return replace(
            mine, values=mine.values + theirs.values, likelihood=likelihood, observed=None, scaling=None
        )

    __radd__ = __add__

    def with_missing(self) -> Statistics:
        """Return the same statistics in the layout for missing values; only naive Bayes has one."""
        if not isinstance(self.family, NaiveBayes):
            return self
        likelihood = None if self.likelihood is None else self.family.spread(self.likelihood)
        values, family = self.family.spread(self.values), self.family.with_missing()
        return replace(self, values=values, family=family, likelihood=likelihood)

    def expressed(self, schema: Schema) -> Statistics:
        """Return the same statistics in another schema, which must have every category and class that they hold."""
        if schema == self.schema:
            return replace(self, schema=schema)
        if schema.continuous and self._unknown_in(schema):
            return self.with_missing()._expressed(schema)
        return self._expressed(schema)

    def _unknown_in(self, schema: Schema) -> bool:
        """Whether `schema` has a continuous column that this schema lacks."""
        mine = {self.schema.names[j] for j in self.schema.continuous}
        return any(schema.names[j] not in mine for j in schema.continuous)

    def _expressed(self, schema: Schema) -> Statistics:
        """Return the same statistics in another schema, in the present layout."""
        classes = [_index_of(schema.classes, value, "class") for value in self.schema.classes]
        move = self._move_to(schema)

        def expressed(numbers: np.ndarray) -> tuple[Family, np.ndarray]:
            family, moved = self.family.moved(numbers, move)
            if isinstance(family, NaiveBayes):
                family = replace(family, poisson=poisson_columns(schema))
            values = np.zeros((len(schema.classes), family.size))
            values[classes] = moved
            return family, values

        family, values = expressed(self.values)
        likelihood = None if self.likelihood is None else expressed(self.likelihood)[1]
        scaling = self.scaling
        if scaling is not None:
            bias = np.zeros(len(schema.classes))
            bias[classes] = scaling.bias
            scaling = replace(scaling, bias=tuple(bias.tolist()))
        return replace(
            self,
            values=values,
            schema=schema,
            family=family,
            likelihood=likelihood,
            observed=None,
            scaling=scaling,
        )

    # --- bytes -----------------------------------------------------------------------------------------

    def described(self) -> dict[str, Any]:
        """Return everything but the numbers, as plain values."""
        return {
            "schema": self.schema.to_json(),
            **describe_family(self.family),
            "calibrated": self.calibrated,
            **({} if self.scaling is None else {"scaling": self.scaling.to_json()}),
        }

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the numbers by their names in a file."""
        arrays = {"statistics": self.values}
        if self.likelihood is not None:
            arrays["likelihood"] = self.likelihood
        if self.observed is not None:
            arrays |= self.observed._asdict()
        return arrays

    @classmethod
    def restored(
        cls,
        described: dict[str, Any],
        values: np.ndarray,
        arrays: Mapping[str, np.ndarray] = MappingProxyType({}),
    ) -> Statistics:
        """Return the statistics that `described` and `values` represent; an unknown family is refused.

        `arrays` are those of a file: an older one has no likelihood, bits and ranges.
        """
        schema, family = Schema.from_json(described["schema"]), described["family"]
        family_type = family_of(described)
        layout: dict[str, Any] = {"missing": True} if family.get("missing") is True else {}
        if "parents" in family:
            layout["parents"] = tuple(tuple(column_parents) for column_parents in family["parents"])
        if family_type.takes_crosses:
            layout["crosses"] = len(schema.crosses)
        if "poisson" in family:
            layout["poisson"] = poisson_columns(schema)
        layout |= {"continuous": len(schema.continuous), "cardinalities": schema.cardinalities}
        built = family_type(**layout)
        if {"name": built.name, **built.layout()} != family:
            raise StatisticsMismatch(
                f"the family {family} does not fit the schema, which needs {built.layout()}"
            )
        observed = Observed(arrays["bits"], arrays["ranges"]) if "bits" in arrays else None
        scaling = Scaling.from_json(described["scaling"]) if "scaling" in described else None
        likelihood = arrays.get("likelihood")
        return cls(values, schema, built, described["calibrated"], likelihood, observed, scaling=scaling)

    def to_bytes(self) -> bytes:
        """Return these statistics as bytes for another party: schema, family, numbers and a digest; no rows."""
        return files.pack({"kind": "statistics", **self.described()}, self.arrays())

    @classmethod
    def from_bytes(cls, content: bytes) -> Statistics:
        """Return the statistics in `content`, which `to_bytes` wrote, after checking all of it."""
        header, arrays = files.unpack(content, "the statistics")
        try:
            return cls.restored(header, arrays["statistics"], arrays)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise ModelFileDamaged(f"these bytes hold no statistics: {error}") from error

    # --- inside ----------------------------------------------------------------------------------------

    def _move_to(self, schema: Schema) -> Move:
        """Return the map from the columns, units and categories of this schema to those of `schema`."""
        mine = self.schema
        continuous = {mine.names[j]: k for k, j in enumerate(mine.continuous)}
        order = np.array([continuous.get(schema.names[j], -1) for j in schema.continuous], dtype=np.int64)
        present = order >= 0
        location, scale = np.zeros(order.size), np.ones(order.size)
        location[present], scale[present] = mine.location[order[present]], mine.scale[order[present]]
        shift, ratio = (schema.location - location) / scale, scale / schema.scale
        discrete = {mine.names[j]: k for k, j in enumerate(mine.discrete)}
        columns = tuple(discrete.get(schema.names[j], -1) for j in schema.discrete)
        levels = []
        for j, column in zip(schema.discrete, columns, strict=True):
            cells = () if column < 0 else mine.columns[mine.discrete[column]].identities
            kind = f"category of {schema.names[j]!r}"
            codes = [_index_of(schema.columns[j].identities, cell, kind) for cell in cells]
            levels.append(np.array(codes, dtype=np.int64))
        if mine.crosses != schema.crosses:
            raise StatisticsMismatch(
                "the statistics have other crosses of columns than the schema; agree on one schema first"
            )
        columns += tuple(range(len(mine.discrete), len(mine.cardinalities)))
        levels += [np.arange(cross.cells) for cross in schema.crosses]
        return Move(order, shift, ratio, schema.cardinalities, columns, tuple(levels))


def describe_family(family: Family) -> dict[str, Any]:
    """Return the name and the layout of a family, and the outside package that it is of, as plain values."""
    described: dict[str, Any] = {"family": {"name": family.name, **family.layout()}}
    if family.name in FAMILIES and (package := FAMILIES.package(family.name)) is not None:
        described["package"] = package
    return described


def family_of(described: dict[str, Any]) -> type[Family]:
    """Return the type of the family that a file describes; ExtensionError where its package is missing."""
    name, package = described["family"]["name"], described.get("package")
    if isinstance(name, str) and isinstance(package, str):
        FAMILIES.require(name, package, "the file")
    if name not in FAMILIES:
        raise StatisticsMismatch(f"the family is {name!r:.80}; expected one of {', '.join(FAMILIES.names())}")
    return FAMILIES[name]


def _index_of(values: tuple[Any, ...], value: Any, kind: str) -> int:
    """Return the index of a class or category; StatisticsMismatch if there is none."""
    try:
        return values.index(value)
    except ValueError:
        raise StatisticsMismatch(f"the {kind} {value!r} is not in the target schema") from None


# --- statistics that a user gives as a prior or a start, in the schema and layout of a model


def aligned(statistics: Statistics, schema: Schema, family: Family) -> np.ndarray:
    """Return a user's statistics as an array in this model's schema and layout: [C, K]."""
    if statistics.family.name != family.name:
        raise StatisticsMismatch(
            f"expected statistics of {family.name}, got those of {statistics.family.name}"
        )
    expressed = statistics.expressed(schema)
    if isinstance(family, NaiveBayes) and family.missing:
        expressed = expressed.with_missing()
    if expressed.family.size != family.size:
        raise StatisticsMismatch(
            f"the statistics given have {expressed.family.size} features per class, the model has {family.size}"
        )
    return expressed.values


def prior_for(
    schema: Schema,
    family: Family,
    alpha: float | str,
    prior: Statistics | None,
    stats: np.ndarray | None = None,
    shrinkage: float | str | None = None,
) -> np.ndarray:
    """Return smoothing, shrinkage and the user's prior as one statistic: [C, K].

    What is "auto" is estimated from `stats` [C, K] and the user's prior; without them alpha is one row in every cell.
    A number as `shrinkage` is for families that do not have it as a setting of their own.
    """
    user_prior = None if prior is None else aligned(prior, schema, family)
    by_family = hasattr(family, "shrinkage") and shrinkage != "auto"
    if stats is None:
        smoothing = family.smoothing(len(schema.classes), 1.0 if isinstance(alpha, str) else alpha)
    else:
        known = stats if user_prior is None else stats + user_prior
        smoothing = family.estimated_prior(known, alpha, None if by_family else shrinkage)
    return smoothing if user_prior is None else smoothing + user_prior


def covers_some_columns(statistics: Iterable[Statistics]) -> bool:
    """Whether a user's statistics allow missing values, so that they may cover only some columns."""
    layouts = [item.family for item in statistics]
    return any(isinstance(family, NaiveBayes) and family.missing for family in layouts)


# --- prior knowledge as statistics: conjugate priors for naive Bayes
#     knowledge worth n_c rows of class c:   Σo = n_c,  Σx = n_c·μ,  Σx² = n_c·(σ² + μ²),  cells = n_c·p
#
# Columns and classes without a belief, and columns in single classes without one, stay open.


def prior_knowledge(
    schema: Schema,
    rows: float,
    *,
    classes: Mapping[Any, float] | None = None,
    columns: Mapping[str, Mapping[Any, Any]] | None = None,
) -> Statistics:
    """Return statistics of a belief that is worth `rows` rows, for `MixedNB(prior=...)` or `MixedNB(start=...)`.

    schema    the columns and classes, for instance `Schema.infer(X, y)`
    rows      how many rows the belief is worth
    classes   {class: probability}; without it there is no belief about how frequent classes are
    columns   {column: {class: belief}}; a belief is (mean, deviation) in the column's own units where the column is
              continuous or a count, of its logarithm where it is positive; {category: probability} where it is
              discrete, with intervals such as "< 3.5" for categories where it is binned
    """
    if not (rows > 0 and math.isfinite(rows)):
        raise ValueError(f"rows is {rows}; expected how many rows the belief is worth, a positive number")
    family = laid_out(NaiveBayes, schema, missing=True)
    assert isinstance(family, NaiveBayes)
    share = _shares(schema, classes)
    values = np.zeros((len(schema.classes), family.size))
    if classes is not None:
        values[:, 0] = rows * share
    for name, beliefs in (columns or {}).items():
        if name not in schema.names:
            raise ValueError(f"there is no column {name!r}; expected one of {', '.join(schema.names[:20])}")
        for label, belief in beliefs.items():
            c = _class(schema, label)
            _believe(values[c], schema, family, name, belief, rows * share[c])
    return Statistics(values, schema, family)


def _shares(schema: Schema, classes: Mapping[Any, float] | None) -> np.ndarray:
    """Return the share of the rows that each class gets: [C]."""
    if classes is None:
        return np.full(len(schema.classes), 1 / len(schema.classes))
    share = np.zeros(len(schema.classes))
    for label, probability in classes.items():
        share[_class(schema, label)] = probability
    if (share < 0).any() or not math.isclose(share.sum(), 1, rel_tol=1e-6):
        raise ValueError(f"the classes' probabilities are {dict(classes)}; expected them to add up to 1")
    return share


def _believe(
    row: np.ndarray, schema: Schema, family: NaiveBayes, name: str, belief: Any, worth: float
) -> None:
    """Add a belief about one column of one class to its statistics [K]."""
    j = schema.names.index(name)
    d = family.continuous
    if schema.columns[j].dense:
        try:
            mean, deviation = (float(number) for number in belief)
        except (TypeError, ValueError):
            raise ValueError(f"the belief about {name!r} is {belief!r}; expected (mean, deviation)") from None
        if not (math.isfinite(mean) and 0 < deviation < math.inf):
            raise ValueError(f"the belief about {name!r} is {belief!r}; expected a positive deviation")
        k = schema.continuous.index(j)
        mean, deviation = (mean - schema.location[k]) / schema.scale[k], deviation / schema.scale[k]
        row[[1 + k, 1 + d + k, 1 + 2 * d + k]] = worth, worth * mean, worth * (deviation**2 + mean**2)
        return
    categories = schema.columns[j].labels
    if not isinstance(belief, Mapping) or not set(belief) <= set(categories):
        raise ValueError(
            f"the belief about {name!r} is {belief!r}; expected {{category: probability}} of {list(categories)}"
        )
    if min(belief.values()) < 0 or not math.isclose(sum(belief.values()), 1, rel_tol=1e-6):
        raise ValueError(f"the belief about {name!r} is {belief!r}; expected probabilities that add up to 1")
    start = family.dense_size + int(family.offsets[schema.discrete.index(j)])
    for category, probability in belief.items():
        row[start + categories.index(category)] = worth * probability


def _class(schema: Schema, label: Any) -> int:
    """Return the index of a class; ValueError if there is none."""
    if label not in schema.classes:
        raise ValueError(f"{label!r} is not a class; expected one of {list(schema.classes)}")
    return schema.classes.index(label)
