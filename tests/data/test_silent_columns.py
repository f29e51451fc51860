"""Columns that should not be learned from: identifiers, dates, constant and empty ones."""

import numpy as np
import pandas as pd
import pytest

import peerbayes as pb
from peerbayes import Column, Schema, SchemaError
from peerbayes.data.infer import IDENTIFIER_ROWS


def names(rows, distinct=None):
    """Text with so many distinct values."""
    return [f"patient {k % (distinct or rows)}" for k in range(rows)]


@pytest.mark.parametrize("kinds", ["auto", "binned", {"x": "count"}])
def test_an_identifier_is_refused_with_what_to_do(kinds):
    frame = pd.DataFrame({"patient": names(IDENTIFIER_ROWS), "x": np.arange(IDENTIFIER_ROWS)})
    with pytest.raises(
        SchemaError, match=r"'patient' is text with 100 distinct values in 100 rows, .*leave it out, or"
    ):
        Schema.infer(frame, kinds=kinds)
    frame = pd.concat([frame.assign(patient=None), frame])  # a missing value is no row of it
    with pytest.raises(SchemaError, match=r"100 distinct values in 100 rows"):
        Schema.infer(frame, kinds=kinds)


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(pd.DataFrame({"c": names(IDENTIFIER_ROWS - 1)}), id="few-rows"),
        pytest.param(pd.DataFrame({"c": names(1000, 800)}), id="many-categories"),
        pytest.param(pd.DataFrame({"c": pd.Categorical(names(1000))}), id="declared"),
        pytest.param(pd.DataFrame({"c": np.arange(1000)}), id="numbers"),
    ],
)
def test_what_is_no_identifier_is_taken(frame):
    assert not Schema.infer(frame).columns[0].empty


def test_who_calls_an_identifier_discrete_gets_it():
    frame = pd.DataFrame({"c": names(500)})
    for kinds in ("discrete", {"c": "discrete"}, "paper"):
        assert len(Schema.infer(frame, kinds=kinds).columns[0].categories) == 500


@pytest.mark.parametrize("texts", [["2024-03-01", "2024-03-02"], ["2024-03-01 10:30", "2025-01-01", None]])
def test_written_dates_are_refused(texts):
    with pytest.raises(
        SchemaError, match=r"'day' holds dates or times \(like '2024-03-01.*days since a date"
    ):
        Schema.infer(pd.DataFrame({"day": texts}))
    assert Schema.infer(pd.DataFrame({"day": texts}), kinds={"day": "discrete"}).kinds == {"day": "discrete"}


def test_constant_and_empty_columns_are_named():
    frame = pd.DataFrame(
        {
            "seven": 7.0,
            "nothing": np.nan,
            "same": "a",
            "x": [1.0, 2.0, 3.0, 4.0],
            "c": ["a", "b", "a", "b"],
            "zero": 0,
        }
    )
    expected = {"seven": "constant", "nothing": "empty", "same": "constant", "zero": "constant"}
    assert Schema.infer(frame).silent == expected
    assert Schema.infer(frame, kinds="binned").silent == expected
    assert Schema.infer(frame, kinds={"zero": "count"}).silent == expected
    assert Schema((Column("x", "continuous"),)).silent == {}
    model = pb.MixedNB().fit(frame, [0, 1, 0, 1])
    assert model.schema_.silent == expected
