"""The table of rules: each refuses what it is about and nothing else, names a setting, and waits for its facts."""

import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from peerbayes.learning import combinations, planning
from peerbayes.learning.combinations import RULES, Combination, problems, refuse
from peerbayes.learning.strategies import STRATEGIES, Declaration
from shared.own_strategy import Momentum

PLAIN = Combination(strategy="exact", family="qda")
NOISY = replace(PLAIN, epsilon=4.0)


def own(of_weights=False, attributes=None, **declared):
    """A strategy of somebody's own that declares this."""
    members = {"name": "mine", "of_weights": of_weights, "declaration": Declaration(**declared)}
    return type("Mine", (Momentum,), members | (attributes or {}))()


# What breaks each rule, in the order of the table: the run, what is changed, and words of the sentence.
BROKEN = [
    (PLAIN, {"family": "auto", "secure_sum": True}, "'auto' with secure_sum: candidates are judged by sums along"),
    (NOISY, {"family": "auto"}, "'auto' with epsilon 4: .* nothing accounts for them; expected a family by its name"),
    (PLAIN, {"family": "auto", "robust": "clip"}, "'auto' with robust 'clip': one false sum would decide which family"),
    (PLAIN, {"family": "auto", "sharded": True}, "'auto' with shards, whose peers agree on nothing but the schema"),
    (PLAIN, {"family": "auto", "strategy": "dsgd"}, "'auto' with strategy 'dsgd', which learns weights"),
    (PLAIN, {"family": "auto", "strategy": "consensus-ml"}, "'consensus-ml', which ends with maximum likelihood"),
    (PLAIN, {"secure_sum": True, "strategy": "relay"}, "'relay', which needs single messages; expected one of crc"),
    (PLAIN, {"secure_sum": True, "robust": "clip"}, "robust 'clip': masked messages cannot be judged"),
    (PLAIN, {"secure_sum": True, "attack": True}, "an attack, which forges single messages"),
    (PLAIN, {"secure_sum": True, "start": "ml"}, "start 'ml', which is agreed on by sums along a tree"),
    (PLAIN, {"secure_sum": True, "family": "tan"}, "family 'tan', whose structure is agreed on by sums"),
    (NOISY, {"strategy": "dsgd"}, "'dsgd', which sends what noise cannot protect: dsgd takes its step from"),
    (NOISY, {"family": "somebody's"}, "which is not built in: nobody has checked"),
    (NOISY, {"family": "aode"}, "family 'aode', whose log joint is not computed row by row"),
    (NOISY, {"local_steps": 2}, "local_steps 2, each of which would be a release"),
    (NOISY, {"objective": "peers"}, "objective 'peers', which weighs a row"),
    (NOISY, {"dtype": "float32"}, "device None and dtype 'float32'; expected NumPy and float64"),
    (NOISY, {"robust": "guard"}, "robust 'guard': whom a peer cuts off tells of its rows"),
    (NOISY, {"robust": "clip", "start": "marginal"}, "'clip', where start 'marginal' is bought: one liar"),
    (NOISY, {"attack": True, "report": "rows"}, "an attack whose report is 'rows'"),
    (NOISY, {"edge_noise": 3.0, "robust": "clip"}, "clipped messages do not add up"),
    (PLAIN, {"robust": "clip", "strategy": "tracking"}, "'tracking', whose messages cannot be judged .* crc, exact"),
    (PLAIN, {"attack": True, "strategy": "tracking"}, "'tracking', whose messages cannot be judged .* crc, exact"),
    (PLAIN, {"structure": True}, "structure with family 'qda', which neither links .* one of tan, kdb, ga2m"),
    (PLAIN, {"family": "aode", "strategy": "dsgd"}, "'dsgd' with family 'aode': it learns weights of a log joint that"),
    (PLAIN, {"baselines": ("softmax",), "attack": True}, "baselines 'softmax' with an attack: attackers lie in"),
    (PLAIN, {"baselines": ("fedavg",), "family": "aode"}, "'fedavg' with family 'aode', whose features are those of"),
    (PLAIN, {"messages": "int8", "strategy": "tracking"}, "has 2 matrices that belong together; expected one of"),
    (PLAIN, {"messages": "float32", "strategy": "crc"}, "1 exchanges a round with strategy 'crc', whose peers leave"),
    (PLAIN, {"messages": "int8", "strategy": "tree-sum"}, "'tree-sum', whose messages are exact sums"),
    (PLAIN, {"dtype": "float32", "strategy": "tree-sum"}, "'tree-sum' with device None and dtype 'float32'"),
    (PLAIN, {"exchanges": 3, "secure_sum": True}, "'float64' in 3 exchanges a round with secure_sum: masked numbers"),
    (PLAIN, {"messages": "int8", "robust": "clip"}, "in 4 exchanges a round with robust 'clip': the bounds by which"),
    (NOISY, {"select": "held-out"}, "the log losses of held-out rows would be told exactly"),
    (PLAIN, {"select": "held-out", "secure_sum": True}, "a tree, which tells a leaf's to its neighbour"),
    (PLAIN, {"select": "held-out", "robust": "clip"}, "one false log loss would decide which round everybody keeps"),
    (NOISY, {"evaluation": "sites"}, "errors and scores of held-out rows would be told exactly"),
    (PLAIN, {"family": "ga2m", "robust": "clip"}, "'ga2m' with robust 'clip': crosses are agreed on by sums"),
    (PLAIN, {"sharded": True, "strategy": "relay"}, "'relay', which needs single messages"),
    (PLAIN, {"sharded": True, "family": "kdb"}, "family 'kdb', whose structure peers learn first"),
    (PLAIN, {"sharded": True, "start": "ml"}, "start 'ml', which peers agree on first"),
    (PLAIN, {"secure_sum": True, "changing": True}, "a network that changes"),
    (PLAIN, {"secure_sum": True, "few_neighbours": "p0 has 2 neighbours"}, "p0 has 2 neighbours; secure sums need 3"),
    (NOISY, {"edge_noise": 3.0, "changing": True}, "a network that changes: it cancels between"),
    (PLAIN, {"robust": "guard", "changing": True}, "a network that changes: it counts strikes"),
    (PLAIN, {"strategy": "relay", "changing": True}, "'relay' with a network that changes"),
    (PLAIN, {"select": "held-out", "changing": True}, "no spanning tree stays to sum along"),
    (PLAIN, {"sharded": True, "changing": True}, "a network that changes"),
    (PLAIN, {"secure_sum": True, "strategy": "consensus-ml", "completed": True}, "missing values, which qda completes"),
    (NOISY, {"gaps": ("a", "b")}, "missing values of 'a', 'b', which qda completes by everybody's model"),
    (PLAIN, {"strategy": "dsgd", "completed": True}, "qda completes by a model; dsgd learns no generative model"),
    (PLAIN, {"baselines": ("softmax",), "completed": True}, "'softmax' with missing values, which qda completes"),
    (PLAIN, {"sharded": True, "completed": True}, "missing values, which qda completes"),
]  # fmt: skip


