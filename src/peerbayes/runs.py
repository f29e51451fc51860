"""What a simulation gives: every peer's model, its errors by round, and the references beside them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from peerbayes import files
from peerbayes.errors import ModelFileDamaged
from peerbayes.estimators import ESTIMATOR_OF
from peerbayes.families import Family
from peerbayes.schema import Schema
from peerbayes.statistics import Statistics

COLUMNS = ("round", "node", "train_error", "test_error", "soft_error", "disagreement", "bytes", "floored")
RUN_FILE = "run.peerbayes"


@dataclass(frozen=True)
class Run:
    """A finished simulation."""

    configuration: dict[str, Any]
    schema: Schema
    layout: Family
    stats: np.ndarray
    """[N, C, K] what each peer would predict with: statistics, or natural weights for strategies that learn those."""
    records: np.ndarray = field(repr=False)
    """[rows, 8] the history, in the order of `COLUMNS`."""
    references: dict[str, float]
    """Errors of RC and ML on the pooled rows."""
    sizes: np.ndarray = field(repr=False)
    """[N] rows of each peer."""
    of_weights: bool = False
    seconds: dict[str, float] = field(default_factory=dict, repr=False)
    """What the time was spent on: rounds, evaluation, references."""

    @property
    def history(self) -> Any:
        """A DataFrame with a row per evaluated round and peer."""
        return history_of(self.records)

    def summary(self) -> dict[str, float]:
        """Errors at the end: mean and standard deviation over peers, RC and ML beside them, and the gaps."""
        last = self.records[self.records[:, 0] == self.records[:, 0].max()]
        column = {name: last[:, place] for place, name in enumerate(COLUMNS)}
        told = {"rounds": float(last[0, 0]), "peers": float(len(last))}
        for kind in ("train", "test"):
            errors = column[f"{kind}_error"]
            told[f"{kind}_error"], told[f"{kind}_std"] = float(errors.mean()), float(errors.std())
            for reference in ("rc", "ml"):
                told[f"{kind}_{reference}"] = self.references[f"{kind}_{reference}"]
                told[f"{kind}_gap_{reference}"] = told[f"{kind}_error"] - told[f"{kind}_{reference}"]
        told["disagreement"] = float(column["disagreement"].mean())
        told["bytes_per_peer"] = float(column["bytes"].mean())
        told["floored"] = float(column["floored"].mean())
        told |= {f"seconds_{what}": seconds for what, seconds in self.seconds.items()}
        return told

    def classifier(self, node: int) -> Any:
        """The estimator of one peer."""
        if self.of_weights:
            raise ValueError(
                f"{self.configuration['strategy']} learns weights, not statistics: there is no generative classifier. "
                "Use predict_proba of another strategy, or run.stats[node] as softmax weights"
            )
        if not 0 <= node < len(self.stats):
            raise ValueError(f"node is {node}; expected 0 to {len(self.stats) - 1}")
        statistics = Statistics(self.stats[node], self.schema, self.layout, calibrated=True)
        return ESTIMATOR_OF[self.layout.name].from_statistics(statistics)

    def save(self, folder: str | Path) -> None:
        """Write the run to a folder; `Run.load` reads it."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        header = {
            "kind": "run",
            "configuration": self.configuration,
            "references": self.references,
            "of_weights": self.of_weights,
            "seconds": self.seconds,
            "schema": self.schema.to_json(),
            "family": {"name": self.layout.name, **self.layout.layout()},
        }
        arrays = {"stats": self.stats, "records": self.records, "sizes": self.sizes}
        files.write(target / RUN_FILE, files.pack(header, arrays))
        (target / "summary.json").write_text(json.dumps(self.summary(), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> Run:
        """Read a run that `save` wrote."""
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
                header["references"],
                arrays["sizes"].astype(np.int64),
                header["of_weights"],
                header.get("seconds", {}),
            )
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise ModelFileDamaged(f"{path} does not describe a run: {error!r}") from error


def history_of(records: np.ndarray) -> Any:
    """Records [rounds × peers, figures] as a DataFrame."""
    import pandas as pd

    frame = pd.DataFrame(records, columns=list(COLUMNS))
    return frame.astype(dict.fromkeys(("round", "node", "bytes", "floored"), np.int64))
