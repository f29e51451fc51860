"""Distinct values as categories: probabilities in each class."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from peerbayes.data.kinds.kind import Column, Kind, category_values
from peerbayes.data.table import distinct, missing_of, scalars, union
from peerbayes.errors import SchemaError


class Discrete(Kind):
    """Text, booleans or numbers of which each is a category."""

    name: ClassVar[str] = "discrete"
    dense: ClassVar[bool] = False
    reads_numbers: ClassVar[bool] = False
    leaves_text: ClassVar[bool] = False
    public_facts: ClassVar[tuple[str, ...]] = ("categories",)
    model: ClassVar[str] = "cells"

    def check(self, column: Column) -> None:
        if not column.categories and column.count != 0:
            raise SchemaError(f"column {column.name!r} is discrete and has no category; name them all")

    def is_constant(self, column: Column) -> bool:
        return len(column.categories) == 1

    def codes(self, column: Column, values: np.ndarray) -> np.ndarray:
        return column.category_codes(values)

    def decoded(self, column: Column, encoded: np.ndarray, rng: np.random.Generator | None) -> Any:
        return category_values(column, encoded)

    def inferred(
        self,
        column: Column,
        values: np.ndarray,
        weights: np.ndarray | None,
        declared: list[Any] | None,
        labels: np.ndarray | None = None,
    ) -> Column:
        present = ~missing_of(values)
        categories = distinct(values[present], column.name) if declared is None else tuple(declared)
        count = float(np.count_nonzero(present)) if weights is None else float(weights[present].sum())
        return replace(column, categories=scalars(categories, f"column {column.name!r}"), count=count)

    def known(self, column: Column, other: Column) -> Column:
        return replace(column, categories=union(column.categories, other.categories))
