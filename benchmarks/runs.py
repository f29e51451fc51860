"""Three runs of one membership with real processes, beside a fresh network on the rows of the third.

    python benchmarks/runs.py

Four sites begin. A fifth joins after the first run; after the second, one is revoked, and rows are added and erased.
Each process runs from its start to the end: no key, certificate or process is new, and the newer rosters are given to
one site only. The third run begins with the model of the second; the fresh network begins as always. The figures are
the rounds of all runs, and the largest difference between the probabilities of the third run's models and the fresh
one's, over all rows of the third run. With --json, for programs.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(threads, "1")  # the processes share the cores

import numpy as np
import pandas as pd

import peerbayes as pb
from peerbayes.peer.agreement.terms import Limits, Terms
from peerbayes.peer.loopback import Loopback, free_ports
from peerbayes.peer.runs import RunEntry, Runs
from peerbayes.peer.state.folder import Home

ROWS, NEW, ERASED = 400, 12, 8  # of each site; that two sites add; that two sites erase
LIMIT = 900.0  # seconds after which something waits for ever
FEATURES = {
    "age": "continuous",
    "lab": "continuous",
    "dose": "continuous",
    "smoker": "discrete",
    "ward": "discrete",
}
TERMS = Terms(
    "living",
    "ill",
    features=FEATURES,
    strategy="tree-sum",
    rounds=400,
    tolerance=1e-7,
    limits=Limits(deadline=60.0),
)
CONSENT = f"""label = "ill"
columns = {json.dumps(list(FEATURES))}
strategies = ["tree-sum"]
members = ["peer-1", "peer-2", "peer-3", "peer-4", "peer-5"]
"""


def rows(seed: int, first: int, count: int = ROWS) -> pd.DataFrame:
    """Return rows of patients, numbered from `first`; sites differ in how ill and how old they are."""
    rng = np.random.default_rng(seed)
    ill = rng.random(count) < 0.3 + 0.05 * (seed % 5)
    values = rng.normal(size=(count, 3)) + ill[:, None] * np.array([1.0, 0.5, 0.8])
    values[:, 0] += 0.1 * (seed % 5)
    smoker, ward = rng.random((2, count)) < np.where(ill, 0.7, 0.4)
    return pd.DataFrame({
        "patient": np.arange(first, first + count), "age": values[:, 0], "lab": values[:, 1], "dose": values[:, 2],
        "smoker": np.where(smoker, "yes", "no"), "ward": np.where(ward, "a", "b"), "ill": np.where(ill, "yes", "no"),
    })  # fmt: skip


def until(found: Callable[[], Any], what: str, network: Loopback) -> Any:
    """Return what is found in the end; whatever takes longer than `LIMIT` waits for ever."""
    end = time.monotonic() + LIMIT
    while not (value := found()):
        if time.monotonic() > end:
            logs = {name: home.log_path.read_text()[-1500:] for name, home in network.homes.items()}
            raise SystemExit(f"{what}: nothing after {LIMIT:.0f} s\n{json.dumps(logs, indent=1)}")
        time.sleep(0.2)
    return value


def command(*words: Any) -> str:
    """Run a command as an owner does, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "peerbayes", *map(str, words)], capture_output=True, text=True, timeout=LIMIT
    )
    if done.returncode:
        raise SystemExit(f"peerbayes {' '.join(map(str, words))}: {done.stdout}{done.stderr}")
    return done.stdout


def ended(network: Loopback, number: int, names: list[str]) -> RunEntry:
    """Wait until a run has ended well at all sites; return its entry at the first of them."""

    def entries() -> list[RunEntry]:
        found = [Runs(network.homes[name].folder) for name in names]
        if not all(number in runs.home.run_numbers() for runs in found):
            return []
        entries = [runs.entry(number) for runs in found]
        for name, entry in zip(names, entries, strict=True):
            if entry.state in ("failed", "left", "declined", "expired", "ended"):
                raise SystemExit(f"{name}: run {number} is {entry.state}: {entry.sentence}")
        return entries if all(entry.state == "done" for entry in entries) else []

    return until(entries, f"run {number}", network)[0]


def propose_and_approve(network: Loopback, number: int, proposer: str, by_hand: str) -> None:
    """Propose a run; one owner approves it by hand, and the others by their standing consent."""
    command("run", "propose", "--folder", network.homes[proposer].folder)
    runs = Runs(network.homes[by_hand].folder)
    until(lambda: number in runs.home.run_numbers(), f"the proposal of run {number} at {by_hand}", network)
    command("run", "approve", number, "--folder", network.homes[by_hand].folder)


def join(network: Loopback, name: str, table: pd.DataFrame, folder: Path) -> None:
    """Have one more site join; the newer roster is given to the first site only."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    folder.mkdir()
    table.to_csv(folder / "rows.csv", index=False)
    home = Home.create(folder, name, address, str(folder / "rows.csv"), listen=address)
    home.join(network.founder.invite(name, home.request_path.read_bytes(), address, None).pack())
    network.homes[name] = home
    spread(network)


def spread(network: Loopback) -> None:
    """Give the founder's roster to the first site."""
    network.homes["peer-1"].join(network.founder.roster_path.read_bytes())


def known(network: Loopback, names: list[str]) -> None:
    """Wait until these sites have the founder's roster: a run is over the members that its proposer knows."""
    newest = network.founder.roster().version

    def heard() -> bool:
        return all(network.homes[name].roster().version == newest for name in names)

    until(heard, f"roster {newest}", network)


