"""`peerbayes check`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from peerbayes.cli import Format, print_text
from peerbayes.data.files import as_json


def check(
    data: Annotated[str, typer.Argument(help="A .csv or .parquet file, or a database's URL.")],
    label: Annotated[
        str | None, typer.Option(help="The column to predict; left out, nothing is said of labels.")
    ] = None,
    test: Annotated[str | None, typer.Option(help="A file of test rows with the same columns.")] = None,
    kinds: Annotated[
        list[str] | None,
        typer.Option(
            help="The kind of all columns, or NAME=KIND of one (again for others); see `Schema.infer`."
        ),
    ] = None,
    query: Annotated[
        str | None, typer.Option(help="The SQL that gives the rows, where DATA is a URL.")
    ] = None,
    form: Format = "table",
) -> None:
    """Look a table over, and say by name what is wrong with it or may be.

    Examples from the rows are shown here, on your own terminal, and go nowhere. Ends with 3 where a finding is more
    than a note.
    """
    from peerbayes.data.doctor import check as check_table

    findings = check_table(data, label, test, kinds=_kinds(kinds or []), query=query)
    if form == "json":
        print(as_json(findings.to_json()), flush=True)
    else:
        print_text(repr(findings))
    if findings.alarming:
        sys.exit(3)


def _kinds(words: list[str]) -> str | dict[str, str]:
    """Return the rule for all columns, or the kind of each column named."""
    if len(words) == 1 and "=" not in words[0]:
        return words[0]
    pairs = [word.rpartition("=") for word in words]
    for (name, _, kind), word in zip(pairs, words, strict=True):
        if not name or not kind:
            raise ValueError(
                f"--kinds {word}: expected a kind for all columns once, or NAME=KIND for each of some"
            )
    return {name: kind for name, _, kind in pairs} or "auto"
