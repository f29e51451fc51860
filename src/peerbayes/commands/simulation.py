"""`peerbayes demo` and `peerbayes simulate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from peerbayes import config
from peerbayes.commands.shared import console, explained, known_format, print_table, progress_bar
from peerbayes.runs import Run
from peerbayes.simulate import simulate as run_simulation


def demo(
    out: Annotated[Path, typer.Option(help="Where to keep the runs.")] = Path("peerbayes-demo"),
    nodes: Annotated[int, typer.Option(help="How many peers.")] = 50,
    rounds: Annotated[int, typer.Option(help="How many rounds of messages.")] = 64,
    seed: Annotated[int, typer.Option(help="Seed of all randomness.")] = 0,
    form: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
) -> None:
    """50 peers, one class of handwritten digits each, on a random tree: watch the network learn."""
    with explained():
        known_format(form)
        X, y = config.load_data({"name": "digits"})
        told: dict[str, dict[str, float]] = {}
        for strategy in ("local", "crc", "exact"):
            settings: dict[str, Any] = {
                "nodes": nodes,
                "rows_per_node": 1000 // nodes,
                "partition": "drift-y",
                "strategy": strategy,
                "rounds": rounds,
                "seed": seed,
                "evaluate_every": 8,
            }
            run = _run(X, y, settings, f"{strategy:<6}", quiet=form == "json")
            run.save(out / strategy)
            told[strategy] = run.summary()
    if form == "json":
        print(json.dumps(told, indent=2))
        return
    console.print(
        f"\n{nodes} peers x {1000 // nodes} handwritten digits, one digit per peer, a random tree, "
        f"{rounds} rounds.\nTest error on the {1797 - nodes * (1000 // nodes)} other digits:\n"
    )
    rows = [
        ("each peer alone", *_error(told["local"]), "what one digit can teach"),
        ("together, crc", *_error(told["crc"]), "the paper's method"),
        ("together, exact", *_error(told["exact"]), "without its bias"),
        ("rows pooled, ML", told["exact"]["test_ml"], "", "maximum likelihood"),
        ("rows pooled, RC", told["exact"]["test_rc"], "", "calibration: the aim"),
    ]
    print_table(("", "test error", "spread over peers", ""), rows)
    sent = told["exact"]["bytes_per_peer"] / 1e6
    console.print(f"\nThe runs are in {out}/. No row left its peer: each sent {sent:.1f} MB of statistics.")


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
        run = _run(*configuration.load(), configuration.settings, "rounds", quiet=form == "json")
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


def _run(X: Any, y: Any, settings: dict[str, Any], what: str, quiet: bool) -> Run:
    """Simulate with a progress bar on a terminal, and in silence elsewhere."""
    if quiet:
        return run_simulation(X, y, **settings)
    with progress_bar() as bar:
        task = bar.add_task(what, total=settings.get("rounds", 64))
        return run_simulation(X, y, **settings, progress=lambda done, _: bar.update(task, completed=done))


def _error(told: dict[str, float]) -> tuple[float, float]:
    return told["test_error"], told["test_std"]
