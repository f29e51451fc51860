"""The plan of a run: the same for the simulator, shards, real peers and the audit; and what strategies declare."""

from dataclasses import replace

import numpy as np
import pytest

import peerbayes as pb
from peerbayes import network
from peerbayes.errors import TermsError
from peerbayes.learning import planning
from peerbayes.learning.planning import plan
from peerbayes.learning.strategies import OF_DRIVERS, STRATEGIES, Exact, LearningSettings, NetworkFacts
from peerbayes.peer.agreement.negotiate import settings_of
from peerbayes.peer.agreement.terms import Privacy, Robust, Terms
from peerbayes.privacy.accounting import Privacy as Promise
from peerbayes.simulation import drivers
from peerbayes.simulation.sharded import simulate_shards
from shared.own_strategy import Momentum

RING = network.adjacency("ring", 12, np.random.default_rng(0))
FACTS = NetworkFacts(12, 240, tree=planning.tree_of(RING), mean_square=4.0, difference=1.0, likeness=0.4)
SETTINGS = {"peers": 12, "rows_per_peer": 9, "rounds": 9, "references": False, "evaluate_every": 0, "seed": 2}


def table():
    rng = np.random.default_rng(1)
    y = np.arange(150) % 3
    return rng.normal(y[:, None], 1.5, (150, 3)), y


def planned(strategy, rounds=16, facts=FACTS, **settings):
    return plan(LearningSettings(strategy, rounds, **settings), facts)


# --- the plan --------------------------------------------------------------------------------------------------


def test_exact_is_set_up_by_settings_that_all_know():
    for settings, expected in (
        ({}, Exact(16, 1.0)),
        ({"expects_loss": True}, Exact(16, 0.97)),
        ({"robust": True}, Exact(16, 0.9)),
        ({"robust": True, "expects_loss": True}, Exact(16, 0.9)),
        ({"private": True}, Exact(16, 1.0, 8)),
    ):
        assert planned("exact", **settings).strategy == expected, settings


def test_terms_and_simulations_have_the_same_settings(monkeypatch):
    """Only a simulation can expect that messages get lost."""
    plans = []
    monkeypatch.setattr(planning, "plan", lambda *arguments: plans.append(plan(*arguments)) or plans[-1])
    X, y = table()
    for terms, settings in (
        ({}, {}),
        ({"robust": Robust("clip")}, {"robust": "clip"}),
        ({"start": "ml", "lr": 0.1, "local_steps": 2}, {"start": "ml", "lr": 0.1, "local_steps": 2}),
    ):
        plans.clear()
        pb.simulate(X, y, **SETTINGS, **settings)
        assert plans[-1].settings == settings_of(Terms("n", "y", rounds=9, **terms)), settings
    plans.clear()
    pb.simulate(X, y, **SETTINGS, message_loss=0.1)
    agreed = settings_of(Terms("n", "y", rounds=9))
    assert plans[-1].settings == replace(agreed, expects_loss=True) != agreed
    pb.simulate(X, y, **SETTINGS, message_loss=network.LossTrace([(1, 0, 1)]))
    assert plans[-1].settings == agreed  # what a trace has happened to peers that did not expect it


def test_the_start_weighs_m_over_lr_n():
    assert planned("exact", lr=0.1).start_weight == 240 / (0.1 * 12)
    assert planned("exact", lr=0.1, facts=replace(FACTS, average=17.0)).start_weight == 17.0 / 0.1


def test_a_plan_says_which_facts_it_misses():
    unmeasured = replace(FACTS, difference=None, likeness=None, mean_square=None)
    assert {name: planned(name, facts=unmeasured).missing for name in planning.names()} == {
        name: {"auto": ("difference",), "relay": ("difference",), "dsgd": ("mean_square",)}.get(name, ())
        for name in planning.names()
    }
    assert not any(planned(name).missing for name in planning.names())
    for name in ("auto", "relay"):
        assert not planned(name, facts=unmeasured, private=True).missing  # rows say nothing without noise


