"""Every argument of `simulate` with odd values: taken where it makes sense, or refused by its name before any work."""

import inspect
import itertools
import json
import re
import warnings
from pathlib import Path
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.datasets import load_wine

import peerbayes as pb
from peerbayes import network
from peerbayes.errors import PeerbayesError
from peerbayes.learning.strategies import CRC, Declaration, Exact
from peerbayes.simulation.sharded import simulate_shards

TABLE, LABELS = load_wine(return_X_y=True, as_frame=True)
ORDER = np.random.default_rng(0).permutation(len(LABELS))
X, Y = TABLE.iloc[ORDER, :5].reset_index(drop=True), LABELS.to_numpy()[ORDER]
GOOD = {"X": X, "y": Y, "peers": 6, "rows_per_peer": 10, "rounds": 2, "references": False}


class Unprintable:
    def __repr__(self):
        raise RuntimeError("no")


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


# Tried for every argument.
ODD = {
    "None": None, "NaN": float("nan"), "infinity": float("inf"), "minus infinity": float("-inf"), "minus one": -1,
    "zero": 0, "one": 1, "a half": 0.5, "two and a half": 2.5, "five": np.int64(5), "10^30": 10**30,
    "5,000 digits": 10**5000, "1e30": 1e30, "1e300": 1e300, "1e-300": 1e-300, "True": True, "complex": 1j,
    "text": "odd", "no text": "", "NUL": "a\0b", "a long text": "x" * 10_000, "bytes": b"odd", "an empty list": [],
    "an empty tuple": (), "a list of None": [None], "a list of objects": [object()], "0 and 1": [0, 1],
    "lists of different lengths": [[1, 2], [3]], "5,000 lists in each other": nested(5000), "three": (1, 2, 3),
    "a dict": {1: 2}, "a set": {1, 2}, "a range": range(3), "an object": object(), "unprintable": Unprintable(),
    "NumPy's NaN": np.float32("nan"), "NumPy's True": np.True_, "an array of no axis": np.array(3),
    "an array of one axis": np.arange(3), "an array of two axes": np.ones((2, 2)), "an empty array": np.zeros(0),
    "an array of objects": np.array([None, 1]), "a Series": pd.Series([1, 2, 3]), "a function": lambda: None,
    "a class": dict, "a module": np, "pandas' NA": pd.NA,
}  # fmt: skip

COUNTS = {"one", "five", "an array of no axis"}
SHARES = {"zero", "a half", "1e-300"}
FLAGS = {"zero", "one", "True", "NumPy's True"}

# Every argument, and the odd values that make sense for it: a run with them gives finite numbers.
TAKEN = {
    "X": set(),
    "y": set(),
    "family": set(),
    "kinds": set(),
    "schema": {"None"},
    "peers": COUNTS,
    "rows_per_peer": {"None", *COUNTS},
    "topology": set(),
    "partition": set(),
    "strategy": set(),
    "structure": {"None"},
    "start": set(),
    "rounds": COUNTS,
    "lr": {"one", "a half"},
    "local_steps": COUNTS,
    "messages": set(),
    "exchanges": {"None", *COUNTS},
    "penalty": set(),
    "objective": set(),
    "test": {"None"},
    "evaluate_rows": {"None", *COUNTS},
    "seed": {"zero", "10^30", *COUNTS},
    "clip": {"None", "a half", "two and a half", "10^30", "1e30", "1e300", "1e-300", *COUNTS},
    "dtype": set(),
    "progress": {"None"},
    "callbacks": {"an empty list", "an empty tuple"},
    "evaluate_every": {"zero", *COUNTS},
    "change_every": {"None", *COUNTS},
    "message_loss": SHARES,
    "message_delay": SHARES,
    "peers_down": SHARES,
    "faults": {"None", "an empty list", "an empty tuple"},
    "secure_sum": FLAGS,
    "start_rounds": {"None", "zero", *COUNTS},
    "privacy": {"None"},
    "robust": {"None"},
    "attack": {"None"},
    "hold_out": SHARES,
    "select": set(),
    "patience": {"None", *COUNTS},
    "references": FLAGS,
    "metrics": {"an empty list", "an empty tuple"},
    "baselines": {"an empty list", "an empty tuple"},
    "checkpoint": {"None", "text"},
    "live": {"None", "text"},
    "device": {"None"},
}

