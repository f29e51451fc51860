"""`peerbayes datasets`: list, download and import. Exit codes: 0 success, 1 failure, 2 invalid request."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import DownloadColumn, TransferSpeedColumn

from peerbayes.cli import Format, argument, option, print_table, progress_bar
from peerbayes.data.datasets import fetch as fetch_entry
from peerbayes.data.datasets import take, where
from peerbayes.data.datasets.entries import ENTRIES, Entry, find
from peerbayes.data.datasets.storage import Places, places
from peerbayes.errors import DatasetError

app = typer.Typer(
    help="List, download and import the datasets of the paper.", no_args_is_help=True, add_completion=False
)


@app.command("list")
def list_entries(form: Format = "table") -> None:
    """List all datasets and where each would be loaded from."""
    folders = places()
    rows = [_described(entry, folders) for entry in ENTRIES.values()]
    if form == "json":
        print(json.dumps(rows, indent=2))
        return
    texts = [[f"{cell:,}" if isinstance(cell, int) else cell for cell in row.values()] for row in rows]
    print_table(list(rows[0]), texts)


@app.command()
def fetch(
    names: Annotated[list[str], argument("Names of datasets, as shown by `list`.", metavar="NAME...")],
    again: Annotated[bool, option("Download again what is already in the cache.")] = False,
) -> None:
    """Download datasets to the cache."""
    failed, folders = False, places()
    entries = [find(name) for name in names]
    for entry in entries:
        try:
            print(f"{entry.name}: {_fetched(entry, folders, again)}")
        except (DatasetError, OSError) as error:
            failed = True
            print(f"peerbayes: {error}", file=sys.stderr)
    if failed:
        sys.exit(1)


@app.command("import")
def import_file(
    name: Annotated[str, argument("Name of a dataset, as shown by `list`.")],
    file: Annotated[Path, argument("A .csv, .parquet or .npz file, or the publisher's original file.")],
    label: Annotated[str | None, option("The label column, if its name differs from the dataset's.")] = None,
) -> None:
    """Check your own copy of a dataset, and store it in the cache."""
    entry, folders = find(name), places()
    if not file.is_file():
        raise ValueError(f"{file} is not a file")
    frame = take(entry, folders, file, label)
    print(f"{entry.name}: {len(frame):,} rows and {len(frame.columns) - 1} columns are in {folders.cache}")


def _described(entry: Entry, folders: Places) -> dict[str, Any]:
    return {
        "name": entry.name,
        "rows": entry.expected.rows,
        "columns": len(entry.expected.columns),
        "classes": entry.expected.classes,
        "licence": entry.licence,
        "from": {"import": "import only"}.get(source := where(entry, folders), source),
    }


def _fetched(entry: Entry, folders: Places, again: bool) -> str:
    """Download the dataset if needed, with a progress bar on a terminal; return what was done."""
    source = where(entry, folders)
    if source == "scikit-learn":
        return "comes with scikit-learn"
    if source in ("folder", "cache") and not (again and entry.origin is not None):
        return f"is in {folders.folder if source == 'folder' else folders.cache}"
    with progress_bar(DownloadColumn(), TransferSpeedColumn(), on=Console(stderr=True)) as bar:
        task = bar.add_task(entry.name, total=None)
        frame = fetch_entry(entry, folders, lambda done, total: bar.update(task, completed=done, total=total))
    return f"{len(frame):,} rows are in {folders.cache}"
