"""Tables of pandas, polars (eager and lazy) and pyarrow: the same rows give the same results."""

import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import peerbayes as pb
from peerbayes.data import sources
from peerbayes.data.table import HASHED_ROWS, Table
from peerbayes.errors import SchemaError

pa = pytest.importorskip("pyarrow")
pl = pytest.importorskip("polars")

LEVELS = ["low", "high", "middle"]

# Values of a column, and its type in pandas, in polars and in pyarrow.
KINDS = {
    "floats": (st.floats(-1e6, 1e6), "float64", pl.Float64, pa.float64()),
    "small floats": (st.floats(-100, 100, width=32), "float32", pl.Float32, pa.float32()),
    "integers": (st.integers(-1000, 1000), "Int64", pl.Int64, pa.int64()),
    "bytes": (st.integers(0, 255), "UInt8", pl.UInt8, pa.uint8()),
    "large integers": (st.integers(2**53, 2**63 - 1), "Int64", pl.Int64, pa.int64()),
    "unsigned integers": (st.integers(2**63, 2**64 - 1), "UInt64", pl.UInt64, pa.uint64()),
    "booleans": (st.booleans(), "boolean", pl.Boolean, pa.bool_()),
    "text": (st.text("aäbc 1€", max_size=4), "object", pl.String, pa.string()),
    "large text": (st.sampled_from(["NA", "nan", "?", "x" * 300]), "string", pl.String, pa.large_string()),
    "levels": (
        st.sampled_from(LEVELS),
        pd.CategoricalDtype(LEVELS),
        pl.Enum(LEVELS),
        pa.dictionary(pa.int8(), pa.string()),
    ),
}

# The first values of a column: pyarrow declares the categories that occur, as they come, so all of them come in order.
FIRST = {"levels": LEVELS}


def columns(kinds):
    """Draw columns of some kinds, each with values missing or not, and the labels of their rows."""

    @st.composite
    def draw_columns(draw):
        names = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=4, unique=True))
        rows = draw(st.integers(8, 20))
        drawn = {}
        for name in names:
            values = KINDS[name][0]
            values = st.none() | values if draw(st.booleans()) else values
            first = FIRST.get(name, [])
            drawn[name] = first + draw(
                st.lists(values, min_size=rows - len(first), max_size=rows - len(first))
            )
        drawn["always"] = [float(row % 5) for row in range(rows)]
        return drawn, [("no", "yes", "yes")[row % 3] for row in range(rows)]

    return draw_columns()


def in_pandas(drawn):
    return pd.DataFrame(
        {name: pd.array(values, dtype=_type(name, 1, "float64")) for name, values in drawn.items()}
    )


def in_polars(drawn):
    return pl.DataFrame(
        {name: pl.Series(values, dtype=_type(name, 2, pl.Float64)) for name, values in drawn.items()}
    )


def in_lazy_polars(drawn):
    return in_polars(drawn).lazy()


def in_pyarrow(drawn):
    return pa.table({name: pa.array(values, _type(name, 3, pa.float64())) for name, values in drawn.items()})


def _type(name, library, otherwise):
    return KINDS[name][library] if name in KINDS else otherwise


OTHERS = pytest.mark.parametrize("other", [in_polars, in_lazy_polars, in_pyarrow])


@OTHERS
@pytest.mark.parametrize("kinds", ["auto", "paper", "discrete"])
@settings(deadline=None, max_examples=40, derandomize=True)
@given(data=columns(list(KINDS)))
def test_a_schema_and_its_rows_are_those_of_pandas(data, other, kinds):
    drawn, labels = data
    expected = pb.Schema.infer(in_pandas(drawn), labels, kinds=kinds)
    schema = pb.Schema.infer(other(drawn), labels, kinds=kinds)
    assert schema == expected and schema.to_json() == expected.to_json()
    for mine, theirs in zip(expected.encode(other(drawn)), expected.encode(in_pandas(drawn)), strict=True):
        np.testing.assert_array_equal(mine, theirs)


