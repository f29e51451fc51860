"""The simulator and an agreement of real peers give the same answer to every combination of settings, in the same
words.

Every strategy, family, start, defence, secure sum, privacy, missing values and fault: settings are checked as
`simulate` and an agreement check them, and asked again with the facts that both know once they have seen rows and
network. A sample of them runs from end to end.
"""

import asyncio
import itertools
import re

import networkx as nx
import numpy as np
import pandas as pd
import pytest

import peerbayes as pb
from peerbayes.data.registry import Registry
from peerbayes.errors import PeerError, TermsError
from peerbayes.learning import combinations, planning
from peerbayes.learning.strategies import STRATEGIES
from peerbayes.model import layout
from peerbayes.peer.agreement.column_facts import Facts
from peerbayes.peer.agreement.terms import Privacy, Robust, Terms
from peerbayes.simulation import population
from peerbayes.simulation.settings import SimulationSettings
from peerbayes.simulation.sharded import simulate_shards
from shared.own_strategy import Momentum
from shared.peers_in_memory import Peers

FAMILIES = ("naive-bayes", "qda", "lda", "bayes-net", "tan", "kdb")
STARTS = ("uniform", "marginal", "ml")
DEFENCES = (None, "clip", "guard")
NOISE = (None, 0.0, 3.0)  # no epsilon; epsilon; epsilon and this much edge noise
FAULTS = ({}, {"message_loss": 0.1}, {"message_delay": 0.1}, {"peers_down": 0.1})
CHOICES = (FAMILIES, STARTS, DEFENCES, (False, True), NOISE, (False, True))

PEERS, ROWS = 5, 24
FULL = nx.complete_graph(PEERS)


def table(missing):
    """Two columns, of which one may miss values, and two classes: 24 rows for each peer."""
    rng = np.random.default_rng(4)
    y = np.array(["no", "yes"])[rng.integers(2, size=PEERS * ROWS)]
    X = pd.DataFrame(
        {
            "height": rng.normal(size=len(y)) + 2.0 * (y == "yes"),
            "colour": np.where(rng.random(len(y)) < 0.3 + 0.4 * (y == "yes"), "red", "blue"),
        }
    )
    if missing:
        X.loc[::5, "height"] = np.nan
    return X, y


def arguments(strategy, family, start, robust, secure_sum, noise, missing, faults):
    """The arguments of `simulate`."""
    privacy = None if noise is None else pb.Privacy(epsilon=4.0, edge_noise=noise, min_rows=2)
    return {
        "strategy": strategy, "family": family, "start": start, "robust": robust, "secure_sum": secure_sum,
        "privacy": privacy, "peers": PEERS, "rows_per_peer": ROWS, "topology": FULL, "rounds": 3, **faults,
    }  # fmt: skip


def terms(strategy, family, start, robust, secure_sum, noise, missing):
    """The agreement; with an epsilon it says what everybody may know of the columns."""
    described = {}
    if noise is not None:
        facts = {"height": Facts(1.0, 1.4, missing=missing), "colour": Facts(categories=("blue", "red"))}
        kinds = {"height": "continuous", "colour": "discrete"}
        described = {"features": kinds, "facts": facts, "classes": ("no", "yes")}
    privacy = (
        {} if noise is None else {"epsilon": 4.0, "edge_noise": noise, "rows": float(ROWS), "min_rows": 2}
    )
    return Terms(
        "test", "label", family=family, strategy=strategy, start=start, rounds=3,
        privacy=Privacy(secure_sum=secure_sum, **privacy),
        robust=Robust("clip" if robust else "mean", robust == "guard"), **described,
    )  # fmt: skip


def facts_about(missing):
    """By family: what is known of the rows, as both drivers find it out."""
    X, y = table(missing)
    schema = pb.Schema.infer(X, y)
    rows = schema.encode(X)
    known = {}
    for family in FAMILIES:
        parents = ((1,), ()) if family in layout.STRUCTURES else None
        laid_out = layout.calibrated(family, schema, missing, float(len(y)), parents)
        gaps = population._gaps(schema, rows)
        known[family] = {"gaps": gaps, "completed": bool(laid_out.incomplete(rows).any())}
    return known


KNOWN = {missing: facts_about(missing) for missing in (False, True)}


def simulator_says(choice, faults):
    """The sentence by which a simulation is refused; None: it runs."""
    family, missing = choice[1], choice[-1]
    try:
        settings = SimulationSettings(arguments(*choice, faults))
        settings.refuse(changing=False, few_neighbours="")
        settings.refuse(**KNOWN[missing][family])
    except ValueError as error:
        return str(error)
    return None


