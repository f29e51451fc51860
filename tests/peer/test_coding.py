"""Numbers in few bytes: the same to the last bit for any arrays, and nothing else is read."""

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from peerbayes.errors import RefusedMessage
from peerbayes.learning.few_bytes import Rounding
from peerbayes.peer.protocol.coding import FORMS, coded, decoded

shapes = array_shapes(min_dims=2, max_dims=3, max_side=5)
anything = st.floats(allow_nan=True, allow_infinity=True)
some_numbers = st.one_of(anything, st.integers(-300, 300).map(float), st.floats(width=32))


@st.composite
def pairs(draw):
    shape = draw(shapes)
    return tuple(draw(arrays(np.float64, shape, elements=some_numbers)) for _ in range(2))


def same(one, other):
    return one.dtype == other.dtype == np.float64 and one.tobytes() == other.tobytes()


@given(pairs())
def test_any_message_is_read_as_it_was_written(pair):
    message, base = pair
    with np.errstate(all="ignore"):
        later = base + message * 2.0**-8
    for sent in (message, later):
        assert same(decoded(coded(sent), sent.shape), sent)
        assert same(decoded(coded(sent, base), sent.shape, base), sent)
        assert len(coded(sent, base)) <= len(coded(sent)) <= 1 + sent.nbytes


@given(st.integers(2, 6), st.integers(1, 6), st.booleans(), st.integers(0, 1000))
def test_rounded_messages_take_a_byte_a_number(classes, columns, conserved, seed):
    """Also two of them together take two, whatever their scales are."""
    rng = np.random.default_rng(seed)
    start = np.full((classes, columns), 100.0 / classes)
    values = start + rng.normal(size=start.shape) * 10.0 ** rng.integers(-3, 3, size=columns)
    values -= (values - start).mean(axis=0)
    rounding = Rounding("int8", conserved)
    start = rounding.first(start)
    first = rounding.shown(values, start)
    second = rounding.shown(values + (first - start) / 7, first)
    size = rounding.size(start.shape)
    assert len(coded(first, start)) <= 1 + size and len(coded(second, first)) <= 1 + size
    numbers = size - columns
    assert len(coded(second, start)) <= 1 + columns + 4 * numbers
    assert same(decoded(coded(second, start), start.shape, start), second)


def test_the_shortest_form_is_taken():
    base = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    change = np.array([[1.0, 0.5], [-3.0, 0.25], [2.0, 10.0]])
    assert len(coded(base, base)) == 1 + 2 + 4  # nothing changed: sums are conserved
    conserved = change - np.array([[0.0, 0.0], [0.0, 0.0], [0.0, 10.75]])
    assert len(coded(base + conserved, base)) == 1 + 2 + 4
    assert len(coded(base + change, base)) == 1 + 2 + 6
    assert len(coded(base + 1000 * change, base)) == 1 + 2 + 12
    assert len(coded(base + 100_000 * change, base)) == 1 + 24  # float32, without exponents
    exact = base + 2.0**-30 * (100_000 * change + 1)
    assert len(coded(exact, base)) == 1 + 2 + 24  # of four bytes, which float32 cannot hold
    assert len(coded(base + 0.1, base)) == 1 + 48 and len(coded(base)) == 1 + 24


HOSTILE = [
    (b"", "the form -1"), (b"\xff" + bytes(48), "the form 255"), (b"\x00" + bytes(47), "48 bytes of numbers"),
    (b"\x01" + bytes(48), "49 bytes of numbers"), (bytes([min(FORMS)]) + bytes(5), "6 bytes of numbers"),
    (bytes([max(FORMS)]) + bytes(5), "6 bytes of numbers"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "words"), HOSTILE)
def test_other_bytes_are_refused(content, words):
    with pytest.raises(RefusedMessage, match=words):
        decoded(content, (3, 2), np.zeros((3, 2)))


@given(st.binary(max_size=40), shapes)
def test_whatever_the_bytes_are_numbers_come_out_or_a_refusal(content, shape):
    with contextlib.suppress(RefusedMessage):
        assert decoded(content, shape, np.ones(shape)).shape == shape


def test_a_difference_needs_the_base_that_was_asked_for():
    base = np.ones((3, 2))
    content = coded(base + 1, base)
    for other in (None, np.ones((2, 3))):
        with pytest.raises(RefusedMessage, match="not asked for"):
            decoded(content, (3, 2), other)
