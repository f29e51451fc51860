"""Traces of lost messages: drawn on one or both sides of links, recorded by peers, stored, replayed in simulations."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_wine

import peerbayes as pb
from peerbayes.errors import ConfigurationError, TopologyError
from peerbayes.learning.strategies import Exact
from peerbayes.network import LossTrace, adjacency
from peerbayes.network.mixing import rows_of
from peerbayes.simulation.faults import Faults

LINKS = adjacency("regular-4", 30, np.random.default_rng(0))
ROUNDS = 40
WINE = load_wine(return_X_y=True)
QUICK = {
    "peers": 6,
    "rows_per_peer": 12,
    "topology": "ring",
    "rounds": 8,
    "references": False,
    "evaluate_every": 0,
}


def drawn(share=0.2, two_sided=False, quorum=0.0, seed=1):
    return LossTrace.drawn(LINKS, ROUNDS, share, np.random.default_rng(seed), two_sided, quorum)


@pytest.mark.parametrize("two_sided", [False, True])
@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
def test_a_share_of_messages_is_lost_on_one_side_or_on_both(share, two_sided):
    trace, sent = drawn(share, two_sided), ROUNDS * LINKS.nnz
    assert abs(len(trace) / sent - share) <= 4 * np.sqrt(share / sent)
    both = [(turn, receiver, sender) in trace.messages for turn, sender, receiver in trace.messages]
    assert all(both) if two_sided else not any(both)
    assert all(LINKS[receiver, sender] for _, sender, receiver in trace.messages)
    if not two_sided:  # neither direction is preferred
        up = np.mean([sender < receiver for _, sender, receiver in trace.messages])
        assert abs(up - 0.5) <= 2.5 / np.sqrt(len(trace))
    assert trace == drawn(share, two_sided) != drawn(share, two_sided, seed=2)
    assert drawn(0.0, two_sided).messages == frozenset()


@pytest.mark.parametrize("two_sided", [False, True])
@pytest.mark.parametrize(("quorum", "most"), [(0.01, 3), (0.5, 2), (0.51, 1), (1.0, 0)])
def test_every_node_hears_a_quorum(quorum, most, two_sided):
    counts = np.zeros((ROUNDS + 1, 30), dtype=int)
    for turn, _, receiver in drawn(0.5, two_sided, quorum).messages:
        counts[turn, receiver] += 1
    assert counts.max() == most


def test_what_peers_miss_is_a_trace():
    histories = {
        "b": [
            {"round": 0, "missing": []},
            {"round": 1, "missing": ["c"]},
            {"round": 2, "missing": ["a", "c"]},
        ],
        "a": [{"round": 1, "missing": []}],
        "c": [{"round": 3, "missing": ["b"]}],
    }
    assert LossTrace.recorded(histories).messages == {(1, 2, 0), (2, 1, 0), (2, 2, 0), (3, 0, 2)}
    del histories["c"]
    with pytest.raises(TopologyError, match="b missed c in round 1, whose history is not there; expected"):
        LossTrace.recorded(histories)
    names = ("a", "b", "c")  # of all: then some histories are enough, and traces of the others can be added
    assert LossTrace.recorded(histories, names).messages == {(1, 2, 1), (2, 0, 1), (2, 2, 1)}
    parts = [
        LossTrace.recorded({"b": histories["b"]}, names),
        LossTrace.recorded({"c": [{"round": 3, "missing": ["b"]}]}, names),
    ]
    assert (parts[0] | parts[1]).messages == {(1, 2, 1), (2, 0, 1), (2, 2, 1), (3, 1, 2)}


@settings(deadline=None, max_examples=30)
@given(
    st.sets(st.tuples(st.integers(1, 9), st.integers(0, 4), st.integers(5, 9))),
    st.integers(1, 4),
    st.booleans(),
)
def test_the_files_of_several_peers_together_are_the_trace(tmp_path_factory, messages, parts, named):
    folder, names = tmp_path_factory.mktemp("traces"), [f"peer, {number}" for number in range(10)]
    whole = LossTrace(messages)
    for part in range(parts):
        mine = LossTrace([message for message in messages if message[2] % parts == part])
        mine.save(folder / f"{part}.csv", names if named else ())
    assert LossTrace.load(*(folder / f"{part}.csv" for part in range(parts))) == whole


def test_a_trace_is_stored_as_a_table(tmp_path):
    trace, path = drawn(), tmp_path / "lost.csv"
    trace.save(path)
    assert LossTrace.load(path) == trace and path.read_text().startswith("round,sender,receiver\n1,")
    for text, words in (
        ("", r"begins with \[\]; expected round,sender,receiver"),
        ("round,receiver,sender\n", "begins with"),
        ("round,sender,receiver\n1,2,x\n", "'x'; expected three whole numbers"),
        ("round,sender,receiver\n1,2\n", r"the message \[1, 2\]; expected \(round, sender, receiver\)"),
    ):
        path.write_text(text)
        with pytest.raises(TopologyError, match=words):
            LossTrace.load(path)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([(0, 1, 2)], "the round of a lost message is 0.*1 or more"),
        ([(1, -1, 2)], "the sender of a lost message is -1"),
        ([(1, 1, 2.5)], "the receiver of a lost message is 2.5"),
        ([(1, 2, 2)], "from node 2 to itself; expected two nodes"),
        ([7], "the message 7; expected"),
    ],
)
def test_what_is_no_trace(messages, words):
    with pytest.raises(TopologyError, match=words):
        LossTrace(messages)


def test_what_cannot_be_drawn():
    with pytest.raises(TopologyError, match=r"share is 0.6; expected a share, from 0 to 0.5"):
        drawn(0.6)
    with pytest.raises(TopologyError, match=r"share is 1.1; expected a share, from 0 to 1"):
        drawn(1.1, two_sided=True)


def test_messages_are_looked_up_by_round_and_ends():
    trace = LossTrace([(2, 0, 1), (2, 3, 0), (5, 1, 0)])
    senders, receivers = LINKS.indices, rows_of(LINKS)
    for turn in range(1, 7):
        expected = [(turn, u, v) in trace.messages for u, v in zip(senders, receivers, strict=True)]
        assert trace.lost(turn, senders, receivers).tolist() == expected
    assert trace.nodes == 4 and LossTrace([]).nodes == 0
    large = LossTrace([(1, 2**31 - 2, 5)])
    assert large.lost(1, np.array([2**31 - 2, 5]), np.array([5, 2**31 - 2])).tolist() == [True, False]
    assert not LossTrace([(1, 1, 0)]).lost(1, np.zeros(32, dtype=int), 2 ** np.arange(32)).any()


# --- in a simulation ---------------------------------------------------------------------------------------


def test_a_trace_and_late_messages_go_together():
    """What is not in the trace may still be late, by the same draws as without it."""
    ends, trace = (LINKS.indices, rows_of(LINKS)), drawn()
    for turn in (1, 2, 9):
        in_time, late = Faults(0.0, 3, 0.3).fates(turn, *ends)
        lost = trace.lost(turn, *ends)
        for expected, found in zip(
            (in_time, late), Faults(0.0, 3, 0.3, trace).fates(turn, *ends), strict=True
        ):
            np.testing.assert_array_equal(found, expected & ~lost)


def test_a_trace_is_what_happened_and_not_what_was_expected():
    """A declared probability makes `exact` forget; peers that a trace happens to plan as real peers do."""
    trace = LossTrace.drawn(adjacency("ring", 6, np.random.default_rng(0)), 8, 0.2, np.random.default_rng(3))
    replayed, planned, forgetting = (
        pb.simulate(*WINE, **QUICK, strategy=strategy, message_loss=trace).stats
        for strategy in ("exact", Exact(8, 1.0), Exact(8, 0.97))
    )
    np.testing.assert_array_equal(replayed, planned)
    assert np.abs(replayed - forgetting).max() > 1e-3
    nothing = pb.simulate(*WINE, **QUICK, message_loss=LossTrace([])).stats
    np.testing.assert_array_equal(nothing, pb.simulate(*WINE, **QUICK).stats)
    assert np.abs(replayed - nothing).max() > 1e-3


def test_a_run_names_its_trace(tmp_path):
    traces = LossTrace([(1, 0, 1)]), LossTrace([(1, 1, 0)])
    names = [
        pb.simulate(*WINE, **QUICK, message_loss=trace).configuration["message_loss"] for trace in traces
    ]
    assert names[0] != names[1] and names[0].startswith("a trace of 1 lost messages, ")
    path = tmp_path / "checkpoint"

    def stop(done, of):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pb.simulate(*WINE, **QUICK, message_loss=traces[0], checkpoint=path, progress=stop)
    with pytest.raises(ConfigurationError, match="the checkpoint of another simulation"):
        pb.simulate(*WINE, **QUICK, message_loss=traces[1], checkpoint=path)


@pytest.mark.parametrize("strategy", ["exact", "relay"])
def test_a_trace_of_another_network_is_refused(strategy):
    with pytest.raises(
        ValueError, match="message_loss loses messages of peer 6, and there are 6 peers, counted from 0"
    ):
        pb.simulate(*WINE, **QUICK, strategy=strategy, message_loss=LossTrace([(1, 2, 6)]))
    with pytest.raises(ValueError, match=r"message_loss is 1.5; expected a probability .* or a LossTrace"):
        pb.simulate(*WINE, **QUICK, message_loss=1.5)


def test_lost_messages_spend_no_more_privacy():
    """Edge noise that does not cancel stays as noise: it hides as much as it did."""
    settings = QUICK | {"topology": "complete", "privacy": pb.Privacy(edge_noise=3.0, min_rows=2)}
    reliable = pb.simulate(*WINE, **settings)
    lossy = pb.simulate(*WINE, **settings, message_loss=LossTrace([(1, 0, 1), (3, 4, 2)]))
    assert lossy.privacy.equals(reliable.privacy) and not np.array_equal(lossy.stats, reliable.stats)
