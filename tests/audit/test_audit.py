"""The audit: what a neighbour sees is what was sent, attacks find rows, noise stops them, the command warns."""

import importlib.util
import itertools
import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import approx_fprime, least_squares
from sklearn.datasets import load_breast_cancer, load_iris, load_wine

import peerbayes as pb
from peerbayes import network as topologies
from peerbayes.audit import folders
from peerbayes.audit.active import Direction, random_direction
from peerbayes.audit.reconstruction import Equations, levenberg_marquardt, matched
from peerbayes.data.schema import Schema
from peerbayes.learning.robust.invariants import invariants_of
from peerbayes.model import layout
from peerbayes.model.core import posterior
from peerbayes.model.families import NaiveBayes, Rows
from peerbayes.privacy import exposure as measured
from peerbayes.privacy.exposure import FEW_ROWS, Exposure
from shared.commands import peerbayes

ROOT = Path(__file__).parents[2]
CANCER = load_breast_cancer(return_X_y=True)
CHAIN = topologies.adjacency("chain", 4, np.random.default_rng(0))  # peers 0 and 3 are leaves


def benchmark():
    """benchmarks/audit.py, for its residual with noise."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location("benchmark_audit", ROOT / "benchmarks" / "audit.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def settings(strategy="crc", rows=12, rounds=20):
    return {
        "peers": 4,
        "rows_per_peer": rows,
        "topology": "chain",
        "strategy": strategy,
        "rounds": rounds,
        "seed": 1,
    }


def mixed_table(rows=400, seed=0):
    """Continuous and discrete columns."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, rows)
    values = rng.normal(size=(rows, 4)) + y[:, None]
    codes = (rng.random((rows, 2)) < 0.3 + 0.2 * y[:, None]).astype(float) + (rng.random((rows, 2)) < 0.3)
    return np.concatenate([values, codes], axis=1), y, ["continuous"] * 4 + ["discrete"] * 2


# --- what a neighbour sees ---------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["crc", "exact", "tracking"])
def test_the_only_neighbour_of_a_leaf_sees_every_residual(strategy):
    found = pb.audit.observe(*CANCER, peer=0, **settings(strategy))
    seen = pb.audit.seen(found)
    assert found.leaf and found.neighbour == 1 and len(seen.stats) >= 19
    for stats, residual in zip(seen.stats, seen.residuals, strict=True):
        np.testing.assert_allclose(residual, found.residual(stats[None])[0], atol=1e-9)
    assert seen.counts(12).tolist() == np.bincount(found.labels, minlength=2).tolist()


@pytest.mark.parametrize("strategy", ["crc", "exact", "tracking"])
def test_others_see_the_first_residual_only(strategy):
    found = pb.audit.observe(*CANCER, peer=1, neighbour=2, **settings(strategy))
    seen = pb.audit.seen(found)
    assert not found.leaf and len(seen.stats) == 1
    np.testing.assert_allclose(seen.residuals[0], found.residual(found.start[None])[0], atol=1e-9)
    assert seen.counts(12).tolist() == np.bincount(found.labels, minlength=2).tolist()


@pytest.mark.parametrize("topology", ["tree", "ring"])
def test_a_run_is_done_once_more_from_its_settings(topology):
    given_settings = {**settings("exact"), "topology": topology, "partition": "drift-x"}
    run = pb.simulate(*CANCER, **given_settings, references=False, evaluate_every=0)
    linked = {tuple(sorted(pair)) for pair in run.links.tolist()}
    found = pb.audit.again(run, *CANCER, peer=2)
    assert tuple(sorted((2, found.neighbour))) in linked
    with pytest.raises(ValueError, match="do not give the run's statistics"):
        pb.audit.again(run, CANCER[0][::-1], CANCER[1][::-1], peer=2)
    with pytest.raises(ValueError, match="expected 0 to 3"):
        pb.audit.again(run, *CANCER, peer=4)
    with pytest.raises(ValueError, match="neighbour is 2"):
        pb.audit.again(run, *CANCER, peer=2, neighbour=2)


