"""The choice between strategies: the default, what it rests on, what excludes `relay`, and the reason it gives."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import load_digits

import peerbayes as pb
from peerbayes import network
from peerbayes.learning import planning
from peerbayes.learning.combinations import Combination, excluded
from peerbayes.learning.planning import plan
from peerbayes.learning.strategies import LearningSettings, NetworkFacts
from peerbayes.peer.agreement.negotiate import settings_of
from peerbayes.peer.agreement.terms import Privacy, Robust, Terms
from peerbayes.simulation.sharded import simulate_shards

RING = network.adjacency("ring", 12, np.random.default_rng(0))
FACTS = NetworkFacts(12, 240, tree=planning.tree_of(RING), difference=2.0, likeness=0.3)
DIGITS = load_digits(return_X_y=True)
QUICK = {
    "peers": 8,
    "rows_per_peer": 12,
    "rounds": 3,
    "topology": "complete",
    "references": False,
    "evaluate_every": 0,
}


def chosen(facts=FACTS, **settings):
    """The name of the strategy that `auto` chooses, and its reason."""
    learning = plan(LearningSettings("auto", 16, **settings), facts)
    assert learning.reason.startswith(f"{learning.strategy.name}: ")
    return learning.strategy.name, learning.reason.partition(": ")[2]


def test_it_is_the_default_of_simulations_and_agreements():
    run = pb.simulate(*DIGITS, **QUICK)
    assert Terms("n", "y").strategy == "auto"
    assert run.made["choice"].startswith(f"{run.configuration['strategy']}: ")


def test_a_strategy_by_name_needs_no_reason():
    assert plan(LearningSettings("exact", 16), FACTS).reason == ""
    assert "choice" not in pb.simulate(*DIGITS, **QUICK, strategy="exact").made


@pytest.mark.parametrize(
    ("facts", "settings", "words"),
    [
        ({"tree": None}, {}, "links change from round to round"),
        ({"absences": True}, {}, "peers are absent"),
        ({"peers": 10_001}, {}, "10,001 peers are more than the 10,000"),
        ({}, {"private": True}, "rows are private"),
        ({}, {"excluded": "secure_sum with strategy 'relay'"}, "secure_sum with strategy 'relay'"),
    ],
)
def test_exact_is_chosen_where_something_excludes_relay_and_the_reason_says_what(facts, settings, words):
    name, reason = chosen(replace(FACTS, **facts), **settings)
    assert chosen()[0] == "relay" and name == "exact" and reason.startswith(words)


def test_it_rests_on_differences_distances_and_noise():
    """The mean distance on the tree of a ring of 12 is 3: a ninth of 27 rounds, a sixth of 18."""
    for difference, likeness, rounds, name, words in (
        (1.501, 0.9, 9, "relay", "peers' rows differ (F = 1.50)"),
        (1.5, 0.9, 26, "exact", "peers' rows are alike (F = 1.50), and peers are"),
        (1.5, 0.9, 36, "relay", "peers are near each other"),
        (1.0, 0.23, 26, "relay", "few rows tell little of other peers' rows (correlation 0.23)"),
        (1.0, 0.24, 26, "exact", "peers' rows are alike"),
        (1.0, 0.23, 16, "exact", "peers' rows are alike"),
    ):
        facts = replace(FACTS, difference=difference, likeness=likeness)
        learning = plan(LearningSettings("auto", rounds), facts)
        assert learning.strategy.name == name, (difference, likeness, rounds)
        assert learning.reason.startswith(f"{name}: {words}"), learning.reason


@pytest.mark.parametrize(
    ("classes", "counted", "difference", "name"),
    [(2, True, 2.0, "exact"), (2, False, 2.0, "relay"), (3, True, 2.0, "relay"), (2, True, 1.0, "relay")],
)
def test_counts_of_two_classes_that_differ_are_not_relayed(classes, counted, difference, name):
    """Where they do not differ, peers that are near each other relay them."""
    facts = replace(FACTS, classes=classes, counted=counted, difference=difference)
    learning = plan(LearningSettings("auto", 64), facts)
    assert learning.strategy.name == name and ("two classes" in learning.reason) == (name == "exact")


@pytest.mark.parametrize(
    ("kinds", "name"), [(["continuous"] * 2, "relay"), (["continuous", "discrete"], "exact")]
)
def test_a_simulation_knows_its_classes_and_counts(kinds, name):
    rng = np.random.default_rng(3)
    y = np.arange(200) % 2
    X = np.column_stack([rng.normal(y, 1.0), (rng.random(200) < 0.3 + 0.4 * y).astype(float)])
    run = pb.simulate(X, y, **QUICK | {"partition": "drift-y"}, kinds=kinds)
    assert run.configuration["strategy"] == name, run.made["choice"]


def test_relay_begins_with_the_share_that_neighbours_have_in_common():
    """With fewer rows than features (20 of a peer) at least a tenth; also where nothing is measured."""
    unmeasured, different = (replace(FACTS, likeness=likeness) for likeness in (None, 0.05))
    wide, narrow = (replace(different, features=features) for features in (21, 20))
    for facts, share in (
        (FACTS, 0.3),
        (unmeasured, 0.1),
        (wide, 0.1),
        (narrow, 0.05),
        (replace(wide, likeness=0.2), 0.2),
    ):
        strategy = plan(LearningSettings("relay", 16), facts).strategy
        assert strategy.first_share == share
        assert (strategy.begin(np.zeros((12, 2, 3))).share == share).all()


def test_nothing_is_measured_where_nothing_is_to_choose():
    unmeasured = replace(FACTS, difference=None, likeness=None)
    assert plan(LearningSettings("auto", 16), unmeasured).missing == ("difference",)
    for settings in ({"private": True}, {"excluded": "shards"}):
        assert not plan(LearningSettings("auto", 16, **settings), unmeasured).missing


@pytest.mark.parametrize(
    ("settings", "terms", "words"),
    [
        ({"secure_sum": True}, {"privacy": Privacy(secure_sum=True)}, "secure_sum with strategy 'relay'"),
        ({"robust": "clip"}, {"robust": Robust("clip")}, "robust 'clip' with strategy 'relay'"),
        ({"attack": "flip"}, None, "attack with strategy 'relay'"),
        ({"change_every": 1, "topology": "tree"}, None, "links change from round to round"),
        ({"peers_down": 0.1}, None, "peers are absent"),
    ],
    ids=["secure sums", "robust", "attack", "changing", "absent"],
)
def test_settings_without_relay_give_the_same_reason_to_simulated_and_real_peers(settings, terms, words):
    """By the sentence of the rule that refuses `relay`, without its advice."""
    run = pb.simulate(*DIGITS, **QUICK | settings)
    assert run.configuration["strategy"] == "exact"
    assert run.made["choice"].startswith(f"exact: {words}") and "expected" not in run.made["choice"]
    if terms is not None:
        assert plan(settings_of(Terms("n", "y", **terms)), FACTS).reason == run.made["choice"]


def test_shards_choose_exact():
    run = simulate_shards(
        *DIGITS, shards=2, **{name: QUICK[name] for name in ("peers", "rows_per_peer", "rounds")}
    )
    assert run.configuration["strategy"] == "exact"
    assert excluded(Combination(strategy="auto", family="naive-bayes", sharded=True)).startswith(
        "shards with"
    )
    assert excluded(Combination(strategy="auto", family="naive-bayes")) == ""


def test_noise_needs_no_other_strategy():
    X, y = DIGITS
    run = pb.simulate(X, y, **QUICK, privacy=pb.Privacy(epsilon=4.0, min_rows=1))
    assert run.configuration["strategy"] == "exact" and "private" in run.made["choice"]


def test_crossed_columns_take_tree_sum_wherever_everybody_can_be_waited_for():
    crossed = replace(FACTS, crossed=True, difference=None, likeness=None)
    chosen = plan(LearningSettings("auto", 16), crossed)
    assert chosen.strategy.name == "tree-sum" and not chosen.missing
    assert chosen.reason.startswith("tree-sum: columns are crossed")
    for settings, facts in (
        ({}, FACTS),
        ({"sums_excluded": "messages 'int8'"}, crossed),
        ({"expects_loss": True}, crossed),
        ({}, replace(crossed, absences=True)),
        ({}, replace(crossed, tree=None)),
    ):
        assert plan(LearningSettings("auto", 16, **settings), facts).strategy.name != "tree-sum"


@pytest.mark.parametrize("settings", [{"messages": "float32"}, {"message_loss": 0.1}, {"peers_down": 0.1}])
def test_settings_without_sums_learn_crossed_columns_all_the_same(settings, rng):
    a, b = rng.normal(size=(2, 300))
    X, y = np.stack([a, b], axis=1), (a * b > 0).astype(int)
    network = {"peers": 4, "rows_per_peer": 50, "rounds": 4, "references": False, "evaluate_every": 0}
    run = pb.simulate(X, y, family="ga2m", start="marginal", **network, **settings)
    assert run.schema.crosses and run.configuration["strategy"] in ("exact", "relay")
