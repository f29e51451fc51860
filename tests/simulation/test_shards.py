"""Shards: the numbers of `simulate` to rounding, however the network is cut and wherever the pieces are."""

import gc
import os
import signal

import numpy as np
import pytest
from sklearn.datasets import load_wine

import peerbayes as pb
from peerbayes import network
from peerbayes.learning.strategies import CRC, STRATEGIES
from peerbayes.simulation.records import COLUMNS
from peerbayes.simulation.sharded import ShardLost, simulate_shards
from peerbayes.simulation.sharded.workers import cluster, crossing, cut, plans

X, Y = load_wine(return_X_y=True)
X = X[:, :5]
QUICK = {
    "peers": 30, "rows_per_peer": 5, "rounds": 12, "topology": "tree+8", "seed": 3, "strategy": "exact",
}  # fmt: skip


def same(sharded, whole, rounds_judged=1, dtype="float64"):
    """Statistics and history of both, equal to rounding.

    A peer's rows are padded to the longest of its shard, and a BLAS may add up in another order where a product has
    another shape; what every round rounds differently adds up: with a few sums a round, to less than 100 units in the
    last place of the largest statistic. Errors are shares of rows, which rounding does not move here.
    """
    unit = np.finfo(dtype).eps
    nearly = max(1e-10, 100 * unit * np.abs(whole.stats).max()) if dtype == "float32" else 1e-10
    np.testing.assert_allclose(sharded.stats, whole.stats, rtol=0, atol=nearly)
    for index, name in enumerate(COLUMNS):
        tolerance = nearly if name in ("disagreement", "soft_error") else 1e-10
        np.testing.assert_allclose(sharded.records[:, index], whole.records[:, index], rtol=0, atol=tolerance)
    assert len(sharded.records) == rounds_judged * len(whole.stats)
    assert np.array_equal(sharded.sizes, whole.sizes)
    assert sharded.schema == whole.schema


@pytest.mark.parametrize("shards", [1, 2, 5])
@pytest.mark.parametrize("strategy", [*STRATEGIES, CRC(with_self=True)], ids=str)
def test_every_strategy_gives_the_same_numbers(strategy, shards):
    # A peer that learns alone cannot tell two classes apart that it has no rows of: rounding would decide its errors.
    partition = (
        [np.arange(20 + peer, 178, 30) for peer in range(30)] if strategy == "local" else "dirichlet-0.5"
    )
    settings = {**QUICK, "strategy": strategy, "partition": partition, "evaluate_every": 4}
    whole = pb.simulate(X, Y, **settings)
    sharded = simulate_shards(X, Y, shards=shards, stats_of="all", **settings)
    same(sharded, whole, rounds_judged=3)


@pytest.mark.parametrize(
    "settings",
    [
        {"family": "qda"},
        {"family": "lda", "objective": "peers", "partition": "quantity-0.5"},
        {"dtype": "float32"},
        {"local_steps": 3},
        {"evaluate_rows": 20},
        {"topology": "star"},
        {"topology": "complete"},
        {"test": (X[:30], Y[:30])},
    ],
    ids=str,
)
def test_settings_mean_what_they_mean_in_simulate(settings):
    settings = {**QUICK, **settings}
    whole = pb.simulate(X, Y, evaluate_every=0, **settings)
    sharded = simulate_shards(X, Y, shards=3, stats_of="all", **settings)
    same(sharded, whole, dtype=settings.get("dtype", "float64"))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_sums_over_neighbours_keep_their_order(dtype):
    """Every peer's sum has the same bits, at a border too, and in float32, where another order would show most."""
    rng = np.random.default_rng(0)
    links = network.adjacency("regular-6", 30, rng)
    mixing = network.neighbour_mean(links).astype(dtype)
    message = (rng.normal(size=(30, 12)) * np.exp(rng.normal(0, 4, (30, 1)))).astype(dtype)
    parts = cut(links, 4)
    assert crossing(links, parts) > 30
    plan_of = plans(mixing, parts, np.ones(30, dtype=int))
    for number, plan in enumerate(plan_of):
        mixed = plan.inner @ message[plan.peers]
        halos = [message[plan_of[other].peers[plan_of[other].sends[number]]] for other in plan.hears]
        mixed[plan.border] = plan.outer @ np.concatenate([message[plan.peers][plan.near], *halos])
        assert mixed.tobytes() == (mixing @ message)[plan.peers].tobytes()


