"""Where rows come from: the same rows read the same from everywhere, and what cannot be used is refused by name."""

import datetime
import gzip
import re
import sqlite3
import sys
import tempfile
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal

from peerbayes.data import sources
from peerbayes.data.sources import SourceError, labelled, read
from peerbayes.data.sources.flat_files import MARKERS
from peerbayes.data.sources.sql import check_query
from peerbayes.errors import ConfigurationError, PeerbayesError
from peerbayes.simulation import config

FRAME = pd.DataFrame(
    {
        "age": [31.5, None, 64.0],
        "visits": [1, 2, 3],
        "city": ["Oslo", None, "Bilbao"],
        "ill": ["no", "yes", "no"],
    }
)


def sqlite(path, frame, table="patients"):
    with sqlite3.connect(path) as connection:
        names = ", ".join(f'"{name}"' for name in frame.columns)
        connection.execute(f"CREATE TABLE {table} ({names})")
        plain = frame.astype(object).where(frame.notna(), None)
        rows = [
            [value.item() if isinstance(value, np.generic) else value for value in row]
            for row in plain.values
        ]
        connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * frame.shape[1])})", rows)
    connection.close()
    return f"sqlite:///{path}"


def refused(message, *arguments, **named):
    with pytest.raises(SourceError, match=re.escape(message)) as caught:
        read(*arguments, **named)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- one law: the same rows read the same from everywhere ------------------------------------------------------


def is_text(value):
    """Not something that CSV cannot tell from a number, a boolean, a date or nothing."""
    try:
        float(value.replace(",", "."))
    except ValueError:
        return value.lower() not in ("true", "false") and not re.match(r"\d{4}-\d\d-\d\d|[-+]?\d+,", value)
    return False


LETTERS = st.characters(codec="utf-8", exclude_categories=("Cs", "Cc"))
TEXT = st.text(LETTERS, min_size=1, max_size=8).filter(is_text).filter(lambda value: value not in MARKERS)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
COLUMNS = {
    "number": st.none() | NUMBER,
    "whole": st.integers(-(2**53), 2**53),
    "text": st.none() | TEXT,
    "full": TEXT,
    "Ünïcode, with; a comma": NUMBER,
}


@given(st.lists(st.fixed_dictionaries(COLUMNS), min_size=1, max_size=12))
def test_csv_parquet_and_sql_read_the_same(records):
    pytest.importorskip("pyarrow")
    pytest.importorskip("sqlalchemy")
    frame = pd.DataFrame.from_records(records)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        for name in ("rows.csv", "rows.csv.gz"):
            frame.to_csv(path / name, index=False)
        frame.to_csv(path / "rows.tsv", index=False, sep="\t")
        frame.to_parquet(path / "rows.parquet", index=False)
        url = sqlite(path / "rows.db", frame)
        parquet = read(str(path / "rows.parquet"))
        for other in ("rows.csv", "rows.csv.gz", "rows.tsv"):
            assert_frame_equal(read(str(path / other)), parquet, check_exact=True)
        assert_frame_equal(read(url, "SELECT * FROM patients"), parquet, check_exact=True)
        assert list(parquet["full"]) == list(frame["full"])


@given(st.permutations(["age", "visits", "city", "ill"]), st.integers(1, 4))
def test_columns_are_picked_in_the_order_named(names, count):
    with tempfile.TemporaryDirectory() as folder:
        FRAME.to_csv(Path(folder) / "rows.csv", index=False)
        assert_frame_equal(
            read(f"{folder}/rows.csv", columns=names[:count]), read(f"{folder}/rows.csv")[names[:count]]
        )


# --- values ----------------------------------------------------------------------------------------------------


