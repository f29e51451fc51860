"""No honest message is refused: the checks of messages in every setting of the paper's gap tables (4 to 10, and 12).

    PEERBAYES_DATA=folder python benchmarks/honest.py [dataset ...] [--tables 4,5,6,7,8,9,10,12] [--strategies exact]

Simulations in which every message is checked as real peers do, and nobody lies: messages, and how many were refused.
"""

import argparse
import os
import sys

import measuring  # noqa: F401  one thread
import numpy as np

import peerbayes as pb
from peerbayes.experiments import paper_tables
from peerbayes.experiments.cells import Cell, TooFewRows, prepared


def refused(cell: Cell) -> tuple[float, dict[str, int]]:
    """Messages that were sent in all, and those refused by reason."""
    data = prepared(cell.dataset)
    train, test = data.split(cell.rows, cell.seed)
    run = pb.simulate(
        *train, schema=data.schema, peers=cell.peers, rows_per_peer=cell.rows_per_peer, topology=cell.topology,
        partition=cell.partition, change_every=cell.change_every, strategy=cell.strategy, rounds=cell.rounds,
        lr=cell.lr, local_steps=cell.local_steps, test=test, seed=cell.seed, evaluate_every=0, evaluate_rows=1,
        references=False, attack=pb.Attack("flip", fraction=0.0),
    )  # fmt: skip
    sent = run.history.groupby("peer")["bytes"].max().sum() / run.stats[0].nbytes
    return float(sent), run.rejected


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("datasets", nargs="*", default=["adult", "letter", "pulsar"])
    parser.add_argument(
        "--tables", default=",".join(number.lstrip("0") for number in paper_tables.GAP_TABLES)
    )
    parser.add_argument("--strategies", default="crc,exact")
    given = parser.parse_args()
    if "PEERBAYES_DATA" not in os.environ:
        print("PEERBAYES_DATA must name the folder of the datasets", file=sys.stderr)
        return 2
    cells: dict[Cell, str] = {}
    for number in given.tables.split(","):
        table = paper_tables.table(number)
        for column in table.columns:
            for dataset in given.datasets:
                for strategy in given.strategies.split(","):
                    cell = table.cells(dataset, column, strategy, 0)[0]
                    cells.setdefault(cell, f"{number}.{column} {dataset} {strategy}")
    count, sent, found = 0, 0.0, np.zeros(0)
    for cell, name in cells.items():
        try:
            messages, rejected = refused(cell)
        except TooFewRows as error:
            print(f"{name}: left out, {error}")
            continue
        count, sent, found = count + 1, sent + messages, np.append(found, sum(rejected.values()))
        if found[-1]:
            print(f"{name}: {rejected} of {messages:,.0f}", flush=True)
    print(f"{count} settings, {sent:,.0f} messages, {int(found.sum()):,} refused")
    return 1 if found.any() else 0


if __name__ == "__main__":
    sys.exit(main())