def test_a_value_missing_in_one_shard_is_known_to_all():
    gaps = X.copy()
    gaps[7, 2] = np.nan
    settings = {**QUICK, "rows_per_peer": None, "test": (X, Y)}
    whole = pb.simulate(gaps, Y, **settings)
    sharded = simulate_shards(gaps, Y, shards=3, stats_of="all", **settings)
    np.testing.assert_allclose(sharded.stats, whole.stats, rtol=0, atol=1e-10)
    with pytest.raises(
        ValueError, match="shards with missing values, which qda completes; expected family naive-bayes"
    ):
        simulate_shards(gaps, Y, family="qda", **settings)
    with pytest.raises(ValueError, match="whose structure peers learn first"):
        simulate_shards(X, Y, family="tan", **settings)


def test_shards_fetch_their_own_rows():
    """`rows_of` is asked for every peer once, by shard; sizes may differ from peer to peer."""
    sizes = np.arange(30) % 3 + 2
    begins = np.concatenate([[0], np.cumsum(sizes)])
    parts = [np.arange(begins[peer], begins[peer + 1]) for peer in range(30)]
    asked = []

    def rows_of(peers):
        asked.append(peers)
        rows = np.concatenate([parts[peer] for peer in peers])
        return X[rows], Y[rows]

    settings = {**QUICK, "rows_per_peer": sizes, "strategy": "exact"}
    whole = pb.simulate(X, Y, test=(X, Y), evaluate_every=0, **{**settings, "partition": parts})
    sharded = simulate_shards(
        rows_of=rows_of, schema=whole.schema, shards=4, test=(X, Y), stats_of="all", **settings
    )
    same(sharded, whole)
    assert sorted(np.concatenate(asked)) == list(range(30)) and len(asked) == 4


def test_statistics_come_back_for_the_peers_asked_for():
    whole = pb.simulate(X, Y, **QUICK)
    sharded = simulate_shards(X, Y, stats_of=[17, 2], shards=3, **QUICK)
    np.testing.assert_allclose(sharded.stats, whole.stats[[17, 2]], rtol=0, atol=1e-10)
    posteriors = [run.classifier(2).predict_proba(X) for run in (sharded, whole)]
    np.testing.assert_allclose(*posteriors, rtol=0, atol=1e-10)
    assert list(sharded.history.columns) == list(whole.history.columns)
    with pytest.raises(ValueError, match="include it in stats_of"):
        sharded.classifier(3)
    assert simulate_shards(X, Y, **QUICK).stats.shape[0] == 0


@pytest.mark.parametrize("topology", ["tree", "ring", "grid", "small-world-4-0.1"])
def test_a_cut_is_even_and_crosses_few_links(topology):
    links = network.adjacency(topology, 600, np.random.default_rng(0))
    parts = cut(links, 4)
    assert [part.size for part in parts] == [150] * 4
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(600))
    at_random = np.array_split(np.random.default_rng(1).permutation(600), 4)
    assert crossing(links, parts) < 0.4 * crossing(links, at_random)


