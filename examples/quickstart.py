"""Three hospitals, one classifier: each keeps its rows and shares only a small matrix of statistics.

    python examples/quickstart.py

Breast cancer data bundled with scikit-learn, cut into three unequal hospitals. Runs in a few seconds, offline.
"""

import tempfile
from pathlib import Path

from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

import peerbayes as pb

X, y = load_breast_cancer(return_X_y=True, as_frame=True)
X, y = X.iloc[:, :10], y.map({0: "malignant", 1: "benign"}).to_numpy()
X, X_test, y, y_test = train_test_split(X, y, test_size=0.4, random_state=0, stratify=y)
hospitals = {"North": slice(0, 30), "East": slice(30, 110), "South": slice(110, None)}


def error(model: pb.MixedNB) -> str:
    return f"{1 - model.score(X_test, y_test):6.3f}"


print(
    f"{len(X)} patients in three hospitals, {X.shape[1]} measurements; test error on {len(X_test)} others:\n"
)

shared = []
for name, rows in hospitals.items():
    own = pb.MixedNB().fit(X[rows], y[rows])
    shared.append(own.statistics_)
    count, kept = len(X[rows]), own.statistics_.values
    print(
        f"  {name:<6} alone, {count:>3} patients              {error(own)}   shares {kept.size} numbers, no row"
    )

together = pb.MixedNB.from_statistics(sum(shared))
pooled = pb.MixedNB().fit(X, y)
calibrated = pb.MixedNB(calibrate=True, start="ml").fit(X, y)
print(f"\n  statistics added up                     {error(together)}")
print(f"  rows pooled, maximum likelihood         {error(pooled)}   the same model, without moving a row")
print(f"  rows pooled, risk-based calibration     {error(calibrated)}   what peers will reach together\n")

patient = X_test.iloc[[0]]
verdict, sure = together.predict(patient)[0], together.predict_proba(patient).max()
print(f"Why is the first test patient {verdict} ({sure:.1%})? Contributions to the log-odds:\n")
print(together.explain(patient)[["feature", "value", "log_odds"]].head(6).to_string(index=False))

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "model.peerbayes"
    together.save(path)
    loaded = pb.load(path)
    same = (loaded.predict(X_test) == together.predict(X_test)).all()
    print(f"\nSaved to a file of {path.stat().st_size:,} bytes and read back: predictions equal: {same}")