def test_what_cannot_be_followed_is_refused():
    refused = {
        "message_loss": 0.1, "faults": [topologies.Loss(0.1)], "local_steps": 2, "objective": "peers",
        "messages": "int8",
    }  # fmt: skip
    for name, value in refused.items():
        with pytest.raises(ValueError, match=name):
            pb.audit.observe(*CANCER, peer=0, **settings(), **{name: value})
    with pytest.raises(ValueError, match="relay"):
        pb.audit.observe(*CANCER, peer=0, **settings("relay"))
    found = pb.audit.observe(*CANCER, peer=1, **settings())
    with pytest.raises(ValueError, match="other neighbours"):
        pb.audit.reconstruct(found)
    found = pb.audit.observe(*CANCER, peer=0, family="lda", start="ml", **settings())
    with pytest.raises(ValueError, match="naive-bayes"):
        pb.audit.reconstruct(found, active=True)


# --- counting what was found -------------------------------------------------------------------------------


@given(st.integers(0, 10**6))
def test_rows_match_in_any_order_and_only_once(seed):
    rng = np.random.default_rng(seed)
    truth = Rows(rng.normal(size=(6, 3)), rng.integers(-1, 3, (6, 2)))
    order = rng.permutation(6)
    near = Rows(truth.values[order] + 0.049 * rng.uniform(-1, 1, (6, 3)), truth.codes[order])
    assert (matched(near, truth) >= 0).all()
    assert (matched(Rows(truth.values[:1].repeat(6, 0), truth.codes[:1].repeat(6, 0)), truth) >= 0).sum() == 1
    assert (matched(Rows(truth.values + np.array([0, 0, 0.051]), truth.codes), truth) < 0).sum() >= 5
    wrong = truth.codes.copy()
    wrong[0, 1] += 5
    assert matched(Rows(truth.values, wrong), truth)[0] == -1


# --- listening -----------------------------------------------------------------------------------------------


def equations(rows=4):
    X, y, kinds = mixed_table()
    found = pb.audit.observe(X, y, peer=0, kinds=kinds, **settings(rows=rows))
    seen = pb.audit.seen(found)
    labels = np.repeat(np.arange(3), seen.counts(rows))
    return found, Equations.of(found.family, labels, seen.stats, seen.residuals)


def test_the_truth_solves_the_equations_and_slopes_are_slopes():
    found, these = equations()
    order = np.argsort(found.labels, kind="stable")
    codes = [np.where(found.rows.codes[order, k, None] == np.arange(r), 40.0, 0.0)
             for k, r in enumerate(found.family.cardinalities)]  # fmt: skip
    true = np.concatenate([found.rows.values[order], *codes], axis=1).ravel()
    assert np.abs(these.misfit(true)).max() < 1e-8
    assert (matched(these.rows(true), found.rows) >= 0).all()
    free = np.random.default_rng(0).normal(size=true.size)
    np.testing.assert_allclose(these.jacobian(free), approx_fprime(free, these.misfit, 1e-7), atol=1e-4)


def test_least_squares_are_scipys():
    """A convex problem has one minimum: ours is where scipy's is."""
    rng = np.random.default_rng(0)
    matrix, right = rng.normal(size=(30, 5)), rng.normal(size=30)
    left = lambda x: matrix @ x + 0.1 * np.tanh(matrix @ x) - right  # noqa: E731
    slopes = lambda x: matrix * (1 + 0.1 / np.cosh(matrix @ x) ** 2)[:, None]  # noqa: E731
    ours, total = levenberg_marquardt(left, slopes, np.zeros(5), 100)
    theirs = least_squares(left, np.zeros(5), slopes, method="lm", xtol=1e-14, ftol=1e-14)
    np.testing.assert_allclose(ours, theirs.x, atol=1e-6)
    assert total == pytest.approx(2 * theirs.cost, rel=1e-9)


@pytest.mark.parametrize("strategy", ["crc", "exact"])
def test_a_listener_finds_whole_rows_of_a_small_leaf(strategy):
    X, y = load_iris(return_X_y=True)
    found = pb.audit.observe(X, y, peer=3, **settings(strategy, rows=4, rounds=48))
    taken = pb.audit.reconstruct(found, restarts=40, seconds=60)
    assert (
        taken.recovered >= 0.75 and taken.counts.tolist() == np.bincount(found.labels, minlength=3).tolist()
    )


