"""A schema: what it says of a table, how it encodes rows, and how two of them become one."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerbayes import Column, Schema, SchemaError, SchemaMismatch
from peerbayes.data.column import column_of_numbers

# Multiples of 1/64: sums and squares of a few are exact, so that laws are not about rounding near underflow.
NUMBERS = st.integers(-(10**6), 10**6).map(lambda k: k / 64)
GAPPY_NUMBERS = st.one_of(NUMBERS, st.just(np.nan))
GAPPY_TEXT = st.sampled_from(["red", "green", "blue", None])
LABELS = st.sampled_from(["no", "yes", "maybe"])

FIXED = Schema(
    (Column("length", "continuous", location=1.5, scale=0.25), Column("colour", "discrete", ("red", "blue"))),
    classes=("no", "yes"),
    clip=5.0,
)


def rows_of(*columns, min_size=1):
    return st.lists(st.tuples(*columns), min_size=min_size, max_size=12)


def frame(rows):
    """A table of a length, a width and a colour."""
    length, width, colour = zip(*rows, strict=True)
    colours = pd.Series(list(colour), dtype=object)
    return pd.DataFrame(
        {"length": np.array(length, float), "width": np.array(width, float), "colour": colours}
    )


def assert_same(first, second, magnitude=1.0):
    """Equal schemas, but for the rounding of location and scale."""
    for mine, theirs in zip(first.columns, second.columns, strict=True):
        assert replace(mine, location=0, scale=1) == replace(theirs, location=0, scale=1)
        assert mine.location == pytest.approx(theirs.location, rel=1e-12, abs=1e-12 * magnitude)
        assert mine.scale == pytest.approx(theirs.scale, rel=1e-12, abs=1e-12 * magnitude)
    assert (first.classes, first.clip) == (second.classes, second.clip)


# --- inference ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "kind", "categories"),
    [
        pytest.param([0.5, 1.5], "continuous", (), id="floats"),
        pytest.param([1, 2], "continuous", (), id="integers"),
        pytest.param(pd.Series([1, None, 2.5], dtype=object), "continuous", (), id="object-numbers"),
        pytest.param(pd.array([1, None, 3], dtype="Int64"), "continuous", (), id="nullable-integers"),
        pytest.param(pd.array([1.5, None], dtype="Float64"), "continuous", (), id="nullable-floats"),
        pytest.param(["b", "a", None], "discrete", ("a", "b"), id="text"),
        pytest.param(pd.array(["b", None, "a"], dtype="string"), "discrete", ("a", "b"), id="nullable-text"),
        pytest.param([True, False], "discrete", (False, True), id="booleans"),
        pytest.param(pd.Series([True, None], dtype=object), "discrete", (True,), id="object-booleans"),
        pytest.param(
            pd.array([True, None, False], dtype="boolean"), "discrete", (False, True), id="nullable"
        ),
        pytest.param(
            pd.Categorical(["b", None], ["c", "b", "a"]), "discrete", ("c", "b", "a"), id="declared"
        ),
        pytest.param(pd.Categorical([3.0, 1.0]), "discrete", (1, 3), id="declared-numbers"),
        pytest.param(["a", "a"], "discrete", ("a",), id="single-category"),
        pytest.param([7.0, 7.0], "continuous", (), id="constant"),
        pytest.param([np.nan, np.nan], "continuous", (), id="all-missing"),
        pytest.param(pd.Series([None, pd.NA], dtype=object), "continuous", (), id="all-missing-objects"),
        pytest.param(pd.array([None, None], dtype="Int64"), "continuous", (), id="all-missing-nullable"),
    ],
)
def test_a_column_has_the_kind_and_the_categories_of_its_values(values, kind, categories):
    (column,) = Schema.infer(pd.DataFrame({"a": values})).columns
    assert (column.name, column.kind, column.categories) == ("a", kind, categories)


@given(rows_of(GAPPY_NUMBERS, GAPPY_NUMBERS))
def test_frames_arrays_objects_and_nullable_numbers_agree(rows):
    array = np.array(rows)
    forms = [pd.DataFrame(array, columns=["x0", "x1"]), array.astype(object)]
    forms.append(pd.DataFrame(array, columns=["x0", "x1"]).astype("Float64"))
    for form in forms:
        assert_same(Schema.infer(form), Schema.infer(array), magnitude=2e4)


def test_an_array_of_text_has_discrete_columns_named_by_position():
    schema = Schema.infer(np.array([["a", "u"], ["b", "u"]]))
    assert schema.columns == tuple(
        Column(name, "discrete", known, count=2.0) for name, known in [("x0", ("a", "b")), ("x1", ("u",))]
    )


@given(st.lists(GAPPY_NUMBERS, min_size=1, max_size=12))
def test_location_and_scale_are_the_mean_and_deviation_of_the_present_values(values):
    (column,) = Schema.infer(np.array(values)[:, None]).columns
    present = [value for value in values if not np.isnan(value)]
    mean, deviation = (np.mean(present), np.std(present)) if present else (0.0, 0.0)
    assert column.count == len(present)
    assert column.location == pytest.approx(mean, rel=1e-12, abs=1e-8)
    assert column.scale == pytest.approx(deviation if len(set(present)) > 1 else 1.0, rel=1e-9)


@pytest.mark.parametrize("value", [0.1, -1e5, 1e100])
def test_a_constant_column_has_scale_one_and_is_encoded_as_zero(value):
    values = np.full((7, 1), value)
    schema = Schema.infer(values)
    assert (schema.location, schema.scale) == (value, 1.0)
    assert (schema.encode(values).values == 0).all()


@pytest.mark.parametrize("kind", ["continuous", "discrete"])
def test_a_column_without_values_is_encoded_as_missing(kind):
    table = pd.DataFrame({"a": [np.nan, np.nan]})
    schema = Schema.infer(table, kinds=kind)
    assert schema.columns == (Column("a", kind, count=0.0),)
    values, codes = schema.encode(table)
    assert np.isnan(values).all() and (codes == -1).all()


WIDE = pd.DataFrame(
    {"few": [0, 1] * 6, "many": np.arange(12), "text": ["a", "b"] * 6, "names": list("abcdefghijkl")}
)
C, D = "continuous", "discrete"


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ("auto", [C, C, D, D]),
        ("paper", [D, C, D, C]),
        ("discrete", [D, D, D, D]),
        ([D, C, "auto", "paper"], [D, C, D, C]),
        (("auto", D, D, "auto"), [C, D, D, D]),
        ({"many": D}, [C, D, D, D]),
        ({0: D, 3: "paper"}, [D, C, D, C]),
        ({np.int64(0): D, "many": D}, [D, D, D, D]),
        ({}, [C, C, D, D]),
    ],
)
def test_kinds_may_be_a_rule_a_list_or_a_mapping(kinds, expected):
    assert list(Schema.infer(WIDE, kinds=kinds).kinds.values()) == expected
    assert list(Schema.infer(WIDE.to_numpy(object), kinds=_by_place(kinds)).kinds.values()) == expected


def _by_place(kinds):
    """The same kinds, for a table whose columns have no names."""
    if not isinstance(kinds, dict):
        return kinds
    return {key if key not in WIDE else WIDE.columns.get_loc(key): rule for key, rule in kinds.items()}


def test_every_number_and_boolean_can_be_declared_continuous():
    table = pd.DataFrame({"a": [1, 3], "b": [True, False], "c": pd.Series(["1.5", "2"], dtype=object)})
    schema = Schema.infer(table, kinds="continuous")
    np.testing.assert_allclose(schema.location, [2.0, 0.5, 1.75])


@pytest.mark.parametrize(("distinct", "kind"), [(10, D), (11, C)])
def test_the_papers_rule_draws_the_line_at_ten_distinct_values(distinct, kind):
    values = np.arange(22) % distinct
    assert Schema.infer(values[:, None], kinds="paper").kinds == {"x0": kind}
    assert Schema.infer(pd.DataFrame({"a": [f"v{k:02}" for k in values]}), kinds="paper").kinds == {"a": kind}


@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_integers_of_any_type_are_categories_and_classes(dtype, extreme):
    limits = np.iinfo(dtype)
    values = np.array([limits.min, limits.max] if extreme else [1, 3], dtype)
    schema = Schema.infer(values[:, None], values, kinds="discrete")
    assert schema.columns[0].categories == schema.classes == tuple(values.tolist())
    assert schema.encode(values[:, None]).codes[:, 0].tolist() == [0, 1]
    assert schema.encode_labels(values).tolist() == [0, 1]


@given(rows_of(GAPPY_NUMBERS, GAPPY_NUMBERS, GAPPY_TEXT), st.data())
def test_a_weight_counts_a_row_that_many_times(rows, data):
    weights = data.draw(st.lists(st.integers(1, 4), min_size=len(rows), max_size=len(rows)))
    repeated = [row for row, weight in zip(rows, weights, strict=True) for _ in range(weight)]
    weighted = Schema.infer(frame(rows), sample_weight=np.array(weights, float))
    assert_same(weighted, Schema.infer(frame(repeated)), magnitude=2e4)


def test_a_row_of_weight_zero_is_not_there():
    table = pd.DataFrame({"a": ["x", "y"], "b": [1.0, 2.0]})
    assert_same(Schema.infer(table, sample_weight=np.array([2.0, 0.0])), Schema.infer(table.iloc[[0, 0]]))


# --- rows --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "unknown"),
    [(["a", "b"], "z"), ([1, 2], 3), ([1.5, 2.5], 2.0), ([True, True], False)],
)
@pytest.mark.parametrize("missing", [None, np.nan, pd.NA])
def test_unknown_and_missing_categories_are_encoded_as_minus_one(values, unknown, missing):
    schema = Schema.infer(pd.DataFrame({"a": values}), kinds=D)
    rows = pd.DataFrame({"a": pd.Series([*values, unknown, missing], dtype=object)})
    assert schema.encode(rows).codes[-2:, 0].tolist() == [-1, -1]
    assert (schema.encode(rows).codes[:-2, 0] >= 0).all()


@pytest.mark.parametrize(("values", "other"), [(["1", "2"], 1), ([1, 2], "1"), ([True, False], "yes")])
def test_a_category_of_another_type_is_a_mistake_and_not_unknown(values, other):
    schema = Schema.infer(pd.DataFrame({"a": values}), kinds=D)
    with pytest.raises(SchemaMismatch, match=f"column 'a' holds {other!r}; its categories are"):
        schema.encode(pd.DataFrame({"a": pd.Series([values[0], other], dtype=object)}))


def test_values_are_standardised_and_held_within_the_clip():
    values = np.array([[0.0], [2.0], [1e9], [-1e9], [np.nan]])
    schema = Schema((Column("a", C, location=1.0, scale=2.0),), clip=5.0)
    np.testing.assert_array_equal(schema.encode(values).values.T, [[-0.5, 0.5, 5, -5, np.nan]])
    unclipped = replace(schema, clip=None).encode(values).values
    np.testing.assert_allclose(unclipped.T, [[-0.5, 0.5, 5e8 - 0.5, -5e8 - 0.5, np.nan]])


def test_a_frames_columns_are_found_by_name_in_any_order():
    table = pd.DataFrame({"length": [1.0, 2.0], "colour": ["red", "blue"]})
    shuffled = table[["colour"]].assign(unused=[0, 0], length=table["length"])
    for mine, theirs in zip(FIXED.encode(table), FIXED.encode(shuffled), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_missing_column_is_named():
    with pytest.raises(SchemaMismatch, match="no column 'colour'; expected length, colour"):
        FIXED.encode(pd.DataFrame({"length": [1.0], "color": ["red"]}))
    with pytest.raises(SchemaMismatch, match="the table has 3 columns, the schema 2"):
        FIXED.encode(np.zeros((1, 3)))


@given(rows_of(GAPPY_NUMBERS, st.booleans(), GAPPY_TEXT))
def test_decoding_gives_the_rows_back(rows):
    table = frame(rows)
    schema = Schema.infer(table, kinds={"width": D})
    decoded = schema.decode(schema.encode(table))
    assert list(decoded) == list(table)
    pd.testing.assert_frame_equal(decoded.isna(), table.isna())
    np.testing.assert_allclose(decoded["length"], table["length"], rtol=1e-12, atol=1e-8)
    for name in ("width", "colour"):
        present = table[name].notna()
        assert decoded[name][present].tolist() == table[name][present].tolist()


def test_label_encoded_text_is_given_back():
    schema = Schema.infer(WIDE, kinds="paper")
    assert schema.decode(schema.encode(WIDE))["names"].tolist() == WIDE["names"].tolist()


def test_neighbouring_identifiers_beyond_the_precision_of_floats_stay_apart():
    table = np.array([[2**53], [2**53 + 1]])
    schema = Schema.infer(table, kinds=D)
    assert schema.encode(table).codes[:, 0].tolist() == [0, 1]


def test_an_unknown_label_is_refused_by_name():
    assert FIXED.encode_labels(["yes", "no", "yes"]).tolist() == [1, 0, 1]
    with pytest.raises(SchemaMismatch, match="y holds 'maybe'; expected one of the classes 'no', 'yes'"):
        FIXED.encode_labels(["yes", "maybe"])


# --- text and fingerprint ----------------------------------------------------------------------------------

SCALARS = st.one_of(st.text(max_size=3), st.integers(), NUMBERS)
COLUMNS = st.builds(
    Column,
    name=st.text(max_size=4),
    kind=st.sampled_from([C, D]),
    categories=st.lists(SCALARS, unique=True, min_size=1, max_size=3).map(tuple),
    location=st.floats(allow_nan=False, allow_infinity=False),
    scale=st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    count=st.none() | st.floats(0, 1e9),
    constant=st.booleans(),
)
SCHEMAS = st.builds(
    Schema,
    columns=st.lists(COLUMNS, unique_by=lambda column: column.name, max_size=3).map(tuple),
    classes=st.lists(st.text(max_size=3), unique=True, max_size=3).map(tuple),
    clip=st.one_of(st.none(), st.floats(0.1, 100)),
    label=st.text(max_size=4),
)


@given(SCHEMAS)
def test_a_schema_survives_its_json_text(schema):
    read = Schema.from_json(schema.to_json())
    assert read == schema
    assert (read.label, read.to_json(), read.fingerprint) == (
        schema.label,
        schema.to_json(),
        schema.fingerprint,
    )


def test_a_schema_survives_its_file(tmp_path):
    schema = Schema.infer(pd.DataFrame({"größe": [1.0, 2.0], "b": ["é", "\n"]}), ["no", "yes"])
    schema.save(tmp_path / "schema.json")
    assert Schema.load(tmp_path / "schema.json") == schema


def _described(**changes):
    return json.dumps({**json.loads(FIXED.to_json()), **changes})


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("[]", id="list"),
        pytest.param("3", id="number"),
        pytest.param("{}", id="nothing"),
        pytest.param(_described(format=2), id="another-format"),
        pytest.param(_described(colour="red"), id="unknown-key"),
        pytest.param(_described(columns=[{"name": "a"}]), id="no-kind"),
        pytest.param(_described(columns=[{"name": "a", "kind": "ordinal"}]), id="unknown-kind"),
        pytest.param(_described(columns=[{"name": "a", "kind": D, "categories": [None]}]), id="no-category"),
        pytest.param(_described(columns=[{"name": "a", "kind": C, "location": "1"}]), id="text-location"),
        pytest.param(_described(columns=[{"name": "a", "kind": C, "location": np.nan}]), id="nan-location"),
        pytest.param(_described(columns=[{"name": "a", "kind": C, "location": 10**400}]), id="huge-location"),
        pytest.param(_described(columns=[{"name": "a", "kind": C, "scale": 0}]), id="zero-scale"),
        pytest.param(_described(columns=[{"name": "a", "kind": C, "count": np.nan}]), id="nan-count"),
        pytest.param(_described(columns=[{"name": "a", "kind": C, "count": -1}]), id="negative-count"),
        pytest.param(_described(columns=[{"name": "a", "kind": C}] * 2), id="a-column-twice"),
        pytest.param(_described(classes=["yes", "yes"]), id="a-class-twice"),
        pytest.param(_described(clip=0), id="zero-clip"),
        pytest.param(_described(clip=np.inf), id="infinite-clip"),
    ],
)
def test_text_that_is_no_schema_is_refused(text):
    with pytest.raises(SchemaError):
        Schema.from_json(text)


def test_classes_of_text_and_numbers_together_are_refused():
    with pytest.raises(SchemaError, match="text"):
        Schema((), classes=("a", 1))


def test_the_fingerprint_is_pinned():
    """Peers of different versions compare fingerprints: a change here must be meant."""
    assert FIXED.fingerprint == "bc91c91d478e257772caaf3a6356c7a909bdc7b357eb1b1087a5a6177b774c42"


def test_the_fingerprint_is_the_same_in_every_process():
    code = (
        "import peerbayes as pb; t = [[c, str(i % 7)] for i, c in enumerate('the quick brown fox')];"
        "import numpy as np; print(pb.Schema.infer(np.array(t), [c for c, _ in t]).fingerprint)"
    )
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, stdout=subprocess.PIPE
        )
        for seed in ("1", "2")
    ]
    first, second = (run.communicate()[0].strip() for run in runs)
    assert len(first) == 64
    assert first == second


def _with_column(place, **changes):
    columns = list(FIXED.columns)
    columns[place] = replace(columns[place], **changes)
    return replace(FIXED, columns=tuple(columns))


CHANGED = [
    pytest.param(_with_column(0, name="width"), id="name"),
    pytest.param(_with_column(1, kind=C), id="kind"),
    pytest.param(_with_column(1, categories=("red", "green")), id="category"),
    pytest.param(_with_column(1, categories=("blue", "red")), id="category-order"),
    pytest.param(_with_column(0, location=1.5000000000000002), id="location"),
    pytest.param(_with_column(0, scale=0.5), id="scale"),
    pytest.param(replace(FIXED, columns=FIXED.columns[::-1]), id="column-order"),
    pytest.param(replace(FIXED, columns=FIXED.columns[:1]), id="fewer-columns"),
    pytest.param(replace(FIXED, classes=("no", "maybe")), id="class"),
    pytest.param(replace(FIXED, classes=("yes", "no")), id="class-order"),
    pytest.param(replace(FIXED, clip=4.0), id="clip"),
    pytest.param(replace(FIXED, clip=None), id="no-clip"),
]


@pytest.mark.parametrize("changed", CHANGED)
def test_the_fingerprint_changes_with_all_that_decides_how_a_row_is_encoded(changed):
    assert changed.fingerprint != FIXED.fingerprint


@pytest.mark.parametrize("changes", [{"count": 99.0}, {"constant": True}])
def test_the_fingerprint_does_not_depend_on_how_many_rows_there_were(changes):
    assert _with_column(0, **changes).fingerprint == FIXED.fingerprint
    assert replace(FIXED, label="outcome").fingerprint == FIXED.fingerprint


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(replace(FIXED, clip=5), FIXED, id="whole-clip"),
        pytest.param(_with_column(0, location=0), _with_column(0, location=0.0), id="whole-location"),
        pytest.param(_with_column(0, location=-0.0), _with_column(0, location=0.0), id="negative-zero"),
        pytest.param(_with_column(1, categories=(1.0, 2.0)), _with_column(1, categories=(1, 2)), id="floats"),
        pytest.param(
            _with_column(1, categories=(False, True)), _with_column(1, categories=(0, 1)), id="booleans"
        ),
        pytest.param(replace(FIXED, classes=(False, True)), replace(FIXED, classes=(0, 1)), id="classes"),
    ],
)
def test_schemas_are_equal_where_their_fingerprints_are(first, second):
    same = first.fingerprint == second.fingerprint
    assert (first == second) == same
    assert (first.differences(second) == []) == same


@pytest.mark.parametrize("number", [np.float32(2), np.float64(2), np.int64(2)])
def test_numpy_numbers_can_be_written(number):
    schema = Schema((Column("a", C, location=number, scale=number, count=number),), clip=number)
    assert Schema.from_json(schema.to_json()) == schema


# --- two schemas -------------------------------------------------------------------------------------------

TWO_TABLES = st.tuples(*[rows_of(GAPPY_NUMBERS, GAPPY_NUMBERS, GAPPY_TEXT, LABELS)] * 2)


def _inferred(rows):
    return Schema.infer(frame([row[:3] for row in rows]), [row[3] for row in rows])


@given(TWO_TABLES)
def test_merging_gives_the_schema_of_both_tables_together(tables):
    first, second = tables
    assert_same(_inferred(first).merge(_inferred(second)), _inferred(first + second), magnitude=2e4)


@given(TWO_TABLES)
def test_merging_is_symmetric(tables):
    first, second = map(_inferred, tables)
    assert_same(first.merge(second), second.merge(first), magnitude=2e4)


@given(rows_of(GAPPY_NUMBERS, GAPPY_NUMBERS, GAPPY_TEXT, LABELS))
def test_merging_a_schema_with_itself_changes_only_the_count(rows):
    schema = _inferred(rows)
    merged = schema.merge(schema)
    assert (merged.names, merged.kinds, merged.classes) == (schema.names, schema.kinds, schema.classes)
    for mine, theirs in zip(merged.columns, schema.columns, strict=True):
        assert (mine.categories, mine.location) == (theirs.categories, theirs.location)
        assert mine.scale == pytest.approx(theirs.scale, rel=1e-15)


def test_categories_and_classes_are_united():
    first = Schema((Column("a", D, ("x", "z")),), classes=(0, 2))
    second = Schema((Column("a", D, ("y",)),), classes=(1,))
    merged = first.merge(second)
    assert (merged.columns[0].categories, merged.classes) == (("x", "y", "z"), (0, 1, 2))


@pytest.mark.parametrize("known", [Column("a", D, ("x", "y"), count=2.0), Column("a", C, (), 1.0, 2.0, 3.0)])
@pytest.mark.parametrize("kind", [C, D])
def test_a_column_without_values_takes_the_other_side_s(known, kind):
    empty, full = Schema((Column("a", kind, count=0.0),)), Schema((known,))
    assert empty.merge(full) == full.merge(empty) == full


def test_two_columns_without_values_merge_to_the_same_either_way():
    first, second = (Schema((Column("a", kind, count=0.0),)) for kind in (C, D))
    assert first.merge(second) == second.merge(first)


def test_columns_in_another_order_are_sorted_by_name():
    turned = replace(FIXED, columns=FIXED.columns[::-1])
    merged = FIXED.merge(turned)
    assert merged.names == ("colour", "length")
    assert merged == turned.merge(FIXED)


def test_constants_too_far_apart_to_be_pooled_are_refused_by_name():
    first, second = (Schema((Column("a", C, location=at, constant=True),)) for at in (1e200, -1e200))
    with pytest.raises(SchemaError, match="'a'"):
        first.merge(second)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        pytest.param(_with_column(1, kind=C), ["'colour' is discrete in the first", "continuous"], id="kind"),
        pytest.param(
            _with_column(0, name="width"),
            ["only the first has column 'length'", "only the second has column 'width'"],
            id="name",
        ),
        pytest.param(_with_column(0, categories=("a",)), ["'length' is label-encoded"], id="label-encoded"),
        pytest.param(replace(FIXED, classes=(0, 1)), ["classes are text on one side"], id="classes"),
        pytest.param(replace(FIXED, clip=None), ["clip: 5.0 against None"], id="clip"),
    ],
)
def test_schemas_that_do_not_fit_together_are_refused_with_the_difference(other, words):
    with pytest.raises(SchemaMismatch) as refused:
        FIXED.merge(other)
    assert all(word in str(refused.value) for word in words)
    with pytest.raises(SchemaMismatch):
        other.merge(FIXED)


def test_label_encoded_columns_with_other_categories_are_refused():
    first, second = (Schema((Column("a", C, known),)) for known in (("x", "y"), ("x", "z")))
    with pytest.raises(SchemaMismatch, match=r"category 'y' only in the first.*label-encoded"):
        first.merge(second)


@given(SCHEMAS)
def test_a_schema_does_not_differ_from_its_copy(schema):
    assert schema.differences(Schema.from_json(schema.to_json())) == []


@pytest.mark.parametrize("changed", CHANGED)
def test_whatever_changes_the_fingerprint_is_a_difference(changed):
    assert FIXED.differences(changed)


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (_with_column(1, categories=("red",)), "column 'colour': category 'blue' only in the first"),
        (replace(FIXED, classes=("no", "yes", "maybe")), "class 'maybe' only in the second"),
        (replace(FIXED, classes=("yes", "no")), "class order: ['no', 'yes'] against ['yes', 'no']"),
        (
            replace(FIXED, columns=FIXED.columns[::-1]),
            "the order of the columns: length, colour against colour, length",
        ),
        (
            _with_column(0, location=2.0, count=9.0),
            "column 'length': location 1.5 and scale 0.25 in the first, 2 and 0.25 in the second",
        ),
        (
            _with_column(0, location=2.0),  # neither was measured, so neither gives way
            "! column 'length': location 1.5 and scale 0.25 in the first, 2 and 0.25 in the second",
        ),
    ],
)
def test_a_difference_is_a_readable_line(changed, line):
    assert FIXED.differences(changed) == [line]


WHOLE = ["int8", "uint8", "int32", "uint32", "int64", "uint64", "bool"]


@given(
    categories=st.lists(
        st.integers(-300, 300) | st.integers(-(2**60), 2**60), min_size=1, max_size=8, unique=True
    ),
    values=st.lists(st.integers(-(2**63), 2**64 - 1) | st.integers(-310, 310), max_size=12),
    dtype=st.sampled_from(WHOLE),
)
def test_integers_have_the_index_of_their_category(categories, values, dtype):
    ends = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    held = [value for value in [*values, *categories] if ends[0] <= value <= ends[1]]
    column = Column("n", "discrete", tuple(categories))
    expected = [categories.index(value) if value in categories else -1 for value in held]
    assert column.codes(np.array(held, dtype=dtype)).tolist() == expected


@given(values=st.lists(st.integers(-400, 400), min_size=1), far=st.sampled_from([0, 2**40, 2**62]))
def test_distinct_integers_of_a_dataframe(values, far):
    held = np.array([*values, far], dtype=np.int64)
    (column,) = Schema.infer(pd.DataFrame({"n": held}), kinds="discrete").columns
    assert column.categories == tuple(sorted({*values, far}))


@pytest.mark.parametrize(
    "fields",
    [
        {"count": 3.0},
        {"count": 0.0},
        {"count": 10.0, "location": -0.0, "scale": 2.5},
        {"count": 10.0, "location": 4.0, "constant": True},
    ],
)
def test_columns_of_numbers_are_columns(fields):
    """What is made without the checks of `Column` is the same column, in all that is seen of it."""
    short, checked = column_of_numbers("x", **fields), Column("x", "continuous", **fields)
    assert short == checked
    assert list(vars(short).items()) == list(vars(checked).items())
    assert np.signbit(short.location) == np.signbit(checked.location)


@pytest.mark.parametrize("fields", [{"scale": 0.0}, {"scale": np.nan}, {"location": np.inf}, {"count": -1.0}])
def test_columns_of_numbers_are_refused_alike(fields):
    with pytest.raises(SchemaError) as checked:
        Column("x", "continuous", **{"count": 1.0, **fields})
    with pytest.raises(SchemaError) as short:
        column_of_numbers("x", **{"count": 1.0, **fields})
    assert str(short.value) == str(checked.value)
