"""Figures of tables that are added up: those of the pooled rows, and what one site finds when it compares itself."""

import numpy as np
import pandas as pd
import pytest

from peerbayes.data.schema import Schema
from peerbayes.learning.data_figures import CELLS, MOST_ROWS, FigureLayout, findings, missing_share
from peerbayes.peer.agreement.agreed_figures import own_words


def frame(rng, rows, **changed):
    """Weights in kilograms, a length with gaps, a code of a text, one value everywhere."""
    columns = {
        "weight": rng.normal(75.0, 12.0, rows),
        "length": np.where(rng.random(rows) < 0.1, np.nan, rng.normal(170.0, 9.0, rows)),
        "sex": rng.choice(["female", "male"], rows),
        "unit": np.full(rows, "north"),
    }
    return pd.DataFrame(columns | {name: make(rows) for name, make in changed.items()})


def sites(rng, *tables):
    """The layout that all agree on, and each table's words."""
    labels = [rng.choice(["no", "yes"], len(table)) for table in tables]
    schema = Schema.infer(pd.concat(tables, ignore_index=True), np.concatenate(labels))
    layout = FigureLayout(schema)
    return layout, [own_words(layout, *one) for one in zip(tables, labels, strict=True)]


def found(rng, own, *others):
    """What the first site finds."""
    layout, words = sites(rng, own, *others)
    return findings(layout.figures(words[0]), layout.figures(sum(words[1:])), "y")


def test_sums_are_the_figures_of_the_pooled_rows(rng):
    tables = [frame(rng, rows) for rows in (300, 7, 120)]
    layout, words = sites(rng, *tables)
    figures, pooled = layout.figures(sum(words)), pd.concat(tables, ignore_index=True)
    assert (figures.sites, figures.rows, sum(figures.classes.values())) == (3, 427, 427)
    by_name = {column.name: column for column in figures.columns}
    for name in ("weight", "length"):
        column, values = by_name[name], pooled[name].dropna()
        assert column.present == len(values)
        assert missing_share(column, figures.rows) == pytest.approx(pooled[name].isna().mean(), abs=1e-12)
        assert column.mean == pytest.approx(values.mean(), rel=1e-11)
        assert column.sd == pytest.approx(values.std(ddof=0), rel=1e-9)
        low, high = values.quantile([0.05, 0.95])
        eighth = layout.schema.columns[layout.schema.names.index(name)].scale / 8
        assert low - eighth <= column.low <= low + 1e-9 and high - 1e-9 <= column.high <= high + eighth
    assert dict(by_name["sex"].counts) == pooled["sex"].value_counts().to_dict()


def test_alike_tables_have_no_findings(rng):
    for _ in range(20):
        assert [one.kind for one in found(rng, frame(rng, 60), frame(rng, 200), frame(rng, 90))] == []


@pytest.mark.parametrize(
    ("changed", "kind", "words"),
    [
        ({"length": lambda rows: np.full(rows, np.nan)}, "empty", "no value here"),
        ({"length": lambda rows: np.where(np.arange(rows) % 2, np.nan, 170.0 + np.arange(rows) % 9)}, "missing", "50%"),
        ({"weight": lambda rows: 75_000.0 + 12_000.0 * np.sin(np.arange(rows))}, "unit", "another unit?"),
        ({"weight": lambda rows: np.full(rows, 75.0)}, "constant", "every value here is"),
        ({"sex": lambda rows: np.where(np.arange(rows) % 2, "f", "m")}, "codes", "'female', 'male'"),
    ],
)  # fmt: skip
def test_a_column_that_is_empty_or_coded_differently_is_found_by_its_site(rng, changed, kind, words):
    own, others = frame(rng, 80, **changed), (frame(rng, 150), frame(rng, 150))
    stopping = [one for one in found(rng, own, *others) if one.stops]
    assert [(one.kind, one.column) for one in stopping] == [(kind, next(iter(changed)))]
    assert words in stopping[0].sentence and next(iter(changed)) in stopping[0].sentence


def test_a_class_of_one_site_alone_is_another_code(rng):
    tables = [frame(rng, 60), frame(rng, 60)]
    labels = [np.array(["1", "0"] * 30), np.array(["yes", "no"] * 30)]
    layout = FigureLayout(Schema.infer(pd.concat(tables), np.concatenate(labels)))
    own, others = (layout.figures(own_words(layout, *one)) for one in zip(tables, labels, strict=True))
    kinds = [(one.kind, one.stops) for one in findings(own, others, "y") if "this site only" in one.sentence]
    assert kinds == [("classes", True)] * 2


def word_of(layout, name):
    """The index of the first word of a column."""
    place = 2 + len(layout.schema.classes)
    for column in layout.schema.columns:
        if column.name == name:
            return place
        place += 1 + (4 + CELLS if column.traits.reads_numbers else len(column.categories))
    raise AssertionError(name)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, -1), (1, -1), (1, 1), (1, MOST_ROWS + 1), (1, -(1 << 63)), (2, -1), (2, 1 << 62),
        ("weight", -1), ("weight", 1 << 40), ("weight+1", 1 << 40), ("weight+1", -(1 << 62)), ("weight+2", -(1 << 40)),
        ("weight+9", -1), ("weight+9", 1 << 62), ("sex+1", -1), ("sex+1", 1 << 62), ("sex", 10_000),
    ],
)  # fmt: skip
def test_sums_that_no_tables_have_are_refused(rng, place, value):
    layout, words = sites(rng, frame(rng, 50), frame(rng, 50))
    summed = sum(words)
    if isinstance(place, str):
        name, _, offset = place.partition("+")
        place = word_of(layout, name) + int(offset or 0)
    layout.figures(summed)
    summed[place] = value
    with pytest.raises(ValueError, match=r"rows|values|classes"):
        layout.figures(summed)


def test_counts_that_add_up_only_modulo_2_64_are_refused(rng):
    """Four classes of 2⁶² rows each are no rows at all in 64 bits."""
    tables = [frame(rng, 40), frame(rng, 40)]
    labels = [np.array(["a", "b", "c", "d"] * 10)] * 2
    layout = FigureLayout(Schema.infer(pd.concat(tables), np.concatenate(labels)))
    summed = sum(own_words(layout, *one) for one in zip(tables, labels, strict=True))
    with np.errstate(over="ignore"):
        summed[2:6] += 1 << 62
    assert int(summed[2:6].sum()) == 80
    with pytest.raises(ValueError, match="classes"):
        layout.figures(summed)


def test_a_site_alone_and_sites_without_rows_find_nothing(rng):
    layout, words = sites(rng, frame(rng, 30), frame(rng, 30))
    own, nobody = layout.figures(words[0]), layout.figures(np.zeros_like(words[0]))
    assert findings(own, nobody, "y") == [] and findings(nobody, own, "y") == []
