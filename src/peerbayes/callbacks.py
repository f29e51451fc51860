"""Callbacks for `simulate` and `simulate_shards` that log runs elsewhere: MLflow, TensorBoard, Weights & Biases.

    pb.simulate(X, y, callbacks=[TensorBoard("runs")])

One value serves any number of runs, one after the other. Each needs the extra of its name; nothing leaves this machine
unless a server is named. `Callback` says what a callback of your own may have.
"""

from __future__ import annotations

import json
import math
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from peerbayes.errors import CallbackPartMissing
from peerbayes.simulation.events import Callback, RunInfo, figures_of

__all__ = ["Callback", "MLflow", "RunInfo", "TensorBoard", "WandB", "figures_of"]

# The longest values that MLflow's own databases store.
LONGEST = 6000

TEXT = 7  # the number of texts among TensorFlow's types of values


def _module(name: str, extra: str) -> Any:
    """Import a module of an extra."""
    try:
        return import_module(name)
    except ImportError as missing:
        raise CallbackPartMissing(
            f"{missing.name} is not installed; this callback needs it: pip install 'peerbayes[{extra}]'"
        ) from missing


def parameters(info: RunInfo) -> dict[str, Any]:
    """Return the settings of a run and the size of its data, a setting with fields as one entry for each of these."""
    flat = {"rows": int(info.sizes.sum()), "columns": len(info.schema.columns)}
    for name, value in info.configuration.items():
        entries = (
            {name: value} if not isinstance(value, dict) else {f"{name}.{k}": v for k, v in value.items()}
        )
        flat |= entries
    return flat


def finite(figures: dict[str, float]) -> dict[str, float]:
    """Return the figures that were computed, without those that are NaN."""
    return {name: value for name, value in figures.items() if math.isfinite(value)}


def summary_of(run: Any) -> dict[str, float]:
    """Return the summary of a run as `summary/NAME`; a run in shards has none."""
    summary = run.summary() if hasattr(run, "summary") else {}
    return {f"summary/{name}": value for name, value in finite(summary).items()}


class MLflow(Callback):
    """Log runs to MLflow: settings as parameters, versions as tags, figures of rounds and the summary as metrics.

    experiment    the name of the experiment, which is made where it is missing
    tracking_uri  a server, or a store such as "sqlite:///mlflow.db"; None: what MLflow itself takes, the variable
                  MLFLOW_TRACKING_URI, or a database in the current folder
    name          the name of each run; None: MLflow invents one
    tags          further tags of each run
    """

    def __init__(
        self,
        experiment: str = "peerbayes",
        tracking_uri: str | None = None,
        name: str | None = None,
        tags: dict[str, str] | None = None,
    ) -> None:
        _module("mlflow", "mlflow")
        self.experiment, self.tracking_uri, self.name, self.tags = experiment, tracking_uri, name, tags or {}
        self.run_id: str | None = None
        """MLflow's name of the last run."""
        self._client: Any = None

    def begin(self, info: RunInfo) -> None:
        """Make a run of the experiment, with parameters and tags."""
        self.run_id, entities = None, import_module("mlflow.entities")
        client = self._client = import_module("mlflow").MlflowClient(tracking_uri=self.tracking_uri)
        experiment = client.get_experiment_by_name(self.experiment)
        number = client.create_experiment(self.experiment) if experiment is None else experiment.experiment_id
        tags = {f"made.{name}": text[:LONGEST] for name, text in info.made.items()} | self.tags
        self.run_id = client.create_run(number, tags=tags, run_name=self.name).info.run_id
        values = {name: str(value)[:LONGEST] for name, value in parameters(info).items()}
        client.log_batch(self.run_id, params=[entities.Param(*pair) for pair in values.items()])

    def evaluated(self, round_index: int, figures: dict[str, float]) -> None:
        """Log the figures of a round, `round_index` as their step."""
        entities, now = import_module("mlflow.entities"), int(time.time() * 1000)
        metrics = [entities.Metric(name, value, now, round_index) for name, value in finite(figures).items()]
        self._client.log_batch(self.run_id, metrics=metrics)

    def end(self, run: Any) -> None:
        """Log the summary, and close MLflow's run as finished."""
        self.evaluated(int(run.records[-1, 0]), summary_of(run))
        self._client.set_terminated(self.run_id, "FINISHED")

    def failed(self, error: BaseException) -> None:
        """Close MLflow's run as failed, or as killed where somebody interrupted it."""
        if self.run_id is None:
            return
        self._client.set_tag(self.run_id, "error", f"{type(error).__name__}: {error}"[:LONGEST])
        self._client.set_terminated(self.run_id, "FAILED" if isinstance(error, Exception) else "KILLED")


