"""The fused residual of a simulated round: its speed and memory, as ratios measured side by side, on one thread.

    python benchmarks/simulator.py            up to 50,000 peers
    python benchmarks/simulator.py --quick    up to 5,000 peers

Each pair is timed in turns and the lowest time of each side is kept, because machines are noisy. The first call,
which compiles the kernel, is not counted.
"""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import argparse
import gc
import sys
import time
import tracemalloc
from collections.abc import Callable

import numpy as np

from peerbayes import core
from peerbayes.families import NaiveBayes, Rows
from peerbayes.fused import FusedPeers

ROWS = 50  # of each peer
FEW = 500  # peers
failures: list[str] = []


def side_by_side(*calls: Callable[[], object], turns: int = 30) -> list[float]:
    """The lowest time of each, taken in turns."""
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    for _ in range(turns):
        for kept, call in zip(times, calls, strict=True):
            began = time.perf_counter()
            call()
            kept.append(time.perf_counter() - began)
    return [min(kept) for kept in times]


def report(what: str, ratio: float, limit: str, met: bool) -> None:
    print(f"{what:<66} {ratio:8.2f}   {limit:>7}   {'ok' if met else 'MISSED'}", flush=True)
    if not met:
        failures.append(what)


def network(nodes: int, columns: int, classes: int, kind: type) -> tuple[FusedPeers, np.ndarray]:
    """Peers with rows, and statistics near the uniform start, as a round meets them."""
    rng = np.random.default_rng(0)
    family = NaiveBayes(continuous=columns, variance_floor=0.05, count_floor=1e-4)
    count = nodes * ROWS
    labels = rng.integers(0, classes, count, dtype=np.int32)
    values = rng.normal(0, 0.3, (classes, columns)).astype(kind)[labels]
    values += rng.standard_normal(values.shape, dtype=kind)
    start = family.uniform(classes, 1000.0)
    stats = rng.standard_normal((nodes, *start.shape), dtype=kind)
    stats *= 0.1 * start.max()
    stats += start.astype(kind)
    rows = Rows(values, np.zeros((count, 0), dtype=np.int32))
    offsets = np.arange(nodes + 1) * ROWS
    return FusedPeers(family, rows, labels, np.ones(count), offsets, classes), stats


def laid_out(peers: FusedPeers) -> tuple[np.ndarray, np.ndarray]:
    """Φ [N, n, K] and Y [N, n, C]."""
    nodes = peers.offsets.size - 1
    features = peers.family.features(peers.rows).reshape(nodes, ROWS, -1)
    return features, core.one_hot(peers.labels, peers.classes).reshape(nodes, ROWS, -1)


def wide() -> None:
    """One residual beside the two bare products over a stored Φ: 50 peers, 512 columns, 10 classes."""
    double, stats = network(50, 512, 10, np.float64)
    single, single_stats = network(50, 512, 10, np.float32)
    features, labels = laid_out(double)
    weights = double.family.weights(stats)

    def products() -> None:
        np.matmul(features, weights.mT)
        np.matmul(labels.mT, features)

    own, half, bare = side_by_side(
        lambda: double.residual(stats), lambda: single.residual(single_stats), products
    )
    where = "50 peers, 512 columns, 10 classes"
    report(f"residual / two bare products, {where}", own / bare, "<= 1.5", own / bare <= 1.5)
    report("the same in float32 / the products in float64", half / bare, "<= 0.8", half / bare <= 0.8)


def narrow() -> None:
    """Beside NumPy, peer by peer and vectorised: 500 peers, 16 columns, 26 classes."""
    peers, stats = network(FEW, 16, 26, np.float64)
    single, single_stats = network(FEW, 16, 26, np.float32)
    family = peers.family
    features, labels = laid_out(peers)

    def one_by_one() -> list[np.ndarray]:
        peerwise = zip(features, labels, stats, strict=True)
        return [core.residual(phi, one_hot, family.weights(S)) for phi, one_hot, S in peerwise]

    own, half, vectorised, loop = side_by_side(
        lambda: peers.residual(stats),
        lambda: single.residual(single_stats),
        lambda: core.residual(features, labels, family.weights(stats)),
        one_by_one,
        turns=10,
    )
    print(f"{FEW} peers, 16 columns, 26 classes: microseconds a peer and round")
    for name, seconds in (
        ("fused", own),
        ("fused, float32", half),
        ("vectorised NumPy", vectorised),
        ("NumPy, peer by peer", loop),
    ):
        print(f"    {name:<62} {seconds / FEW * 1e6:8.2f}")
    report("times faster than vectorised NumPy", vectorised / own, ">= 3", vectorised / own >= 3)
    report("times faster than NumPy peer by peer", loop / own, ">= 5", loop / own >= 5)


def large(many: int) -> None:
    """Cost of a peer in a large network beside its cost in a small one; memory of the call."""
    few, few_stats = network(FEW, 16, 26, np.float64)
    peers, stats = network(many, 16, 26, np.float64)
    large_time, small_time = side_by_side(
        lambda: peers.residual(stats), lambda: few.residual(few_stats), turns=7
    )
    ratio = (large_time / many) / (small_time / FEW)
    report(f"cost of a peer, {many:,} peers / {FEW} peers", ratio, "<= 1.5", ratio <= 1.5)
    share = peak_extra(lambda: peers.residual(stats)) / stats.nbytes
    report("peak extra memory of a call, its result included / S", share, "<= 1.1", share <= 1.1)


def peak_extra(call: Callable[[], object]) -> int:
    """The most memory that Python and NumPy hold at a time during a call, beyond what they held before, in bytes.

    The kernel's scratch is not seen: it does not grow with the peers or their rows, and is below 1 MB here.
    """
    gc.collect()
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="5,000 peers instead of 50,000")
    many = 5_000 if parser.parse_args().quick else 50_000
    print(f"naive Bayes, {ROWS} rows a peer, float64, one thread")
    wide()
    narrow()
    large(many)
    print("all limits met" if not failures else f"missed: {', '.join(failures)}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
