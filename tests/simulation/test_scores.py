"""Metrics of peers, alone, pooled and of baselines on the same test rows, and a sentence for every missing figure."""

import json
import math
import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics as sk
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.svm import LinearSVC
from typer.testing import CliRunner

import peerbayes as pb
from peerbayes import network
from peerbayes.cli.app import app
from peerbayes.errors import PeerbayesError
from peerbayes.learning import metrics as learning_metrics
from peerbayes.learning.metrics import Outcome
from peerbayes.report.page import outcome as results_of
from peerbayes.simulation import notes, scores
from peerbayes.simulation.scores import Scores

WINE, WINE_LABELS = load_wine(return_X_y=True)
SMALL = {"peers": 6, "rows_per_peer": 12, "rounds": 8, "evaluate_every": 0, "seed": 3}


def rows_of(run, learner):
    frame = run.scores
    return frame[frame["learner"] == learner].set_index("metric")


def held_back(X, y, peers=6, rows=12, seed=0):
    """Rows for peers, and test rows apart from them: (X, y, partition, test)."""
    order = np.random.default_rng(seed).permutation(len(y))
    parts = np.split(np.arange(peers * rows), peers)
    train, test = order[: peers * rows], order[peers * rows :]
    return X[train], y[train], [part.tolist() for part in parts], (X[test], y[test])


# --- the metrics, against scikit-learn's


def own_ece(posterior, labels):
    """The expected calibration error, bin by bin."""
    confidence, correct = posterior.max(axis=1), posterior.argmax(axis=1) == labels
    total = 0.0
    for number in range(15):
        last = number == 14
        inside = (confidence * 15 >= number) & ((confidence * 15 < number + 1) | last)
        if inside.any():
            total += inside.mean() * abs(correct[inside].mean() - confidence[inside].mean())
    return total


def by_scikit_learn(posterior, labels):
    """The same metrics by scikit-learn's functions, of classes that have rows."""
    classes = posterior.shape[1]
    predicted = posterior.argmax(axis=1)
    one_by_one = [sk.roc_auc_score(labels == c, posterior[:, c]) for c in np.unique(labels)]
    return {
        "balanced_accuracy": np.mean(
            [sk.recall_score(labels == c, predicted == c) for c in np.unique(labels)]
        ),
        "log_loss": sk.log_loss(labels, posterior, labels=range(classes)),
        "auc": sk.roc_auc_score(labels, posterior[:, 1]) if classes == 2 else np.mean(one_by_one),
        "f1": sk.f1_score(labels, predicted, average="macro"),
        "brier": sk.brier_score_loss(labels, posterior, labels=range(classes)),
        "ece": own_ece(posterior, labels),
    }


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("kind", ["soft", "sure", "tied", "a class without rows"])
def test_metrics_equal_those_of_scikit_learn(classes, kind):
    rng = np.random.default_rng(classes)
    labels = rng.integers(0, classes - (kind == "a class without rows" and classes > 2), 211)
    labels[: classes - 1] = np.arange(classes - 1)
    logits = rng.normal(size=(211, classes)) + np.eye(classes)[labels]
    if kind == "sure":  # probabilities that underflow, as those of generative models do
        logits *= 400.0
    posterior = np.exp(logits - logits.max(axis=1, keepdims=True))
    if kind == "tied":
        posterior = np.ceil(posterior * 3.0)
    posterior /= posterior.sum(axis=1, keepdims=True)
    outcome = Outcome.of(posterior, labels)
    for name, expected in by_scikit_learn(posterior, labels).items():
        assert scores.BUILT_IN[name](posterior, labels, outcome) == pytest.approx(expected, abs=1e-12), name
    assert scores.error(posterior, labels, outcome) == pytest.approx(
        1.0 - sk.accuracy_score(labels, posterior.argmax(axis=1)), abs=1e-12
    )


