"""A file that is read in blocks: the rows of the whole file, whatever the size of a block, or the same refusal."""

import gzip

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerbayes.data import infer, sources
from peerbayes.data.parts import ColumnsOfParts
from peerbayes.data.sources import blocks as in_blocks
from peerbayes.data.table import Table
from peerbayes.errors import SchemaError, SourceError

SIZES = st.integers(1, 12)

# What the fields of a column of a CSV file may be; a column mixes some of them.
FIELDS = (
    ["1", "2", "-3", "007", " 4"],
    ["1.5", "2e3", "-0.25"],
    ["9223372036854775807", "9223372036854775808", "99999999999999999999"],
    ["9223372036854775808", "0"],
    ["99999999999999999999"],
    ["True", "False"],
    ["NA", "?", "none"],
    ["", ""],
    ["red", "green", "größer"],
    ["1,5", "1,000"],
    ["2024-01-31", "1999-12-01"],
)


@st.composite
def csv_columns(draw):
    """Fields of some columns, so that blocks of a column look like different kinds."""
    rows = draw(st.integers(1, 20))
    columns = {}
    for name in draw(st.sampled_from([["a"], ["a", "b"], ["a", "b", "c"]])):
        pools = draw(st.lists(st.sampled_from(FIELDS), min_size=1, max_size=3))
        # Runs of one pool: the types of blocks then differ, and not only those of rows.
        cuts = sorted(draw(st.lists(st.integers(0, rows), min_size=len(pools) - 1, max_size=len(pools) - 1)))
        ends = [0, *cuts, rows]
        columns[name] = [
            draw(st.sampled_from(pool))
            for pool, start, stop in zip(pools, ends, ends[1:], strict=False)
            for _ in range(start, stop)
        ]
    columns["last"] = ["x"] * rows  # an empty last field would look like a line that was cut
    return columns


def outcome(read):
    """Return the table that is read, or the sentence by which it is refused."""
    try:
        return read()
    except SourceError as refusal:
        return str(refusal)


def all_blocks(path, size, **named):
    blocks = list(sources.Blocks(path, rows=size, **named))
    for name in blocks[0]:
        numbers = {str(block[name].dtype) for block in blocks if block[name].dtype.kind in "iuf"}
        assert len(numbers) <= 1  # of one type in all blocks
    # Booleans beside blocks without any would be concatenated to numbers.
    return pd.concat([block.astype(dict.fromkeys(block.select_dtypes(bool), object)) for block in blocks])


def assert_same(blocks, whole):
    if isinstance(whole, str) or isinstance(blocks, str):
        assert isinstance(blocks, str) and isinstance(whole, str)
        assert blocks == whole
        return
    assert list(blocks.columns) == list(whole.columns)
    assert list(blocks.index) == list(range(len(whole)))
    for name in whole:
        ours, theirs = (Table.of(frame[[name]]) for frame in (blocks, whole))
        values, expected = ours.column(0), theirs.column(0)
        missing = pd.isna(expected)
        assert np.array_equal(pd.isna(values), missing)
        assert values[~missing].tolist() == expected[~missing].tolist()
        kinds = {type(value) for value in values[~missing].tolist()}
        assert kinds == {type(value) for value in expected[~missing].tolist()}
        assert ours.declared(0) == theirs.declared(0)


@given(columns=csv_columns(), size=SIZES)
def test_a_csv_file_reads_the_same_in_blocks_of_any_size(tmp_path_factory, columns, size):
    path = tmp_path_factory.mktemp("csv") / "rows.csv"
    pd.DataFrame(columns).to_csv(path, index=False)
    assert_same(outcome(lambda: all_blocks(path, size)), outcome(lambda: sources.read(str(path))))


# What a column of a Parquet file may hold, and its type, where pandas takes it for another.
VALUES = (
    ([1.5, -2.0, None], None),
    ([1, 2, 3], None),
    ([1, 2**53 + 1, None], "Int64"),
    ([1, 2**63 + 1, None], "UInt64"),
    ([-7, None], "Int8"),
    ([True, False], None),
    ([True, None], None),
    (["red", "", None, "2024-01-31"], None),
    (["2024-01-31", "2023-05-05T10:00", None], None),
    ([None], None),
)


@st.composite
def parquet_columns(draw):
    rows = draw(st.integers(1, 12))

    def of(values):
        return draw(st.lists(st.sampled_from(values), min_size=rows, max_size=rows))

    pools = draw(st.lists(st.sampled_from(VALUES), min_size=1, max_size=3))
    columns = {f"c{j}": pd.Series(of(pool), dtype=dtype) for j, (pool, dtype) in enumerate(pools)}
    declared = pd.Categorical(of(["q", "r", None]), categories=["z", "r", "q"])
    return pd.DataFrame(columns | {"declared": declared})


