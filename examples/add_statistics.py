"""Statistics add across files: each party sends a few kilobytes once, and everybody has the model of all rows.

    python examples/add_statistics.py

No rounds and no network: this is maximum likelihood. Categories, order of columns and units may differ between parties.
"""

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

import peerbayes as pb

rng = np.random.default_rng(0)
ill = rng.random(900) < 0.4
rows = pd.DataFrame(
    {
        "age": rng.normal(50 + 12 * ill, 9),
        "pressure": rng.normal(125 + 10 * ill, 12),
        "smoker": np.where(rng.random(900) < 0.25 + 0.3 * ill, "yes", "no"),
        "town": rng.choice(["Ulm", "Graz", "Basel"], 900),
        "state": np.where(ill, "ill", "well"),
    }
)
rows.loc[::9, "pressure"] = np.nan

with tempfile.TemporaryDirectory() as folder:
    # What each party does at home; the second has other columns first, and knows one town less.
    parts = {
        "north": rows[:200],
        "east": rows[200:500].query("town != 'Ulm'").iloc[:, ::-1],
        "south": rows[500:],
    }
    for name, part in parts.items():
        own = pb.MixedNB().fit(part.drop(columns="state"), part["state"])
        (Path(folder) / f"{name}.statistics").write_bytes(own.statistics_.to_bytes())

    # What anybody can do with the files.
    files = sorted(Path(folder).iterdir())
    each = [pb.Statistics.from_bytes(file.read_bytes()) for file in files]
    together = pb.MixedNB.from_statistics(sum(each))
    for file, statistics in zip(files, each, strict=True):
        print(f"{file.name:<18} {file.stat().st_size:,} bytes for {statistics.rows:.0f} rows")

pooled = pd.concat(parts.values())
X, y = pooled.drop(columns="state"), pooled["state"]
same = pb.MixedNB().fit(X, y)
apart = np.abs(together.predict_proba(X) - same.predict_proba(X)).max()
print(f"\nAdded up, or fitted on the pooled rows: probabilities differ by at most {apart:.0e}")
print(
    together.describe()
    .query("feature == 'age'")[["feature", "class", "mean", "deviation"]]
    .to_string(index=False)
)

without = pb.MixedNB.from_statistics(sum(each) - each[0])  # east takes its rows back
print(f"\nWithout {files[0].stem}: {without.statistics_.rows:.0f} rows are left in the model")