@pytest.mark.parametrize("data", [load_wine, load_breast_cancer])
def test_figures_of_a_run_are_those_of_its_classifiers_on_its_test_rows(data):
    X, y, parts, test = held_back(*data(return_X_y=True))
    run = pb.simulate(
        X,
        y,
        partition=parts,
        peers=6,
        rounds=8,
        test=test,
        seed=1,
        baselines=["majority", LogisticRegression(C=0.3)],
    )
    posteriors = {
        "peers": [run.classifier(peer).predict_proba(test[0]) for peer in range(6)],
        "majority": [DummyClassifier(strategy="prior").fit(X, y).predict_proba(test[0])],
        "ml": [pb.MixedNB(alpha=1.0, shrinkage=None, schema=run.schema).fit(X, y).predict_proba(test[0])],
    }
    local = pb.simulate(X, y, partition=parts, peers=6, rounds=8, test=test, strategy="local", seed=1)
    posteriors["alone"] = [local.classifier(peer).predict_proba(test[0]) for peer in range(6)]
    units = run.schema.encode(X).values, run.schema.encode(test[0]).values
    pooled = LogisticRegression(C=0.3).fit(units[0], y)
    posteriors["logistic-regression-pooled"] = [pooled.predict_proba(units[1])]
    posteriors["logistic-regression-alone"] = [
        LogisticRegression(C=0.3).fit(units[0][part], y[part]).predict_proba(units[1]) for part in parts
    ]
    for learner, models in posteriors.items():
        expected = pd.DataFrame(
            [by_scikit_learn(p, test[1]) | {"error": (p.argmax(axis=1) != test[1]).mean()} for p in models]
        )
        figures = rows_of(run, learner)
        assert list(figures.index) == ["error", *scores.BUILT_IN]
        np.testing.assert_allclose(figures["mean"], expected.mean()[figures.index], rtol=0, atol=1e-9)
        assert (figures["models"] == len(models)).all() and (figures["rows"] == len(test[1])).all()
        if len(models) > 1:
            np.testing.assert_allclose(figures["std"], expected.std(ddof=0)[figures.index], rtol=0, atol=1e-9)
        else:
            assert figures["std"].isna().all()


def test_a_run_without_messages_is_alone_and_summary_has_all_figures_by_flat_keys():
    run = pb.simulate(WINE, WINE_LABELS, **SMALL, strategy="local", baselines=["vote"])
    pd.testing.assert_frame_equal(
        rows_of(run, "peers").drop(columns="learner"), rows_of(run, "alone").drop(columns="learner")
    )
    summary = run.summary()
    assert run.missing == {} and all(map(math.isfinite, summary.values()))
    means, spreads = (
        {
            (row.learner, row.metric): value
            for row, value in zip(run.scored.rows, run.scores[column], strict=True)
        }
        for column in ("mean", "std")
    )
    for metric in scores.BUILT_IN:
        assert summary[f"test_{metric}"] == means["peers", metric]
        assert summary[f"test_{metric}_std"] == spreads["peers", metric]
        assert summary[f"test_{metric}_local"] == means["alone", metric]
        for learner in ("rc", "rc_end", "ml", "majority", "vote"):
            assert summary[f"test_{metric}_{learner}"] == means[learner, metric]
        assert summary[f"test_{metric}_vote_product"] == means["vote-product", metric]
    for learner in ("majority", "vote"):
        assert summary[f"test_{learner}"] == means[learner, "error"]
    for learner in ("rc", "rc_end", "ml"):  # the same test rows, so the errors that the run has anyway
        assert summary[f"test_{learner}"] == pytest.approx(means[learner, "error"], abs=1e-12)
    assert (summary["test_error"], summary["test_std"]) == (
        means["peers", "error"],
        spreads["peers", "error"],
    )


def test_scorers_of_scikit_learn_and_of_the_user_get_every_learners_predictions():
    text = np.array(["rare", "often", "other"])[WINE_LABELS]

    def own(estimator, X, y):
        return float((estimator.predict(X) == y).mean()) + len(X)

    chosen = {
        "twos": sk.make_scorer(sk.fbeta_score, beta=2.0, average="macro"),
        "own": own,
        "roc_auc_ovr": "roc_auc_ovr",
    }
    run = pb.simulate(WINE, text, **SMALL, metrics={**chosen, "auc": "auc", "neg_log_loss": "neg_log_loss"})
    for learner in ("peers", "ml", "majority"):
        figures = rows_of(run, learner)["mean"]
        assert figures["own"] == pytest.approx(1.0 - figures["error"] + len(text) - 72)
        assert figures["roc_auc_ovr"] == pytest.approx(figures["auc"], abs=1e-12)
    assert run.configuration["metrics"] == ("twos", "own", "roc_auc_ovr", "auc", "neg_log_loss")
    again = pb.simulate(WINE, text, **SMALL, metrics=[sk.make_scorer(sk.f1_score, average="macro"), "f1"])
    assert rows_of(again, "peers")["mean"]["f1_score"] == pytest.approx(
        rows_of(again, "peers")["mean"]["f1"], abs=1e-12
    )


