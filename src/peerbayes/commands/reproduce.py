"""`peerbayes reproduce`: the paper's tables, computed and set beside what was printed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table as Grid

from peerbayes.commands.shared import console, explained, known_format
from peerbayes.datasets.catalogue import ENTRIES, PAPER
from peerbayes.datasets.registry import find
from peerbayes.experiments import agreement, formats, printed, tables
from peerbayes.experiments import document as pages
from peerbayes.experiments.engines import engine_of
from peerbayes.experiments.prepared import FILES, read_as
from peerbayes.experiments.store import Store
from peerbayes.experiments.sweep import Sweep
from peerbayes.strategies import STRATEGIES
from peerbayes.versions import code_version

KNOWN_STRATEGIES = (*STRATEGIES, "relay", "auto")


def reproduce(
    asked: Annotated[
        list[str], typer.Argument(metavar="TABLE...", help="Numbers of tables (2 to 12), distance, or all.")
    ],
    datasets: Annotated[
        str,
        typer.Option(
            help="Names with commas between them, or files whose last column is the label; after a name, :text reads "
            "all text as discrete, :discrete all columns, and :gaps takes a gap in text as a value."
        ),
    ] = "",
    columns: Annotated[str, typer.Option(help="Columns with commas between them; all by default.")] = "",
    strategies: Annotated[str, typer.Option(help="Strategies with commas between them.")] = "crc,exact",
    seeds: Annotated[int, typer.Option(help="Repetitions: seeds 0, 1, …")] = 5,
    first_seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    start: Annotated[
        str, typer.Option(help="Where peers start: uniform (the paper's), marginal or ml.")
    ] = "uniform",
    engine: Annotated[str, typer.Option(help="local: processes here; ray: a cluster.")] = "local",
    address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster to join; auto: the one this machine is in.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes; all processors by default.")] = None,
    store: Annotated[Path, typer.Option(help="Where results are kept.")] = Path("peerbayes-results.sqlite"),
    resume: Annotated[
        bool, typer.Option(help="Use what the store holds; --no-resume only shows that.")
    ] = True,
    export: Annotated[
        Path | None, typer.Option(help="Also write all results to a .csv or .parquet file.")
    ] = None,
    document: Annotated[
        Path | None,
        typer.Option(help="Also write reproduction.md, strategies.md and results.parquet to this folder."),
    ] = None,
    form: Annotated[str, typer.Option("--format", help="table, markdown, latex, csv or json.")] = "table",
) -> None:
    """Compute the paper's tables; what the store holds is not computed again."""
    with explained():
        known_format(form, formats.FORMATS)
        chosen = tables.numbers() if "all" in asked else tuple(dict.fromkeys(asked))
        found = tuple(tables.table(number) for number in chosen if number != "distance")
        sweep = Sweep(
            found,
            tuple(_named(name) for name in _words(datasets)) or PAPER,
            _known("strategy", _words(strategies), KNOWN_STRATEGIES),
            tuple(range(first_seed, first_seed + seeds)),
            _known("column", _words(columns), tuple(c for t in found for c in t.columns)) or None,
            start,
        )
        if seeds < 1:
            raise ValueError(f"--seeds is {seeds}; expected 1 or more")
        kept = Store(store)
        if found and resume:
            _compute(sweep, kept, engine, workers, address)
            if document is not None:
                _compute(agreement.evidence(sweep), kept, engine, workers, address)
        records = sweep.records(kept)
        if "distance" in chosen and form in ("json", "csv"):
            records += tables.distances().records()
        if export is not None:
            print(f"{kept.export(export):,} results are in {export}", file=sys.stderr)
        if document is not None:
            _write(sweep, kept, document, " ".join(asked))
    _show(sweep, records, kept, form)
    if "distance" in chosen and form not in ("json", "csv"):
        _show_distances()


