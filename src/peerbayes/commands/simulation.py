"""`peerbayes simulate`."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peerbayes import config
from peerbayes.commands.shared import (
    console,
    explained,
    known_format,
    plain_warnings,
    print_table,
    progress_bar,
)

if TYPE_CHECKING:
    from peerbayes.runs import Run


def simulate(
    file: Annotated[Path, typer.Argument(help="A TOML file: [data] and [simulation].")],
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE, instead of the file's.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Keep the run in this folder.")] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="A file to go on from when it was killed; gone when it is done.")
    ] = None,
    form: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
    watch: Annotated[bool, typer.Option("--watch", help="Show it in a browser as it goes on.")] = False,
    watch_address: Annotated[
        str | None, typer.Option(help="[HOST:]PORT of this machine for --watch; 127.0.0.1:8765 or the next.")
    ] = None,
    stay: Annotated[
        bool, typer.Option("--stay", help="Show it until Ctrl-C, also where there is no terminal.")
    ] = False,
) -> None:
    """Simulate what a TOML file describes."""
    with explained(), plain_warnings():
        known_format(form)
        configuration = config.read(file, tuple(changes or ()))
        with contextlib.ExitStack() as beside:
            watched = watch or watch_address is not None or stay
            folder = out
            if watched:
                folder = beside.enter_context(shown(out, file.stem, watch_address))
            run = run_with_bar(
                *configuration.load(), {**configuration.settings, "checkpoint": checkpoint}, "rounds",
                quiet=form == "json", live=folder,
            )  # fmt: skip
            if folder is not None:
                run.save(folder)
            tell(run, form)
            if watched and (stay or sys.stdout.isatty()):
                until_interrupted()


@contextlib.contextmanager
def shown(out: Path | None, name: str, address: str | None) -> Iterator[Path]:
    """A folder with a dashboard of it, as long as this lasts: the run's, or one that goes again."""
    from peerbayes.web.launch import launch

    with contextlib.ExitStack() as beside:
        folder = out or Path(beside.enter_context(tempfile.TemporaryDirectory(prefix="peerbayes-"))) / name
        launched = beside.enter_context(launch(folder, address))
        print(f"Watch it at {launched.url}", file=sys.stderr, flush=True)
        yield folder


def until_interrupted() -> None:
    """Wait for Ctrl-C."""
    print("The dashboard stays until Ctrl-C.", file=sys.stderr, flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()


def tell(run: Run, form: str) -> None:
    """The outcome, as a table or as JSON."""
    from peerbayes.runs import as_json

    if form == "json":
        told = {"configuration": run.configuration, "summary": as_json(run.summary())}
        print(json.dumps(told, indent=2, allow_nan=False), flush=True)
        return
    summary = run.summary()
    rows = [
        (
            f"peers, {run.configuration['strategy']}",
            summary["test_error"],
            summary["test_std"],
            summary["train_error"],
        ),
        ("RC on the pooled rows", summary["test_rc"], "", summary["train_rc"]),
        ("ML on the pooled rows", summary["test_ml"], "", summary["train_ml"]),
    ]
    print_table(("", "test error", "spread over peers", "training error"), rows)
    if "epsilon" in summary:
        spent = run.configuration["privacy"]
        console.print(f"\nspent by each peer: epsilon {summary['epsilon']:.4g}, delta {spent['delta']:.3g}")
    if run.rejected:
        console.print(
            f"\n{run.attackers.size} peers lied; errors are of the others and their rows. "
            f"{sum(run.rejected.values())} messages were refused"
        )
    total = sum(run.seconds.values())
    shares = ", ".join(f"{what} {seconds / total:.0%}" for what, seconds in run.seconds.items())
    console.print(f"\n{total:.1f} s: {shares}")


def run_with_bar(
    X: Any, y: Any, settings: dict[str, Any], what: str, quiet: bool, live: Path | None = None
) -> Run:
    """Simulate with a progress bar on a terminal, and in silence elsewhere."""
    from peerbayes.simulate import simulate as run_simulation

    if quiet:
        return run_simulation(X, y, **settings, live=live)
    with progress_bar() as bar:
        task = bar.add_task(what, total=settings.get("rounds", 64))
        return run_simulation(
            X, y, **settings, live=live, progress=lambda done, _: bar.update(task, completed=done)
        )
