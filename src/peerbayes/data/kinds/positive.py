"""Positive amounts whose logarithm is learned: a log-normal in each class."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from peerbayes.data.kinds.kind import Column, Kind
from peerbayes.data.table import numbers_of
from peerbayes.errors import SchemaError


class Positive(Kind):
    """Numbers above 0. Location and scale are those of log x, a Gaussian for every family."""

    name: ClassVar[str] = "positive"
    dense: ClassVar[bool] = True
    reads_numbers: ClassVar[bool] = True
    public_facts: ClassVar[tuple[str, ...]] = ("mean", "sd")
    model: ClassVar[str] = "gaussian"
    scale_of_numbers: ClassVar[str] = "logarithm"

    def numbers(self, column: Column, values: np.ndarray, row: Callable[[int], int] = int) -> np.ndarray:
        numbers = numbers_of(values, column.name, self.name)
        if (low := numbers <= 0).any():
            first = int(np.argmax(low))
            raise SchemaError(
                f"column {column.name!r} is positive, but holds {numbers[first]:g} in row {row(first)}, which has no "
                "logarithm; correct the value, leave it empty, or make the column continuous or binned with "
                f"kinds={{{column.name!r}: 'continuous'}}"
            )
        return np.log(numbers)

    def decoded(self, column: Column, encoded: np.ndarray, rng: np.random.Generator | None) -> Any:
        return np.exp(encoded)

    def log_measure(self, column: Column, numbers: np.ndarray) -> Any:
        return math.log(column.scale) + numbers  # dz = dx / (scale · x)
