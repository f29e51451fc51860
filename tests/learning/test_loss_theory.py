"""The laws of docs/loss.md: asymmetry of a link, spectra without loss, second moments under independent loss."""

import importlib.util
import itertools
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerbayes.learning.corrections import KEPT, REPAIRING, Corrections, Received, after_round
from peerbayes.network import LossTrace, Static, adjacency, stable

ROOT = Path(__file__).parents[2]


def benchmark():
    """benchmarks/loss_theory.py, for its predictions."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location("loss_theory", ROOT / "benchmarks" / "loss_theory.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["loss_theory"] = module
    spec.loader.exec_module(module)
    return module


theory = benchmark()
whole = st.integers(-(2**30), 2**30).map(float)  # halves and sums of these are exact in float64
flags = st.tuples(st.booleans(), st.booleans())


def a_round(links, heard, difference, repairs=None):
    """A round of one link whose ends see δ and −δ."""
    repairs = links.sent[::-1] if repairs is None else np.array(repairs)
    differences = np.stack([difference, -np.asarray(difference)]).reshape(2, 1, -1)
    gone = np.zeros(2, dtype=bool)
    came = np.flatnonzero(repairs)
    arrived = Received(np.array(heard), differences, came, links.values[::-1][came], links.missed[::-1], gone)
    return after_round(links, arrived)[0]


# --- the asymmetry of a link


@given(d=st.tuples(whole, whole), difference=whole, heard=flags, repairs=flags)
def test_asymmetry_after_a_round(d, difference, heard, repairs):
    """e ← (1 − ½·repairs heard)·e + (h_v − h_u)·δ, to the last bit: 0 after a mutual repair."""
    links = Corrections.begin(2, np.zeros((1, 1)))._replace(values=np.array(d)[:, None, None])
    after = a_round(links, heard, difference, repairs)
    repaired = sum(h and r for h, r in zip(heard, repairs, strict=True))
    expected = (1 - repaired / 2) * sum(d) + (heard[0] - heard[1]) * difference
    assert after.values.sum() == expected


@pytest.mark.parametrize("window", [2, REPAIRING])
@given(rounds=st.lists(st.tuples(flags, st.integers(-100, 100)), max_size=25), last=flags)
def test_two_rounds_without_loss_end_any_asymmetry(window, rounds, last):
    """Whatever was lost before: no window closes while the ends differ. Windows of two rounds are enough."""
    links = Corrections.begin(2, np.zeros((1, 1)))
    with theory.constants(REPAIRING=window):
        for heard, difference in [*rounds, (last, 7), ((True, True), 3), ((True, True), -5)]:
            links = a_round(links, heard, float(difference))
    assert abs(links.values.sum()) < 1e-9


@given(rounds=st.lists(st.tuples(flags, st.integers(-100, 100)), max_size=25))
def test_asymmetry_is_at_most_what_was_counted_since_the_ends_agreed(rounds):
    """|e| ≤ Σ|δ| over the rounds since two without loss, plus what decays where a link is down."""
    links, bound, clean = Corrections.begin(2, np.zeros((1, 1))), 0.0, 0
    for heard, difference in rounds:
        bound += abs(difference) * (heard[0] != heard[1]) + (1 - KEPT) * np.abs(links.values).sum()
        links = a_round(links, heard, float(difference))
        clean = clean + 1 if all(heard) else 0
        bound = 0.0 if clean >= 2 else bound
        assert abs(links.values.sum()) <= bound + 1e-9


@pytest.mark.parametrize("loss", [0.05, 0.2, 0.5])
def test_stationary_asymmetry_of_a_link(loss):
    """Ends that always send their corrections have E e² = 4p/(2 + p)·E δ²; waiting for a report costs a little."""
    least, told = 4 * loss / (2 + loss), theory.asymmetry(loss)
    assert least - 1e-3 < told.constant <= told.white < 1.25 * least
    rng, links, squares = np.random.default_rng(7), Corrections.begin(2, np.zeros((1, 400))), []
    for heard in rng.random((2000, 2)) >= loss:
        links = a_round(links, heard, rng.choice([-1.0, 1.0], size=400))
        squares.append((links.values.sum(axis=0) ** 2).mean())
    assert np.mean(squares) == pytest.approx(told.white, rel=0.15)


# --- without loss


@given(eigenvalue=st.floats(-0.6, 0.999), pull=st.floats(0.0, 1.9))
def test_modes_without_loss(eigenvalue, pull):
    """The roots are those of (S, D) ← (λφ, D + (λ − 1)φ), φ = (1 − μ)S + D, and stable just above −1/(3 − 2μ)."""
    message = np.array([1 - pull, 1.0])
    step = np.array([eigenvalue * message, [0.0, 1.0] + (eigenvalue - 1) * message])
    largest = np.abs(theory.roots(eigenvalue, pull)).max()
    assert largest == pytest.approx(np.abs(np.linalg.eigvals(step)).max(), abs=1e-6)
    assert (largest < 1) == (pull >= 1.5 or eigenvalue > -1 / (3 - 2 * pull)) or abs(largest - 1) < 1e-9


@pytest.mark.parametrize("topology", ["tree", "ring", "tree+20"])
@pytest.mark.parametrize("pull", [0.0, 0.05])
def test_convergence_factor_without_loss(topology, pull):
    links = adjacency(topology, 12, np.random.default_rng(611))
    predicted = theory.convergence_factor(stable(links), pull)
    assert math.log(theory.measured_factor(links, pull)) == pytest.approx(math.log(predicted), rel=0.1)


@pytest.mark.parametrize("repairs", [False, True])
def test_the_lifted_iteration_is_that_of_the_simulator(repairs):
    links, pull = adjacency("tree+20", 9, np.random.default_rng(612)), np.linspace(0.0, 0.3, 9)
    lifted = theory.Lifted(stable(links), pull, repair=0.5 * repairs)
    state = np.random.default_rng(613).normal(size=(9, 2, 1))
    x = np.vstack([state[:, :, 0], np.zeros((len(lifted.ends.senders), 2))])
    pulled = -pull[:, None, None]
    for _, stats, _ in theory.simulated(links, state, lambda stats: pulled * stats, 0.0, 614, 30, repairs):
        x = lifted.expected(0.0) @ x
        assert np.allclose(stats[:, :, 0], x[:9], atol=1e-12)


# --- independent loss


def test_second_moment_of_one_link_over_all_losses():
    """E[x xᵀ] by the chain of a link is the mean over all 256 patterns of loss of four rounds in the simulator."""
    loss, rounds, pull = 0.3, 4, 0.2
    link = theory.closed_link(0.5, pull, 1.0)
    moments = np.zeros((link.modes, 5, 5))
    moments[0, 4, 4] = 1.0
    for _ in range(rounds):
        moments = link.second_moment(moments, loss)
    targets, expected = np.array([1.0, -1.0])[:, None, None], np.zeros((2, 2))

    def driver(round_index, lost):
        missing = [(round_index, 1 - peer, peer) for peer in (0, 1) if lost[peer]]
        return theory.Broadcast(
            theory.Exact(rounds, averaged=1), Static(adjacency("chain", 2, np.random.default_rng(0))),
            lambda stats: pull * (targets - stats),
            theory.Faults(0.0, 0, trace=LossTrace(frozenset(missing))), theory.NUMPY, by_link=True,
        )  # fmt: skip

    states = [(driver(1, (False, False)).begin(np.zeros((2, 1, 1))), 1.0)]
    for round_index in range(1, rounds + 1):
        states = [
            (
                driver(round_index, lost).advance(state, round_index)[0],
                chance * loss ** sum(lost) * (1 - loss) ** (2 - sum(lost)),
            )
            for state, chance in states
            for lost in itertools.product((False, True), repeat=2)
        ]
    for state, chance in states:
        stats = state.state.recent[0][:, 0, 0]
        expected += chance * np.outer(stats, stats)
    assert np.allclose(moments[:, 2:4, 2:4].sum(axis=0), expected, atol=1e-12)


def test_one_link_in_closed_form():
    """The matrix of docs/loss.md for (E g², E gf, E f², E e²); the mean square grows from a loss of √⅓ on."""
    none = np.array([[1, 2, 1, 0], [0, 1, 1, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    one = np.array([[0, 0, 1, 1], [0, -0.5, 1, 0.5], [0.25, -1, 1, 0.25], [0.25, 0, 0, 0.25]])
    both = np.array([[1, -2, 1, 0], [1, -2, 1, 0], [1, -2, 1, 0], [0, 0, 0, 0]])
    lifted = theory.Lifted(stable(adjacency("chain", 2, np.random.default_rng(0))))
    of = np.array([[1, -1, 1, -1], [0, 0, 1, -1], [0, 0, 1, 1]])

    def closed(loss):
        return loss**2 * none + 2 * loss * (1 - loss) * one + (1 - loss) ** 2 * both

    def terms(moment):
        moment = of @ moment @ of.T
        return np.array([moment[0, 0], moment[0, 1], moment[1, 1], moment[2, 2]])

    for before, after in itertools.pairwise(lifted.moments(0.3, 8)):
        assert np.allclose(closed(0.3) @ terms(before), terms(after), atol=1e-12)
    limits = [
        theory.critical_loss(lambda loss: np.abs(np.linalg.eigvals(closed(loss))).max() >= 1),
        theory.critical_loss(lambda loss: lifted.gain(loss) >= 1),
    ]
    assert limits == pytest.approx([math.sqrt(1 / 3)] * 2, abs=0.001)


def test_one_link_as_it_is_is_stable_at_any_loss():
    """Peers whose link is down stop, so that the mean square shrinks at any loss below 1, with R and without."""
    for pull, coordinates in ((0.0, theory.AGREEMENT), (0.05, theory.ALL)):
        link = theory.closed_link(0.5, pull)
        assert all(link.spectral_radius(loss, coordinates) < 1 for loss in (0.05, 0.5, 0.9, 0.99))


def test_second_moments_of_a_network_whose_ends_always_send_corrections():
    """E[x xᵀ] as predicted, and its sum over all rounds by the matrix G."""
    links, loss, rounds, peers = adjacency("ring", 5, np.random.default_rng(0)), 0.2, 40, 5
    lifted = theory.Lifted(stable(links))
    predicted = np.array([np.trace(moment[:peers, :peers]) for moment in lifted.moments(loss, rounds)][1:])
    measured = np.zeros(rounds)
    with theory.constants(REPAIRING=math.inf, DOWN=math.inf):
        for seed in range(40):
            start = np.random.default_rng([620, seed]).normal(size=(peers, 4, 8))
            start -= start.mean(axis=0)
            runs = theory.simulated(links, start, theory.nothing, loss, seed, rounds)
            measured += [float((stats**2).sum()) / (32 * 40) for _, stats, _ in runs]
    assert measured[:20] == pytest.approx(predicted[:20], rel=0.2)
    heard = sum(((lifted.heard @ m) * lifted.heard).sum(axis=1) for m in lifted.moments(loss, 600))
    matrix, first = lifted.expected(loss), 0.0
    responses, total = lifted.targets, np.zeros((len(lifted.heard),) * 2)
    state = np.vstack([np.eye(peers) - 1 / peers, np.zeros((len(lifted.heard), peers))])
    for _ in range(600):
        first, total = (
            first + ((lifted.heard @ state) ** 2).sum(axis=1),
            total + (lifted.heard @ responses) ** 2,
        )
        state, responses = matrix @ state, matrix @ responses
    expected = np.linalg.solve(np.eye(len(total)) - loss * (1 - loss) * total, first)
    assert np.allclose(heard, expected, rtol=1e-6)
    assert lifted.gain(loss) < 1


@pytest.mark.parametrize("repair", [0.0, 0.5])
def test_shift_of_the_mean_under_loss(repair):
    """The prediction with R = 0; repairs make it some hundred times smaller."""
    links, loss, rounds = adjacency("tree", 10, np.random.default_rng(615)), 0.1, 60
    squares = []
    for seed in range(24):
        start = np.random.default_rng([616, seed]).normal(size=(10, 4, 4))
        *_, (_, stats, _) = theory.simulated(links, start, theory.nothing, loss, seed, rounds, repair > 0)
        squares.append(((stats - start).mean(axis=0) ** 2).mean())
    predicted = theory.mean_shift(stable(links), loss, rounds, repair)
    assert math.sqrt(np.mean(squares)) == pytest.approx(predicted, rel=0.3)
    assert predicted < 0.2 if repair else predicted > 2


def test_a_thousand_rounds_with_half_of_the_messages_lost():
    """Statistics stay within the range of the targets, and asymmetry within that of one round's differences."""
    links = adjacency("tree", 10, np.random.default_rng(617))
    targets = np.random.default_rng(618).normal(size=(10, 2, 2))
    largest, last = 0.0, None
    for _, stats, state in theory.simulated(
        links, np.zeros_like(targets), lambda stats: 0.05 * (targets - stats), 0.5, 619, 1000
    ):
        largest, last = max(largest, float(np.abs(stats).max())), (stats, state)
    ends = theory.LinkEnds.of(stable(links))
    assert largest < np.abs(targets).max()
    assert np.abs(last[0] - targets.mean(axis=0)).max() < 0.05
    assert np.abs(last[1].values + last[1].values[ends.other]).max() < 0.05
