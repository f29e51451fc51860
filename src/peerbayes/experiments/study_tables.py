"""The comparison of a study as a table for people: Markdown, LaTeX, HTML, and the terminal."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from peerbayes.data.files import printable
from peerbayes.experiments.comparison import NO_PEERS
from peerbayes.experiments.formats import escaped, pipes
from peerbayes.simulation.scores import figure_title

if TYPE_CHECKING:
    import pandas as pd

NOTHING = "–"
NAMED = 3  # cells of one sentence that are named; of more, their number


@dataclass(frozen=True)
class Grid:
    """A table of texts: rows are combinations of the other settings, columns the values that are compared."""

    title: str
    header: list[str]
    rows: list[list[str]]
    marked: list[list[bool]]
    """Which cells are distinguishably the best of their row."""
    first: int
    """How many columns name settings."""
    notes: list[str]


SPREAD = "std_over_peers"
IN_BRACKETS = (
    "In brackets is the standard deviation over the peers of a run, in the mean over seeds: how much peers differ, "
    "which says nothing about how well the mean is known."
)
NO_SPREAD = "Runs record no standard deviation over peers of this figure."


def grid_of(title: str, summary: pd.DataFrame, compare: str | None, spread: bool = False) -> Grid:
    """Return the table of a summary, with the spread over peers if asked; what is missing has a sentence below it."""
    others = [str(name) for name in summary.columns[: summary.columns.get_loc("metric")] if name != compare]
    metric = str(summary["metric"].iloc[0])
    levels = [figure_title(metric)] if compare is None else list(dict.fromkeys(summary[compare]))
    rows, marked, where = [], [], dict[str, list[str]]()
    for fixed in dict.fromkeys(summary[others].itertuples(index=False, name=None)):
        texts, marks = [_text(value) for value in fixed], [False] * len(fixed)
        for level in levels:
            named = {} if compare is None else {compare: level}
            entry = _entry(summary, {**dict(zip(others, fixed, strict=True)), **named})
            texts.append(NOTHING if entry is None else cell_text(entry, spread))
            marks.append(entry is not None and bool(entry["best"]))
            if note := "" if entry is None else _note(str(entry["note"]), spread):
                where.setdefault(note, []).append(", ".join(map(_text, (*fixed, *named.values()))))
        rows.append(texts)
        marked.append(marks)
    of_spread = [IN_BRACKETS if SPREAD in summary else NO_SPREAD] if spread else []
    notes = [
        *summary.attrs["notes"],
        *of_spread,
        *(_noted(sentence, cells) for sentence, cells in where.items()),
    ]
    return Grid(title, [*others, *map(_text, levels)], rows, marked, len(others), notes)


def _note(note: str, spread: bool) -> str:
    """Return the note of a cell; of the spread over peers only where the table has it."""
    return note if spread else note.replace(NO_PEERS, "").strip()


def _noted(sentence: str, cells: list[str]) -> str:
    """Return a sentence and the cells that it is about."""
    named = "; ".join(cells) if len(cells) <= NAMED else f"{len(cells)} cells of the table"
    return f"{named}: {sentence}" if named else sentence


def cell_text(entry: Any, spread: bool = False) -> str:
    """Return a mean and half of its interval, and if asked the spread over peers: 0.123 ± 0.004 (0.010)."""
    if not entry["seeds"]:
        return NOTHING
    text = figure(entry["mean"])
    if entry["seeds"] > 1:
        text += f" ± {figure((entry['high'] - entry['low']) / 2)}"
    over_peers = entry.get(SPREAD, math.nan) if spread else math.nan
    return f"{text} ({figure(over_peers)})" if math.isfinite(over_peers) else text


def figure(value: float) -> str:
    """Return a number with as many digits as a table has room for."""
    return f"{value:.3f}" if abs(value) < 100 else f"{value:,.0f}"


def _entry(summary: pd.DataFrame, settings: dict[str, Any]) -> Any:
    """Return the row of these settings; None: there is none."""
    selected = summary
    for name, value in settings.items():
        selected = selected[selected[name] == value]
    return selected.iloc[0] if len(selected) else None


def _text(value: Any) -> str:
    return printable(f"{value:g}" if isinstance(value, float) else str(value))


# --- formats


def as_markdown(grid: Grid) -> str:
    """Return the table in Markdown, the best in bold."""
    rows = [
        [f"**{_cell(text)}**" if mark else _cell(text) for text, mark in zip(texts, marks, strict=True)]
        for texts, marks in zip(grid.rows, grid.marked, strict=True)
    ]
    parts = [f"### {grid.title}", "", *pipes([_cell(name) for name in grid.header], rows), ""]
    return "\n".join([*parts, *(f"{note}\n" for note in grid.notes)])


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


def as_latex(grid: Grid, caption: str | None = None, label: str | None = None) -> str:
    """Return the table in LaTeX, for the package booktabs; the best is bold, and the notes are the caption.

    caption  another caption, in LaTeX; the notes are comments then
    label    what \\ref names
    """
    notes = [" ".join(note.split()) for note in grid.notes]
    captioned = escaped(f"{grid.title}. {' '.join(notes)}") if caption is None else caption
    columns = "l" * grid.first + "r" * (len(grid.header) - grid.first)
    body = [
        " & ".join(
            rf"\textbf{{{escaped(text)}}}" if mark else escaped(text) for text, mark in zip(*row, strict=True)
        )
        for row in zip(grid.rows, grid.marked, strict=True)
    ]
    text_lines = [
        "% needs \\usepackage{booktabs}",
        *([] if caption is None else [f"% {printable(note)}" for note in notes]),
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{captioned}}}",
        *([] if label is None else [rf"\label{{{label}}}"]),
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        " & ".join(map(escaped, grid.header)) + r" \\",
        r"\midrule",
        *(row + r" \\" for row in body),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(text_lines) + "\n"


def as_html(grid: Grid) -> str:
    """Return the table for a notebook."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in grid.header)
    rows = []
    for texts, marks in zip(grid.rows, grid.marked, strict=True):
        cells = (
            f"<td><b>{html.escape(text)}</b></td>" if mark else f"<td>{html.escape(text)}</td>"
            for text, mark in zip(texts, marks, strict=True)
        )
        rows.append(f"<tr>{''.join(cells)}</tr>")
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in grid.notes)
    return (
        f"<p><b>{html.escape(grid.title)}</b></p><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>{notes}"
    )