def test_plans_hold_the_mixing_matrix_once():
    """Inner and outer rows together are the matrix; a halo holds nobody twice."""
    links = network.adjacency("tree+20", 40, np.random.default_rng(0))
    mixing = network.stable(links)
    made = plans(mixing, cut(links, 3), np.ones(40, dtype=int))
    assert sum(plan.inner.nnz + plan.outer.nnz for plan in made) == mixing.nnz
    again = np.zeros((40, 40))
    for number, plan in enumerate(made):
        around = [plan.peers[plan.near], *(made[k].peers[made[k].sends[number]] for k in plan.hears)]
        again[np.ix_(plan.peers, plan.peers)] += plan.inner.toarray()
        again[np.ix_(plan.peers[plan.border], np.concatenate(around))] += plan.outer.toarray()
        assert all(np.unique(some).size == some.size for some in plan.sends.values())
    assert np.array_equal(again, mixing.toarray())


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"message_loss": 0.1}, "message_loss: not for shards"),
        ({"faults": [network.Loss(0.1)]}, "faults: not for shards"),
        ({"strategy": "relay"}, "shards with strategy 'relay', which needs single messages"),
        ({"start": "ml"}, "shards with start 'ml'"),
        ({"topology": network.Changing("tree", 30)}, "shards with a network that changes"),
        ({"engine": "threads"}, "expected one of local, ray"),
        ({"shards": 31}, "expected 1 to 30"),
        ({"shards": [range(15), range(14, 30)]}, "every peer from 0 to 29 exactly once"),
        ({"rows_of": lambda peers: (X, Y)}, "either X and y, or rows_of"),
        ({"stats_of": [30]}, "expected 0 to 29"),
    ],
)
def test_what_shards_cannot_do_is_refused(settings, says):
    with pytest.raises(ValueError, match=says):
        simulate_shards(X, Y, **{**QUICK, **settings})


def test_rows_that_do_not_fit_are_refused():
    schema = pb.Schema.infer(X, Y)
    with pytest.raises(ValueError, match=r"gave 178 rows .* that hold 75"):
        simulate_shards(rows_of=lambda peers: (X, Y), schema=schema, **QUICK)
    with pytest.raises(ValueError, match="schema with classes"):
        simulate_shards(rows_of=lambda peers: (X, Y), **QUICK)


# --- Ray -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ray():
    pytest.importorskip("ray", reason="needs the extra cluster")
    with cluster(2) as running:
        yield running
    gc.collect()  # here, where the warnings are expected


# Ray lets go of the processes it started without waiting for them, and Python says so when they are collected.
unwaited = pytest.mark.filterwarnings("ignore:subprocess:ResourceWarning", "ignore:unclosed:ResourceWarning")


@unwaited
@pytest.mark.parametrize("strategy", ["exact", "tracking"])
def test_ray_actors_give_the_bits_of_shards_in_this_process(ray, strategy):
    """The same cut, products of the same shapes: the same bits, where all actors are on one machine."""
    settings = {**QUICK, "strategy": strategy, "shards": 2, "stats_of": "all"}
    here = simulate_shards(X, Y, **settings)
    actors = simulate_shards(X, Y, engine="ray", **settings)
    same(actors, pb.simulate(X, Y, strategy=strategy, evaluate_every=0, **QUICK))
    assert actors.stats.tobytes() == here.stats.tobytes()


@unwaited
def test_a_killed_shard_is_named(ray, tmp_path):

    def rows_of(peers):
        (tmp_path / f"{peers[0]}").write_text(str(os.getpid()))
        return np.tile(X[:5], (len(peers), 1)), np.tile(Y[[0, 60, 140, 1, 61]], len(peers))

    def kill(done, rounds):
        if done == 3:
            os.kill(int((tmp_path / "20").read_text()), signal.SIGKILL)

    with pytest.raises(ShardLost, match=r"shard 1 of 2 .* start the run again"):
        simulate_shards(
            rows_of=rows_of, schema=pb.Schema.infer(X, Y), engine="ray", shards=[range(20), range(20, 30)],
            progress=kill, **QUICK,
        )  # fmt: skip


@unwaited
def test_an_error_in_a_shard_arrives(ray):
    def rows_of(peers):
        raise FileNotFoundError("no rows here")

    with pytest.raises(FileNotFoundError, match="no rows here"):
        simulate_shards(rows_of=rows_of, schema=pb.Schema.infer(X, Y), engine="ray", **QUICK)
