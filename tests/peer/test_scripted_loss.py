"""Real peers that lose messages end where a simulation ends that replays the loss, for every strategy."""

import asyncio
import contextlib

import networkx as nx
import numpy as np
import pandas as pd
import pytest

from peerbayes.learning import planning
from peerbayes.learning.relay import spanning_tree
from peerbayes.learning.strategies import STRATEGIES
from peerbayes.network import LossTrace, adjacency
from peerbayes.peer.agreement.terms import Limits, Privacy, Robust, Terms
from peerbayes.peer.loopback import Loopback
from peerbayes.peer.missed_messages import missed_messages
from peerbayes.peer.protocol.transport import Links
from shared import real_calls
from shared.own_strategy import Momentum
from shared.peers_in_memory import DENSE, SIZES, shared_out, simulated, table
from shared.real_calls import node_of, within
from shared.scripted_loss import LosingPeers, Losses

pytestmark = pytest.mark.usefixtures("impatient_with_grace")

ROUNDS = 12
PATIENT = Limits(
    deadline=3600.0, quorum=0.01
)  # a round closes once one neighbour was heard, if nobody else may come
SIDES = {"one-sided": False, "two-sided": True}


def links_of(strategy, graph):
    """Return the links that a strategy may send over [N, N]: those of the tree where it may relay."""
    links = adjacency(graph, len(graph), np.random.default_rng(0))
    if strategy not in ("relay", "auto"):
        return links
    tree, matrix = spanning_tree(links), np.zeros(links.shape)
    matrix[tree.receiver, tree.sender] = 1
    return matrix


def drawn(terms, graph, share, two_sided=False):
    """Return a trace that leaves every peer the quorum of its agreement."""
    links, rng = links_of(terms.strategy, graph), np.random.default_rng(7)
    trace = LossTrace.drawn(links, terms.rounds, share, rng, two_sided, terms.limits.quorum)
    assert len(trace) >= 2
    return trace


def lossy(folder, terms, graph, shared, trace, **more):
    """Return peers that have run with the losses of a trace, and their statistics [N, C, K]."""
    X, y, parts = shared
    peers = LosingPeers(folder, terms, graph, [(X.iloc[part], y[part]) for part in parts], trace, **more)
    return peers, np.stack(asyncio.run(peers.all()))


def recorded(peers):
    """Return the trace of what peers have missed, as their own files have it."""
    return LossTrace.recorded({name: peers.history(name) for name in peers.names})


def distance(reached, run, terms):
    """Return the largest difference of statistics as a share of m⁰; weights are compared as they are."""
    start = 1.0 if run.of_weights else run.sizes.sum() / (terms.lr * len(run.sizes))
    return np.abs(reached - run.stats).max() / start


def same_under_loss(folder, terms, graph, shared, trace, **more):
    """Peers and simulator lose the messages of a trace, and end with the same statistics, which others do not."""
    peers, reached = lossy(folder, terms, graph, shared, trace)
    run = simulated(shared, graph, terms, message_loss=trace, **more)
    assert distance(reached, run, terms) <= 1e-9
    without_loss = distance(reached, simulated(shared, graph, terms, **more), terms)
    if planning.silent(terms.strategy) or terms.strategy == "tree-sum":  # nothing is lost, or asked for again
        assert not recorded(peers) and without_loss <= 1e-9
    else:
        assert (
            recorded(peers) == trace and without_loss >= 1e-7
        )  # no message more, none less, and they matter
    for name in peers.names:
        assert peers.rounds(name) == list(range(terms.rounds + 1))
    return peers


@pytest.mark.parametrize("strategy", ["exact", "relay"])
def test_peers_that_lose_messages_end_where_the_simulator_does(strategy, tmp_path, rng):
    terms = Terms("test", "label", strategy=strategy, rounds=ROUNDS, limits=PATIENT)
    same_under_loss(tmp_path, terms, DENSE, shared_out(rng), drawn(terms, DENSE, 0.2))


@pytest.mark.long
@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("share", [0.05, 0.2])
@pytest.mark.parametrize("strategy", [*planning.names(), "momentum"])
def test_every_strategy_under_every_loss(strategy, share, sides, tmp_path, rng, monkeypatch):
    monkeypatch.setitem(STRATEGIES, "momentum", Momentum)  # a strategy that the package does not have
    terms = Terms("test", "label", strategy=strategy, rounds=ROUNDS, limits=PATIENT)
    same_under_loss(tmp_path, terms, DENSE, shared_out(rng), drawn(terms, DENSE, share, SIDES[sides]))


