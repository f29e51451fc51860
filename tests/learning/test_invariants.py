"""What holds of every honest message: for every family and strategy, over many rounds; and what is refused."""

import itertools
import os
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from sklearn.datasets import load_iris

import peerbayes as pb
from peerbayes import network
from peerbayes.learning.relay import Relay, spanning_tree
from peerbayes.learning.robust.invariants import REASONS, Invariants, bounds_of, invariants_of, ties_of
from peerbayes.learning.strategies import CRC, DSGD, ConsensusML, Exact, Local, Tracking
from peerbayes.model import layout
from peerbayes.model.families import BayesNet, NaiveBayes, Rows, SeparateGaussian

# --- plausibility --------------------------------------------------------------------------------------

CLASSES, CELLS = 3, (slice(2, 5), slice(5, 7))
WIDTH = 7


def known(sums, mass, cells, growth, centre):
    """Invariants of a strategy whose growth is not proved, with cells that add up to the class count."""
    ties = np.zeros((len(cells), len(sums)))
    for row, own in zip(ties, cells, strict=True):
        row[own], row[0] = 1.0, -1.0
    most = np.full(len(sums), growth)
    return Invariants(sums, mass, csr_array(ties), centre, None, most, most)


@st.composite
def honest(draw):
    """A message as peers send them: [C, K] with the start's class sums and cells that add up to the class count."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    start = rng.normal(size=(CLASSES, WIDTH))
    change = rng.uniform(-1, 1, (CLASSES, WIDTH))
    change -= change.mean(axis=0)
    for cells in CELLS:
        for matrix in (start, change):
            matrix[:, cells.start] = matrix[:, 0] - matrix[:, cells.start + 1 : cells.stop].sum(axis=1)
    turn = draw(st.integers(1, 100))
    plausible = known(start.sum(axis=0), 100.0, CELLS, 1.0, start)
    return plausible, start + turn * change, turn, rng


@given(honest())
def test_honest_messages_are_plausible(case):
    plausible, message, turn, _ = case
    assert plausible.violation(message, turn) is None
    assert plausible.violation(np.stack([message, message - plausible.centre]), turn) is None


@given(honest(), st.floats(1e-6, 1e306), st.sampled_from([-1, 1]))
@example((known(np.zeros(WIDTH), 1.0, CELLS, 1e300, np.zeros((CLASSES, WIDTH))),
          np.zeros((CLASSES, WIDTH)), 1, np.random.default_rng(0)), 1.7e308, 1)  # fmt: skip
def test_one_entry_that_is_off_is_refused(case, size, sign):
    plausible, message, turn, rng = case
    message = message.copy()
    message[rng.integers(CLASSES), rng.integers(WIDTH)] += sign * size
    assert plausible.violation(message, turn).reason in ("class sums", "cell sums", "absurd magnitude")


@given(honest(), st.floats(1e-6, 0.5))
def test_cells_that_do_not_add_up_are_refused_though_class_sums_do(case, size):
    plausible, message, turn, rng = case
    message = message.copy()
    cell = rng.integers(2, WIDTH)
    message[0, cell] += size
    message[1, cell] -= size
    assert plausible.violation(message, turn).reason == "cell sums"


@given(honest(), st.floats(1e3, 1e300))
def test_what_rounds_cannot_have_made_is_absurd(case, size):
    plausible, message, turn, _ = case
    message = message.copy()
    message[:, 1] += np.array([1, -1, 0]) * size * turn * 10
    assert plausible.violation(message, turn).reason == "absurd magnitude"


@given(
    honest(),
    st.booleans(),
    st.sampled_from([0.0, 1e-9, 1e-3, 1.0, 1e3, 1e300, np.inf, np.nan]),
    st.booleans(),
)
def test_a_quick_examination_says_what_all_checks_say(case, tied, size, balanced):
    plausible, message, turn, rng = case
    if not tied:
        plausible = replace(plausible, ties=csr_array((0, WIDTH)))
    if turn % 3 == 0:
        plausible = replace(plausible, first=np.ones(WIDTH))
    message, column = message.copy(), rng.integers(WIDTH)
    message[0, column] += size
    if balanced:
        message[1, column] -= size
    for rounds in (1, turn):
        expected = plausible.violation(message, rounds), plausible.unusual(message, rounds)
        assert plausible.examined(message, rounds) == expected


def test_numbers_whose_sum_is_no_number_are_refused():
    """Where nothing bounds the entries, 16 classes with ±1.7e308 add up to ∞ − ∞."""
    plausible = known(np.zeros(1), 1.0, (), np.inf, np.zeros((16, 1)))
    message = np.tile([1.7e308, 1.7e308, -1.7e308, -1.7e308], 4)[:, None]
    assert plausible.violation(np.roll(message, 1, axis=0) * [[1.0]], 1) is not None


# --- what families obey --------------------------------------------------------------------------------


def table(rng, rows=240):
    """Three continuous and three discrete columns that depend on each other, and a class."""
    y = rng.integers(0, 3, rows)
    a = (y + rng.integers(0, 2, rows)) % 3
    b = (a + (rng.random(rows) < 0.3)) % 3
    X = {
        "x": y + rng.normal(size=rows), "z": rng.normal(size=rows) ** 3, "w": a + rng.normal(size=rows),
        "a": a.astype(str), "b": b.astype(str), "c": ((a + b) % 2).astype(str),
    }  # fmt: skip
    import pandas as pd

    return pd.DataFrame(X), y


NETS = [
    BayesNet(continuous=2, cardinalities=(3, 2, 4), parents=((), (0, 2), (), (2,), (2, 3))),
    BayesNet(continuous=1, cardinalities=(2, 2), parents=((1, 2), (), ())),
]


@pytest.mark.parametrize(
    "family", [*layout.known(), *NETS], ids=lambda family: getattr(family, "name", family)
)
def test_rows_obey_the_ties_and_bounds_of_their_family(family, rng):
    if isinstance(family, str):
        X, y = table(rng)
        schema = pb.Schema.infer(X, y)
        if not layout.type_of(family).linear:  # averages of discrete columns
            X = X[[schema.names[j] for j in schema.discrete]]
            schema = pb.Schema.infer(X, y)
        rows = schema.encode(X)
        parents = None
        if family in layout.STRUCTURES:
            parents = (
                ((), (0,), (3,), (), (3,), (3, 4)) if family == "kdb" else ((), (0,), (3,), (), (3,), (4,))
            )
        family, limit = layout.calibrated(family, schema, False, 240.0, parents), schema.limit
    else:
        limit = 4.0
        codes = np.stack([rng.integers(0, size, 100) for size in family.cardinalities], axis=1)
        rows = Rows(rng.uniform(-limit, limit, (100, family.continuous)), codes)
    features = family.features(rows)
    ties = ties_of(family, [True] * len(family.cardinalities))
    assert ties.shape[0] >= len(family.cardinalities)
    assert np.abs(ties @ features.T).max() < 1e-12
    assert (np.abs(features).max(axis=0) <= bounds_of(family, limit) + 1e-12).all()


def test_tables_of_a_network_that_disagree_on_a_parent_are_refused():
    family = NETS[0]
    ties = ties_of(family, [True] * 3)
    stats = np.zeros(family.size)
    block = {column: place for column, place, _, _ in family.blocks}
    first = block[3]  # p(second discrete | first): add to one configuration, take from another
    stats[first], stats[first + 2] = 1.0, -1.0
    assert abs(stats[first : first + 6].sum()) < 1e-12  # the sum of all cells does not show it
    assert np.abs(ties @ stats).max() == 1.0


@pytest.mark.parametrize("family", NETS)
def test_settling_is_the_nearest_that_obeys(family, rng):
    start = family.uniform(3, 100.0)
    both = invariants_of(
        Exact(), family, start, [True] * len(family.cardinalities), False, 9, 3, 100.0, 1, 4.0, True
    )
    off = start + rng.normal(size=start.shape)
    settled = both.settled(off.copy())
    assert np.abs(settled.sum(axis=0) - start.sum(axis=0)).max() < 1e-10
    assert np.abs(both.ties @ settled.T).max() < 1e-10
    np.testing.assert_allclose(both.settled(settled.copy()), settled, atol=1e-10)
    other = both.projected(rng.normal(size=start.shape))  # any other that obeys is farther away
    assert np.linalg.norm(off - settled) <= np.linalg.norm(off - (settled + 0.1 * other)) + 1e-9


# --- what strategies conserve --------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [CRC(), Exact(1000), Tracking(), Local(), ConsensusML(), DSGD(rate=1e-3)],
                         ids=lambda strategy: strategy.name)  # fmt: skip
def test_a_thousand_rounds_conserve_class_sums(strategy, rng):
    """With residuals as large as rows make them, and as wrong as rounding makes them."""
    family = pb.Schema.infer(*table(rng))
    family = layout.calibrated("naive-bayes", family, False, 240.0, None)
    nodes, classes, rows = 6, 3, 40
    features = rng.uniform(-5, 5, (nodes, rows, family.continuous))
    codes = np.stack([rng.integers(0, size, (nodes, rows)) for size in family.cardinalities], axis=-1)
    features = family.features(Rows(features, codes))

    def residual(stats):
        change = rng.random((nodes, rows, classes))
        change -= change.mean(axis=-1, keepdims=True)
        return np.swapaxes(change, 1, 2) @ features

    mass = rows / 0.05
    start = family.uniform(classes, mass)
    own = np.tile(start, (nodes, 1, 1))
    known = invariants_of(strategy, family, start, [True] * 3, False, nodes * rows, rows, mass, 1, 5.0, False)
    mixing = getattr(network, strategy.mixing)(nx.to_scipy_sparse_array(nx.cycle_graph(nodes), format="csr")) \
        if strategy.mixing != "none" else None  # fmt: skip
    state, worst = strategy.begin(own, residual), 0.0
    for turn in range(1, 1001):
        message = strategy.message(state)
        found = known.departures(message, turn)
        worst = max(worst, found[2:4].max())
        assert (known.reasons(message, turn) == -1).all(), dict(zip(REASONS, found.max(axis=1), strict=True))
        mixed = message
        if mixing is not None:
            mixed = (mixing @ message.reshape(nodes, -1)).reshape(message.shape)
            part = mixed[:, 0] if strategy.name == "tracking" else mixed
            part[...] = known.settled(part.copy())
        state = strategy.step(state, mixed, residual)
    assert worst < 0.1  # a tenth of what is allowed


def test_relay_conserves_class_sums(rng):
    schema = pb.Schema.infer(*table(rng))
    family = layout.calibrated("naive-bayes", schema, False, 240.0, None)
    graph = nx.to_scipy_sparse_array(nx.path_graph(5), format="csr")
    relay = Relay(spanning_tree(graph), 1000)
    features = family.features(Rows(rng.uniform(-5, 5, (5, 30, 3)), rng.integers(0, 2, (5, 30, 3))))

    def residual(stats):
        change = rng.random((5, 30, 3))
        return np.swapaxes(change - change.mean(axis=-1, keepdims=True), 1, 2) @ features

    start = family.uniform(3, 600.0)
    known = invariants_of(relay, family, start, [True] * 3, False, 150, 30, 600.0, 1, 5.0, False)
    state = relay.begin(np.tile(start, (5, 1, 1)))
    for turn in range(1, 1001):
        state = relay.adapt(state, residual)
        messages = relay.messages(state)
        assert (known.reasons(messages, turn) == -1).all()
        state = relay.hear(state, messages)


# --- no honest message is refused ----------------------------------------------------------------------

IRIS = load_iris(return_X_y=True)


def refused(X, y, **settings):
    run = pb.simulate(
        X, y, rounds=16, references=False, evaluate_every=0, attack=pb.Attack("flip", 0.0), **settings
    )
    assert set(run.rejected) == set(REASONS)
    return sum(run.rejected.values())


# The partitions and networks of tables 4 to 10 and 12.
@pytest.mark.parametrize("strategy", ["exact", "crc"])
@pytest.mark.parametrize("partition", ["iid", "drift-x", "drift-y", "drift-xy"])
def test_no_honest_message_is_refused(partition, strategy):
    for topology, more in (
        ("tree", {}), ("chain", {}), ("tree+10", {}), ("tree+80", {}), ("complete", {}),
        ("tree", {"change_every": 1}), ("tree", {"peers_down": 0.2}), ("tree+10", {"message_loss": 0.2}),
    ):  # fmt: skip
        assert refused(
            *IRIS, peers=15, rows_per_peer=8, partition=partition, topology=topology, strategy=strategy, **more
        ) == 0  # fmt: skip


@pytest.mark.parametrize("family", ["naive-bayes", "qda", "lda", "tan", "kdb"])
@pytest.mark.parametrize("start", ["uniform", "marginal", "ml"])
@pytest.mark.long
def test_no_honest_message_of_a_family_is_refused(family, start, rng):
    X, y = table(rng)
    for strategy in ("exact", "crc"):
        settings = {"family": family, "start": start, "strategy": strategy, "peers": 8, "rows_per_peer": 20}
        assert refused(X, y, **settings) == 0
        assert refused(X, y, local_steps=3, objective="peers", **settings) == 0
        holes = X.mask(rng.random(X.shape) < 0.05)
        assert refused(holes, y, **settings) == 0


@pytest.mark.skipif("PEERBAYES_DATA" not in os.environ, reason="needs the paper's datasets")
@pytest.mark.parametrize("dataset", ["adult", "pulsar", "letter", "bank"])
@pytest.mark.parametrize("partition", ["iid", "drift-y"])
def test_no_honest_message_on_the_papers_datasets_is_refused(dataset, partition):
    from peerbayes.experiments.cells import prepared

    data = prepared(dataset)
    (X, y), test = data.split(500, 0)
    for strategy in ("exact", "crc"):
        assert refused(X, y, schema=data.schema, peers=25, rows_per_peer=20, partition=partition, strategy=strategy,
                       topology="tree", evaluate_rows=50, test=test) == 0  # fmt: skip


def test_growth_of_crc_is_a_bound_and_its_first_message_the_start(rng):
    family = layout.calibrated("naive-bayes", pb.Schema.infer(*table(rng)), False, 240.0, None)
    start = family.uniform(3, 100.0)
    known = invariants_of(CRC(), family, start, [True] * 3, False, 30, 10, 100.0, 1, 5.0, True)
    assert known.violation(start, 1) is None
    moved = start.copy()
    moved[0, 1] += 1.0
    moved[1, 1] -= 1.0
    assert known.violation(moved, 1).reason == "absurd magnitude" and known.violation(moved, 2) is None
    noisy = Invariants(**{**vars(known), "noise": 1.0})
    assert noisy.violation(moved, 1) is None  # noise for privacy is allowed for


def test_an_exact_first_message_is_bounded_by_a_peers_rows(rng):
    family = layout.calibrated("naive-bayes", pb.Schema.infer(*table(rng)), False, 240.0, None)
    start = family.uniform(3, 1e4)
    known = invariants_of(Exact(64), family, start, [True] * 3, False, 1000, 10, 1e4, 1, 5.0, True)
    most = Exact(64).boost * 10 * 2 / 3
    change = np.zeros_like(start)
    change[0, 1], change[1, 1] = 0.999 * most * 5, -0.999 * most * 5
    assert known.violation(start + change, 1) is None
    assert known.violation(start + 1.1 * change, 1).reason == "first message"
    assert known.violation(start + 1.1 * change, 2) is None
    assert not known.unusual(start + change, 1) and known.unusual(start + 4 * change, 1)


# --- beside the equations, written out -----------------------------------------------------------------


def by_the_book(limits, messages, round_index, slack):
    """The departures of messages [M, P, C, K], one message and entry after the other: [5, M]."""
    departures = np.zeros((5, len(messages)))
    noise = 6.0 * limits.noise * round_index**0.5
    tolerance = limits.rounding * limits.mass + slack
    ties = limits.ties.toarray()
    for number, message in enumerate(messages):
        far = (
            (round_index - 1) * limits.growth if limits.proved else 10.0 * (round_index + 1) * limits.farthest
        )
        for position, matrix in enumerate(message):
            centre = limits.centre if position == 0 else 0.0 * limits.centre
            room = far + noise + limits.rounding * limits.mass
            departures[1, number] = max(departures[1, number], (np.abs(matrix - centre) / room).max())
            if limits.sums is not None:
                sums = matrix.sum(axis=0) - (limits.sums if position == 0 else 0.0)
                departures[2, number] = max(departures[2, number], np.abs(sums).max() / tolerance)
            for row in matrix:
                departures[3, number] = max(
                    departures[3, number], np.abs(ties @ row).max(initial=0.0) / tolerance
                )
        if limits.first is not None and round_index == 1:
            room = limits.first + noise + limits.rounding * limits.mass
            departures[4, number] = (np.abs(message[0] - limits.centre) / room).max()
    return departures


@given(
    seed=st.integers(0, 2**32 - 1),
    round_index=st.integers(1, 5),
    slack=st.sampled_from([0.0, 0.3]),
    proved=st.booleans(),
    unknown=st.sampled_from(["sums", "first", "ties"]),
)
def test_departures_are_those_of_the_equations(seed, round_index, slack, proved, unknown):
    """For one matrix and for three; with what is known and without."""
    rng = np.random.default_rng(seed)
    ties = csr_array(rng.integers(-1, 2, (2 if unknown != "ties" else 0, 4)).astype(float))
    bounds = rng.uniform(0.5, 2.0, (3, 4))
    limits = Invariants(
        None if unknown == "sums" else rng.normal(size=4), 50.0, ties, rng.normal(size=(3, 4)),
        None if unknown == "first" else bounds[0], bounds[1], bounds[2], proved, rng.choice([0.0, 0.4]), 1e-3,
    )  # fmt: skip
    for matrices in (1, 3):
        messages = rng.normal(size=(5, matrices, 3, 4)) * rng.choice([0.1, 1.0, 20.0])
        given_as = messages[:, 0] if matrices == 1 else messages
        np.testing.assert_allclose(
            limits.departures(given_as, round_index, slack),
            by_the_book(limits, messages, round_index, slack),
            rtol=1e-9,
        )
        unusual = [
            (np.abs(matrix - (limits.centre if position == 0 else 0.0)).max(axis=0)
             > 2.0 * round_index * limits.growth + 6.0 * limits.noise * round_index**0.5 + 1e-3 * 50.0).any()
            for position, matrix in enumerate(messages[0])
        ]  # fmt: skip
        assert limits.unusual(given_as[0], round_index) == any(unusual)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("entry", [(0, 0, 0), (1, 2, 1)])
def test_one_entry_that_is_no_number_is_enough(value, entry):
    limits = Invariants(None, 1.0, csr_array((0, 2)), np.zeros((3, 2)), None, np.ones(2), np.full(2, np.inf))
    message = np.zeros((2, 3, 2))
    message[entry] = value
    assert limits.violation(message, 3).reason == "not finite"
    assert limits.violation(np.zeros((2, 3, 2)), 3) is None


def largest_features(family, limit):
    """max|φ_k| over rows at the ends of what columns hold, one row after the other: [K]."""
    ends = [(-limit, limit, 0.0)] * family.continuous
    values = list(itertools.product(*ends))
    codes = list(itertools.product(*map(range, family.cardinalities)))
    rows = list(itertools.product(values, codes))
    features = family.features(
        Rows(
            np.array([x for x, _ in rows]).reshape(len(rows), -1),
            np.array([d for _, d in rows], dtype=int).reshape(len(rows), -1),
        )
    )
    return np.abs(features).max(axis=0)


WITHOUT_BLOCKS = (
    NaiveBayes(continuous=2, cardinalities=(3, 2)),
    SeparateGaussian(continuous=2, cardinalities=(2,)),
)


@pytest.mark.parametrize("limit", [0.5, 4.0])
@pytest.mark.parametrize("family", [*WITHOUT_BLOCKS, *NETS], ids=lambda family: family.name)
def test_bounds_of_features_are_attained(family, limit):
    """But for moments by configuration, of which the largest is taken for all."""
    bounds, attained = bounds_of(family, limit), largest_features(family, limit)
    assert (attained <= bounds + 1e-12).all()
    tight = np.zeros(family.size, dtype=bool)
    tight[: family.dense_size] = True
    for cells, _ in family.tabled():
        tight[cells] = True
    np.testing.assert_allclose(bounds[tight], attained[tight], rtol=1e-12)
    np.testing.assert_array_equal(bounds[~tight], max(1.0, limit**2))


LEARNERS = (
    CRC(),
    Exact(64),
    Tracking(),
    Local(),
    ConsensusML(),
    DSGD(rate=0.01),
    Relay(spanning_tree(csr_array([[0.0, 1.0], [1.0, 0.0]])), 64),
)


@pytest.mark.parametrize("gapped", [False, True])
@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("strategy", LEARNERS, ids=lambda strategy: strategy.name)
def test_what_is_known_of_messages_follows_from_the_strategy(strategy, steps, even, gapped):
    """Four classes, 30 rows in all and at most 10 at a peer: a row adds at most b_k in a step, times rate and boost."""
    family, limit = WITHOUT_BLOCKS[0], 4.0
    start = family.uniform(4, 100.0) * np.arange(1, 5)[:, None]
    limits = invariants_of(
        strategy, family, start, [True, True], gapped, 30, 10, 100.0, steps, limit, even, 1e-8
    )
    step = np.full(family.size, 100.0 * limit**2) if gapped else largest_features(family, limit)
    step = step * (0.01 if strategy.name == "dsgd" else getattr(strategy, "boost", 1.0))
    np.testing.assert_allclose(limits.growth, 10 * steps * step)
    np.testing.assert_allclose(limits.farthest, 30 * steps * step)
    assert (limits.mass, limits.rounding, limits.noise) == (100.0, 1e-8, 0.0)
    assert limits.proved == (strategy.name == "crc" and not gapped)
    elsewhere = strategy.name in ("relay", "dsgd", "consensus-ml")
    np.testing.assert_array_equal(limits.centre, 0.0 * start if elsewhere else start)
    if gapped or strategy.name == "consensus-ml":
        assert limits.sums is None
    else:
        np.testing.assert_array_equal(limits.sums, 0.0 * start[0] if elsewhere else start.sum(axis=0))
    if strategy.name == "crc":
        np.testing.assert_array_equal(limits.first, 0.0)
    elif elsewhere or gapped:
        assert limits.first is None
    else:  # |y − p| ≤ 3/4 where all classes are as likely, in the first of the steps
        np.testing.assert_allclose(limits.first, 10 * ((0.75 if even else 1.0) + steps - 1) * step)


@pytest.mark.parametrize("family", [*WITHOUT_BLOCKS, *NETS], ids=lambda family: family.name)
def test_rows_without_a_value_obey_the_ties_that_are_left(family, rng):
    for absent in range(len(family.cardinalities)):
        codes = np.stack([rng.integers(0, size, 60) for size in family.cardinalities], axis=1)
        codes[::2, absent] = -1
        features = family.features(Rows(rng.normal(size=(60, family.continuous)), codes))
        there = [column != absent for column in range(len(family.cardinalities))]
        every, left = ties_of(family, [True] * len(there)), ties_of(family, there)
        assert np.abs(left @ features.T).max(initial=0.0) < 1e-12
        assert np.abs(every @ features.T).max() >= 1.0
        others = np.delete(np.arange(len(there)), absent)
        if others.size and not isinstance(family, BayesNet):
            assert left.shape[0] == others.size


def test_columns_that_are_completed_are_tied_though_values_are_missing():
    """φ of a linked column is completed; of a discrete column that goes with nothing, a missing value stays away."""
    for family, absent in ((NETS[0], 3), (WITHOUT_BLOCKS[0], 0)):
        count = len(family.cardinalities)
        start = family.uniform(2, 10.0)
        every, left = (
            invariants_of(Exact(), family, start, [there] * count, False, 9, 3, 10.0, 1, 4.0, True)
            for there in (True, False)
        )
        assert len(every.cells) == count and len(left.cells) == absent
        assert left.ties.shape[0] == (every.ties.shape[0] if absent else 0)


@pytest.mark.parametrize("family", NETS)
def test_a_projected_change_obeys(family, rng):
    """It adds nothing to class sums, violates no tie, and is as near as least squares get."""
    start = family.uniform(3, 100.0)
    limits = invariants_of(
        Exact(), family, start, [True] * len(family.cardinalities), False, 9, 3, 100.0, 1, 4.0, True
    )
    change = rng.normal(size=(2, *start.shape))
    kept = limits.projected(change)
    assert (
        np.abs(kept.sum(axis=-2)).max() < 1e-12
        and np.abs(limits.ties @ kept.reshape(-1, family.size).T).max() < 1e-12
    )
    # all conditions on one matrix [C·K], at once
    conditions = np.concatenate(
        [np.kron(np.ones(3), np.eye(family.size)), np.kron(np.eye(3), limits.ties.toarray())]
    )
    nearest = change - (np.linalg.pinv(conditions) @ (conditions @ change.reshape(2, -1).T)).T.reshape(
        change.shape
    )
    np.testing.assert_allclose(kept, nearest, atol=1e-10)
    loose = replace(limits, sums=None)
    assert np.abs(loose.projected(change).sum(axis=-2)).max() > 0.1