RING = network.Static(network.adjacency("ring", 6, np.random.default_rng(0)))
SIX = [[place] for place in range(6)]


def own_strategy(**changes):
    properties = {"name": "own", "mixing": "metropolis", "of_weights": False, "takes_old": True}
    functions = {name: getattr(CRC(), name) for name in ("begin", "message", "step", "read")}
    return SimpleNamespace(**{**properties, **functions, **changes})


def columns(**changes):
    return X.assign(**changes)


# Values that only one argument can take.
FITTING = {
    "X": {
        "text": X.astype(str),
        "a list": X.to_numpy().tolist(),
        "objects": X.astype(object),
        "booleans": X > 2,
        "constants": X * 0,
        "integers of 31 digits": np.full((178, 2), 10**30, dtype=object),
    },
    "y": {
        "text": Y.astype(str),
        "a Series": pd.Series(Y),
        "booleans": Y > 0,
        "a list": Y.tolist(),
        "floats": Y * 1.0,
    },
    "family": {"NumPy's text": np.str_("qda")},
    "kinds": {"a list": ["auto"] * 5, "a mapping": {"alcohol": "discrete"}, "an empty mapping": {}},
    "schema": {"of the table": pb.Schema.infer(X, Y), "of three columns": pb.Schema.infer(X.iloc[:, :3])},
    "rows_per_peer": {
        "a list": [5] * 6,
        "a Series": pd.Series([5] * 6),
        "NumPy's integers": tuple(np.full(6, 5)),
    },
    "topology": {
        "a graph": nx.path_graph(6),
        "a matrix": 1 - np.eye(6),
        "a schedule": RING,
        "links": "tree+3",
    },
    "partition": {
        "lists": SIX,
        "arrays": tuple(np.array(part) for part in SIX),
        "tiny": "dirichlet-1e-300",
        "large": "dirichlet-1e300",
        "few": "quantity-1e-300",
    },
    "strategy": {"a value": Exact(rounds=2), "one's own": own_strategy()},
    "lr": {"the largest": 2.0, "the smallest": 2.0**-52, "of no axis": np.array(0.5)},
    "test": {"a list": [X, Y], "an array": (X.to_numpy(), Y.tolist())},
    "evaluate_every": {"as large as can be": 2**63 - 1},
    "evaluate_rows": {"two": (20, 30), "a list of two": [20, 30], "one of them": (None, np.int64(30))},
    "message_loss": {"a trace": network.LossTrace([(1, 0, 1)])},
    "faults": {
        "one": network.Loss(0.2),
        "a table": {"kind": "flapping", "peers": [0], "up": 1, "down": 2, "direction": "each"},
        "several": [
            network.Bursts(0.2, 3),
            network.LossTrace([(1, 0, 1)]),
            {"kind": "away", "peers": 0.2, "first": 2},
        ],
        "all directions": (
            network.Loss(1.0, [1, 2], "in"),
            network.DeadLinks([[0, 1]]),
            network.DeadLinks(1.0),
        ),
    },
    "privacy": {"for few rows": pb.Privacy(epsilon=np.float32(8.0), min_rows=np.int64(1))},
    "robust": {"clip": "clip", "guard": "guard"},
    "attack": {
        "a kind": "flip",
        "a table": {"kind": "swap"},
        "a value": pb.Attack("scale", np.float32(0.2), 1e300),
        **{
            kind: pb.Attack(kind, strength=1e300)
            for kind in ("flip", "noise", "alie", "dissensus", "mixswap")
        },
    },
    "progress": {"any number": lambda *counts: None},
    "dtype": {"NumPy's name": np.float32, "NumPy's type": np.dtype("float64")},
}

