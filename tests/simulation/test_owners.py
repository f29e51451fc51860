"""How many peers there are follows from a graph or a column of owners; categories come from training rows."""

import networkx as nx
import numpy as np
import pandas as pd
import pytest

import peerbayes as pb
from peerbayes.errors import DataWarning, PartitionError, SchemaError
from peerbayes.simulation.sharded import simulate_shards

QUICK = {"rounds": 2, "references": False}


def table(rows=120, seed=0):
    rng = np.random.default_rng(seed)
    ill = rng.random(rows) < 0.5
    X = pd.DataFrame(
        {
            "age": rng.normal(50 + 10 * ill, 8),
            "hospital": rng.choice(["north", "south", "west"], rows),
            "ward": rng.choice(["a", "b"], rows),
        }
    )
    return X, np.where(ill, "ill", "well")


# --- the number of peers


@pytest.mark.parametrize(
    ("topology", "peers"),
    [
        (nx.cycle_graph(5), 5),
        (np.ones((4, 4)) - np.eye(4), 4),
        ([[0, 1, 0], [1, 0, 1], [0, 1, 0]], 3),
    ],
    ids=["graph", "matrix", "list"],
)
def test_a_graph_says_how_many_peers_there_are(topology, peers):
    X, y = table()
    run = pb.simulate(X, y, topology=topology, rows_per_peer=10, **QUICK)
    assert run.sizes.size == peers == run.configuration["peers"]


def test_a_file_of_links_says_how_many_peers_there_are(tmp_path):
    (tmp_path / "links.txt").write_text("0 1\n1 2\n2 5\n3 4\n4 5\n# a comment\n")
    X, y = table()
    run = pb.simulate(X, y, topology=str(tmp_path / "links.txt"), rows_per_peer=10, **QUICK)
    assert run.sizes.size == 6


def test_a_list_of_rows_says_how_many_peers_there_are():
    X, y = table()
    run = pb.simulate(X, y, partition=[np.arange(30), np.arange(30, 50)], **QUICK)
    assert run.sizes.tolist() == [30, 20]


def test_a_name_says_nothing_of_the_number():
    X, y = table()
    assert pb.simulate(X, y, rows_per_peer=2, **QUICK).sizes.size == 50


def test_peers_and_a_graph_that_differ_are_refused_with_both_numbers():
    X, y = table()
    with pytest.raises(ValueError, match=r"5 nodes; expected 7"):
        pb.simulate(X, y, topology=nx.cycle_graph(5), peers=7, rows_per_peer=5, **QUICK)


def test_a_graph_and_a_list_that_differ_are_refused_with_both_numbers():
    X, y = table()
    with pytest.raises(PartitionError, match=r"rows of 2 peers; expected 5"):
        pb.simulate(X, y, topology=nx.cycle_graph(5), partition=[[0, 1], [2, 3]], **QUICK)


# --- a column of owners


def test_owners_hold_their_rows():
    X, y = table()
    run = pb.simulate(X, y, partition="column:hospital", topology="chain", test=(X, y), **QUICK)
    assert run.sizes.tolist() == [int((X["hospital"] == name).sum()) for name in ("north", "south", "west")]
    assert run.schema.names == ("age", "ward")
    assert run.configuration["partition"] == "column:hospital" and run.configuration["peers"] == 3
    assert run.made["owners"] == "north, south, west"


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_owners_are_as_a_list_of_their_rows(library):
    X, y = table()
    lists = [np.flatnonzero(X["hospital"] == name) for name in ("north", "south", "west")]
    listed = pb.simulate(
        X.drop(columns="hospital"), y, partition=lists, topology="chain", test=(X, y), **QUICK
    )
    if library == "polars":
        X = pytest.importorskip("polars").from_pandas(X)
    elif library == "pyarrow":
        X = pytest.importorskip("pyarrow").Table.from_pandas(X)
    run = pb.simulate(X, y, partition="column:hospital", topology="chain", test=(X, y), **QUICK)
    assert (
        np.array_equal(run.stats, listed.stats)
        and run.summary()["test_error"] == listed.summary()["test_error"]
    )


def test_peers_with_one_row_are_warned_of_with_the_number_of_values():
    X, y = table()
    number = X["age"].nunique()
    said = (
        rf"column 'age' has {number} different values, each a peer, and {number} of them are in one row only"
    )
    with pytest.warns(DataWarning, match=said) as caught:
        pb.simulate(X, y, partition="column:age", test=(X, y), **QUICK)
    assert {each.filename for each in caught if issubclass(each.category, DataWarning)} == {__file__}
    with pytest.warns(DataWarning, match=said):
        simulate_shards(X, y, partition="column:age", test=(X, y), rounds=2, strategy="crc")
    X.loc[5, "hospital"] = "small"
    with pytest.warns(DataWarning, match="has 4 different values, each a peer, and 1 of them is in"):
        pb.simulate(X, y, partition="column:hospital", test=(X, y), topology="chain", **QUICK)


