"""The result of a simulation: history, statistics, references, and the versions that made it."""

from __future__ import annotations

import hashlib
import json
import math
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from peerbayes.data import files
from peerbayes.data.schema import Schema
from peerbayes.errors import ModelFileDamaged
from peerbayes.learning.family_choice import FamilyChoice
from peerbayes.learning.few_bytes import exchange_count
from peerbayes.learning.metrics import Outcome
from peerbayes.model.families import Family
from peerbayes.model.scaling import Scaling
from peerbayes.model.sources import Observed
from peerbayes.model.statistics import Statistics, describe_family
from peerbayes.simulation.histograms import Histograms
from peerbayes.simulation.notes import missing_figures
from peerbayes.simulation.old_names import from_stored, refuse_old_names, to_stored
from peerbayes.simulation.overview import as_html, as_text
from peerbayes.simulation.places import relative_paths
from peerbayes.simulation.provenance import Provenance
from peerbayes.simulation.recipe import toml_of
from peerbayes.simulation.records import COLUMNS, counted, history_of
from peerbayes.simulation.saved_rows import RunRows, forget_rows
from peerbayes.simulation.scores import Scores

# --- the provenance of a result: the version and commit of this package, and the versions of its dependencies

CHANGED = " changed"  # ends the version of code with uncommitted changes
STANDS_ON = ("numpy", "scipy", "scikit-learn", "pandas")


