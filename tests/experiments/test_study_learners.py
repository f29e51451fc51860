"""Metrics and baselines in studies: as `simulate` takes them, stored as plain values, and compared by seed."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn import metrics as of_sklearn
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_wine
from sklearn.ensemble import RandomForestClassifier, VotingClassifier
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.feature_selection import SelectKBest, f_classif
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import fbeta_score, get_scorer, get_scorer_names, make_scorer
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

import peerbayes as pb
from peerbayes.data.declarations import declarations
from peerbayes.errors import ConfigurationError
from peerbayes.experiments.directions import OF_METRICS, more_is_better, of_stored
from peerbayes.experiments.levels import label_of, plain, read_back
from peerbayes.experiments.results_store import Store
from peerbayes.experiments.study import Study
from peerbayes.experiments.study_cells import split
from peerbayes.simulation.scores import BUILT_IN
from peerbayes.simulation.settings import SimulationArguments
from shared.commands import peerbayes
from shared.studies import SMALL, Here, asked, killed_while_it_runs

SETTINGS = declarations(SimulationArguments)


def stored(name, value):
    """Return a checked value as JSON holds it, and the value that is read back and checked again."""
    setting = SETTINGS[name]
    checked = setting.kind.check(name, value)
    text = json.loads(json.dumps(plain(name, checked)))
    return text, setting.kind.check(name, read_back(name, text, setting))


class Mine(ClassifierMixin, BaseEstimator):
    """A classifier that is not scikit-learn's."""

    def fit(self, X, y):
        return self

    def predict(self, X):
        return np.zeros(len(X))


# --- plain values


@pytest.mark.parametrize(
    "value",
    [
        "vote",
        ["vote", "softmax"],
        LogisticRegression(C=0.1),
        [LogisticRegression(), LogisticRegression(C=0.1), "vote"],
        LogisticRegression(class_weight={0: 1.0, 1: 2.5}),
        GaussianNB(priors=np.array([0.25, 0.75])),
        make_pipeline(
            StandardScaler(), SelectKBest(f_classif, k=3), RandomForestClassifier(3, random_state=1)
        ),
        VotingClassifier([("a", LogisticRegression()), ("b", GaussianNB())], weights=(1, 2.0)),
        GaussianProcessClassifier(RBF(2.0)),
        make_pipeline(make_column_transformer((OneHotEncoder(dtype=np.float32), [0, 1])), GaussianNB()),
    ],
)
def test_a_baseline_is_the_same_after_it_was_stored(value):
    text, again = stored("baselines", value)
    expected = SETTINGS["baselines"].kind.check("baselines", value)
    assert [entry.name for entry in again] == [entry.name for entry in expected]
    assert plain("baselines", again) == text
    for one, other in zip(expected, again, strict=True):
        assert repr(one.estimator) == repr(other.estimator)
        assert one.estimator is None or type(one.estimator) is type(other.estimator)


def test_a_metric_is_the_same_after_it_was_stored():
    f2 = make_scorer(
        fbeta_score, beta=2.0, pos_label="ill", greater_is_better=False, response_method="predict"
    )
    text, again = stored("metrics", {"auc": "auc", "f2": f2, "roc_auc": "roc_auc"})
    assert text[0] == "auc" and text[2] == "roc_auc"
    assert [metric.name for metric in again] == ["auc", "f2", "roc_auc"]
    assert vars(again[1].scorer) == vars(f2)


@pytest.mark.parametrize("name", get_scorer_names())
def test_each_named_scorer_is_stored_by_its_name(name):
    text, again = stored("metrics", [name])
    assert text == [name] and (name in BUILT_IN or str(again[0].scorer) == str(get_scorer(name)))
    renamed, again = stored("metrics", {"other": get_scorer(name)})
    assert str(again[0].scorer) == str(get_scorer(name)) and renamed != text


def test_a_scorer_under_the_name_of_another_stays_what_it_is():
    _, again = stored("metrics", {"roc_auc": "accuracy"})
    assert again[0].name == "roc_auc" and str(again[0].scorer) == str(get_scorer("accuracy"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"baselines": [Mine()]}, r"baselines: it names Mine\(\); a study stores its settings.*simulate takes others"),
        ({"baselines": make_pipeline(FunctionTransformer(np.log1p), GaussianNB())}, "the parameter func of Function"),
        ({"baselines": RandomForestClassifier(random_state=np.random.RandomState(1))}, "the parameter random_state"),
        ({"metrics": {"m": make_scorer(lambda y, p: 0.0)}}, "metrics: the function of the scorer make_scorer"),
        ({"metrics": {"m": lambda estimator, X, y: 0.0}}, "is no scorer that make_scorer"),
        ({"baselines": ["vot"]}, "baselines is 'vot'; expected"),
    ],
)  # fmt: skip
def test_what_cannot_be_stored_says_what_to_do(settings, message):
    with pytest.raises((TypeError, ValueError), match=message):
        asked(load_wine(return_X_y=True), **settings)