# --- lying -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lawful", [False, True])
@given(cut=st.floats(-3, 3), seed=st.integers(0, 1000))
def test_made_up_statistics_are_a_step(lawful, cut, seed):
    rng = np.random.default_rng(seed)
    classes = int(rng.integers(2, 6))
    family = NaiveBayes(continuous=4, cardinalities=(2, 3), variance_floor=0.05, count_floor=1e-4)
    start = family.uniform(classes, 1000.0)
    line = Direction(family, start, random_direction(family, rng), lawful)
    stats = line.step(cut)
    rows = Rows(rng.normal(size=(50, 4)), np.stack([rng.integers(0, 2, 50), rng.integers(0, 3, 50)], axis=1))
    at = rows.values @ line.along
    far = np.abs(at - cut) > 30 * line.width
    truth = np.zeros((50, classes))
    truth[np.arange(50), np.where(at > cut, 0, 1)] = 1.0
    told = posterior(np.asarray(family.features(rows)), family.weights(stats))
    np.testing.assert_allclose(told[far], truth[far], atol=1e-9)
    if lawful:
        np.testing.assert_allclose(stats.sum(axis=0), start.sum(axis=0), atol=1e-9 * 1000)
        for cells, _ in family.tabled():
            np.testing.assert_allclose(stats[:, cells].sum(axis=1), stats[:, 0], atol=1e-9 * 1000)


@pytest.mark.parametrize("lawful", [False, True])
@pytest.mark.parametrize("data", ["cancer", "wine", "mixed"])
def test_a_liar_gets_most_rows_of_fifty(data, lawful):
    X, y, *kinds = {
        "cancer": lambda: CANCER,
        "wine": lambda: load_wine(return_X_y=True),
        "mixed": mixed_table,
    }[data]()
    rows = 40 if data == "wine" else 50
    found = pb.audit.observe(X, y, peer=0, **settings(rows=rows), kinds=kinds[0] if kinds else "auto")
    taken = pb.audit.reconstruct(found, active=True, lawful=lawful)
    assert taken.recovered >= 0.8 and taken.rounds <= 64
    assert taken.counts.tolist() == np.bincount(found.labels, minlength=taken.counts.size).tolist()
    if len(taken.labels) == rows and (taken.labels >= 0).all():
        assert taken.labels_right >= 0.9


def test_a_liar_finds_rows_with_values_missing():
    X, y = CANCER
    X = np.where(np.random.default_rng(0).random(X.shape) < 0.1, np.nan, X)
    found = pb.audit.observe(X, y, peer=0, **settings(rows=30))
    assert found.family.missing
    assert pb.audit.reconstruct(found, active=True).recovered >= 0.8
    with pytest.raises(ValueError, match="missing"):
        pb.audit.reconstruct(found)


@pytest.mark.parametrize("strategy", ["crc", "exact"])
def test_made_up_messages_reach_the_peer_and_pass_for_plausible(strategy):
    """Through the strategy and the checks of real peers: the message that makes a leaf answer at given statistics."""
    from peerbayes.peer.learning.learner import Broadcaster

    found = pb.audit.observe(*CANCER, peer=0, **settings(strategy, rows=50))
    own, other = found.weights
    heard_at = []

    def residual(stats):
        heard_at.append(stats[0].copy())
        return found.residual(stats)

    mass = float(found.start[:, 0].sum())
    rule = invariants_of(
        found.strategy, found.family, found.start, [], False, 4 * 50.0, 4 * 50.0, mass, 1, 5.0, True
    )
    leaf = Broadcaster(found.strategy, {"liar": other}, found.start, residual, rule)
    line = Direction(
        found.family, found.start, random_direction(found.family, np.random.default_rng(0)), lawful=True
    )
    state = leaf.begin()
    for turn, cut in enumerate((-0.5, 0.0, 0.7), start=20):  # honest sums have not grown that far before
        wanted = line.step(cut)
        message = (wanted - own * leaf.outgoing(state)["liar"]) / other
        assert rule.violation(message, 1) is not None and rule.violation(message, turn) is None
        state = leaf.step(state, {"liar": message})
        np.testing.assert_allclose(heard_at[-1], wanted, atol=1e-6 * mass)


