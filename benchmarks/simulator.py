"""The fused residual of a simulated round: its speed and memory, as ratios measured side by side, on one thread.

    python benchmarks/simulator.py            up to 50,000 peers
    python benchmarks/simulator.py --quick    up to 5,000 peers

`measuring` says how.
"""

from measuring import peak_extra, report, side_by_side, verdict  # isort: skip  # before numpy: it limits the threads

import argparse
import sys
from dataclasses import replace

import numpy as np

from peerbayes.model import core
from peerbayes.model.families import NaiveBayes, Rows
from peerbayes.model.kernels.peers import FusedPeers

ROWS = 50  # of each peer
FEW = 500  # peers


def network(peer_count: int, columns: int, classes: int, kind: type) -> tuple[FusedPeers, np.ndarray]:
    """Peers with rows, and statistics near the uniform start, as a round meets them."""
    rng = np.random.default_rng(0)
    family = NaiveBayes(continuous=columns, variance_floor=0.05, count_floor=1e-4)
    count = peer_count * ROWS
    labels = rng.integers(0, classes, count, dtype=np.int32)
    values = rng.normal(0, 0.3, (classes, columns)).astype(kind)[labels]
    values += rng.standard_normal(values.shape, dtype=kind)
    start = family.uniform(classes, 1000.0)
    stats = rng.standard_normal((peer_count, *start.shape), dtype=kind)
    stats *= 0.1 * start.max()
    stats += start.astype(kind)
    rows = Rows(values, np.zeros((count, 0), dtype=np.int32))
    offsets = np.arange(peer_count + 1) * ROWS
    return FusedPeers(family, rows, labels, np.ones(count), offsets, classes, threads=1), stats


def laid_out(peers: FusedPeers) -> tuple[np.ndarray, np.ndarray]:
    """Φ [N, n, K] and Y [N, n, C]."""
    peer_count = peers.offsets.size - 1
    features = peers.family.features(peers.rows).reshape(peer_count, ROWS, -1)
    return features, core.one_hot(peers.labels, peers.classes).reshape(peer_count, ROWS, -1)


def wide() -> None:
    """One residual beside the two bare products over a stored Φ: 50 peers, 512 columns, 10 classes."""
    double, stats = network(50, 512, 10, np.float64)
    single, single_stats = network(50, 512, 10, np.float32)
    double, single = replace(double, threads=1), replace(single, threads=1)
    features, labels = laid_out(double)
    weights = double.family.weights(stats)

    def products() -> None:
        np.matmul(features, weights.mT)
        np.matmul(labels.mT, features)

    own, half, bare = side_by_side(
        lambda: double.residual(stats), lambda: single.residual(single_stats), products, turns=30
    )
    where = "50 peers, 512 columns, 10 classes"
    report(f"residual / two bare products, {where}", own / bare, "<= 1.5", own / bare <= 1.5)
    report("the same in float32 / the products in float64", half / bare, "<= 0.8", half / bare <= 0.8)


def narrow() -> None:
    """Beside NumPy, peer by peer and vectorised: 500 peers, 16 columns, 26 classes."""
    peers, stats = network(FEW, 16, 26, np.float64)
    single, single_stats = network(FEW, 16, 26, np.float32)
    peers, single = replace(peers, threads=1), replace(single, threads=1)
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
    return verdict()


if __name__ == "__main__":
    sys.exit(main())