SOME = ["floats", "integers", "booleans", "text", "levels"]


@pytest.mark.filterwarnings("ignore::peerbayes.errors.DataWarning")  # drawn texts look odd
@OTHERS
@settings(
    deadline=None, max_examples=5, derandomize=True, phases=[Phase.generate]
)  # to shrink a case takes minutes
@given(data=columns(SOME))
def test_a_classifier_predicts_and_explains_as_from_pandas(data, other):
    drawn, labels = data
    weights = np.arange(len(labels)) % 4
    one = pb.MixedNB(calibrate=True).fit(in_pandas(drawn), labels, sample_weight=weights)
    two = pb.MixedNB(calibrate=True).fit(other(drawn), labels, sample_weight=weights)
    assert list(two.feature_names_in_) == list(one.feature_names_in_) == list(drawn)
    np.testing.assert_array_equal(
        one.predict_proba(in_pandas(drawn)), two.predict_proba(other(drawn)), strict=True
    )
    row = {name: values[:1] for name, values in drawn.items()}
    explained = one.explain(in_pandas(row)), two.explain(other(row))
    pd.testing.assert_frame_equal(*(frame.drop(columns="value") for frame in explained))
    values = [["-" if pd.isna(value) else str(value) for value in frame["value"]] for frame in explained]
    assert values[0] == values[1]


@OTHERS
def test_a_simulation_is_that_of_pandas(other):
    rng = np.random.default_rng(0)
    drawn = {
        "floats": [None if row % 7 == 0 else value for row, value in enumerate(rng.normal(size=60).tolist())],
        "integers": rng.integers(0, 9, 60).tolist(),
        "text": [("a", "b", None)[row % 3] for row in range(60)],
    }
    labels = np.where(rng.random(60) < 0.5, "no", "yes")
    series = pl.Series(labels.tolist())
    arguments = {"peers": 3, "rows_per_peer": 15, "rounds": 3, "topology": "ring"}
    one = pb.simulate(in_pandas(drawn), labels, **arguments)
    two = pb.simulate(other(drawn), series, **arguments)
    np.testing.assert_array_equal(one.stats, two.stats)
    pd.testing.assert_frame_equal(one.history, two.history)
    tested = pb.simulate(
        other(drawn), series, **arguments, test=(other(drawn), series), evaluate_every=0
    ).summary()
    assert (
        tested["test_error"]
        == pb.simulate(
            in_pandas(drawn), labels, **arguments, test=(in_pandas(drawn), labels), evaluate_every=0
        ).summary()["test_error"]
    )


@OTHERS
def test_columns_are_found_by_name_in_any_library(other):
    """A saved model does not need the order of the columns; a table without one of them is refused."""
    drawn = {"floats": [1.0, 2.0, 3.0, 4.0], "integers": [1, 2, 1, 2]}
    model = pb.MixedNB().fit(other(drawn), [0, 1, 0, 1])
    model = pb.MixedNB.from_statistics(model.statistics_)
    turned = {"more": [0.0] * 4, "integers": drawn["integers"], "floats": drawn["floats"]}
    np.testing.assert_array_equal(model.predict_proba(other(turned)), model.predict_proba(in_pandas(drawn)))
    with pytest.raises(ValueError, match="integers"):
        model.predict(other({"floats": [1.0]}))


def test_the_categories_of_polars_are_those_of_the_column():
    """polars keeps the categories of a Categorical for all columns of a process; those of others are not ours."""
    pl.Series(["other"], dtype=pl.Categorical)
    frame = pl.DataFrame({"c": pl.Series(["b", "a", None, "b"], dtype=pl.Categorical)})
    assert pb.Schema.infer(frame).columns[0].categories == ("a", "b")
    assert pb.Schema.infer(frame.cast(pl.Enum(["c", "b", "a"]))).columns[0].categories == ("c", "b", "a")


