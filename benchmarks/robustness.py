"""Every network, lost messages and absent peers, in the paper's setting (50 x 50 rows or nearly).

    PEERBAYES_DATA=folder python benchmarks/robustness.py [topologies] [faults] [--seeds 2]

topologies  gap of `exact` to RC, i.i.d., on letter and adult, for every network offered; each must stay within 0.01
faults      gaps with 20 % of messages lost, 10 % of peers away, or 20 % of messages late, beside the fault-free one
"""

import argparse
import os
import sys
from pathlib import Path

from paper_network import gap

NETWORKS = {
    "tree": 50, "chain": 50, "ring": 50, "star": 50, "grid": 49, "torus": 49, "hypercube": 32, "bipartite": 50,
    "exponential": 50, "complete": 50, "tree+80": 50, "erdos-0.1": 50, "small-world-4-0.1": 50,
    **{f"regular-{degree}": 50 for degree in range(3, 11)},
}  # fmt: skip
CELLS = (
    ("letter", "iid"),
    ("adult", "iid"),
    ("secondary", "drift-y"),
    ("smoking", "drift-y"),
    ("pulsar", "drift-xy"),
)
FAULTS = {
    "none": {},
    "20 % lost": {"message_loss": 0.2},
    "10 % away": {"peers_down": 0.1},
    "20 % late": {"message_delay": 0.2},
}


def topologies(folder: Path, seeds: int) -> list[str]:
    missed = []
    print(f"{'network':<20}{'letter':>9}{'adult':>9}   gap of exact to RC, i.i.d., limit 0.01")
    for network, peers in NETWORKS.items():
        gaps = [gap(folder, name, seeds, topology=network, peers=peers)[0] for name in ("letter", "adult")]
        bad = max(gaps) > 0.01
        missed += [network] if bad else []
        print(f"{network:<20}{gaps[0]:>9.4f}{gaps[1]:>9.4f}   {'MISSED' if bad else 'ok'}", flush=True)
    return missed


def faults(folder: Path, seeds: int) -> list[str]:
    print(f"\n{'dataset':<12}{'partition':<12}{'strategy':<14}" + "".join(f"{name:>12}" for name in FAULTS))
    for name, partition in CELLS:
        for strategy in ("crc", "exact", "tracking"):
            gaps = [
                gap(folder, name, seeds, partition=partition, strategy=strategy, **fault)[0]
                for fault in FAULTS.values()
            ]
            print(
                f"{name:<12}{partition:<12}{strategy:<14}" + "".join(f"{g:>12.4f}" for g in gaps), flush=True
            )
    return []


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "parts", nargs="*", default=["topologies", "faults"], choices=["topologies", "faults", []]
    )
    parser.add_argument("--seeds", type=int, default=2)
    asked = parser.parse_args()
    if "PEERBAYES_DATA" not in os.environ:
        print("PEERBAYES_DATA must name the folder of the datasets", file=sys.stderr)
        return 2
    folder = Path(os.environ["PEERBAYES_DATA"])
    missed = [network for part in asked.parts for network in globals()[part](folder, asked.seeds)]
    print("\nall limits met" if not missed else f"\nmissed: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
