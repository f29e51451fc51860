"""What a check of a table says: findings by name, each with what was seen and what to do."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from peerbayes.data.files import printable

if TYPE_CHECKING:
    import pandas as pd

REFUSED, WARNING, NOTE = SEVERITIES = ("refused", "warning", "note")
"""A table with it is refused; it is used, but says something else than it seems; it is good to know."""


class Advice(NamedTuple):
    """What is said of every finding of one name."""

    severity: str
    """Unless the finding itself says otherwise."""
    todo: str


# Every name that a finding may have.
NAMES: dict[str, Advice] = {
    # --- the file
    "unreadable": Advice(REFUSED, "Correct the file, or export it again"),
    "encoding": Advice(REFUSED, "Save the file as UTF-8"),
    "byte-order-mark": Advice(NOTE, "Nothing: it is skipped; other programs may take it for a part of the first name"),
    "delimiter": Advice(REFUSED, "Separate columns by commas, semicolons or tabs"),
    "no-header": Advice(REFUSED, "Write a line with the names of the columns above the rows"),
    "ragged-lines": Advice(REFUSED, "Correct these lines: something was cut, or a quote is missing"),
    "no-rows": Advice(REFUSED, "Export the table again, with rows"),
    # --- names of columns
    "duplicated-name": Advice(REFUSED, "Rename all but one, in SQL with AS"),
    "empty-name": Advice(REFUSED, "Name the column, or leave it out (a row index of pandas: index=False)"),
    "hostile-name": Advice(WARNING, "Rename the column: letters, digits and single spaces are safe everywhere"),
    # --- one column
    "identifier": Advice(WARNING, "Leave the column out: nothing can be learned from it for other rows"),
    "free-text": Advice(WARNING, "Leave the column out, or make categories or numbers of what it says"),
    "date": Advice(WARNING, "Make a number (days, a year) or a category (month, weekday) of it, in the file or by SQL"),
    "constant": Advice(WARNING, "Leave the column out: it says nothing"),
    "empty": Advice(WARNING, "Leave the column out, or see why its values were lost"),
    "mostly-missing": Advice(WARNING, "See why values are missing; leave the column out where that is no information"),
    "mixed-types": Advice(WARNING, "Write each value as a plain number (12.5, 1200), and leave missing ones empty"),
    "numbers-as-text": Advice(WARNING, "Convert the column to numbers, or declare it: kinds={…: 'discrete'}"),
    "missing-code": Advice(
        WARNING, "Leave missing values empty in the file, by SQL, or by missing = […] in [data] of a simulation"
    ),
    "infinity": Advice(REFUSED, "Replace infinite values by finite ones, or leave them empty"),
    "blanks": Advice(WARNING, "Strip blanks at the ends of texts: with and without are two categories"),
    "variants": Advice(WARNING, "Write each category in one way"),
    "another-unit": Advice(WARNING, "Convert the values to one unit, or correct them"),
    "heavy-tails": Advice(NOTE, "Try kinds={…: 'positive'} or 'binned': no Gaussian fits such numbers"),
    "not-a-value": Advice(REFUSED, "Use text, numbers or booleans; give each entry of a list a column"),
    "refused": Advice(REFUSED, "Clean the column, or leave it out"),
    # --- columns beside each other, and rows
    "duplicated-column": Advice(WARNING, "Leave one of the two out: naive Bayes would count what they say twice"),
    "repeated-rows": Advice(
        WARNING, "Leave repeats out where they are one observation: an export or a join may double rows, and copies "
        "among test rows flatter errors"
    ),
    # --- labels
    "missing-labels": Advice(REFUSED, "Leave rows without a label out"),
    "one-class": Advice(REFUSED, "Take rows of at least two classes"),
    "small-class": Advice(WARNING, "Join them with others (a simulation: labels = {…} in [data]), or find more rows"),
    "continuous-label": Advice(WARNING, "Cut the numbers into classes: this is for classes, not for regression"),
    "many-classes": Advice(WARNING, "Choose another column as the label, or join classes"),
    "label-copy": Advice(WARNING, "Leave the column out: it is the label under another name"),
    "determines-label": Advice(WARNING, "Ask whether it is known before the label is; if not, leave it out"),
    # --- test rows
    "no-test-rows": Advice(REFUSED, "Give test rows, or leave the test table out"),
    "test-columns": Advice(REFUSED, "Give the test table the columns of the training table, of the same types"),
    "test-rows-in-training": Advice(WARNING, "Take these rows out of one of the tables: errors on them flatter"),
    "test-only-category": Advice(WARNING, "Expect them to be treated as missing: nothing is learned from test rows"),
    "test-only-class": Advice(REFUSED, "Take these test rows out, or find training rows of their class"),
}  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One finding."""

    name: str
    """One of `NAMES`."""
    column: str | None
    """The column that it is about; None: the table or its file."""
    seen: str
    """Counts and examples: for the owner's own eyes."""
    severity: str
    """"refused": `fit` and `simulate` refuse such a table; "warning" or "note"."""
    example: str = ""
    """How what is to be done is written for this column."""

    @classmethod
    def of(
        cls, name: str, column: str | None, seen: str, severity: str | None = None, example: str = ""
    ) -> Finding:
        """Return the finding of this name."""
        return cls(name, column, seen, severity or NAMES[name].severity, example)

    @property
    def advice(self) -> str:
        """What to do."""
        todo = NAMES[self.name].todo
        return f"{todo}; {printable(self.example)}" if self.example else todo

    def __str__(self) -> str:
        subject = "" if self.column is None else f" column {printable(self.column)!r:.80}:"
        return f"{self.name}:{subject} {self.seen}. {self.advice}"