NO_TOPOLOGY = (
    "tree+", "tree+-1", "regular-", "regular--1", "erdos-", "erdos-nan", "small-world-2", " tree", "Tree",
    f"tree+{'9' * 30}", f"regular-{'9' * 5000}", f"erdos-{'1' * 500}",
)  # fmt: skip
NO_CONCENTRATION = (
    "dirichlet-", "dirichlet--1", "dirichlet-nan", "dirichlet-inf", "quantity-0", f"dirichlet-{'9' * 5000}",
)  # fmt: skip

# Values that one argument cannot take, and words of the refusal.
UNFIT = {
    "X": {
        "infinity": (X * np.inf, "'alcohol' holds infinity"),
        "no rows": (X[:0], "0 rows"),
        "no columns": (X[[]], "0 columns"),
        "fewer rows": (X[:-1], "177, one for each row of X"),
        "three axes": (np.ones((178, 2, 2)), "(178, 2, 2)"),
        "complex": (X.to_numpy() * 1j, "Complex"),
        "different lengths": ([[1], [1, 2]] * 89, "a table"),
        "too large": (X * 1e300, "overflow"),
        "dates": (columns(alcohol=pd.Timestamp("2020")), "dates"),
        "text and numbers": (columns(alcohol=[1, "a"] * 89), "numbers and text"),
        "lists": (columns(alcohol=[[1]] * 178), "'alcohol' holds a list"),
        "bytes": (np.full((178, 2), b"a"), "|S1"),
        "a name twice": (X.set_axis(["a"] * 5, axis=1), "rename"),
        "sparse": (sparse.csr_array(X.to_numpy()), "a table"),
    },
    "y": {
        "short": (Y[:-1], "177 labels; expected 178"),
        "missing": (np.where(Y, 1.0, np.nan), "missing labels"),
        "one class": (Y * 0, "one class (0)"),
        "real numbers": (X["alcohol"], "a real number"),
        "two axes": (Y[:, None], "(178, 1)"),
        "lists": (pd.Series([[1]] * 178), "[1]"),
        "dicts": (pd.Series([{}] * 178), "{}"),
        "complex": (Y * 1j, "complex"),
        "infinity": (np.where(Y, 1.0, np.inf), "inf"),
        "text and numbers": (pd.Series([0, "a"] * 89), "mixes text"),
        "bytes": (np.array([b"a", b"b"] * 89), "bytes"),
    },
    "kinds": {
        "odd ones": ([None] * 5, "'alcohol' is None"),
        "too few": (["auto"] * 4, "4 entries"),
        "no column": ({np.nan: "auto"}, "nan"),
        "an array": ({"alcohol": np.arange(3)}, "array"),
        "bytes of five": (b"autos", "b'autos'"),
    },
    "schema": {
        "a class": (pb.Schema, "a Schema"),
        "no columns": (pb.Schema(()), "no column"),
        "a column more": (pb.Schema.infer(columns(z=1.0)), "no column 'z'"),
        "other classes": (pb.Schema.infer(X, Y + 5), "5, 6, 7"),
        "text": (pb.Schema.infer(columns(alcohol="a")), "'alcohol'"),
    },
    "peers": {
        "more than rows": (179, "1 to 178"),
        "more than memory": (2**31 - 1, "1 to 178"),
        "whole": (5.0, "whole number"),
    },
    "rows_per_peer": {
        "more than rows": (30, "want 180 rows"),
        "five": ([5] * 5, "5 entries"),
        "booleans": ([True] * 6, "integers"),
        "zeros": ([0] * 6, "holds 0"),
        "huge": ([10**30] * 6, "holds 1000000000"),
        "halves": ([0.5] * 6, "integers"),
    },
    "topology": {
        **{name[:12]: (name, "tree+K") for name in NO_TOPOLOGY},
        "too many links": ("tree+999", "room for 10"),
        "large degree": ("regular-1000", "D < nodes"),
        "above 1": ("erdos-2", "0 to 1"),
        "thin": ("erdos-1e-300", "was not connected in 100 draws"),
        "six are no cube": ("hypercube", "4 or 8"),
        "no file": ("nowhere.txt", "cannot be read"),
        "a path with NUL": ("a\0.txt", "cannot be read"),
        "a long path": (f"{'x' * 5000}.csv", "cannot be read"),
        "a folder": (Path("/"), "cannot be read"),
        "an empty graph": (nx.Graph(), "has 0 nodes"),
        "a class": (nx.Graph, "networkx"),
        "a directed graph": (nx.DiGraph([(0, 1)]), "directed"),
        "five": (nx.path_graph(5), "has 5 nodes"),
        "another class": (network.Static, "networkx"),
        "a schedule of nine": (network.Changing("tree", 9), "has 9 nodes"),
        "loops": (np.ones((6, 6)), "its own neighbour"),
        "NaN in it": (np.full((6, 6), np.nan), "nan"),
        "texts": (np.full((6, 6), "a"), "0 and 1"),
        "nobody": (np.zeros((6, 6)), "6 parts"),
    },
    "partition": {
        **{name[:20]: (name, "positive number") for name in NO_CONCENTRATION},
        **{name: (name, "drift-xy") for name in ("drift", "iid-", "IID")},
        "one row for all": ([[0]] * 6, "row 0 is listed 6 times"),
        "no such row": ([[10**30]] * 6, "0 to 177"),
        "texts": (["a"] * 6, "peer 0"),
        "None for all": ([None] * 6, "peer 0"),
        "sets": ([{1}] * 6, "peer 0"),
        "two axes": (np.arange(6)[:, None], "a list"),
    },
    "strategy": {
        "a class": (Exact, "exact"),
        "without functions": (SimpleNamespace(name="own", mixing="none", of_weights=False), "begin"),
        "odd weights": (own_strategy(mixing="magic"), "metropolis"),
        "weights of None": (own_strategy(mixing=None), "metropolis"),
        "no name": (own_strategy(name=3), "a text"),
        "no declaration": (own_strategy(declaration={"judged": True}), "a Declaration"),
        "a tree": (own_strategy(declaration=Declaration(over_tree=True)), "registered name"),
    },
    "rounds": {"ten billion": (10**10, "1 to 2,147,483,647"), "whole": (2.0, "whole number")},
    "lr": {"above 2": (2.0001, "up to 2"), "lost": (1e-17, "lost in rounding")},
    "test": {
        "no rows": ((X[:0], Y[:0]), "0 rows"),
        "a label less": ((X, Y[:-1]), "(177,)"),
        "three things": ((X, Y, Y), "(X, y)"),
        "None and None": ((None, None), "a table"),
        "other classes": ((X, Y + 9), "9, 10, 11"),
        "columns": ((X.iloc[:, :3], Y), "ash"),
        "text": ((columns(alcohol="a"), Y), "'alcohol'"),
        "infinity": ((X * np.inf, Y), "inf"),
        "a mapping": ({"X": X, "y": Y}, "(X, y)"),
    },
    "evaluate_every": {"10 to the 20": (10**20, "0 to 9,223")},
    "evaluate_rows": {"zero and one": ((0, 1), "evaluate_rows is 0"), "lists": ([[1], [2]], "two")},
    "seed": {
        "two": ([0, 1], "call once for each"),
        "an array": (np.arange(2), "call once for each"),
        "a generator": (np.random.default_rng(0), "whole number"),
    },
    "message_loss": {
        "no file": (Path("nowhere.csv"), "cannot be read"),
        "files": (["nowhere.csv"], "cannot be read"),
        "a folder": ("/", "cannot be read"),
        "another file": (__file__, "round,sender,receiver"),
        "another network": (network.LossTrace([(1, 0, 6)]), "there are 6 peers"),
    },
    "faults": {
        "no kind": ({"share": 0.2}, "loss, bursts, flapping, away, dead-links, trace"),
        "another kind": ({"kind": "rain"}, "'rain'"),
        "no share": ({"kind": "loss"}, "share must be there"),
        "a colour": ({"kind": "loss", "share": 0.2, "colour": 1}, "a table of share, peers, direction"),
        "a share of 2": ({"kind": "loss", "share": 2}, "loss.share is 2; expected a share of messages"),
        "a direction": ({"kind": "loss", "share": 0.2, "direction": "up"}, "in, out, both"),
        "each of a loss": ({"kind": "loss", "share": 0.2, "direction": "each"}, "in, out, both"),
        "short bursts": ({"kind": "bursts", "share": 0.5, "length": 1.9}, "1/(1 − share) or more"),
        "all bursts": ({"kind": "bursts", "share": 1.0, "length": 5}, "below 1"),
        "one peer": (
            {"kind": "away", "peers": 1, "first": 1},
            "away.peers is 1; expected the numbers of peers",
        ),
        "no peers": ({"kind": "away", "peers": [], "first": 1}, "away.peers has shape"),
        "no such peer": ({"kind": "away", "peers": [6], "first": 1}, "peer 6, and there are 6 peers"),
        "no such link": ({"kind": "dead-links", "links": [[0, 9]]}, "peer 9, and there are 6 peers"),
        "a link to itself": ({"kind": "dead-links", "links": [[2, 2]]}, "two different peers"),
        "three ends": ({"kind": "dead-links", "links": [[0, 1, 2]]}, "[sender, receiver]"),
        "never down": ({"kind": "flapping", "peers": [0], "up": 2, "down": 0}, "flapping.down is 0"),
        "back before": (
            {"kind": "away", "peers": [0], "first": 3, "last": 2},
            "from the first on, which is 3",
        ),
        "nobody is left": ({"kind": "away", "peers": 1.0, "first": 2}, "no peer is left"),
        "no file": ("nowhere.toml", "a TOML file"),
        "a folder": (Path("/"), "a TOML file"),
        "another file": (__file__, "expected TOML"),
        "a trace of others": (
            network.LossTrace([(1, 0, 6)]),
            "faults loses messages of peer 6, and there are 6",
        ),
        "no trace": ({"kind": "trace"}, "file, the path of a CSV file"),
        "a trace of no file": ({"kind": "trace", "file": "nowhere.csv"}, "cannot be read"),
        "a class": (network.Loss, "a list of Loss"),
    },
    "privacy": {
        "a class": (pb.Privacy, "Privacy(epsilon"),
        "a table": ({"epsilon": 4.0}, "Privacy(epsilon"),
        "few rows": (pb.Privacy(), "min_rows = 50"),
        "a tiny epsilon": (pb.Privacy(epsilon=1e-9, min_rows=1), "larger epsilon"),
        "a large one": (pb.Privacy(epsilon=1e12, min_rows=1), "smaller epsilon"),
        "a large clip": (pb.Privacy(clip=1e12, min_rows=1), "clip"),
        "edge noise on a tree": (pb.Privacy(edge_noise=3.0, min_rows=1), "3 neighbours"),
    },
    "attack": {
        "a class": (pb.Attack, "a table of kind"),
        "no kind": ({"kind": None}, "flip"),
        "kinds": ({"kind": ["flip"]}, "flip"),
        "a share of text": ({"kind": "flip", "fraction": "a"}, "below 1"),
        "a colour": ({"kind": "flip", "colour": 1}, "a table of kind"),
        "400 digits": ({"kind": "flip", "strength": 10**400}, "a positive number"),
    },
    "progress": {"another class": (int, "rounds done"), "one argument": (lambda done: None, "rounds done")},
    "checkpoint": {
        "a folder": ("/", "a file"),
        "no such folder": ("nowhere/saved", "in a folder that exists"),
        "a long name": ("x" * 300, "a file"),
        "another file": (__file__, "is not from peerbayes"),
    },
    "live": {
        "a file": (__file__, "a folder"),
        "below a file": (f"{__file__}/live", "a folder"),
        "a long name": ("x" * 300, "a folder"),
    },
    "device": {name: (name, "PyTorch") for name in ("warp", "meta", "cpu:", "cuda:99")},
    "dtype": {
        "half": ("float16", "float64, float32"),
        "of NumPy": (np.float16, "'float16'"),
        "whole": (np.dtype("int64"), "'int64'"),
        "Python's": (float, "float64"),
    },
}

