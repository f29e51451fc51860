"""Numbers of a message in few bytes, without loss: its difference from a message that the receiver has already.

    coded(message, base) -> bytes        decoded(bytes, base, shape) -> message, to the last bit

The first byte names the form; `coded` takes the shortest that gives the same bits again:

    integers   an exponent e per column, and q in 1, 2 or 4 bytes: message = base + 2^e · q
    the same   without the last class, where q sums to zero over classes
    float32    where all numbers are exact in it
    float64    always possible, and without a base the only one beside float32

A base is a matrix of earlier numbers, of the sender or the common start. Whether a message was rounded (see
`peerbayes.learning.few_bytes`) does not matter here: rounding makes short forms possible, and these keep whatever they
are given. Exponents are one byte, −128 to 127. Numbers are little-endian.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from peerbayes.errors import RefusedMessage

FLOAT64, FLOAT32 = 0, 1


class Integers(NamedTuple):
    """A form of differences: the type of q, and whether the last class is left out."""

    dtype: str
    without_last: bool


FORMS = {
    number: Integers(dtype, without_last)
    for number, (dtype, without_last) in enumerate(
        ((dtype, without_last) for dtype in ("<i1", "<i2", "<i4") for without_last in (True, False)), start=2
    )
}
LARGEST_EXPONENT, SMALLEST_EXPONENT = 127, -128


def coded(message: np.ndarray, base: np.ndarray | None = None) -> bytes:
    """Return a message [..., C, K] in the fewest bytes, for a receiver that has the base [..., C, K] or none."""
    message = np.ascontiguousarray(message, dtype="<f8")
    with np.errstate(over="ignore", invalid="ignore"):
        single = message.astype("<f4")
        exact = _same(single.astype("<f8"), message)
    floats = bytes([FLOAT32]) + single.tobytes() if exact else bytes([FLOAT64]) + message.tobytes()
    differences = None if base is None else _differences(message, base)
    return floats if differences is None or len(floats) <= len(differences) else differences


def decoded(content: bytes, shape: tuple[int, ...], base: np.ndarray | None = None) -> np.ndarray:
    """Return the message of a shape [..., C, K] that was coded for a receiver of the base; refuse any other bytes."""
    form, body, entries = content[0] if content else -1, content[1:], math.prod(shape)
    if form in (FLOAT64, FLOAT32):
        _refuse_length(content, (8 if form == FLOAT64 else 4) * entries, shape)
        return np.frombuffer(body, "<f8" if form == FLOAT64 else "<f4").reshape(shape).astype(np.float64)
    if form not in FORMS:
        raise RefusedMessage(
            "unreadable", f"numbers in the form {form}; expected one of 0 to {max(FORMS)}: update peerbayes"
        )
    if base is None or base.shape != shape:
        raise RefusedMessage("wrong message", "a difference from a message that was not asked for")
    integers, (*matrices, classes, columns) = FORMS[form], shape
    rows = classes - integers.without_last
    exponents_size, sizes = math.prod(matrices) * columns, math.prod(matrices) * rows * columns
    _refuse_length(content, exponents_size + sizes * np.dtype(integers.dtype).itemsize, shape)
    exponents = np.frombuffer(body[:exponents_size], "<i1").reshape(*matrices, 1, columns)
    steps = np.frombuffer(body[exponents_size:], integers.dtype).reshape(*matrices, rows, columns)
    steps = steps.astype(np.int64)
    if integers.without_last:
        steps = np.concatenate([steps, -steps.sum(axis=-2, keepdims=True)], axis=-2)
    return base + np.ldexp(steps.astype(np.float64), exponents.astype(np.int32))


def _refuse_length(content: bytes, expected: int, shape: tuple[int, ...]) -> None:
    if len(content) != 1 + expected:
        raise RefusedMessage(
            "wrong shape",
            f"{len(content):,} bytes of numbers {shape} in the form {content[0]}; expected {1 + expected:,}",
        )


def _differences(message: np.ndarray, base: np.ndarray) -> bytes | None:
    """Return a message as integers times powers of two beside a base; None: it would not be the same."""
    with np.errstate(all="ignore"):
        change = message - base
    if not np.isfinite(change).all():
        return None
    mantissa, exponent = np.frexp(change)
    bits = np.ldexp(mantissa, 53).astype(np.int64)  # exact: change = bits · 2^(exponent − 53)
    trailing = np.frexp((bits & -bits).astype(np.float64))[1] - 1
    lowest = np.where(bits != 0, exponent - 53 + trailing, LARGEST_EXPONENT).min(axis=-2, keepdims=True)
    exponents = np.clip(lowest, SMALLEST_EXPONENT, LARGEST_EXPONENT)
    with np.errstate(over="ignore"):
        steps = np.ldexp(change, -exponents)
    without_last = message.shape[-2] > 1 and bool((steps.sum(axis=-2) == 0).all())
    if without_last:
        steps = steps[..., :-1, :]
    largest = np.abs(steps).max(initial=0.0)
    for number, form in FORMS.items():
        if form.without_last == without_last and largest <= np.iinfo(form.dtype).max:
            body = exponents.astype("<i1").tobytes() + steps.astype(form.dtype).tobytes()
            content = bytes([number]) + body
            return content if _same(decoded(content, message.shape, base), message) else None
    return None


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether two arrays of float64 have the same bits."""
    return one.tobytes() == other.tobytes()