@pytest.mark.parametrize(
    "estimator",
    [
        ["os.system", {}],
        ["sklearn.utils.os", {}],
        ["sklearn.metrics.accuracy_score", {}],
        ["sklearn.nothing.Here", {}],
        ["subprocess.Popen", {"args": "x"}],
    ],
)
def test_only_what_is_in_scikit_learn_is_made_again(estimator):
    with pytest.raises(ConfigurationError, match="expected an estimator or a function of this scikit-learn"):
        read_back("baselines", [{"baseline": ["x", {"estimator": estimator}]}], SETTINGS["baselines"])
    with pytest.raises(ConfigurationError):
        scorer = [{"function": "sklearn.datasets.load_files"}, 1, ["predict"], {"pairs": []}]
        read_back("metrics", [{"metric": ["x", {"scorer": scorer}]}], SETTINGS["metrics"])


def test_nothing_else_is_imported():
    with pytest.raises(ConfigurationError):
        read_back("baselines", [{"baseline": ["x", {"estimator": ["this.Zen", {}]}]}], SETTINGS["baselines"])
    assert "this" not in sys.modules


def test_labels_say_which_baselines():
    of = SETTINGS["baselines"].kind.check
    assert label_of(of("baselines", [])) == "none" and label_of(of("baselines", "vote")) == "vote"
    assert label_of(of("baselines", ["vote", GaussianNB()])) == "vote, GaussianNB()"


# --- cells


@pytest.fixture(scope="module")
def wine():
    return load_wine(return_X_y=True)


@pytest.fixture(scope="module")
def compared(wine, tmp_path_factory):
    """Two strategies beside two baselines, by two metrics."""
    return asked(
        wine, strategy=["exact", "crc"], seed=range(4), baselines=["vote", LogisticRegression(C=0.1)],
        metrics={"auc": "auc", "nll": "neg_log_loss"}, folder=tmp_path_factory.mktemp("study") / "compared",
    )  # fmt: skip


def test_a_cell_with_baselines_is_the_simulation_bit_by_bit(wine, compared):
    X, y = wine
    for _, row in compared.frame.iterrows():
        train, test = split(y, row["seed"])
        run = pb.simulate(
            X[train], y[train], test=(X[test], y[test]), strategy=row["strategy"], seed=row["seed"],
            baselines=["vote", LogisticRegression(C=0.1)], metrics={"auc": "auc", "nll": "neg_log_loss"}, **SMALL,
        )  # fmt: skip
        expected = {k: v for k, v in run.summary().items() if not k.startswith("seconds") and v == v}
        assert {name: row[name] for name in expected} == expected
        assert {"test_vote", "test_auc_logistic_regression_alone", "test_nll_vote"} <= set(expected)


def test_baselines_vary_like_any_setting(wine):
    study = asked(wine, baselines=pb.each([], ["vote"], GaussianNB()), seed=[0])
    assert study.frame["baselines"].tolist() == ["none", "vote", "GaussianNB()"]
    assert study.frame["test_vote"].notna().tolist() == [False, True, False]
    assert "test_vote" in study.frame["missing"][0]
    for row, others in ((0, "gaussian_nb_alone"), (1, "gaussian_nb_pooled"), (2, "vote_product")):
        missing = study.frame["missing"][row]
        assert f"test_{others}" in missing and missing.endswith(": the baseline was not asked for.")
    varied = asked(wine, metrics=pb.each(["auc"], ["f1"]), seed=[0])
    assert varied.frame["missing"][0].endswith(": the settings of this run ask for no such figure.")
    assert study.learners == ["majority", "alone", "rc", "rc_end", "ml", "vote", "vote-product",
                              "gaussian-nb-pooled", "gaussian-nb-alone"]  # fmt: skip


# --- compared by seed


def test_baselines_are_compared_with_strategies_by_seed(compared):
    summary = compared.summary("test_auc").set_index("strategy")
    assert summary.index.tolist() == [
        "exact", "crc", "vote", "vote-product", "logistic-regression-pooled", "logistic-regression-alone"
    ]  # fmt: skip
    first = compared.frame[compared.frame["strategy"] == "exact"].sort_values("seed")
    for name, column in (
        ("vote", "test_auc_vote"),
        ("logistic-regression-pooled", "test_auc_logistic_regression_pooled"),
    ):
        assert summary.loc[name, "mean"] == pytest.approx(first[column].mean())
    against = compared.summary("test_auc", baseline="vote").set_index("strategy")
    assert (against["compared_with"] == "vote").sum() == 5
    pair = first["test_auc"].to_numpy(), first["test_auc_vote"].to_numpy()
    assert against.loc["exact", "p"] == pytest.approx(stats.ttest_rel(*pair).pvalue)
    assert against.loc["exact", "difference"] == pytest.approx((pair[0] - pair[1]).mean())
    assert "| exact | crc | vote | vote-product |" in compared.markdown()


