"""scikit-learn's own tests of naive Bayes and discriminant analysis, run against ours through one adapter.

scikit-learn ships its tests. Each module is executed with the names of the estimators that have a counterpart here
replaced by adapters, which translate parameters and nothing else. DIFFERENCES names the tests that fail, and why; one
that begins to pass must be taken off the list.
"""

import importlib.util
import inspect
import itertools
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
import sklearn
import sklearn.discriminant_analysis
import sklearn.naive_bayes
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin

import peerbayes as pb

ROOT = Path(__file__).parents[2]

# --- the adapter -------------------------------------------------------------------------------------------


class Adapter(ClassNamePrefixFeaturesOutMixin, ClassifierMixin, BaseEstimator):
    """An estimator with the parameters of scikit-learn's that does what ours does."""

    def translated(self, rows, classes):
        """Return our estimator for a table of this many rows and these classes."""
        raise NotImplementedError

    def table(self, X):
        """Return X as our estimator takes it."""
        return X

    def fit(self, X, y, sample_weight=None):
        self.model_ = self.translated(len(X), np.unique(y))
        self.model_.fit(self.table(X), y, sample_weight=sample_weight)
        return self

    def partial_fit(self, X, y, classes=None, sample_weight=None):
        if not hasattr(self, "model_"):
            self.model_ = self.translated(len(X), classes)
        self.model_.partial_fit(self.table(X), y, classes=classes, sample_weight=sample_weight)
        return self

    def predict(self, X):
        return self.model_.predict(self.table(X))

    def predict_proba(self, X):
        return self.model_.predict_proba(self.table(X))

    def predict_log_proba(self, X):
        return self.model_.predict_log_proba(self.table(X))

    def predict_joint_log_proba(self, X):
        return self.model_.predict_joint_log_proba(self.table(X))

    def __sklearn_tags__(self):
        return self.translated(1, [0, 1]).__sklearn_tags__()

    def __getattr__(self, name):  # everything that a fitted model has
        if name == "model_" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.model_, name)


def likelihood(estimator, **parameters):
    """Return our estimator by maximum likelihood, without clipping: with no more shrinkage than is asked for."""
    known = inspect.signature(estimator).parameters
    defaults = {"shrinkage": 0.0} if "shrinkage" in known and parameters.get("shrinkage") is None else {}
    return estimator(clip=None, **{**parameters, **defaults})


class GaussianNB(Adapter):
    def __init__(self, *, priors=None, var_smoothing=1e-9):
        self.priors, self.var_smoothing = priors, var_smoothing

    def translated(self, rows, classes):
        return likelihood(
            pb.MixedNB, kinds="continuous", priors=self.priors, variance_floor=self.var_smoothing
        )


class CategoricalNB(Adapter):
    """Its columns are codes 0, 1, …: all up to the highest are categories."""

    def __init__(self, *, alpha=1.0, force_alpha=True, fit_prior=True, class_prior=None, min_categories=None):
        self.alpha, self.force_alpha, self.fit_prior = alpha, force_alpha, fit_prior
        self.class_prior, self.min_categories = class_prior, min_categories

    def translated(self, rows, classes):
        uniform = None if self.fit_prior or classes is None else np.full(len(classes), 1 / len(classes))
        priors = uniform if self.class_prior is None else self.class_prior
        return likelihood(pb.MixedNB, kinds="discrete", alpha=self.alpha, priors=priors)

    def table(self, X):
        codes = np.asarray(X).astype(int)
        least = np.broadcast_to(0 if self.min_categories is None else self.min_categories, codes.shape[1:])
        return pd.DataFrame(
            {
                f"x{j}": pd.Categorical(codes[:, j], range(max(least[j], codes[:, j].max() + 1)))
                for j in range(codes.shape[1])
            }
        )


def rows_of_identity(share, rows):
    """Return our shrinkage, in rows, for scikit-learn's, a share from 0 to 1."""
    return share if share is None or isinstance(share, str) else share / (1 - share) * rows


class LinearDiscriminantAnalysis(Adapter):
    def __init__(
        self,
        solver="svd",
        shrinkage=None,
        priors=None,
        n_components=None,
        store_covariance=False,
        tol=1e-4,
        covariance_estimator=None,
    ):
        self.solver, self.shrinkage, self.priors, self.n_components = solver, shrinkage, priors, n_components
        self.store_covariance, self.tol, self.covariance_estimator = (
            store_covariance,
            tol,
            covariance_estimator,
        )

    def translated(self, rows, classes):
        assert self.covariance_estimator is None, "there is no such parameter"
        return likelihood(
            pb.LDA,
            kinds="continuous",
            priors=self.priors,
            n_components=self.n_components,
            shrinkage=rows_of_identity(self.shrinkage, rows),
        )


