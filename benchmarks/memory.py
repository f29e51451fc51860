"""The memory and the time of whole simulations: the peak beside the data, and evaluation's share.

    python benchmarks/memory.py [--peers 50000]

50 rows a peer, 16 columns, 26 classes, a random tree, float64. Memory is what Python and NumPy hold at most during
`simulate`, beyond the table that it is given; the limit is 1.5 times the table plus three statistics tensors [N, C, K].
"""

from measuring import report, verdict  # isort: skip  # before numpy: it limits the threads

import argparse
import gc
import sys
import tracemalloc

import numpy as np

import peerbayes as pb

ROWS, COLUMNS, CLASSES = 50, 16, 26


def table(peers: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    count = peers * ROWS
    labels = rng.integers(0, CLASSES, count)
    values = rng.normal(0, 0.3, (CLASSES, COLUMNS))[labels]
    values += rng.standard_normal(values.shape)
    return values, labels


def simulated(peers: int, data: tuple[np.ndarray, np.ndarray], strategy: str) -> pb.Run:
    few = data[0][:2000], data[1][:2000]
    settings = {"peers": peers, "rows_per_peer": ROWS, "rounds": 4, "evaluate_every": 0, "test": few}
    return pb.simulate(*data, kinds="continuous", strategy=strategy, **settings)


def memory(peers: int) -> None:
    small, data = table(500), table(peers)
    stats = peers * CLASSES * (1 + 2 * COLUMNS) * 8
    limit = 1.5 * data[0].nbytes + 3 * stats
    for strategy, bound in (("crc", 1.0), ("exact", None)):
        simulated(500, small, strategy)  # compiled, imported
        gc.collect()
        tracemalloc.start()
        simulated(peers, data, strategy)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        what = f"{strategy}: peak of {peers:,} peers / (1.5 data + 3 S)"
        if bound is None:
            print(f"{what:<66}{peak / limit:>8.2f}   its state is the last six S and two more")
        else:
            report(what, peak / limit, f"<= {bound}", peak / limit <= bound)


def shares() -> None:
    """Where the time goes: digits, 50 peers of 20 rows, 797 test rows."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    data = table(2000)
    for what, settings in (
        ("digits, 50 peers, every round", {"X": X, "y": y, "rows_per_peer": 20}),
        ("digits, 50 peers, at the end", {"X": X, "y": y, "rows_per_peer": 20, "evaluate_every": 0}),
        ("2,000 peers, 2,000 test rows, at the end",
         {"X": data[0], "y": data[1], "peers": 2000, "evaluate_every": 0, "test": (data[0][:2000], data[1][:2000])}),
    ):  # fmt: skip
        seconds = pb.simulate(**settings).seconds
        share = seconds["evaluation"] / (seconds["evaluation"] + seconds["rounds"])
        if "every round" in what:
            print(
                f"{f'evaluation, {what}: share of the time':<66}{share:>8.2f}   no limit: every peer on all rows"
            )
        else:
            report(f"evaluation, {what}: share of the time", share, "<= 0.5", share <= 0.5)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", type=int, default=50_000)
    peers = parser.parse_args().peers
    shares()
    memory(peers)
    return verdict()


if __name__ == "__main__":
    sys.exit(main())