def test_nothing_of_learners_is_nan_without_a_sentence(compared):
    for metric in ("test_error", "test_auc", "test_nll"):
        summary = compared.summary(metric, learners=compared.learners)
        nan = summary.isna().any(axis=1)
        assert (
            nan.sum() == len(compared.learners)
            and summary["note"][nan].str.contains("no spread over peers").all()
        )
    assert "no spread" not in compared.markdown() and "no spread" in compared.markdown(spread_over_peers=True)


def test_learners_are_those_that_are_named(compared):
    assert compared.summary(learners=())["strategy"].tolist() == ["exact", "crc"]
    assert compared.summary(learners=["rc", "majority"])["strategy"].tolist() == [
        "exact",
        "crc",
        "rc",
        "majority",
    ]
    assert compared.summary("bytes_per_peer")["strategy"].tolist() == ["exact", "crc"]
    with pytest.raises(ValueError, match="learners is 'softmax'; expected one of majority, alone, rc"):
        compared.summary(learners=["softmax"])
    with pytest.raises(
        ValueError, match="which learners do not have; expected one of test_error, test_auc, test_nll"
    ):
        compared.summary("bytes_per_peer", learners=["vote"])


def test_a_learner_that_depends_on_what_is_compared_is_one_for_each_value(wine):
    study = asked(wine, rounds=[1, 6], seed=[0, 1], baselines="vote")
    summary = study.summary("test_log_loss", learners=["rc", "majority"]).set_index("rounds")
    assert summary.index.tolist() == [1, 6, "rc, 1", "rc, 6", "majority"]
    of_rc = study.frame.groupby("rounds")["test_log_loss_rc"].mean()
    assert summary.loc["rc, 1", "mean"] == of_rc[1] != of_rc[6] == summary.loc["rc, 6", "mean"]


def test_one_setting_is_compared_with_baselines_alone(wine):
    study = asked(wine, seed=[0, 1], baselines=["vote", "majority"])
    assert study.varied == () and study.summary()["learner"].tolist() == [
        "peers",
        "majority",
        "vote",
        "vote-product",
    ]
    assert "| peers | majority | vote | vote-product |" in study.markdown()


def test_datasets_are_no_methods():
    study = asked((), dataset=["wine", "iris"], seed=[0, 1], baselines="vote")
    summary = study.summary()
    assert summary["dataset"].tolist() == ["wine"] * 3 + ["iris"] * 3
    assert summary["learner"].tolist() == ["peers", "vote", "vote-product"] * 2
    assert asked((), dataset=["wine", "iris"]).summary()["dataset"].tolist() == ["wine", "iris"]


# --- which way is better