def test_rows_without_an_owner_are_test_rows():
    X, y = table()
    X.loc[::4, "hospital"] = None
    run = pb.simulate(X, y, partition="column:hospital", topology="chain", **QUICK)
    assert run.sizes.sum() == 90 and run.outcomes["peers"].confusion.sum() > 0
    lists = [np.flatnonzero(X["hospital"] == name) for name in ("north", "south", "west")]
    listed = pb.simulate(X.drop(columns="hospital"), y, partition=lists, topology="chain", **QUICK)
    assert run.summary()["test_error"] == listed.summary()["test_error"]


def test_owners_choose_a_family_and_learn_in_shards():
    X, y = table()
    run = pb.simulate(
        X, y, partition="column:hospital", topology="chain", family="auto", test=(X, y), **QUICK
    )
    assert run.sizes.size == 3 and run.family_choice is not None
    one = pb.simulate(
        X, y, partition="column:hospital", topology="chain", test=(X, y), rounds=2, strategy="crc"
    )
    sharded = simulate_shards(
        X,
        y,
        partition="column:hospital",
        topology="chain",
        test=(X, y),
        rounds=2,
        strategy="crc",
        stats_of="all",
    )
    assert np.allclose(sharded.stats, one.stats, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"peers": 7}, "peers is 7, but column 'hospital' names 3 owners"),
        ({"partition": "column:hospitl"}, "no column 'hospitl' .did you mean 'hospital'"),
        ({"topology": nx.cycle_graph(5)}, "5 nodes; expected 3"),
        ({"partition": "column:"}, "partition is 'column:'"),
    ],
)
def test_owners_that_do_not_fit_are_refused(change, message):
    X, y = table()
    with pytest.raises(ValueError, match=message):
        pb.simulate(
            X, y, **{"partition": "column:hospital", "topology": "chain", "test": (X, y), **QUICK, **change}
        )


def test_an_array_has_no_column_of_owners():
    X, y = table()
    with pytest.raises(PartitionError, match="pass a DataFrame"):
        pb.simulate(X[["age"]].to_numpy(), y, partition="column:x0", **QUICK)


# --- categories and units come from training rows only


def test_categories_of_test_rows_only_are_unknown():
    X, y = table()
    rare = X.assign(ward=X["ward"].where(np.arange(len(X)) >= 20, "only in tests"))
    rows = [np.arange(20, 70), np.arange(70, 120)]
    run = pb.simulate(rare, y, partition=rows, topology="chain", rounds=8)
    column = next(column for column in run.schema.columns if column.name == "ward")
    assert column.categories == ("a", "b")
    training = slice(20, 120)
    alone = pb.simulate(
        rare.iloc[training], y[training], partition=[np.arange(50), np.arange(50, 100)], topology="chain", rounds=8,
        test=(rare.iloc[:20], y[:20]),
    )  # fmt: skip
    assert run.schema == alone.schema and np.array_equal(run.stats, alone.stats)
    assert run.summary()["test_error"] == alone.summary()["test_error"]


@pytest.mark.parametrize("kinds", ["auto", "paper", "binned", "supervised"])
@pytest.mark.parametrize("family", ["naive-bayes", "auto"])
def test_nothing_is_learned_from_test_rows(kinds, family):
    """Whatever the test rows hold, peers learn the same model."""
    X, y = table()
    other = X.copy()
    other.loc[:19, "age"] = 1e6
    other.loc[:19, "ward"] = "z"
    other.loc[:19, "hospital"] = [f"h{j}" for j in range(20)]
    rows = [np.arange(20, 70), np.arange(70, 120)]
    first, second = (
        pb.simulate(
            frame, y, kinds=kinds, family=family, partition=rows, topology="chain", hold_out=0.1, **QUICK
        )
        for frame in (X, other)
    )
    assert first.schema == second.schema and np.array_equal(first.stats, second.stats)


def test_a_column_that_cannot_be_described_is_refused_by_name():
    X, y = table()
    with pytest.raises(SchemaError, match="column 'mixed' mixes numbers and text"):
        pb.simulate(X.assign(mixed=[1, "a"] * 60), y, rows_per_peer=2, **QUICK)
