"""Crosses of columns: their cells, the groups of cells, and schemas that hold them."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import peerbayes as pb
from peerbayes import Schema, SchemaError, SchemaMismatch
from peerbayes.data.crosses import Cross, group_labels, grouped
from peerbayes.data.table import Table
from peerbayes.model import sources

COUNTS = st.lists(st.integers(0, 30), min_size=1, max_size=40).map(lambda rows: np.array(rows, dtype=float))


@st.composite
def sides(draw):
    """The group of each cell of a column: 0, 1, … without a gap, in any order."""
    groups = draw(st.integers(1, 4))
    extra = draw(st.lists(st.integers(0, groups - 1), max_size=5))
    return tuple(draw(st.permutations([*range(groups), *extra])))


@st.composite
def crosses_with_codes(draw):
    cross = Cross(("a", "b"), (draw(sides()), draw(sides())))
    cells = st.tuples(*(st.integers(-1, len(side) - 1) for side in cross.groups))
    rows = draw(st.lists(cells, min_size=1, max_size=30))
    return cross, np.array(rows, dtype=np.int32)


def table(rows=300, seed=3):
    """An amount with missing values, a number of three values, and a colour."""
    rng = np.random.default_rng(seed)
    amount = np.exp(rng.normal(size=rows))
    amount[rng.random(rows) < 0.1] = np.nan
    colour = np.array(["red", "green", "blue", None], dtype=object)[rng.integers(0, 4, rows)]
    return pd.DataFrame(
        {"amount": amount, "size": rng.integers(0, 3, rows), "colour": colour, "x": rng.normal(size=rows)}
    )


def crossed_schema(frame):
    """A schema with two crosses, of a table with one continuous column."""
    kinds = {"amount": "binned", "size": "binned", "colour": "discrete", "x": "continuous"}
    schema = Schema.infer(frame, [0, 1] * (len(frame) // 2), kinds=kinds)
    halves = tuple(int(cell > 7) for cell in range(schema.columns[0].cells))
    one, two = (
        Cross(("amount", "size"), (halves, (0, 1, 2))),
        Cross(("colour", "amount"), ((1, 0, 1), halves)),
    )
    return replace(schema, crosses=(one, two))


# --- cells and groups


@given(crosses_with_codes())
def test_a_joint_cell_is_that_of_both_groups(drawn):
    cross, codes = drawn
    first, second = cross.groups
    expected = [-1 if a < 0 or b < 0 else first[a] * (max(second) + 1) + second[b] for a, b in codes]
    assert cross.codes(codes[:, 0], codes[:, 1]).tolist() == expected
    assert cross.cells == (max(first) + 1) * (max(second) + 1)
    assert len(cross.labels(range(len(first)), range(len(second)))) == cross.cells


@given(COUNTS, st.integers(2, 12), st.booleans())
def test_groups_are_few_and_none_is_missing(counts, most, ordered):
    groups = grouped(counts, most, ordered)
    assert len(groups) == len(counts)
    assert set(groups) == set(range(max(groups) + 1)) and max(groups) < most
    if len(counts) <= most:
        assert groups == tuple(range(len(counts)))


@given(COUNTS, st.integers(2, 12))
def test_groups_of_cells_in_order_are_neighbours(counts, most):
    groups = grouped(counts, most, True)
    assert list(groups) == sorted(groups)


@given(COUNTS, st.integers(2, 12))
def test_of_cells_without_order_the_most_frequent_stay_alone(counts, most):
    groups = grouped(counts, most, False)
    alone = [cell for cell, group in enumerate(groups) if groups.count(group) == 1]
    together = [cell for cell in range(len(counts)) if cell not in alone]
    if together:
        assert len(alone) == most - 1 and counts[alone].min() >= counts[together].max()


def test_groups_in_order_hold_about_equally_many_rows():
    counts = np.random.default_rng(0).integers(1, 20, 64).astype(float)
    rows = np.bincount(grouped(counts, 8, True), counts)
    assert len(rows) == 8 and np.abs(rows - counts.sum() / 8).max() <= counts.max()


def test_names_of_groups_say_which_cells_they_hold():
    assert group_labels((0, 1, 1, 1), "abcd") == ["a", "b … d"]
    assert group_labels((0, 1, 0, 1, 0), "abcde") == ["a or c or e", "b or d"]
    names = [f"a category with number {k}" for k in range(9)]
    assert group_labels((0, 1, 0, 1, 0, 0, 0, 0, 0), names)[0] == f"{names[0]} and 6 more"
    assert Cross(("a", "b"), ((0, 1), (0, 0))).labels("uv", "xy") == ("u, x or y", "v, x or y")


@pytest.mark.parametrize(
    ("columns", "groups"),
    [
        (("a", "a"), ((0,), (0,))), (("a",), ((0,), (0,))), (("a", 3), ((0,), (0,))), (("a", "b"), ((0,),)),
        (("a", "b"), ((0, 2), (0,))), (("a", "b"), ((-1, 0), (0,))), (("a", "b"), ((), (0,))),
        (("a", "b"), ((0.0, 1.0), (0,))), (("a", "b"), ((True, 0), (0,))), (("a", "b"), (("0",), (0,))), (None, None),
    ],
)  # fmt: skip
def test_a_cross_that_is_none_is_refused(columns, groups):
    with pytest.raises(SchemaError, match="expected two names that differ"):
        Cross(columns, groups)


# --- schemas


def test_a_schema_encodes_the_columns_and_then_their_crosses():
    frame = table()
    schema = crossed_schema(frame)
    plain = replace(schema, crosses=())
    rows, without = schema.encode(frame), plain.encode(frame)
    amount, size, colour = without.codes.T
    one = np.where((amount < 0) | (size < 0), -1, (amount > 7) * 3 + size)
    two = np.where((amount < 0) | (colour < 0), -1, (colour != 1) * 2 + (amount > 7))
    np.testing.assert_array_equal(rows.codes, np.column_stack([amount, size, colour, one, two]))
    np.testing.assert_array_equal(rows.values, without.values)
    assert schema.cardinalities == (*plain.cardinalities, 6, 4)
    assert schema.feature_names == ("x", "amount", "size", "colour", "amount × size", "colour × amount")
    assert [len(labels) for labels in schema.cell_labels] == list(schema.cardinalities)
    assert (amount < 0).any() and (colour < 0).any()


def test_crosses_are_part_of_text_and_fingerprint():
    schema = crossed_schema(table())
    plain = replace(schema, crosses=())
    assert Schema.from_json(schema.to_json()) == schema
    assert Schema.from_json(schema.to_json()).fingerprint == schema.fingerprint
    reversed_order = replace(schema, crosses=schema.crosses[::-1])
    assert len({schema.fingerprint, plain.fingerprint, reversed_order.fingerprint}) == 3
    assert "crosses" not in plain.to_json() and Schema.from_json(plain.to_json()) == plain


def test_schemas_without_crosses_keep_their_bytes():
    """Text and fingerprint of a schema, as releases before crosses wrote them."""
    schema = Schema(
        (pb.Column("a", "discrete", categories=("x", "y")), pb.Column("b", "continuous", count=2.0)), (0, 1)
    )
    assert schema.to_json() == (
        '{"classes":[0,1],"clip":5.0,"columns":['
        '{"categories":["x","y"],"constant":false,"count":null,"kind":"discrete","location":0.0,"name":"a","scale":1.0},'
        '{"categories":[],"constant":false,"count":2.0,"kind":"continuous","location":0.0,"name":"b","scale":1.0}'
        '],"format":1,"label":"label"}'
    )
    assert schema.fingerprint == "ae9577d8c1ffbf071963880875f9921ad7371acadb741d280a142ebce7de5b4b"


@pytest.mark.parametrize(
    "text", ['[{"columns":["a","b"],"groups":[[0],[0]],"more":1}]', '[{"columns":["a","b"]}]', "[3]", "3"]
)
def test_damaged_crosses_of_a_text_are_refused(text):
    described = replace(crossed_schema(table()), crosses=()).to_json()
    with pytest.raises(SchemaError):
        Schema.from_json(described[:-1] + f',"crosses":{text}}}')


@pytest.mark.parametrize(
    ("columns", "groups"),
    [(("amount", "unknown"), (None, (0, 1))), (("amount", "x"), (None, (0, 1))), (("amount", "size"), (None, (0, 1)))],
    ids=["unknown", "continuous", "other cells"],
)  # fmt: skip
def test_crosses_of_other_columns_are_refused(columns, groups):
    schema = crossed_schema(table())
    amount = tuple(range(schema.columns[0].cells))
    with pytest.raises(SchemaError, match="expected a column with"):
        replace(schema, crosses=(Cross(columns, (amount, groups[1])),))


def test_only_schemas_with_the_same_crosses_and_cells_merge():
    frame = table()
    schema = crossed_schema(frame)
    assert schema.merge(schema).crosses == schema.crosses
    for other in (replace(schema, crosses=()), replace(schema, crosses=schema.crosses[::-1])):
        for pair in ((schema, other), (other, schema)):
            with pytest.raises(SchemaMismatch, match="the crosses"):
                pair[0].merge(pair[1])
    columns = list(schema.columns)
    columns[2] = replace(columns[2], categories=("blue", "green", "yellow"))
    with pytest.raises(SchemaMismatch, match="crossed"):
        schema.merge(replace(schema, columns=tuple(columns)))


def test_statistics_with_other_crosses_do_not_add_up():
    frame = table()
    labels = np.arange(len(frame)) % 2
    schema = crossed_schema(frame)
    one = pb.GA2M(schema=schema, max_iter=2).fit(frame, labels).statistics_
    other = (
        pb.GA2M(schema=replace(schema, crosses=schema.crosses[::-1]), max_iter=2)
        .fit(frame, labels)
        .statistics_
    )
    with pytest.raises((SchemaMismatch, pb.StatisticsMismatch)):
        one + other


def test_blocks_of_an_array_are_what_encode_gives():
    rng = np.random.default_rng(0)
    array = np.column_stack([rng.normal(size=500), rng.integers(0, 4, 500), rng.normal(size=500)])
    array[rng.random(500) < 0.1, 0] = np.nan
    schema = Schema.infer(array, kinds=["binned", "discrete", "continuous"])
    halves = tuple(int(cell > 3) for cell in range(schema.columns[0].cells))
    schema = replace(schema, crosses=(Cross(("x1", "x0"), ((0, 1, 2, 0), halves)),))
    expected = schema.encode(array)
    source = sources.Raw(schema, Table.of(array))
    for start, block in source.blocks(128):
        stop, rows = start + len(block.codes), block.rows()
        np.testing.assert_array_equal(rows.codes, expected.codes[start:stop])
        np.testing.assert_allclose(rows.values, expected.values[start:stop])
    assert stop == 500
