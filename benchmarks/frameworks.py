"""What a peer's round costs in a simulation: ours beside NumPy, gossipy, Flower and p2pfl, measured in one run.

    python benchmarks/frameworks.py                      ours and NumPy; the frameworks are "not installed"
    python benchmarks/frameworks.py --install FOLDER     each framework in a virtual environment of its own there
    python benchmarks/frameworks.py --gossipy PYTHON     an interpreter that has it; --flower and --p2pfl likewise

Every peer holds 50 rows of 16 columns and 26 classes. Ours and NumPy do a round of CRC with naive Bayes: mean of the
neighbours on a random tree, θ, residual, sum. The frameworks do a round of their own kind: each peer takes one step of
softmax regression on all its rows (17 numbers a class; naive Bayes has 33), then they exchange models. That step alone,
in NumPy and peer by peer, has a line too: what a framework takes beyond it is the framework's own.

Start-up, data, the first rounds and evaluation are not counted. The time is a round's over its peers, the lowest of
several, as in `measuring`: noise and unlucky waits of the frameworks are left out, in their favour. Arithmetic has one
thread; Flower's server, its one actor and Ray, and p2pfl's peers, may still use other cores beside it.
"""

from measuring import side_by_side  # isort: skip  # before numpy: it limits the threads

import argparse
import functools
import importlib.metadata
import json
import logging
import os
import platform
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

PEERS = 500
FEW = 10  # peers of p2pfl: threads that must all hear of each other; a ring of 20 did not come up in a minute
ROWS, COLUMNS, CLASSES = 50, 16, 26
RATE = 0.1  # of a gradient step; any will do
WARM = 2  # rounds that are not counted: caches, connections, first calls
TIMEOUT = 600  # seconds that a framework may take in all

# Beside each package, what it imports and does not ask for, or asks for in versions that no longer fit together.
PINS = {
    "gossipy": ["gossipy-dfl==0.0.1", "torchvision"],
    "flower": ["flwr[simulation]==1.41.0"],
    "p2pfl": ["p2pfl[dp]==0.4.4", "pyarrow==17.0.0", "huggingface_hub==0.26.5"],
}


# --- the same rows and the same step for all ------------------------------------------------------------


