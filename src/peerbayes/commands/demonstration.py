"""`peerbayes demo`: a network that learns, simulated or as real processes on this machine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from peerbayes import config
from peerbayes.commands.shared import console, explained, known_format, print_table, progress_bar
from peerbayes.commands.simulation import run_with_bar
from peerbayes.peers.errors import parts_needed

if TYPE_CHECKING:
    from peerbayes.runs import Run

TEST_ROWS = 797  # of the 1,797 digits; peers share the others


def demo(
    out: Annotated[Path, typer.Option(help="Where to keep the runs.")] = Path("peerbayes-demo"),
    nodes: Annotated[int, typer.Option(help="How many peers.")] = 50,
    rounds: Annotated[int, typer.Option(help="How many rounds of messages.")] = 64,
    seed: Annotated[int, typer.Option(help="Seed of all randomness.")] = 0,
    peers: Annotated[
        int | None, typer.Option(help="Not a simulation: so many real processes with files of their own.")
    ] = None,
    form: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
) -> None:
    """50 peers, one class of handwritten digits each, on a random tree: watch the network learn."""
    if peers is not None:
        real_peers(out, peers, rounds, seed, form)
        return
    with explained():
        known_format(form)
        X, y = config.load_data({"name": "digits"})
        told: dict[str, dict[str, float]] = {}
        runs: list[Run] = []
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
            run = run_with_bar(X, y, settings, f"{strategy:<6}", quiet=form == "json", live=out / strategy)
            run.save(out / strategy)
            told[strategy] = run.summary()
            runs.append(run)
        page = _report(out, runs)
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
    console.print(page, soft_wrap=True, markup=False, highlight=False)


def _report(out: Path, runs: list[Run]) -> str:
    """One page of all runs, and where it is; or how to get one."""
    from peerbayes import report
    from peerbayes.report.errors import PlotlyMissing

    try:
        return f"See them side by side: {report.write(out / 'report.html', runs)}"
    except PlotlyMissing:
        return f"To see them: pip install 'peerbayes[report]', then peerbayes report {out}"


def _error(told: dict[str, float]) -> tuple[float, float]:
    return told["test_error"], told["test_std"]


def real_peers(out: Path, peers: int, rounds: int, seed: int, form: str) -> None:
    """So many processes with mutual TLS between them, each with its own file; and the simulator beside them."""
    with explained(), parts_needed():
        from peerbayes import topologies
        from peerbayes.estimators import load
        from peerbayes.peers.loopback import Loopback
        from peerbayes.peers.terms import Terms
        from peerbayes.simulate import simulate

        known_format(form)
        if peers < 2:
            raise ValueError(f"--peers is {peers}; expected 2 or more")
        X, y = config.load_data({"name": "digits"})
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(y))
        parts, test = np.array_split(order[TEST_ROWS:], peers), order[:TEST_ROWS]
        links = topologies.adjacency("tree", peers, rng)
        pairs = [(int(a), int(b)) for a, b in zip(*links.nonzero(), strict=True) if a < b]
        tables = [X.iloc[part].assign(digit=y[part]) for part in parts]
        terms = Terms("demo", "digit", rounds=rounds, strategy="exact")
        folder = out / f"{peers}-peers"
        shutil.rmtree(folder, ignore_errors=True)
        network = Loopback.create(folder, terms, tables, pairs)
        try:
            for name in network.homes:
                network.start(name)
            _watch(network, rounds, quiet=form == "json")
        finally:
            network.stop()
        models = {name: load(home.model_path) for name, home in network.homes.items()}
        beside = simulate(
            X, y, nodes=peers, partition=parts, topology=links, strategy="exact", rounds=rounds, references=True,
            test=(X.iloc[test], y[test]), evaluate_every=0,
        )  # fmt: skip
        apart = [
            np.abs(_in_order(model, beside) - beside.statistics(place).values).max()
            for place, model in enumerate(models.values())
        ]
        errors = {name: 1.0 - float(model.score(X.iloc[test], y[test])) for name, model in models.items()}
    told = {
        "peers": peers,
        "rounds": rounds,
        "largest_difference": float(max(apart)),
        "errors": errors,
        "simulated_error": beside.summary()["test_error"],
        "rc_error": beside.summary()["test_rc"],
    }
    if form == "json":
        print(json.dumps(told, indent=2))
        return
    console.print(
        f"\n{peers} processes on this machine, {1000 // peers} digits each in a file of its own, mutual TLS."
    )
    console.print(f"Test error on the {TEST_ROWS} other digits:\n")
    rows: list[tuple[Any, ...]] = [(name, error, "") for name, error in errors.items()]
    rows.append(("rows pooled, RC", told["rc_error"], "the aim"))
    print_table(("", "test error", ""), rows)
    console.print(
        f"\nLargest difference from the simulator with the same graph and data: {told['largest_difference']:.1e}.\n"
        f"Each peer's folder, with its model, its log and the audit log of all that left it, is in {folder}/."
    )


def _in_order(model: Any, run: Any) -> np.ndarray:
    """A peer's statistics in the simulator's units and order of columns."""
    return np.asarray(model.statistics_.expressed(run.schema).values)


def _watch(network: Any, rounds: int, quiet: bool) -> None:
    """Wait for the processes, with a bar for each peer on a terminal."""
    import contextlib

    from peerbayes.peers.store import Store

    with contextlib.nullcontext() if quiet else progress_bar() as bar:
        tasks = {} if bar is None else {name: bar.add_task(name, total=rounds) for name in network.homes}

        def look() -> None:
            for name, task in tasks.items():
                path = network.homes[name].state_path
                if bar is None or not path.exists():
                    continue
                with contextlib.suppress(Exception), contextlib.closing(Store(path, readonly=True)) as store:
                    history = store.history()
                    bar.update(task, completed=history[-1]["round"] if history else 0)

        network.wait(look)
        look()
