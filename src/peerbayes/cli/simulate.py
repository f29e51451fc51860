"""`peerbayes simulate`."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peerbayes.cli import (
    Overwrite,
    check_format,
    console,
    exit_on_error,
    plain_warnings,
    print_table,
    print_text,
    progress_bar,
)
from peerbayes.learning.shared_settings import ROUNDS
from peerbayes.simulation import config
from peerbayes.simulation.scores import ERROR, PEERS, TITLES, title_of

if TYPE_CHECKING:
    from peerbayes.simulation.result import Run


# Learners that have rows of their own in the table of errors.
IN_ROWS = (PEERS, "rc", "rc_end", "ml")


def simulate(
    file: Annotated[Path, typer.Argument(help="A TOML file with [data] and [simulation].")],
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE: override a setting of the file.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Save the run in this folder.")] = None,
    with_data: Annotated[
        bool,
        typer.Option("--with-data", help="Save the rows in this folder too; whoever gets it, gets them."),
    ] = False,
    overwrite: Overwrite = False,
    checkpoint: Annotated[
        Path | None, typer.Option(help="A file to resume from after an interruption; removed at the end.")
    ] = None,
    form: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
    watch: Annotated[
        bool, typer.Option("--watch", help="Show the simulation in a browser while it runs.")
    ] = False,
    watch_address: Annotated[
        str | None,
        typer.Option(
            help="[HOST:]PORT of --watch on this machine; default 127.0.0.1:8765 or the next free port."
        ),
    ] = None,
    stay: Annotated[
        bool, typer.Option("--stay", help="Keep the dashboard until Ctrl-C, even without a terminal.")
    ] = False,
) -> None:
    """Run the simulation that a TOML file describes."""
    with exit_on_error(), plain_warnings():
        check_format(form)
        from peerbayes.simulation.repetition import from_source  # here: it loads what computes
        from peerbayes.simulation.result import refuse_existing

        configuration = config.read(file, tuple(changes or ()))
        if with_data and out is None:
            raise ValueError("--with-data saves rows beside the run; expected --out FOLDER too")
        if out is not None:
            refuse_existing(out, overwrite)
        with contextlib.ExitStack() as resources:
            watched = watch or watch_address is not None or stay
            folder = out
            if watched:
                folder = resources.enter_context(dashboard_of(out, file.stem, watch_address))
            X, y = configuration.load()
            settings = {**configuration.settings, **configuration.load_test(X), "checkpoint": checkpoint}
            run = run_with_bar(X, y, settings, "rounds", quiet=form == "json", live=folder)
            run = from_source(run, configuration.data)
            if folder is not None:
                run.save(folder, data=with_data, overwrite=overwrite)
            print_summary(run, form)
            if out is not None and form != "json":
                print_text(
                    f"\nSaved in {out}, with the digest {run.digest}; `peerbayes rerun {out}` makes it again."
                )
            if watched and (stay or sys.stdout.isatty()):
                wait_for_interrupt()


@contextlib.contextmanager
def dashboard_of(out: Path | None, name: str, address: str | None) -> Iterator[Path]:
    """Open a dashboard of the run's folder, or of a temporary one, and yield the folder."""
    from peerbayes.report.dashboard.access import launch

    with contextlib.ExitStack() as resources:
        folder = out or Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="peerbayes-"))) / name
        launched = resources.enter_context(launch(folder, address))
        print(f"Watch it at {launched.url}", file=sys.stderr, flush=True)
        yield folder


def wait_for_interrupt() -> None:
    """Wait for Ctrl-C."""
    print("The dashboard stays open until Ctrl-C.", file=sys.stderr, flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()


def print_summary(run: Run, form: str) -> None:
    """Print the results, as a table or as JSON."""
    from peerbayes.simulation.result import as_json

    if form == "json":
        content: dict[str, Any] = {"configuration": run.configuration, "summary": as_json(run.summary())}
        if run.family_choice is not None:
            content["family_choice"] = run.family_choice.to_json()
        content |= {"scores": run.scored.records(), "missing": run.missing, "notes": run.notes}
        print(json.dumps(content, indent=2, allow_nan=False), flush=True)
        return
    summary = run.summary()
    rows: list[tuple[Any, ...]] = [
        (
            f"peers, {run.configuration['strategy']}",
            summary["test_error"],
            summary["test_std"],
            summary["train_error"],
        ),
        ("RC on the pooled rows", summary["test_rc"], "", summary["train_rc"]),
        ("RC on the pooled rows, to its end", summary["test_rc_end"], "", summary["train_rc_end"]),
        ("ML on the pooled rows", summary["test_ml"], "", summary["train_ml"]),
    ]
    further = [score for score in run.scored.rows if score.metric == ERROR and score.learner not in IN_ROWS]
    rows += [
        (title_of(score.learner), score.mean, "" if math.isnan(score.std) else score.std, "")
        for score in further
    ]
    print_table(("", "test error", "std over peers", "training error"), rows)
    print_metrics(run)
    if run.family_choice is not None:
        print_text(f"Family chosen, {run.family_choice.reason}.")
    if choice := run.made.get("choice"):
        print_text(f"Strategy chosen, {choice}.")
    if "epsilon" in summary:
        spent = run.configuration["privacy"]
        console.print(f"\nspent by each peer: epsilon {summary['epsilon']:.4g}, delta {spent['delta']:.3g}")
    if run.rejected:
        console.print(
            f"\n{run.attackers.size} peers were attackers; errors are those of the other peers on their rows. "
            f"{sum(run.rejected.values())} messages were rejected"
        )
    if run.vanished.size:
        console.print(
            f"\n{run.vanished.size} peers vanished for good; errors of peers are those of the others, RC and ML are of "
            "the rows of all"
        )
    total = sum(run.seconds.values())
    shares = ", ".join(f"{stage} {seconds / total:.0%}" for stage, seconds in run.seconds.items())
    console.print(f"\n{total:.1f} s: {shares}")


def print_metrics(run: Run) -> None:
    """Print the metrics of all learners beside the error, a line for each learner, and what there is to say of them."""
    names, learners = run.scored.table()
    rows = [(title_of(learner), *values[1:]) for learner, values in learners]
    if any(not math.isnan(value) for _, values in learners for value in values[1:]):
        tested = max(score.rows for score in run.scored.rows)
        print_text()
        print_table((f"{tested:,} test rows", *(TITLES.get(name, name) for name in names[1:])), rows)
    for note in run.notes:
        print_text(f"Note: {note}.")


def run_with_bar(
    X: Any, y: Any, settings: dict[str, Any], title: str, quiet: bool, live: Path | None = None
) -> Run:
    """Simulate, with a progress bar on a terminal."""
    from peerbayes.simulation.run import simulate as run_simulation

    if quiet:
        return run_simulation(X, y, **settings, live=live)
    with progress_bar() as bar:
        task = bar.add_task(title, total=settings.get("rounds", ROUNDS.default))
        return run_simulation(
            X, y, **settings, live=live, progress=lambda done, _: bar.update(task, completed=done)
        )