def test_a_missing_category_of_pyarrow_is_missing():
    """pyarrow itself turns it into the category before."""
    table = Table.of(pa.table({"c": pa.array(["b", "a", None]).dictionary_encode()}))
    assert table.column(0).tolist() == ["b", "a", None]


def test_a_missing_label_of_pyarrow_is_refused():
    table = pa.table({"x": [1.0, 2.0, 3.0], "y": pa.array(["b", "a", None]).dictionary_encode()})
    for learn in (pb.Schema.infer, pb.MixedNB().fit):
        with pytest.raises(ValueError, match="missing labels"):
            learn(table.select(["x"]), table["y"])


@pytest.mark.parametrize("numbers", [[Decimal("1.25"), None, Decimal("3")], [2**100, None, 3]])
def test_numbers_that_numpy_has_no_type_for_are_floats(numbers):
    expected = [float("nan") if value is None else float(value) for value in numbers]
    wide = pl.Decimal(20, 2) if isinstance(numbers[0], Decimal) else pl.Int128
    np.testing.assert_array_equal(
        Table.of(pl.DataFrame({"w": pl.Series(numbers, dtype=wide)})).column(0), expected
    )
    if isinstance(numbers[0], Decimal):
        np.testing.assert_array_equal(Table.of(pa.table({"w": numbers})).column(0), expected)


@pytest.mark.parametrize(
    "values",
    [
        [datetime.date(2020, 1, 1)] * 3,
        [datetime.datetime(2020, 1, 1)] * 3,
        [datetime.timedelta(1)] * 3,
        [datetime.time(1)] * 3,
    ],
)
@pytest.mark.parametrize("library", [pl.DataFrame, pa.table, pl.LazyFrame])
def test_dates_are_refused_with_advice(values, library):
    with pytest.raises(SchemaError, match=r"column 'when' holds dates or times .*days since"):
        pb.Schema.infer(library({"when": values}))


@pytest.mark.parametrize("library", [pl.DataFrame, pa.table])
def test_lists_in_a_column_are_refused_with_advice(library):
    with pytest.raises(SchemaError, match=r"column 'several' holds List.*Give each entry a column"):
        pb.Schema.infer(library({"several": [[1, 2], [3, 4]]}))
    with pytest.raises(SchemaError, match=r"column 'several' holds Struct"):
        pb.Schema.infer(library({"several": [{"a": 1}, {"a": 2}]}))


def test_a_column_without_any_value_says_nothing():
    for table in (pl.DataFrame({"none": [None, None]}), pa.table({"none": pa.nulls(2)})):
        assert pb.Schema.infer(table) == pb.Schema.infer(pd.DataFrame({"none": [None, None]}))


def test_two_columns_of_one_name_are_refused():
    for table in (
        pa.table([[1], [2]], names=["a", "a"]),
        pd.DataFrame([[1, 2]], columns=["a", "a"]),
        pd.DataFrame([[1, 2]], columns=[1, "1"]),
    ):
        with pytest.raises(SchemaError, match=r"several columns named .*rename all but one"):
            Table.of(table)


def test_an_estimator_takes_columns_of_its_schema_only():
    frame = pl.DataFrame({"a": [1.0, 2.0], "b": [1.0, 2.0]})
    schema = pb.Schema.infer(frame.select("a"), [0, 1])
    with pytest.raises(ValueError, match="the schema has no column b"):
        pb.MixedNB(schema=schema).fit(frame, [0, 1])


def test_a_table_of_another_library_is_read_by_pandas():
    class Foreign:
        def to_pandas(self):
            return pd.DataFrame({"a": [1.0, 2.0]})

    assert Table.of(Foreign()).names == ("a",)
    assert Table.of(Foreign()).take(np.array([1])).number(0) == 1


