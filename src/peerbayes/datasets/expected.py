"""What a dataset must look like: rows, columns, classes and their rates."""

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
    """The shape of a table and of its labels; what tells the right file from a wrong one."""

    rows: int
    columns: tuple[str, ...]
    label: str
    classes: int
    rates: tuple[str | int, float] | Literal["balanced"]  # the positive class and its rate
    text: frozenset[str] = frozenset()  # columns of text; all others hold numbers
    missing: bool = False  # whether values may be missing
    largest: float | None = None  # no number is further from zero


def arrange(frame: pd.DataFrame, expected: Expected, ignored: tuple[str, ...], where: object) -> pd.DataFrame:
    """The expected columns in their order and the label last; columns known to be of no use are left out."""
    names = [str(name) for name in frame.columns]
    wanted = (*expected.columns, expected.label)
    lacking = [name for name in wanted if name not in names]
    strange = [name for name in names if name not in wanted and name not in ignored]
    if lacking or strange or len(set(names)) < len(names):
        told = [
            *([f"lacks {_listed(lacking)}"] if lacking else []),
            *([f"has {_listed(strange)} besides"] if strange else []),
            *(["has two columns of one name"] if len(set(names)) < len(names) else []),
        ]
        raise DatasetMismatch(
            f"{where} has {len(names)} columns, expected {len(wanted)} ({len(expected.columns)} and the label "
            f"{expected.label!r}): it {' and '.join(told)}"
        )
    return frame.set_axis(names, axis=1)[list(wanted)].reset_index(drop=True)


def check(frame: pd.DataFrame, labels: pd.Series, expected: Expected, where: object) -> None:
    """Refuse a table that is not the dataset, and say all that is wrong with it."""
    wrong = [*_sizes(frame, expected), *_values(frame, expected), *_classes(labels, expected)]
    if wrong:
        raise DatasetMismatch(f"{where} is not this dataset: " + "; ".join(wrong))


def rates(labels: pd.Series, expected: Expected) -> dict[Any, float] | Literal["balanced"]:
    """The rate of the positive class, or "balanced"."""
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
        found = float(np.abs(frame[sorted(numbers)].to_numpy()).max(initial=0))
        if found > expected.largest:
            yield f"values up to {found:g}, expected at most {expected.largest:g}"


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
        found = float((labels == positive).mean())
        if abs(found - rate) > RATE_TOLERANCE:
            yield f"{found:.2%} of the labels are {positive!r}, expected {rate:.2%}"


def _listed(names: list[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(map(repr, names[:SHOWN])) + (f" and {more} more" if more > 0 else "")