HEADER = ("severity", "name", "column", "seen", "advice")


@dataclass(frozen=True, repr=False)
class Findings(Sequence[Finding]):
    """All findings of a table, the worst first."""

    entries: tuple[Finding, ...]
    checked: str
    """What was looked at."""

    @classmethod
    def of(cls, findings: Sequence[Finding], checked: str) -> Findings:
        """Return the findings in order of their severity, otherwise as they came."""
        return cls(tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))), checked)

    @property
    def alarming(self) -> bool:
        """Whether there is more than notes."""
        return any(finding.severity != NOTE for finding in self.entries)

    @property
    def names(self) -> set[str]:
        """The names of all findings."""
        return {finding.name for finding in self.entries}

    @property
    def frame(self) -> pd.DataFrame:
        """The findings as a DataFrame, a row each."""
        import pandas as pd

        return pd.DataFrame(self.rows(), columns=list(HEADER))

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """Return what each finding says, in the order of `HEADER`, as text that is safe to print."""
        return [
            (
                finding.severity,
                finding.name,
                printable(finding.column or ""),
                printable(finding.seen),
                finding.advice,
            )
            for finding in self.entries
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the findings as plain values."""
        rows = [dict(zip(HEADER, row, strict=True)) for row in self.rows()]
        for row, finding in zip(rows, self.entries, strict=True):
            row["column"] = finding.column  # type: ignore[assignment]
        return {"checked": self.checked, "findings": rows}

    def __repr__(self) -> str:
        counts = [
            f"{count} {severity}" for severity in SEVERITIES
            if (count := sum(finding.severity == severity for finding in self.entries))
        ]  # fmt: skip
        heading = f"{printable(self.checked)}: {', '.join(counts) or 'nothing to warn of'}"
        texts = (f"{finding.severity}: {finding}" for finding in self.entries)
        folded = (
            textwrap.fill(printable(text), 118, initial_indent="  ", subsequent_indent="      ")
            for text in texts
        )
        return "\n".join([heading, *folded])

    def _repr_html_(self) -> str:
        def line(tag: str, cells: Sequence[str]) -> str:
            return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"

        if not self.entries:
            return f"<p>{html.escape(repr(self))}</p>"
        rows = "".join(line("td", row) for row in self.rows())
        caption = html.escape(printable(self.checked))
        return f"<table><caption>{caption}</caption>{line('th', HEADER)}{rows}</table>"

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.entries)

    @overload
    def __getitem__(self, index: int) -> Finding: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Finding]: ...

    def __getitem__(self, index: int | slice) -> Finding | Sequence[Finding]:
        return self.entries[index]
