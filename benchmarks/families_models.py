"""The models of benchmarks/families.py: how each learns from a split of a dataset, and its figures on the test rows."""

import math
import re
import shutil
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import aode
import auto
import measuring  # noqa: F401  one thread: before numpy
import numpy as np
import pandas as pd
import weka
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

import peerbayes as pb
from peerbayes.experiments.cells import TooFewRows, prepared
from peerbayes.learning.metrics import Outcome, Sample
from peerbayes.model import core
from peerbayes.simulation import baselines
from peerbayes.simulation.population import Population
from peerbayes.simulation.settings import SimulationSettings

PEERS, ROUNDS = 50, 64
# Real peers agree on their start exactly, by one sum along the tree. The simulator gossips, and with its default of 32
# rounds peers stay apart on a tree, which `relay` does not make up for.
START_ROUNDS = 128
PEERS_EVALUATED = 10  # evenly spaced ones of a network: all of them take longer to evaluate than to learn
SMALLEST = 1e-6  # of a probability in the log loss, for all models: as Weka has it
DISCRETE = weka.DATASETS


class Cell(NamedTuple):
    """What one row of the results is about."""

    dataset: str
    rows: int
    """Rows of each peer, or a fiftieth of the pooled rows; 0: two thirds of a discrete dataset."""
    partition: str
    """ "iid" or "drift-y"; "pooled": all rows in one place."""
    strategy: str
    """A name of `STRATEGIES` where peers learn a family; "" otherwise."""
    model: str
    seed: int


class Family(NamedTuple):
    """A family over a network: its name, its start (None: its own), and the kind that numbers have."""

    name: str
    start: str | None
    numbers: str = "auto"


# From the cheapest to the most expensive. Each has the start that it can learn from: docs/decisions/starts.md.
FAMILIES = {
    "NB": Family("naive-bayes", "uniform"),
    "bins": Family("naive-bayes", "uniform", "binned"),
    "LDA": Family("lda", "ml"),
    "TAN": Family("tan", "ml"),
    "QDA": Family("qda", "ml"),
    "KDB": Family("kdb", "ml"),
    "GA2M": Family("ga2m", "marginal"),
    "auto": Family("auto", None),
    "AODE": Family("aode", "ml"),
}
ESTIMATORS: dict[str, Callable[[], Any]] = {
    "NB": lambda: pb.MixedNB(kinds="discrete", calibrate=True),
    "TAN": lambda: pb.TAN(kinds="discrete", calibrate=True),
    "KDB": lambda: pb.KDB(kinds="discrete", calibrate=True),
    "GA2M": lambda: pb.GA2M(kinds="discrete"),
    "auto": lambda: pb.AutoBayes(kinds="discrete"),
    "AODE": lambda: pb.AODE(calibrate=True),
}
STRATEGIES: dict[str, dict[str, Any]] = {
    "auto": {"strategy": "auto"},
    "tree-sum": {"strategy": "tree-sum"},
    "held-out": {"strategy": "tree-sum", "hold_out": 0.1, "select": "held-out"},
}
SOFTMAX = "softmax"
POOLED = ("LR", "RF", "HGB", "EBM")
WEKA: dict[str, tuple[str, ...]] = {
    "Weka TAN": weka.BAYES_NET,
    "Weka AODE": ("weka.classifiers.bayes.AODE",),
    # it refuses gaps, which are filled with modes as those of Weka's TAN are
    "Weka WAODE": (
        "weka.classifiers.meta.FilteredClassifier", "-F", "weka.filters.unsupervised.attribute.ReplaceMissingValues",
        "-W", "weka.classifiers.bayes.WAODE",
    ),
}  # fmt: skip
JARS = Path("/usr/share/java")

# Error, log loss and calibration error of p(c | x): posterior [n, C], classes [C], truth [n].
figures = partial(auto.figures, smallest=SMALLEST)


class Split(NamedTuple):
    """Training rows and labels, test rows and labels, and the kinds of the columns."""

    X: pd.DataFrame
    y: np.ndarray
    test: pd.DataFrame
    truth: np.ndarray
    discrete: dict[str, bool]

    def kinds(self, numbers: str) -> dict[str, str]:
        """Return the kinds of the columns, where numbers have that one."""
        return {name: "discrete" if is_discrete else numbers for name, is_discrete in self.discrete.items()}


