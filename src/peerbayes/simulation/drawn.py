"""What a simulation's seed decides: which peer holds which rows, who hears whom, and who is away when."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from peerbayes import topologies
from peerbayes.arguments import about
from peerbayes.inputs import classes_of, described, ordering, rest, rows_at, table_of
from peerbayes.partitions import partition as part_rows
from peerbayes.schema import Schema
from peerbayes.tables import Table

# Set random numbers of the same seed apart: of who holds what, of links, of absences.
ROWS_STREAM, LINKS_STREAM, ABSENCE_STREAM = 0, 1, 2


@dataclass(frozen=True, eq=False)
class Dealt:
    """The rows of a table in the hands of peers."""

    table: Table
    schema: Schema
    """What columns and classes are; units are those of the whole table, or as they were declared."""
    codes: np.ndarray
    """[n] the class of each row of the table."""
    parts: list[np.ndarray]
    """The rows that each peer holds."""

    @classmethod
    def of(
        cls,
        X: Any,
        y: Any,
        schema: Schema | None,
        kinds: Any,
        clip: float | None,
        partition: Any,
        nodes: int,
        rows_per_node: Any,
        seed: int,
    ) -> Dealt:
        """The arguments are those of `simulate`."""
        table = table_of(X)
        classes, codes = classes_of(y, schema, table.rows)
        meaning = replace(described(table, schema, kinds, clip), classes=classes)
        stream = np.random.default_rng([seed, ROWS_STREAM])
        with about("partition", "the partition", "nodes", "rows_per_node", "X"):
            parts = part_rows(
                partition, codes, lambda: ordering(meaning, table), nodes, rows_per_node, stream
            )
        return cls(table, meaning, codes, parts)

    @cached_property
    def own(self) -> np.ndarray:
        """[m] the rows of all peers, one peer's after the other's."""
        return np.concatenate(self.parts)

    @property
    def sizes(self) -> np.ndarray:
        """[N] rows of each peer."""
        return np.array([len(part) for part in self.parts])

    def rows(self) -> Table:
        """The peers' rows, as they are in the table."""
        return rows_at(self.table, self.own)

    def rest(self) -> tuple[Any, Any] | None:
        """The rows that no peer holds and their labels, if there are any."""
        return rest(self.table, self.codes, self.own, self.schema.classes)


def network(topology: Any, nodes: int, seed: int, change_every: int | None = None) -> topologies.Schedule:
    """Who hears whom when everybody is there."""
    stream = np.random.default_rng([seed, LINKS_STREAM])
    with about("topology", "nodes", "change_every"):
        return topologies.schedule(topology, nodes, stream, change_every)


def with_absences(network: topologies.Schedule, down: float, seed: int) -> topologies.Churn:
    """The same network, but that each peer is away for a round with probability `down`."""
    drawn = int(np.random.default_rng([seed, ABSENCE_STREAM]).integers(2**31))
    return topologies.Churn(network, down, drawn)