@given(columns=parquet_columns(), group=SIZES, statistics=st.booleans(), size=SIZES)
def test_a_parquet_file_reads_the_same_in_blocks_of_any_size(
    tmp_path_factory, columns, group, statistics, size
):
    path = tmp_path_factory.mktemp("parquet") / "rows.parquet"
    columns.to_parquet(path, row_group_size=group, write_statistics=statistics)
    assert_same(outcome(lambda: all_blocks(path, size)), outcome(lambda: sources.read(str(path))))


def test_whole_numbers_are_of_one_type_in_all_blocks(tmp_path):
    """What the whole file needs: unsigned from 2⁶³ on, floats where one is negative, too, or missing."""
    large = 2**63
    for name, fields, expected in (
        ("unsigned", [1, large], [1, large]),
        ("signs", [-1, large], [-1.0, float(large)]),
        ("gaps", [2**53 + 1, ""], [float(2**53), None]),
        ("beyond", [1, 10**20], [1.0, 1e20]),
        ("fallback", ["", large, 10**20, 1.5], [None, float(large), 1e20, 1.5]),
        ("text", ["True", 10**20], ["True", str(10**20)]),
    ):
        path = tmp_path / f"{name}.csv"
        pd.DataFrame({"a": pd.Series(fields, dtype=object), "last": "x"}).to_csv(path, index=False)
        whole = sources.read(str(path))
        assert [None if pd.isna(value) else value for value in whole["a"].tolist()] == expected
        for size in (1, 2, 3):
            assert_same(all_blocks(path, size), whole)
    for statistics in (True, False):
        path = tmp_path / "gaps.parquet"
        frame = pd.DataFrame({"a": pd.Series([2**53 + 1, None], dtype="Int64")})
        frame.to_parquet(path, write_statistics=statistics)
        assert [str(block["a"].dtype) for block in sources.Blocks(path, rows=1)] == ["float64"] * 2
        assert_same(all_blocks(path, 1), sources.read(str(path)))


@pytest.mark.parametrize("fields", [["True", "NA"], ["2024-01-31", "5"], ["1,5", "2.5"]])
def test_a_column_whose_blocks_look_different_is_read_as_written(tmp_path, fields):
    path = tmp_path / "rows.csv"
    pd.DataFrame({"a": fields, "last": "x"}).to_csv(path, index=False)
    whole = sources.read(str(path))
    assert whole["a"].tolist() == fields
    assert_same(all_blocks(path, 1), whole)