@lru_cache(maxsize=2)
def split(dataset: str, rows: int, seed: int) -> Split:
    """Return a dataset's rows: 50 × `rows` to learn from and up to 5,000 to test on, or two thirds and one third."""
    if dataset in DISCRETE:
        frame, labels, train, test = aode.split(dataset, seed)
        columns = dict.fromkeys(map(str, frame.columns), True)
        return Split(frame.iloc[train], labels[train], frame.iloc[test], labels[test], columns)
    data = prepared(dataset)
    (X, y), (test_rows, truth) = data.split(PEERS * rows, seed)
    columns = {column.name: column.kind != "continuous" for column in data.schema.columns}
    X, test_rows = (pd.DataFrame(values, columns=list(columns)) for values in (X, test_rows))
    return Split(X, np.asarray(y), test_rows, np.asarray(truth), columns)


def measured(cell: Cell) -> dict[str, Any]:
    """Return the figures of a cell; where the dataset is too small, the reason as `problem`."""
    try:
        rows = split(cell.dataset, cell.rows, cell.seed)
    except TooFewRows as error:
        return {"problem": str(error)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few steps, missing categories, singular rows: all of that counts
        try:
            return _measure_of(cell)(cell, rows)
        except pb.PeerbayesError as error:
            return {"problem": str(error)}


def _measure_of(cell: Cell) -> Callable[[Cell, Split], dict[str, Any]]:
    if cell.model in WEKA:
        return of_weka
    if cell.model == SOFTMAX:
        return of_softmax
    return of_one_machine if cell.partition == "pooled" else of_peers


def network(cell: Cell) -> dict[str, Any]:
    """Return the settings of the network and of its rows."""
    return {
        "peers": PEERS, "rows_per_peer": cell.rows or None, "topology": "tree", "partition": cell.partition,
        "rounds": ROUNDS, "seed": cell.seed,
    }  # fmt: skip


def means(of_peers: list[dict[str, float]]) -> dict[str, float]:
    """Return the mean figures of several models."""
    return {name: float(np.mean([one[name] for one in of_peers])) for name in of_peers[0]}


def evaluated() -> np.ndarray:
    """Return the peers whose models are evaluated."""
    return np.linspace(0, PEERS - 1, PEERS_EVALUATED).astype(np.int64)


def of_peers(cell: Cell, rows: Split) -> dict[str, Any]:
    """Return the figures of a family over a network."""
    family = FAMILIES[cell.model]
    start: dict[str, Any] = {} if family.start is None else {"start": family.start}
    if family.start != "uniform":
        start["start_rounds"] = START_ROUNDS
    began = time.process_time()
    run = pb.simulate(
        rows.X, rows.y, family=family.name, kinds=rows.kinds(family.numbers), evaluate_every=0, evaluate_rows=1,
        references=False, **network(cell), **start, **STRATEGIES[cell.strategy],
    )  # fmt: skip
    seconds = time.process_time() - began
    models = [run.classifier(int(peer)) for peer in evaluated()]
    choice = getattr(run, "family_choice", None)
    return {
        **means([figures(model.predict_proba(rows.test), model.classes_, rows.truth) for model in models]),
        "bytes": run.summary()["bytes_per_peer"] - gossiped(run, rows.X, start),
        "seconds": seconds,
        "chosen": run.configuration["strategy"],
        "choice": "" if choice is None else choice.chosen,
    }


def gossiped(run: pb.Run, X: pd.DataFrame, start: dict[str, Any]) -> float:
    """Return the bytes that a peer sent to agree on its start beyond one sum along the tree; NaN where rows have gaps.

    With gaps the start takes several sums, of several sizes.
    """
    if "start_rounds" not in start:
        return 0.0
    if "start" not in start or X.isna().any(axis=None):
        return float("nan")
    links = 2 * len(run.links) / PEERS
    summed = (
        run.stats[0, 0] if start["start"] == "marginal" else run.stats[0]
    )  # of all classes together, or each
    return (START_ROUNDS - 1) * links * summed.nbytes


def of_softmax(cell: Cell, rows: Split) -> dict[str, Any]:
    """Return the figures of softmax regression by exact diffusion, on the φ of naive Bayes: see docs/baselines.md."""
    began = time.process_time()
    arguments = {**network(cell), "kinds": rows.kinds("auto")}
    peers = Population.of(SimulationSettings(arguments), rows.X, rows.y)
    learned = baselines.softmax(peers.held, peers.network, ROUNDS)
    seconds = time.process_time() - began
    size, classes = peers.family.size, np.array(peers.schema.classes)
    sample = Sample(
        peers.family, peers.schema.encode(rows.test), np.zeros(len(rows.truth), dtype=np.int64)
    )  # labels unused
    posteriors = [core.softmax(sample.logits(learned.weights[peer])) for peer in evaluated()]
    matrices = ROUNDS * peers.network.at(1).nnz / PEERS * len(classes) * size
    moments = 2 * (PEERS - 1) / PEERS * size * (size + 1) / 2  # up and down a spanning tree, once
    return {
        **means([figures(posterior, classes, rows.truth) for posterior in posteriors]),
        "bytes": 8.0 * (matrices + moments),
        "seconds": seconds,
    }


def of_one_machine(cell: Cell, rows: Split) -> dict[str, Any]:
    """Return the figures of a model that has all rows."""
    model = ESTIMATORS[cell.model]() if cell.model in ESTIMATORS else pooled(cell.model, rows, cell.seed)
    began = time.process_time()
    model.fit(rows.X, rows.y)
    seconds = time.process_time() - began
    reason = getattr(model, "reason_", "")
    return {
        **figures(model.predict_proba(rows.test), model.classes_, rows.truth),
        "seconds": seconds,
        "choice": re.split(r"[ :]", reason)[0],
    }


def pooled(model: str, rows: Split, seed: int) -> Any:
    """Return an estimator of scikit-learn or interpret with its defaults; discrete columns are categories."""
    discrete = [name for name, is_discrete in rows.discrete.items() if is_discrete]
    numbers = [name for name, is_discrete in rows.discrete.items() if not is_discrete]
    if model == "EBM":
        from interpret.glassbox import ExplainableBoostingClassifier

        types = ["nominal" if is_discrete else "continuous" for is_discrete in rows.discrete.values()]
        return ExplainableBoostingClassifier(feature_types=types, n_jobs=1, random_state=seed)
    codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan)
    if model == "LR":
        scaled = make_pipeline(SimpleImputer(), StandardScaler())
        columns = make_column_transformer(
            (scaled, numbers), (OneHotEncoder(handle_unknown="ignore"), discrete)
        )
        return make_pipeline(columns, LogisticRegression(max_iter=1000))
    columns = make_column_transformer((codes, discrete), ("passthrough", numbers))
    if model == "RF":
        return make_pipeline(columns, RandomForestClassifier(random_state=seed))
    is_category = [True] * len(discrete) + [False] * len(numbers)
    return make_pipeline(
        columns, HistGradientBoostingClassifier(categorical_features=is_category, random_state=seed)
    )


