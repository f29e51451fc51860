"""Numbers in bins whose edges lie where the classes change: few bins, and fine ones where it matters."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from peerbayes.data.kinds.binned import Binned
from peerbayes.data.kinds.kind import Column
from peerbayes.data.supervised_bins import edges_by_class
from peerbayes.errors import SchemaError


class Supervised(Binned):
    """Binned numbers with edges by class. A column without edges has one bin: alone, it tells nothing of a class."""

    name: ClassVar[str] = "supervised"
    needs_labels: ClassVar[bool] = True
    needs_all_rows: ClassVar[str] = "the classes of the values"
    public_facts: ClassVar[tuple[str, ...]] = ()

    def is_constant(self, column: Column) -> bool:
        return not column.edges and column.low == column.high

    def _edges(
        self, column: Column, numbers: np.ndarray, weights: np.ndarray | None, labels: np.ndarray | None
    ) -> tuple[float, ...]:
        if labels is None:
            raise SchemaError(
                f"column {column.name!r} is 'supervised', with edges where the classes change, and there are no "
                "labels; expected them, as in Schema.infer(X, y, ...), or the kind 'binned'"
            )
        return edges_by_class(numbers, labels, weights)