@pytest.mark.parametrize("rows", [10, 50])
def test_noise_of_epsilon_8_leaves_a_liar_nothing(rows):
    tools = benchmark()
    X, y, kinds = mixed_table()
    for name, (data, labels, kind) in {"cancer": (*CANCER, "auto"), "mixed": (X, y, kinds)}.items():
        found = pb.audit.observe(data, labels, peer=0, **settings(rows=rows), kinds=kind)
        plain = pb.audit.reconstruct(found, active=True)
        answers = tools.private(found.family, found.rows, found.labels, found.classes, 3)
        assert plain.recovered >= 0.8, name
        assert pb.audit.reconstruct(found, active=True, residual=answers).recovered == 0.0, name


@pytest.mark.parametrize("name", ["pulsar", "adult", "letter"])
def test_a_liar_gets_most_rows_of_the_papers_datasets(paper_data, name):
    found = benchmark().watched(name, 50, 0)
    taken = pb.audit.reconstruct(found, active=True, rounds=64)
    assert taken.recovered >= 0.8 and taken.rounds <= 64


# --- membership --------------------------------------------------------------------------------------------------


def population():
    X, y = CANCER
    schema = Schema.infer(X, y)
    family = layout.calibrated("naive-bayes", schema, False, float(len(y)))
    return family, schema.encode(X), schema.encode_labels(y), 2


def test_members_are_told_from_strangers_the_better_the_fewer_rows():
    few, many = (pb.audit.membership(*population(), held, trials=40) for held in (3, 100))
    assert few.auc > 0.9 and few.tpr > 0.3
    assert 0.5 < many.auc < few.auc - 0.1 and many.tpr < few.tpr


def test_the_bounds_are_gaussian_differential_privacys():
    for epsilon, mu in ((1, 1 / 3.731), (4, 1 / 1.081), (8, 1 / 0.600)):  # z₁ at δ = 1e-5
        assert pb.audit.auc_bound(mu) == pytest.approx({1: 0.575, 4: 0.743, 8: 0.881}[epsilon], abs=1e-3)
        assert pb.audit.tpr_bound(mu) == pytest.approx({1: 0.020, 4: 0.081, 8: 0.255}[epsilon], abs=1e-3)
    assert pb.audit.auc_bound(0.0) == 0.5 and pb.audit.tpr_bound(0.0) == pytest.approx(0.01)


@pytest.mark.parametrize("rounds", [1, 64])
@pytest.mark.parametrize("held", [2, 20, 100])
def test_with_noise_membership_is_within_its_bound(held, rounds):
    """The first of so many messages, which together have ε = 8."""
    tools = benchmark()
    family, rows, labels, classes = population()
    drawn = itertools.count()
    one = tools.private(family, rows, labels, classes, 0, rounds)
    found = pb.audit.membership(
        family, rows, labels, classes, held, trials=150, noise=tools.covariance(one),
        residual_of=lambda part, own: tools.private(family, part, own, classes, next(drawn), rounds),
    )  # fmt: skip
    assert found.auc <= pb.audit.auc_bound(one.scheme.ledger.mu(1)) + 0.02


# --- the judgement -----------------------------------------------------------------------------------------------


def test_the_judgement_is_worse_with_fewer_rows_and_fewer_neighbours():
    shares = [Exposure("a", 1, rows).lying for rows in (5, 50, 100, 320, 1000, 10_000)]
    assert shares == sorted(shares, reverse=True) and shares[0] >= 0.9 > 0.02 > shares[-1]
    told = [Exposure("a", 3, rows).membership for rows in (2, 10, 50, 320, 1000, 10_000)]
    assert told == sorted(told, reverse=True) and 0.5 < told[-1] < 0.6
    assert Exposure("a", 1, 100, rounds=128).lying > Exposure("a", 1, 100, rounds=64).lying
    assert Exposure("a", 1, 10_000).alarming and not Exposure("a", 3, 10_000, (5000, 5000)).alarming
    assert Exposure("a", 3, FEW_ROWS - 1).alarming
    assert not Exposure("a", 1, 10, sends=False).alarming and Exposure("a", 1, 10, sends=False).lying == 0.0
    assert "one class" in " ".join(Exposure("a", 3, 10_000, (0, 10_000)).alarms())
    assert "alone" in " ".join(Exposure("a", 3, 10_000, (0, 1, 9999)).alarms())
    assert Exposure("a", 2).alarms() == [] and Exposure("a", 1).alarms()