def test_categories_are_those_of_all_row_groups(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    groups = [pd.DataFrame({"a": pd.Categorical(list(values))}) for values in ("rz", "qr")]
    tables = [pa.Table.from_pandas(group) for group in groups]
    path = tmp_path / "rows.parquet"
    with pq.ParquetWriter(path, tables[0].schema) as writer:
        for table in tables:
            writer.write_table(table)
    blocks = list(sources.Blocks(path, rows=2))
    assert [list(block["a"].cat.categories) for block in blocks] == [["r", "z", "q"]] * 2
    assert_same(pd.concat(blocks), sources.read(str(path)))


def test_blocks_are_as_long_as_asked_and_read_as_often_as_asked(tmp_path):
    path = tmp_path / "rows.csv.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write("a,b\n" + "".join(f"{row},{row / 2}\n" for row in range(10)))
    rows = sources.Blocks(path, rows=4)
    for _ in range(2):
        assert [list(block.index) for block in rows] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert rows.row_count == 10 and rows.names == ("a", "b")


def test_blocks_of_wide_files_have_fewer_rows(tmp_path, monkeypatch):
    pd.DataFrame(np.zeros((50, 4)), columns=list("abcd")).to_parquet(tmp_path / "rows.parquet")
    monkeypatch.setattr(in_blocks, "BLOCK_VALUES", 80)
    assert [len(block) for block in sources.Blocks(tmp_path / "rows.parquet")] == [20, 20, 10]


def test_the_label_and_other_columns_are_left_out(tmp_path):
    frame = pd.DataFrame(
        {"a": [1.0, 2.0], "when": pd.Timestamp("2020-01-01"), "y": ["u", "v"], "b": [3.0, 4.0]}
    )
    frame.to_parquet(tmp_path / "rows.parquet")
    rows = sources.Blocks(tmp_path / "rows.parquet", label="y", columns=["b", "a"])
    ((features, labels),) = rows.labelled()
    assert features.equals(frame[["b", "a"]]) and labels.tolist() == ["u", "v"]
    with pytest.raises(SourceError, match=r"column 'when' .* dates or times"):
        list(sources.Blocks(tmp_path / "rows.parquet", label="y"))


def test_rows_without_a_label_are_counted_in_the_file(tmp_path):
    labels = ["u", "v", "u"] * 10
    for row in (0, 7, 8, 20, 21, 22):
        labels[row] = ""
    frame = pd.DataFrame({"y": labels, "a": np.arange(30.0)})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    whole = outcome(lambda: sources.labelled(sources.read(str(tmp_path / "rows.csv")), "y"))
    assert outcome(lambda: list(sources.Blocks(tmp_path / "rows.csv", "y", rows=4).labelled())) == whole
    assert "6 of 30 rows have no label" in whole and "1, 8, 9, 21, 22, …" in whole


def refused(sentence, path, **named):
    with pytest.raises(SourceError, match=sentence):
        list(sources.Blocks(path, **named))


def test_what_cannot_be_read_is_refused_as_that_of_a_whole_file(tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_text("a,b\n1,2\n3,4\n5\n")
    for size in (1, 2, None):
        refused("line 4: 1 fields, but the header has 2", rows, rows=size)
    rows.write_text("a,b\n1,2\n3,4,5\n")
    refused("line 3: 3 fields, but the header has 2", rows, rows=1)
    rows.write_bytes(b"a,b\n1,2\n\xff,4\n")
    refused("line 3: these bytes are not UTF-8", rows, rows=1)
    rows.write_text("1,2\n3,4\n")
    refused("seems to have no header", rows, rows=1)
    rows.write_text("a,b\n")
    refused("gives no rows", rows)
    rows.write_text("a,b\n1,2\n")
    refused("has no column 'B' .*did you mean 'b'", rows, columns=["B"])
    refused("has no column 'c'", rows, label="c")
    refused("is the label and also a feature", rows, label="a", columns=["a"])
    refused("expected a .csv or a .parquet", "sqlite:///rows.db")
    refused("does not exist", tmp_path / "none.parquet")
    (tmp_path / "bad.parquet").write_bytes(b"no parquet")
    refused("cannot be read as Parquet", tmp_path / "bad.parquet")
    with pytest.raises(ValueError, match="rows is 0"):
        sources.Blocks(rows, rows=0)
    with pytest.raises(SourceError, match="nothing names the labels"):
        next(sources.Blocks(rows).labelled())


@pytest.mark.parametrize("rows", [3, 8])
def test_a_file_that_changes_between_two_passes_is_noticed(tmp_path, rows):
    path = tmp_path / "rows.csv"
    path.write_text("a\n" + "1\n" * 5)
    blocks = sources.Blocks(path)
    list(blocks)
    path.write_text("a\n" + "1\n" * rows)
    with pytest.raises(SourceError, match=f"had 5 rows when it was first read, and now has {rows}"):
        list(blocks)


# --- the columns of parts -----------------------------------------------------------------------------------


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    seed=st.integers(0, 99),
    weighted=st.booleans(),
)
def test_columns_of_parts_are_those_of_the_whole(sizes, seed, weighted):
    rng = np.random.default_rng(seed)
    rows = sum(sizes)
    frame = pd.DataFrame({
        "number": rng.normal(1e4, 2.0, rows),
        "gaps": np.where(rng.random(rows) < 0.5, np.nan, rng.normal(size=rows)),
        "constant": np.full(rows, 2.5),
        "text": rng.choice(["a", "b", "c"], rows),
        "yes": rng.random(rows) < 0.2,
        "codes": rng.integers(0, 4, rows),
    })  # fmt: skip
    kinds = {"codes": "discrete"}
    weights = rng.random(rows) + 0.5 if weighted else None
    parts, start = ColumnsOfParts(kinds), 0
    for size in sizes:
        part = slice(start, start + size)
        parts.add(Table.of(frame[part]), None if weights is None else weights[part])
        start += size
    for ours, whole in zip(
        parts.columns(), infer.infer_columns(Table.of(frame), kinds, weights), strict=True
    ):
        assert (ours.name, ours.kind, ours.categories) == (whole.name, whole.kind, whole.categories)
        assert (ours.constant, ours.empty) == (whole.constant, whole.empty)
        numbers = [(column.location, column.scale, column.count) for column in (ours, whole)]
        np.testing.assert_allclose(*numbers, rtol=1e-9, atol=1e-9)


def test_identifiers_are_told_from_categories_over_all_parts():
    names = [f"name {row}" for row in range(200)]
    often = ColumnsOfParts("auto")
    for _ in range(3):
        often.add(Table.of(pd.DataFrame({"name": names})))
    assert often.columns()[0].categories == tuple(sorted(names))
    once = ColumnsOfParts("auto")
    for start in range(0, 200, 50):  # no part has enough rows to tell
        once.add(Table.of(pd.DataFrame({"name": names[start : start + 50]})))
    with pytest.raises(SchemaError, match="200 distinct values in 200 rows, like an identifier"):
        once.columns()