class QuadraticDiscriminantAnalysis(Adapter):
    def __init__(
        self,
        *,
        solver="svd",
        shrinkage=None,
        priors=None,
        reg_param=0.0,
        store_covariance=False,
        tol=1e-4,
        covariance_estimator=None,
    ):
        self.solver, self.shrinkage, self.priors, self.reg_param = solver, shrinkage, priors, reg_param
        self.store_covariance, self.tol, self.covariance_estimator = (
            store_covariance,
            tol,
            covariance_estimator,
        )

    def translated(self, rows, classes):
        assert self.covariance_estimator is None, "there is no such parameter"
        share = self.reg_param if self.shrinkage is None else self.shrinkage
        shrinkage = rows_of_identity(share, rows / len(classes))
        return likelihood(pb.QDA, kinds="continuous", priors=self.priors, shrinkage=shrinkage)


# --- scikit-learn's tests ----------------------------------------------------------------------------------

MODULES = {
    "test_naive_bayes": (sklearn.naive_bayes, [GaussianNB, CategoricalNB]),
    "test_discriminant_analysis": (
        sklearn.discriminant_analysis,
        [LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis],
    ),
}
ADAPTERS = {adapter for _, adapters in MODULES.values() for adapter in adapters}
NAMES = {adapter.__name__ for adapter in ADAPTERS}
FIXTURES = {"global_random_seed": 42, "global_dtype": np.float64}  # as scikit-learn has them by default


def module_of(name):
    """Return a module of scikit-learn's tests, executed with our estimators; None where it is not shipped."""
    try:
        spec = importlib.util.find_spec(f"sklearn.tests.{name}")
    except ModuleNotFoundError:
        return None
    if spec is None:
        return None
    owner, adapters = MODULES[name]
    module = importlib.util.module_from_spec(
        importlib.util.spec_from_file_location(f"our_{name}", spec.origin)
    )
    with patch.multiple(owner, **{adapter.__name__: adapter for adapter in adapters}):
        module.__spec__.loader.exec_module(module)
    return module


def cases_of(module):
    """Yield (id, function, arguments) of every test of a module, for every value of its parameters."""
    for name, function in vars(module).items():
        if not name.startswith("test_"):
            continue
        marks = [mark for mark in getattr(function, "pytestmark", []) if mark.name == "parametrize"]
        for choice in itertools.product(*(enumerate(mark.args[1]) for mark in marks)):
            arguments, words = {}, []
            for mark, (index, values) in zip(marks, choice, strict=True):
                names = [word.strip() for word in mark.args[0].split(",")]
                values = getattr(values, "values", values)  # of pytest.param
                arguments |= dict(zip(names, [values] if len(names) == 1 else values, strict=True))
                words.append(word_of(names[0], values, index))
            wanted = function.__code__.co_varnames[: function.__code__.co_argcount]
            arguments |= {fixture: FIXTURES[fixture] for fixture in wanted if fixture not in arguments}
            yield f"{name}[{'-'.join(words)}]" if words else name, function, arguments


def word_of(name, value, index):
    """Return a parameter's value as a word of a test's name."""
    plain = isinstance(value, str | int | float | type)
    return getattr(value, "__name__", str(value)) if plain else f"{name}{index}"


def uses_ours(function, arguments):
    """Whether a test uses an estimator that has a counterpart here."""
    classes = {
        value for value in arguments.values() if isinstance(value, type) and issubclass(value, BaseEstimator)
    }
    return bool(classes & ADAPTERS) if classes else bool(NAMES & set(function.__code__.co_names))


# --- where ours differ, and why ----------------------------------------------------------------------------

WRITTEN_FOR = "1.9"  # whose tests these are

