"""`peerbayes reproduce`: compute the paper's tables and compare them with the printed ones."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from rich.progress import MofNCompleteColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from peerbayes.cli import Overwrite, argument, check_format, console, option, print_table, progress_bar, split
from peerbayes.data.datasets.entries import PAPER, find
from peerbayes.data.files import refuse_existing
from peerbayes.experiments import document as pages
from peerbayes.experiments import formats, paper_tables
from peerbayes.experiments.cells import FILES, read_as
from peerbayes.experiments.engines import engine_of
from peerbayes.experiments.results_store import Store
from peerbayes.experiments.sweep import Sweep
from peerbayes.learning import planning
from peerbayes.simulation.result import code_version


def reproduce(
    table_names: Annotated[
        list[str], argument("Table numbers (2 to 12), distance, or all.", metavar="TABLE...")
    ],
    datasets: Annotated[
        str,
        option(
            "Names, or files whose last column is the label, separated by commas. A suffix changes how columns are "
            "read: NAME:text (all text as discrete), NAME:discrete (all columns), NAME:gaps (missing text as a value)."
        ),
    ] = "",
    columns: Annotated[str, option("Columns, separated by commas; default: all.")] = "",
    strategies: Annotated[str, option("Strategies, separated by commas.")] = "crc,exact",
    seeds: Annotated[int, option("Number of repetitions: seeds 0, 1, …")] = 5,
    first_seed: Annotated[int, option("The first seed.")] = 0,
    start: Annotated[str, option("The peers' start: uniform (as in the paper), marginal or ml.")] = "uniform",
    engine: Annotated[str, option("local: processes on this machine; ray: a cluster.")] = "local",
    address: Annotated[
        str | None, option("Address of a Ray cluster; auto: the cluster of this machine.")
    ] = None,
    workers: Annotated[int | None, option("Number of processes; default: one per processor.")] = None,
    store: Annotated[Path, option("The database of results.")] = Path("peerbayes-results.sqlite"),
    resume: Annotated[
        bool, option("Compute what is missing in the store; --no-resume only shows its results.")
    ] = True,
    export: Annotated[Path | None, option("Also write all results to a .csv or .parquet file.")] = None,
    document: Annotated[
        Path | None, option("Also write reproduction.md, strategies.md and results.parquet to this folder.")
    ] = None,
    form: Annotated[str, option("table, markdown, latex, csv or json.", "--format")] = "table",
    overwrite: Overwrite = False,
) -> None:
    """Compute the paper's tables, reusing the results in the store."""
    check_format(form, formats.FORMATS)
    _refuse_existing(export, document, overwrite)
    chosen = paper_tables.numbers() if "all" in table_names else tuple(dict.fromkeys(table_names))
    chosen_tables = tuple(paper_tables.table(number) for number in chosen if number != "distance")
    sweep = Sweep(
        chosen_tables,
        tuple(_named(name) for name in split(datasets)) or PAPER,
        _checked("strategy", split(strategies), planning.names()),
        tuple(range(first_seed, first_seed + seeds)),
        _checked("column", split(columns), tuple(c for t in chosen_tables for c in t.columns)) or None,
        start,
    )
    if seeds < 1:
        raise ValueError(f"--seeds is {seeds}; expected 1 or more")
    results = Store(store)
    if chosen_tables and resume:
        _compute(sweep, results, engine, workers, address)
        if document is not None:
            _compute(pages.evidence(sweep), results, engine, workers, address)
    records = sweep.records(results)
    if "distance" in chosen and form in ("json", "csv"):
        records += paper_tables.distances().records()
    if export is not None:
        print(f"{results.export(export):,} results are in {export}", file=sys.stderr)
    if document is not None:
        _write(sweep, results, document, " ".join(table_names))
    _show(sweep, records, results, form)
    if "distance" in chosen and form not in ("json", "csv"):
        _show_distances()


