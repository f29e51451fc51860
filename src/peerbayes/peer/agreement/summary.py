"""What peers say of their tables before the first round: sums and unions that merge in any order to the same bits.

Numbers are added as exact fractions: a float64 is one, so every peer ends with the same total whatever the order, and
with the same schema to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

import msgspec
import numpy as np
import pandas as pd

from peerbayes.data.column import Column, with_units
from peerbayes.data.kinds import KINDS
from peerbayes.data.schema import Schema
from peerbayes.data.table import Scalar, Table, ordered
from peerbayes.errors import PeerError, RefusedMessage, SchemaMismatch
from peerbayes.learning.robust.bounds import MemberBounds
from peerbayes.model.layout import bins_for
from peerbayes.peer.agreement.terms import Terms

NAMED = 3  # peers that a refusal names
LARGEST = 8 << 20  # bytes of a summary: small values become objects many times their size
FARTHEST = (
    Fraction(2) ** 1000
)  # a sum of that per value is absurd; below it, floats of many such sums do not overflow

Kind = Literal["continuous", "positive", "count", "binned", "supervised", "text", "numbers", "empty"]
Tagged = tuple[str, Any]  # ("b", True), ("n", 1), ("t", "yes"): True and 1 stay apart until the end


class ColumnSummary(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One column as some peers have it."""

    holders: int
    """How many of them have it at all."""
    kinds: dict[Kind, tuple[str, ...]]
    """A kind of numbers, text or numbers that are discrete, or empty -> the first few peers that have it so."""
    categories: frozenset[Tagged]
    count: int
    """Values that are there."""
    total: Fraction
    """Σx."""

    def __add__(self, other: ColumnSummary) -> ColumnSummary:
        kinds = {
            kind: _first(self.kinds.get(kind, ()), other.kinds.get(kind, ()))
            for kind in {*self.kinds, *other.kinds}
        }
        return ColumnSummary(
            self.holders + other.holders,
            kinds,
            self.categories | other.categories,
            self.count + other.count,
            self.total + other.total,
        )


