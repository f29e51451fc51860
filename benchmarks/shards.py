"""A network in shards over Ray beside the same one in a single process: numbers, time of a round, bytes between shards.

    python benchmarks/shards.py            200,000 peers
    python benchmarks/shards.py --quick    20,000 peers, which is too few for the fused kernels

Two actors on a thread each; the single process on one thread and on two. The cut by breadth-first search is set beside
a cut by number. Each is run in turns; the lowest time of any of its rounds is printed, and the median of each turn
beside it. Where the medians of one side are further apart than the sides are, the machine was busy and the times decide
nothing: the load is printed. Consensus-ml computes no residual, so it shows what halos cost, and 60 peers show what a
round costs Ray. Needs the extra `cluster`.
"""

from measuring import report, verdict  # isort: skip  # before numpy: it limits the threads

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import ray

import peerbayes as pb
from peerbayes.simulation.records import COLUMNS as FIGURES
from peerbayes.simulation.sharded import simulate_shards
from peerbayes.simulation.sharded.workers import cluster

ROWS, COLUMNS, CLASSES, ROUNDS, SHARDS, TURNS = 5, 4, 3, 64, 2, 2


class Laps:
    """Milliseconds of each round, without the first, which loads kernels, and the last, which is judged."""

    def __init__(self) -> None:
        self._at: list[float] = []

    def __call__(self, done: int, rounds: int) -> None:
        self._at.append(time.perf_counter())

    @property
    def milliseconds(self) -> np.ndarray:
        return 1e3 * np.diff(self._at)[:-1]


def table(peers: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows for all peers, and a thousand to test on."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, peers * ROWS + 1000)
    return rng.normal(0, 0.7, (CLASSES, COLUMNS))[labels] + rng.normal(size=(labels.size, COLUMNS)), labels


def timed(call: Callable[..., Any], **settings: Any) -> tuple[Any, np.ndarray]:
    """What a simulation gives, and milliseconds of its rounds."""
    laps = Laps()
    return call(progress=laps, **settings), laps.milliseconds


def compare(name: str, run: Any, whole: Any) -> None:
    """Statistics and every figure of every peer; what is not a number on either side is a difference."""
    apart = {"statistics": np.abs(run.stats - whole.stats).max()}
    apart |= {what: np.abs(run.records[:, k] - whole.records[:, k]).max() for k, what in enumerate(FIGURES)}
    worst = max(apart, key=lambda what: np.nan_to_num(apart[what], nan=np.inf))
    bits = "the same bits" if run.stats.tobytes() == whole.stats.tobytes() else "not the same bits"
    print(f"cut {name}: statistics {bits}; of figures {worst} differs most, by {apart[worst]:.1e}")
    ratio = float(apart[worst]) / 1e-10
    report(f"cut {name}: largest difference / 1e-10", ratio, "<= 1", ratio <= 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    peers = 20_000 if parser.parse_args().quick else 200_000
    X, y = table(peers)
    shared = {
        "X": X, "y": y, "peers": peers, "rows_per_peer": ROWS, "rounds": ROUNDS, "topology": "tree", "seed": 1,
        "evaluate_every": 0,
    }  # fmt: skip
    cuts = {"by search": SHARDS, "by number": np.array_split(np.arange(peers), SHARDS)}
    where = f"Ray {ray.__version__}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}"
    print(f"{peers:,} peers, {ROWS} rows each, random tree, exact, {ROUNDS} rounds; {where}", flush=True)
    times: dict[str, list[np.ndarray]] = {}
    sharded: dict[str, Any] = {}
    with cluster(SHARDS):
        for _ in range(TURNS):
            for threads in (1, 2):
                os.environ["NUMBA_NUM_THREADS"] = str(threads)  # `fused` reads it when it cuts its work
                whole, took = timed(simulate, **shared)
                times.setdefault(f"single process, {threads} thread{'s' * (threads > 1)}", []).append(took)
            for name, shards in cuts.items():
                sharded[name], took = timed(
                    simulate_shards, shards=shards, engine="ray", stats_of="all", **shared
                )
                times.setdefault(f"{SHARDS} actors, cut {name}", []).append(took)
                mixing = {**shared, "strategy": "consensus-ml", "shards": shards, "engine": "ray"}
                took = timed(simulate_shards, **mixing)[1]
                times.setdefault(f"{SHARDS} actors, cut {name}, consensus-ml", []).append(took)
            took = timed(simulate, **{**shared, "strategy": "consensus-ml"})[1]
            times.setdefault("single process, consensus-ml", []).append(took)
            took = timed(simulate_shards, engine="ray", **{**shared, "peers": 60})[1]
            times.setdefault(f"{SHARDS} actors, 60 peers", []).append(took)
    for name, took in times.items():
        medians = ", ".join(f"{np.median(turn):.1f}" for turn in took)
        print(f"{name:<44}lowest {min(map(np.min, took)):>7.1f} ms a round; median of each turn {medians}")
    held = whole.stats.nbytes
    for name, run in sharded.items():
        print(
            f"cut {name}: {run.crossing:,} links cross; halos {run.halo_bytes / 1e6:.3f} MB a round, "
            f"S {held / 1e6:.1f} MB: {100 * run.halo_bytes / held:.2f} %"
        )
        compare(name, run, whole)
    share = sharded["by search"].halo_bytes / sharded["by number"].halo_bytes
    report("halo bytes, cut by search / by number", share, "<= 0.05", share <= 0.05)
    print(f"load at the end {os.getloadavg()[0]:.1f}")
    return verdict()


def simulate(**settings: Any) -> pb.Run:
    return pb.simulate(references=False, **settings)


if __name__ == "__main__":
    sys.exit(main())