# --- the baselines


@pytest.mark.parametrize("name", ["average_precision", "precision"])
def test_a_scorer_that_needs_the_positive_class_says_how_to_name_it(name):
    X, y = load_breast_cancer(return_X_y=True)
    text = np.array(["ill", "well"])[y]
    run = pb.simulate(X, text, **SMALL, references=False, metrics=[name])
    said = run.missing[f"test_{name}"]
    assert f"the scorer {name} does not know which class is positive, 'ill' or 'well'" in said
    advised = re.search(r"pass metrics=(\{.*\}), with make_scorer of sklearn.metrics$", said)[1]
    named = {"make_scorer": sk.make_scorer, f"{name}_score": getattr(sk, f"{name}_score")}
    advice = eval(advised, named)  # what the sentence says is what helps
    figures = [
        pb.simulate(X, labels, **SMALL, references=False, metrics=metrics).summary()[f"test_{name}"]
        for labels, metrics in ((text, advice), (y, [name]))
    ]
    assert figures[0] == pytest.approx(figures[1]) and 0 < figures[0] <= 1


def test_baselines_are_those_of_the_published_comparison(monkeypatch):
    """benchmarks/baselines.py computes docs/baselines.md; here it has fewer peers and rounds."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import baselines as benchmark

    monkeypatch.setattr(benchmark, "PEERS", 4)
    monkeypatch.setattr(benchmark, "ROUNDS", 6)
    benchmark.population.cache_clear()
    data = benchmark.prepared("wine")
    cell = ("wine", 5, 20, "drift-y", "tree+1")
    published = benchmark.others(*cell)
    benchmark.population.cache_clear()
    (X, y), test = data.split(80, 5)
    run = pb.simulate(
        X, y, peers=4, rows_per_peer=20, topology="tree+1", partition="drift-y", seed=5, rounds=6, schema=data.schema,
        test=test, evaluate_every=0, references=False, metrics=[], baselines=["softmax", "dsgd-softmax", "fedavg",
                   "vote"],
    )  # fmt: skip
    summary = run.summary()
    for name, key in (
        ("FedAvg", "fedavg"), ("softmax", "softmax"), ("DSGD", "dsgd_softmax"), ("RC vote", "vote"),
        ("RC product", "vote_product"),
    ):  # fmt: skip
        assert summary[f"test_{key}"] == pytest.approx(published[name][0], abs=1e-12), name


@pytest.mark.parametrize("name", ["logistic-regression", "random-forest", "gradient-boosting"])
def test_a_name_of_an_estimator_learns_pooled_and_alone_and_follows_from_the_seed(name):
    X, y = WINE[:, :4], WINE_LABELS
    first, second = (
        pb.simulate(X, y, **{**SMALL, "peers": 3}, references=False, baselines=[name]) for _ in range(2)
    )
    pd.testing.assert_frame_equal(first.scores, second.scores)
    for kind in ("pooled", "alone"):
        assert rows_of(first, f"{name}-{kind}")["mean"].map(math.isfinite).all()
    assert first.summary()[f"test_{name.replace('-', '_')}_pooled"] < first.summary()["test_majority"]


def test_rows_of_other_weight_and_peers_of_one_class_are_learned_from():
    order = np.argsort(WINE_LABELS, kind="stable")
    X, y = WINE[order], WINE_LABELS[order]
    parts = [list(range(40)), list(range(60, 63)), list(range(140, 150))]  # one class each
    test = X[::7], y[::7]
    run = pb.simulate(
        X, y, partition=parts, peers=3, test=test, rounds=4, objective="peers", references=False,
        baselines=[GaussianNB(), LogisticRegression()],
    )  # fmt: skip
    units = run.schema.encode(X).values
    rows = np.concatenate(parts)
    weights = np.repeat([53 / (3 * 40), 53 / (3 * 3), 53 / (3 * 10)], [40, 3, 10])
    expected = GaussianNB().fit(units[rows], y[rows], weights).predict_proba(units[::7])
    figures = rows_of(run, "gaussian-nb-pooled")["mean"]
    assert figures["log_loss"] == pytest.approx(sk.log_loss(test[1], expected), abs=1e-9)
    alone = rows_of(run, "logistic-regression-alone")["mean"]  # scikit-learn refuses a single class
    wrong = [np.mean(test[1] != c) for c in range(3)]
    assert alone["error"] == pytest.approx(np.mean(wrong), abs=1e-12)
    majority = weights.reshape(-1)[:40].sum(), weights[40:43].sum(), weights[43:].sum()
    assert rows_of(run, "majority")["mean"]["log_loss"] == pytest.approx(
        -np.log(np.array(majority) / 53)[test[1]].mean()
    )


class Broken(LogisticRegression):
    def fit(self, X, y):
        raise RuntimeError("it is broken")


def test_what_cannot_be_computed_has_a_sentence_and_the_run_is_not_lost():
    def failing(estimator, X, y):
        raise RuntimeError("a scorer that fails")

    run = pb.simulate(
        WINE, WINE_LABELS, **SMALL, metrics=["log_loss", "balanced_accuracy", "average_precision", failing],
        baselines=[Broken(), LinearSVC()], references=False,
    )  # fmt: skip
    missing, summary = run.missing, run.summary()
    assert "Broken" not in missing and "it is broken" in missing["test_broken_pooled"]
    assert "classes without probabilities" in missing["test_log_loss_linear_svc_pooled"]
    assert math.isfinite(summary["test_balanced_accuracy_linear_svc_pooled"])
    assert (
        "a scorer that fails" in missing["test_failing"]
        and "a scorer that fails" in missing["test_failing_majority"]
    )
    assert set(missing) == {name for name, value in summary.items() if not math.isfinite(value)}
    assert missing["test_rc"] == notes.NO_REFERENCES


def test_probabilities_that_are_no_numbers_are_said_to_have_diverged(monkeypatch):
    posteriors = learning_metrics.Sample.posteriors
    monkeypatch.setattr(
        learning_metrics.Sample, "posteriors", lambda *args: (p * np.nan for p in posteriors(*args))
    )
    run = pb.simulate(WINE, WINE_LABELS, **SMALL, references=False)
    assert "probabilities of peers are no finite numbers" in run.missing["test_auc"]
    assert math.isfinite(run.summary()["test_error"]) and math.isfinite(run.summary()["test_auc_majority"])


def test_baselines_that_make_no_sense_are_refused_before_any_work():
    gaps = WINE.copy()
    gaps[0, 0] = np.nan
    for changes, words in (
        ({"attack": "flip"}, "baselines 'softmax' with an attack"),
        ({"family": "aode"}, "baselines 'softmax' with family 'aode'"),
        ({"family": "qda", "X": gaps}, "baselines 'softmax' with missing values, which qda completes"),
    ):
        X = changes.pop("X", WINE)
        with pytest.raises(ValueError, match=words):
            pb.simulate(X, WINE_LABELS, **SMALL, baselines=["majority", "softmax"], **changes)


def test_honest_rows_are_what_baselines_learn_from_beside_attackers():
    run = pb.simulate(WINE, WINE_LABELS, **SMALL, attack="flip", baselines=["vote", GaussianNB()])
    honest = len(run.sizes) - run.attackers.size
    assert rows_of(run, "peers")["models"].eq(honest).all()
    assert rows_of(run, "gaussian-nb-alone")["models"].eq(honest).all()


# --- the settings


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("metrics", ["auc", "auc"], "'auc' once"),
        ("metrics", ["oops"], "names of scikit-learn's scorers"),
        ("metrics", {"rc": "auc"}, "not beginning with"),
        ("metrics", {"two words": "auc"}, "letters, digits and _"),
        ("metrics", [LogisticRegression], "or scorers themselves"),
        ("baselines", ["random forest"], "random-forest"),
        ("baselines", [LogisticRegression], "or classifiers of scikit-learn"),
        ("baselines", [lambda: None], "or classifiers of scikit-learn"),
    ],
)
def test_odd_settings_are_refused(setting, value, words):
    with pytest.raises(ValueError, match=words):
        pb.simulate(WINE, WINE_LABELS, **SMALL, **{setting: value})


def test_estimators_of_one_class_have_different_names_and_settings_at_their_default_are_not_recorded():
    run = pb.simulate(
        WINE, WINE_LABELS, **SMALL, references=False, metrics=[],
        baselines=["logistic-regression", LogisticRegression(C=0.1), LogisticRegression(C=10.0), "majority",
                   "majority"],
    )  # fmt: skip
    assert run.configuration["baselines"] == (
        "logistic-regression", "logistic-regression-2", "logistic-regression-3", "majority",
    )  # fmt: skip
    plain = pb.simulate(WINE, WINE_LABELS, **SMALL, references=False).configuration
    assert not {"metrics", "baselines"} & set(plain)


# --- which rows and peers


def test_large_runs_are_evaluated_on_a_sample_and_say_so(monkeypatch):
    monkeypatch.setattr(learning_metrics, "OUTCOME_LOGITS", 20 * 3 * 4)
    run = pb.simulate(WINE, WINE_LABELS, **SMALL, evaluate_rows=(None, 20))
    figures = rows_of(run, "peers")
    assert figures["models"].tolist() == [6, *[4] * (len(figures) - 1)]  # the error is that of all peers
    assert (run.scores["rows"] == 20).all()
    assert [note.partition(",")[0] for note in run.notes] == [
        "metrics are of 20 of 106 test rows", "metrics other than the error are of 4 of 6 peers",
    ]  # fmt: skip


def test_of_many_models_fewer_are_compared_than_of_few():
    sample = learning_metrics.Sample(None, None, np.zeros(1 << 12, dtype=int))
    assert sample.compared(50, 2).size == 50
    assert (
        sample.compared(10_000, 2).tolist()[:1] == [0]
        and sample.compared(10_000, 2).size == (1 << 24) // (1 << 13) // 4
    )
    assert learning_metrics.Sample(None, None, np.zeros(1 << 20, dtype=int)).compared(50, 2).size == 8


def test_a_class_without_test_rows_is_left_out_of_means_and_named():
    X, y, parts, test = held_back(WINE, WINE_LABELS)
    two = test[1] < 2
    run = pb.simulate(X, y, partition=parts, peers=6, rounds=4, test=(test[0][two], test[1][two]))
    assert run.missing == {} and any("no test row is of the class 2" in note for note in run.notes)
    posterior = run.classifier(0).predict_proba(test[0][two])
    assert by_scikit_learn(posterior, test[1][two])["auc"] > 0.9


# --- files


def test_a_saved_run_has_its_scores_and_an_older_one_none(tmp_path):
    X = np.where(WINE_LABELS == 0, WINE[:, 0], np.nan)[:, None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        run = pb.simulate(WINE, WINE_LABELS, **{**SMALL, "rows_per_peer": None}, baselines=["vote"])
    run.save(tmp_path / "run")
    again = pb.Run.load(tmp_path / "run")
    assert again.scored == run.scored or repr(again.scored) == repr(run.scored)
    pd.testing.assert_frame_equal(again.scores, run.scores)
    assert (again.notes, again.missing) == (run.notes, run.missing) and run.missing and X.shape
    (tmp_path / "old").mkdir()
    stored = Path(__file__).with_name("run_of_nodes.bin").read_bytes()
    (tmp_path / "old" / "run.peerbayes").write_bytes(stored)
    old = pb.Run.load(tmp_path / "old")
    assert old.scored == Scores() and len(old.scores) == 0
    assert set(old.missing) == {name for name, value in old.summary().items() if not math.isfinite(value)}


# --- no figure is missing without a sentence


CHOICES = {
    "peers": (1, 3, 5),
    "rows_per_peer": (4, 12, None),
    "family": ("naive-bayes", "naive-bayes", "qda", "lda"),
    "strategy": ("auto", "exact", "crc", "relay", "tracking", "local", "dsgd", "consensus-ml", "tree-sum"),
    "start": ("uniform", "ml"),
    "partition": ("iid", "drift-y"),
    "references": (True, False),
    "evaluate_every": (0, 1, 3),
    "evaluate_rows": (None, 9, (3, None)),
    "rounds": (1, 5, 9),
    "lr": (0.05, 2.0),
    "hold_out": (0.0, 0.3),
    "select": ("last", "last", "held-out"),
    "objective": ("rows", "peers"),
    "privacy": (None, None, None, pb.Privacy(epsilon=8.0, min_rows=1)),
    "attack": (None, None, "flip"),
    "faults": (None, None, [network.Away(0.4, first=2)]),
    "peers_down": (0.0, 0.3),
    "dtype": ("float64", "float64", "float32"),
    "metrics": (tuple(scores.BUILT_IN), ("auc", "roc_auc_ovr", "average_precision")),
    "baselines": ((), ("vote",), ("fedavg",), ("majority", GaussianNB())),
    "topology": ("tree", "complete"),
}  # fmt: skip
TESTS = ("rest", "given", "one class", "two classes")


def random_run(rng, families):
    """A run with random settings on few rows; None where they are refused."""
    y = np.sort(np.concatenate([np.arange(3), rng.integers(0, 3, 57)]))
    X = rng.normal(size=(60, 3)) + y[:, None]
    if rng.random() < 0.2:
        X[rng.random(X.shape) < 0.1] = np.nan
    settings = {
        name: options[rng.integers(len(options))] for name, options in CHOICES.items() if rng.random() < 0.5
    }
    if rng.random() < 0.3:
        settings["family"] = families[rng.integers(len(families))]
    settings = {"peers": 4, "rows_per_peer": 12, "rounds": 4, **settings, "seed": int(rng.integers(1000))}
    if (kind := TESTS[rng.integers(4)]) != "rest":
        limit = {"given": 2, "one class": 0, "two classes": 1}[kind]
        settings["test"] = (X[y <= limit], y[y <= limit])
    schema = (
        pb.Schema.infer(X, np.where(np.arange(60) == 0, 7, y)) if rng.random() < 0.1 else None
    )  # a class too many
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            return settings, pb.simulate(X, y, schema=schema, **settings)
        except (ValueError, PeerbayesError):
            return settings, None


def refuse_missing_sentences(rng, runs, families):
    """Run random settings; a figure that is not finite has its own sentence."""
    done, without = 0, 0
    for _ in range(runs):
        settings, run = random_run(rng, families)
        if run is None:
            continue
        summary = run.summary()
        missing = {name for name, value in summary.items() if not math.isfinite(value)}
        assert set(run.missing) == missing, settings
        assert notes.DIVERGED not in run.missing.values(), (settings, missing)
        assert set(run.missing.values()) <= set(run.notes)
        assert np.isfinite([row.mean for row in run.scored.rows if row.key not in run.missing]).all(), (
            settings
        )
        done, without = done + 1, without + bool(missing)
    assert done >= runs // 3 and without >= 2  # neither refused throughout nor trivial


@pytest.mark.parametrize("block", range(2))
def test_no_combination_of_settings_misses_a_figure_without_a_sentence(block):
    refuse_missing_sentences(np.random.default_rng([block, 22]), 20, ("naive-bayes", "qda", "lda"))


@pytest.mark.long
@pytest.mark.parametrize("block", range(2))
def test_nor_does_one_of_many_more_and_of_all_families(block):
    refuse_missing_sentences(np.random.default_rng([block, 23]), 40, ("tan", "kdb", "ga2m", "aode", "auto"))


def test_each_missing_figure_has_its_own_reason():
    X, y, parts, test = held_back(WINE, WINE_LABELS)
    one = test[1] == 1
    run = pb.simulate(
        X, y, partition=parts, peers=6, rounds=4, test=(test[0][one], test[1][one]), references=False
    )
    assert {run.missing[name] for name in run.missing if name.startswith("test_auc")} == {
        "all test rows are of the class 1, and an AUC compares rows of two classes"
    }
    assert run.missing["test_gap_rc"] == run.missing["train_ml"] == notes.NO_REFERENCES
    assert run.missing.keys().isdisjoint({"test_f1", "test_log_loss", "test_majority"})
    alone = pb.simulate(
        X, y, partition=parts, peers=6, rounds=4, test=(test[0][one], test[1][one]), strategy="local"
    )
    assert alone.missing["test_auc_local"] == alone.missing["test_auc"]
    with pytest.warns(UserWarning, match="none are left to test on"):
        run = pb.simulate(X, y, partition=parts, peers=6, rounds=4)
    assert set(run.missing.values()) == {notes.NO_TEST}
    assert {"test_error", "test_rc", "test_gap_ml", "test_auc", "test_majority"} <= set(run.missing)


def test_nobody_left_who_is_honest_is_refused():
    with pytest.raises(ValueError, match="no peer is left at the end that does not lie"):
        pb.simulate(
            WINE, WINE_LABELS, **{**SMALL, "peers": 2}, attack="flip",
            faults=[network.Away([1 - int(pb.Attack("flip").attackers(2, 3)[0])], first=2)],
        )  # fmt: skip


# --- the command


@pytest.fixture
def rare(tmp_path):
    """A table of which one row in twenty is positive, and a file that simulates it."""
    rng = np.random.default_rng(0)
    positive = np.arange(2000) % 20 == 0
    X = rng.normal(size=(2000, 3)) + 1.5 * positive[:, None] * [1.0, -1.0, 0.0]
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(sick=np.where(positive, "yes", "no"))
    frame.to_csv(tmp_path / "rare.csv", index=False)
    settings = 'peers = 10\nrows_per_peer = 40\nrounds = 16\nbaselines = ["vote"]\n'
    file = tmp_path / "rare.toml"
    file.write_text(f'[data]\nfile = "{tmp_path / "rare.csv"}"\n[simulation]\n{settings}')
    return file


def printed(*words):
    done = CliRunner().invoke(app, ["simulate", *map(str, words)])
    assert done.exit_code == 0, done.stderr
    return done.stdout


def cells_of(text, start):
    """The numbers of the line that starts so, in the table of metrics."""
    table = text[text.index("balanced accuracy") :]
    line = next(line for line in table.splitlines() if line.startswith(start))
    return [float(word) for word in line.removeprefix(start).split()]


def test_the_summary_of_rare_positives_shows_the_majority_balanced_accuracy_and_auc(rare):
    text = printed(rare)
    content = json.loads(printed(rare, "--format", "json"))
    figures = content["summary"]
    assert "1,600 test rows  balanced accuracy  log loss  AUC    macro F1  Brier  ECE" in text
    for start, end in (
        ("peers ", ""),
        ("majority class", "_majority"),
        ("RC, pooled rows", "_rc"),
        ("vote ", "_vote"),
    ):
        expected = [figures[f"test_{metric}{end}"] for metric in scores.BUILT_IN]
        np.testing.assert_allclose(cells_of(text, start), expected, atol=5.1e-4)
    errors = text[: text.index("balanced accuracy")]
    assert f"{figures['test_majority']:.3f}" in errors and "majority class" in errors
    assert figures["test_majority"] == pytest.approx(0.05, abs=0.01) and figures["test_auc_majority"] == 0.5
    assert figures["test_balanced_accuracy_majority"] == 0.5 < figures["test_balanced_accuracy"]
    assert figures["test_auc"] > 0.85 and content["notes"] == [] and content["missing"] == {}
    rows = {(row["learner"], row["metric"]): row for row in content["scores"]}
    assert rows["peers", "auc"]["mean"] == figures["test_auc"] and rows["rc", "auc"]["std"] is None
    assert "Note" not in text


def test_the_command_says_why_a_figure_is_missing(rare, tmp_path):
    text = printed(rare, "--set", "rows_per_peer=false")
    assert text.count(f"Note: {notes.NO_TEST}.") == 1 and "nan" not in text.lower()
    content = json.loads(
        printed(rare, "--set", "rows_per_peer=false", "--format", "json", "--out", tmp_path / "run")
    )
    assert {name for name, value in content["summary"].items() if value is None} == set(content["missing"])
    assert content["notes"] == [notes.NO_TEST]
    page = results_of(pb.Run.load(tmp_path / "run"))
    assert "No test rows are left" in page and "nan" not in page


def test_the_report_has_the_metrics_of_all_learners(rare, tmp_path):
    printed(rare, "--out", tmp_path / "run")
    run = pb.Run.load(tmp_path / "run")
    page = results_of(run)
    for words in (
        "Majority class",
        "AUC",
        f"{run.summary()['test_auc']:.4f}",
        f"{run.summary()['test_vote']:.4f}",
    ):
        assert words.lower() in page.lower(), words
