"""Records as tables for people and for programs: terminal, Markdown, LaTeX, CSV, JSON."""

from __future__ import annotations

import csv
import io
import json
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from peerbayes.experiments.paper_tables import CONVERGED, GAP_TABLES, Record, Table
from peerbayes.learning.planning import PAPER

FORMATS = ("table", "markdown", "latex", "csv", "json")
# What LaTeX reads as more than itself, and signs of ours that are no letters of its fonts.
TEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", "±": r"$\pm$", "–": "--", "…": r"\dots{}", "×": r"$\times$",
    "≤": r"$\le$",    "−": "$-$", "ε": r"$\varepsilon$", "δ": r"$\delta$", "σ": r"$\sigma$", "\u00a0": "~", "\n": " ",
}  # fmt: skip
# Letters beyond ASCII that its first fonts have: these, and those that are a letter with one of these accents.
LETTERS, ACCENTS = "ßøØæÆœŒłŁ§¡¿", "\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0327"
CLOSE = 0.05  # gaps below this have the paper's second mark


def as_json(records: Sequence[Record]) -> str:
    return json.dumps([asdict(record) for record in records], indent=2)


def as_csv(records: Sequence[Record]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(asdict(records[0])) if records else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(record) for record in records)
    return out.getvalue()


def grid(
    table: Table, records: Iterable[Record], strategies: Sequence[str]
) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of a table: a row per dataset, and per column the paper's number and each strategy's.

    In brackets is the gap to RC from the peers' start, where that is not the uniform one.
    """
    of_table = [record for record in records if record.table == table.number]
    by_cell = {(record.dataset, record.column, record.strategy): record for record in of_table}
    columns = [column for column in table.columns if any(record.column == column for record in of_table)]
    shown = ["rc"] if table.kind == "size" else list(strategies)
    header = ["dataset", *(f"{column} {who}" for column in columns for who in ("paper", *shown))]
    rows = []
    for dataset in dict.fromkeys(record.dataset for record in of_table):
        row = [dataset]
        for column in columns:
            of_cell = [by_cell.get((dataset, column, strategy)) for strategy in shown]
            row.append(_number(next((record.paper for record in of_cell if record is not None), None), 2))
            row += [_cell(record, table) for record in of_cell]
        rows.append(row)
    return header, rows


def marked(table: Table, column: str, value: float | None) -> str:
    """Return how the paper marks a gap: "**" below 0.01, "*" below 0.05."""
    if value is None or (
        table.number not in GAP_TABLES and not column.endswith("gap") and not column.startswith("gap")
    ):
        return ""
    return "**" if value < CONVERGED else "*" if value < CLOSE else ""


def as_markdown(table: Table, records: Iterable[Record], strategies: Sequence[str]) -> str:
    header, rows = grid(table, records, strategies)
    return "\n".join([f"### Table {table.number.lstrip('0')}. {table.title}", "", *pipes(header, rows), ""])


def as_latex(table: Table, records: Iterable[Record], strategies: Sequence[str]) -> str:
    header, rows = grid(table, records, strategies)
    text_lines = [
        r"\begin{table}",
        rf"\caption{{{escaped(table.title)}}}",
        rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}",
        r"\hline",
        " & ".join(escaped(name) for name in header) + r" \\",
        r"\hline",
        *(" & ".join(_latex(cell) for cell in row) + r" \\" for row in rows),
        r"\hline",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(text_lines)


def counts(records: Iterable[Record], strategies: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Count the cells below 0.01 of each gap table: as the paper printed them (at or below 0.01), and by strategy.

    The paper prints two digits; `crc` is also counted as it would have been printed.
    """
    header = [
        "table",
        "cells",
        "paper ≤ 0.01",
        *([f"{PAPER}, printed ≤ 0.01"] if PAPER in strategies else []),
    ]
    header += [f"{who} < 0.01" for who in strategies]
    header += [f"{who}, largest" for who in strategies]
    rows = []
    gap_records = [record for record in records if record.table in GAP_TABLES and record.gap is not None]
    for number in (*GAP_TABLES, "all"):
        of_table = [record for record in gap_records if number in (record.table, "all")]
        if not of_table:
            continue
        first = [record for record in of_table if record.strategy == strategies[0]]
        printed = [record.paper for record in first if record.paper is not None]
        row = [
            number.lstrip("0"),
            str(len(first)),
            str(sum(value <= CONVERGED for value in printed)) if printed else "–",
        ]
        gaps = {
            who: [r.gap for r in of_table if r.strategy == who and r.gap is not None] for who in strategies
        }
        row += [str(sum(round(gap, 2) <= CONVERGED for gap in gaps[PAPER]))] if PAPER in gaps else []
        row += [str(sum(gap < CONVERGED for gap in gaps[who])) for who in strategies]
        row += [_number(max(gaps[who], default=None), 3) for who in strategies]
        rows.append(row)
    return header, rows


def counts_markdown(records: Iterable[Record], strategies: Sequence[str]) -> str:
    return "\n".join([*pipes(*counts(list(records), strategies)), ""])


def _cell(record: Record | None, table: Table) -> str:
    if record is None or record.gap is None:
        return "–"
    digits = 0 if record.column.endswith("round") else 3
    text = _number(record.gap, digits)
    if record.stderr is not None:
        text += f" ± {_number(record.stderr, max(digits, 1))}"
    if record.same_start is not None:
        text += f" [{_number(record.same_start, digits)}]"
    mark = marked(table, record.column, record.gap)
    return f"{mark}{text}{mark}"


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def pipes(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    table_rows = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(cells) + " |" for cells in table_rows]


def _latex(cell: str) -> str:
    bold, gray = cell.startswith("**"), cell.startswith("*")
    text = escaped(cell.strip("*"))
    if bold:
        return rf"\textbf{{{text}}}"
    return rf"\textbf{{\textcolor{{gray}}{{{text}}}}}" if gray else text


def escaped(text: str) -> str:
    """Return a text as LaTeX shows it; a letter that its usual fonts lack becomes its number."""
    return "".join(TEX[letter] if letter in TEX else _letter(letter) for letter in text)


def _letter(letter: str) -> str:
    base, accents = unicodedata.normalize("NFD", letter)[0], unicodedata.normalize("NFD", letter)[1:]
    accented = base.isascii() and base.isalpha() and len(accents) == 1 and accents in ACCENTS
    return letter if letter.isascii() or letter in LETTERS or accented else f"[U+{ord(letter):04X}]"


def plain(cell: Any) -> str:
    """Return a marked cell for a terminal: the paper's marks as rich styles."""
    text = str(cell)
    if text.startswith("**"):
        return f"[bold]{text.strip('*')}[/bold]"
    return f"[dim bold]{text.strip('*')}[/dim bold]" if text.startswith("*") else text