def test_missing_is_what_people_write_among_numbers_and_a_value_among_text(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("country,income,flag,nothing\nNA,NA,true,\nNO,?,,\nSE,12.5,false,\n")
    frame = read(str(path))
    assert list(frame["country"]) == ["NA", "NO", "SE"]
    assert frame["income"].dtype == np.float64
    assert frame["income"].isna().tolist() == [True, True, False]
    assert frame["flag"].tolist()[::2] == [True, False]
    assert frame["nothing"].isna().all()


def test_a_semicolon_a_byte_order_mark_and_blank_lines_are_no_obstacle(tmp_path):
    path = tmp_path / "ROWS.CSV"
    path.write_bytes('\ufeff\r\nage;city\r\n3;a,b\r\n\r\n4;"c;d"\r\n'.encode())
    assert read(str(path)).to_dict("list") == {"age": [3, 4], "city": ["a,b", "c;d"]}


def test_decimals_become_floats_and_categories_stay(tmp_path):
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame(
        {
            "price": [Decimal("1.25"), None],
            "count": pd.array([1, None], dtype="Int64"),
            "sure": pd.array([True, None], dtype="boolean"),
            "half": np.array([1, 2], dtype=np.float16),
            "size": pd.Categorical(["s", "l"], categories=["s", "m", "l"]),
        }
    )
    frame.to_parquet(tmp_path / "rows.parquet", index=False)
    got = read(str(tmp_path / "rows.parquet"))
    assert got["price"].dtype == got["count"].dtype == np.float64
    assert got["price"][0] == 1.25
    assert list(got["sure"]) == [True, None]
    assert got["half"].dtype == np.float32
    assert list(got["size"].cat.categories) == ["s", "m", "l"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pd.to_datetime(["2024-03-01", "2024-03-02"]), "holds dates or times (datetime64"),
        (
            [datetime.date(2024, 3, 1), None],
            "holds dates or times (date); leave it out, or turn it into a number",
        ),
        ([datetime.time(12), None], "holds dates or times (time)"),
        (pd.to_timedelta([1, 2], unit="D"), "holds dates or times (timedelta64"),
        (["2024-03-01", "2024-03-02 10:30"], "holds dates or times (like '2024-03-01')"),
        ([b"\x00", b"\x01"], "holds values of type bytes; expected text, numbers or booleans"),
        ([[1, 2], [3]], "holds values of type ndarray"),
    ],
)
def test_values_that_are_neither_text_nor_numbers_are_refused_by_name(tmp_path, values, message):
    pytest.importorskip("pyarrow")
    path = tmp_path / "rows.parquet"
    pd.DataFrame({"when": values, "age": [1, 2]}).to_parquet(path)
    assert "column 'when' of " in refused(message, str(path))
    assert list(read(str(path), columns=["age"])["age"]) == [1, 2], "nobody asked for the other column"


def test_dates_and_other_types_of_a_database_are_refused_by_name(tmp_path):
    pytest.importorskip("sqlalchemy")
    url = sqlite(tmp_path / "rows.db", FRAME)
    refused("column 'day'", url, "SELECT age, '2024-01-02' AS day FROM patients")
    refused("holds values of type bytes", url, "SELECT age, x'00' AS raw FROM patients")


# --- files that are refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.csv", None, "rows.csv, which does not exist"),
        ("rows.xlsx", b"x", "expected a .csv or a .parquet"),
        ("rows.csv", b"", "is empty; expected a header and rows"),
        ("rows.csv", b"\n\n", "is empty; expected a header and rows"),
        ("rows.csv", b"age,ill\n", "gives no rows"),
        (
            "rows.csv",
            b"5.1,3.5,setosa\n4.9,3.0,setosa\n",
            "seems to have no header: its first line is 5.1, 3.5",
        ),
        ("rows.csv", b"1,7\n2,8\n", "seems to have no header"),
        ("rows.csv", b"a,b,a\n1,2,3\n", "several columns named 'a'; rename all but one"),
        ("rows.csv", b",a\n0,2\n", "column 1 of"),
        ("rows.csv", "a,b\n1,x\n2,é\n".encode("latin-1"), "rows.csv, line 3: these bytes are not UTF-8"),
        ("rows.csv", "a,b\n1,x\n".encode("utf-16"), "not UTF-8"),
        ("rows.csv", b"a,b\n1,2\n3,4,5\n", "rows.csv, line 3: 3 fields, but the header has 2"),
        ("rows.csv", b"a,b\n1,2,3\n3,4,5\n", "rows.csv, line 2: 3 fields, but the header has 2"),
        ("rows.csv", b"a,b\n1,2\n3\n", "rows.csv, line 3: 1 fields, but the header has 2"),
        ("rows.csv", b'a,b\n1,2\n"3,4\n5,6\n', "line 4"),
        ("rows.csv", b"a\0b\n1\n", "is not text"),
        ("rows.csv", b"a;b\n1,5;2\n2,5;3\n", "column 'a' of"),
        ("rows.csv.gz", b"a,b\n1,2\n", "rows.csv.gz cannot be read"),
        (
            "rows.csv.gz",
            gzip.compress(b"a,b\n" + b"1,2\n" * 999, mtime=0)[:-12],
            "rows.csv.gz cannot be read",
        ),
        ("rows.parquet", b"PAR1 and no more than that", "cannot be read as Parquet"),
    ],
)
def test_files_that_cannot_be_used_are_refused_with_the_reason(tmp_path, name, content, message):
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    if content is not None:
        (tmp_path / name).write_bytes(content)
    refused(message, str(tmp_path / name))


def test_a_header_of_positions_or_wavelengths_is_a_header(tmp_path):
    path = tmp_path / "rows.csv"
    for header in ("0,1,ill", "400.5,401.5,ill"):
        path.write_text(header + "\n1.5,2.5,no\n2.5,2.5,yes\n")
        assert list(read(str(path)).columns) == header.split(",")


