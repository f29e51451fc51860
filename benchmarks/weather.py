"""Real peers in bad weather: four processes in network namespaces, with rows of adult that differ.

    PEERBAYES_DATA=folder python benchmarks/weather.py [fair] [flapping] [storm] [away] [--seeds 0,1] [--strategy exact]

fair       hosts 100 ms from each other, and nothing else
flapping   one host's links are two seconds up and five down
storm      every packet is lost with 30 %, takes 300 ms ± 200 ms, and comes twice with 10 %; all links, packets of IP
away       one host loses its power after a third of the rounds, and is back once the others have done two thirds

A seed chooses the rows, their owners (by schooling) and the packets of a storm. The weather begins when everybody has
closed the first round: until then nothing can be lost. Of every run: the test error of each peer beside the simulator's
run without faults; messages that one end of a link missed, and both; what the peers missed, replayed by the simulator.
The exit code is 1 where a peer is more than .01 above the run without faults, or more than .002 from the replay. It
needs root and /dev/net/tun. A run takes half a minute (fair) to ten minutes (storm).
"""

import argparse
import contextlib
import os
import random
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import measuring  # noqa: F401  one thread
import networkx as nx
import numpy as np
import pandas as pd

import peerbayes as pb
from peerbayes.experiments.cells import prepared
from peerbayes.network import LossTrace
from peerbayes.peer.agreement.terms import Limits, Terms
from peerbayes.peer.status import status

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from shared.failing_hosts import Hosts, Namespaces

PEERS, ROWS = 4, 2400
LINKS = [(a, b) for a in range(PEERS) for b in range(a)]
NAMES = [f"peer-{number + 1}" for number in range(PEERS)]
UNSTEADY = NAMES[-1]  # the host that flaps, or is away
UP, DOWN = 2.0, 5.0  # seconds
APART = 0.1  # seconds from host to host, so that a run does not fit between two breaks
LOST, LATE, SPREAD, TWICE = 0.3, 0.3, 0.2, 0.1
DEADLINES = {"fair": 10.0, "flapping": 1.0, "storm": 5.0, "away": 2.0}  # seconds
FAULT_FREE, REPLAYED = 0.01, 0.002  # largest differences of errors
HANG = 1800.0  # seconds


class Weather(Namespaces):
    """Hosts whose packets are lost, late and doubled in a storm."""

    storm: random.Random | None = None

    def delays(self, sender: str, receiver: str) -> tuple[float, ...]:
        delays = super().delays(sender, receiver)
        if self.storm is None or not delays:
            return delays
        copies = 0 if self.storm.random() < LOST else 1 + (self.storm.random() < TWICE)
        return tuple(LATE + SPREAD * self.storm.uniform(-1, 1) for _ in range(copies))


def owners(seed: int) -> tuple[pd.DataFrame, np.ndarray, list[np.ndarray], tuple[pd.DataFrame, np.ndarray]]:
    """Return rows, labels, the rows of each peer by schooling, and test rows."""
    data = prepared("adult")
    (X, y), (test_X, test_y) = data.split(ROWS, seed)
    discrete = [column.name for column in data.schema.columns if column.kind == "discrete"]

    def frame(values: np.ndarray) -> pd.DataFrame:
        table = pd.DataFrame(values, columns=data.schema.names)
        return table.assign(**{name: [f"c{code:g}" for code in table[name]] for name in discrete})

    schooling = X[:, data.schema.names.index("x4")]
    order = np.argsort(schooling / schooling.std() + 0.3 * np.random.default_rng(seed).normal(size=ROWS))
    return frame(X), y, np.array_split(order, PEERS), (frame(test_X), test_y)


@contextlib.contextmanager
def flapping(world: Weather) -> Iterator[None]:
    """Cut the links of a host and mend them, until the end."""
    ended, links = threading.Event(), {frozenset((UNSTEADY, name)) for name in NAMES[:-1]}

    def flap() -> None:
        while not ended.is_set():
            world.cut |= links
            ended.wait(DOWN)
            world.cut -= links
            ended.wait(UP)

    thread = threading.Thread(target=flap)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def wait(hosts: Hosts, condition) -> None:
    end = time.monotonic() + HANG
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"rounds after {HANG:.0f} s: {[len(hosts.history(name)) for name in NAMES]}")
        time.sleep(0.1)