def sentences(run):
    return list(problems(run))


@pytest.mark.parametrize(("number", "example"), list(enumerate(BROKEN)))
def test_each_rule_refuses_what_it_is_about(number, example):
    base, change, words = example
    broken = replace(base, **change)
    assert [k for k, rule in enumerate(RULES) if rule.broken(broken)] == [number]
    (sentence,) = sentences(broken)
    assert re.search(words, sentence), sentence
    with pytest.raises(LookupError, match=re.escape(sentence)):
        refuse(broken, LookupError)


def test_every_rule_has_an_example():
    assert len(BROKEN) == len(RULES)


@pytest.mark.parametrize("base", [PLAIN, NOISY], ids=["plain", "noisy"])
def test_one_half_of_a_combination_breaks_nothing(base):
    """Of settings that break a rule together, one does not by itself."""
    assert not sentences(base)
    for other, change, _ in BROKEN:
        if other is base and len(change) > 1:
            halves = [{name: value} for name, value in change.items()]
            assert any(not sentences(replace(base, **half)) for half in halves), change


def test_sentences_begin_with_a_setting_and_say_what_to_do():
    """So that the reader of a file finds its line; and without the syntax of one driver."""
    settings = {field.name for field in fields(Combination)} | {"shards"}
    for rule in RULES:
        assert rule.sentence.split()[0] in settings, rule.sentence
    for base, change, _ in BROKEN:
        (sentence,) = sentences(replace(base, **change))
        assert re.search("expected|leave|; use ", sentence), sentence
        assert "=" not in sentence, sentence


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        ({"family": "naive-bayes", "gaps": ("a",)}, True),  # represents missing values by themselves
        ({"family": "qda", "gaps": ()}, True),
        ({"device": "cpu"}, False),
        ({"robust": "clip"}, True),
        ({"robust": "clip", "bought": (("the number of rows", "rows"),)}, False),
        ({"start": "ml"}, True),
        ({"edge_noise": 3.0, "secure_sum": True}, True),
        ({"attack": True}, True),
        ({"local_steps": 1, "strategy": "relay"}, True),
    ],
)  # fmt: skip
def test_what_goes_with_noise(change, fits):
    assert (not sentences(replace(NOISY, **change))) == fits