def _compute(sweep: Sweep, store: Store, engine: str, workers: int | None, address: str | None) -> None:
    """Compute what is missing, with a bar on a terminal and a line for every tenth elsewhere."""
    missing = len(sweep.missing(store))
    if not missing:
        return
    print(f"{missing:,} of {len(sweep.cells()):,} cells are to be computed", file=sys.stderr)
    bar = Progress(
        TextColumn("cells"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
        console=console, disable=not sys.stderr.isatty(),
    )  # fmt: skip
    with bar:
        task = bar.add_task("cells", total=missing)

        def told(done: int, of: int) -> None:
            bar.update(task, completed=done)
            if bar.disable and done * 10 // of > (done - 1) * 10 // of:
                print(f"{done:,} of {of:,} cells", file=sys.stderr, flush=True)

        try:
            refused = sweep.compute(store, engine_of(engine, workers, address), told)
        except KeyboardInterrupt:
            print("stopped; the same command goes on from here", file=sys.stderr)
            sys.exit(130)
    for reason in sorted(refused):
        print(f"left out: {reason}", file=sys.stderr)


def _write(sweep: Sweep, store: Store, folder: Path, words: str) -> None:
    """The pages, and all results behind them."""
    told = f"{words} --seeds {len(sweep.seeds)} --strategies {','.join(sweep.strategies)}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "reproduction.md").write_text(pages.reproduction(sweep, store, told), encoding="utf-8")
    beside = pages.strategies(sweep, store, ("auto", *STRATEGIES))
    if beside is not None:
        (folder / "strategies.md").write_text(beside, encoding="utf-8")
    count = store.export(folder / "results.parquet")
    if codes := pages.uncommitted(store.codes(cell.key for cell in sweep.cells())):
        print(
            f"do not publish these pages: some results were computed by {', '.join(codes)}, which no commit holds. "
            "Commit first, and compute them again in a new store",
            file=sys.stderr,
        )
    print(f"the pages and {count:,} results are in {folder}", file=sys.stderr)


def _show(sweep: Sweep, records: list[tables.Record], store: Store, form: str) -> None:
    if form == "json":
        print(formats.as_json(records))
        return
    if form == "csv":
        print(formats.as_csv(records), end="")
        return
    for table in sweep.tables:
        if form == "markdown":
            print(formats.as_markdown(table, records, sweep.strategies))
        elif form == "latex":
            print(formats.as_latex(table, records, sweep.strategies))
        else:
            header, rows = formats.grid(table, records, sweep.strategies)
            grid = Grid(
                *header,
                title=f"Table {table.number.lstrip('0')}. {table.title}",
                title_justify="left",
                box=None,
            )
            for row in rows:
                grid.add_row(*(formats.plain(cell) for cell in row))
            console.print(grid)
            console.print()
    header, rows = formats.counts(records, sweep.strategies)
    if rows and form == "markdown":
        print(formats.counts_markdown(records, sweep.strategies))
    elif rows and form == "table":
        grid = Grid(*header, title="Cells that converge: gap below 0.01", title_justify="left", box=None)
        for row in rows:
            grid.add_row(*row)
        console.print(grid)
    if form != "latex":
        codes = ", ".join(sorted(store.codes(cell.key for cell in sweep.cells()))) or code_version()
        beside = (
            ""
            if printed.folder()
            else f" The paper's numbers are not shown: {printed.VARIABLE} names no folder."
        )
        print(f"\nSeeds {sweep.seeds[0]} to {sweep.seeds[-1]}, computed by peerbayes {codes}.{beside}")


def _show_distances() -> None:
    found = tables.distances()
    print(f"\n{found.title}\n")
    grid = Grid("peers", *(f"≤ {distance}" for distance in found.distances), box=None)
    for size, line in zip(found.nodes, found.shares, strict=True):
        grid.add_row(str(size), *(f"{share:.3f}" for share in line))
    console.print(grid)


def _named(dataset: str) -> str:
    """A dataset by the name that the paper has for it, a file as it is; with its reading."""
    name, reading = read_as(dataset)
    if Path(name).suffix not in FILES:
        name = find(name, ENTRIES).name
    return f"{name}:{reading}" if reading else name


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _known(what: str, given: tuple[str, ...], known: tuple[str, ...]) -> tuple[str, ...]:
    for name in given:
        if name not in known:
            raise ValueError(f"{name!r} is no {what}; expected one of {', '.join(dict.fromkeys(known))}")
    return given