def run(hosts: Hosts, world: Weather, scenario: str, rounds: int, seed: int) -> float:
    """Run peers to their end; return the seconds from the first round to the last."""

    def closed() -> int:
        return min(len(hosts.history(name)) for name in NAMES[:-1])

    with contextlib.ExitStack() as stack:
        stack.callback(hosts.stop)
        for name in NAMES:
            hosts.start(name)
        wait(hosts, lambda: min(len(hosts.history(name)) for name in NAMES) >= 1)
        began = time.monotonic()
        if scenario == "flapping":
            stack.enter_context(flapping(world))
        elif scenario == "storm":
            world.storm = random.Random(seed)
        elif scenario == "away":
            wait(hosts, lambda: closed() >= rounds // 3)
            hosts.processes[UNSTEADY].kill()
            hosts.processes[UNSTEADY].wait()
            wait(hosts, lambda: closed() >= 2 * rounds // 3)
            hosts.start(UNSTEADY)
        wait(hosts, lambda: min(len(hosts.history(name)) for name in NAMES) >= rounds)
        seconds = time.monotonic() - began
        wait(hosts, lambda: all(status(home)["verdict"] for home in hosts.homes.values()))
    return seconds


def simulated(rows, terms: Terms, trace: LossTrace | None = None) -> np.ndarray:
    """Return the test error of each peer in the simulator: [N]."""
    X, y, parts, (test_X, test_y) = rows
    result = pb.simulate(
        X, y, peers=PEERS, partition=parts, topology=nx.Graph(LINKS), strategy=terms.strategy, rounds=terms.rounds,
        references=False, evaluate_every=0, test=(test_X, test_y), message_loss=trace or 0.0,
    )  # fmt: skip
    return np.array([1.0 - result.classifier(peer).score(test_X, test_y) for peer in range(PEERS)])


def sides(trace: LossTrace) -> tuple[int, int]:
    """Return the link-rounds in which one end missed the other, and both did."""
    both = sum((turn, receiver, sender) in trace.messages for turn, sender, receiver in trace.messages)
    return len(trace) - both, both // 2


def measure(scenario: str, seed: int, given: argparse.Namespace) -> bool:
    rows = X, y, parts, (test_X, test_y) = owners(seed)
    deadline = given.deadline or DEADLINES[scenario]
    terms = Terms(
        "weather", "income", strategy=given.strategy, rounds=given.rounds, limits=Limits(deadline=deadline)
    )
    with tempfile.TemporaryDirectory() as folder, Weather() as world:
        tables = [X.iloc[part].assign(income=y[part]) for part in parts]
        hosts = Hosts.create(Path(folder), terms, tables, LINKS, world.addresses[:PEERS])
        hosts.world = world
        world.slow = dict.fromkeys(NAMES, APART)
        seconds = run(hosts, world, scenario, terms.rounds, seed)
        models = [pb.load(hosts.homes[name].model_path) for name in NAMES]
        histories = {name: hosts.history(name) for name in NAMES}
        if given.keep:
            for name in NAMES:
                target = given.keep / f"{scenario}-{seed}-{name}.log"
                target.write_bytes(hosts.homes[name].log_path.read_bytes())
    reached = np.array([1.0 - model.score(test_X, test_y) for model in models])
    trace = LossTrace.recorded(histories)
    if given.keep:
        trace.save(given.keep / f"{scenario}-{seed}.csv")
    fault_free, replayed = simulated(rows, terms), simulated(rows, terms, trace)
    one_sided, two_sided = sides(trace)
    above, apart = (reached - fault_free).max(), np.abs(reached - replayed).max()
    met = above <= FAULT_FREE and apart <= REPLAYED
    print(
        f"{scenario:<10}{seed:>5}{seconds:>8.0f}{one_sided:>6}{two_sided:>6}  "
        f"{' '.join(f'{error:.4f}' for error in reached)}  {fault_free.mean():>8.4f}{above:>+9.4f}"
        f"{apart:>9.4f}  {'ok' if met else 'MISSED'}",
        flush=True,
    )
    return met


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenarios", nargs="*", metavar="scenario", help=", ".join(DEADLINES))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--strategy", default="exact")
    parser.add_argument("--rounds", type=int, default=64)
    parser.add_argument("--deadline", type=float, help="seconds, instead of the scenario's")
    parser.add_argument("--keep", type=Path, help="a folder for logs and recorded losses")
    given = parser.parse_args()
    if unknown := set(given.scenarios) - set(DEADLINES):
        parser.error(f"{', '.join(unknown)}: expected scenarios out of {', '.join(DEADLINES)}")
    if "PEERBAYES_DATA" not in os.environ:
        parser.error("PEERBAYES_DATA must name the folder of the datasets")
    if not Namespaces.allowed():
        parser.error("hosts of their own need root, `ip` and /dev/net/tun")
    warnings.filterwarnings("ignore", "X has feature names")
    print(f"{'':<10}{'':>5}{'':>8}{'missed by':>12}  {'test error':<27}  {'fault-':>8}{'':>9}{'from its':>9}")
    print(
        f"{'':<10}{'seed':>5}{'seconds':>8}{'one':>6}{'both':>6}  {'of each peer':<27}  {'free':>8}{'above':>9}"
        f"{'replay':>9}"
    )
    met = [
        measure(scenario, int(seed), given)
        for scenario in given.scenarios or DEADLINES
        for seed in given.seeds.split(",")
    ]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
