"""What `peerbayes.load` opens: models, runs and studies, by what there is."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from peerbayes.data import arguments, files
from peerbayes.errors import ModelFileError

MODEL_FILE = "model.peerbayes"  # a peer's model, in its home
STUDY_FILE = "study.json"  # what a study asks for, in its folder
EXPECTED = "the path of a model, or of the folder of a run, a study or a peer"


def load(path: str | Path) -> Any:
    """Open what was saved at `path`: an estimator of a model's file, a `Run` of a run's folder, a study of its folder.

    A model is what `save` of an estimator wrote, or a peer for its model; its home does as well. A run is what
    `Run.save` or `peerbayes simulate --out` wrote.
    """
    target = arguments.path("path", path, EXPECTED)
    if target.is_dir():
        return _of_folder(target)
    if not target.exists():
        raise FileNotFoundError(no_run(target))
    if files.kind_of(target) == "run":
        return _run(target)
    return _model(target)


def _of_folder(folder: Path) -> Any:
    from peerbayes.simulation.result import RUN_FILE

    if (folder / STUDY_FILE).is_file():
        return import_module("peerbayes.experiments.study").Study.load(folder)  # a call upwards
    if (folder / RUN_FILE).is_file():
        return _run(folder)
    if (folder / MODEL_FILE).is_file():
        return _model(folder / MODEL_FILE)
    raise ModelFileError(no_run(folder))


def no_run(folder: Path) -> str:
    """Return why a folder, or what a path names, cannot be opened as a run, and what to do."""
    from peerbayes.simulation.result import LIVE_FILE, RUN_FILE

    runs = sorted(path.parent.name for path in folder.glob(f"*/{RUN_FILE}"))
    if not folder.exists():
        problem = f"does not exist; expected {EXPECTED}"
    elif (folder / STUDY_FILE).exists():
        problem = (
            f"is the folder of a study, which has no {RUN_FILE}: `peerbayes study {folder}` shows it, and "
            f"pb.load opens it. To compute a study again, run its TOML with another --out: "
            f"pb.load({str(folder)!r}).toml() returns it"
        )
    elif (folder / LIVE_FILE).exists():
        problem = f"has a run that is not finished: see it with `peerbayes watch {folder}`"
    elif runs:
        problem = f"has several runs; open one of them: {', '.join(runs[:8])}{', …' if len(runs) > 8 else ''}"
    else:
        problem = f"has neither {RUN_FILE} nor {MODEL_FILE}; expected {EXPECTED}"
    return f"{folder} {problem}"


def _run(path: Path) -> Any:
    from peerbayes.simulation.result import Run

    return Run.load(path)


def _model(path: Path) -> Any:
    from peerbayes.estimators.classifiers import load as load_model  # here: scikit-learn takes a second

    return load_model(path)