@cache
def code_version() -> str:
    """Return the version of this package and, in a repository, the commit."""
    root = Path(__file__).parents[3]
    try:
        head = _git(root, "rev-parse", "--short=12", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", "src")
    except (OSError, subprocess.CalledProcessError):
        return version("peerbayes")
    return f"{version('peerbayes')} {head}{CHANGED if changed else ''}"


def made() -> dict[str, str]:
    """Return the time and the versions that a run is made with."""
    return {
        "began": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "peerbayes": code_version(),
        "python": platform.python_version(),
        **{name: version(name) for name in STANDS_ON},
    }


def _git(root: Path, *arguments: str) -> str:
    process = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    return process.stdout.strip()


# --- the result of a simulation: every peer's model, its errors by round, and reference errors

LEARNERS = (
    "rc",
    "rc_end",
    "ml",
    "local",
)  # RC after as many steps as rounds, RC taken to its end, ML; and peers alone
REFERENCES = tuple(f"{kind}_{who}" for who in LEARNERS for kind in ("train", "test"))
SITE_COLUMNS = ("rows", "error", "log_loss", "auc", "auc_low", "auc_high", "brier", "calibration")
SPENT = ("sigma", "rounds", "epsilon", "delta", "rho")
RUN_FILE = "run.peerbayes"
RECIPE_FILE = "run.toml"  # the settings of a saved run, as `peerbayes simulate` reads them
LIVE_FILE = "live.sqlite"  # written while a simulation runs


@dataclass(frozen=True, repr=False, eq=False)  # two runs are compared by their digests
class Run:
    """A finished simulation."""

    configuration: dict[str, Any]
    """The settings of the simulation."""
    schema: Schema
    """Columns and classes, in the units of the peers' rows."""
    layout: Family
    """The family, with the layout of `stats`."""
    stats: np.ndarray
    """[N, C, K] each peer's model: statistics, or natural weights for strategies that learn those."""
    records: np.ndarray = field(repr=False)
    """[rows, 8] the history, in the order of `COLUMNS`."""
    references: dict[str, float]
    """Errors of RC and ML on the pooled rows, and the mean error of peers alone (strategy "local")."""
    sizes: np.ndarray = field(repr=False)
    """[N] rows of each peer."""
    of_weights: bool = False
    """Whether the strategy learned natural weights instead of statistics."""
    seconds: dict[str, float] = field(default_factory=dict, repr=False)
    """Time by activity: rounds, evaluation (with callbacks and live files), references."""
    links: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64), repr=False)
    """[E, 2] the links of the last round, each pair once, absent peers included."""
    outcomes: dict[str, Outcome] = field(default_factory=dict, repr=False)
    """Confusion matrix and reliability at the end: of "peers" and, with references, of "rc" and "ml".

    With a `scaling` also of the peers' "unscaled" models."""
    made: dict[str, str] = field(default_factory=dict, repr=False)
    """When the run was made, with which versions, and why a strategy ("choice") and a family ("family choice") were
    chosen, where they were."""
    spent: np.ndarray = field(default_factory=lambda: np.zeros((0, 5)), repr=False)
    """[N, 5] each peer's privacy spending, in the order of `SPENT`; no rows without privacy."""
    attackers: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64), repr=False)
    """Peers that lied; figures of peers are those of the others."""
    rejected: dict[str, int] = field(default_factory=dict, repr=False)
    """Rejected messages by reason; empty where nothing was checked (no robust, no attack)."""
    likelihood: np.ndarray | None = field(default=None, repr=False)
    """[C, K] YᵀΦ of all honest peers' rows, beside which each model is described; None with privacy."""
    observed: Observed | None = field(default=None, repr=False)
    """What these rows say of each column: bits and ranges; None with privacy."""
    scaling: Scaling | None = None
    """How all peers' probabilities follow from their models, where that was fitted on held-out rows."""
    family_choice: FamilyChoice | None = None
    """Which family peers chose and why, where the settings left it open (family "auto")."""
    site_scores: np.ndarray = field(default_factory=lambda: np.zeros((0, len(SITE_COLUMNS))), repr=False)
    """[N + 1, 8] each peer's own model on the rows it holds out, and all together, in the order of `SITE_COLUMNS`."""
    scored: Scores = field(default_factory=Scores, repr=False)
    """Metrics of all learners on the test rows: see `scores`. Runs saved by earlier versions have none."""
    provenance: Provenance = field(default_factory=Provenance)
    """The data, what was asked, what was chosen and the machine; empty for runs of earlier versions."""
    rows: RunRows | None = None
    """The rows, as they were passed or saved with the run; None for a run that was loaded and saved without them."""

    seconds_by_round: np.ndarray = field(default_factory=lambda: np.zeros(0), repr=False)
    """[T] seconds of the rounds until each evaluated round, without evaluation; empty where they are not known.

    A run that went on from a checkpoint, or that an older version saved, has none."""
    histograms: Histograms | None = field(default=None, repr=False)
    """Counts of rows by class, peer and bins of columns; None with privacy."""

    def __repr__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        return as_html(self)

    def __getstate__(self) -> dict[str, Any]:
        """A copy in another process has no rows."""
        return {**self.__dict__, "rows": None}

    @property
    def digest(self) -> str:
        """The sha256 of what was learned: models, history and errors of references, without times.

        The same settings and rows give the same digest on the same machine with the same versions.
        """
        digest = hashlib.sha256()
        references = sorted(item for item in self.references.items() if math.isfinite(item[1]))
        digest.update(json.dumps(references).encode())
        for array in (self.stats, self.records):
            digest.update(f"{array.shape}".encode())
            digest.update(np.ascontiguousarray(array, dtype="<f8").data)
        return digest.hexdigest()

    def toml(self) -> str:
        """Return the settings that were asked for as a TOML file, which `peerbayes simulate` reads."""
        return toml_of(self.provenance, self.made)

    def rerun(self, X: Any = None, y: Any = None, test: tuple[Any, Any] | None = None) -> Run:
        """Simulate again with the same settings and rows, and return the new run; compare the `digest` of both.

        X, y, test  the table, its labels, and rows to test on with theirs; None: those that this run was made with, or
                    those of their dataset, file or query

        Other rows than those of this run are refused with a `DataChanged`.
        """
        from importlib import import_module

        again: Run = import_module("peerbayes.simulation.repetition").repeated(
            self, X, y, test
        )  # a call upwards
        return again

    def differences(self, other: Run) -> list[str]:
        """Return in what this run differs from the run `other`, a sentence each; none where digests are the same."""
        from importlib import import_module

        sentences: list[str] = import_module("peerbayes.simulation.repetition").differences(self, other)
        return sentences

    @property
    def history(self) -> Any:
        """A DataFrame with a row per evaluated round and honest peer, as long as it has not vanished for good."""
        return history_of(self._counted)

    @property
    def scores(self) -> Any:
        """A DataFrame with a row per learner and metric: mean, std over peers, models and test rows, the same of all.

        Learners are "peers", "alone", "rc", "rc_end", "ml", "majority" (the shares of classes) and the `baselines`.
        """
        return self.scored.frame

    @property
    def missing(self) -> dict[str, str]:
        """Why figures of `summary` are missing (NaN), by their names."""
        return missing_figures(self.summary(), self.scored)

    @property
    def notes(self) -> list[str]:
        """Sentences on figures that are missing, and on how others came about."""
        return list(dict.fromkeys([*self.missing.values(), *self.scored.notes]))

    @property
    def _counted(self) -> np.ndarray:
        """The records with figures: of peers that did not lie, until they vanish."""
        return counted(self.records)

    @property
    def vanished(self) -> np.ndarray:
        """The peers that were away for good at the end, whose figures do not count: see `network.Away`."""
        last = self.records[-len(self.sizes) :]
        missing = last[np.isnan(last[:, COLUMNS.index("train_error")]), 1].astype(np.int64)
        return np.setdiff1d(missing, self.attackers)

    @property
    def privacy(self) -> Any:
        """A DataFrame with a row per peer: sigma of its noise, rounds released, epsilon spent, delta, and rho.

        Without privacy it has no rows.
        """
        import pandas as pd

        frame = pd.DataFrame(self.spent, columns=list(SPENT)).astype({"rounds": np.int64})
        return frame.rename_axis("peer")

    def sites(self) -> Any:
        """Return a DataFrame with a row per peer and one, "all", of all peers' held-out rows together.

        Each peer's own model is evaluated on the rows that it holds out (`hold_out`), without which there are no rows.
        The AUC of all lies between `auc_low` and `auc_high`: it comes from counts of scores, as real peers add them up.
        """
        import pandas as pd

        frame = pd.DataFrame(self.site_scores, columns=list(SITE_COLUMNS)).astype({"rows": np.int64})
        peers = [*range(len(frame) - 1), "all"][-len(frame) :] if len(frame) else []
        return frame.set_index(pd.Index(peers, name="peer", dtype=object))

    def summary(self) -> dict[str, float]:
        """Return errors at the end: mean and standard deviation over honest peers, those of RC and ML, and gaps.

        `rc` takes as many steps as there are rounds, `rc_end` goes to its end by adaptive steps.

        What peers sent is counted in bytes, and in messages of a peer to each neighbour in the rounds.
        `test_auc` is a further metric of the peers, `test_auc_rc` that of RC and `test_fedavg` the error of a baseline.

        Values that were not computed are NaN, and `missing` says why: test errors without test rows, references without
        `references`.
        With privacy, also the largest epsilon that a peer spent. In an attacked run, RC and ML are of the honest peers'
        rows, `attackers` says how many lied, and `rejected` how many messages were refused. Where peers have vanished
        for good, `vanished` says how many; means are over the others, while RC and ML are of the rows of all.
        """
        records = self._counted
        last = records[records[:, 0] == records[:, 0].max()]
        column = {name: last[:, index] for index, name in enumerate(COLUMNS)}
        summary = {"rounds": float(last[0, 0]), "peers": float(len(last))}
        for kind in ("train", "test"):
            errors = column[f"{kind}_error"]
            summary[f"{kind}_error"], summary[f"{kind}_std"] = float(errors.mean()), float(errors.std())
            for reference in LEARNERS:
                summary[f"{kind}_{reference}"] = self.references.get(f"{kind}_{reference}", math.nan)
                summary[f"{kind}_gap_{reference}"] = summary[f"{kind}_error"] - summary[f"{kind}_{reference}"]
        summary["disagreement"] = float(column["disagreement"].mean())
        messages = self.configuration.get("messages", "float64")
        exchanges = exchange_count(messages, self.configuration.get("exchanges"))
        summary["bytes_per_peer"] = float(column["bytes"].mean())
        summary["messages_per_link"] = summary["rounds"] * exchanges * bool(summary["bytes_per_peer"])
        summary["floored"] = float(column["floored"].mean())
        if len(self.spent):
            summary["epsilon"] = float(self.spent[:, SPENT.index("epsilon")].max())
        if self.rejected:
            summary |= {
                "attackers": float(self.attackers.size),
                "rejected": float(sum(self.rejected.values())),
            }
        if self.vanished.size:
            summary["vanished"] = float(self.vanished.size)
        summary |= self.scored.flat(without=tuple(summary))
        summary |= {f"seconds_{activity}": seconds for activity, seconds in self.seconds.items()}
        return summary

    @refuse_old_names
    def classifier(self, peer: int) -> Any:
        """Return the estimator of the peer with the number `peer`, counted from 0."""
        if self.of_weights:
            raise ValueError(
                f"{self.configuration['strategy']} learns weights, not statistics: there is no generative classifier. "
                "Use predict_proba of another strategy, or run.stats[peer] as softmax weights"
            )
        if not 0 <= peer < len(self.stats):
            raise ValueError(f"peer is {peer}; expected 0 to {len(self.stats) - 1}")
        from peerbayes.estimators.classifiers import (
            ESTIMATOR_OF,  # here, so that a dashboard need not load scikit-learn
        )

        return ESTIMATOR_OF[self.layout.name].from_statistics(self.statistics(peer))

    @refuse_old_names
    def statistics(self, peer: int) -> Statistics:
        """Return the statistics of the peer with the number `peer`, with their schema and family."""
        rows = float(self.sizes.sum())
        model = Statistics.of_model(
            self.stats[peer], self.schema, self.layout, rows, self.likelihood, self.observed
        )
        return replace(model, scaling=self.scaling)

    def report(self, path: str | Path, sections: Sequence[str] = (), overwrite: bool = False) -> Path:
        """Write one self-contained HTML report of the run to `path`; needs the extra `report`.

        `sections` names sections of outside packages to add. A file that is there is replaced only with `overwrite`.
        """
        from importlib import import_module

        write = import_module("peerbayes.report").write  # a call upwards
        return Path(write(path, [self], sections=sections, overwrite=overwrite))

    def save(self, folder: str | Path, data: bool = False, overwrite: bool = False) -> None:
        """Write the run to a `folder`, where it replaces the live file; `peerbayes.load` reads it.

        data       whether the rows are written to the folder too, as Parquet, so that `peerbayes rerun` needs nothing
                   else. Then the folder holds all rows: whoever gets it, gets them
        overwrite  whether a run that is in the folder may be replaced
        """
        target = Path(folder)
        refuse_existing(target, overwrite)
        target.mkdir(parents=True, exist_ok=True)
        if not data:
            forget_rows(target)
        elif self.rows is None:
            raise ValueError(
                "data is True, but this run was loaded and has no rows; run.rerun() gives one that has"
            )
        else:
            self.rows.save(target)
        paths = relative_paths(self.provenance.places, target)
        header = {
            "kind": "run",
            "configuration": to_stored(self.configuration),
            "references": {name: value for name, value in self.references.items() if math.isfinite(value)},
            "made": self.made,
            "of_weights": self.of_weights,
            "seconds": self.seconds,
            "rejected": self.rejected,
            "provenance": self.provenance.header(),
            "relative_paths": paths,
            "schema": self.schema.to_json(),
            **describe_family(self.layout),
            **({} if self.scaling is None else {"scaling": self.scaling.to_json()}),
            **({} if self.family_choice is None else {"family_choice": self.family_choice.to_json()}),
            **({"scores": self.scored.to_json()} if self.scored.rows else {}),
        }
        arrays = {"stats": self.stats, "records": self.records, "sizes": self.sizes, "links": self.links}
        if len(self.spent):
            arrays["spent"] = self.spent
        if len(self.site_scores):
            arrays["sites"] = self.site_scores
        if len(self.seconds_by_round):
            arrays["seconds by round"] = self.seconds_by_round
        if self.histograms is not None:
            arrays |= self.histograms.arrays
        arrays["attackers"] = self.attackers
        if self.likelihood is not None and self.observed is not None:
            arrays |= {"likelihood": self.likelihood, **self.observed._asdict()}
        for who, outcome in self.outcomes.items():
            arrays |= {f"confusion {who}": outcome.confusion, f"reliability {who}": outcome.reliability}
        arrays |= self.provenance.arrays
        files.write(target / RUN_FILE, files.pack(header, arrays))
        files.write(target / RECIPE_FILE, toml_of(self.provenance, self.made, paths).encode())
        summary = json.dumps(as_json(self.summary()), indent=2, allow_nan=False)
        (target / "summary.json").write_text(summary + "\n", encoding="utf-8")
        forget_live(target)

    @classmethod
    def load(cls, folder: str | Path) -> Run:
        """Read a run that `save` wrote to `folder`; the path of the file in it does as well."""
        path = Path(folder)
        path = path if path.is_file() else path / RUN_FILE
        if not path.exists():
            from importlib import import_module

            why = import_module("peerbayes.simulation.loading").no_run  # a call upwards
            raise FileNotFoundError(why(Path(folder)))
        header, arrays = files.unpack(path.read_bytes(), path)
        try:
            first = {**header, "calibrated": True}
            model = Statistics.restored(first, arrays["stats"][0], arrays)
            return cls(
                from_stored(header["configuration"]),
                Schema.from_json(header["schema"]),
                model.family,
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
                model.likelihood,
                model.observed,
                Scaling.from_json(header["scaling"]) if "scaling" in header else None,
                FamilyChoice.from_json(header["family_choice"]) if "family_choice" in header else None,
                arrays.get("sites", np.zeros((0, len(SITE_COLUMNS)))),
                Scores.from_json(header["scores"]) if "scores" in header else Scores(),
                Provenance.restored(
                    header.get("provenance", {}), arrays, header.get("relative_paths", {}), path.parent
                ),
                RunRows.saved(path.parent),
                seconds_by_round=arrays.get("seconds by round", np.zeros(0)),
                histograms=Histograms.restored(arrays),
            )
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise ModelFileDamaged(f"{path} does not describe a run: {error!r}") from error


def as_json(summary: dict[str, float]) -> dict[str, float | None]:
    """Return a summary as JSON can hold it: null for values that were not computed."""
    return {name: value if math.isfinite(value) else None for name, value in summary.items()}


def refuse_existing(folder: Path, overwrite: bool) -> None:
    """Refuse a folder that has a run already, unless it may be overwritten."""
    files.refuse_existing(folder / RUN_FILE, overwrite)


def forget_live(folder: Path) -> None:
    """Remove the live file of a simulation."""
    for end in ("", "-wal", "-shm"):
        (folder / f"{LIVE_FILE}{end}").unlink(missing_ok=True)
