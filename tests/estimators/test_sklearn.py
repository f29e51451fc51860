"""scikit-learn's own checks, for every estimator."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import peerbayes as pb
from peerbayes.estimators.classifiers import KDB, TAN, BayesNetClassifier

ESTIMATORS = [
    estimator(calibrate=calibrate)
    for estimator in (pb.MixedNB, pb.QDA, pb.LDA, TAN, KDB, BayesNetClassifier, pb.AODE)
    for calibrate in (False, True)
]
ESTIMATORS += [pb.GA2M(), pb.AutoBayes(families=("naive-bayes",))]


@pytest.mark.filterwarnings("ignore::peerbayes.errors.SingularDataWarning")  # the checks' data are few rows
@parametrize_with_checks(ESTIMATORS)
def test_estimator_check(estimator, check):
    check(estimator)
