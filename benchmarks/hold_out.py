"""What holding rows out costs in privacy: true ε of a promised 1, by the split of today and the stratified one before.

    python benchmarks/hold_out.py [--rows 400 5000 50000]

Two files that differ by one row, hold_out = 0.2, go the way of `peer run` up to the sums that noise is added to: naive
Bayes, two continuous columns and a discrete one, two classes, 16 rounds, all of them at the statistics of the start.
The true ε is that of Gaussian noise σ on sums that are ‖Δ‖ apart, at δ = 10⁻⁵. Limit: 1.
"""

import argparse
import asyncio
import math
import sys
import tempfile
from pathlib import Path

import measuring
import numpy as np
import pandas as pd

from peerbayes.peer import service
from peerbayes.peer.agreement.column_facts import Facts
from peerbayes.peer.agreement.private_agreement import agree_privately
from peerbayes.peer.agreement.terms import Privacy, Terms
from peerbayes.peer.learning.held_out import held_out
from peerbayes.peer.loopback import Loopback
from peerbayes.peer.state.folder import Home
from peerbayes.privacy import accounting

SHARE, ROUNDS, DELTA = 0.2, 16, 1e-5
LOUD = {"x": 1e9, "z": -1e9, "sex": "m", "ill": "yes"}  # a row as loud as rows can be


def table_of(rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(rows)
    ill = rng.random(rows) < 0.4
    columns = {
        "x": rng.normal(size=rows) + ill,
        "z": rng.normal(size=rows) - ill,
        "sex": rng.choice(["f", "m"], rows),
    }
    return pd.DataFrame(columns | {"ill": np.where(ill, "yes", "no")})


def home_of(folder: Path, rows: int) -> Home:
    known = {"x": Facts(0.0, 1.0), "z": Facts(0.0, 1.0), "sex": Facts(categories=("f", "m"))}
    kinds = {"x": "continuous", "z": "continuous", "sex": "discrete"}
    terms = Terms(
        "canary", "ill", kinds, known, ("no", "yes"), rounds=ROUNDS, privacy=Privacy(epsilon=1.0, rows=rows)
    )
    network = Loopback.create(folder, terms, [table_of(rows)] * 3, [(0, 1), (1, 2), (0, 2)])
    home = network.homes["peer-1"]
    home.settings_path.write_text(home.settings_path.read_text().replace("# hold_out", "hold_out"))
    return home


def stratified(frame: pd.DataFrame, labels: np.ndarray, share: float, key: bytes) -> tuple:
    """A share of every class, drawn by the number of rows: how rows were held out before."""
    rng, away = np.random.default_rng(len(frame)), np.zeros(len(frame), dtype=bool)
    for label in np.unique(labels.astype(str)):
        rows = rng.permutation(np.flatnonzero(labels.astype(str) == label))
        away[rows[: int(share * len(rows))]] = True
    return (frame[~away], labels[~away]), (frame[away], labels[away])


def sums_of(home: Home) -> tuple[np.ndarray, int]:
    """The sums of a round at the start, as whole numbers, and σ of the noise that would be added."""
    peer = home.load()
    (frame, labels), _ = service.tables_of(peer)

    async def never(*asked: object) -> None:
        raise AssertionError("all is declared")

    agreed = asyncio.run(agree_privately(peer.name, frame, labels, peer.terms, peer.roster, never, never))
    return agreed.private.sums(agreed.learner.start), agreed.private.scheme.mechanism.sigma


def true_epsilon(home: Home, rows: int) -> float:
    """ε of all rounds, with and without one row that is learned from."""
    path = home.folder / "rows.csv"
    for place in range(200):  # of rows that are held out, nothing is told
        canary = pd.DataFrame([LOUD | {"z": -1e9 * (1 + place / 100)}])
        pd.concat([table_of(rows)[:place], canary, table_of(rows)[place:]]).to_csv(path, index=False)
        (frame, _), _ = service.tables_of(home.load())
        if (frame["x"] == LOUD["x"]).any():
            break
    with_it, sigma = sums_of(home)
    table_of(rows).to_csv(path, index=False)
    without, _ = sums_of(home)
    apart = math.sqrt(sum(int(difference) ** 2 for difference in (with_it - without).flat))
    return accounting.epsilon_of(math.sqrt(ROUNDS) * apart / sigma, DELTA)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[400, 5000, 50_000])
    asked = parser.parse_args()
    for rows in asked.rows:
        with tempfile.TemporaryDirectory() as folder:
            home = home_of(Path(folder), rows)
            service.held_out = stratified
            before = true_epsilon(home, rows)
            service.held_out = held_out
            now = true_epsilon(home, rows)
        print(f"{f'{rows:,} rows: true epsilon of a promised 1, stratified as before':<66}{before:>8.2f}")
        measuring.report(f"{rows:,} rows: each row by a hash of its own", now, "<= 1", now <= 1)
    sys.exit(bool(measuring.failures))


if __name__ == "__main__":
    main()