@OTHERS
def test_a_source_of_an_outside_package_may_return_any_table(other, monkeypatch):
    drawn = {"floats": [1.0, None], "text": ["a", "b"], "integers": [1, 2]}
    monkeypatch.setitem(sources.SOURCES.data, "mine", lambda data, query: other(drawn))
    frame = sources.read("mine://rows")
    assert frame["text"].tolist() == ["a", "b"] and frame["integers"].dtype == "int64"
    assert frame["floats"].isna().tolist() == [False, True]


# --- text that is hashed once


def columns_of_text(rows):
    rng = np.random.default_rng(2)
    words = np.array([f"word {k}" for k in range(300)], dtype=object)  # more than a byte numbers
    many = words[rng.integers(0, 300, rows)]
    few = np.array(["a", "b", None, np.nan, pd.NA], dtype=object)[rng.integers(0, 5, rows)]
    few[0] = "b"
    return {"many": many, "few": few}, rng.integers(0, 2, rows)


@pytest.mark.parametrize("of", ["object", "str", "string", "polars", "array"])
def test_text_that_is_hashed_is_text_that_is_searched(of, monkeypatch):
    drawn, y = columns_of_text(2 * HASHED_ROWS)
    if of == "polars":
        pl = pytest.importorskip("polars")
        X = pl.DataFrame(
            {name: [v if isinstance(v, str) else None for v in values] for name, values in drawn.items()}
        )
    else:
        frame = pd.DataFrame(drawn)
        X = frame.to_numpy(dtype=object) if of == "array" else frame.astype(of)
    weights = np.random.default_rng(0).uniform(0, 1, y.size)
    hashed = pb.Schema.infer(X, y, sample_weight=weights)
    codes = hashed.encode(X).codes
    assert Table.of(X).texts(0) is not None and Table.of(X).texts(1).codes.min() == -1
    monkeypatch.setattr("peerbayes.data.table.HASHED_ROWS", 1 << 30)
    assert Table.of(X).texts(0) is None
    searched = pb.Schema.infer(X, y, sample_weight=weights)
    assert searched == hashed and searched.fingerprint == hashed.fingerprint
    np.testing.assert_array_equal(searched.encode(X).codes, codes)
    assert len(hashed.columns[0].categories) > 127 and (codes[:, 1] < 0).any()


@pytest.mark.parametrize("of", ["object", "str"])
def test_categories_that_are_new_or_of_another_type_are_found_in_hashed_text(of):
    drawn, _ = columns_of_text(2 * HASHED_ROWS)
    X = pd.DataFrame(drawn).astype(of)
    schema = pb.Schema.infer(X)
    X.loc[5, "few"] = "never seen"
    assert schema.encode(X).codes[5, 1] == -1
    numbers = pb.Schema.infer(pd.DataFrame({"many": [1, 2], "few": [1, 2]}), kinds="discrete")
    with pytest.raises(pb.SchemaMismatch, match=f"holds '{X['many'][0]}'; its categories are numbers"):
        numbers.encode(X)


def test_only_text_is_hashed():
    """True is 1 for a hash: which of them a column holds is told from all of its values."""
    rows = HASHED_ROWS
    for values in (["a"] * rows + [1], ["a"] * rows + [True], [1, 2] * rows, [None] * rows, [True, 1] * rows):
        column = np.array(values, dtype=object)
        assert Table.of(pd.DataFrame({"x": pd.Series(column, dtype=object)})).texts(0) is None
    with pytest.raises(SchemaError, match="mixes numbers and text"):
        pb.Schema.infer(pd.DataFrame({"x": pd.Series(["a"] * rows + [1], dtype=object)}))
    assert Table.of(pd.DataFrame({"x": pd.Series(["a"] * rows, dtype="category")})).texts(0) is None
    assert Table.of(pd.DataFrame({"x": np.arange(rows)})).texts(0) is None
    assert Table.of(pd.DataFrame({"x": ["a"] * (rows - 1)})).texts(0) is None