@dataclass(frozen=True)
class Summary:
    """The tables of some peers."""

    peers: int
    rows: int
    order: tuple[str, ...]
    """Of the columns, where all peers have the same; else by name."""
    columns: Mapping[str, ColumnSummary]
    classes: frozenset[Tagged]

    def __add__(self, other: Summary) -> Summary:
        names = {*self.columns, *other.columns}
        order = self.order if self.order == other.order else tuple(sorted(names))
        columns = {
            name: self.columns[name] + other.columns[name]
            if name in self.columns and name in other.columns
            else self.columns.get(name) or other.columns[name]
            for name in names
        }
        return Summary(
            self.peers + other.peers,
            self.rows + other.rows,
            order,
            columns,
            self.classes | other.classes,
        )

    def conflicts(self) -> list[str]:
        """Return why these tables cannot be one, a sentence each."""
        conflicts = []
        for name, column in sorted(self.columns.items()):
            kinds = {kind: peers for kind, peers in column.kinds.items() if kind != "empty"}
            if column.holders < self.peers:
                holders = ", ".join(_first(*column.kinds.values()))
                conflicts.append(
                    f"column {name!r} is at {column.holders} of {self.peers} peers (at {holders}, for one)"
                )
            elif len(kinds) > 1:
                by_kind = (
                    f"{_READABLE.get(kind, kind)} at {', '.join(kinds[kind])}" for kind in sorted(kinds)
                )
                conflicts.append(f"column {name!r} is {', '.join(by_kind)}")
        if len({tag == "t" for tag, _ in self.classes}) > 1:
            conflicts.append(
                f"the label is text at some peers and a number at others: {list(_plain(self.classes))}"
            )
        if len(self.classes) < 2:
            conflicts.append(
                f"the label has {len(self.classes)} class at all peers together; expected two or more"
            )
        return conflicts

    def schema(self, label: str, clip: float | None) -> Schema:
        """Return columns, categories, classes and locations; scales are still to be agreed on."""
        if conflicts := self.conflicts():
            raise SchemaMismatch(
                "the peers' tables do not fit together:\n"
                + "\n".join(f"  {conflict}" for conflict in conflicts)
            )
        columns = []
        for name in self.order:
            column = self.columns[name]
            kind = next((kind for kind in column.kinds if kind != "empty"), "continuous")
            if kind in KINDS:
                mean = float(column.total / column.count) if column.count else 0.0
                columns.append(with_units(Column(name, kind, count=float(column.count)), mean, 1.0))
            else:
                columns.append(Column(name, "discrete", _plain(column.categories), count=float(column.count)))
        return Schema(tuple(columns), _plain(self.classes), clip, label)

    @property
    def missing(self) -> bool:
        """Return whether a continuous value is missing anywhere."""
        return any(column.count < self.rows for column in self.columns.values() if not _in_cells(column))

    def with_bins(self, names: Collection[str]) -> Summary:
        """Return the summary where these columns of numbers are binned."""
        binned = {
            name: msgspec.structs.replace(
                column,
                kinds={
                    "binned" if kind == "continuous" else kind: peers for kind, peers in column.kinds.items()
                },
            )
            for name, column in self.columns.items()
            if name in names
        }
        return replace(self, columns={**self.columns, **binned})

    def complete(self, name: str) -> bool:
        """Return whether a column has a value in every row of every peer."""
        return self.columns[name].count == self.rows

    def pack(self) -> bytes:
        columns = {
            name: [
                column.holders,
                {kind: list(peers) for kind, peers in sorted(column.kinds.items())},
                sorted(map(list, column.categories), key=repr),
                column.count,
                packed(column.total),
            ]
            for name, column in sorted(self.columns.items())
        }
        classes = sorted(map(list, self.classes), key=repr)
        return msgspec.msgpack.encode([self.peers, self.rows, list(self.order), columns, classes])

    @classmethod
    def parse(cls, content: bytes) -> Summary:
        """A summary from outside: every part is checked."""
        _check_size(content)
        try:
            peers, rows, order, columns, classes = _summaries.decode(content)
            _check_tags(classes)
            for column in columns.values():
                _check_column(column)
        except (msgspec.DecodeError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise RefusedMessage("unreadable", f"not a summary: {error}") from error
        if sorted(order) != sorted(columns) or not 0 < peers <= rows:
            raise RefusedMessage(
                "implausible", f"{peers} peers with {rows} rows, {len(order)} columns in order"
            )
        for name, column in columns.items():
            if not (0 <= column.count <= rows and 0 < column.holders <= peers):
                raise RefusedMessage("implausible", f"{column.count} values of {name!r:.80} in {rows} rows")
            if abs(column.total) > column.count * FARTHEST:
                raise RefusedMessage("absurd magnitude", f"the sum of {column.count} values of {name!r:.80}")
        return cls(peers, rows, order, columns, classes)


class Sums(dict[str, Fraction]):
    """Numbers by name, added exactly; none is negative."""

    def __add__(self, other: Mapping[str, Fraction]) -> Sums:
        if set(self) != set(other):
            raise RefusedMessage("wrong message", "sums of other names")
        return Sums({name: value + other[name] for name, value in self.items()})

    def pack(self) -> bytes:
        return msgspec.msgpack.encode({name: packed(value) for name, value in sorted(self.items())})

    @classmethod
    def parse(cls, content: bytes) -> Sums:
        """Sums from outside."""
        _check_size(content)
        try:
            numbers = msgspec.msgpack.decode(content, type=dict[str, str])
            sums = cls({name: unpacked(value) for name, value in numbers.items()})
        except (msgspec.DecodeError, ValueError) as error:
            raise RefusedMessage("unreadable", f"not sums: {error}") from error
        if not all(0 <= value <= FARTHEST for value in sums.values()):
            raise RefusedMessage(
                "absurd magnitude", "a sum of what is never negative is, or is beyond floats"
            )
        return sums

    @classmethod
    def named(cls, *names: str) -> Callable[[bytes], Sums]:
        """`parse` for sums of these names; others are refused as they come, not when they are added."""

        def parse(content: bytes) -> Sums:
            sums = cls.parse(content)
            if sums.keys() != set(names):
                raise RefusedMessage("wrong message", "sums of other names")
            return sums

        return parse


@dataclass(frozen=True, eq=False)
class OwnTable:
    """A peer's own table, as it is described to the others."""

    schema: Schema
    values: Mapping[str, np.ndarray]
    """The present numbers of each column of numbers [n]."""
    labels: Mapping[str, np.ndarray]
    """The labels of these numbers [n], of columns whose edges depend on them."""
    rows: int

    @classmethod
    def of(cls, frame: pd.DataFrame, labels: np.ndarray, terms: Terms) -> OwnTable:
        """Return a table with its schema, if it has enough rows."""
        if len(frame) < terms.limits.rows:
            raise PeerError(
                f"the table has {len(frame)} rows; the agreement asks for {terms.limits.rows} or more"
            )
        kinds: Any = dict(terms.features) or "auto"
        bins = bins_for(terms.family, len(frame.columns))
        schema = Schema.infer(frame, labels, kinds=kinds, clip=terms.clip, bins=bins)
        table, values, labels_of = Table.of(frame), {}, {}
        for index, column in enumerate(schema.columns):
            if column.traits.reads_numbers:
                numbers = column.numbers(table.column(index))
                present = ~np.isnan(numbers)
                values[column.name] = numbers[present]
                if column.traits.needs_labels:
                    labels_of[column.name] = np.asarray(labels)[present]
        return cls(schema, values, labels_of, len(frame))

    def summary(self, peer: str, bounds: MemberBounds | None = None) -> Summary:
        """Return the first sum's part; with `bounds` it counts for as many rows as it may, and tells no sums."""
        columns = {}
        for column in self.schema.columns:
            present = self.values.get(column.name)
            size = int(column.count or 0) if present is None else present.size
            count = size if bounds is None else bounds.counted_values(size, self.rows)
            total = Fraction(math.fsum(present) if present is not None and bounds is None else 0)
            categories = frozenset(map(_tagged, column.categories))
            columns[column.name] = ColumnSummary(1, {_kind(column): (peer,)}, categories, count, total)
        counted = self.rows if bounds is None else bounds.counted(self.rows)
        classes = frozenset(map(_tagged, self.schema.classes))
        return Summary(1, counted, self.schema.names, columns, classes)

    def squares(self, schema: Schema) -> Sums:
        """Return Σ(x − location)² of each column of numbers of everybody's schema."""
        sums = Sums()
        for column in columns_of_numbers(schema):
            present = self.values.get(column.name, np.zeros(0))  # a column that is empty here has no kind
            centred = present - column.location
            sums[column.name] = Fraction(math.fsum(centred * centred))
        return sums


def columns_of_numbers(schema: Schema) -> list[Column]:
    """Return the columns whose mean and deviation are agreed on."""
    return [column for column in schema.columns if column.traits.reads_numbers]


def with_scales(schema: Schema, squares: Mapping[str, Fraction]) -> Schema:
    """Return the schema with scales from Σ(x − location)²."""
    columns = []
    for column in schema.columns:
        if column.traits.reads_numbers and column.count:
            deviation = math.sqrt(float(squares[column.name] / Fraction(column.count)))
            column = column.traits.with_deviation(column, deviation)
        columns.append(column)
    return replace(schema, columns=tuple(columns))


def _check_size(content: bytes) -> None:
    if len(content) > LARGEST:
        raise RefusedMessage("too large", f"a summary of {len(content):,} bytes; at most {LARGEST:,}")


def packed(value: Fraction) -> str:
    """Return a sum of float64 as text: its denominator is a power of two."""
    return f"{value.numerator:x}/{value.denominator.bit_length() - 1}"


def unpacked(text: str) -> Fraction:
    """Return the number that `packed` packed; its digits are few, and so is the work."""
    top, _, bits = text.partition("/")
    if len(top) > 600 or not 0 <= int(bits) <= 1200:
        raise ValueError(f"the number {text:.20}… is too long")
    return Fraction(int(top, 16), 1 << int(bits))


_READABLE = {"text": "text", "numbers": "discrete with numbers"}
_summaries = msgspec.msgpack.Decoder(
    tuple[int, int, tuple[str, ...], dict[str, ColumnSummary], frozenset[Tagged]],
    dec_hook=lambda kind, text: unpacked(str(text)),  # of fractions
)


def _kind(column: Column) -> Kind:
    if column.empty:
        return "empty"
    if column.traits.reads_numbers:
        return column.kind  # type: ignore[return-value]
    return "text" if any(isinstance(value, str) for value in column.categories) else "numbers"


def _discrete(column: ColumnSummary) -> bool:
    return "text" in column.kinds or "numbers" in column.kinds


def _in_cells(column: ColumnSummary) -> bool:
    return _discrete(column) or any(kind in KINDS and not KINDS[kind].dense for kind in column.kinds)


def _first(*names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted({name for some in names for name in some})[:NAMED])


def _tagged(value: Scalar) -> Tagged:
    return ("b" if isinstance(value, bool) else "t" if isinstance(value, str) else "n", value)


def _plain(values: frozenset[Tagged]) -> tuple[Scalar, ...]:
    """Categories in order; where True meets a number, it becomes 1."""
    if all(tag == "b" for tag, _ in values):
        return ordered(value for _, value in values)
    return ordered({int(value) if tag == "b" else value for tag, value in values})


_TYPES: dict[str, tuple[type, ...]] = {"b": (bool,), "n": (int, float), "t": (str,)}


def _check_tags(values: frozenset[Tagged]) -> None:
    for tag, value in values:
        if type(value) not in _TYPES.get(tag, ()) or (isinstance(value, float) and not math.isfinite(value)):
            raise ValueError(f"the category {value!r:.40} is no {tag!r:.5}")


def _check_column(column: ColumnSummary) -> None:
    """Refuse a column from outside that no table has."""
    if not column.kinds:
        raise ValueError("the column has no kind")
    if any(len(names) > NAMED or any(len(name) > 64 for name in names) for names in column.kinds.values()):
        raise ValueError("too many names")
    if not column.categories and column.count > 0 and _discrete(column):
        raise ValueError(f"{column.count} values of no category")
    _check_tags(column.categories)
