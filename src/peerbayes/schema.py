"""What the columns of a table mean, so that every peer turns a row into the same numbers.

A schema is a value: column names, kinds, categories, classes, and the location and scale that standardise
continuous columns. Peers that agree on its fingerprint can mix their statistics.

Defined behaviour:

- Missing values (None, NaN, pandas' NA) are encoded as missing in every column.
- A category never seen in training is encoded as missing: it says nothing about the class.
- A column with no value at all has location 0 and scale 1 if continuous, no category if discrete, and takes
  the kind of the other side when schemas are merged.
- A constant column has scale 1 and says nothing; a single category likewise.
- A column that mixes text with numbers is refused, unless it is declared discrete.
- Infinities, dates, complex numbers and duplicated column names are refused by name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from peerbayes.columns import (
    Column,
    Scalar,
    all_text,
    column_differences,
    merge_columns,
    number,
    scalars,
    set_differences,
    union,
)
from peerbayes.errors import SchemaError, SchemaMismatch
from peerbayes.families.base import Rows
from peerbayes.inference import infer_classes, infer_columns, measured
from peerbayes.tables import Table

FORMAT = 1  # of the JSON text

# Standardised values never exceed this, so that φ stays finite.
FARTHEST = 1e100


@dataclass(frozen=True)
class Schema:
    """Columns in order, the classes of the label, and where standardised values are clipped."""

    columns: tuple[Column, ...]
    """What each column means, in order."""
    classes: tuple[Scalar, ...] = ()
    """Of the label, in order; none where only rows are described."""
    clip: float | None = 5.0
    """Standardised values are held within ±clip (heavy tails); None turns it off."""
    label: str = field(default="label", compare=False)
    """What the label is called."""

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
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

    @classmethod
    def infer(
        cls,
        X: Any,
        y: Any = None,
        *,
        kinds: str | Mapping[Any, str] | Sequence[str] = "auto",
        clip: float | None = 5.0,
        sample_weight: Any = None,
    ) -> Schema:
        """The schema of a table X, and of its labels y if given; `sample_weight` weighs location and scale.

        kinds: "auto" (text, booleans and categoricals are discrete, numbers continuous), "paper" (label-encode
        text; at most 10 distinct values is discrete), "continuous" or "discrete" for all columns, one kind per
        column, or a mapping from names (or positions) to kinds, the others "auto". clip: where standardised values
        will end, None for nowhere.
        """
        table = Table.of(X)
        weights = None if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
        for name, given in (("y", y), ("sample_weight", weights)):
            if given is not None and len(given) != table.rows:
                raise SchemaError(f"{name} has {len(given)} entries, the table {table.rows} rows")
        return cls(infer_columns(table, kinds, weights), () if y is None else infer_classes(y)[0], clip)

    # --- layout ----------------------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns, in order."""
        return tuple(column.name for column in self.columns)

    @property
    def kinds(self) -> dict[str, str]:
        """Of the columns, by name."""
        return {column.name: column.kind for column in self.columns}

    @cached_property
    def continuous(self) -> tuple[int, ...]:
        """Positions of the continuous columns."""
        return tuple(j for j, column in enumerate(self.columns) if column.kind == "continuous")

    @cached_property
    def discrete(self) -> tuple[int, ...]:
        """Positions of the discrete columns."""
        return tuple(j for j, column in enumerate(self.columns) if column.kind == "discrete")

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """Cells of each discrete column; one that was never seen keeps a single empty cell."""
        return tuple(max(1, len(self.columns[j].categories)) for j in self.discrete)

    @cached_property
    def location(self) -> np.ndarray:
        """Of the continuous columns: [Dc]."""
        return np.array([self.columns[j].location for j in self.continuous], dtype=np.float64)

    @cached_property
    def scale(self) -> np.ndarray:
        """Of the continuous columns: [Dc]."""
        return np.array([self.columns[j].scale for j in self.continuous], dtype=np.float64)

    # --- rows ------------------------------------------------------------------------------------------

    def encode(self, X: Any) -> Rows:
        """The rows X as arrays: standardised and clipped values [n, Dc], and category indices [n, Dd].

        A DataFrame's columns are found by name, an array's by position.
        """
        table = Table.of(X)
        places = self.places(table)
        values = np.empty((table.rows, len(self.continuous)))
        for k, j in enumerate(self.continuous):
            values[:, k] = self.columns[j].numbers(table.column(places[j]))
            infinite = np.isinf(values[:, k])
            if infinite.any():
                raise infinity_in(self.names[j], table.number(int(np.argmax(infinite))))
        codes = np.empty((table.rows, len(self.discrete)), dtype=np.int32)
        for k, j in enumerate(self.discrete):
            codes[:, k] = self.columns[j].codes(table.column(places[j]))
        return Rows(self.standardise(values), codes)

    def standardise(self, values: np.ndarray) -> np.ndarray:
        """(values − location)/scale, clipped: [n, Dc] -> [n, Dc]."""
        with np.errstate(over="ignore"):  # what overflows is clipped
            standard = (values - self.location) * (1.0 / self.scale)
        return np.clip(standard, -self.limit, self.limit)

    @property
    def limit(self) -> float:
        """Where standardised values end: at the clip, or where their squares would overflow."""
        return FARTHEST if self.clip is None else min(self.clip, FARTHEST)

    def decode(self, rows: Rows) -> Any:
        """Encoded rows as a DataFrame in the original columns and units."""
        import pandas as pd

        values = np.asarray(rows.values) * self.scale + self.location
        places = {j: k for kind in (self.continuous, self.discrete) for k, j in enumerate(kind)}
        decoded: dict[str, Any] = {}
        for j, column in enumerate(self.columns):
            if column.kind == "continuous" and not column.categories:
                decoded[column.name] = values[:, places[j]]
                continue
            codes = np.asarray(rows.codes)[:, places[j]] if column.kind == "discrete" else None
            if codes is None:  # label-encoded text: the nearest category
                nearest = np.clip(np.rint(values[:, places[j]]), 0, len(column.categories) - 1)
                codes = np.where(np.isnan(nearest), -1, nearest).astype(int)
            decoded[column.name] = pd.Series(_pick(column.categories, codes))
        return pd.DataFrame(decoded)

    def encode_labels(self, y: Any) -> np.ndarray:
        """Class indices of labels y: [n] -> [n]; a class the schema does not name is refused."""
        seen, codes = infer_classes(y)
        place = {value: index for index, value in enumerate(self.classes)}
        unknown = [value for value in seen if value not in place]
        if unknown:
            raise SchemaMismatch(
                f"y holds {', '.join(map(repr, unknown[:5]))}; expected one of the classes "
                f"{', '.join(map(repr, self.classes[:20]))}. Name every class beforehand"
            )
        return np.array([place[value] for value in seen], dtype=np.int32)[codes]

    def places(self, table: Table) -> list[int]:
        """Where the table holds each column."""
        if table.frame is not None and table.names != self.names:
            at = {name: place for place, name in enumerate(table.names)}
            lacking = [name for name in self.names if name not in at]
            if lacking:
                raise SchemaMismatch(
                    f"the table has no column {', '.join(map(repr, lacking[:5]))}; "
                    f"expected {', '.join(self.names[:20])}"
                )
            return [at[name] for name in self.names]
        if len(table.names) != len(self.columns):
            raise SchemaMismatch(f"the table has {len(table.names)} columns, the schema {len(self.columns)}")
        return list(range(len(self.columns)))

    # --- agreement -------------------------------------------------------------------------------------

    def measured_on(self, X: Any) -> Schema:
        """This schema with the location and scale of other rows X; kinds, categories and classes stay."""
        table = Table.of(X)
        places = self.places(table)
        columns = [
            measured(replace(column, count=0.0), column.numbers(table.column(places[j])))
            if column.kind == "continuous"
            else column
            for j, column in enumerate(self.columns)
        ]
        return replace(self, columns=tuple(columns))

    def knowing(self, other: Schema) -> Schema:
        """This schema with the other's categories besides its own; nothing else of it changes."""
        theirs = {column.name: column for column in other.columns}
        columns = [
            replace(column, categories=union(column.categories, theirs[column.name].categories))
            if column.kind == "discrete" and column.name in theirs
            else column
            for column in self.columns
        ]
        return replace(self, columns=tuple(columns))

    def merge(self, other: Schema) -> Schema:
        """The schema of this and the other table together: union of categories and classes, pooled location and scale.

        Symmetric. Where the order of the columns differs, they are sorted by name.
        """
        blocking = [difference for difference in self.differences(other) if difference.startswith("!")]
        if blocking:
            raise SchemaMismatch(
                "the schemas do not fit together:\n" + "\n".join(f"  {line[2:]}" for line in blocking)
            )
        names = self.names if self.names == other.names else tuple(sorted(self.names))
        mine = {column.name: column for column in self.columns}
        theirs = {column.name: column for column in other.columns}
        columns = tuple(merge_columns(mine[name], theirs[name]) for name in names)
        return replace(self, columns=columns, classes=union(self.classes, other.classes))

    def differences(self, other: Schema) -> list[str]:
        """What differs from the other, a line each; a line that starts with "! " keeps the two from being merged."""
        lines = [f"! only the first has column {name!r}" for name in self.names if name not in other.names]
        lines += [f"! only the second has column {name!r}" for name in other.names if name not in self.names]
        theirs = {column.name: column for column in other.columns}
        for column in self.columns:
            if column.name in theirs:
                lines += column_differences(column, theirs[column.name])
        if not lines and self.names != other.names:
            lines.append(
                f"the order of the columns: {', '.join(self.names)} against {', '.join(other.names)}"
            )
        lines += set_differences("class", self.classes, other.classes)
        if self.classes and other.classes and all_text(self.classes) != all_text(other.classes):
            lines.append(f"! the classes are text on one side: {self.classes} against {other.classes}")
        if self.clip != other.clip:
            lines.append(f"! clip: {self.clip} against {other.clip}")
        return lines

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of all that decides how a row is encoded, as 64 hexadecimal digits."""
        described = self._described()
        for column in described["columns"]:
            del column["count"], column["constant"]
            column["categories"] = _without_booleans(column["categories"])
        described["classes"] = _without_booleans(described["classes"])
        del described["label"]
        return hashlib.sha256(_canonical(described).encode()).hexdigest()

    # --- files -----------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """As a text that `from_json` reads; equal schemas have equal texts."""
        return self._text

    @cached_property
    def _text(self) -> str:
        return _canonical({"format": FORMAT, **self._described()})

    @classmethod
    def from_json(cls, text: str) -> Schema:
        """Read a schema; anything unexpected in the text is refused."""
        try:
            described = json.loads(text)
            if described.pop("format") != FORMAT:
                raise SchemaError("the schema was written in another format; update peerbayes")
            columns = tuple(Column(**column) for column in described.pop("columns"))
            return cls(columns, **described)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            if isinstance(error, SchemaError):
                raise
            raise SchemaError(f"this is not the JSON text of a schema: {error}") from error

    def save(self, path: str | Path) -> None:
        """Write it to the file `path`, as JSON."""
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Schema:
        """Read it from the file `path`."""
        return cls.from_json(Path(path).read_text(encoding="utf-8"))

    def _described(self) -> dict[str, Any]:
        return {
            "columns": [asdict(column) for column in self.columns],
            "classes": list(self.classes),
            "clip": self.clip,
            "label": self.label,
        }


def infinity_in(column: str, row: int) -> SchemaError:
    """The error for a value that no family can take."""
    return SchemaError(
        f"column {column!r} holds infinity (inf, row {row}); "
        "expected a finite number, or nothing for a missing value"
    )


def _without_booleans(values: Sequence[Scalar]) -> list[Scalar]:
    """True and 1 are the same category."""
    return [int(value) if isinstance(value, bool) else value for value in values]


def _pick(categories: tuple[Scalar, ...], codes: np.ndarray) -> list[Scalar | None]:
    return [categories[code] if 0 <= code < len(categories) else None for code in codes]


def _canonical(described: Any) -> str:
    return json.dumps(described, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