def consent(network: Loopback, names: list[str]) -> None:
    for name in names:
        (network.homes[name].folder / "consent.toml").write_text(CONSENT)


def identities(network: Loopback, names: list[str]) -> dict[str, bytes]:
    """Return keys and certificates."""
    homes = [network.homes[name] for name in names]
    return {str(path): path.read_bytes() for home in homes for path in (home.key_path, home.certificate_path)}


def change_rows(network: Loopback, tables: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Add rows at two sites and erase some at two; return the rows of all sites that are left."""
    for name, first in (("peer-2", 90_000), ("peer-5", 91_000)):
        tables[name] = pd.concat([tables[name], rows(first, first, NEW)], ignore_index=True)
        tables[name].to_csv(network.homes[name].folder / "rows.csv", index=False)
    # One owner erases by a file and leaves the rows in the data; one erases a patient by number, and deletes that.
    gone = tables["peer-1"].iloc[: ERASED - 1]
    listed = network.homes["peer-1"].folder / "erase.csv"
    gone[["patient"]].to_csv(listed, index=False)
    command("peer", "erase", network.homes["peer-1"].folder, "--rows", listed)
    tables["peer-1"] = tables["peer-1"].iloc[ERASED - 1 :]
    patient = tables["peer-4"]["patient"].iloc[0]
    command("peer", "erase", network.homes["peer-4"].folder, "--where", f"patient={patient}")
    tables["peer-4"] = tables["peer-4"].iloc[1:]
    tables["peer-4"].to_csv(network.homes["peer-4"].folder / "rows.csv", index=False)
    return tables


def fresh(folder: Path, tables: list[pd.DataFrame]) -> tuple[int, Home]:
    """Found another network on the same rows, and return the rounds of its run and one of its peers."""
    network = Loopback.create(folder, TERMS, tables, [(0, 1), (1, 2), (2, 3), (0, 3)])
    try:
        for name in network.homes:
            network.start(name, "--quiet")
        network.wait()
        home = network.homes["peer-1"]
        return Runs(home.folder).entry(1).round, home
    finally:
        network.stop()


def probabilities(path: Path, table: pd.DataFrame) -> np.ndarray:
    """Return what a model answers about rows."""
    return np.asarray(pb.load(path).predict_proba(table[list(FEATURES)]))


def measured(folder: Path) -> dict[str, Any]:
    """Do the three runs and the fresh one; return the figures."""
    names = ["peer-1", "peer-2", "peer-3", "peer-4"]
    tables = {name: rows(seed, 1000 * seed) for seed, name in enumerate(names, 1)}
    network = Loopback.create(folder, TERMS, list(tables.values()), [(0, 1), (1, 2), (2, 3), (0, 3)])
    try:
        for name in names:
            network.start(name, command="serve")
        rounds = [ended(network, 1, names).round]
        before, processes = identities(network, names), {name: network.processes[name].pid for name in names}

        tables["peer-5"] = rows(5, 5000)
        join(network, "peer-5", tables["peer-5"], folder / "peer-5")
        network.start("peer-5", command="serve")
        everybody = [*names, "peer-5"]
        consent(network, ["peer-2", "peer-3", "peer-4", "peer-5"])
        known(network, everybody)
        propose_and_approve(network, 2, "peer-2", "peer-1")
        rounds.append(ended(network, 2, everybody).round)

        network.founder.revoke("peer-3")
        spread(network)
        until(lambda: network.processes["peer-3"].poll() is not None, "the end of the revoked site", network)
        remaining = [name for name in everybody if name != "peer-3"]
        tables = change_rows(network, tables)
        known(network, remaining)
        propose_and_approve(network, 3, "peer-5", "peer-1")
        rounds.append(ended(network, 3, remaining).round)
        same = before == identities(network, names)
        alive = all(network.processes[name].pid == processes[name] for name in names) and all(
            network.processes[name].poll() is None for name in remaining
        )
        models = [network.homes[name].model_path for name in remaining]
        of_fresh, home = fresh(folder / "fresh", [tables[name] for name in remaining])
        table = pd.concat([tables[name] for name in remaining], ignore_index=True)
        expected = probabilities(home.model_path, table)
        apart = max(float(np.abs(probabilities(path, table) - expected).max()) for path in models)
        return {
            "rounds": rounds, "fresh": of_fresh, "difference": apart, "same_keys": same, "same_processes": alive,
            "revoked_exit": network.processes["peer-3"].returncode, "rows": len(table),
        }  # fmt: skip
    finally:
        network.stop()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        figures = measured(Path(folder) / "network")
    if "--json" in sys.argv:
        print(json.dumps(figures))
        return
    first, second, third = figures["rounds"]
    print(f"run 1, four sites, afresh                       {first:4d} rounds")
    print(f"run 2, a fifth has joined, warm                 {second:4d} rounds")
    print(f"run 3, one is revoked and rows changed, warm    {third:4d} rounds")
    print(f"a fresh network on the rows of run 3            {figures['fresh']:4d} rounds")
    print(f"largest difference of a probability, {figures['rows']} rows: {figures['difference']:.1e}")
    print(f"keys and certificates unchanged: {figures['same_keys']}; processes: {figures['same_processes']}")


if __name__ == "__main__":
    main()
