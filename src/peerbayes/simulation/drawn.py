"""Random choices from a simulation's seed: the rows of each peer, the network, and absences."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from peerbayes import topologies
from peerbayes.arguments import about
from peerbayes.inputs import classes_of, ordering, rows_at, schema_of, table_of, unassigned_rows
from peerbayes.partitions import partition as partition_rows
from peerbayes.schema import Schema
from peerbayes.tables import Table

# Separate random numbers of the same seed: of the partition, of links, of absences.
ROWS_STREAM, LINKS_STREAM, ABSENCE_STREAM = 0, 1, 2


@dataclass(frozen=True, eq=False)
class Dealt:
    """The rows of a table, assigned to peers."""

    table: Table
    schema: Schema
    """Columns and classes; units are those of the whole table, or as declared."""
    codes: np.ndarray
    """[n] the class of each row of the table."""
    parts: list[np.ndarray]
    """The rows of each peer."""

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
        """Return the assignment; the arguments are those of `simulate`."""
        table = table_of(X)
        classes, codes = classes_of(y, schema, table.rows)
        table_schema = replace(schema_of(table, schema, kinds, clip), classes=classes)
        rng = np.random.default_rng([seed, ROWS_STREAM])
        with about("partition", "the partition", "nodes", "rows_per_node", "X"):
            rows_of_peers = partition_rows(
                partition, codes, lambda: ordering(table_schema, table), nodes, rows_per_node, rng
            )
        return cls(table, table_schema, codes, rows_of_peers)

    @cached_property
    def row_indices(self) -> np.ndarray:
        """[m] the rows of all peers, peer by peer."""
        return np.concatenate(self.parts)

    @property
    def sizes(self) -> np.ndarray:
        """[N] rows of each peer."""
        return np.array([len(rows) for rows in self.parts])

    def rows(self) -> Table:
        """Return the peers' rows as a table, peer by peer."""
        return rows_at(self.table, self.row_indices)

    def rest(self) -> tuple[Any, Any] | None:
        """Return the rows that no peer holds and their labels, if there are any."""
        return unassigned_rows(self.table, self.codes, self.row_indices, self.schema.classes)


def draw_network(
    topology: Any, nodes: int, seed: int, change_every: int | None = None
) -> topologies.Schedule:
    """Return the network without absences."""
    rng = np.random.default_rng([seed, LINKS_STREAM])
    with about("topology", "nodes", "change_every"):
        return topologies.schedule(topology, nodes, rng, change_every)


def with_absences(network: topologies.Schedule, down: float, seed: int) -> topologies.Churn:
    """Return the network with each peer absent from a round with probability `down`."""
    churn_seed = int(np.random.default_rng([seed, ABSENCE_STREAM]).integers(2**31))
    return topologies.Churn(network, down, churn_seed)
