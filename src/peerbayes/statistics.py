"""Sufficient statistics with their schema and family, so that they can be added.

    S = Σ_rows y φ(x)ᵀ      so S(A ∪ B) = S(A) + S(B)

Two parties that each fitted a model can add their statistics to get the model of all their rows, even where
their categories, classes, column order, location or scale differ: S is first expressed in the merged schema,
which is exact because φ in other units is linear in φ. Only clipping is not linear: values that each side clipped
at its own limits stay clipped there. Agree on a schema first where tails are heavy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from peerbayes import files
from peerbayes.errors import ModelFileDamaged, StatisticsMismatch
from peerbayes.families import FAMILIES
from peerbayes.families.base import Family, Move
from peerbayes.families.naive_bayes import NaiveBayes
from peerbayes.schema import Schema


@dataclass(frozen=True, eq=False)
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

    def __post_init__(self) -> None:
        layout = len(self.schema.continuous), self.schema.cardinalities
        if not self.schema.classes or layout != (self.family.continuous, self.family.cardinalities):
            raise StatisticsMismatch(
                f"the schema has {len(self.schema.classes)} classes, {layout[0]} continuous columns and categories "
                f"{layout[1]}; the family is laid out for {self.family.continuous} and {self.family.cardinalities}"
            )
        if not isinstance(self.calibrated, bool):
            raise StatisticsMismatch(f"calibrated is {self.calibrated!r}; expected true or false")
        values = np.array(self.values, dtype=np.float64)  # a copy, which nobody else can change
        expected = (len(self.schema.classes), self.family.size)
        if values.shape != expected:
            raise StatisticsMismatch(
                f"statistics of shape {values.shape} do not fit the schema and the {self.family.name} family, "
                f"which need {expected[0]} classes x {expected[1]} features"
            )
        if not np.isfinite(values).all():
            raise StatisticsMismatch("the statistics hold NaN or infinity; expected finite numbers")
        values.setflags(write=False)
        object.__setattr__(self, "values", values)

    @property
    def rows(self) -> float:
        """The number of rows: Σ_c S_c0."""
        return float(self.values[:, 0].sum())

    @classmethod
    def of_model(cls, values: np.ndarray, schema: Schema, family: Family, rows: float) -> Statistics:
        """Return a calibrated model as statistics of `rows` rows; guards that count pseudo-rows then act as they did.

        Peers calibrate statistics of weight m⁰; θ(aS) = θ(S), so their scale is free.

        values   S [C, K], of any weight
        schema   the columns and classes
        family   the layout of the numbers
        rows     how many rows the model was made from
        """
        mass = float(values[:, 0].sum())
        return cls(values * (rows / mass) if mass > 0 else values, schema, family, calibrated=True)

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
        return replace(self, values=self.values * float(factor))

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
        return replace(mine, values=mine.values + theirs.values)

    __radd__ = __add__

    def with_missing(self) -> Statistics:
        """Return the same statistics in the layout for missing values; only naive Bayes has one."""
        if not isinstance(self.family, NaiveBayes):
            return self
        return replace(self, values=self.family.spread(self.values), family=self.family.with_missing())

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
        family, moved = self.family.moved(self.values, self._move_to(schema))
        values = np.zeros((len(schema.classes), family.size))
        values[classes] = moved
        return replace(self, values=values, schema=schema, family=family)

    # --- bytes -----------------------------------------------------------------------------------------

    def described(self) -> dict[str, Any]:
        """Return everything but the numbers, as plain values."""
        family = {"name": self.family.name, **self.family.layout()}
        return {"schema": self.schema.to_json(), "family": family, "calibrated": self.calibrated}

    @classmethod
    def restored(cls, described: dict[str, Any], values: np.ndarray) -> Statistics:
        """Return the statistics that `described` and `values` represent; an unknown family is refused."""
        schema, family = Schema.from_json(described["schema"]), described["family"]
        if family["name"] not in FAMILIES:
            raise StatisticsMismatch(
                f"the family is {family['name']!r}; expected one of {', '.join(FAMILIES)}"
            )
        layout: dict[str, Any] = {"missing": True} if family.get("missing") is True else {}
        if "parents" in family:
            layout["parents"] = tuple(tuple(column_parents) for column_parents in family["parents"])
        layout |= {"continuous": len(schema.continuous), "cardinalities": schema.cardinalities}
        built = FAMILIES[family["name"]](**layout)
        if {"name": built.name, **built.layout()} != family:
            raise StatisticsMismatch(
                f"the family {family} does not fit the schema, which needs {built.layout()}"
            )
        return cls(values, schema, built, described["calibrated"])

    def to_bytes(self) -> bytes:
        """Return these statistics as bytes for another party: schema, family, numbers and a digest; no rows."""
        return files.pack({"kind": "statistics", **self.described()}, {"statistics": self.values})

    @classmethod
    def from_bytes(cls, content: bytes) -> Statistics:
        """Return the statistics in `content`, which `to_bytes` wrote, after checking all of it."""
        header, arrays = files.unpack(content, "the statistics")
        try:
            return cls.restored(header, arrays["statistics"])
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
            categories = () if column < 0 else mine.columns[mine.discrete[column]].categories
            kind = f"category of {schema.names[j]!r}"
            codes = [_index_of(schema.columns[j].categories, category, kind) for category in categories]
            levels.append(np.array(codes, dtype=np.int64))
        return Move(order, shift, ratio, schema.cardinalities, columns, tuple(levels))


def _index_of(values: tuple[Any, ...], value: Any, kind: str) -> int:
    """Return the index of a class or category; StatisticsMismatch if there is none."""
    try:
        return values.index(value)
    except ValueError:
        raise StatisticsMismatch(f"the {kind} {value!r} is not in the target schema") from None