@functools.cache
def data(peers: int) -> tuple[np.ndarray, np.ndarray]:
    """Values [N, n, D] and class indices [N, n]."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, (peers, ROWS))
    return rng.normal(0, 0.3, (CLASSES, COLUMNS))[labels] + rng.normal(size=(peers, ROWS, COLUMNS)), labels


def ring(peers: int) -> np.ndarray:
    """Adjacency [N, N]."""
    linked = np.roll(np.eye(peers), 1, axis=1)
    return linked + linked.T


def softmax(logits: np.ndarray) -> np.ndarray:
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def gradient_step(weights: np.ndarray, bias: np.ndarray, x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    """One step of softmax regression on all rows of a peer: W [C, D], b [C], x [n, D], y [n]."""
    change = softmax(x @ weights.T + bias)
    change[np.arange(len(y)), y] -= 1.0
    change *= RATE / len(y)
    return [weights - change.T @ x, bias - change.sum(axis=0)]


def zeros() -> list[np.ndarray]:
    return [np.zeros((CLASSES, COLUMNS)), np.zeros(CLASSES)]


# --- ours and NumPy -------------------------------------------------------------------------------------


def rounds_at_home() -> dict[str, float]:
    """Seconds a round of 500 peers, side by side."""
    from peerbayes import network as topologies
    from peerbayes.learning.strategies import CRC
    from peerbayes.model.core import one_hot
    from peerbayes.model.devices import Device
    from peerbayes.model.families import NaiveBayes, Rows
    from peerbayes.model.kernels.peers import FusedPeers
    from peerbayes.simulation.faults import Faults
    from peerbayes.simulation.rounds import Broadcast

    values, labels = data(PEERS)
    rng = np.random.default_rng(1)
    family = NaiveBayes(continuous=COLUMNS, variance_floor=0.05, count_floor=1e-4)
    rows = Rows(values.reshape(-1, COLUMNS), np.zeros((labels.size, 0), dtype=np.int32))
    fused = FusedPeers(
        family, rows, labels.ravel(), np.ones(labels.size), np.arange(PEERS + 1) * ROWS, CLASSES
    )
    start = family.uniform(CLASSES, 1000.0)
    stats = start + 0.1 * start.max() * rng.normal(size=(PEERS, *start.shape))
    tree = topologies.adjacency("tree", PEERS, rng)
    ours = Broadcast(CRC(), topologies.Static(tree), fused.residual, Faults(0.0, 0), Device())

    mixing = topologies.neighbour_mean(tree)
    features = family.features(rows).reshape(PEERS, ROWS, -1)
    targets = one_hot(labels, CLASSES)
    neighbours = np.split(mixing.indices, mixing.indptr[1:-1])

    def vectorised() -> np.ndarray:
        mixed = (mixing @ stats.reshape(PEERS, -1)).reshape(stats.shape)
        posteriors = softmax(features @ family.weights(mixed).mT)
        return mixed + (targets - posteriors).mT @ features

    def one_by_one() -> list[np.ndarray]:
        after = []
        for heard, phi, target in zip(neighbours, features, targets, strict=True):
            mixed = stats[heard].mean(axis=0)
            after.append(mixed + (target - softmax(phi @ family.weights(mixed).T)).T @ phi)
        return after

    def steps() -> list[list[np.ndarray]]:
        return [gradient_step(*zeros(), x, y) for x, y in zip(values, labels, strict=True)]

    own = ours.advance(stats, 1)[0]
    assert np.allclose(own, vectorised()) and np.allclose(own, one_by_one())
    calls = {
        "peerbayes": lambda: ours.advance(stats, 1),
        "NumPy, vectorised": vectorised,
        "NumPy, peer by peer": one_by_one,
        "softmax regression's step alone, NumPy, peer by peer": steps,
    }
    return dict(zip(calls, side_by_side(*calls.values(), turns=15), strict=True))


# --- the frameworks, each in an interpreter of its own --------------------------------------------------


def gossipy() -> dict[str, Any]:
    """Its logistic regression and PyTorch handler on a ring; every peer sends to a neighbour, who merges and steps."""
    import torch
    from gossipy.core import AntiEntropyProtocol, CreateModelMode, StaticP2PNetwork
    from gossipy.data import DataDispatcher
    from gossipy.data.handler import ClassificationDataHandler
    from gossipy.model.handler import TorchModelHandler
    from gossipy.model.nn import LogisticRegression
    from gossipy.node import GossipNode
    from gossipy.simul import GossipSimulator, SimulationEventReceiver

    logging.disable(logging.WARNING)
    torch.set_num_threads(1)

    class Clock(SimulationEventReceiver):
        def __init__(self) -> None:
            self.ticks: list[float] = []

        def update_timestep(self, t: int) -> None:
            self.ticks.append(time.perf_counter())

        def update_message(self, failed: bool, msg: Any = None) -> None: ...
        def update_evaluation(self, round: int, on_user: bool, evaluation: Any) -> None: ...
        def update_end(self) -> None: ...

    values, labels = data(PEERS)
    handler = ClassificationDataHandler(
        torch.tensor(values.reshape(-1, COLUMNS), dtype=torch.float32),
        torch.tensor(labels.ravel()),
        test_size=0.0,
    )
    dispatcher = DataDispatcher(handler, n=PEERS, eval_on_user=False, auto_assign=False)
    dispatcher.set_assignments(np.arange(labels.size).reshape(PEERS, ROWS).tolist(), None)
    proto = TorchModelHandler(
        net=LogisticRegression(COLUMNS, CLASSES),
        optimizer=torch.optim.SGD,
        optimizer_params={"lr": RATE},
        criterion=torch.nn.CrossEntropyLoss(),
        local_epochs=1,
        batch_size=0,  # all rows: one step
        create_model_mode=CreateModelMode.MERGE_UPDATE,
    )
    network = StaticP2PNetwork(PEERS, ring(PEERS))
    nodes = GossipNode.generate(dispatcher, network, proto, round_len=1, sync=True)
    simulator = GossipSimulator(nodes, dispatcher, delta=1, protocol=AntiEntropyProtocol.PUSH)
    clock = Clock()
    simulator.add_receiver(clock)
    simulator.init_nodes()
    simulator.start(n_rounds=15)
    return result(clock.ticks, PEERS, "gossipy-dfl", "torch")


def flower() -> dict[str, Any]:
    """Its simulation over Ray with one actor, averaging by its FedAvg; the client is the NumPy step."""
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    import frameworks  # this file, by a name that Ray's processes can import: the client travels by reference
    from flwr.app import ArrayRecord
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    logging.disable(logging.WARNING)
    ticks: list[float] = []
    server, client = ServerApp(), ClientApp()
    client.train()(frameworks.flower_client)

    @server.main()
    def main(grid: Any, context: Any) -> None:
        FedAvg(fraction_evaluate=0.0, min_available_nodes=PEERS).start(
            grid, ArrayRecord(zeros()), num_rounds=8, evaluate_fn=lambda *_: ticks.append(time.perf_counter())
        )

    run_simulation(
        server,
        client,
        PEERS,
        backend_config={
            "init_args": {"num_cpus": 1, "logging_level": "ERROR", "log_to_driver": False},
            "client_resources": {"num_cpus": 1},
        },
    )
    return result(ticks, PEERS, "flwr", "ray")


def flower_client(message: Any, context: Any) -> Any:
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    values, labels = data(PEERS)  # once in each of Ray's processes
    own = context.node_config["partition-id"]
    after = gradient_step(*message.content["arrays"].to_numpy_ndarrays(), values[own], labels[own])
    reply = {"arrays": ArrayRecord(after), "metrics": MetricRecord({"num-examples": ROWS})}
    return Message(content=RecordDict(reply), reply_to=message)


def p2pfl() -> dict[str, Any]:
    """Its nodes in memory, without Ray, on a ring; averaging by its FedAvg. Every node trains in every round.

    A model that reaches a node before it knows who trains is dropped, and then refused until
    `mode_expectation_timeout` is over: by default all would wait for a minute.
    """
    from p2pfl.settings import Settings

    Settings.set_from_dict(
        {
            "general": {"disable_ray": True, "log_level": "ERROR", "log_dir": tempfile.mkdtemp()},
            "heartbeat": {"timeout": 60, "wait_convergence": 2},
            "gossip": {
                "period": 0.01,
                "models_period": 0.02,
                "mode_expectation_timeout": 0.2,
                "models_per_round": FEW,
                "messages_per_period": 10**9,
                "amount_last_messages_saved": 10**4,
                "exit_on_x_equal_rounds": 10**3,
            },
        }
    )
    from p2pfl.communication.protocols.protobuff.memory import MemoryCommunicationProtocol
    from p2pfl.learning.dataset.p2pfl_dataset import P2PFLDataset
    from p2pfl.learning.frameworks.learner import Learner
    from p2pfl.learning.frameworks.p2pfl_model import P2PFLModel
    from p2pfl.node import Node
    from p2pfl.utils.utils import wait_convergence, wait_to_finish

    class Model(P2PFLModel):
        def get_parameters(self) -> list[np.ndarray]:
            return self.model

        def set_parameters(self, params: list[np.ndarray] | bytes) -> None:
            self.model = self.decode_parameters(params)[0] if isinstance(params, bytes) else params

        def get_framework(self) -> str:
            return "numpy"

    class Stepping(Learner):
        def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
            super().__init__()
            self.x, self.y, self.ticks = x, y, []

        def fit(self) -> P2PFLModel:
            model = self.get_model()
            model.set_parameters(gradient_step(*model.get_parameters(), self.x, self.y))
            model.set_contribution([self.addr], ROWS)
            self.ticks.append(time.perf_counter())
            return model

        def evaluate(self) -> dict[str, float]:
            return {}

        def interrupt_fit(self) -> None: ...
        def get_framework(self) -> str:
            return "numpy"

    learners = [Stepping(x, y) for x, y in zip(*data(FEW), strict=True)]
    rows = P2PFLDataset(None, batch_size=ROWS, dataset_name="rows")  # the learners hold them
    nodes = [
        Node(Model(zeros()), rows, learner=each, protocol=MemoryCommunicationProtocol()) for each in learners
    ]
    for node in nodes:
        node.start()
    for node, other in zip(nodes, nodes[1:] + nodes[:1], strict=True):
        node.connect(other.addr)
    wait_convergence(nodes, FEW - 1, wait=60)
    nodes[0].set_start_learning(rounds=10, epochs=1, trainset_size=FEW)
    wait_to_finish(nodes, timeout=60)
    ends = [max(ticks) for ticks in zip(*(each.ticks for each in learners), strict=True)]
    return result(ends, FEW, "p2pfl")


WORKERS: dict[str, Callable[[], dict[str, Any]]] = {"gossipy": gossipy, "flower": flower, "p2pfl": p2pfl}


def result(ticks: list[float], peers: int, *packages: str) -> dict[str, Any]:
    """What a worker answers: seconds of each counted round, from the times at which rounds ended."""
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in packages)
    return {"peers": peers, "rounds": np.diff(ticks)[WARM:].tolist(), "versions": versions}


def answer(worker: str) -> None:
    """Run a worker, print its answer as the last line, and end, whatever threads it left."""
    try:
        found = WORKERS[worker]()
    except ImportError as error:
        found = {"missing": str(error)}
    print("\n" + json.dumps(found), flush=True)
    os._exit(0)


# --- side by side ---------------------------------------------------------------------------------------


def ask(worker: str, python: str | None) -> dict[str, Any]:
    """A worker's answer from the interpreter that has its framework, or why there is none."""
    if python is None:
        return {"missing": "no interpreter given"}
    try:
        done = subprocess.run(
            [python, __file__, "--worker", worker], capture_output=True, text=True, timeout=TIMEOUT
        )
    except FileNotFoundError:
        return {"missing": f"no interpreter at {python}"}
    except subprocess.TimeoutExpired:
        return {"failed": f"not done after {TIMEOUT} s"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def install(worker: str, folder: Path) -> str:
    """The interpreter of a virtual environment with the framework in it; if pip fails, the worker will say so."""
    home = folder.resolve() / worker
    python = str(home / "bin" / "python")
    if not home.exists():
        venv.create(home, with_pip=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", *PINS[worker]])
    return python


def line(name: str, seconds: float, own: float, about: str) -> None:
    print(f"{name:<54}{seconds * 1e6:>12,.1f}{seconds / own:>12,.1f}   {about}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--install", type=Path, metavar="FOLDER", help="install the frameworks there, and run them"
    )
    for worker in WORKERS:
        parser.add_argument(f"--{worker}", metavar="PYTHON", help=f"the interpreter that has {worker}")
    parser.add_argument("--worker", choices=WORKERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        answer(options.worker)
    pythons = {worker: getattr(options, worker) for worker in WORKERS}
    for worker in WORKERS:
        if options.install and not pythons[worker]:
            pythons[worker] = install(worker, options.install)

    print(f"{ROWS} rows a peer, {COLUMNS} columns, {CLASSES} classes; Python {platform.python_version()}")
    print(f"{'':<54}{'µs a peer':>12}{'times ours':>12}")
    home = rounds_at_home()
    own = home["peerbayes"] / PEERS
    for name, seconds in home.items():
        line(name, seconds / PEERS, own, f"{PEERS} peers")
    for worker, python in pythons.items():
        found = ask(worker, python)
        if "rounds" in found:
            peers, spent = found["peers"], np.array(found["rounds"]) / found["peers"]
            middle = f"median {np.median(spent) * 1e6:,.0f}"
            line(worker, spent.min(), own, f"{peers} peers, {middle}, {found['versions']}")
        else:
            why = "not installed: " + found["missing"] if "missing" in found else "failed: " + found["failed"]
            print(f"{worker:<54}{why}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