def test_a_folder_and_a_query_of_a_file_are_refused(tmp_path):
    (tmp_path / "rows.csv").mkdir()
    refused("which is a folder", str(tmp_path / "rows.csv"))
    refused("there is a query, but rows.csv is a file", "rows.csv", "SELECT 1")


def test_columns_that_are_not_there_are_named_with_what_comes_near(tmp_path):
    FRAME.to_csv(tmp_path / "rows.csv", index=False)
    message = "has no column 'Age' (did you mean 'age'?), 'shoe'; it has age, visits, city, ill"
    refused(message, str(tmp_path / "rows.csv"), columns=["Age", "shoe", "ill"])
    pytest.importorskip("pyarrow")
    FRAME.to_parquet(tmp_path / "rows.parquet")
    refused(message, str(tmp_path / "rows.parquet"), columns=["Age", "shoe", "ill"])


def test_what_is_not_installed_is_named_with_its_remedy(tmp_path, monkeypatch):
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused("pip install 'peerbayes[data]'", str(tmp_path / "rows.parquet"))
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    refused("pip install 'peerbayes[peer]'", "sqlite:///rows.db", "SELECT 1")


# --- databases -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT agee FROM patients", "no such column: agee"),
        ("SELEC age FROM patients", "expected a SELECT, or WITH … SELECT"),
        ("SELECT * FROM nobody", "the query failed on sqlite:///"),
        ("SELECT * FROM patients WHERE age > 1000", "gives no rows; expected at least one"),
        ("SELECT age, age FROM patients", "several columns named 'age'; rename all but one (in SQL with AS)"),
        ("DELETE FROM patients", "expected a SELECT"),
        ("SELECT 1; DROP TABLE patients", "several statements; expected a single SELECT"),
        ("WITH old AS (SELECT 1) DELETE FROM patients", "the query failed on sqlite:///"),
        ("", "expected a SELECT"),
        (None, "sqlite://… is a database; say which rows with a query"),
    ],
)
def test_queries_that_cannot_be_used_are_refused_and_change_nothing(tmp_path, query, message):
    pytest.importorskip("sqlalchemy")
    url = sqlite(tmp_path / "rows.db", FRAME)
    before = (tmp_path / "rows.db").read_bytes()
    refused(message, url, query)
    assert (tmp_path / "rows.db").read_bytes() == before
    assert len(read(url, "SELECT * FROM patients")) == 3


@pytest.mark.parametrize(
    "query",
    [
        "select age from patients;",
        "  -- the old ones; only\nSELECT age FROM patients WHERE city <> 'a;b' OR city LIKE '%:o%'",
        "/* first; */ WITH old AS (SELECT age FROM patients) SELECT age FROM old ; \n",
        'SELECT age AS "a;b" FROM patients',
    ],
)
def test_one_select_may_be_written_in_many_ways(tmp_path, query):
    pytest.importorskip("sqlalchemy")
    check_query(query)
    assert read(sqlite(tmp_path / "rows.db", FRAME), query).shape[1] == 1


def test_a_typo_in_the_name_of_a_sqlite_file_makes_no_file(tmp_path):
    pytest.importorskip("sqlalchemy")
    refused("which does not exist", f"sqlite:///{tmp_path}/nobody.db", "SELECT 1")
    assert not list(tmp_path.iterdir())
    refused("which is a folder", f"sqlite:///{tmp_path}", "SELECT 1")
    for url in ("sqlite://", "sqlite:///:memory:"):
        refused("names no file", url, "SELECT 1")
    (tmp_path / "text.db").write_text("not a database, but long enough to be looked at" * 30)
    refused("file is not a database", f"sqlite:///{tmp_path}/text.db", "SELECT 1 FROM x")


@pytest.mark.parametrize("name", ["with space.db", "50%.db", "what?.db", "a#b.db", "ñ.db"])
def test_a_sqlite_file_may_have_any_name(tmp_path, name):
    sqlalchemy = pytest.importorskip("sqlalchemy")
    sqlite(tmp_path / name, FRAME)
    url = sqlalchemy.URL.create("sqlite", database=str(tmp_path / name)).render_as_string()
    if "?" not in name:  # begins the options of a URL, and no escape helps
        assert len(read(url, "SELECT * FROM patients")) == 3
    as_uri = f"sqlite:///{(tmp_path / name).as_uri()}?uri=true".replace("file://", "file:")
    assert len(read(as_uri, "SELECT * FROM patients")) == 3


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://ada:s3cr3t@localhost:1/db?password=s3cr3t", "postgresql://ada:***@localhost:1/db"),
        ("nosuch://ada:s3cr3t@host/db", "no database is called 'nosuch'"),
        ("postgresql://ada:s3cr3t@host:port/db", "the URL of the database (postgresql://…) cannot be read"),
        ("no such://ada:s3cr3t@host", "cannot be read; expected one like"),
        ("https://ada:s3cr3t@example.org/rows.csv", "For a file on the web, download it first"),
    ],
)
def test_a_password_is_never_shown(url, message):
    pytest.importorskip("sqlalchemy")
    with pytest.raises(SourceError, match=re.escape(message)) as caught:
        read(url, "SELECT 1")
    error = caught.value
    while error is not None:
        assert "s3cr3t" not in str(error)
        error = error.__cause__