def test_noise_and_sums_are_taken_into_account():
    few = Exposure("a", 1, 20, (0, 20))
    hidden = replace(few, epsilon=4.0)
    assert few.alarming and not hidden.alarming and hidden.lying == hidden.listening == 0.0
    assert hidden.membership < few.membership and hidden.membership == pytest.approx(0.743, abs=1e-3)
    assert "0.74" in " ".join(hidden.notes()) and hidden.to_plain()["hidden"]
    assert replace(few, epsilon=20.0).alarming  # a bound that bounds nothing
    assert Exposure("a", 3, 20).alarming and not Exposure("a", 3, 20, among=3).few


ONE_NEIGHBOUR, FEW, TELLS, ALONE, ONE_CLASS = (
    "one neighbour only",
    "are few",
    "any neighbour tells",
    "alone in",
    "of one class",
)


@pytest.mark.parametrize(
    ("exposure", "alarms"),
    [
        # letter: an AUC of 0.98 at 50 rows, 0.82 at 320, straight in the logarithm between: 0.9 at 126
        (Exposure("a", 2, 49), [FEW]), (Exposure("a", 2, 50), [TELLS]), (Exposure("a", 2, 125), [TELLS]),
        (Exposure("a", 2, 127), []), (Exposure("a", 1, 127), [ONE_NEIGHBOUR]),
        (Exposure("a", 1, 10), [ONE_NEIGHBOUR, FEW]),
        (Exposure("a", 1), [ONE_NEIGHBOUR]), (Exposure("a", 0, 10), []), (Exposure("a", 1, 10, sends=False), []),
        (Exposure("a", 2, 25, among=2), [TELLS]), (Exposure("a", 2, 24, among=2), [FEW]),
        (Exposure("a", 2, 2, among=64), []),
        # up to ε = 8 there is noise enough, beyond there is not; but membership is bounded all the same
        (Exposure("a", 1, 10, (0, 1, 9), epsilon=8.0), []), (Exposure("a", 2, 10, epsilon=8.1), [FEW]),
        (Exposure("a", 2, 60, epsilon=8.1), []), (Exposure("a", 2, 60, epsilon=30.0), [TELLS]),
        (Exposure("a", 2, 500, (0, 1, 499)), [ALONE]), (Exposure("a", 2, 500, (1, 499)), []),
        (Exposure("a", 2, 500, (0, 2, 498)), []), (Exposure("a", 2, 500, (0, 500)), [ONE_CLASS]),
        (Exposure("a", 2, 500, (0, 250, 250)), []), (Exposure("a", 2, 500, (250, 250)), []),
        (Exposure("a", 2, 500, (0, 1, 499), epsilon=8.0), []),
        (Exposure("a", 1, 1, (0, 1)), [ONE_NEIGHBOUR, FEW, ALONE, ONE_CLASS]),
    ],
)  # fmt: skip
def test_alarms_are_raised_for_what_is_alarming(exposure, alarms):
    sentences = exposure.alarms()
    assert len(sentences) == len(alarms) and all(
        words in sentence for words, sentence in zip(alarms, sentences, strict=True)
    ), sentences
    assert exposure.alarming == bool(alarms)


@pytest.mark.parametrize(
    ("exposure", "notes"),
    [
        (Exposure("a", 0, 10), ["nothing is sent"]), (Exposure("a", 2, 10, sends=False), ["nothing is sent"]),
        (Exposure("a", 2, 10, epsilon=4.0), ["an AUC above 0.74"]),
        (Exposure("a", 2, 10, among=2), ["the sum of 2 messages"]),
        (Exposure("a", 1, 500), ["how many rows of each class"]),
        (Exposure("a", 1, 500, (0, 200, 300)), ["how many rows of each class", "1 classes are absent"]),
        (Exposure("a", 1, 500, (0, 500)), ["how many rows of each class"]),
        (Exposure("a", 3, 320), ["how many rows of each class", "its 3 neighbours together"]),
    ],
)  # fmt: skip
def test_notes_tell_what_is_as_it_is(exposure, notes):
    sentences = exposure.notes()
    assert len(sentences) == len(notes) and all(
        words in sentence for words, sentence in zip(notes, sentences, strict=True)
    ), sentences


