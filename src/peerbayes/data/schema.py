"""The meaning of a table's columns, so that every peer encodes a row as the same numbers.

A schema is a value: column names, kinds, categories, edges, classes, and the location and scale that standardise
numbers. Peers that agree on its fingerprint can mix their statistics.

Defined behaviour:

- Missing values (None, NaN, pandas' NA) are encoded as missing in every column.
- A category never seen in training is encoded as missing: it says nothing about the class.
- A column with no value at all has location 0 and scale 1 if continuous, no category if discrete, and takes
  the kind of the other side when schemas are merged.
- A constant column has scale 1 and says nothing; a single category likewise.
- A column that mixes text with numbers is refused, unless it is declared discrete.
- Infinities, dates, complex numbers and duplicated column names are refused by name. So are text columns in which
  nearly every row has a value of its own (identifiers), unless they are declared discrete.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from peerbayes.data.column import Column, Lookup, column_differences, lookup_of, merge_columns
from peerbayes.data.crosses import Cross
from peerbayes.data.files import refuse_existing
from peerbayes.data.infer import infer_classes, infer_columns, measured
from peerbayes.data.table import Rows, Scalar, Table, all_text, number, scalars, set_differences, union
from peerbayes.errors import SchemaError, SchemaMismatch

FORMAT = 1  # of the JSON text

# Fields of columns that only some kinds have, with their defaults: texts and fingerprints are without those.
OF_SOME_KINDS = {"edges": (), "low": None, "high": None, "penalty": 0.0}

# Standardised values never exceed this, so that φ stays finite.
FARTHEST = 1e100


CLASSES_SHOWN = 8  # in a schema's `repr`


@dataclass(frozen=True, repr=False)
class Schema:
    """Columns in order, the classes of the label, and where standardised values are clipped."""

    columns: tuple[Column, ...]
    """The description of each column, in order."""
    classes: tuple[Scalar, ...] = ()
    """The classes of the label, in order; empty where only rows are described."""
    clip: float | None = 5.0
    """Standardised values are held within ±clip (heavy tails); None turns it off."""
    label: str = field(default="label", compare=False)
    """The name of the label."""
    crosses: tuple[Cross, ...] = ()
    """Pairs of columns whose joint cells families see as further columns, after all others."""

    def __repr__(self) -> str:
        kinds = Counter(column.kind for column in self.columns)
        counted = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "none"
        crossed = f"; {len(self.crosses)} crosses" if self.crosses else ""
        classes = ", ".join(map(repr, self.classes[:CLASSES_SHOWN]))
        more = ", …" if len(self.classes) > CLASSES_SHOWN else ""
        return f"<Schema: columns: {counted}{crossed}; classes of {self.label!r}: {classes or 'none'}{more}>"

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if len(set(names)) < len(names):
            repeated = sorted({name for name in names if names.count(name) > 1})
            raise SchemaError(
                f"the schema has several columns named {', '.join(repeated)}; names must differ"
            )
        object.__setattr__(self, "classes", scalars(self.classes, "the label"))
        if self.classes and any(isinstance(value, str) for value in self.classes) != all_text(self.classes):
            raise SchemaError(f"the classes mix text and numbers: {list(self.classes)}; expected one of them")
        if self.clip is not None:
            object.__setattr__(self, "clip", number(self.clip, "clip"))
            if self.clip <= 0:
                raise SchemaError(f"clip is {self.clip}; expected a positive number, or None for no clipping")
        self._check_crosses()

    def _check_crosses(self) -> None:
        """Refuse crosses of columns that are not encoded as cells, or that have other cells."""
        if not self.crosses:
            return
        cells = {self.columns[j].name: self.columns[j].cells for j in self.discrete}
        for cross in self.crosses:
            for name, groups in zip(cross.columns, cross.groups, strict=True):
                if cells.get(name) != len(groups):
                    raise SchemaError(
                        f"the cross {cross.name} has {len(groups)} cells of {name!r}; expected a column with "
                        f"{cells.get(name, 'that many')} cells, discrete or binned"
                    )

    @classmethod
    def infer(
        cls,
        X: Any,
        y: Any = None,
        *,
        kinds: str | Mapping[Any, str] | Sequence[str] = "auto",
        clip: float | None = 5.0,
        sample_weight: Any = None,
        bins: int | None = None,
    ) -> Schema:
        """Return the schema of a table X, and of its labels y if given; `sample_weight` weighs location and scale.

        kinds: "auto" (text, booleans and categoricals are discrete, numbers continuous), "paper" (label-encode
        text; at most 10 distinct values is discrete), "continuous" or "discrete" for all columns, "binned" (bins
        that hold about equally many rows), "supervised" (bins with edges where the classes change), "positive"
        (log-normal) or "count" (Poisson) for all numbers, the others as with "auto", one kind per column, or a mapping
        from names (or positions) to kinds, the others "auto".
        clip: the bound of standardised values, None for no clipping. bins: how many bins numbers go into, for all
        columns of numbers that `kinds` does not name.
        """
        table = Table.of(X)
        weights = None if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
        for name, values in (("y", y), ("sample_weight", weights)):
            if values is not None and len(values) != table.rows:
                raise SchemaError(f"{name} has {len(values)} entries, the table {table.rows} rows")
        classes, labels = ((), None) if y is None else infer_classes(y)
        return cls(infer_columns(table, kinds, weights, bins, labels), classes, clip)

    # --- layout ----------------------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return tuple(column.name for column in self.columns)

    @property
    def kinds(self) -> dict[str, str]:
        """Kinds of the columns, by name."""
        return {column.name: column.kind for column in self.columns}

    @cached_property
    def continuous(self) -> tuple[int, ...]:
        """Positions of the columns that are encoded as numbers."""
        return tuple(j for j, column in enumerate(self.columns) if column.traits.dense)

    @cached_property
    def discrete(self) -> tuple[int, ...]:
        """Positions of the columns that are encoded as cells: discrete and binned ones."""
        if len(self.continuous) == len(self.columns):
            return ()
        dense = set(self.continuous)
        return tuple(j for j in range(len(self.columns)) if j not in dense)

    @cached_property
    def models(self) -> tuple[str, ...]:
        """What each column is in each class, by its kind: "gaussian", "poisson" or "cells"."""
        return tuple(column.traits.model for column in self.columns)

    @cached_property
    def transformed(self) -> tuple[int, ...]:
        """Which of the continuous columns are numbers of another kind than Gaussian ones, counted among these."""
        return tuple(k for k, j in enumerate(self.continuous) if not self.columns[j].traits.plain)

    @cached_property
    def lookup(self) -> Lookup | None:
        """The lookup tables of categories for an array of numbers; None unless all are small-range integers."""
        return lookup_of(self.columns, self.discrete)

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """Cells of each discrete column, then those of each cross; a column without any value keeps an empty cell."""
        return tuple(self.columns[j].cells for j in self.discrete) + tuple(
            cross.cells for cross in self.crosses
        )

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of all that families see, in their order: columns as numbers, columns as cells, crosses."""
        columns = (self.names[j] for j in (*self.continuous, *self.discrete))
        return (*columns, *(cross.name for cross in self.crosses))

    @cached_property
    def cell_labels(self) -> tuple[tuple[Scalar, ...], ...]:
        """What the cells of each discrete column and of each cross are called."""
        labels = {self.columns[j].name: self.columns[j].labels for j in self.discrete}
        crossed = (cross.labels(*(labels[name] for name in cross.columns)) for cross in self.crosses)
        return (*labels.values(), *crossed)

    @cached_property
    def location(self) -> np.ndarray:
        """Location of the continuous columns: [Dc]."""
        return np.array([self.columns[j].location for j in self.continuous], dtype=np.float64)

    @cached_property
    def scale(self) -> np.ndarray:
        """Scale of the continuous columns: [Dc]."""
        return np.array([self.columns[j].scale for j in self.continuous], dtype=np.float64)

    @property
    def silent(self) -> dict[str, str]:
        """Columns that say nothing of any class, by name: "empty" ones, without a value, and "constant" ones."""
        return {
            column.name: "empty" if column.empty else "constant"
            for column in self.columns
            if column.empty or column.traits.is_constant(column)
        }

    # --- rows ------------------------------------------------------------------------------------------

    def encode(self, X: Any) -> Rows:
        """Return the rows X as arrays: standardised and clipped values [n, Dc], and category indices [n, Dd].

        A DataFrame's columns are found by name, an array's by position.
        """
        table = Table.of(X)
        positions = self.places(table)
        array = self.array_of(table)
        plain = array is not None and not self.transformed and not np.isinf(array).any()
        if array is not None and plain:
            values = array if not self.discrete else array[:, list(self.continuous)]
        else:
            values = np.empty((table.rows, len(self.continuous)))
            for k, j in enumerate(self.continuous):
                values[:, k] = self._numbers(table, positions, j)
        codes = np.empty((table.rows, len(self.discrete)), dtype=np.int32)
        for k, j in enumerate(self.discrete):
            column = self.columns[j]
            if column.traits.reads_numbers:
                codes[:, k] = column.codes(self._numbers(table, positions, j))
            elif (texts := table.texts(positions[j], at_hand=True)) is not None:
                codes[:, k] = texts.mapped(column.codes(texts.values))
            else:
                codes[:, k] = column.codes(table.column(positions[j]))
        return Rows(self.standardise(values), self.crossed(codes))

    def crossed(self, codes: np.ndarray) -> np.ndarray:
        """Return `codes`, cells of the discrete columns, followed by those of the crosses: [n, Dd] -> [n, Dd + X]."""
        if not self.crosses:
            return codes.astype(np.int32, copy=False)
        names = self.names
        place = {names[j]: k for k, j in enumerate(self.discrete)}
        joint = np.empty((len(codes), codes.shape[1] + len(self.crosses)), dtype=np.int32)
        joint[:, : codes.shape[1]] = codes
        for k, cross in enumerate(self.crosses, start=codes.shape[1]):
            first, second = (codes[:, place[name]] for name in cross.columns)
            joint[:, k] = cross.codes(first, second)
        return joint

    def _numbers(self, table: Table, positions: list[int], j: int) -> np.ndarray:
        """Return the numbers of column j, NaN where missing; refuse infinite ones: [n]."""
        numbers = self.columns[j].numbers(table.column(positions[j]), table.number)
        infinite = np.isinf(numbers)
        if infinite.any():
            raise infinity_in(self.names[j], table.number(int(np.argmax(infinite))))
        return numbers

    def standardise(self, values: np.ndarray) -> np.ndarray:
        """Return (values − location)/scale, clipped: [n, Dc] -> [n, Dc]."""
        with np.errstate(over="ignore"):  # overflowing values are clipped
            standard = (values - self.location) * (1.0 / self.scale)
        return np.clip(standard, -self.limit, self.limit)

    @property
    def limit(self) -> float:
        """The bound of standardised values: the clip, or less where their squares would overflow."""
        return FARTHEST if self.clip is None else min(self.clip, FARTHEST)

    def decode(self, rows: Rows, rng: np.random.Generator | None = None) -> Any:
        """Return encoded rows as a DataFrame in the original columns and units.

        A bin is decoded as its middle, or as a number that `rng` draws evenly from it.
        """
        import pandas as pd

        values = np.asarray(rows.values) * self.scale + self.location
        positions = {j: k for kind in (self.continuous, self.discrete) for k, j in enumerate(kind)}
        decoded: dict[str, Any] = {}
        for j, column in enumerate(self.columns):
            encoded = values if column.dense else np.asarray(rows.codes)
            decoded[column.name] = column.traits.decoded(column, encoded[:, positions[j]], rng)
        return pd.DataFrame(decoded)

    def encode_labels(self, y: Any) -> np.ndarray:
        """Return the class indices of labels y: [n] -> [n]; a class the schema does not name is refused."""
        distinct_labels, codes = infer_classes(y)
        class_index = {value: index for index, value in enumerate(self.classes)}
        unknown = [value for value in distinct_labels if value not in class_index]
        if unknown:
            raise SchemaMismatch(
                f"y holds {', '.join(map(repr, unknown[:5]))}; expected one of the classes "
                f"{', '.join(map(repr, self.classes[:20]))}. Name every class beforehand"
            )
        return np.array([class_index[value] for value in distinct_labels], dtype=np.int32)[codes]

    def array_of(self, table: Table) -> np.ndarray | None:
        """Return a `table` as one array of numbers with these columns, in their order, if it is one: [n, D]."""
        return table.numeric if table.frame is None or table.names == self.names else None

    def places(self, table: Table) -> list[int]:
        """Return the position of each column in a `table`."""
        if table.frame is not None and table.names != self.names:
            position_of = {name: position for position, name in enumerate(table.names)}
            lacking = [name for name in self.names if name not in position_of]
            if lacking:
                raise SchemaMismatch(
                    f"the table has no column {', '.join(map(repr, lacking[:5]))}; "
                    f"expected {', '.join(self.names[:20])}"
                )
            return [position_of[name] for name in self.names]
        if len(table.names) != len(self.columns):
            raise SchemaMismatch(f"the table has {len(table.names)} columns, the schema {len(self.columns)}")
        return list(range(len(self.columns)))

    # --- agreement -------------------------------------------------------------------------------------

    def measured_on(self, X: Any, *, edges: bool = False, labels: np.ndarray | None = None) -> Schema:
        """Return this schema with the location and scale of other rows X; kinds, categories and classes stay.

        edges   whether binned columns get bins of these rows, as many unless they depend on the classes
        labels  [n] the class of each row, where they do
        """
        table = Table.of(X)
        positions = self.places(table)
        columns = [
            measured(replace(column, count=0.0), column.numbers(table.column(positions[j])), labels=labels)
            if column.dense or (edges and (column.edges or column.traits.needs_labels))
            else column
            for j, column in enumerate(self.columns)
        ]
        return replace(self, columns=tuple(columns))

    def with_edges_by_class(self, X: Any, labels: np.ndarray, weights: np.ndarray | None = None) -> Schema:
        """Return this schema with the edges of other rows X wherever they depend on the classes; all else stays.

        labels   [n] the class of each row
        weights  [n] how often it counts
        """
        table = Table.of(X)
        positions = self.places(table)
        columns = [
            measured(replace(column, count=0.0), column.numbers(table.column(positions[j])), weights, labels)
            if column.traits.needs_labels
            else column
            for j, column in enumerate(self.columns)
        ]
        return replace(self, columns=tuple(columns))

    def knowing(self, other: Schema) -> Schema:
        """Return this schema with the categories of the `other` added; nothing else changes."""
        theirs = {column.name: column for column in other.columns}
        columns = [
            column.traits.known(column, theirs[column.name]) if column.name in theirs else column
            for column in self.columns
        ]
        return replace(self, columns=tuple(columns))

    def merge(self, other: Schema) -> Schema:
        """Return the schema of this and the `other` table: union of categories and classes, pooled location and scale.

        Symmetric. Where the order of the columns differs, they are sorted by name.
        """
        blocking = [difference for difference in self.differences(other) if difference.startswith("!")]
        if blocking:
            raise SchemaMismatch(
                "the schemas do not fit together:\n"
                + "\n".join(f"  {difference[2:]}" for difference in blocking)
            )
        names = self.names if self.names == other.names else tuple(sorted(self.names))
        mine = {column.name: column for column in self.columns}
        theirs = {column.name: column for column in other.columns}
        columns = tuple(merge_columns(mine[name], theirs[name]) for name in names)
        return replace(self, columns=columns, classes=union(self.classes, other.classes))

    def differences(self, other: Schema) -> list[str]:
        """Return the differences from the `other`, a line each; one that starts with "! " prevents merging the two."""
        differences = [
            f"! only the first has column {name!r}" for name in self.names if name not in other.names
        ]
        differences += [
            f"! only the second has column {name!r}" for name in other.names if name not in self.names
        ]
        theirs = {column.name: column for column in other.columns}
        for column in self.columns:
            if column.name in theirs:
                differences += column_differences(column, theirs[column.name])
        if not differences and self.names != other.names:
            differences.append(
                f"the order of the columns: {', '.join(self.names)} against {', '.join(other.names)}"
            )
        differences += set_differences("class", self.classes, other.classes)
        if self.classes and other.classes and all_text(self.classes) != all_text(other.classes):
            differences.append(f"! the classes are text on one side: {self.classes} against {other.classes}")
        if self.clip != other.clip:
            differences.append(f"! clip: {self.clip} against {other.clip}")
        if self.crosses != other.crosses:
            differences.append("! the crosses, or the groups of their cells: agree on one schema first")
        elif self.crosses and any(line.startswith("column") for line in differences):
            differences = [f"! {line.removeprefix('! ')}, and columns are crossed" for line in differences]
        return differences

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of everything that decides how a row is encoded, as 64 hexadecimal digits."""
        described = self._described()
        for column in described["columns"]:
            for name in ("count", "constant", "low", "high", "penalty"):
                column.pop(name, None)
            column["categories"] = _without_booleans(column["categories"])
        for cross in described.get("crosses", ()):
            cross.pop("penalty", None)
        described["classes"] = _without_booleans(described["classes"])
        del described["label"]
        return hashlib.sha256(_canonical(described).encode()).hexdigest()

    # --- files -----------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """Return the schema as a text that `from_json` reads; equal schemas have equal texts."""
        return self._text

    @cached_property
    def _text(self) -> str:
        return _canonical({"format": FORMAT, **self._described()})

    def _described(self) -> dict[str, Any]:
        """Return the schema as plain values; fields that only some kinds have are left out of the others' columns."""
        described = asdict(self)
        for column in described["columns"]:
            for name, default in OF_SOME_KINDS.items():
                if column[name] == default:
                    del column[name]
        for cross in described["crosses"]:
            if not cross["penalty"]:
                del cross["penalty"]
        if not self.crosses:
            del described["crosses"]
        return described

    @classmethod
    def from_json(cls, text: str) -> Schema:
        """Return the schema of a JSON `text`; anything unexpected in it is refused."""
        try:
            described = json.loads(text)
            if described.pop("format") != FORMAT:
                raise SchemaError("the schema was written in another format; update peerbayes")
            columns = tuple(Column(**column) for column in described.pop("columns"))
            crosses = tuple(Cross(**cross) for cross in described.pop("crosses", ()))
            return cls(columns, crosses=crosses, **described)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            if isinstance(error, SchemaError):
                raise
            raise SchemaError(f"this is not the JSON text of a schema: {error}") from error

    def save(self, path: str | Path, overwrite: bool = False) -> None:
        """Write the schema to the file `path`, as JSON. A file that is there is replaced only with `overwrite`."""
        refuse_existing(path, overwrite)
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Schema:
        """Read a schema from the file `path`."""
        return cls.from_json(Path(path).read_text(encoding="utf-8"))


def infinity_in(column: str, row: int) -> SchemaError:
    """Return the error for an infinite value, which no family can take."""
    return SchemaError(
        f"column {column!r} holds infinity (inf, row {row}); "
        "expected a finite number, or nothing for a missing value"
    )


def _without_booleans(values: Sequence[Scalar]) -> list[Scalar]:
    """Return the values with booleans as integers: True and 1 are the same category."""
    return [int(value) if isinstance(value, bool) else value for value in values]


def _canonical(described: Any) -> str:
    return json.dumps(described, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