def test_auto_relays_where_peers_are_near_or_differ():
    far = replace(FACTS, difference=2.0)
    assert [planned("auto", 16, facts).strategy.name for facts in (FACTS, far)] == ["exact", "relay"]
    assert planned("auto", 64).strategy.name == "relay"
    assert planned("auto", 64, replace(far, tree=None)).strategy.name == "exact"
    assert planned("auto", 64, robust=True, facts=replace(FACTS, tree=None)).strategy == Exact(64, 0.9)


def test_what_cannot_be_planned_is_refused():
    with pytest.raises(ValueError, match="relay needs a fixed network"):
        planned("relay", facts=replace(FACTS, tree=None))
    with pytest.raises(ValueError, match="strategy is 'none'; expected one of crc, exact"):
        planned("none")


def test_noise_adds_up_over_a_tree():
    relayed, mixed = planned("relay"), planned("exact")
    assert mixed.noise(lambda boost: boost) == mixed.strategy.boost
    assert relayed.noise(lambda boost: boost) == relayed.strategy.boost * np.sqrt(12)


# --- declarations hold -------------------------------------------------------------------------------------------


def rounds_of(strategy, start, residual, rounds=5):
    """Yield the messages [N, …] of every round on a ring, and read-outs."""
    weights = None if planning.silent(strategy) else planning.mixing_weights(strategy, RING).toarray()
    state = strategy.begin(start, residual)
    for _ in range(rounds):
        message = strategy.message(state)
        yield message
        mixed = message if weights is None else np.tensordot(weights, message, 1)
        state = strategy.step(state, mixed, residual)


def contribution(stats):
    """Return a residual, which sums to zero over classes and differs between peers: [N, C, K] -> [N, C, K]."""
    wave = np.sin(stats + np.arange(len(stats))[:, None, None])
    return wave - wave.mean(axis=1, keepdims=True)


@pytest.mark.parametrize("kind", [*STRATEGIES.values(), Momentum], ids=lambda kind: kind.name)
def test_messages_are_as_declared(kind):
    made = planned(kind.name).strategy if kind.name in STRATEGIES else kind()
    declaration = planning.declaration_of(made)
    start = np.random.default_rng(0).normal(5.0, 1.0, (1, 3, 4)).repeat(12, axis=0)
    messages = list(rounds_of(made, start, contribution))
    shape = planning.message_shape(declaration, start.shape[1:])
    assert all(message.shape == (12, *shape) for message in messages)
    assert np.array_equal(messages[0], start) == (declaration.first_is_start or declaration.own_start)
    if declaration.convex:
        assert declaration.first_is_start
    if declaration.conserves:
        sums = start.sum(axis=1) if declaration.contains_start else 0.0
        for message in messages:
            first = message if declaration.matrices == 1 else message[:, 0]
            assert np.allclose(first.sum(axis=1), sums, rtol=0, atol=1e-9)
            assert declaration.matrices == 1 or np.allclose(message[:, 1:].sum(axis=-2), 0.0, atol=1e-9)


@pytest.mark.parametrize("name", planning.names())
def test_settings_matter_where_declared(name):
    X, y = table()
    declaration = planning.declaration_of(name)
    before = pb.simulate(X, y, **SETTINGS, strategy=name).stats
    for setting, value, matters in (
        ("lr", 0.1, declaration.uses_lr),
        ("local_steps", 3, declaration.uses_local_steps),
    ):
        after = pb.simulate(X, y, **SETTINGS, **{"strategy": name, setting: value}).stats
        assert np.array_equal(before, after) != matters, setting


def test_names_are_chosen_by_declarations():
    assert planning.names(lambda declaration: declaration.judged) == ("crc", "exact", "auto")
    assert planning.names(lambda declaration: not declaration.summed) == ("relay", "tree-sum")
    assert planning.names(lambda declaration: bool(declaration.exposes)) == (
        "consensus-ml",
        "dsgd",
        "tree-sum",
    )
    assert [name for name in planning.names() if planning.silent(name)] == [planning.ALONE]
    assert planning.declaration_of("of another package") == planning.Declaration()


