"""Fit of GA2M on a large table beside histogram gradient boosting and explainable boosting: time and memory.

    python benchmarks/ga2m_fit.py [--rows 100000] [--columns 20] [--turns 1] [--no-ebm]

Normal columns, two of which interact; one thread. Processor seconds of each fit, the lowest of the turns, as ratios to
GA2M; the steps of GA2M that take longest; and the most memory that a fit of GA2M holds beyond its input, beside the
size of the input. Explainable boosting is that of `interpret`, if it is installed.

Limit: memory below a quarter of the input.
"""

import argparse
import cProfile
import importlib.util
import pstats
import time
import warnings

import measuring  # one thread
import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier

from peerbayes import GA2M

MEMORY, SLOWEST = 0.25, 12


def table(rows: int, columns: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows whose log-odds add up over columns, but for one product."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, columns))
    log_odds = np.sin(2 * X[:, 0]) + X[:, 1] + 2 * X[:, 2] * X[:, 3]
    return X, (log_odds + rng.logistic(size=rows) > 0).astype(int)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--no-ebm", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    X, y = table(options.rows, options.columns)
    GA2M().fit(X[:2000], y[:2000])  # kernels are loaded
    models = {
        "GA2M": lambda: GA2M().fit(X, y),
        "histogram gradient boosting": lambda: HistGradientBoostingClassifier(random_state=0).fit(X, y),
    }
    if not options.no_ebm and importlib.util.find_spec("interpret") is not None:
        from interpret.glassbox import ExplainableBoostingClassifier

        models["explainable boosting"] = lambda: ExplainableBoostingClassifier(n_jobs=1).fit(X, y)
    seconds = measuring.side_by_side(*models.values(), turns=options.turns, clock=time.process_time)
    for name, taken in zip(models, seconds, strict=True):
        print(f"{name:<34}{taken:8.2f} s   {taken / seconds[0]:6.2f} × GA2M", flush=True)
    profile = cProfile.Profile()
    profile.runcall(models["GA2M"])
    pstats.Stats(profile).sort_stats("tottime").print_stats(SLOWEST)
    share = measuring.peak_extra(models["GA2M"]) / X.nbytes
    measuring.report("memory of a fit of GA2M / input", share, f"< {MEMORY}", share < MEMORY)
    return measuring.verdict()


if __name__ == "__main__":
    raise SystemExit(main())