DIFFERENCES = {
    "There is one way to compute a model, so no `solver` is refused together with other parameters.": [
        "test_lda_predict",
        "test_lda_transform",
        "test_qda_covariance_estimator",
    ],
    "Covariances come from sums over rows, which several parties can add up: there is no `covariance_estimator`.": [
        *(f"test_lda_shrinkage[{seed}]" for seed in range(10)),
        "test_lda_ledoitwolf",
        "test_qda_ledoitwolf",
    ],
    "`shrinkage` is a number of rows that is added, or 'auto'; scikit-learn's is a share.": [
        "test_qda_shrinkage_performance[svd-100-25]",
        "test_qda_shrinkage_performance[eigen-100-25]",
    ],
    "`covariance_` is computed when it is read, so it is always there.": [
        "test_lda_store_covariance",
        "test_qda_store_covariance[svd]",
        "test_qda_store_covariance[eigen]",
    ],
    "Statistics are float64, whatever the type of the table.": ["test_lda_dtype_match[data_type0]"],
    "Classes of one row and singular covariances are warned of, not refused: a peer may have such rows.": [
        "test_qda[svd]",
        "test_qda[eigen]",
        "test_qda_regularization[svd]",
        "test_qda_regularization[eigen]",
        *(
            f"test_raises_value_error_on_same_number_of_classes_and_samples[{solver}]"
            for solver in ("svd", "lsqr", "eigen")
        ),
        "test_raises_value_error_on_one_sample_per_class[svd]",
        "test_raises_value_error_on_one_sample_per_class[eigen]",
    ],
    "A model of a single class is refused: it has nothing to decide.": [
        "test_gnb_sample_weight",
        "test_discretenb_degenerate_one_class_case[True-False-CategoricalNB]",
        "test_discretenb_degenerate_one_class_case[True-True-CategoricalNB]",
    ],
    "`priors` that do not add up to 1 are refused, as by `GaussianNB`, not normalised.": ["test_lda_priors"],
    "Any values are categories, negative numbers too; a schema names those that do not occur, not `min_categories`.": [
        "test_categoricalnb",
        "test_categoricalnb_min_categories_errors[min_categories0]",
    ],
    "`alpha=0` needs no warning: probabilities have a floor of their own.": [
        "test_alpha[csr_matrix]",
        "test_alpha[csr_array]",
    ],
    "After an error an estimator is what it was before; the test expects half of a fit.": [
        "test_discretenb_provide_prior[CategoricalNB]"
    ],
    "`variance_floor` is a share of a column's own variance, `var_smoothing` of the largest of all columns.": [
        "test_check_accuracy_on_digits"
    ],
    "The error is the same, in other words.": ["test_gnb"],
    "It tests a function inside scikit-learn.": ["test_gnb_check_update_with_no_data"],
}
REASONS = {name: reason for reason, names in DIFFERENCES.items() for name in names}

ALL = [case for name in MODULES if (module := module_of(name)) is not None for case in cases_of(module)]
OTHER_ARRAYS = [
    case for case in ALL if "array_api" in case[0]
]  # scikit-learn skips them unless SCIPY_ARRAY_API is set
OURS = [case for case in ALL if uses_ours(*case[1:]) and case not in OTHER_ARRAYS]

pytestmark = [
    pytest.mark.skipif(not ALL, reason="this scikit-learn comes without its tests"),
    pytest.mark.skipif(
        not sklearn.__version__.startswith(f"{WRITTEN_FOR}."),
        reason=f"differences are listed for the tests of scikit-learn {WRITTEN_FOR}; this is {sklearn.__version__}",
    ),
]


def listed(name, function, arguments):
    """Return a test of scikit-learn as one of ours, which must fail if it is on the list."""
    marks = [pytest.mark.xfail(strict=True, reason=REASONS[name])] if name in REASONS else []
    return pytest.param(function, arguments, id=name, marks=marks)


@pytest.fixture
def seeded():
    """NumPy's global generator, which one of the tests uses."""
    before = np.random.get_state()  # noqa: NPY002
    np.random.seed(42)  # noqa: NPY002
    yield
    np.random.set_state(before)  # noqa: NPY002


@pytest.mark.filterwarnings("ignore")  # as scikit-learn runs them; those that expect a warning catch it
@pytest.mark.parametrize(("function", "arguments"), [listed(*case) for case in OURS])
def test_as_scikit_learn_expects(function, arguments, seeded):
    function(**arguments)


def test_every_difference_and_the_counts_are_in_the_docs():
    page = (ROOT / "docs" / "scikit-learn.md").read_text(encoding="utf-8")
    names = {name for name, *_ in OURS}
    assert set(REASONS) <= names
    for reason, tests in DIFFERENCES.items():
        (line,) = [line for line in page.splitlines() if f"| {reason} |" in line]
        assert [word.strip("`") for word in line.split("|")[2].replace(",", " ").split()] == sorted(
            {test.partition("[")[0] for test in tests}
        )
    assert len(names) == len(OURS)
    assert (
        f"Of {len(ALL)} tests {len(OURS)} are about models that we have: {len(OURS) - len(REASONS)} pass and "
        f"{len(REASONS)} do not" in " ".join(page.split())
    )
    assert f"{len(OTHER_ARRAYS)} are about arrays of other libraries" in " ".join(page.split())
