"""What a simulation gives: every peer's model, its errors by round, and the references beside them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from peerbayes import files
from peerbayes.errors import ModelFileDamaged
from peerbayes.families import Family
from peerbayes.metrics import Outcome
from peerbayes.schema import Schema
from peerbayes.statistics import Statistics

COLUMNS = ("round", "node", "train_error", "test_error", "soft_error", "disagreement", "bytes", "floored")
REFERENCES = tuple(f"{kind}_{who}" for who in ("rc", "ml", "local") for kind in ("train", "test"))
SPENT = ("sigma", "rounds", "epsilon", "delta", "rho")
RUN_FILE = "run.peerbayes"
LIVE_FILE = "live.sqlite"  # what a simulation writes while it goes on


@dataclass(frozen=True)
class Run:
    """A finished simulation."""

    configuration: dict[str, Any]
    """The settings it was made with."""
    schema: Schema
    """What columns and classes are, in the units of the peers' rows."""
    layout: Family
    """The family, as it lies in `stats`."""
    stats: np.ndarray
    """[N, C, K] what each peer would predict with: statistics, or natural weights for strategies that learn those."""
    records: np.ndarray = field(repr=False)
    """[rows, 8] the history, in the order of `COLUMNS`."""
    references: dict[str, float]
    """Errors of RC and ML on the pooled rows, and the mean error of peers alone (strategy "local")."""
    sizes: np.ndarray = field(repr=False)
    """[N] rows of each peer."""
    of_weights: bool = False
    """Whether the strategy learned natural weights, and no statistics."""
    seconds: dict[str, float] = field(default_factory=dict, repr=False)
    """What the time was spent on: rounds, evaluation, references."""
    links: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64), repr=False)
    """[E, 2] who was linked with whom in the last round, each pair once; absent peers are there, too."""
    outcomes: dict[str, Outcome] = field(default_factory=dict, repr=False)
    """What predictions at the end look like: of "peers" and, with references, of "rc" and "ml"."""
    made: dict[str, str] = field(default_factory=dict, repr=False)
    """When, and by which versions."""
    spent: np.ndarray = field(default_factory=lambda: np.zeros((0, 5)), repr=False)
    """[N, 5] what each peer spent of its privacy, in the order of `SPENT`; no rows without privacy."""
    attackers: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64), repr=False)
    """Peers that lied; what is told of peers is told of the others."""
    rejected: dict[str, int] = field(default_factory=dict, repr=False)
    """Messages that receivers refused, by what they broke; empty where nothing was checked (no robust, no attack)."""

    @property
    def history(self) -> Any:
        """A DataFrame with a row per evaluated round and honest peer."""
        return history_of(self._honest)

    @property
    def _honest(self) -> np.ndarray:
        """The records of peers that did not lie."""
        return self.records[~np.isin(self.records[:, 1], self.attackers)]

    @property
    def privacy(self) -> Any:
        """A DataFrame with a row per peer: sigma of its noise, rounds released, epsilon spent, delta, and rho.

        Without privacy it has no rows.
        """
        import pandas as pd

        frame = pd.DataFrame(self.spent, columns=list(SPENT)).astype({"rounds": np.int64})
        return frame.rename_axis("node")

    def summary(self) -> dict[str, float]:
        """Errors at the end: mean and standard deviation over honest peers, RC and ML beside them, and the gaps.

        What was not computed is NaN: test errors without test rows, references without `references`.
        With privacy, also the largest epsilon that a peer spent. In an attacked run, RC and ML are of the honest peers'
        rows, `attackers` says how many lied, and `rejected` how many messages were refused.
        """
        records = self._honest
        last = records[records[:, 0] == records[:, 0].max()]
        column = {name: last[:, place] for place, name in enumerate(COLUMNS)}
        told = {"rounds": float(last[0, 0]), "peers": float(len(last))}
        for kind in ("train", "test"):
            errors = column[f"{kind}_error"]
            told[f"{kind}_error"], told[f"{kind}_std"] = float(errors.mean()), float(errors.std())
            for reference in ("rc", "ml", "local"):
                told[f"{kind}_{reference}"] = self.references.get(f"{kind}_{reference}", math.nan)
                told[f"{kind}_gap_{reference}"] = told[f"{kind}_error"] - told[f"{kind}_{reference}"]
        told["disagreement"] = float(column["disagreement"].mean())
        told["bytes_per_peer"] = float(column["bytes"].mean())
        told["floored"] = float(column["floored"].mean())
        if len(self.spent):
            told["epsilon"] = float(self.spent[:, SPENT.index("epsilon")].max())
        if self.rejected:
            told |= {"attackers": float(self.attackers.size), "rejected": float(sum(self.rejected.values()))}
        told |= {f"seconds_{what}": seconds for what, seconds in self.seconds.items()}
        return told

    def classifier(self, node: int) -> Any:
        """The estimator of the peer `node`, counted from 0."""
        if self.of_weights:
            raise ValueError(
                f"{self.configuration['strategy']} learns weights, not statistics: there is no generative classifier. "
                "Use predict_proba of another strategy, or run.stats[node] as softmax weights"
            )
        if not 0 <= node < len(self.stats):
            raise ValueError(f"node is {node}; expected 0 to {len(self.stats) - 1}")
        from peerbayes.estimators import ESTIMATOR_OF  # here, so that a dashboard need not load scikit-learn

        return ESTIMATOR_OF[self.layout.name].from_statistics(self.statistics(node))

    def statistics(self, node: int) -> Statistics:
        """What the peer `node` would predict with, and what its numbers mean."""
        return Statistics.of_model(self.stats[node], self.schema, self.layout, float(self.sizes.sum()))

    def report(self, path: str | Path) -> Path:
        """Write one HTML page to `path` that shows everything, and opens without a network; the extra `report`."""
        from importlib import import_module

        return Path(import_module("peerbayes.report").write(path, [self]))  # a call upwards

    def save(self, folder: str | Path) -> None:
        """Write the run to a folder, where it takes the place of what was written live; `Run.load` reads it."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        header = {
            "kind": "run",
            "configuration": self.configuration,
            "references": {name: value for name, value in self.references.items() if math.isfinite(value)},
            "made": self.made,
            "of_weights": self.of_weights,
            "seconds": self.seconds,
            "rejected": self.rejected,
            "schema": self.schema.to_json(),
            "family": {"name": self.layout.name, **self.layout.layout()},
        }
        arrays = {"stats": self.stats, "records": self.records, "sizes": self.sizes, "links": self.links}
        if len(self.spent):
            arrays["spent"] = self.spent
        arrays["attackers"] = self.attackers
        for who, outcome in self.outcomes.items():
            arrays |= {f"confusion {who}": outcome.confusion, f"reliability {who}": outcome.reliability}
        files.write(target / RUN_FILE, files.pack(header, arrays))
        summary = json.dumps(as_json(self.summary()), indent=2, allow_nan=False)
        (target / "summary.json").write_text(summary + "\n", encoding="utf-8")
        forget_live(target)

    @classmethod
    def load(cls, folder: str | Path) -> Run:
        """Read a run that `save` wrote to `folder`."""
        path = Path(folder) / RUN_FILE
        header, arrays = files.unpack(path.read_bytes(), path)
        try:
            first = {"schema": header["schema"], "family": header["family"], "calibrated": True}
            layout = Statistics.restored(first, arrays["stats"][0]).family
            return cls(
                header["configuration"],
                Schema.from_json(header["schema"]),
                layout,
                arrays["stats"],
                arrays["records"],
                {**dict.fromkeys(REFERENCES, math.nan), **header["references"]},
                arrays["sizes"].astype(np.int64),
                header["of_weights"],
                header.get("seconds", {}),
                arrays.get("links", np.zeros((0, 2))).astype(np.int64),
                {
                    name.removeprefix("confusion "): Outcome(
                        confusion, arrays[name.replace("confusion", "reliability", 1)]
                    )
                    for name, confusion in arrays.items()
                    if name.startswith("confusion ")
                },
                header.get("made", {}),
                arrays.get("spent", np.zeros((0, 5))),
                arrays.get("attackers", np.zeros(0)).astype(np.int64),
                header.get("rejected", {}),
            )
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise ModelFileDamaged(f"{path} does not describe a run: {error!r}") from error


def as_json(summary: dict[str, float]) -> dict[str, float | None]:
    """A summary as JSON can hold it: what was not computed is null."""
    return {name: value if math.isfinite(value) else None for name, value in summary.items()}


def forget_live(folder: Path) -> None:
    """Remove what a simulation wrote while it went on."""
    for end in ("", "-wal", "-shm"):
        (folder / f"{LIVE_FILE}{end}").unlink(missing_ok=True)


def record(turn: int, figures: np.ndarray, sent: np.ndarray) -> np.ndarray:
    """A row for each peer after a round, in the order of `COLUMNS`: `metrics.judged` [5, N], bytes [N] -> [N, 8]."""
    nodes = sent.size
    return np.stack([np.full(nodes, float(turn)), np.arange(nodes), *figures[:4], sent, figures[4]], 1)


def history_of(records: np.ndarray) -> Any:
    """Records [rounds × peers, figures] as a DataFrame."""
    import pandas as pd

    frame = pd.DataFrame(records, columns=list(COLUMNS))
    return frame.astype(dict.fromkeys(("round", "node", "bytes", "floored"), np.int64))
