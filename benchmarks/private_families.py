"""Richer families with differential privacy, beside naive Bayes with the same ε: 50 × 320 peers, δ = 1e-5, `exact`.

    PEERBAYES_DATA=folder python benchmarks/private_families.py [dataset ...] [--seeds 0,1,2] [--epsilons 1,4,16]

Error and log loss (of five peers) on up to 5,000 rows that no peer holds, means over the seeds, on the network
tree+80. Columns as in the paper; `on bins` and GA2M have numbers in bins, with noise 8 whose edges follow from mean and
deviation alone. Structure `declared`: the one that peers without privacy learn from the same rows, as if it had been
known; `released`: learned with a twentieth of the budget. TAN and KDB have the penalty "bic". Without privacy GA2M has
the start `marginal`, all others `uniform`.
"""

import argparse
import warnings
from typing import Any

import measuring  # noqa: F401  one thread
import numpy as np
import pandas as pd

import peerbayes as pb
from peerbayes.experiments.cells import prepared
from peerbayes.model.layout import named_parents
from peerbayes.privacy.pair_tables import MOST_CROSSES

PEERS, ROWS, TEST_ROWS, JUDGED = 50, 320, 5000, 5

# name: family, whether numbers are in bins, further settings
MODELS: dict[str, tuple[str, bool, dict[str, Any]]] = {
    "naive Bayes": ("naive-bayes", False, {}),
    "naive Bayes on bins": ("naive-bayes", True, {}),
    "TAN": ("tan", False, {"penalty": "bic"}),
    "KDB": ("kdb", False, {"penalty": "bic"}),
    "GA2M": ("ga2m", True, {}),
}


def simulated(dataset: str, seed: int, model: str, epsilon: float | None, structure: Any = None) -> pb.Run:
    """Return the run of one cell; `structure`: the declared one."""
    data = prepared(dataset)
    (X, y), (test, truth) = data.split(PEERS * ROWS, seed)
    X, test = (pd.DataFrame(rows, columns=list(data.schema.names)) for rows in (X, test))
    family, binned, settings = MODELS[model]
    kinds = {column.name: column.kind for column in data.schema.columns}
    if binned:
        kinds = {name: "binned" if kind == "continuous" else kind for name, kind in kinds.items()}
    if family == "ga2m" and epsilon is None:
        settings = {**settings, "start": "marginal"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pb.simulate(
            X, np.asarray(y), family=family, kinds=kinds, peers=PEERS, rows_per_peer=ROWS, topology="tree+80",
            strategy="exact", privacy=None if epsilon is None else pb.Privacy(epsilon, 1e-5), structure=structure,
            test=(test[:TEST_ROWS], np.asarray(truth)[:TEST_ROWS]), evaluate_every=0, references=False, seed=seed,
            **settings,
        )  # fmt: skip


def figures(run: pb.Run, dataset: str, seed: int) -> tuple[float, float]:
    """Return error and log loss on the test rows."""
    data = prepared(dataset)
    _, (test, truth) = data.split(PEERS * ROWS, seed)
    rows = test[:TEST_ROWS]
    losses = []
    for peer in range(JUDGED):
        model = run.classifier(peer)
        labels = np.searchsorted(model.classes_, np.asarray(truth)[:TEST_ROWS])
        losses.append(-model.predict_log_proba(rows)[np.arange(len(rows)), labels].mean())
    return float(run.summary()["test_error"]), float(np.mean(losses))


def structure_of(run: pb.Run) -> list[list[str]] | None:
    """Return the pairs of columns that a run linked or crossed, as a setting; None: its family has none."""
    if run.schema.crosses:
        return [list(cross.columns) for cross in run.schema.crosses[:MOST_CROSSES]]
    if not hasattr(run.layout, "parents"):
        return None
    parents = named_parents(run.layout, run.schema)
    return [[parent, child] for child, of_child in parents.items() for parent in of_child]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("datasets", nargs="*", default=["adult", "pulsar"])
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--epsilons", default="1,4,16")
    parser.add_argument("--models", default=",".join(MODELS))
    asked = parser.parse_args()
    seeds, epsilons = (
        [int(seed) for seed in asked.seeds.split(",")],
        [float(e) for e in asked.epsilons.split(",")],
    )
    print("| dataset | model | structure | no noise |", " | ".join(f"ε = {e:g}" for e in epsilons), "|")
    print("|---|---|---|---|" + "---|" * len(epsilons))
    for dataset in asked.datasets:
        for model in asked.models.split(","):
            plain = {seed: simulated(dataset, seed, model, None) for seed in seeds}
            known = {seed: structure_of(run) for seed, run in plain.items()}
            cells = [figures(run, dataset, seed) for seed, run in plain.items()]
            without, kinds = shown(cells), ["–"] if known[seeds[0]] is None else ["declared", "released"]
            for kind in kinds:
                entries = []
                for epsilon in epsilons:
                    runs = {
                        seed: simulated(
                            dataset, seed, model, epsilon, known[seed] if kind == "declared" else None
                        )
                        for seed in seeds
                    }
                    entries.append(shown([figures(run, dataset, seed) for seed, run in runs.items()]))
                print(f"| {dataset} | {model} | {kind} | {without} |", " | ".join(entries), "|", flush=True)


def shown(cells: list[tuple[float, float]]) -> str:
    """Return the means of error and log loss as text."""
    error, loss = np.mean(cells, axis=0)
    return f"{error:.4f}, {loss:.3f}"


if __name__ == "__main__":
    main()