def test_shares_and_areas_lie_between_what_was_measured():
    """Straight in the logarithm of the rows; fewer than measured as the fewest; more, as one in the number of rows."""
    middle = math.sqrt(50 * 320)
    for rows, share in ((5, 1.0), (10, 1.0), (50, 1.0), (320, 0.18), (640, 0.09), (middle, (1.0 + 0.18) / 2)):
        assert Exposure("a", 1, rows).lying == pytest.approx(share)
        assert Exposure("a", 1, rows, rounds=16).lying == pytest.approx(Exposure("a", 1, 4 * rows).lying)
        assert Exposure("a", 1, rows, among=2).lying == pytest.approx(Exposure("a", 1, 2 * rows).lying)
    for rows, share in ((1, 1.0), (20, 0.8), (50, 0.01), (100, 0.005)):
        assert Exposure("a", 1, rows).listening == pytest.approx(share)
        assert Exposure("a", 1, rows, rounds=16).listening == pytest.approx(share)
    for rows, area in ((2, 1.0), (320, 0.82), (1000, 0.69), (4000, 0.5 + 0.19 / 2), (16_000, 0.5 + 0.19 / 4)):
        assert Exposure("a", 3, rows).membership == pytest.approx(area)
        assert Exposure("a", 3, rows, epsilon=0.1).membership == pytest.approx(0.5, abs=0.02)
    assert Exposure("a", 3, 4000, epsilon=30.0).membership == pytest.approx(
        0.5 + 0.19 / 2
    )  # the lower of the two
    assert Exposure("a", 0, 10).membership == Exposure("a", 2, 10, sends=False).membership == 0.5
    assert (
        Exposure("a", 2).membership
        is Exposure("a", 2).lying
        is Exposure("a", 2).absent
        is Exposure("a", 2).alone
        is None
    )


def test_the_worst_peer_has_the_most_alarms_then_one_neighbour_then_the_fewest_rows():
    ordered = [
        Exposure("a", 1, 10, (0, 10)), Exposure("a", 1, 10), Exposure("a", 1, 400), Exposure("a", 2, 60),
        Exposure("a", 2, 400), Exposure("a", 2, 10_000), Exposure("a", 2, 10, epsilon=1.0),
        Exposure("a", 2, 20, epsilon=1.0),
    ]  # fmt: skip
    assert sorted(ordered, key=Exposure.badness, reverse=True) == ordered
    assert Exposure("a", 2, 60).rounds == 64 and not Exposure("a", 2, 10).leaf and Exposure("a", 1, 10).leaf
    assert not Exposure("a", 1, 10, sends=False).leaf


def test_the_page_has_the_measured_figures():
    page = (ROOT / "docs" / "protection.md").read_text(encoding="utf-8")
    for table, form in (
        (measured.LISTENING, "{:.2f}"), (measured.LYING, "{:.2f}"), (measured.MEMBERSHIP, "{:.2f}"),
    ):  # fmt: skip
        for name, figures in table.items():
            row = [line for line in page.splitlines() if line.startswith(f"| {name}")]
            found = [[cell.split()[0] for cell in line.split("|")[2:-1]] for line in row]
            assert [form.format(figure) for figure in figures.values()] in found, name


# --- the command -------------------------------------------------------------------------------------------------


def audit(*words):
    return peerbayes("audit", *words)


RUN = """
[data]
name = "breast-cancer"

[simulation]
peers = {peers}
rows_per_peer = {rows}
topology = "{topology}"
strategy = "crc"
rounds = 12
"""


@pytest.fixture
def saved(tmp_path):
    def make(peers=4, rows=12, topology="chain"):
        (tmp_path / "run.toml").write_text(RUN.format(peers=peers, rows=rows, topology=topology))
        from peerbayes.simulation import config

        configuration = config.read(tmp_path / "run.toml")
        run = pb.simulate(*configuration.load(), **configuration.settings, references=False, evaluate_every=0)
        run.save(tmp_path / "run", overwrite=True)
        return tmp_path / "run"

    return make


