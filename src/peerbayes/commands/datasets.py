"""`peerbayes datasets`: what there is, downloads and imports. Exit codes: 0 done, 1 failed, 2 makes no sense."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from peerbayes.commands.shared import console, explained, known_format
from peerbayes.datasets.cache import Places, places
from peerbayes.datasets.catalogue import ENTRIES
from peerbayes.datasets.errors import DatasetError
from peerbayes.datasets.registry import Entry, find
from peerbayes.datasets.sources import fetch as fetch_entry
from peerbayes.datasets.sources import take, where

app = typer.Typer(
    help="The datasets of the paper: list, download, import.", no_args_is_help=True, add_completion=False
)


@app.command("list")
def list_entries(form: Annotated[str, typer.Option("--format", help="table or json.")] = "table") -> None:
    """Every dataset, and where it would come from."""
    with explained():
        known_format(form)
        held = places()
        rows = [_described(entry, held) for entry in ENTRIES.values()]
    if form == "json":
        print(json.dumps(rows, indent=2))
        return
    table = Table(*rows[0], box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(f"{cell:,}" if isinstance(cell, int) else cell for cell in row.values()))
    console.print(table)


@app.command()
def fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Datasets, as `list` names them.")],
    again: Annotated[bool, typer.Option(help="Download what is there already, too.")] = False,
) -> None:
    """Download datasets into the cache."""
    failed = False
    with explained():
        held = places()
        entries = [find(name, ENTRIES) for name in names]
    for entry in entries:
        try:
            print(f"{entry.name}: {_fetched(entry, held, again)}")
        except (DatasetError, OSError) as error:
            failed = True
            print(f"peerbayes: {error}", file=sys.stderr)
    if failed:
        sys.exit(1)


@app.command("import")
def import_file(
    name: Annotated[str, typer.Argument(help="A dataset, as `list` names it.")],
    file: Annotated[Path, typer.Argument(help="A .csv, a .parquet, an .npz, or the publisher's own file.")],
    label: Annotated[
        str | None, typer.Option(help="The label's column, where its name is not the dataset's.")
    ] = None,
) -> None:
    """Check a file of yours against a dataset, and keep it in the cache."""
    with explained():
        entry, held = find(name, ENTRIES), places()
        if not file.is_file():
            raise ValueError(f"{file} is no file")
        frame = take(entry, held, file, label)
        print(f"{entry.name}: {len(frame):,} rows and {len(frame.columns) - 1} columns are in {held.cache}")


def _described(entry: Entry, held: Places) -> dict[str, Any]:
    return {
        "name": entry.name,
        "rows": entry.expected.rows,
        "columns": len(entry.expected.columns),
        "classes": entry.expected.classes,
        "licence": entry.licence,
        "from": {"import": "import only"}.get(place := where(entry, held), place),
    }


def _fetched(entry: Entry, held: Places, again: bool) -> str:
    """Download where there is need to, with a bar on a terminal, and say what was done."""
    place = where(entry, held)
    if place == "scikit-learn":
        return "comes with scikit-learn"
    if place in ("folder", "cache") and not (again and entry.origin is not None):
        return f"is in {held.folder if place == 'folder' else held.cache}"
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=Console(stderr=True),
        disable=entry.origin is None or not sys.stderr.isatty(),
    )
    with bar:
        task = bar.add_task(entry.name, total=None)
        frame = fetch_entry(entry, held, lambda done, total: bar.update(task, completed=done, total=total))
    return f"{len(frame):,} rows are in {held.cache}"
