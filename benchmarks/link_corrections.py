"""What corrections by link cost: a round of `exact` with them beside one without, and their memory.

    python benchmarks/link_corrections.py [--peers 50 50000] [--rounds 12]

Both run the same rounds of the same network, in which 5 % of messages are lost, alternately, on one thread, by the
processor's clock. Without corrections a round is what it was before there were any. Limit: 1.15.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace

import numpy as np
from threadpoolctl import threadpool_limits

from peerbayes.learning.state import arrays_of
from peerbayes.simulation.drivers import agreed_start, build_driver, plan_of
from peerbayes.simulation.population import Population
from peerbayes.simulation.settings import SimulationSettings

LIMIT, COLUMNS, ROWS = 1.15, 16, 50


def drivers(peers: int):
    """Return two drivers of one network, with and without corrections by link, and their start."""
    rng = np.random.default_rng(peers)
    X, y = rng.normal(size=(peers * ROWS, COLUMNS)), rng.integers(0, 2, peers * ROWS)
    settings = SimulationSettings({
        "strategy": "exact", "peers": peers, "rows_per_peer": ROWS, "topology": "tree+20", "message_loss": 0.05,
        "references": False, "test": (X[:100], y[:100]),
    })  # fmt: skip
    population = Population.of(settings, X, y)
    start, _ = agreed_start(settings, population)
    linked = build_driver(plan_of(settings, population, start), settings, population, start)
    assert linked.by_link
    return linked, replace(linked, by_link=False, _mixing={}), start


def measured(peers: int, rounds: int) -> tuple[float, float, float]:
    """Return the ratio of times, the time of a round without corrections, and the megabytes of corrections."""
    linked, plain, start = drivers(peers)
    times: dict[bool, list[float]] = {True: [], False: []}
    states = {True: linked.begin(start), False: plain.begin(start)}
    for round_index in range(1, rounds + 1):
        for by_link, driver in ((True, linked), (False, plain)):
            began = time.process_time()
            states[by_link], _ = driver.advance(states[by_link], round_index)
            times[by_link].append(time.process_time() - began)
    size = sum(array.nbytes for array in arrays_of(states[True].links)) / 1e6
    with_them, without = (float(np.median(times[by_link][2:])) for by_link in (True, False))
    return with_them / without, without, size


def main() -> int:
    """Print a line for each size; fail where a ratio is above the limit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", type=int, nargs="+", default=[50, 50_000])
    parser.add_argument("--rounds", type=int, default=12)
    arguments = parser.parse_args()
    worst = 0.0
    with threadpool_limits(1):
        for peers in arguments.peers:
            ratio, seconds, size = measured(peers, arguments.rounds)
            worst = max(worst, ratio)
            print(
                f"{peers:>7,} peers: {ratio:.2f} times a round without ({1e3 * seconds:.1f} ms), {size:.1f} MB"
            )
    print(f"largest {worst:.2f}; limit {LIMIT}")
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
