"""The expected shape of a dataset: rows, columns, classes and their rates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from peerbayes.datasets.errors import DatasetMismatch

if TYPE_CHECKING:
    import pandas as pd

RATE_TOLERANCE = 0.0005  # rates are written with four digits
BALANCE_TOLERANCE = 0.1  # "balanced": every class within a tenth of its even share, as letter's are
SHOWN = 6  # names listed in an error before "and N more"


@dataclass(frozen=True)
class Expected:
    """The shape of a table and of its labels, by which a wrong file is recognised."""

    rows: int
    columns: tuple[str, ...]
    label: str
    classes: int
    rates: tuple[str | int, float] | Literal["balanced"]  # the positive class and its rate
    text: frozenset[str] = frozenset()  # columns of text; all others hold numbers
    missing: bool = False  # whether values may be missing
    largest: float | None = None  # no number is further from zero


def arrange(frame: pd.DataFrame, expected: Expected, ignored: tuple[str, ...], where: object) -> pd.DataFrame:
    """Return the expected columns in order, the label last, without columns known to be of no use."""
    names = [str(name) for name in frame.columns]
    wanted = (*expected.columns, expected.label)
    lacking = [name for name in wanted if name not in names]
    strange = [name for name in names if name not in wanted and name not in ignored]
    if lacking or strange or len(set(names)) < len(names):
        problems = [
            *([f"lacks {_listed(lacking)}"] if lacking else []),
            *([f"also has {_listed(strange)}"] if strange else []),
            *(["has two columns with the same name"] if len(set(names)) < len(names) else []),
        ]
        raise DatasetMismatch(
            f"{where} has {len(names)} columns, expected {len(wanted)} ({len(expected.columns)} and the label "
            f"{expected.label!r}): it {' and '.join(problems)}"
        )
    return frame.set_axis(names, axis=1)[list(wanted)].reset_index(drop=True)


def check(frame: pd.DataFrame, labels: pd.Series, expected: Expected, where: object) -> None:
    """Refuse a table that is not the dataset, and list everything that is wrong with it."""
    wrong = [*_sizes(frame, expected), *_values(frame, expected), *_classes(labels, expected)]
    if wrong:
        raise DatasetMismatch(f"{where} is not this dataset: " + "; ".join(wrong))


def rates(labels: pd.Series, expected: Expected) -> dict[Any, float] | Literal["balanced"]:
    """Return the rate of the positive class, or "balanced"."""
    if expected.rates == "balanced":
        return "balanced"
    return {expected.rates[0]: float((labels == expected.rates[0]).mean())}


def _sizes(frame: pd.DataFrame, expected: Expected) -> Iterator[str]:
    if len(frame) != expected.rows:
        yield f"{len(frame):,} rows, expected {expected.rows:,}"
    if len(frame.columns) != len(expected.columns):
        yield f"{len(frame.columns)} columns, expected {len(expected.columns)}"


def _values(frame: pd.DataFrame, expected: Expected) -> Iterator[str]:
    import numpy as np
    from pandas.api.types import is_numeric_dtype

    numbers = {str(name) for name, kind in frame.dtypes.items() if is_numeric_dtype(kind)}
    if spoiled := sorted(set(frame.columns) - expected.text - numbers):
        yield f"text in {_listed(spoiled)}, expected numbers"
    if bare := sorted(expected.text & numbers):
        yield f"numbers in {_listed(bare)}, expected text"
    if not expected.missing and (holes := int(frame.isna().to_numpy().sum())):
        yield f"{holes:,} missing values, expected none"
    if expected.largest is not None and not spoiled:
        largest = float(np.abs(frame[sorted(numbers)].to_numpy()).max(initial=0))
        if largest > expected.largest:
            yield f"values up to {largest:g}, expected at most {expected.largest:g}"


def _classes(labels: pd.Series, expected: Expected) -> Iterator[str]:
    if unlabelled := int(labels.isna().sum()):
        yield f"{unlabelled:,} rows without a label, expected none"
    counts = labels.value_counts(normalize=True)
    if len(counts) != expected.classes:
        yield f"{len(counts)} classes, expected {expected.classes}"
    elif expected.rates == "balanced":
        share = 1 / expected.classes
        if (worst := float((counts - share).abs().max())) > BALANCE_TOLERANCE * share:
            yield f"a class that is {worst:.1%} of all rows away from its even share, expected balanced classes"
    else:
        positive, rate = expected.rates
        observed = float((labels == positive).mean())
        if abs(observed - rate) > RATE_TOLERANCE:
            yield f"{observed:.2%} of the labels are {positive!r}, expected {rate:.2%}"


def _listed(names: list[str]) -> str:
    omitted = len(names) - SHOWN
    return ", ".join(map(repr, names[:SHOWN])) + (f" and {omitted} more" if omitted > 0 else "")