# --- a strategy that the package does not have ------------------------------------------------------------------


@pytest.fixture
def momentum(monkeypatch):
    monkeypatch.setitem(STRATEGIES, "momentum", Momentum)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"message_loss": 0.2},
        {"message_delay": 0.2},
        {"peers_down": 0.2},
        {"secure_sum": True, "topology": "regular-4"},
        {"robust": "clip"},
        {"robust": "guard", "attack": "flip"},
        {"privacy": Promise(epsilon=8.0, min_rows=5)},
        {"start": "ml"},
        {"family": "qda"},
    ],
    ids=str,
)
def test_a_strategy_of_ones_own_runs_where_its_declaration_allows_it(settings, momentum):
    """By its name as by its value: it is set up by its own `planned`."""
    X, y = table()
    settings = {**SETTINGS, "topology": "ring", **settings}
    by_name = pb.simulate(X, y, strategy="momentum", **settings)
    assert by_name.configuration["strategy"] == "momentum"
    assert np.array_equal(by_name.stats, pb.simulate(X, y, strategy=Momentum(0.5), **settings).stats)
    assert not np.array_equal(by_name.stats, pb.simulate(X, y, strategy="crc", **settings).stats)


def test_shards_run_a_strategy_of_ones_own(momentum):
    X, y = table()
    settings = {name: value for name, value in SETTINGS.items() if name != "references"} | {"rounds": 24}
    whole = pb.simulate(X, y, strategy=Momentum(0.25), **settings)
    sharded = simulate_shards(X, y, strategy="momentum", stats_of="all", **settings)
    assert np.allclose(sharded.stats, whole.stats, rtol=0, atol=1e-10)


def test_a_declaration_decides_what_is_refused(momentum, monkeypatch):
    X, y = table()
    declared = replace(Momentum.declaration, judged=False, summed=False, exposes="momentum tells")
    monkeypatch.setattr(Momentum, "declaration", declared)
    for settings, text in (
        ({"robust": "clip"}, "robust 'clip' with strategy 'momentum', .* expected one of crc, exact"),
        ({"secure_sum": True, "topology": "regular-4"}, "strategy 'momentum', which needs single messages"),
        (
            {"privacy": Promise(epsilon=8.0, min_rows=5)},
            "epsilon 8 with strategy 'momentum', .*: momentum tells",
        ),
    ):
        with pytest.raises(ValueError, match=text):
            pb.simulate(X, y, strategy="momentum", **{**SETTINGS, **settings})
    with pytest.raises(ValueError, match="shards with strategy 'momentum', which needs single messages"):
        simulate_shards(X, y, strategy="momentum")
    for terms, text in (
        ({"robust": Robust("clip")}, "expected one of crc, exact"),
        ({"privacy": Privacy(secure_sum=True)}, "needs single messages"),
        ({"privacy": Privacy(epsilon=4.0)}, "noise cannot protect"),
    ):
        with pytest.raises(TermsError, match=text):
            Terms("n", "y", strategy="momentum", **terms)


def test_the_driver_of_a_simulation_follows_the_plan(monkeypatch):
    """The strategy that runs is that of the plan."""
    X, y = table()
    chosen = Exact(9, 0.5)
    monkeypatch.setattr(drivers, "plan_of", lambda *_: planned(chosen))
    run = pb.simulate(X, y, strategy="crc", **SETTINGS)
    monkeypatch.undo()
    assert np.array_equal(run.stats, pb.simulate(X, y, strategy=chosen, **SETTINGS).stats)


def test_names_that_are_not_of_the_registry_are_reserved_in_it():
    assert set(planning.OTHERS) == set(OF_DRIVERS)
