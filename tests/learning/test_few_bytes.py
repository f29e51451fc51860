"""Messages of few bytes: rounding loses nothing for good, conserves sums, and several exchanges make one step."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.sparse import csr_array
from sklearn.datasets import load_wine

from peerbayes import Privacy, simulate
from peerbayes.learning import few_bytes, planning
from peerbayes.learning.few_bytes import Rounded, Rounding, link_bytes, message_bytes, missed_in_a_row
from peerbayes.learning.planning import plan
from peerbayes.learning.relay import Relay
from peerbayes.learning.strategies import CRC, Exact, LearningSettings, NetworkFacts
from peerbayes.network import Away
from peerbayes.simulation.sharded.driver import simulate_shards

INT8 = {"messages": "int8"}
SMALL = {
    "strategy": "exact",
    "peers": 8,
    "rows_per_peer": 12,
    "rounds": 12,
    "seed": 3,
    "references": False,
    "evaluate_every": 0,
}

values_of = arrays(np.float64, (2, 3, 4), elements=st.floats(-1e6, 1e6, width=32))


def wine(**settings):
    return simulate(*load_wine(return_X_y=True), **{**SMALL, **settings})


# --- rounding


@given(values_of, values_of, st.booleans())
def test_a_rounded_difference_is_a_byte_of_a_power_of_two_per_column(values, before, conserved):
    if conserved:  # class sums of both are the same
        values = values - values.mean(axis=-2, keepdims=True)
        before = before - before.mean(axis=-2, keepdims=True)
    before = np.round(before * 64) / 64
    if conserved:
        before[:, -1] = -before[:, :-1].sum(axis=1)
    shown = Rounding("int8", conserved).shown(values, before)
    change = shown - before
    coded = change[:, :-1] if conserved else change
    scale = np.abs(coded).max(axis=-2, keepdims=True)
    scale = np.exp2(np.ceil(np.log2(np.where(scale > 0, scale, 1.0) / 127)))
    steps = coded / scale  # of the smallest power of two that fits, or of the one above it
    assert np.abs(steps).max() <= 127
    assert (2 * steps == np.round(2 * steps)).all() or (steps == np.round(steps)).all()
    if conserved:
        assert (shown.sum(axis=1) == before.sum(axis=1)).all()


@pytest.mark.parametrize("conserved", [False, True])
def test_what_rounding_leaves_out_is_sent_later(conserved):
    values = np.random.default_rng(5).normal(size=(4, 5, 6)) * 1e3
    values -= values.mean(axis=1, keepdims=True)
    shown, rounding, errors = np.zeros_like(values), Rounding("int8", conserved), []
    for _ in range(8):
        shown = rounding.shown(values, shown)
        errors.append(np.abs(values - shown).max())
    assert errors[0] < 1e3 * 5 / 127 * 4 and errors[-1] < 1e-9
    assert all(later <= earlier / 16 + 1e-9 for earlier, later in itertools.pairwise(errors))


def test_last_bits_do_not_decide_how_a_half_is_rounded():
    """Peers and the simulator add up in different orders."""
    before = np.zeros((1, 4, 3))
    values = np.array([[[100.0, 127.0, 1.0], [0.5, -2.5, 0.3], [-3.5, 7.5, 0.2], [-97.0, -132.0, -1.5]]])
    for form in (Rounding("int8", True), Rounding("int8", False)):
        shown = form.shown(values, before)
        for nearby in (np.nextafter(values, np.inf), np.nextafter(values, -np.inf)):
            assert (form.shown(nearby, before) == shown).all()


def test_numbers_in_float32_are_those_of_float32():
    values = np.random.default_rng(1).normal(size=(2, 3, 4))
    shown = Rounding("float32").shown(values, np.zeros_like(values))
    assert shown.dtype == np.float64 and (shown == values.astype(np.float32)).all()


@pytest.mark.parametrize(("form", "conserved", "size"), [
    ("float64", True, 8 * 12), ("float32", True, 4 * 12), ("int8", False, 12 + 4), ("int8", True, 8 + 4),
])  # fmt: skip
def test_the_size_of_a_message(form, conserved, size):
    assert Rounding(form, conserved).size((3, 4)) == size
    assert message_bytes(Rounded(Exact(), Rounding(form, conserved)), np.zeros((3, 4))) == size
    assert message_bytes(Exact(), np.zeros((3, 4))) == 96


def test_a_message_after_lost_ones_is_larger_and_at_most_a_full_matrix():
    arrived = {1: [True, True, False], 2: [True, False, False], 3: [True, False, False]}
    missed = missed_in_a_row(4, lambda earlier: np.array(arrived[earlier]), 99)
    assert missed.tolist() == [0, 2, 3]
    assert missed_in_a_row(4, lambda earlier: np.array(arrived[earlier]), 1).tolist() == [0, 1, 1]
    strategy = Rounded(Exact(), Rounding("int8", conserved=True))
    assert link_bytes(strategy, np.zeros((3, 4)), np.array([0, 2, 30])).tolist() == [12, 36, 96]


# --- strategies with rounded messages and several exchanges


def planned(strategy, **settings):
    settings = LearningSettings(strategy, 16, **settings)
    return plan(settings, NetworkFacts(5, 100.0, tree=None, completed=False)).strategy


def test_nothing_is_wrapped_without_a_reason():
    assert isinstance(planned("exact"), Exact) and isinstance(planned("crc", messages="float64"), CRC)
    assert isinstance(planned("local", messages="int8"), type(planned("local")))
    rounded = planned("exact", messages="int8")
    assert (rounded.inner, rounded.exchanges, rounded.rounding) == (Exact(16), 4, Rounding("int8", True))
    assert planned("exact", messages="float32").exchanges == 1
    assert planned("exact", exchanges=3).rounding.form == "float64"
    own = planned(CRC(with_self=True), messages="int8", exchanges=2)
    assert (own.inner, own.exchanges, own.mixing) == (CRC(with_self=True), 2, "closed_mean")


def test_with_several_exchanges_peers_are_nearer_to_each_other():
    """Distances count in exchanges: over a path of 41, relaying takes too long in 64 of them, and not in 256."""
    path = np.diag(np.ones(40), 1)
    facts = NetworkFacts(
        41, 400.0, tree=planning.tree_of(csr_array(path + path.T)), difference=1.0, likeness=0.5
    )
    chosen = [plan(LearningSettings("auto", 64, **form), facts).strategy for form in ({}, INT8)]
    assert isinstance(chosen[0], Exact) and isinstance(chosen[1], Relay)
    assert (
        chosen[1].reflex
        and not plan(LearningSettings("relay", 64, **INT8), replace(facts, difference=9.0)).strategy.reflex
    )


def test_class_sums_that_move_are_not_left_out():
    facts = NetworkFacts(5, 100.0, completed=True)
    assert not plan(LearningSettings("exact", 16, messages="int8"), facts).strategy.rounding.conserved
    assert not planned("consensus-ml", messages="int8").rounding.conserved


@pytest.mark.parametrize("strategy", ["exact", "consensus-ml"])
def test_one_exchange_of_unrounded_messages_is_the_strategy_itself(strategy, monkeypatch):
    plain = wine(strategy=strategy).stats

    def wrapped(strategy, settings, completed):
        return strategy if planning.silent(strategy) else Rounded(strategy, Rounding())

    monkeypatch.setattr(planning, "with_few_bytes", wrapped)
    assert np.abs(wine(strategy=strategy).stats - plain).max() < 1e-9


@pytest.mark.parametrize(("strategy", "rounds", "most"), [
    ("exact", 8, 1e-3), ("exact", 400, 1e-6), ("consensus-ml", 100, 1e-12), ("relay", 100, 1e-3),
])  # fmt: skip
def test_rounding_costs_nothing_in_the_end(strategy, rounds, most):
    """Both have four exchanges a round; the distance is what rounding left out, and it vanishes as messages settle.

    Messages of relay never settle: they are sums of all residuals so far.
    """
    X, y = load_wine(return_X_y=True)
    settings = {**SMALL, "strategy": strategy, "rounds": rounds}
    exact, rounded = (simulate(X[:, :2], y, **settings, exchanges=4, **form) for form in ({}, INT8))
    assert np.abs(rounded.stats - exact.stats).max() < most * np.abs(exact.stats).max()
    assert rounded.summary()["bytes_per_peer"] < exact.summary()["bytes_per_peer"] / 5


def test_float32_is_half_the_bytes_and_nearly_the_same():
    plain, half = wine(rounds=40), wine(rounds=40, messages="float32")
    assert half.summary()["bytes_per_peer"] == plain.summary()["bytes_per_peer"] / 2
    assert [run.summary()["messages_per_link"] for run in (plain, half, wine(**INT8))] == [40, 40, 48]
    assert wine(strategy="local").summary()["messages_per_link"] == 0
    assert 0 < np.abs(half.stats - plain.stats).max() < 1e-4 * np.abs(plain.stats).max()


@pytest.mark.parametrize("strategy", ["exact", "relay"])
def test_class_sums_and_the_network_s_mean_are_conserved(strategy):
    run = wine(strategy=strategy, **INT8)
    sums = run.stats.sum(axis=1)
    assert np.abs(sums - sums[0]).max() < 1e-9 * np.abs(sums).max()


def test_bytes_are_counted_as_they_would_be_sent():
    classes, columns = 3, wine().stats.shape[-1]
    run = wine(topology="ring", **INT8)
    assert (run.records[:, 6] == SMALL["rounds"] * 4 * 2 * columns * classes).all()
    lossy = wine(topology="ring", message_loss=0.2, strategy="relay", **INT8)
    fine = wine(topology="ring", strategy="relay", **INT8)
    share = lossy.records[:, 6].sum() / fine.records[:, 6].sum()
    assert 1.15 < share < 1.35  # 1 / (1 − 0.2): what is lost is sent again
    changing = wine(topology="tree", change_every=1, **INT8)
    assert changing.records[:, 6].mean() > run.records[:, 6].mean()  # new neighbours need full matrices


@pytest.mark.parametrize("strategy", ["exact", "relay"])
def test_a_fifth_of_the_messages_lost_and_it_converges_all_the_same(strategy):
    fine = wine(strategy=strategy, rounds=60, **INT8)
    lossy = wine(strategy=strategy, rounds=60, message_loss=0.2, **INT8)
    distance = np.abs(lossy.stats - fine.stats).max() / np.abs(fine.stats).max()
    spread = np.abs(lossy.stats - lossy.stats.mean(axis=0)).max() / np.abs(fine.stats).max()
    assert distance < 0.05 and spread < 0.05


def test_corrections_of_links_go_with_the_last_exchange_of_a_round():
    """They have two bytes a number: with each exchange they would cost more than everything else."""
    fine, lossy = wine(**INT8), wine(message_loss=0.2, **INT8)
    corrections = lossy.records[:, 6].sum() - 1.25 * fine.records[:, 6].sum()
    share = Rounding("int16", True).size((3, 9)) / Rounding("int8", True).size((3, 9))
    most = share * fine.records[:, 6].sum() / 4  # on every link, once a round
    assert 0.7 * most < corrections < 1.02 * most
    assert lossy.summary()["bytes_per_peer"] < wine(message_loss=0.2).summary()["bytes_per_peer"]


def test_faults_count_exchanges():
    """A peer that vanishes after the fifth of twelve rounds of four exchanges has no figures from then on."""
    run = wine(faults=[Away((3,), 21)], evaluate_every=1, **INT8)
    history = run.history
    assert history[history.peer == 3]["round"].max() == 5 and run.vanished.tolist() == [3]


@pytest.mark.parametrize("settings", [
    {"faults": [Away((2,), 9, 30)]}, {"faults": [Away((2,), 9, 30)], "strategy": "relay"}, {"change_every": 1},
    {"peers_down": 0.2}, {"message_delay": 0.2}, {"dtype": "float32"}, {"start": "ml"},
    {"strategy": "consensus-ml", "message_delay": 0.3}, {"strategy": "relay", "peers_down": 0.2}, {"strategy": "dsgd"},
])  # fmt: skip
def test_it_runs_over_every_network(settings):
    run = wine(rounds=30, **INT8, **settings)
    assert np.isfinite(run.stats).all() and run.summary()["test_error"] < 0.2


def test_the_step_is_taken_after_the_last_exchange():
    """R is computed once a round, not once an exchange, and by relay too."""
    calls = []

    def residual(stats):
        calls.append(stats)
        return np.zeros_like(stats)

    rounded = Rounded(Exact(4), Rounding("int8", True), 3)
    state = rounded.begin(np.zeros((2, 2, 3)), residual)
    for _ in range(6):
        state = rounded.step(state, rounded.message(state), residual)
    assert len(calls) == 3


def test_shards_and_one_process_give_the_same_numbers():
    settings = SMALL | {"topology": "ring", **INT8}
    del settings["references"]
    one = simulate(*load_wine(return_X_y=True), references=False, **settings)
    two = simulate_shards(*load_wine(return_X_y=True), shards=2, stats_of="all", **settings)
    assert np.abs(one.stats - two.stats[np.argsort(two.peers)]).max() < 1e-9
    assert (one.records[:, 6] == two.records[:, 6]).all()


def test_noise_is_drawn_and_accounted_for_as_without_rounding(monkeypatch):
    """Rounding comes after the noise: releases are as many, cost as much, and have the same noise."""
    settings = {"privacy": Privacy(epsilon=8.0, min_rows=1), "rows_per_peer": 20, "rounds": 6}
    plain, rounded = (wine(**settings, exchanges=4, **form) for form in ({}, INT8))
    once = wine(**settings)
    assert (plain.spent == rounded.spent).all() and (once.spent == rounded.spent).all()
    distance = np.abs(plain.stats - rounded.stats).max() / np.abs(plain.stats).max()
    assert distance < 1e-2  # the same noise, and later messages make up for rounding


def test_a_killed_run_resumes(tmp_path):
    def stop(done, of):
        if done == 5:
            raise KeyboardInterrupt

    for strategy in ("exact", "relay"):
        whole, file = wine(strategy=strategy, **INT8), tmp_path / strategy
        with pytest.raises(KeyboardInterrupt):
            wine(strategy=strategy, checkpoint=file, progress=stop, **INT8)
        assert file.exists()
        assert (wine(strategy=strategy, checkpoint=file, **INT8).stats == whole.stats).all()


def test_sums_over_a_tree_travel_as_many_hops_as_there_are_exchanges():
    """On a path of nine, what the first peer learned reaches the last after two rounds of four exchanges."""
    path = np.diag(np.ones(8), 1)
    tree = planning.tree_of(csr_array(path + path.T))()
    relay = Relay(tree, rounds=8, exchanges=4, reflex=False)
    state = relay.begin(np.zeros((9, 2, 1)))
    first = np.zeros((9, 2, 1))
    first[0] = [[1.0], [-1.0]]
    arrived, learned = [], []
    for exchange in range(12):
        state = relay.adapt(
            state, lambda stats, exchange=exchange: learned.append(exchange) or first * (exchange == 0)
        )
        state = relay.hear(state, relay.messages(state))
        arrived.append(int((np.abs(relay.read(state)[:, 0, 0]) > 0).sum()))
    assert learned == [0, 4, 8]
    assert arrived == [0, 0, 0, 5, 5, 5, 5, 9, 9, 9, 9, 9]
    assert np.allclose(relay.read(state)[:, 0, 0], relay.boost / 9)


def test_few_bytes_of_a_form_are_known():
    assert few_bytes.exchange_count("int8", None) == 4 and few_bytes.exchange_count("int8", 2) == 2
    assert few_bytes.exchanges_of(Exact()) == 1 and few_bytes.exchanges_of(planned("exact", **INT8)) == 4