def test_what_a_driver_says_is_shown_without_the_password(monkeypatch):
    sqlalchemy = pytest.importorskip("sqlalchemy")

    def connect(url, **_):
        raise RuntimeError(f"cannot\nconnect with {url.password}")

    monkeypatch.setattr(sqlalchemy, "create_engine", connect)
    said = refused("cannot be opened: cannot connect with ***", "postgresql://ada:p%40ss@host/db", "SELECT 1")
    assert "p@ss" not in said


# --- labels ----------------------------------------------------------------------------------------------------


def test_labels_are_split_off_and_features_keep_their_order():
    features, labels = labelled(FRAME, "ill", {"city": "discrete", "age": "auto"})
    assert list(features.columns) == ["city", "age"]
    assert list(labels) == ["no", "yes", "no"]
    assert list(labelled(FRAME, "visits", {})[0].columns) == ["age", "city", "ill"]


@pytest.mark.parametrize(
    ("label", "features", "message"),
    [
        ("sick", {}, "the table has no column 'sick'; it has age, visits, city, ill"),
        ("Ill", {}, "no column 'Ill' (did you mean 'ill'?)"),
        ("ill", {"visit": "auto"}, "no column 'visit' (did you mean 'visits'?)"),
        ("ill", {"ill": "auto"}, "'ill' is the label and also a feature"),
        ("city", {}, "1 of 3 rows have no label in column 'city' (counted from 1: 2); leave those rows out"),
    ],
)
def test_labels_and_features_that_do_not_fit_are_refused(label, features, message):
    with pytest.raises(SourceError, match=re.escape(message)):
        labelled(FRAME, label, features)


def test_many_missing_labels_are_counted_and_a_label_alone_is_not_enough():
    with pytest.raises(SourceError, match=r"9 of 9 rows .*: 1, 2, 3, 4, 5, …\)"):
        labelled(pd.DataFrame({"x": range(9), "y": [None] * 9}), "y", {})
    with pytest.raises(SourceError, match="no column but the label 'ill'"):
        labelled(FRAME[["ill"]], "ill", {})


def test_the_error_is_named_and_a_value_error():
    assert issubclass(SourceError, PeerbayesError)
    assert issubclass(SourceError, ValueError)


def test_a_simulation_reads_the_same_sources(tmp_path):
    FRAME.to_csv(tmp_path / "rows.csv", index=False)
    rows, labels = config.load_data({"file": str(tmp_path / "rows.csv")})
    assert list(rows.columns) == ["age", "visits", "city"]
    assert list(labels) == ["no", "yes", "no"]
    for data, message in (
        ({"file": "none.csv"}, "none.csv, which does not exist"),
        ({"file": "rows.txt"}, "rows.txt; expected a .csv or a .parquet"),
        ({"file": str(tmp_path / "rows.csv"), "label": "sick"}, "has no column 'sick'; it has age"),
    ):
        with pytest.raises(ConfigurationError, match=re.escape(message)):
            config.load_data(data)


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ("SELECT * FROM rows", None),
        ("SELECT a, b * 2 AS 'limit' FROM rows WHERE a > 3 -- group by nothing", None),
        ("select * from rows limit 5", "LIMIT"),
        ("SELECT avg(a) OVER () FROM rows", "OVER"),
        ("SELECT a FROM rows GROUP  BY a", "GROUP BY"),
        ("SELECT DISTINCT a FROM rows", "DISTINCT"),
    ],
)
def test_queries_whose_rows_depend_on_each_other_are_known(query, word):
    from peerbayes.data.sources.sql import mixes_rows

    assert mixes_rows(query) == word


def test_columns_that_are_known_to_be_text_are_read_as_written(tmp_path):
    """Whatever the others look like: else a row more could make numbers, or gaps, of all others."""
    path = tmp_path / "rows.csv"
    path.write_text("a,b,c\nnone,1,1\nNA,02,2\n,-,3\n")
    read = sources.read(str(path), texts=("a", "b", "not there"))
    assert read["a"].tolist()[:2] == ["none", "NA"] and read["a"].isna().tolist() == [False, False, True]
    assert read["b"].tolist() == ["1", "02", "-"] and read["c"].tolist() == [1, 2, 3]
    plain = sources.read(str(path))
    assert plain["a"].isna().all() and plain["b"].isna().tolist() == [False, False, True]
