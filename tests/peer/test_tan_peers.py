"""Peers that learn Bayesian networks: the structure, too, is agreed on, and both end where the simulator does."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

import peerbayes as pb
from peerbayes import network as topologies
from peerbayes.peer.agreement.terms import Terms
from peerbayes.peer.loopback import Loopback
from shared.peers_in_memory import DENSE, same_as_simulated, shared_out

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.mark.parametrize("family", ["tan", "kdb"])
@pytest.mark.parametrize("start", ["uniform", "ml"])
@pytest.mark.parametrize("strategy", ["exact", "relay"])
def test_peers_end_where_the_simulator_does(family, start, strategy, tmp_path, rng):
    terms = Terms("test", "label", family=family, strategy=strategy, start=start, rounds=12)
    peers, run = same_as_simulated(tmp_path, terms, DENSE, shared_out(rng, missing=False))
    assert {node.session.agreed.family.parents for node in peers.nodes.values()} == {run.layout.parents}
    assert any(run.layout.parents)


@pytest.mark.long
def test_five_processes_learn_a_tree_over_mutual_tls(tmp_path):
    X, y = load_digits(return_X_y=True, as_frame=True)
    X = X.iloc[:, 18:30].assign(dark=np.where(X["pixel_4_4"] > 8, "yes", "no"))
    parts = np.array_split(np.random.default_rng(0).permutation(len(y)), 5)
    links = topologies.adjacency("tree", 5, np.random.default_rng(1))
    terms = Terms("trees", "digit", family="tan", start="ml", strategy="exact", rounds=16)
    tables = [X.iloc[part].assign(digit=y.iloc[part]) for part in parts]
    network = Loopback.create(tmp_path, terms, tables, topologies.pairs(links).tolist())
    try:
        for name in network.homes:
            network.start(name)
        network.wait()
    finally:
        network.stop()
    models = [pb.load(home.model_path) for home in network.homes.values()]
    run = pb.simulate(
        X, y, peers=5, partition=parts, topology=links, family="tan", start="ml", start_rounds=300, rounds=16,
        strategy="exact", references=False, evaluate_every=0, test=(X, y),
    )  # fmt: skip
    for place, model in enumerate(models):
        assert model.parents_ == run.classifier(place).parents_
        stats = model.statistics_.expressed(run.schema).values
        assert np.abs(stats - run.statistics(place).values).max() <= 1e-9