REFUSED = {
    name: {
        **{label: (value, "expected") for label, value in ODD.items() if label not in taken},
        **{f"own, {label}": case for label, case in UNFIT.get(name, {}).items()},
    }
    for name, taken in TAKEN.items()
}
ACCEPTED = {
    name: {
        **{label: ODD[label] for label in sorted(taken)},
        **{f"own, {label}": value for label, value in FITTING.get(name, {}).items()},
    }
    for name, taken in TAKEN.items()
}

# Of these the rows or the network must be seen before it is known whether they fit.
SEEN_BESIDE_ROWS = (
    "X",
    "y",
    "kinds",
    "schema",
    "rows_per_peer",
    "partition",
    "test",
    "secure_sum",
    "privacy",
)


def cases(table):
    return [pytest.param(name, label, id=f"{name}: {label}") for name in table for label in table[name]]


# What else a value needs to make sense: rows to test on where peers hold all, three neighbours for everybody.
BESIDE = {"rows_per_peer": {"test": (X, Y)}, "secure_sum": {"topology": "complete"}}


def simulated(name, value, **more):
    arguments = {**GOOD, **BESIDE.get(name, {}), name: value, **more}
    return pb.simulate(arguments.pop("X"), arguments.pop("y"), **arguments)


def refusal(function, *arguments, **settings):
    """The message of a ValueError, a TypeError or an error of the project's own, and of nothing else."""
    with pytest.raises((ValueError, TypeError)) as raised:
        function(*arguments, **settings)
    assert type(raised.value) in (ValueError, TypeError) or isinstance(raised.value, PeerbayesError)
    return str(raised.value)


