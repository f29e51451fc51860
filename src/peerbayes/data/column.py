"""One column of a table: its kind, its categories or edges, location and scale."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import copysign
from typing import Any, NamedTuple

import numpy as np

from peerbayes.data.kinds import KINDS
from peerbayes.data.kinds.kind import Kind
from peerbayes.data.table import LARGEST, SMALL_RANGE, Scalar, missing_of, number, scalars
from peerbayes.errors import SchemaError, SchemaMismatch

# The fields of a column that are numbers, and those of them that may be unknown.
NUMBERS, OPTIONAL = ("location", "scale", "penalty", "count", "low", "high"), ("count", "low", "high")


@dataclass(frozen=True)
class Column:
    """One column. A continuous one with categories is label-encoded text: its value is the category's index."""

    name: str
    """As the table has it."""
    kind: str
    """"continuous", "discrete", "binned", or another of `peerbayes.data.kinds`."""
    categories: tuple[Scalar, ...] = ()
    """Of a discrete column, in order."""
    location: float = 0.0
    """What is subtracted from a value: the mean of a continuous column."""
    scale: float = 1.0
    """What the difference is divided by: the standard deviation."""
    count: float | None = None
    """Rows behind location and scale (sum of weights), so that two schemas are pooled exactly; 0: no value was
    observed; None: location and scale were given explicitly, and pooling must not change them."""
    constant: bool = False
    """Every value was the location; the scale of 1 is a convention."""
    edges: tuple[float, ...] = ()
    """Of a binned column, rising: bin k holds the numbers that k edges are below or equal to."""
    low: float | None = None
    """The lowest number of a binned column, where it is known: its first bin begins there."""
    high: float | None = None
    """The highest number of a binned column, where it is known: its last bin ends there."""
    penalty: float = field(default=0.0, compare=False)
    """How strongly an additive model holds its cells together: see `peerbayes.model.penalties`."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise SchemaError(f"a column is named {self.name!r}; expected text")
        if not isinstance(self.kind, str) or self.kind not in KINDS:
            expected = " or ".join(map(repr, KINDS))
            raise SchemaError(f"column {self.name!r} is {self.kind!r}; expected {expected}")
        numbers = (self.location, self.scale, self.penalty, self.count, self.low, self.high)
        for name, value in zip(NUMBERS, numbers, strict=True):  # most are plain: tables may have many columns
            if value is None and name in OPTIONAL:
                continue
            if (
                type(value) is not float
                or not abs(value) <= LARGEST
                or (not value and copysign(1.0, value) < 0)
            ):
                object.__setattr__(self, name, number(value, f"the {name} of column {self.name!r}"))
        if self.penalty < 0:
            raise SchemaError(f"column {self.name!r} has the penalty {self.penalty}; expected 0 or more")
        if self.scale <= 0 or (self.count or 0.0) < 0 or not isinstance(self.constant, bool):
            raise SchemaError(
                f"column {self.name!r} has scale {self.scale}, count {self.count} and constant {self.constant!r}; "
                "expected a positive scale, a count of 0 or more, and true or false"
            )
        if (
            type(self.categories) is not tuple
            or type(self.edges) is not tuple
            or self.categories
            or self.edges
        ):
            self._check_cells()
        self.traits.check(self)

    def _check_cells(self) -> None:
        """Make categories and edges tuples of plain values; refuse what is none."""
        where = f"column {self.name!r}"
        object.__setattr__(self, "categories", scalars(self.categories, where))
        if not isinstance(self.edges, tuple | list):
            raise SchemaError(f"{where} has the edges {self.edges!r}; expected a list of numbers")
        edges = tuple(number(edge, f"an edge of {where}") for edge in self.edges)
        if any(first >= second for first, second in pairwise(edges)):
            raise SchemaError(f"{where} has the edges {list(edges)[:20]}; expected rising numbers")
        object.__setattr__(self, "edges", edges)

    # --- what its kind says ----------------------------------------------------------------------------

    @property
    def traits(self) -> Kind:
        """The kind as the value that knows all about it."""
        return KINDS[self.kind]

    @property
    def dense(self) -> bool:
        """Whether it is encoded as a standardised number; otherwise as the index of a cell."""
        return self.traits.dense

    @property
    def empty(self) -> bool:
        """Whether nothing is known of it: every value was missing, and no category or edge was declared."""
        return self.traits.is_empty(self)

    @property
    def cells(self) -> int:
        """How many cells a column has that is encoded as one: categories or bins, at least one."""
        return self.traits.cells(self)

    @cached_property
    def labels(self) -> tuple[Scalar, ...]:
        """What each cell is called: the categories, or intervals as text."""
        return self.traits.labels(self)

    @property
    def identities(self) -> tuple[Hashable, ...]:
        """What each cell is, in any schema: its category, or the ends of its bin."""
        return self.traits.identities(self)

    def codes(self, values: np.ndarray) -> np.ndarray:
        """Return the cell of each of the `values`, −1 where it is missing or unknown: [n] -> [n]."""
        return self.traits.codes(self, values)

    def numbers(self, values: np.ndarray, row: Callable[[int], int] = int) -> np.ndarray:
        """Return the `values` as the numbers that are standardised or binned, NaN where missing: [n] -> [n].

        `row` gives the number of a row in the user's table, for errors.
        """
        return self.traits.numbers(self, values, row)

    # --- categories and edges, as arrays ---------------------------------------------------------------

    @cached_property
    def edge_array(self) -> np.ndarray:
        """The edges: [cells − 1]."""
        return np.array(self.edges, dtype=np.float64)

    def category_codes(self, values: np.ndarray) -> np.ndarray:
        """Return the category index of each of the `values`, −1 where it is missing or unknown: [n] -> [n].

        Text where the categories are numbers, or the other way round, is a mistake and not an unknown category.
        """
        if not self.categories:
            return np.full(values.shape, -1, dtype=np.int32)
        if self._integers is not None and np.can_cast(values.dtype, np.int64):
            low, table = self._integers
            position = values.astype(np.int64) - low
            inside = position.view(np.uint64) < table.size  # negative ones are very large here
            return (
                table[position]
                if inside.all()
                else np.where(inside, table[np.where(inside, position, 0)], -1)
            )
        if values.dtype.kind in "fiub" and not any(map(_needs_hashing, self.categories)):
            categories = np.asarray(self.categories, dtype=np.float64)
            order = np.argsort(categories)
            position = np.minimum(np.searchsorted(categories[order], values), categories.size - 1)
            return np.where(categories[order][position] == values, order[position], -1).astype(np.int32)
        import pandas as pd

        codes = pd.Index(self.categories, dtype=object).get_indexer(pd.Index(values, dtype=object))
        without = np.flatnonzero(codes < 0)
        strange = without[~missing_of(values[without])]
        if strange.size:
            self._refuse_other_type(values[strange[0]])
        return codes.astype(np.int32)

    @cached_property
    def _integers(self) -> tuple[int, np.ndarray] | None:
        """The lowest category and the index of each integer from it on (−1 for none), if all are small integers."""
        if not all(isinstance(category, int) for category in self.categories):
            return None
        low, high = int(min(self.categories)), int(max(self.categories))
        if high - low >= SMALL_RANGE or abs(low) > 2**53:
            return None
        table = np.full(high - low + 1, -1, dtype=np.int32)
        table[np.asarray(self.categories, dtype=np.int64) - low] = np.arange(len(self.categories))
        return low, table

    def _refuse_other_type(self, value: Any) -> None:
        text = [isinstance(category, str) for category in self.categories]
        if isinstance(value, str) != any(text) and any(text) == all(text):
            raise SchemaMismatch(
                f"column {self.name!r} holds {value!r}; its categories are {'text' if any(text) else 'numbers'}, "
                f"like {self.categories[0]!r}. Read the column as the same type everywhere"
            )


# Every field of a column of numbers, in their order, whose moments say the rest.
_OF_NUMBERS: dict[str, Any] = {
    "name": "", "kind": "continuous", "categories": (), "location": 0.0, "scale": 1.0, "count": None, "constant": False,
    "edges": (), "low": None, "high": None, "penalty": 0.0,
}  # fmt: skip


def column_of_numbers(
    name: str, count: float, location: float = 0.0, scale: float = 1.0, constant: bool = False
) -> Column:
    """Return a continuous column, given plain floats, in a quarter of the time of `Column`: a table may have many.

    What is not as it should be, `Column` refuses.
    """
    if not (abs(location) <= LARGEST and 0 < scale <= LARGEST and 0 <= count <= LARGEST):
        return Column(name, "continuous", location=location, scale=scale, count=count, constant=constant)
    column = object.__new__(Column)
    vars(column).update(
        _OF_NUMBERS, name=name, location=location + 0.0, scale=scale, count=count + 0.0, constant=constant
    )  # −0.0 and 0.0 are one number
    return column


def _needs_hashing(category: Scalar) -> bool:
    """Return whether a category is text, or a number that float64 does not hold exactly."""
    return isinstance(category, str) or abs(category) > 2**53


def merge_columns(mine: Column, theirs: Column) -> Column:
    """Return one column for both tables: the union of categories, pooled location and scale."""
    if mine.empty and theirs.empty:
        return min(mine, theirs, key=lambda column: column.kind)  # the same from either side
    if mine.empty or theirs.empty:
        return theirs if mine.empty else mine
    return mine.traits.merged(mine, theirs)


def with_units(column: Column, mean: float, deviation: float) -> Column:
    """Return the column with the units of numbers with this mean and deviation."""
    return column.traits.with_units(column, mean, deviation)


def column_differences(mine: Column, theirs: Column) -> list[str]:
    """List the differences between two columns of one name; "! " marks those that prevent merging."""
    if mine.empty or theirs.empty:
        return [] if mine == theirs else [f"column {mine.name!r} has no value on one side"]
    if mine.kind != theirs.kind:
        return [f"! column {mine.name!r} is {mine.kind} in the first, {theirs.kind} in the second"]
    return mine.traits.differences(mine, theirs)


# --- category indices of an array of numbers by table lookup instead of search


class Lookup(NamedTuple):
    """Concatenated tables of category indices, one for each column with categories; −1 where there is none."""

    places: np.ndarray  # [Dd] which of the columns that are encoded as cells they are
    columns: np.ndarray  # [Dd] their positions in the table
    low: np.ndarray  # [Dd] the value that a column's table begins with
    starts: np.ndarray  # [Dd] where it begins
    sizes: np.ndarray  # [Dd] how long it is
    table: np.ndarray


def lookup_of(all_columns: Sequence[Column], discrete: Sequence[int]) -> Lookup | None:
    """Return the lookup tables of a schema's columns, or None unless all categories are small-range integers.

    discrete  the positions of those that are encoded as cells
    """
    if not discrete:
        none = np.zeros(0, dtype=np.int64)
        return Lookup(none, none, none, none, none, np.zeros(0, np.int32))
    places = [k for k, j in enumerate(discrete) if not all_columns[j].traits.reads_numbers]
    columns = [discrete[k] for k in places]
    lows, tables = [], []
    for j in columns:
        categories = all_columns[j].categories
        if not categories or any(type(value) is not int for value in categories):
            return None
        values = np.array(categories, dtype=object)
        low, high = min(categories), max(categories)
        if int(high) - int(low) >= SMALL_RANGE or abs(int(low)) > 2**62:
            return None
        table = np.full(int(high) - int(low) + 1, -1, dtype=np.int32)
        table[(values - low).astype(np.int64)] = np.arange(values.size)
        lows.append(low)
        tables.append(table)
    sizes = np.array([table.size for table in tables], dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)[:-1]
    concatenated = np.concatenate(tables) if tables else np.zeros(0, np.int32)
    return Lookup(
        np.array(places, dtype=np.int64),
        np.array(columns, dtype=np.int64),
        np.array(lows, dtype=np.int64),
        starts,
        sizes,
        concatenated,
    )


def look_up(
    array: np.ndarray,
    columns: np.ndarray,
    low: np.ndarray,
    starts: np.ndarray,
    sizes: np.ndarray,
    table: np.ndarray,
    out: np.ndarray,
) -> None:
    """Do what the kernel `look_up` does, for tables too small to load it."""
    values = array if columns.size == array.shape[1] else array[:, columns]
    with np.errstate(invalid="ignore"):  # NaN and what is too large become the lowest integer
        index = values.astype(np.int64) - low
    in_range = index.view(np.uint64) < sizes.astype(np.uint64)  # negative ones are very large here
    if values.dtype.kind != "i":
        in_range &= index + low == values
    all_in_range = in_range.all()
    out[:] = table[(index if all_in_range else np.where(in_range, index, 0)) + starts]
    if not all_in_range:
        out[~in_range] = -1
