"""Checks of arguments: each value is returned as a plain one, or refused by name, with what arrived and was expected.

Every function takes the name of an argument and its value, and returns the value as plain Python. `error` is the type
of error that a refusal raises.
"""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from peerbayes.errors import PeerbayesError

LARGEST = 2**63 - 1  # of int64, the type of counts

LARGEST_SEED = 2**128 - 1  # as many bits as NumPy's own seeds have

# Characters of a value that an error shows.
SHOWN = 80


def shown(value: Any) -> str:
    """Return a value as errors show it: on one line, cut where it is long, whatever its own `repr` does."""
    try:
        text = re.sub(r"\s*\n\s*", " ", repr(value))
    except Exception:  # a foreign `repr` may fail; integers of more than 4,300 digits have none
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def refusal(name: str, value: Any, expected: str, error: type[Exception] = ValueError) -> Exception:
    """Return the error that says what arrived under this name, and what was `expected`."""
    return error(f"{name} is {shown(value)}; expected {expected}")


def whole(
    name: str,
    value: Any,
    least: int,
    most: int = LARGEST,
    advice: str = "",
    error: type[Exception] = ValueError,
) -> int:
    """Return an integer from `least` to `most`; `advice` follows the expectation in the error."""
    try:
        plain = least - 1 if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        plain = least - 1
    if not least <= plain <= most:
        bounds = f"of {least} or more" if plain < least else f"from {least} to {most:,}"
        raise refusal(name, value, f"a whole number {bounds}{advice}", error)
    return plain


def number(
    name: str,
    value: Any,
    expected: str,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
    below: float = math.inf,
    error: type[Exception] = ValueError,
) -> float:
    """Return a finite number within bounds; `expected` states them in words."""
    plain = _real(value)
    if not (math.isfinite(plain) and least <= plain <= most and above < plain < below):
        raise refusal(name, value, expected, error)
    return plain


def _real(value: Any) -> float:
    """Return a real number as a float, and NaN for anything else."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:  # an integer of hundreds of digits
        return math.inf


def flag(name: str, value: Any) -> bool:
    """Return True or False; 1 and 0 are accepted."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    try:
        if (plain := operator.index(value)) in (0, 1):
            return bool(plain)
    except TypeError:
        pass
    raise refusal(name, value, "true or false")


def one_of(
    name: str, value: Any, choices: Collection[str], more: str = "", error: type[Exception] = ValueError
) -> str:
    """Return the value if it is among `choices`; `more` names further choices in the error."""
    if not isinstance(value, str) or value not in choices:
        raise refusal(name, value, f"one of {', '.join(choices)}{more}", error)
    return str(value)


def wholes(
    name: str, values: Any, least: int, most: int = LARGEST, error: type[Exception] = ValueError
) -> np.ndarray:
    """Return a list of integers from `least` to `most`, not empty, as a copy: [k] int64."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, OverflowError):  # lists of different lengths
        raise refusal(name, values, "a list of at least one integer", error) from None
    if array.ndim != 1 or array.size == 0:
        raise error(f"{name} has shape {array.shape}; expected a list of at least one integer")
    too_large = array.dtype == object and all(type(value) is int for value in array)  # for int64
    if array.dtype.kind not in "iu" and not too_large:
        raise error(
            f"{name} holds {shown(array[0])} ({array.dtype}); expected integers, so convert them first"
        )
    outside = np.flatnonzero((array < least) | (array > most))
    if outside.size:
        bounds = f"{least} to {most}" if most < LARGEST else f"{least} or more"
        raise error(f"{name} holds {shown(array[outside[:1]].tolist()[0])}; expected {bounds}")
    return array.astype(np.int64)


def path(name: str, value: Any, expected: str) -> Path:
    """Return the path of a file or a folder; `expected` says which."""
    if not isinstance(value, str | os.PathLike) or not isinstance(text := os.fspath(value), str):
        raise refusal(name, value, expected, TypeError)
    if not text or "\0" in text:
        raise refusal(name, value, expected)
    return Path(text)


@contextmanager
def about(*names: str) -> Iterator[None]:
    """Begin the message of errors raised inside with the first of these names, unless it begins with one of them."""
    try:
        yield
    except (ValueError, TypeError, OverflowError) as problem:
        if re.match(rf"({'|'.join(names)})\b", str(problem)):
            raise
        named = (
            type(problem) if isinstance(problem, PeerbayesError) or type(problem) is TypeError else ValueError
        )
        raise named(f"{names[0]}: {problem}") from problem
