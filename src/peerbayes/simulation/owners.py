"""How many peers there are where other settings say so: a graph, a list of rows, or a column of owners."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from peerbayes.data.arguments import about, shown
from peerbayes.data.sources.values import missing_columns
from peerbayes.data.table import Table, distinct, missing_of
from peerbayes.errors import DataWarning, PartitionError
from peerbayes.network.topologies import node_count
from peerbayes.simulation.partitions import owner_column

# Owners that a run names.
NAMED = 200


@dataclass(frozen=True, eq=False)
class Owners:
    """The rows of a table by their owners; nobody owns a row without a name, so that it is one to test on."""

    table: Table
    """Without the column of owners."""
    column: str
    names: tuple[str, ...]
    """One for each peer."""
    parts: list[np.ndarray]
    """The rows of each peer."""

    @classmethod
    def of(cls, X: Any, column: str) -> Owners:
        """Return the rows of X by the owners that a column names."""
        with about("X"):
            table = Table.of(X)
        if table.frame is None:
            raise PartitionError(
                f"partition is 'column:{column}', but X has no names of columns; pass a DataFrame, or a list with the "
                "rows of each peer"
            )
        if column not in table.names:
            raise PartitionError(f"partition: {missing_columns([column], table.names, 'X')}")
        if len(table.names) < 2:
            raise PartitionError(f"X has no column but that of the owners, {column!r}; expected features")
        position = table.names.index(column)
        with about("partition"):
            values = table.column(position)
            present = ~missing_of(values)
            owners = distinct(values[present], column)
        if not owners:
            raise PartitionError(
                f"partition: column {column!r} names no owner; expected one in each row to learn from"
            )
        index_of = {owner: index for index, owner in enumerate(owners)}
        codes = np.array([index_of[value] for value in values[present].tolist()], dtype=np.int64)
        order = np.argsort(codes, kind="stable")
        rows = np.flatnonzero(present)[order]
        parts = np.split(rows, np.cumsum(np.bincount(codes))[:-1])
        return cls(without_columns(table, [column]), column, tuple(map(str, owners)), parts)

    def features(self, test: Any) -> Any:
        """Return test rows and their labels without the column of owners; what is no such pair as it is."""
        if not isinstance(test, list | tuple) or len(test) != 2:
            return test
        with about("test"):
            table = Table.of(test[0])
        return without_columns(table, [self.column]).native, test[1]

    def warn_of_single_rows(self, stacklevel: int) -> None:
        """Warn of peers that hold one row: the column may name no owners.

        stacklevel  of the line that is to blame, counted from the caller of this method: 1 is that caller
        """
        single = sum(part.size == 1 for part in self.parts)
        if single:
            warnings.warn(
                f"column {self.column!r} has {len(self.names):,} different values, each a peer, and {single:,} of them "
                f"{'is' if single == 1 else 'are'} in one row only; expected a column of owners with many rows "
                "each, such as hospitals",
                DataWarning,
                stacklevel=stacklevel + 1,
            )

    @property
    def sentence(self) -> str:
        """The names of the owners, in the order of the peers."""
        more = f" and {len(self.names) - NAMED} more" if len(self.names) > NAMED else ""
        return ", ".join(self.names[:NAMED]) + more


def without_columns(table: Table, columns: Collection[str]) -> Table:
    """Return the table without those of these columns that it has."""
    labels = [label for name, label in zip(table.names, table.labels, strict=True) if name in columns]
    return Table.of(table.frame.drop(labels)) if labels else table


def owners_in(X: Any, arguments: Mapping[str, Any]) -> tuple[Any, Owners | None]:
    """Return the table without a column of owners, and the owners, if these settings have any."""
    column = owner_column(arguments.get("partition"))
    if column is None:
        return X, None
    owners = Owners.of(X, column)
    peers, count = arguments.get("peers"), len(owners.names)
    if peers is not None and peers != count:
        raise PartitionError(
            f"peers is {shown(peers)}, but column {column!r} names {count} owners, each a peer; leave peers out"
        )
    return owners.table, owners


def with_peers(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with as many peers as a graph or a list of rows says, unless they say it themselves."""
    if "peers" in arguments:
        return dict(arguments)
    count = node_count(arguments.get("topology"))
    partition = arguments.get("partition")
    if count is None and isinstance(partition, list | tuple) and partition:
        count = len(partition)
    return dict(arguments) if count is None else {**arguments, "peers": count}