def test_of_scorers_more_is_better_as_scikit_learn_signs_them():
    """Whoever predicts the truth has the highest score of each scorer, whatever its name has in it."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 200)
    X = np.column_stack([y + rng.normal(0.0, 0.4, 200), rng.normal(size=200)])
    good, bad = GaussianNB().fit(X, y), GaussianNB().fit(X[:, ::-1], y)
    compared = 0
    for name in get_scorer_names():
        try:
            scores = get_scorer(name)(good, X, y), get_scorer(name)(bad, X, y)
        except (ValueError, TypeError, UndefinedMetricWarning):
            continue  # of regressions, of clusters, or of more classes
        if np.isfinite(scores).all() and scores[0] != scores[1]:
            compared += 1
            directions = of_stored([plain("metrics", SETTINGS["metrics"].kind.check("metrics", [name]))])
            assert more_is_better(f"test_{name}", directions) is bool(scores[0] > scores[1]), name
    assert compared > 15


def test_our_own_metrics_are_in_one_table():
    assert set(OF_METRICS) == {"error", *BUILT_IN}
    signs = {
        name: getattr(of_sklearn, f"{name}_score", None) is not None for name in ("balanced_accuracy", "f1")
    }
    assert all(OF_METRICS[name] == more for name, more in signs.items())
    of_scorer = of_stored(
        [plain("metrics", SETTINGS["metrics"].kind.check("metrics", {"log_loss": "neg_log_loss"}))]
    )
    assert more_is_better("test_log_loss") is False and more_is_better("test_log_loss", of_scorer) is True


@pytest.mark.parametrize(
    ("figure", "more"),
    [
        ("test_error", False), ("train_error", False), ("test_vote", False), ("test_auc_rc", True),
        ("test_auc_std", False), ("test_brier", False), ("test_gap_rc", False), ("bytes_per_peer", False),
        ("seconds_rounds", False), ("rounds", None), ("attackers", None), ("test_r2", True), ("my_figure", None),
        ("test_matthews_corrcoef", True), ("test_f2", True), ("test_neg_log_loss", True), ("disagreement", False),
    ],
)  # fmt: skip
def test_which_way_is_better(figure, more):
    metrics = of_stored([["auc", "brier", "r2", "matthews_corrcoef", {"metric": ["f2", {}]}, "neg_log_loss"]])
    assert more_is_better(figure, metrics, ["vote"]) is more


def test_every_figure_of_a_run_has_a_direction_or_is_a_count(compared):
    undirected = {
        name
        for name in compared.frame.select_dtypes("number")
        if more_is_better(name, compared.metrics, compared.learners) is None
    }
    assert undirected <= {"seed", "rounds", "peers"}


def test_the_best_by_a_scorer_is_the_highest(compared):
    summary = compared.summary("test_nll", learners=["majority"])
    reference = summary[summary["compared_with"] == "itself"].iloc[0]
    assert reference["mean"] == summary["mean"].max() > summary["mean"].min()
    turned = compared.summary("test_nll", learners=["majority"], greater_is_better=False)
    assert turned.set_index("compared_with").loc["itself", "strategy"] == "majority"


def test_nothing_is_marked_where_nobody_said_what_is_better(wine):
    study = asked(wine, rounds=[1, 6], seed=range(6), metric="bytes_per_peer", greater_is_better=True)
    assert study.summary()["best"].tolist() == [False, True] and study.greater_is_better
    assert study.summary(greater_is_better=False)["best"].tolist() == [True, False]
    summary = study.summary("peers")
    assert not summary["best"].any() and summary["compared_with"].tolist() == ["itself", "1"]
    assert "more or less of peers is better is not known, so no best is marked" in summary.attrs["notes"][0]


def test_a_setting_that_is_a_figure_too_is_the_setting(wine):
    study = asked(wine, peers=[3, 4], rounds=[1, 6])
    assert study.frame["peers"].tolist() == [3, 3, 4, 4] and study.frame["rounds"].tolist() == [1, 6, 1, 6]
    assert study.frame.columns.is_unique and len(study.summary()) == 4


# --- killed and resumed, from Python and from a file

SCRIPT = """import peerbayes as pb
from sklearn.datasets import load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import fbeta_score, make_scorer
X, y = load_wine(return_X_y=True)
study = pb.study(
    X, y, strategy=["exact", "crc"], seed=range(8), folder="FOLDER", peers=4, rows_per_peer=15, rounds=2, workers=1,
    baselines=["vote", LogisticRegression(C=0.1)], references=False,
    metrics={"auc": "auc", "f2": make_scorer(fbeta_score, beta=2.0, average="macro")},
)
print(study.markdown("test_f2"))
"""


def test_killed_with_baselines_the_same_numbers_come_out(tmp_path):
    paths = {}
    for name in ("whole", "cut"):
        paths[name] = tmp_path / f"{name}.py"
        paths[name].write_text(SCRIPT.replace("FOLDER", str(tmp_path / name)))
    results = tmp_path / "cut" / "results.sqlite"
    killed_while_it_runs(paths["cut"], results, 2)
    assert 2 <= len(Store(results).frame()) < 16
    said = {
        name: subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True).stdout
        for name, path in paths.items()
    }
    assert said["cut"] == said["whole"] and "vote-product" in said["cut"]
    one, other = (Study.load(tmp_path / name).frame for name in ("whole", "cut"))
    figures = [name for name in one.columns if "second" not in name]
    pd.testing.assert_frame_equal(one[figures], other[figures])


FILE = """
[study]
metric = "test_roc_auc_ovr"
learners = ["rc", "vote"]
spread_over_peers = true

[data]
name = "wine"

[simulation]
strategy = ["exact", "crc"]
seed = [0, 1]
peers = 4
rows_per_peer = 15
rounds = 3
baselines = ["vote", "logistic-regression"]
metrics = ["auc", "roc_auc_ovr"]
"""


def test_a_file_has_metrics_and_baselines(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(FILE)
    done = peerbayes("study", path, "--workers", 1, "--format", "markdown", code=0)
    assert (
        "| exact | crc | rc | vote |" in done.stdout
        and "In brackets is the standard deviation" in done.stdout
    )
    study = Study.load(tmp_path / "study")
    same = asked(
        (), dataset="wine", strategy=["exact", "crc"], seed=[0, 1], metrics=["auc", "roc_auc_ovr"],
        baselines=["vote", "logistic-regression"], engine=Here(),
    )  # fmt: skip
    assert study.frame["key"].tolist() == same.frame["key"].tolist()
    assert study.frame["test_roc_auc_ovr_vote"].tolist() == same.frame["test_roc_auc_ovr_vote"].tolist()
