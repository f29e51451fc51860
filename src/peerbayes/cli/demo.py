"""`peerbayes demo`: a small network, simulated or as real processes on this machine."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from peerbayes.cli import Format, Overwrite, console, option, print_table, print_text, progress_bar
from peerbayes.cli.simulate import run_with_bar
from peerbayes.data.files import refuse_existing
from peerbayes.errors import parts_needed
from peerbayes.learning.family_choice import FamilyChoice
from peerbayes.learning.shared_settings import ROUNDS
from peerbayes.model.candidates import AUTO, CANDIDATES
from peerbayes.simulation import config

if TYPE_CHECKING:
    from peerbayes.simulation.result import Run

DIGITS = {"name": "digits"}

DEMO_FILE = "demo.txt"  # marks a folder of the demo
DEMO_TEXT = (
    "`peerbayes demo` made what is here, and replaces it when it runs again. Keep nothing of yours here.\n"
)

TEST_ROWS = 797  # of the 1,797 digits; peers share the others
TRAINING_ROWS = 1000


def demo(
    out: Annotated[Path, option("Folder for the runs.")] = Path("peerbayes-demo"),
    simulated_peers: Annotated[int, option("Number of simulated peers.")] = 50,
    rounds: Annotated[int, option("Number of rounds.")] = ROUNDS.default,
    seed: Annotated[int, option("Random seed.")] = 0,
    peers: Annotated[
        int | None, option("Run this many real processes, each with its own file, instead of a simulation.")
    ] = None,
    form: Format = "table",
    overwrite: Overwrite = False,
    nodes: Annotated[int | None, option("The old name of --simulated-peers.", hidden=True)] = None,
) -> None:
    """Simulate 50 peers on a random tree, each with one class of handwritten digits, and watch the network learn.

    Runs of an earlier demo in the folder are replaced; what others wrote there is not, without --overwrite.
    """
    if nodes is not None:
        raise ValueError(f"--nodes is called --simulated-peers now: write --simulated-peers {nodes}")
    if peers is not None:
        real_peers(out, peers, rounds, seed, form, overwrite)
        return
    if not 1 <= simulated_peers <= TRAINING_ROWS:
        raise ValueError(
            f"--simulated-peers is {simulated_peers}; expected 1 to {TRAINING_ROWS}, a digit for each"
        )
    strategies = ("auto", "crc", "local")
    _claim(out, (*strategies, "report.html"), overwrite)
    X, y = config.load_data(DIGITS)
    summaries: dict[str, dict[str, float]] = {}
    runs: list[Run] = []
    rows_per_peer = TRAINING_ROWS // simulated_peers
    from peerbayes.simulation.repetition import from_source

    family: dict[str, Any] = {"family": AUTO}
    for strategy in strategies:
        settings: dict[str, Any] = {
            "peers": simulated_peers, "rows_per_peer": rows_per_peer, "partition": "drift-y", "strategy": strategy,
            "rounds": rounds, "seed": seed, "evaluate_every": 8, **family,
        }  # fmt: skip
        run = run_with_bar(X, y, settings, f"{strategy:<6}", quiet=form == "json", live=out / strategy)
        run = from_source(run, DIGITS)
        run.save(out / strategy, overwrite=True)
        summaries[strategy] = run.summary()
        runs.insert(0, run)
        # The others learn the family that these peers chose.
        family = {name: runs[-1].configuration[name] for name in ("family", "kinds", "start")}
    choice = runs[-1].family_choice
    assert choice is not None
    page = _report(out, runs)
    if form == "json":
        print(json.dumps({**summaries, "family_choice": choice.to_json()}, indent=2))
        return
    console.print(
        f"\n{simulated_peers} peers x {rows_per_peer} handwritten digits, one class per peer, a random tree, "
        f"{rounds} rounds.\nTest error on the {1797 - simulated_peers * rows_per_peer} other digits:\n"
    )
    rows = [
        ("each peer alone", *_error(summaries["local"]), "one class per peer"),
        ("together, crc", *_error(summaries["crc"]), "the paper's method"),
        (f"together, {runs[-1].configuration['strategy']}", *_error(summaries["auto"]), "without its bias"),
        ("rows pooled, ML", summaries["auto"]["test_ml"], "", "maximum likelihood"),
        ("rows pooled, RC", summaries["auto"]["test_rc"], "", "calibration: the target"),
    ]
    print_table(("", "test error", "std over peers", ""), rows)
    print_text(f"\nThe peers chose the family themselves: {choice.reason}.")
    sent = summaries["auto"]["bytes_per_peer"] / 1e6
    console.print(f"\nThe runs are in {out}/. No row left its peer: each sent {sent:.1f} MB of statistics.")
    print_text(page)


def _claim(out: Path, names: Sequence[str], overwrite: bool) -> None:
    """Take these names in the folder for the demo: refuse those that are there, unless an earlier demo made them."""
    ours = (out / DEMO_FILE).is_file()
    for name in names:
        refuse_existing(out / name, overwrite or ours)
    out.mkdir(parents=True, exist_ok=True)
    (out / DEMO_FILE).write_text(DEMO_TEXT, encoding="utf-8")


def _report(out: Path, runs: list[Run]) -> str:
    """Write a report of all runs; return where it is, or how to get one."""
    from peerbayes import report
    from peerbayes.errors import PlotlyMissing

    try:
        return f"Compare them side by side: {report.write(out / 'report.html', runs, overwrite=True)}"
    except PlotlyMissing:
        return f"To compare them: pip install 'peerbayes[report]', then peerbayes report {out}"


def _error(summary: dict[str, float]) -> tuple[float, float]:
    return summary["test_error"], summary["test_std"]


@parts_needed()
def real_peers(out: Path, peers: int, rounds: int, seed: int, form: str, overwrite: bool) -> None:
    """Run processes connected by mutual TLS, each with its own file, and compare them with the simulator."""
    from peerbayes import network as topologies
    from peerbayes.estimators.classifiers import load
    from peerbayes.peer.agreement.terms import Terms
    from peerbayes.peer.loopback import Loopback
    from peerbayes.peer.status import status
    from peerbayes.simulation.run import simulate

    if peers < 2:
        raise ValueError(f"--peers is {peers}; expected 2 or more")
    folder = out / f"{peers}-peers"
    _claim(out, (folder.name,), overwrite)
    X, y = config.load_data(DIGITS)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(y))
    partition, test = np.array_split(order[TEST_ROWS:], peers), order[:TEST_ROWS]
    links = topologies.adjacency("tree", peers, rng)
    pairs = [(int(a), int(b)) for a, b in topologies.pairs(links)]
    tables = [X.iloc[indices].assign(digit=y[indices]) for indices in partition]
    terms = Terms("demo", "digit", family=AUTO, rounds=rounds)
    shutil.rmtree(folder, ignore_errors=True)
    network = Loopback.create(folder, terms, tables, pairs)
    try:
        for name in network.homes:
            network.start(name)
        _watch(network, rounds, quiet=form == "json")
    finally:
        network.stop()
    models = {name: load(home.model_path) for name, home in network.homes.items()}
    choice = FamilyChoice.from_json(status(next(iter(network.homes.values())))["family_choice"])
    named: dict[str, Any] = {"family": choice.family, "start": CANDIDATES[choice.chosen].start}
    if CANDIDATES[choice.chosen].in_bins:  # with the edges that these peers agreed on
        named["schema"] = replace(next(iter(models.values())).schema_, crosses=())
    simulated = simulate(
        X, y, peers=peers, partition=partition, topology=links, rounds=rounds, references=True,
        test=(X.iloc[test], y[test]), evaluate_every=0, **named,
    )  # fmt: skip
    differences = [
        np.abs(model.statistics_.expressed(simulated.schema).values - simulated.statistics(peer).values).max()
        for peer, model in enumerate(models.values())
    ]
    errors = {name: 1.0 - float(model.score(X.iloc[test], y[test])) for name, model in models.items()}
    results = {
        "peers": peers,
        "rounds": rounds,
        "largest_difference": float(max(differences)),
        "errors": errors,
        "simulated_error": simulated.summary()["test_error"],
        "rc_error": simulated.summary()["test_rc"],
        "family_choice": choice.to_json(),
    }
    if form == "json":
        print(json.dumps(results, indent=2))
        return
    console.print(
        f"\n{peers} processes on this machine, {1000 // peers} digits each in its own file, mutual TLS.\n"
        f"Test error on the {TEST_ROWS} other digits:\n"
    )
    rows: list[tuple[Any, ...]] = [(name, error, "") for name, error in errors.items()]
    rows.append(("rows pooled, RC", results["rc_error"], "the target"))
    print_table(("", "test error", ""), rows)
    print_text(f"\nThe peers chose the family themselves: {choice.reason}.")
    console.print(
        f"\nLargest difference from the simulator with the same graph and data: {results['largest_difference']:.1e}.\n"
        f"The folder of each peer, with its model, its log and the audit log of what it sent, is in {folder}/."
    )


def _watch(network: Any, rounds: int, quiet: bool) -> None:
    """Wait for the processes, with a progress bar for each peer on a terminal."""
    from peerbayes.peer.state.store import Store

    with progress_bar(quiet=quiet) as bar:
        tasks = {home.state_path: bar.add_task(name, total=rounds) for name, home in network.homes.items()}

        def look() -> None:
            for path, task in tasks.items():
                with contextlib.suppress(Exception), contextlib.closing(Store(path, readonly=True)) as store:
                    bar.update(task, completed=store.history()[-1]["round"])

        network.wait(look)
        look()
