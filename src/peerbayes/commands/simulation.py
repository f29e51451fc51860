"""`peerbayes simulate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from peerbayes import config
from peerbayes.commands.shared import console, explained, known_format, print_table, progress_bar
from peerbayes.runs import Run
from peerbayes.simulate import simulate as run_simulation


def simulate(
    file: Annotated[Path, typer.Argument(help="A TOML file: [data] and [simulation].")],
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE, instead of the file's.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Keep the run in this folder.")] = None,
    form: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
) -> None:
    """Simulate what a TOML file describes."""
    with explained():
        known_format(form)
        configuration = config.read(file, tuple(changes or ()))
        run = run_with_bar(*configuration.load(), configuration.settings, "rounds", quiet=form == "json")
        if out is not None:
            run.save(out)
    if form == "json":
        print(json.dumps({"configuration": run.configuration, "summary": run.summary()}, indent=2))
        return
    told = run.summary()
    rows = [
        (
            f"peers, {run.configuration['strategy']}",
            told["test_error"],
            told["test_std"],
            told["train_error"],
        ),
        ("RC on the pooled rows", told["test_rc"], "", told["train_rc"]),
        ("ML on the pooled rows", told["test_ml"], "", told["train_ml"]),
    ]
    print_table(("", "test error", "spread over peers", "training error"), rows)
    total = sum(run.seconds.values())
    shares = ", ".join(f"{what} {seconds / total:.0%}" for what, seconds in run.seconds.items())
    console.print(f"\n{total:.1f} s: {shares}")


def run_with_bar(X: Any, y: Any, settings: dict[str, Any], what: str, quiet: bool) -> Run:
    """Simulate with a progress bar on a terminal, and in silence elsewhere."""
    if quiet:
        return run_simulation(X, y, **settings)
    with progress_bar() as bar:
        task = bar.add_task(what, total=settings.get("rounds", 64))
        return run_simulation(X, y, **settings, progress=lambda done, _: bar.update(task, completed=done))