class TensorBoard(Callback):
    """Log runs for TensorBoard: a folder for each, with figures by round, and settings and versions as a text.

    folder  what `tensorboard --logdir` shows
    name    the folder of each run in it; None: its time and strategy. A number is added where it exists
    """

    def __init__(self, folder: str | Path, name: str | None = None) -> None:
        _module("tensorboard.summary.writer.event_file_writer", "tensorboard")
        self.folder, self.name = Path(folder), name
        self.path: Path | None = None
        """The folder of the last run."""
        self._writer: Any = None

    def begin(self, info: RunInfo) -> None:
        """Make the folder of a run, and write its settings and versions."""
        self._writer = None
        began = info.made["began"].replace(":", "-")
        name = f"{began}-{info.configuration['strategy']}" if self.name is None else self.name
        self.path = _new_folder(self.folder / name)
        events = import_module("tensorboard.summary.writer.event_file_writer")
        self._writer = events.EventFileWriter(str(self.path))
        for title, content in (("settings", parameters(info)), ("made", info.made)):
            rows = (f"| {name} | {json.dumps(value, default=str)} |" for name, value in content.items())
            self._add(0, [self._text(title, "\n".join(("| | |", "|---|---|", *rows)))])

    def evaluated(self, round_index: int, figures: dict[str, float]) -> None:
        """Write the figures of a round, `round_index` as their step, so that TensorBoard shows them at once."""
        proto = import_module("tensorboard.compat.proto.summary_pb2")
        values = [proto.Summary.Value(tag=tag, simple_value=value) for tag, value in finite(figures).items()]
        self._add(round_index, values)
        self._writer.flush()

    def end(self, run: Any) -> None:
        """Write the summary, and close the file."""
        self.evaluated(int(run.records[-1, 0]), summary_of(run))
        self._writer.close()

    def failed(self, error: BaseException) -> None:
        """Write the error, and close the file."""
        if self._writer is not None:
            self._add(0, [self._text("error", f"{type(error).__name__}: {error}")])
            self._writer.close()

    def _add(self, step: int, values: list[Any]) -> None:
        event = import_module("tensorboard.compat.proto.event_pb2").Event
        summary = import_module("tensorboard.compat.proto.summary_pb2").Summary(value=values)
        self._writer.add_event(event(step=step, wall_time=time.time(), summary=summary))

    @staticmethod
    def _text(tag: str, text: str) -> Any:
        tensors = import_module("tensorboard.compat.proto.tensor_pb2")
        shapes = import_module("tensorboard.compat.proto.tensor_shape_pb2").TensorShapeProto
        one = shapes(dim=[shapes.Dim(size=1)])
        tensor = tensors.TensorProto(dtype=TEXT, string_val=[text.encode()], tensor_shape=one)
        plugin = import_module("tensorboard.plugins.text.metadata")
        metadata = plugin.create_summary_metadata(display_name=tag, description="")
        value = import_module("tensorboard.compat.proto.summary_pb2").Summary.Value
        return value(tag=tag, metadata=metadata, tensor=tensor)


def _new_folder(path: Path) -> Path:
    """Make a folder that did not exist: `path`, or with a number."""
    number = 1
    while True:
        try:
            folder = path if number == 1 else path.with_name(f"{path.name}-{number}")
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return folder


class WandB(Callback):
    """Log runs to Weights & Biases: settings as its configuration, figures of rounds, and the summary.

    project  the name of the project
    folder   where runs are stored, below `wandb/`; it is made where it is missing
    mode     "offline": nothing leaves this machine, and `wandb sync` sends what was stored; "online": the server
    options  further arguments of `wandb.init`
    """

    def __init__(
        self, project: str = "peerbayes", folder: str | Path = ".", mode: str = "offline", **options: Any
    ) -> None:
        _module("wandb", "wandb")
        self.project, self.folder, self.mode, self.options = project, Path(folder), mode, options
        self.path: Path | None = None
        """The folder of the last run."""
        self._run: Any = None

    def begin(self, info: RunInfo) -> None:
        """Begin a run of the project, beside others that may go on."""
        self._run, wandb = None, import_module("wandb")
        self.folder.mkdir(parents=True, exist_ok=True)  # wandb would take another folder instead
        settings = {"settings": wandb.Settings(console="off")}  # leaves the output of this process alone
        self._run = wandb.init(
            project=self.project, dir=str(self.folder), mode=self.mode, reinit="create_new",
            config=parameters(info) | {"made": info.made}, **(settings | self.options),
        )  # fmt: skip
        self.path = Path(self._run.dir).parent

    def evaluated(self, round_index: int, figures: dict[str, float]) -> None:
        """Log the figures of a round, `round_index` as their step."""
        self._run.log(finite(figures), step=round_index)

    def end(self, run: Any) -> None:
        """Store the summary, and close the run."""
        self._run.summary.update(summary_of(run))
        self._run.finish()

    def failed(self, error: BaseException) -> None:
        """Store the error, and close the run as failed."""
        if self._run is not None:
            self._run.summary.update({"error": f"{type(error).__name__}: {error}"})
            self._run.finish(exit_code=1)
