"""A study in a few lines, as Python and a notebook show it: what varies, the rows, the result, and what made it."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from peerbayes.data.files import printable
from peerbayes.experiments import study_tables
from peerbayes.experiments.comparison import DONE, STATUS
from peerbayes.simulation.provenance import IN_MEMORY

Study = Any  # a `study.Study`, which shows itself by this file

WIDEST = 110  # characters of a text
ROWS = 4  # of the table, and datasets, that are shown


def overview(study: Study) -> list[tuple[str, str]]:
    """Return what a study is and what came out, in pairs of a name and a text."""
    counts = study.frame[STATUS].value_counts()
    states = ", ".join(f"{count} {status}" for status, count in counts.items())
    lines = [("cells", f"{study.shape}; {states}"), *(("data", text) for text in _rows(study))]
    if (study.frame[STATUS] == DONE).any():
        lines += _result(study)
    lines += [("made", text) for text in _made_in_all(study, counts.get(DONE, 0))]
    return [(name, _short(text)) for name, text in [*lines, ("folder", str(study.folder))]]


def made(study: Study) -> list[str]:
    """Return who computed the cells of a study, when and where, a line for each call."""
    return [f"{entry['cells']:,} cells from {entry['began']} by {_maker(entry)}" for entry in study.sessions]


def _maker(entry: Mapping[str, Any]) -> str:
    return (
        f"peerbayes {entry['peerbayes']}, Python {entry['python']}, NumPy {entry['numpy']}, engine {entry['engine']}, "
        f"on {entry['machine']['processor']}, {entry['machine']['system']}"
    )


def _made_in_all(study: Study, done: int) -> list[str]:
    """Return the same of all calls together: a call that was ended early was to compute what the next ones did."""
    if len(study.sessions) < 2:
        return made(study)
    first, last = study.sessions[0]["began"], study.sessions[-1]
    return [
        f"{done:,} cells in {len(study.sessions)} calls, {first} to {last['began']}, the last by {_maker(last)}"
    ]


def made_lines(study: Study) -> str:
    """Return the same, and the digests of the rows, as comments of a file."""
    rows = [f"{text}, digest {study.tables[label]['digest']}" for label, text in _tables(study).items()]
    return "".join(f"# {printable(text)}\n" for text in [*made(study), *rows]) + "\n"


def _tables(study: Study) -> dict[str, str]:
    """Return what is known of each table."""
    return {
        label: f"{label if table.get('source') else IN_MEMORY}: {table['rows']:,} rows, {table['columns']:,} columns"
        for label, table in study.tables.items()
    }


def _rows(study: Study) -> list[str]:
    texts = list(_tables(study).values())
    return texts if len(texts) <= ROWS else [*texts[:ROWS], f"and {len(texts) - ROWS} more"]


def _result(study: Study) -> list[tuple[str, str]]:
    """Return the first rows of the table, the distinguishably best with a star."""
    try:
        grid = study.grid()
    except ValueError as problem:  # no cell has the study's figure
        return [("result", str(problem))]
    lines = []
    for texts, marks in zip(grid.rows[:ROWS], grid.marked, strict=False):
        named = ", ".join(texts[: grid.first])
        values = ", ".join(
            f"{name} {text}{'*' if mark else ''}"
            for name, text, mark in zip(
                grid.header[grid.first :], texts[grid.first :], marks[grid.first :], strict=True
            )
        )
        lines.append(("result", f"{named}: {values}" if named else values))
    if len(grid.rows) > ROWS:
        lines.append(("result", f"and {len(grid.rows) - ROWS} more rows: see summary()"))
    if any(any(marks) for marks in grid.marked[:ROWS]):
        lines.append(("", "* distinguishable from every other"))
    return lines


def _short(text: str) -> str:
    plain = printable(text)
    return plain if len(plain) <= WIDEST else f"{plain[: WIDEST - 1]}…"


def as_text(study: Study) -> str:
    """Return a study as its `repr`: each name once, before its first line."""
    lines, before = [f"Study {study.name!r}"], ""
    for name, text in overview(study):
        lines.append(f"  {'' if name == before else name:<8}{text}")
        before = name
    return "\n".join(lines)


def as_html(study: Study) -> str:
    """Return a study for a notebook: the table of its comparison, and below it the rows and what made it."""
    below = [text for name, text in overview(study) if name in ("cells", "data", "made")]
    facts = "".join(f"<p><small>{escape(text)}</small></p>" for text in below)
    try:
        return study_tables.as_html(study.grid()) + facts
    except ValueError as problem:
        return f"<p>{escape(str(problem))}</p>{facts}"
