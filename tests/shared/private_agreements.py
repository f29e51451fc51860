"""A table whose columns everybody may know, and agreements with differential privacy about it."""

import numpy as np
from sklearn.datasets import load_breast_cancer

from peerbayes.peer.agreement.column_facts import Facts
from peerbayes.peer.agreement.terms import Privacy, Terms

ROUNDS = 12


def cancer():
    """Six columns of scikit-learn's breast cancer, one more that is discrete, and the diagnosis."""
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    X = X.iloc[:, :6].rename(columns=lambda name: name.replace(" ", "-"))
    X["large"] = np.where(X["mean-area"] > 800, "yes", "no")
    return X, np.array(["malignant", "benign"])[y.to_numpy()]


X, Y = cancer()


def facts_of(bought=False):
    """What everybody might know of the columns."""
    known = {"large": Facts(categories=("no", "yes"))}
    for name in X.columns[:-1]:
        centre, spread = float(X[name].mean()), float(X[name].std())
        known[name] = Facts(range=(0.0, float(1.2 * X[name].max()))) if bought else Facts(centre, spread)
    return known


def terms(bought=False, **more):
    privacy = {"epsilon": 4.0, "rows": None if bought else 90.0} | more.pop("privacy", {})
    kinds = {name: "discrete" if name == "large" else "continuous" for name in X}
    given = {
        "facts": facts_of(bought),
        "classes": ("benign", "malignant"),
        "rounds": ROUNDS,
        "strategy": "exact",
    } | more
    return Terms("test", "diagnosis", kinds, privacy=Privacy(**privacy), **given)