def test_a_run_is_audited_and_attacked(saved, tmp_path):
    folder = saved()
    done = audit(folder, "--data", tmp_path / "run.toml", "--attack", "--seconds", "2", "--format", "json")
    assert done.returncode == 3, done.stderr
    told = json.loads(done.stdout)
    assert told["peers"] == told["alarming"] == 4 and "Alarming" in told["verdict"]
    first = told["exposures"][0]
    assert first["leaf"] and first["rows"] == 12 and sum(first["counts"]) == 12
    assert {line["peer"] for line in told["attacks"]} == {"peer 0", "peer 3"}
    done = audit(folder)
    assert done.returncode == 3 and "ALARMING" in done.stdout and "What helps" in done.stdout
    assert "class counts of the peers are not known here" in done.stdout
    assert audit(folder, "--attack").returncode == 2  # whose rows?


def test_counts_of_a_run_are_those_of_its_peers(saved, tmp_path):
    from peerbayes.simulation import config

    folder = saved(rows=20)
    X, y = config.read(tmp_path / "run.toml").load()
    found = {e.name: e.counts for e in folders.of_run(folder, np.asarray(y)).exposures}
    run = pb.Run.load(folder)
    for peer in (0, 3):
        labels = pb.audit.again(run, X, y, peer=peer).labels
        assert found[f"peer {peer}"] == tuple(np.bincount(labels, minlength=2).tolist())


def test_a_large_network_of_large_peers_is_summed_up(saved):
    done = audit(saved(peers=20, rows=25, topology="ring"))
    assert done.returncode == 3 and "… and 10 more" in done.stdout
    done = audit(saved(peers=3, rows=180, topology="ring"))
    assert done.returncode == 0 and "Nothing alarming" in done.stdout


def test_other_folders_are_refused(tmp_path):
    done = audit(tmp_path)
    assert done.returncode == 2 and "peerbayes simulate" in done.stderr
    assert audit(tmp_path / "nowhere").returncode == 2


# --- real peers --------------------------------------------------------------------------------------------------


@pytest.fixture
def network(tmp_path):
    pytest.importorskip("cryptography")
    from peerbayes.peer.agreement.terms import Terms
    from peerbayes.peer.loopback import Loopback

    frame = load_iris(as_frame=True).frame.sample(frac=1.0, random_state=0)
    made = Loopback.create(
        tmp_path, Terms("iris", "target", rounds=64, strategy="exact"),
        [frame.iloc[:60], frame.iloc[60:105], frame.iloc[105:]],
        [(0, 1), (1, 2)],
    )  # fmt: skip
    yield made
    made.stop()


def test_a_peers_home_and_its_network_are_audited(network):
    done = audit(network.homes["peer-1"].folder, "--attack", "--seconds", "2", "--format", "json")
    assert done.returncode == 3, done.stderr
    told = json.loads(done.stdout)
    (own,) = told["exposures"]
    assert own["name"] == "peer-1" and own["leaf"] and own["rows"] == 60 and sum(own["counts"]) == 60
    assert told["attacks"][0]["lying"] >= 0.8
    inner = json.loads(audit(network.homes["peer-2"].folder, "--format", "json").stdout)["exposures"][0]
    assert inner["neighbours"] == 2 and not inner["leaf"] and inner["rows"] == 45
    founder = next(path.parent for path in network.homes["peer-1"].folder.parent.rglob("authority.key"))
    told = json.loads(audit(founder, "--format", "json").stdout)
    assert told["peers"] == 3 and [e["leaf"] for e in told["exposures"]] == [True, True, False]


@pytest.mark.links
@pytest.mark.long
def test_a_peer_that_starts_is_warned_once(network):
    for name in network.homes:
        network.start(name)
    network.wait()
    warned = {name: home.log_path.read_text() for name, home in network.homes.items()}
    assert warned["peer-1"].count("privacy: one neighbour only") == 1
    assert "one neighbour only" not in warned["peer-2"] and warned["peer-2"].count("rows are few") == 1


def test_a_peer_judges_without_scikit_learn():
    code = "import sys; import peerbayes.peer.inspection, peerbayes.audit; print('sklearn' in sys.modules)"
    environment = {**os.environ}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.strip() == "False"