def _refuse_existing(export: Path | None, document: Path | None, overwrite: bool) -> None:
    """Refuse to replace files of others; pages that this command wrote, and results beside them, are made again."""
    if export is not None:
        refuse_existing(export, overwrite)
    if document is None:
        return
    page = document / "reproduction.md"
    ours = page.is_file() and pages.WRITTEN in page.read_text(encoding="utf-8")
    for name in (page.name, "strategies.md", "results.parquet"):
        refuse_existing(document / name, overwrite or ours)


def _compute(sweep: Sweep, store: Store, engine: str, workers: int | None, address: str | None) -> None:
    """Compute what is missing, with a progress bar on a terminal, or a line per tenth of the work elsewhere."""
    missing = len(sweep.missing(store))
    if not missing:
        return
    print(f"{missing:,} of {len(sweep.cells()):,} cells to compute", file=sys.stderr)
    with progress_bar(MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task("cells", total=missing)

        def report_progress(done: int, total: int) -> None:
            bar.update(task, completed=done)
            if bar.disable and done * 10 // total > (done - 1) * 10 // total:
                print(f"{done:,} of {total:,} cells", file=sys.stderr, flush=True)

        try:
            refused = sweep.compute(store, engine_of(engine, workers, address), report_progress)
        except KeyboardInterrupt:
            print("stopped; run the same command to continue", file=sys.stderr)
            sys.exit(130)
    for reason in sorted(refused):
        print(f"skipped: {reason}", file=sys.stderr)


def _write(sweep: Sweep, store: Store, folder: Path, words: str) -> None:
    """Write the pages, and all results that they are based on."""
    arguments = f"{words} --seeds {len(sweep.seeds)} --strategies {','.join(sweep.strategies)}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "reproduction.md").write_text(pages.reproduction(sweep, store, arguments), encoding="utf-8")
    comparison = pages.strategies(sweep, store, planning.compared())
    if comparison is not None:
        (folder / "strategies.md").write_text(comparison, encoding="utf-8")
    count = store.export(folder / "results.parquet")
    if codes := pages.uncommitted(store.codes(cell.key for cell in sweep.cells())):
        print(
            f"do not publish these pages: some results were computed by {', '.join(codes)}, which is not committed. "
            "Commit first, and compute them again in a new store",
            file=sys.stderr,
        )
    print(f"the pages and {count:,} results are in {folder}", file=sys.stderr)


def _show(sweep: Sweep, records: list[paper_tables.Record], store: Store, form: str) -> None:
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
            texts = [[Text.from_markup(formats.plain(cell)) for cell in row] for row in rows]
            print_table(header, texts, f"Table {table.number.lstrip('0')}. {table.title}")
            console.print()
    header, rows = formats.counts(records, sweep.strategies)
    if rows and form == "markdown":
        print(formats.counts_markdown(records, sweep.strategies))
    elif rows and form == "table":
        print_table(header, rows, "Cells that converge: gap below 0.01")
    if form != "latex":
        codes = ", ".join(sorted(store.codes(cell.key for cell in sweep.cells()))) or code_version()
        print(f"\nSeeds {sweep.seeds[0]} to {sweep.seeds[-1]}, computed by peerbayes {codes}.", end="")
        missing = f" The paper's numbers are not shown: {paper_tables.VARIABLE} does not name a folder."
        print("" if paper_tables.folder() else missing)


def _show_distances() -> None:
    table = paper_tables.distances()
    print(f"\n{table.title}\n")
    rows = [(size, *shares) for size, shares in zip(table.peers, table.shares, strict=True)]
    print_table(("peers", *(f"≤ {distance}" for distance in table.distances)), rows)


def _named(dataset: str) -> str:
    """Return the paper's name of a dataset, or the path of a file, followed by how it is read."""
    name, reading = read_as(dataset)
    if Path(name).suffix not in FILES:
        name = find(name).name
    return f"{name}:{reading}" if reading else name


def _checked(kind: str, names: list[str], allowed: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in allowed:
            raise ValueError(f"{name!r} is not a {kind}; expected one of {', '.join(dict.fromkeys(allowed))}")
    return tuple(names)
