"""What `fit` and `simulate` warn of: each defect that a glance shows, by the name that `check` gives it."""

import re
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn import datasets

import peerbayes as pb
from peerbayes.data.doctor.quick import Glance, findings_of
from peerbayes.data.infer import inspect
from peerbayes.data.table import Table
from peerbayes.errors import DataWarning
from shared.messy_tables import LABEL, clean, messy_tables

MESSY = messy_tables()

# Defects that a fit warns of, though it uses the table; tables that it refuses are those of `check`.
WARNED = [
    "a row counter",
    "record numbers",
    "dates of another form",
    "dates as whole numbers",
    "a constant column",
    "an empty column",
    "a column twice",
    "a recoded column",
    "a column in another unit",
    "bounds among numbers",
    "decimal commas",
    "a code for missing",
    "nines for missing",
    "question marks",
    "blanks at the ends",
    "spellings",
    "a label that counts",
    "the label as a column",
]


def fitted(X, y, **settings):
    pb.MixedNB(**settings).fit(X, y)


def simulated(X, y, **settings):
    pb.simulate(X, y, peers=4, rows_per_peer=50, rounds=2, topology="ring", evaluate_every=0, **settings)


def warned(call, *arguments, **settings):
    """Return the findings that a call warns of, as (name, column)."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(*arguments, **settings)
    texts = [str(each.message) for each in caught if issubclass(each.category, DataWarning)]
    assert len(texts) <= 1, "it warns once"
    assert all(each.filename == __file__ for each in caught if issubclass(each.category, DataWarning))
    return set(re.findall(r"([a-z-]+): column '(.*?)':", "; ".join(texts)))


def table_of(defect):
    frame = MESSY[defect].frame()
    return frame.drop(columns=LABEL), frame[LABEL]


@pytest.mark.parametrize("call", [fitted, simulated])
@pytest.mark.parametrize("defect", WARNED)
def test_a_defect_is_warned_of_by_its_name(defect, call):
    messy = MESSY[defect]
    column = "y" if messy.column == LABEL else messy.column
    found = warned(call, *table_of(defect))
    assert (messy.name, column) in found and {name for name, _ in found} == {messy.name}


@pytest.mark.parametrize("defect", [name for name, messy in MESSY.items() if messy.python])
def test_nothing_is_warned_of_that_check_does_not_say(defect):
    X, y = table_of(defect)
    said = {(finding.name, finding.column) for finding in pb.check(X, y)}
    try:
        assert warned(fitted, X, y) <= said
    except ValueError:
        assert any(finding.severity == "refused" for finding in pb.check(X, y))


@pytest.mark.parametrize("call", [fitted, simulated])
@pytest.mark.parametrize("seed", range(4))
def test_a_clean_table_is_warned_of_neither_as_a_frame_nor_as_an_array(call, seed):
    frame = clean(seed)
    X, y = frame.drop(columns=LABEL), frame[LABEL]
    assert warned(call, X, y) == set()
    assert warned(call, X[["age", "visits"]].to_numpy(), y.to_numpy()) == set()


@pytest.mark.parametrize("load", ["iris", "wine", "breast_cancer", "digits"])
def test_tables_of_scikit_learn_are_not_warned_of(load):
    X, y = getattr(datasets, f"load_{load}")(return_X_y=True)
    assert warned(fitted, X, y) == set()


def test_columns_of_zeros_are_usual_and_other_constants_are_not():
    X, y = np.random.default_rng(0).normal(size=(200, 4)), np.arange(200) % 2
    X[:, 1], X[:, 2] = 0.0, 3.0
    assert warned(fitted, X, y) == {("constant", "x2")}
    assert warned(fitted, X[:90], y[:90]) == set()  # of so few rows, a column may have one value by chance


@pytest.mark.parametrize(
    "change", [lambda v: v, lambda v: 32 + 1.8 * v, lambda v: -v], ids=["same", "unit", "sign"]
)
@pytest.mark.parametrize("gaps", [False, True])
def test_copies_among_numbers_are_found_whatever_their_unit(change, gaps):
    rng = np.random.default_rng(1)
    X, y = rng.normal(20, 5, (6000, 12)), rng.integers(0, 2, 6000)
    X[::7, 3] = np.nan if gaps else X[::7, 3]
    X[:, 9] = change(X[:, 3])
    assert warned(fitted, X, y) == {("duplicated-column", "x9")}
    X[rng.random(6000) < 0.5, 9] += 0.5
    assert warned(fitted, X, y) == set()


def test_repeated_rows_make_no_columns_alike():
    rng = np.random.default_rng(7)
    part = pd.DataFrame(
        {"steps": rng.permutation(9000)[:32], "income": rng.permutation(9000)[:32], "sex": ["f", "m"] * 16}
    )
    X, y = pd.concat([part] * 4, ignore_index=True), np.tile(rng.integers(0, 2, 32), 4)
    assert warned(fitted, X, y) == set()
    assert warned(fitted, X.assign(gender=X["sex"].map({"f": 1, "m": 0})), y) == {
        ("duplicated-column", "gender")
    }


def test_the_label_among_numbers_is_found_also_in_many_rows():
    rng = np.random.default_rng(2)
    y = rng.integers(0, 3, 9000)
    X = rng.normal(y[:, None], 1.0, (9000, 6))
    X[:, 4] = np.array([7, 2, 5])[y]
    assert warned(fitted, X, y) == {("label-copy", "x4")}
    X[:40, 4] = 5
    assert warned(fitted, X, y) == set()


def test_what_kinds_names_is_right_as_it_is():
    X, y = table_of("the label as a column")
    assert warned(fitted, X, y, kinds={"diagnosis": "discrete"}) == set()


def test_a_few_rows_suggest_but_do_not_decide():
    """Columns that agree in the rows that are compared first, and differ in others, are no copies."""
    from peerbayes.data.doctor.quick import FEW

    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(2000, 3)), rng.integers(0, 2, 2000)
    few = np.linspace(0, 1999, FEW).astype(int)
    X[few, 1], X[few, 2] = X[few, 0], y[few]
    assert warned(fitted, X, y) == set()


@pytest.mark.parametrize("rows", [50, 1000, 9000])
def test_ends_that_were_seen_before_say_what_a_search_says(rows):
    """`inspect` has the lowest and highest numbers at hand: a glance with them finds what it finds without."""
    rng = np.random.default_rng(rows)
    X = rng.normal(size=(rows, 7))
    X[::5, 1], X[::7, 2], X[::3, 3], X[:, 4], X[:, 5] = -999.0, 99.0, np.nan, np.arange(rows), 4.0
    labels = rng.integers(0, 2, rows)
    table = Table.of(X)
    inspected = inspect(table)
    assert inspected.ends is not None
    np.testing.assert_array_equal(inspected.ends, [np.nanmin(X, axis=0), np.nanmax(X, axis=0)])
    found = [
        list(map(str, findings_of(seen, inspected.columns, "auto", (0, 1))))
        for seen in (Glance.of(table, labels, (0, 1), ends) for ends in (inspected.ends, None))
    ]
    assert found[0] == found[1]
    assert len(found[0]) >= 2
    assert inspect(table, ["discrete", *["auto"] * 6]).ends is None
    assert inspect(table, weights=np.ones(rows)).ends is None