def agreement_says(choice):
    """The sentence by which an agreement is refused, or stops once the peers have agreed on their columns."""
    family, missing = choice[1], choice[-1]
    try:
        agreed = terms(*choice)
        agreed.refuse(few_neighbours="")
        agreed.refuse(PeerError, completed=KNOWN[missing][family]["completed"])
    except (TermsError, PeerError) as error:
        return str(error)
    return None


# How many of the 648 combinations of the other choices go with each strategy, whatever gets lost.
ACCEPTED = {
    "crc": 177, "exact": 177, "tracking": 100, "local": 100, "consensus-ml": 41, "dsgd": 26, "relay": 78,
    "tree-sum": 36, "auto": 177,
}  # fmt: skip


@pytest.mark.parametrize("strategy", planning.names())
def test_the_answers_are_the_same(strategy):
    answers = {}
    for choice in itertools.product((strategy,), *CHOICES):
        answers[choice] = agreement_says(choice)
        for faults in FAULTS:
            assert simulator_says(choice, faults) == answers[choice], (choice, faults)
    refused = {re.sub("'[^']*'", "…", sentence) for sentence in answers.values() if sentence is not None}
    accepted = sum(sentence is None for sentence in answers.values())
    print(f"{strategy}: {len(answers) * len(FAULTS):,} combinations, {accepted * len(FAULTS):,} of them accepted,",
          f"the others refused by {len(refused)} sentences")  # fmt: skip
    assert len(answers) * len(FAULTS) * len(planning.names()) == 23_328
    assert accepted == ACCEPTED[strategy]


def test_a_rule_that_one_of_them_does_not_ask_is_noticed(monkeypatch):
    """If the simulator asked another table, the comparison would fail."""
    choice = ("exact", "qda", "ml", None, True, None, False)
    assert simulator_says(choice, {}) == agreement_says(choice) is not None
    every, said = combinations.RULES, agreement_says(choice)
    for rule in every:
        monkeypatch.setattr(combinations, "RULES", tuple(other for other in every if other is not rule))
        if simulator_says(choice, {}) != said:
            break
    else:
        pytest.fail("no rule is what refuses this")


# --- the line of a file, and what is only known later --------------------------------------------------------


def as_file(choice):
    """The agreement as a founder would write it, and the number of each line by the setting that it sets."""
    strategy, family, start, robust, secure_sum, noise, missing = choice
    lines = [
        "network = 'test'",
        "label = 'label'",
        f"family = '{family}'",
        f"strategy = '{strategy}'",
        f"start = '{start}'",
    ]
    if noise is not None:
        lines += ["classes = ['no', 'yes']", "[features.height]", "kind = 'continuous'", "mean = 1.0", "sd = 1.4",
                  f"missing = {str(missing).lower()}", "[features.colour]", "kind = 'discrete'",
                  "categories = ['blue', 'red']"]  # fmt: skip
    lines += [
        "[robust]",
        f"combine = '{'clip' if robust else 'mean'}'",
        f"guard = {str(robust == 'guard').lower()}",
    ]
    lines += ["[privacy]", f"secure_sum = {str(secure_sum).lower()}"]
    if noise is not None:
        lines += ["epsilon = 4.0", f"edge_noise = {noise}", "rows = 24.0", "min_rows = 2"]
    numbers = {
        line.strip("[").split("]")[0].split(" ")[0]: number for number, line in enumerate(lines, start=1)
    }
    return "\n".join(lines), numbers


def test_a_file_is_refused_at_the_line_of_the_setting_that_the_sentence_begins_with():
    """Once for every sentence; the settings of a file are refused in the words of a call."""
    met = {}
    for choice in itertools.product(planning.names(), *CHOICES):
        try:
            terms(*choice)
        except TermsError as error:
            met.setdefault(re.sub("'[^']*'", "…", str(error)), (choice, str(error)))
    assert len(met) >= 14
    for choice, sentence in met.values():
        text, numbers = as_file(choice)
        where = f"here, line {numbers[sentence.split(' ')[0]]}: {sentence}"
        with pytest.raises(TermsError, match=f"^{re.escape(where)}$"):
            Terms.parse(text, "here")


