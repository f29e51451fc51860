"""A round of one million peers on a GPU, beside plain PyTorch, and a small network beside NumPy.

    python benchmarks/gpu.py [--peers 1000000]

50 rows a peer, 16 columns, 26 classes, float32, a random tree. Times are medians of CUDA events. The limit is 25 ms a
round; what must move (S read for mixing and for R, x read, S̄, R and S written) is told beside it.
"""

from measuring import report, verdict  # isort: skip

import argparse
import statistics
import sys
from collections.abc import Callable

import numpy as np
import torch

from peerbayes import network as topologies
from peerbayes.learning.strategies import CRC, Exact
from peerbayes.model import core
from peerbayes.model.devices import Device
from peerbayes.model.families import NaiveBayes, Rows
from peerbayes.model.kernels.peers_gpu import FusedPeers
from peerbayes.simulation.faults import Faults
from peerbayes.simulation.rounds import Broadcast

ROWS, COLUMNS, CLASSES, LIMIT = 50, 16, 26, 25.0
FAMILY = NaiveBayes(continuous=COLUMNS, variance_floor=0.05, count_floor=1e-4)


def peers_on_gpu(peer_count: int) -> FusedPeers:
    """Rows drawn on the device."""
    torch.manual_seed(0)
    count = peer_count * ROWS
    labels = torch.randint(0, CLASSES, (count,), dtype=torch.int32, device="cuda")
    values = torch.randn((CLASSES, COLUMNS), device="cuda")[labels.long()] * 0.3
    values += torch.randn_like(values)
    codes = torch.zeros((count, 0), dtype=torch.int32, device="cuda")
    offsets = torch.arange(peer_count + 1, dtype=torch.int64) * ROWS
    weights = torch.ones(count, device="cuda")
    return FusedPeers(FAMILY, Rows(values, codes), labels, weights, offsets, CLASSES)


def milliseconds(call: Callable[[], object], turns: int = 7) -> float:
    """The median time of a call on the device."""
    call()
    times = []
    for _ in range(turns):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def plain_residual(peers: FusedPeers, peer_count: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """R by `core`, with Φ held: what PyTorch does without a kernel. Half as many peers at a time fit."""
    values = peers.rows.values.reshape(peer_count, ROWS, COLUMNS)
    ones = torch.ones((peer_count, ROWS, 1), device="cuda")
    features = torch.cat([ones, values, values * values], dim=-1)
    labels = (
        torch.nn.functional.one_hot(peers.labels.long(), CLASSES).float().reshape(peer_count, ROWS, CLASSES)
    )
    return lambda stats: core.residual(features, labels, FAMILY.weights(stats))


def small() -> None:
    """500 peers, 20 rounds, NumPy in float64 beside the device in float32."""
    peer_count = 500
    peers = peers_on_gpu(peer_count)
    values, labels = peers.rows.values.cpu().numpy().astype(np.float64), peers.labels.cpu().numpy()
    features = FAMILY.features(Rows(values, np.zeros((len(values), 0), np.int64))).reshape(
        peer_count, ROWS, -1
    )
    one_hot = core.one_hot(labels, CLASSES).reshape(peer_count, ROWS, -1)
    network = topologies.schedule("tree", peer_count, np.random.default_rng(0))
    start = np.tile(FAMILY.uniform(CLASSES, ROWS / 0.05), (peer_count, 1, 1))
    for strategy in (CRC(), Exact(rounds=20)):
        here, there = Device(), Device("cuda", "float32")
        plain = Broadcast(
            strategy,
            network,
            lambda stats: core.residual(features, one_hot, FAMILY.weights(stats)),
            Faults(0, 0),
            here,
        )
        fast = Broadcast(strategy, network, peers.residual, Faults(0, 0), there)
        one, other = plain.begin(start), fast.begin(there.put(start))
        for turn in range(1, 21):
            one, other = plain.advance(one, turn)[0], fast.advance(other, turn)[0]
        expected, got = plain.read(one), fast.read(other).cpu().numpy()
        apart = np.abs(got - expected).max() / np.abs(expected).max()
        report(f"{strategy.name}: largest difference from NumPy / largest S", apart, "<= 1e-3", apart <= 1e-3)


def large(peer_count: int) -> None:
    peers = peers_on_gpu(peer_count)
    network = topologies.schedule("tree", peer_count, np.random.default_rng(0))
    device = Device("cuda", "float32")
    start = torch.as_tensor(FAMILY.uniform(CLASSES, ROWS / 0.05), dtype=torch.float32, device="cuda")
    start = start.repeat(peer_count, 1, 1)
    start *= 1 + 0.05 * torch.randn_like(start)
    size = start.nbytes
    print(f"{peer_count:,} peers: S is {size / 1e9:.2f} GB, x {peers.rows.values.nbytes / 1e9:.2f} GB")
    times = {"R alone, fused": milliseconds(lambda: peers.residual(start))}
    flat, weights = start.reshape(peer_count, -1), topologies.neighbour_mean(network.at(1))
    placed = device.put_matrix(weights)
    times["mixing alone, fused"] = milliseconds(lambda: placed @ flat)
    sparse = torch.sparse_csr_tensor(
        torch.as_tensor(weights.indptr), torch.as_tensor(weights.indices), torch.as_tensor(weights.data).float(),
        size=weights.shape, device="cuda",
    )  # fmt: skip
    times["mixing alone, PyTorch sparse"] = milliseconds(lambda: sparse @ flat, turns=3)
    copied = torch.empty_like(start)
    copy = milliseconds(lambda: copied.copy_(start))
    bandwidth = 2 * size / copy * 1e3
    for strategy in (CRC(), Exact()):
        driver = Broadcast(strategy, network, peers.residual, Faults(0, 0), device)
        held = [driver.begin(start)]

        def round_of(driver: Broadcast = driver, held: list = held) -> None:
            held[0] = driver.advance(held[0], 1)[0]

        times[f"a round of {strategy.name}"] = milliseconds(round_of)
        del driver, held, round_of
        torch.cuda.empty_cache()
    must = 6 * size + peers.rows.values.nbytes  # S of two neighbours, S̄ and x read; S̄, R and S written
    print(
        f"copying moves {bandwidth / 1e12:.2f} TB/s; a round of crc must move {must / bandwidth * 1e3:.1f} ms of it"
    )
    part = peer_count // 4
    some = FusedPeers(
        FAMILY,
        Rows(peers.rows.values[: part * ROWS], peers.rows.codes[: part * ROWS]),
        peers.labels[: part * ROWS],
        peers.row_weights[: part * ROWS],
        peers.offsets[: part + 1],
        CLASSES,
    )
    plain = plain_residual(some, part)
    times["R alone, plain PyTorch (a quarter of the peers, times four)"] = 4 * milliseconds(
        lambda: plain(start[:part]), turns=3
    )
    for name, time in times.items():
        print(f"    {name:<62} {time:8.2f} ms")
    report("a round of crc, ms", times["a round of crc"], f"<= {LIMIT}", times["a round of crc"] <= LIMIT)
    print(f"memory: {torch.cuda.max_memory_allocated() / 1e9:.0f} GB at most")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", type=int, default=1_000_000)
    peer_count = parser.parse_args().peers
    print(torch.cuda.get_device_name())
    small()
    large(peer_count)
    return verdict()


if __name__ == "__main__":
    sys.exit(main())
