"""A table is known by its digest: the same from every library, another where anything differs."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerbayes.data.digest import table_digest

NUMBERS = [1.5, 2.0, float("nan")]
FRAME = pd.DataFrame({"age": NUMBERS, "sex": ["f", None, ""], "ward": [1, 2, 3]})
LABELS = ["yes", "no", "no"]


def test_the_same_table_of_another_library_has_the_same_digest():
    polars, arrow = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    columns = {name: [None if pd.isna(value) else value for value in FRAME[name]] for name in FRAME}
    expected = table_digest(FRAME, LABELS)
    assert table_digest(polars.DataFrame(columns), np.array(LABELS)) == expected
    assert table_digest(arrow.table(columns), np.array(LABELS, dtype=object)) == expected


@pytest.mark.parametrize(
    "other",
    [
        FRAME.rename(columns={"age": "years"}),
        FRAME[["sex", "age", "ward"]],
        FRAME.iloc[::-1],
        FRAME.iloc[:2],
        FRAME.assign(age=[1.5, 2.0, 0.0]),
        FRAME.assign(sex=["f", "", None]),
        FRAME.assign(sex=["f", "None", ""]),
        FRAME.assign(ward=["1", "2", "3"]),
    ],
    ids=["a name", "order of columns", "order of rows", "fewer rows", "a gap", "gaps", "text None", "text"],
)
def test_another_table_has_another_digest(other):
    assert table_digest(other, LABELS[: len(other)]) != table_digest(FRAME, LABELS)


def test_other_labels_are_another_digest():
    assert table_digest(FRAME, ["no", "yes", "no"]) != table_digest(FRAME, LABELS)


@given(st.lists(st.one_of(st.integers(-(2**40), 2**40), st.booleans()), min_size=1, max_size=8))
def test_a_number_is_the_same_in_every_type(values):
    plain = np.array([[float(value)] for value in values])
    mixed = pd.DataFrame({"x0": pd.Series(values, dtype=object)})
    as_object = pd.DataFrame({"x0": pd.Series([float(v) for v in values], dtype=object)})
    y = np.zeros(len(values))
    assert table_digest(mixed, y) == table_digest(as_object, y)
    assert table_digest(plain, y) == table_digest(plain.astype(np.int64), y)


@given(
    st.lists(st.text(max_size=3), min_size=2, max_size=4),
    st.lists(st.text(max_size=3), min_size=2, max_size=4),
)
def test_texts_do_not_run_into_each_other(one, other):
    if len(one) == len(other):
        frames = [pd.DataFrame({"a": pd.Series(texts, dtype=object)}) for texts in (one, other)]
        digests = {table_digest(frame, np.zeros(len(one))) for frame in frames}
        assert len(digests) == len({tuple(one), tuple(other)})