def test_what_goes_with_secure_sums():
    """Missing values, too, where no sum along a tree completes them before the first round."""
    for strategy in planning.names(lambda declaration: declaration.summed and not declaration.own_start):
        if not planning.of_weights(strategy):
            assert not sentences(replace(PLAIN, strategy=strategy, secure_sum=True, completed=True))
    assert not sentences(replace(PLAIN, strategy="consensus-ml", secure_sum=True, completed=False))


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (own(), None),
        (own(exposes="mine tells"), "cannot protect: mine tells"),
        (own(own_start=True), "it begins with each peer's own sums of rows"),
        (own(of_weights=True), "it learns weights"),
        (own(attributes={"missing": classmethod(lambda *_: ("mean_square",))}), "a measurement of the rows"),
    ],
)
def test_a_strategy_of_ones_own_is_asked_what_it_sends(strategy, words):
    """Also where it does not declare that it exposes anything: what it begins with or is set up by has no noise."""
    said = sentences(replace(NOISY, strategy=strategy))
    assert [words in sentence for sentence in said] == ([] if words is None else [True])


def test_rules_wait_for_facts():
    """Nothing is refused for a network or rows that are not known yet."""
    for start in ("uniform", "ml"):
        for strategy in planning.names():
            unknown = Combination(strategy=strategy, family="qda", start=start)
            assert not sentences(unknown)


def test_a_strategy_that_is_not_loaded_waits_for_what_it_declares(monkeypatch):
    """By default a strategy declares nothing that a receiver relies on, but that is not what this one declares."""
    robust = replace(PLAIN, strategy="momentum", robust="clip")
    hidden = replace(PLAIN, strategy="momentum", secure_sum=True)
    noisy = replace(NOISY, strategy="momentum")
    assert not [*sentences(robust), *sentences(hidden), *sentences(noisy)]
    monkeypatch.setitem(STRATEGIES, "momentum", Momentum)
    assert not [*sentences(robust), *sentences(hidden), *sentences(noisy)]
    declared = replace(Momentum.declaration, judged=False, summed=False, exposes="momentum tells")
    monkeypatch.setattr(Momentum, "declaration", declared)
    assert all(len(sentences(run)) == 1 for run in (robust, hidden, noisy))


def test_no_rule_knows_a_strategy_by_its_name():
    code = Path(combinations.__file__).read_text(encoding="utf-8")
    assert not [name for name in planning.names() if re.search(rf"""["']{name}["']""", code)]