@pytest.fixture(scope="module")
def empty_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("empty")


def test_every_argument_is_tried_with_twenty_odd_values():
    assert list(TAKEN) == list(inspect.signature(pb.simulate).parameters)
    for name in TAKEN:
        assert len(REFUSED[name]) + len(ACCEPTED[name]) >= 20
        assert {*FITTING, *UNFIT} <= {*TAKEN}


@pytest.mark.parametrize(("name", "label"), cases(REFUSED))
def test_an_odd_value_is_refused_by_name(name, label, monkeypatch, empty_folder):
    monkeypatch.chdir(empty_folder)
    value, words = REFUSED[name][label]
    if name not in SEEN_BESIDE_ROWS and (name, label) != ("checkpoint", "own, another file"):
        monkeypatch.setattr(pb.Schema, "infer", None)  # rows are not looked at
    message = refusal(simulated, name, value)
    assert re.search(rf"\b{name}\b", message), message
    assert words in message
    assert "\n" not in message and len(message) < 700, message
    assert not any(empty_folder.iterdir())
    if label in ODD and isinstance(value, str | float | bool | None):
        assert repr(value)[:60] in message, message


@pytest.mark.filterwarnings("ignore::peerbayes.errors.DataWarning")  # numbers as text, say
@pytest.mark.parametrize(("name", "label"), cases(ACCEPTED))
def test_an_odd_value_that_makes_sense_gives_finite_numbers(name, label, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    run = simulated(name, ACCEPTED[name][label])
    summary = run.summary()
    errors = [summary[figure] for figure in ("train_error", "test_error", "disagreement", "bytes_per_peer")]
    assert np.isfinite(run.stats).all() and np.isfinite(errors).all()
    assert json.loads(json.dumps(run.configuration, allow_nan=False)).keys() == run.configuration.keys()


def test_whole_numbers_of_numpy_are_told_as_numbers():
    run = simulated("peers", np.int64(5))
    assert run.configuration["peers"] == 5 and type(run.configuration["peers"]) is int
    run = simulated("dtype", np.float32)
    assert run.configuration["dtype"] == "float32"


def test_a_clip_that_is_too_large_is_none():
    """Values far away, whose squares would overflow, are held where they are without a clip."""
    far = columns(alcohol=1e300), Y
    wide, none = (simulated("clip", clip, test=far) for clip in (1e300, None))
    np.testing.assert_array_equal(wide.records, none.records)
    assert np.isfinite(wide.records).all()


def test_a_sequence_of_seeds_is_refused_with_what_to_do():
    with pytest.raises(
        ValueError, match=r"seed is \[0, 1\]; expected one whole number: .* call once for each"
    ):
        simulated("seed", [0, 1])


def test_a_strategy_that_says_nothing_of_late_messages_is_refused_where_there_are_some():
    strategy = own_strategy()
    del strategy.takes_old
    assert np.isfinite(simulated("strategy", strategy).stats).all()
    with pytest.raises(ValueError, match=r"strategy is namespace.*takes_old.*message_delay"):
        simulated("strategy", strategy, message_delay=0.1)


# --- the limits of lr --------------------------------------------------------------------------------------


def counts_of_rows_that_say_nothing(lr, rounds):
    """S of 1 for each of two classes with 30 rows and 20, after so many steps of RC: [2]."""
    X, y = pd.DataFrame({"a": ["same"] * 50}), np.repeat([0, 1], [30, 20])
    model = pb.MixedNB(
        calibrate=True,
        start="uniform",
        keep="last",
        step="fixed",
        validation_fraction=0.0,
        lr=lr,
        max_iter=rounds,
    ).fit(X, y)
    return model.statistics_.values[:, 0]


@pytest.mark.parametrize("lr", [0.05, 0.5, 1.5, 2.0, 2.5])
def test_counts_swing_further_with_every_step_for_lr_above_2(lr):
    """How far they are from m_c is multiplied by 1 − lr in every step."""
    goal = np.array([30.0, 20.0])
    apart = [counts_of_rows_that_say_nothing(lr, rounds) - goal for rounds in range(4)]
    for before, after in itertools.pairwise(apart):
        np.testing.assert_allclose(after, (1 - lr) * before, atol=1e-9)


# --- runs without test rows --------------------------------------------------------------------------------

ALL_ROWS = {"peers": 6, "rows_per_peer": None, "rounds": 2}


@pytest.mark.parametrize("function", [pb.simulate, simulate_shards])
def test_a_run_without_test_rows_says_so(function):
    with pytest.warns(UserWarning, match=r"no test error; pass test=\(X, y\).*rows_per_peer") as caught:
        run = function(X, Y, **ALL_ROWS)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert run.history["test_error"].isna().all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        function(X, Y, test=(X, Y), **ALL_ROWS)


def test_what_was_not_computed_is_null_in_files(tmp_path):
    with pytest.warns(UserWarning, match="no test error"):
        run = pb.simulate(X, Y, **ALL_ROWS)
    run.save(tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text(), parse_constant=pytest.fail)
    assert summary["test_error"] is None and summary["train_error"] == run.summary()["train_error"]


# --- shards ------------------------------------------------------------------------------------------------

SHARED = [name for name in inspect.signature(simulate_shards).parameters if name in TAKEN]


def test_shards_take_the_settings_of_simulate():
    assert {"X", "y", "peers", "rows_per_peer", "topology", "lr", "seed", "evaluate_rows", "dtype"} <= {
        *SHARED
    }


@pytest.mark.parametrize("name", SHARED)
def test_shards_refuse_in_the_same_words(name):
    for label, (value, words) in REFUSED[name].items():
        if name in ("X", "y") and value is None:  # then it is rows_of that brings them
            continue
        arguments = {key: each for key, each in GOOD.items() if key != "references"} | {name: value}
        message = refusal(simulate_shards, arguments.pop("X"), arguments.pop("y"), **arguments)
        if (name, label) == ("schema", "own, text"):  # of another row: each shard reads its own
            assert "X and schema" in message and words in message
            continue
        assert message == refusal(simulated, name, value), label
