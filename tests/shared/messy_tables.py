"""Tables with one defect each, as text of CSV files, and a clean one: 240 rows of three columns and a label."""

from __future__ import annotations

from dataclasses import dataclass, field
from io import StringIO

import numpy as np
import pandas as pd

ROWS = 240
LABEL = "outcome"


def clean(seed: int = 0) -> pd.DataFrame:
    """Return a table without a defect."""
    rng = np.random.default_rng(seed)
    ill = rng.random(ROWS) < 0.4
    return pd.DataFrame(
        {
            "age": rng.normal(50 + 10 * ill, 8).round(2),
            "visits": rng.poisson(4 + 2 * ill),
            "ward": rng.choice(["north", "south", "west"], ROWS),
            LABEL: np.where(ill, "ill", "well"),
        }
    )


@dataclass(frozen=True)
class Messy:
    """A table with a defect, the name that it is found by, and the column."""

    name: str
    column: str | None
    content: bytes
    test: bytes | None = None
    python: bool = True
    """Whether a DataFrame can have the defect too."""
    others: frozenset[str] = field(default=frozenset())
    """What else may be said of it."""

    def frame(self) -> pd.DataFrame:
        """Return the table as somebody reads it with pandas."""
        return pd.read_csv(StringIO(self.content.decode()))


def _csv(frame: pd.DataFrame, **options) -> bytes:
    return frame.to_csv(index=False, **options).encode()


def _with(**columns) -> bytes:
    """The clean table with these columns, before the label."""
    frame = clean()
    for name, values in columns.items():
        if name in frame:
            frame[name] = values
        else:
            frame.insert(3, name, values)
    return _csv(frame)


def _some(values, indices, instead):
    changed = np.array(values, dtype=object)
    changed[list(indices)] = instead
    return changed


def _twice(frame: pd.DataFrame) -> pd.DataFrame:
    half = frame.assign(dose=np.random.default_rng(3).normal(25, 3, ROWS).round(2))[["dose", *frame]].iloc[
        ::2
    ]
    return pd.concat([half, half])


