"""Kinds of faults: the share of messages each loses, on which side, for how long; and that the seed decides it all."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peerbayes.errors import TopologyError
from peerbayes.network import Away, Bursts, DeadLinks, Flapping, Loss, LossTrace, adjacency
from peerbayes.network.fault_kinds import Draws, faults_of
from peerbayes.network.mixing import rows_of
from peerbayes.simulation.faults import Faults

LINKS = adjacency("regular-4", 60, np.random.default_rng(0))
SENDERS, RECEIVERS = LINKS.indices, rows_of(LINKS)
ROUNDS = 400
DRAWS = Draws(seed=5, index=1, nodes=60)


def lost(fault, rounds=ROUNDS, draws=DRAWS):
    """Which messages are lost: [T, E]."""
    return np.stack([fault.lost(turn, SENDERS, RECEIVERS, draws) for turn in range(1, rounds + 1)])


def runs(column):
    """The lengths of the bursts in a column of booleans, without those that the first and last round cut."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], column, [False]]).astype(int)))
    starts, ends = edges[::2], edges[1::2]
    inside = (starts > 0) & (ends < len(column))
    return (ends - starts)[inside]


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
def test_single_messages_are_lost_independently_of_each_other(share):
    table = lost(Loss(share))
    other = np.lexsort((RECEIVERS, SENDERS))[np.argsort(np.lexsort((SENDERS, RECEIVERS)))]
    assert (SENDERS[other] == RECEIVERS).all() and (RECEIVERS[other] == SENDERS).all()
    tolerance = 4 / np.sqrt(table.size)
    assert abs(table.mean() - share) <= tolerance
    both = (table & table[:, other]).mean()  # the two directions of a link
    again = (table[1:] & table[:-1]).mean()  # two rounds in a row
    neighbour = (table[:, 1:] & table[:, :-1]).mean()  # two links
    assert max(abs(joint - share**2) for joint in (both, again, neighbour)) <= tolerance


@pytest.mark.parametrize(("share", "length"), [(0.1, 5.0), (0.3, 2.0), (0.5, 20.0)])
def test_bursts_have_their_share_and_their_mean_length(share, length):
    table = lost(Bursts(share, length))
    bursts = np.concatenate([runs(column) for column in table.T])
    correlated = np.sqrt(2 * length / table.size)  # rounds of one burst count once
    assert abs(table.mean() - share) <= 4 * correlated
    first = 4 * np.sqrt(share * (1 - share) / LINKS.nnz)
    assert max(abs(table[turn].mean() - share) for turn in range(5)) <= first  # from the first round on
    spread = bursts.std() / np.sqrt(bursts.size)
    # Bursts that the ends of the table cut are left out, and long ones are cut more often.
    assert length * (1 - 3 * length / ROUNDS) - 4 * spread <= bursts.mean() <= length + 4 * spread


def test_bursts_as_short_as_single_losses_are_single_losses():
    table = lost(Bursts(0.2, 1.25))
    assert abs((table[1:] & table[:-1]).mean() - 0.04) <= 4 / np.sqrt(table.size)


@pytest.mark.parametrize("kind", [Loss, lambda *more: Bursts(0.4, 3.0, *more[1:])])
@pytest.mark.parametrize("direction", ["in", "out", "both"])
def test_losses_of_some_hosts_in_one_direction(kind, direction):
    hosts = (3, 17)
    table = lost(kind(1.0, hosts, direction), 60)
    heard, said = np.isin(RECEIVERS, hosts), np.isin(SENDERS, hosts)
    affected = {"in": heard, "out": said, "both": heard | said}[direction]
    assert not table[:, ~affected].any() and table[:, affected].any(axis=0).all()
    assert table[:, affected].all() == (kind is Loss)


@pytest.mark.parametrize("direction", ["in", "out", "both", "each"])
def test_a_host_flaps(direction):
    table = lost(Flapping([7], 2, 5, direction), 70)
    heard, said = table[:, RECEIVERS == 7], table[:, SENDERS == 7]
    assert not table[:, (RECEIVERS != 7) & (SENDERS != 7)].any()
    for side, fails in ((heard, direction != "out"), (said, direction != "in")):
        assert (side == side[:, :1]).all()  # all links of the host at once
        assert side.sum(axis=0).tolist() == [50 * fails] * side.shape[1]
        assert (side[7:] == side[:-7]).all()
        assert not fails or set(runs(side[:, 0])) == {5}
    if direction == "both":
        assert (heard == said).all()


def test_hosts_flap_at_times_of_their_own():
    all_hosts = lost(Flapping(1.0, 4, 4, "in"), 8)
    begins = {tuple(all_hosts[:, host == RECEIVERS][:, 0]) for host in range(60)}
    assert len(begins) == 8
    heard, said = lost(Flapping(1.0, 4, 4, "in"), 8), lost(Flapping(1.0, 4, 4, "out"), 8)
    each = lost(Flapping(1.0, 4, 4, "each"), 8)
    assert (each & heard == heard).all()
    first_said = [each[:, (host == SENDERS)].all(axis=1) for host in range(60)]
    first_heard = [each[:, (host == RECEIVERS)].all(axis=1) for host in range(60)]
    same = np.mean([np.array_equal(a, b) for a, b in zip(first_said, first_heard, strict=True)])
    assert same < 0.5 and said.any()