# --- Weka, in a process of its own


def has_weka(jars: Path = JARS) -> bool:
    """Return whether Java and Weka are there: Debian's package `weka`."""
    return shutil.which("java") is not None and (jars / "weka.jar").exists()


def of_weka(cell: Cell, rows: Split, jars: Path = JARS) -> dict[str, Any]:
    """Return the figures of one of Weka's models; its probabilities are printed with three digits."""
    frame = pd.concat([rows.X, rows.test])
    frame = frame.astype({name: str for name in frame if pd.api.types.is_integer_dtype(frame[name])})
    labels = np.concatenate([rows.y, rows.truth])
    train, test = np.split(np.arange(len(labels)), [len(rows.y)])
    classifier, *options = WEKA[cell.model]
    own_options = [option for option in options if option not in ("-k", "-v", "-o")]
    with tempfile.TemporaryDirectory() as folder:
        for name, indices in (("train.arff", train), ("test.arff", test)):
            Path(folder, name).write_text(weka.arff(frame, labels, indices), encoding="utf-8")
        call = [
            "java", "-cp", f"{jars}/weka.jar:{jars}/cup_runtime.jar", classifier,
            "-t", f"{folder}/train.arff", "-T", f"{folder}/test.arff",
        ]  # fmt: skip
        began = time.perf_counter()
        summary = subprocess.run([*call, "-k", "-v", "-o", *own_options], capture_output=True, text=True)
        seconds = time.perf_counter() - began
        listed = subprocess.run(
            [*call, "-p", "0", "-distribution", *own_options], capture_output=True, text=True
        )
    error = re.search(r"^Incorrectly.*?([\d.]+)\s+%", summary.stdout, re.MULTILINE)
    bits = re.search(r"^Class complexity \| scheme.*?([-\d.]+)\s+bits/instance", summary.stdout, re.MULTILINE)
    if error is None or bits is None:
        raise RuntimeError(f"{cell.model} on {cell.dataset}: {summary.stderr[:500]}")
    return {
        "error": float(error[1]) / 100,
        "log_loss": float(bits[1]) * math.log(2),
        "ece": listed_outcome(listed.stdout).calibration_error,
        "seconds": seconds,
    }


def listed_outcome(text: str) -> Outcome:
    """Return the outcome of the predictions that Weka lists: the true class and the probabilities of each row."""
    lines = re.findall(r"^\s*\d+\s+(\d+):\S*\s+\d+:\S*\s+(?:\+\s+)?([\d.,*]+)\s*$", text, re.MULTILINE)
    posterior = np.array(
        [[float(value) for value in shares.replace("*", "").split(",")] for _, shares in lines]
    )
    return Outcome.of(posterior, np.array([int(label) - 1 for label, _ in lines]))