def messy_tables() -> dict[str, Messy]:
    """Return all messy tables by what is wrong with them."""
    rng, frame = np.random.default_rng(1), clean()
    text = _csv(frame).decode()
    header, body = text.split("\n", 1)
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, ROWS), unit="D")
    words = [
        "pain",
        "fever",
        "since",
        "weeks",
        "treated",
        "at",
        "home",
        "no",
        "relief",
        "cough",
        "mild",
        "left",
    ]
    remarks = [" ".join(rng.choice(words, 9)) + f" {j}" for j in range(ROWS)]
    ward, age, label = frame["ward"].to_numpy(), frame["age"].to_numpy(), frame[LABEL].to_numpy()
    codes = pd.Series(ward).map({"north": 7, "south": 3, "west": 5}).to_numpy()
    fresh = clean(9)

    return {
        "a text identifier": Messy(
            "identifier", "patient", _with(patient=[f"P{j * 7919 % 99991:05d}" for j in range(ROWS)])
        ),
        "a row counter": Messy("identifier", "nr", _with(nr=np.arange(1, ROWS + 1))),
        "record numbers": Messy(
            "identifier", "record", _with(record=rng.permutation(90_000)[:ROWS] + 10_000)
        ),
        "free text": Messy("free-text", "remark", _with(remark=remarks)),
        "dates": Messy("date", "admitted", _with(admitted=days.strftime("%Y-%m-%d"))),
        "dates as whole numbers": Messy(
            "date", "admitted", _with(admitted=days.strftime("%Y%m%d").astype(int))
        ),
        "dates of another form": Messy("date", "admitted", _with(admitted=days.strftime("%d.%m.%Y"))),
        "a constant column": Messy("constant", "country", _with(country="X")),
        "an empty column": Messy("empty", "notes", _with(notes=None)),
        "a column that is mostly missing": Messy(
            "mostly-missing",
            "dose",
            _with(dose=np.where(rng.random(ROWS) < 0.8, np.nan, rng.normal(size=ROWS))),
        ),
        "a column twice": Messy("duplicated-column", "years", _with(years=age)),
        "a recoded column": Messy("duplicated-column", "ward_code", _with(ward_code=codes)),
        "a column in another unit": Messy(
            "duplicated-column",
            "fahrenheit",
            _with(celsius=age, fahrenheit=(age * 1.8 + 32).round(6)),
            others=frozenset(("duplicated-column",)),
        ),
        "bounds among numbers": Messy(
            "mixed-types", "dose", _with(dose=_some(rng.normal(30, 4, ROWS).round(1), range(0, 60, 3), "<5"))
        ),
        "decimal commas": Messy(
            "mixed-types",
            "dose",
            _with(dose=[f"{value:.1f}".replace(".", ",") for value in rng.normal(30, 4, ROWS)]),
        ),
        "separated thousands": Messy(
            "mixed-types",
            "income",
            _with(income=[f"{value:,}".replace(",", " ") for value in rng.integers(800, 9000, ROWS)]),
        ),
        "a code for missing": Messy(
            "missing-code",
            "dose",
            _with(dose=np.where(rng.random(ROWS) < 0.1, -999, rng.normal(30, 4, ROWS).round(1))),
        ),
        "nines for missing": Messy(
            "missing-code", "visits", _with(visits=_some(frame["visits"], range(0, 50, 9), 9999))
        ),
        "question marks": Messy("missing-code", "ward", _with(ward=_some(ward, range(0, 50, 9), "?"))),
        "infinity": Messy("infinity", "age", _with(age=_some(age, [5], "inf"))),
        "blanks at the ends": Messy("blanks", "ward", _with(ward=_some(ward, range(0, 60, 5), "north "))),
        "spellings": Messy("variants", "ward", _with(ward=_some(ward, range(0, 60, 5), "North"))),
        "another unit": Messy(
            "another-unit",
            "height",
            _with(height=np.where(np.arange(ROWS) % 60 == 7, 1.78, rng.normal(175, 8, ROWS).round(1))),
        ),
        "another unit of a tenth": Messy(
            "another-unit",
            "height",
            _with(height=np.where(np.arange(ROWS) % 10 == 7, 1000, 1) * rng.normal(175, 8, ROWS).round(1)),
        ),
        "another unit of two fifths": Messy(
            "another-unit",
            "height",
            _with(height=np.where(np.arange(ROWS) % 5 < 2, 0.01, 1) * rng.normal(175, 8, ROWS).round(1)),
        ),
        "rows twice": Messy("repeated-rows", None, _csv(_twice(frame))),
        "a formula as a name": Messy(
            "hostile-name", "=1+2", _with(**{"=1+2": rng.normal(size=ROWS).round(3)})
        ),
        "a name with an escape": Messy(
            "hostile-name", "do\x1b[31mse", _with(**{"do\x1b[31mse": rng.normal(size=ROWS).round(3)})
        ),
        "a name twice": Messy(
            "duplicated-name", "ward", ("age,ward,ward,outcome\n" + body).encode(), python=False
        ),
        "a column without a name": Messy(
            "empty-name", "", ("age,visits,,outcome\n" + body).encode(), python=False
        ),
        "another encoding": Messy(
            "encoding", None, text.replace("north", "nörd").encode("latin-1"), python=False
        ),
        "UTF-16": Messy("encoding", None, text.encode("utf-16"), python=False),
        "bars between columns": Messy("delimiter", None, text.replace(",", "|").encode(), python=False),
        "lines that were cut": Messy(
            "ragged-lines",
            None,
            (text + "50.5,3\n").encode(),
            python=False,
            others=frozenset(("missing-labels",)),
        ),
        "too many fields": Messy(
            "ragged-lines", None, (text + "50.5,3,north,ill,5\n").encode(), python=False
        ),
        "no header": Messy(
            "no-header", None, (",".join(map(str, frame.iloc[0])) + "\n" + body).encode(), python=False
        ),
        "no rows": Messy("no-rows", None, (header + "\n").encode(), python=False),
        "a continuous label": Messy("continuous-label", LABEL, _with(outcome=rng.normal(size=ROWS).round(3))),
        "a label that counts": Messy("continuous-label", LABEL, _with(outcome=rng.integers(0, 90, ROWS))),
        "missing labels": Messy("missing-labels", LABEL, _with(outcome=_some(label, [3, 8], None))),
        "one class": Messy("one-class", LABEL, _with(outcome="ill")),
        "a class of two rows": Messy("small-class", LABEL, _with(outcome=_some(label, [3, 8], "unclear"))),
        "the label as a column": Messy(
            "label-copy", "diagnosis", _with(diagnosis=(label == "ill").astype(int))
        ),
        "a column that knows the label": Messy(
            "determines-label",
            "drug",
            _with(drug=np.where(label == "ill", rng.choice(["a", "b"], ROWS), "none")),
        ),
        "a score that knows the label": Messy(
            "determines-label", "score", _with(score=(rng.random(ROWS) + 2 * (label == "ill")).round(3))
        ),
        "test rows in training": Messy(
            "test-rows-in-training", None, text.encode(), _csv(pd.concat([fresh, frame.iloc[:20]]))
        ),
        "a category of test rows": Messy(
            "test-only-category",
            "ward",
            text.encode(),
            _csv(fresh.assign(ward=_some(fresh["ward"], [4], "east"))),
        ),
        "a class of test rows": Messy(
            "test-only-class",
            None,
            text.encode(),
            _csv(fresh.assign(outcome=_some(fresh[LABEL], [4], "unclear"))),
        ),
        "no test rows": Messy(
            "no-test-rows", None, text.encode(), (header + "\n").encode(), others=frozenset(("no-rows",))
        ),
        "test rows without a column": Messy(
            "test-columns", "visits", text.encode(), _csv(fresh.drop(columns="visits"))
        ),
    }
