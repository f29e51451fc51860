"""Bits and ranges of columns are those of the rows, whatever the model."""

import copy
import gc
import pickle
import weakref

import numpy as np
import pytest
from sklearn.metrics import mutual_info_score

from peerbayes.data.schema import Schema
from peerbayes.data.table import Rows, Table
from peerbayes.model.sources import (
    BEYOND,
    COUNTED_ENTRIES,
    LaterObserved,
    Observed,
    Raw,
    counted_rows,
    observe,
    observe_later,
)


def encoded(values=None, codes=None):
    rows = len(values if codes is None else codes)
    return Rows(
        np.zeros((rows, 0)) if values is None else np.asarray(values, dtype=np.float64).reshape(rows, -1),
        np.zeros((rows, 0), np.int32) if codes is None else np.asarray(codes, np.int32).reshape(rows, -1),
    )


def test_bits_are_the_counted_information_less_its_bias():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 900)
    codes = (labels + rng.integers(0, 3, 900)) % 5
    bias = (len(set(zip(labels, codes, strict=True))) - 5 - 3 + 1) / (2 * 900)
    expected = (mutual_info_score(labels, codes) - bias) / np.log(2)
    discrete = observe(encoded(codes=codes), labels, 3)
    continuous = observe(encoded(values=10.0 * codes), labels, 3)  # few values: counted one by one
    assert discrete.bits == pytest.approx([expected])
    assert continuous.bits == pytest.approx([expected])


def test_bits_of_many_values_are_those_of_their_densities():
    """Two Gaussians of distance 2: I = 0.4860 bits, by numerical integration."""
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, 20_000)
    values = rng.normal(2.0 * labels)
    assert observe(encoded(values=values), labels, 2).bits == pytest.approx([0.486], abs=0.02)
    skewed = observe(
        encoded(values=np.exp(5 * values)), labels, 2
    )  # no order changes: neither does information
    assert skewed.bits == pytest.approx(observe(encoded(values=values), labels, 2).bits)


def test_a_frequent_value_among_many_is_counted_by_itself():
    """Being 0 or not tells all there is, the entropy of the class."""
    rng = np.random.default_rng(6)
    values = np.where(rng.random(4000) < 0.9, 0.0, rng.normal(size=4000))
    labels = (values == 0).astype(int)
    entropy = -sum(p * np.log2(p) for p in (labels.mean(), 1 - labels.mean()))
    bias = -1 / (
        2 * 4000 * np.log(2)
    )  # each value is of one class: one cell less than values and classes, and 1
    assert observe(encoded(values=values), labels, 2).bits == pytest.approx([entropy - bias], abs=1e-9)


def test_a_constant_column_tells_nothing_and_noise_next_to_nothing():
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 4, 1000)
    values = np.stack([np.full(1000, 7.0), rng.normal(size=1000)], axis=1)
    bits = observe(Rows(values, np.zeros((1000, 1), np.int32)), labels, 4).bits
    assert bits[0] == bits[2] == 0.0
    assert bits[1] < 0.02


def test_a_missing_value_tells_nothing_and_rows_without_a_label_do_not_count():
    labels = np.tile([0, 1], 500)
    values, codes = labels.astype(float), labels.copy()
    values[::4] = values[1::4] = np.nan
    codes[::4] = codes[1::4] = -1
    half = observe(Rows(values[:, None], codes[:, None]), labels, 2).bits
    assert half == pytest.approx([0.5, 0.5], abs=1e-3)
    without = np.concatenate([labels, np.full(100, -1)])
    more = Rows(
        np.concatenate([values, np.full(100, 9.0)])[:, None], np.append(codes, np.ones(100, int))[:, None]
    )
    assert observe(more, without, 2).bits == pytest.approx(half)
    nothing = observe(Rows(np.full((10, 1), np.nan), np.full((10, 1), -1)), labels[:10], 2)
    assert nothing.bits.tolist() == [0, 0] and nothing.ranges.tolist() == [[0, 0]]


def test_weights_count_rows():
    rng = np.random.default_rng(3)
    labels, values = rng.integers(0, 2, 400), rng.integers(0, 5, 400).astype(float)
    twice = np.where(labels == 0, 2.0, 1.0)
    weighted = observe(encoded(values=values), labels, 2, twice).bits
    repeated = np.repeat(np.arange(400), twice.astype(int))
    counted = observe(encoded(values=values[repeated]), labels[repeated], 2).bits
    assert weighted == pytest.approx(counted, abs=2e-3)


def test_a_range_lies_within_the_values_and_holds_nearly_all():
    rng = np.random.default_rng(4)
    values = np.exp(rng.normal(size=(2000, 3)))
    values[:, 2] = 0.0
    values[7, 2] = 1.0  # one row differs: its range is that of the values
    labels = rng.integers(0, 2, 2000)
    ranges = observe(encoded(values=values), labels, 2).ranges
    for column, (low, high) in zip(values.T, ranges, strict=True):
        assert column.min() <= low < high <= column.max()
        assert ((column < low) | (column > high)).mean() <= 2 * BEYOND


def test_large_tables_are_counted_evenly():
    assert counted_rows(500, 10).tolist() == list(range(500))
    some = counted_rows(10**6, 20)
    assert some[0] == 0 and some[-1] == 10**6 - 1 and some.size * 20 <= 1 << 18
    assert np.ptp(np.diff(some)) <= 1
    assert counted_rows(10**6, 10**5).size == 2000


# --- what is counted when it is first read


def some_rows(rows=300, columns=3):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(rows, columns))
    schema = Schema.infer(X)
    return X, schema, Raw(schema, Table.of(X)), rng.integers(0, 2, rows)


@pytest.mark.parametrize("weighted", [False, True])
def test_what_is_counted_later_is_what_is_counted_at_once(weighted):
    X, schema, source, labels = some_rows()
    weights = np.random.default_rng(4).uniform(0.5, 2, len(X)) if weighted else None
    expected = observe(schema.encode(X), labels, 2, weights)
    later = observe_later(source, labels, 2, weights)
    X[:], labels[:] = 0.0, 0  # rows that change are not those that were learned from
    if weights is not None:
        weights[:] = 1.0
    assert isinstance(later, LaterObserved)
    for found, of_rows in zip(later.counted(), expected, strict=True):
        np.testing.assert_array_equal(found, of_rows)


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))]
)
def test_a_copy_has_what_was_counted_and_no_rows(copied):
    _, schema, source, labels = some_rows()
    found = copied(observe_later(source, labels, 2))
    assert type(found) is Observed
    np.testing.assert_array_equal(found.bits, observe(schema.encode(source.table), labels, 2).bits)


def test_rows_are_kept_no_longer_than_until_they_are_counted():
    class Marked:
        pass

    marked = Marked()
    kept = weakref.ref(marked)

    def count(rows=marked):
        return Observed(np.zeros(1), np.zeros((0, 2)))

    later = LaterObserved(count)
    del marked, count
    gc.collect()
    assert kept() is not None
    first = later.counted()
    gc.collect()
    assert kept() is None and later.counted() is first


def test_wide_rows_are_counted_at_once():
    X, _, source, labels = some_rows(COUNTED_ENTRIES // 600, 610)
    assert X.size > COUNTED_ENTRIES and isinstance(observe_later(source, labels, 2), Observed)