class Loud(Momentum):
    """A strategy of an outside package, which sends what nobody may judge, sum up or protect."""

    declaration = type(Momentum.declaration)(summed=False, exposes="loud tells; use another")
    name = "loud"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"robust": Robust("clip")},
            "robust 'clip' with strategy 'loud', whose messages cannot be judged singly",
        ),
        (
            {"privacy": Privacy(secure_sum=True)},
            "secure_sum with strategy 'loud', which needs single messages",
        ),
    ],
    ids=["robust", "secure sums"],
)
def test_a_strategy_of_a_package_is_asked_when_it_is_loaded(settings, said, monkeypatch):
    """An agreement is read before any of its packages is imported, and what they declare is not known then."""
    monkeypatch.setattr(
        Registry, "_declared", lambda registry: {"loud": []} if registry is STRATEGIES else {}
    )
    monkeypatch.setattr(
        Registry, "package", lambda registry, name: "loud-package" if name == "loud" else None
    )
    monkeypatch.setattr(Registry, "_load", lambda registry, name: ("loud-package", Loud))
    monkeypatch.setattr(STRATEGIES, "_loaded", {})
    agreed = Terms("test", "label", strategy="loud", packages=("loud-package",), **settings)
    with pytest.raises(TermsError, match=f"^{said}"):
        agreed.load_packages()
    with pytest.raises(TermsError, match=f"^{said}"):  # it is loaded now
        Terms("test", "label", strategy="loud", packages=("loud-package",), **settings)


# --- shards and devices --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"strategy": "relay"}, "strategy 'relay', which needs single messages; expected one of crc, exact"),
        ({"family": "tan"}, "family 'tan', whose structure"),
        ({"start": "ml"}, "start 'ml', which"),
    ],
)
def test_shards_refuse_in_the_same_words(settings, said):
    """They add up messages as secure sums do, so that they need the same."""
    X, y = table(False)
    with pytest.raises(ValueError, match=f"^shards with {said}"):
        simulate_shards(X, y, peers=PEERS, rows_per_peer=ROWS, **settings)
    with pytest.raises(ValueError, match=f"^secure_sum with {said}"):
        pb.simulate(X, y, peers=PEERS, rows_per_peer=ROWS, secure_sum=True, **settings)
    with pytest.raises(TermsError, match=f"^secure_sum with {said}"):
        Terms("test", "label", privacy=Privacy(secure_sum=True), **settings)


def test_devices_are_refused_by_the_same_table():
    """A file has no device, so that only a call can ask for one."""
    X, y = table(False)
    with pytest.raises(ValueError, match=r"^epsilon 4 with device None and dtype 'float32'; expected NumPy"):
        pb.simulate(X, y, peers=PEERS, rows_per_peer=ROWS, privacy=pb.Privacy(min_rows=2), dtype="float32")


# --- from end to end -----------------------------------------------------------------------------------------


def run_simulation(choice, faults):
    """Return None for a simulation that ran, or the sentence that refused it."""
    X, y = table(choice[-1])
    parts = np.split(np.arange(len(y)), PEERS)
    given = arguments(*choice, faults) | {
        "partition": parts,
        "references": False,
        "evaluate_every": 0,
        "test": (X, y),
    }
    try:
        run = pb.simulate(X, y, **given)
    except ValueError as error:
        return str(error)
    assert np.isfinite(run.stats).all()
    return None


def run_peers(choice, folder):
    """Return None for real peers that ran, or the sentence that refused their agreement or stopped all of them."""
    X, y = table(choice[-1])
    try:
        agreed = terms(*choice)
    except TermsError as error:
        return str(error)
    parts = np.split(np.arange(len(y)), PEERS)
    folder.mkdir()
    peers = Peers(folder, agreed, FULL, [(X.iloc[part], y[part]) for part in parts])
    ends = asyncio.run(peers.all())
    if stopped := {str(end) for end in ends if isinstance(end, Exception)}:
        assert len(stopped) == 1, stopped
        return stopped.pop()
    assert np.isfinite(np.stack(ends)).all()
    return None


def sample(count, seed):
    """So many combinations, half of them accepted, and each of the others refused by another sentence."""
    rng = np.random.default_rng(seed)
    every = list(itertools.product(planning.names(), *CHOICES))
    by_answer = {}
    for number in rng.permutation(len(every)):
        by_answer.setdefault(agreement_says(every[number]), []).append(every[number])
    accepted, refused = by_answer.pop(None), [choices[0] for choices in by_answer.values()]
    return accepted[: count // 2] + refused[: count - count // 2]


def same_end(choices, folder):
    for number, choice in enumerate(choices):
        faults = FAULTS[number % len(FAULTS)]
        answer = agreement_says(choice)
        assert run_simulation(choice, faults) == answer, (choice, faults)
        assert run_peers(choice, folder / str(number)) == answer, choice


def test_a_few_of_them_run_or_stop_as_they_say(tmp_path):
    same_end(
        [
            ("relay", "naive-bayes", "uniform", None, False, 3.0, False),
            ("consensus-ml", "lda", "uniform", None, True, None, True),
            ("exact", "naive-bayes", "marginal", "clip", False, 0.0, False),
        ],
        tmp_path,
    )


@pytest.mark.long
def test_a_sample_of_them_runs_or_stops_as_they_say(tmp_path):
    choices = sample(48, seed=1)
    assert sum(agreement_says(choice) is None for choice in choices) == 24
    same_end(choices, tmp_path)