def test_hosts_are_away_for_a_stretch_or_for_good():
    for last in (6, None):
        fault = Away([2, 9], 4, last)
        for turn in range(1, 20):
            gone = np.flatnonzero(fault.away(turn, DRAWS)).tolist()
            assert gone == ([2, 9] if 4 <= turn <= (last or turn) else [])
            assert np.flatnonzero(fault.gone(turn, DRAWS)).tolist() == ([] if last else gone)
    for share, count in ((0.1, 6), (0.001, 1), (1.0, 60)):
        drawn = Away(share, 1).away(1, DRAWS)
        assert drawn.sum() == count and (drawn == Away(share, 1).away(50, DRAWS)).all()


def test_dead_links_deliver_nothing_in_one_direction():
    ends = [(int(SENDERS[0]), int(RECEIVERS[0]))]
    assert np.flatnonzero(lost(DeadLinks(ends), 5).all(axis=0)).tolist() == [0]
    table = lost(DeadLinks(0.25), 5)
    assert (table == table[:1]).all() and abs(table[0].mean() - 0.25) <= 4 * np.sqrt(0.1875 / LINKS.nnz)


KINDS = st.sampled_from(
    [
        Loss(0.3),
        Loss(0.5, 0.2, "in"),
        Bursts(0.3, 4.0),
        Flapping(0.3, 2, 3, "each"),
        Away(0.2, 2, 9),
        DeadLinks(0.1),
    ]
)


@settings(deadline=None, max_examples=40)
@given(KINDS, st.integers(0, 2**64), st.integers(1, 40), st.randoms(use_true_random=False))
def test_a_message_is_lost_whatever_else_is_sent_and_asked_before(kind, seed, turn, random):
    """So a checkpoint can go on anywhere, and strategies over different links lose the same messages."""
    draws = Draws(seed, 1, 60)
    expected = kind.lost(turn, SENDERS, RECEIVERS, draws)
    order = np.array(random.sample(range(LINKS.nnz), 50))
    np.testing.assert_array_equal(kind.lost(turn, SENDERS[order], RECEIVERS[order], draws), expected[order])


@settings(deadline=None, max_examples=40)
@given(st.lists(KINDS, min_size=1, max_size=3), st.integers(0, 2**32), st.integers(1, 40))
def test_faults_combine(kinds, seed, turn):
    """A message arrives if no fault loses it and both ends are there."""
    trace = LossTrace([(turn, int(SENDERS[3]), int(RECEIVERS[3]))])
    other = LossTrace([(turn, int(SENDERS[5]), int(RECEIVERS[5]))])
    faults = Faults.of(trace, 0.0, seed, (other, *kinds), 60)
    arrives, away = ~(trace | other).lost(turn, SENDERS, RECEIVERS), np.zeros(60, dtype=bool)
    for index, kind in enumerate(kinds, start=1):
        draws = Draws(seed, index, 60)
        away |= kind.away(turn, draws)
        arrives &= ~kind.lost(turn, SENDERS, RECEIVERS, draws)
    in_time, late = faults.fates(turn, SENDERS, RECEIVERS)
    np.testing.assert_array_equal(in_time, arrives & ~away[SENDERS] & ~away[RECEIVERS])
    np.testing.assert_array_equal(faults.present(turn), ~away)
    assert not late.any() and faults.occur and not faults.expected


def test_two_faults_of_one_kind_and_two_seeds_lose_other_messages():
    tables = [lost(Loss(0.5), 20, Draws(*source, 60)) for source in ((1, 1), (1, 2), (2, 1))]
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert abs((tables[first] == tables[second]).mean() - 0.5) <= 0.03
    assert Away(0.1, 1).away(1, Draws(1, 1, 60)).tolist() != Away(0.1, 1).away(1, Draws(2, 1, 60)).tolist()


def test_late_messages_of_peers_that_are_away_are_lost_too():
    faults = Faults.of(0.0, 0.5, 3, (Away([4], 2),), 60)
    in_time, late = faults.fates(2, SENDERS, RECEIVERS)
    touched = (SENDERS == 4) | (RECEIVERS == 4)
    assert not (in_time | late)[touched].any() and (in_time | late)[~touched].all() and late.any()


def test_faults_of_a_file(tmp_path):
    LossTrace([(2, 0, 1)]).save(tmp_path / "lost.csv")
    path = tmp_path / "faults.toml"
    path.write_text(
        '[[faults]]\nkind = "loss"\nshare = 0.2\npeers = false\n[[faults]]\nkind = "away"\npeers = [3]\nfirst = 2\n'
        f'[[faults]]\nkind = "trace"\nfile = "{(tmp_path / "lost.csv").as_posix()}"\n'
    )
    assert faults_of(path) == faults_of(str(path)) == (Loss(0.2), Away([3], 2), LossTrace([(2, 0, 1)]))
    for text, words in (
        ("", r"holds \[\]; expected \[\[faults\]\]"),
        ("faults = 3\n", r"expected \[\[faults\]\]"),
        ("[simulation]\nrounds = 3\n", r"\['simulation'\]; expected \[\[faults\]\]"),
        ("[[faults]]\nkind =\n", "faults.toml: .*expected TOML"),
    ):
        path.write_text(text)
        with pytest.raises(TopologyError, match=words):
            faults_of(path)


def test_a_fault_says_what_it_is():
    assert str(Loss(0.2)) == "loss share=0.2 direction=both"
    assert str(Away([3, 4], 2)) == "away peers=(3, 4) first=2"
    assert str(DeadLinks([[0, 1]])) == "dead-links links=((0, 1),)"