@pytest.mark.long
@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize(("alike", "chosen"), [(True, "exact"), (False, "relay")])
def test_what_auto_chooses_under_loss(alike, chosen, sides, tmp_path, rng):
    X, y = table(rng)
    order = rng.permutation(len(y)) if alike else np.argsort(y)
    terms = Terms("test", "label", strategy="auto", rounds=4, limits=PATIENT)
    graph, shared = nx.path_graph(5), (X, y, np.split(order, np.cumsum(SIZES)[:-1]))
    peers = same_under_loss(tmp_path, terms, graph, shared, drawn(terms, graph, 0.2, SIDES[sides]))
    assert peers.nodes["p0"].session.agreed.strategy == chosen


@pytest.mark.long
@pytest.mark.parametrize("guard", [False, True])
@pytest.mark.parametrize("strategy", ["exact", "crc"])
def test_robust_peers_under_loss(strategy, guard, tmp_path, rng):
    terms = Terms(
        "test", "label", strategy=strategy, rounds=ROUNDS, limits=PATIENT, robust=Robust("clip", guard=guard)
    )
    trace = drawn(terms, DENSE, 0.2)
    same_under_loss(tmp_path, terms, DENSE, shared_out(rng), trace, robust="guard" if guard else "clip")


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["exact", "tracking"])
def test_secure_sums_under_loss(strategy, tmp_path, rng):
    terms = Terms(
        "test", "label", strategy=strategy, rounds=ROUNDS, limits=PATIENT, privacy=Privacy(secure_sum=True)
    )
    graph = nx.complete_graph(5)
    same_under_loss(tmp_path, terms, graph, shared_out(rng), drawn(terms, graph, 0.05), secure_sum=True)


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["exact", "relay"])
def test_what_real_deadlines_lose_is_recorded_and_replayed(strategy, tmp_path, rng):
    """Whatever a busy machine loses beside the trace: the peers' own files say what it was."""
    terms = Terms("test", "label", strategy=strategy, rounds=ROUNDS, limits=Limits(deadline=0.2, quorum=0.3))
    trace, shared = drawn(terms, DENSE, 0.2), shared_out(rng)
    peers, reached = lossy(tmp_path, terms, DENSE, shared, trace, waiting=True)
    path = tmp_path / "lost.csv"
    recorded(peers).save(path)
    replayed = LossTrace.load(path)
    assert trace.messages <= replayed.messages
    assert distance(reached, simulated(shared, DENSE, terms, message_loss=replayed), terms) <= 1e-9


@pytest.mark.links
@pytest.mark.long
def test_peers_over_links_that_lose_messages(tmp_path, rng, monkeypatch):
    terms = Terms("net", "label", rounds=ROUNDS, limits=PATIENT, strategy="exact")
    X, y, parts = shared_out(rng)
    X = X.assign(size="size " + X["size"])  # a file of digits would be read as numbers
    tables = [pd.DataFrame(X.iloc[part]).assign(label=y[part]) for part in parts]
    network, trace = Loopback.create(tmp_path, terms, tables, list(DENSE.edges)), drawn(terms, DENSE, 0.2)
    losses = Losses(trace, list(network.homes))

    class Losing(Links):
        async def ask(self, neighbour, request, timeout, largest=None):
            reply = await super().ask(neighbour, request, timeout)
            losses.drop(request, neighbour, self.name)
            return reply

    monkeypatch.setattr(real_calls, "Links", Losing)

    async def work():
        with contextlib.ExitStack() as stack:
            nodes = [stack.enter_context(node_of(home))[0] for home in network.homes.values()]
            reached = await asyncio.gather(*(losses.skip_waiting(node).run() for node in nodes))
            return reached, {node.session.name: node.store.history() for node in nodes}

    reached, histories = within(work())
    assert LossTrace.recorded(histories) == trace
    missed = missed_messages(network.homes.values())  # as `peerbayes peer trace` reads it from their folders
    assert missed.trace == trace and missed.rounds == dict.fromkeys(network.homes, ROUNDS)
    run = simulated((X, y, parts), DENSE, terms, message_loss=trace)
    assert distance(np.stack(reached), run, terms) <= 1e-9
