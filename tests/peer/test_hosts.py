"""Six hosts in a tree whose links fail: one is cut for five rounds, a host loses power, another is slow by two seconds.

Two worlds hold the same law. In one every host is a network namespace, and its packets go through a switch. Where
namespaces are not allowed there is the other: each peer's connections go through a tunnel of its own.
"""

import networkx as nx
import numpy as np
import pytest
from sklearn.datasets import load_digits

import peerbayes as pb
from peerbayes.peer.agreement.terms import Limits, Terms
from peerbayes.peer.learning.verdict import ENDED_BADLY
from shared.failing_hosts import NAMES, Hosts, Namespaces, Tunnels
from shared.kinds_of_links import rerouted

pytestmark = [pytest.mark.long, pytest.mark.links]

LINKS = [(0, 1), (1, 2), (2, 3), (3, 4), (2, 5)]
CUT = ("peer-2", "peer-3")  # both have others to go on with
OFF = "peer-4"  # another hears of the rest through it only
SLOW, DELAY = "peer-6", 2.0  # seconds
ROUNDS, DEADLINE = 22, 5.0  # seconds: more than a slow answer takes
SIZES = (150, 90, 220, 130, 60, 180)  # rows of each; the others are for testing


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True, as_frame=True)
    order = np.random.default_rng(0).permutation(len(y))
    *parts, test = np.split(order, np.cumsum(SIZES))
    return X, y.to_numpy(), parts, test


def found(folder, world, digits):
    X, y, parts, _ = digits
    terms = Terms("hosts", "digit", rounds=ROUNDS, limits=Limits(deadline=DEADLINE), strategy="exact")
    tables = [X.iloc[part].assign(digit=y[part]) for part in parts]
    hosts = Hosts.create(folder, terms, tables, LINKS, rerouted(world.addresses, LINKS))
    hosts.world = world
    world.know(hosts)
    return hosts


def errors(hosts, digits):
    X, y, _, test = digits
    models = {name: pb.load(home.model_path) for name, home in hosts.homes.items()}
    return {name: 1.0 - float(model.score(X.iloc[test], y[test])) for name, model in models.items()}


def fault_free(digits):
    """The simulator's run, which an undisturbed one equals (test_survival.py)."""
    X, y, parts, test = digits
    run = pb.simulate(
        X, y, peers=6, partition=parts, topology=nx.Graph(LINKS),
        strategy="exact", rounds=ROUNDS, references=False, evaluate_every=0, test=(X.iloc[test], y[test]),
    )  # fmt: skip
    return {
        name: 1.0 - run.classifier(place).score(X.iloc[test], y[test]) for place, name in enumerate(NAMES)
    }


@pytest.mark.parametrize("kind", [Tunnels, Namespaces], ids=["tunnels", "namespaces"])
def test_a_cut_link_a_power_cut_and_a_slow_host(kind, tmp_path, digits):
    with kind() as world:
        hosts = found(tmp_path, world, digits)
        world.slow[SLOW] = DELAY
        try:
            disturbed(hosts, world)
        finally:
            hosts.stop()
    for name in NAMES:
        assert [entry["round"] for entry in hosts.history(name)] == list(range(1, ROUNDS + 1))
    times = [entry["at"] for entry in hosts.history("peer-3")]
    assert np.median(np.diff(times)) >= DELAY  # its neighbour is slow, and was waited for
    assert hosts.without("peer-3", SLOW) <= ROUNDS // 4
    undisturbed, reached = fault_free(digits), errors(hosts, digits)
    assert all(abs(reached[name] - undisturbed[name]) <= 0.01 for name in NAMES), (undisturbed, reached)


def disturbed(hosts, world):
    """A run with a link that is cut for five rounds, and then a host without power for three."""
    for name in NAMES:
        hosts.start(name)
    hosts.until(lambda: len(hosts.history(CUT[0])) >= 2)
    world.cut.add(frozenset(CUT))
    hosts.until(lambda: min(hosts.without(*CUT), hosts.without(*CUT[::-1])) >= 5)
    world.cut.clear()
    back = len(hosts.history(CUT[0]))
    hosts.until(lambda: any(CUT[1] in entry["heard"] for entry in hosts.history(CUT[0])[back:]))

    world.off.add(OFF)
    hosts.processes[OFF].kill()
    hosts.processes[OFF].wait()
    reached = len(hosts.history(OFF))
    assert reached < ROUNDS - 5
    hosts.until(lambda: hosts.without("peer-3", OFF) >= 3)
    assert len(hosts.history(OFF)) == reached
    world.off.clear()
    hosts.start(OFF)
    hosts.until(lambda: all(process.poll() in (0, ENDED_BADLY) for process in hosts.processes.values()))
    assert {hosts.processes[name].returncode for name in CUT} == {
        ENDED_BADLY
    }  # five rounds of 22 without each other
