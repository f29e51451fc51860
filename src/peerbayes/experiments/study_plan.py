"""A study from its arguments: its tables, the values of its settings, and the cells that follow."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from peerbayes.data.arguments import shown, whole
from peerbayes.data.declarations import Setting, declarations
from peerbayes.experiments.cells import key_of
from peerbayes.experiments.engines import Engine, RayEngine, engine_of
from peerbayes.experiments.levels import is_name, label_of, plain, several
from peerbayes.experiments.results_store import Progress
from peerbayes.experiments.spool import Kept, keep, keep_value
from peerbayes.experiments.study import METRIC, Study, StudyCell
from peerbayes.experiments.study_cells import OWNERS, STUDY_REVISION, refuse_of_runs
from peerbayes.experiments.study_checks import refuse_useless
from peerbayes.experiments.study_recipe import toml_of
from peerbayes.experiments.study_results import DATASET, SEED
from peerbayes.network.topologies import refuse_unknown
from peerbayes.simulation import config
from peerbayes.simulation.partitions import owner_column
from peerbayes.simulation.provenance import source_of
from peerbayes.simulation.settings import SimulationArguments

# A graph says how many peers there are, unless that is said: then it is no default.
PEERS = "peers"

# What tables call rows that are given as X and y.
IN_MEMORY = "X, y"

# Lines of progress, where there is no bar: one for each of so many parts of the work.
PARTS = 10


class StudyIncomplete(UserWarning):
    """Some cells of a study were refused or failed; the study's frame says why."""


def study(
    X: Any = None,
    y: Any = None,
    *,
    dataset: Any = None,
    folder: str | Path | None = None,
    name: str = "study",
    compare: str | None = None,
    metric: str = METRIC,
    greater_is_better: bool | None = None,
    test_rows: int | None = None,
    engine: str | Engine = "local",
    workers: int | None = None,
    address: str | None = None,
    overwrite: bool = False,
    progress: bool | Progress = True,
    **settings: Any,
) -> Study:
    """Run every combination of settings that have several values, in parallel, and return the comparison.

    A list varies a setting: `strategy=["exact", "crc"], seed=range(5)`. Where a list may be one value (kinds,
    rows_per_peer, evaluate_rows, structure, faults, message_loss, metrics, baselines), it is, and `pb.each(a, b)` names
    several. What `baselines` names is compared with the strategies, seed by seed.

    All cells of a seed are tested on the same rows: `test`, or else the last of a random order of the rows, and peers
    hold others. A cell that is refused or fails ends no other; `frame` says why, and the next call tries it again.

    X                  the table: a DataFrame or an array [n, D]
    y                  its labels [n]
    dataset            instead of X and y: a dataset by name, a file, or a table such as [data] of a file; or a list of
                       them
    folder             where results are kept: the same call with the same folder goes on where it was, and one with
                       more seeds or values adds them; None: nowhere
    name               what tables call it
    compare            the setting whose values tables compare; None: the first that varies
    metric             the figure that tables compare: a name of `Run.summary`
    greater_is_better  whether more of the metric is better; None: as is known of it
    test_rows          rows for tests; None: a fifth of the rows, but at most 5,000
    engine             "local": processes of this machine; "ray": a cluster; or an engine of your own, with its `run`
    workers            how many at a time; None: one for each processor
    address            of a Ray cluster
    overwrite          whether it may take the place of another study in the folder; results are kept
    progress           whether it prints how far it is, or a function of the cells done and the cells in all
    settings           those of `simulate`, each one value or several
    """
    computing = engine_of(engine, workers, address) if isinstance(engine, str) else engine
    refuse_out_of_reach(computing, folder)
    plan = planned(
        X,
        y,
        dataset=dataset,
        folder=folder,
        name=name,
        compare=compare,
        metric=metric,
        greater_is_better=greater_is_better,
        test_rows=test_rows,
        **settings,
    )
    plan.run(computing, progress if callable(progress) else Lines().show if progress else None, overwrite)
    if absent := plan.incomplete:
        warnings.warn(_sentence(absent, len(plan.cells)), StudyIncomplete, stacklevel=2)
    return plan


def planned(
    X: Any = None,
    y: Any = None,
    *,
    dataset: Any = None,
    folder: str | Path | None = None,
    name: str = "study",
    compare: str | None = None,
    metric: str = METRIC,
    greater_is_better: bool | None = None,
    test_rows: int | None = None,
    **settings: Any,
) -> Study:
    """Return the study of these arguments, those of `study`, with its tables in the folder; nothing is computed."""
    refuse_of_runs(settings)
    home = Path(tempfile.mkdtemp(prefix="peerbayes-study-") if folder is None else folder).resolve()
    try:
        plan = _planned(home, X, y, dataset, name, compare, metric, greater_is_better, test_rows, settings)
    except BaseException:
        if folder is None:
            shutil.rmtree(home, ignore_errors=True)
        raise
    if folder is None:
        weakref.finalize(plan, shutil.rmtree, home, ignore_errors=True)
    return plan


def _planned(
    home: Path,
    X: Any,
    y: Any,
    dataset: Any,
    name: str,
    compare: str | None,
    metric: str,
    greater_is_better: bool | None,
    test_rows: int | None,
    settings: dict[str, Any],
) -> Study:
    """Return the study of checked arguments, in its folder."""
    asked = dict(settings)
    test = settings.pop("test", None)
    levels = {key: _levels(home, key, value) for key, value in settings.items()}
    if test is None and any(isinstance(level.stored, list | dict) for level in levels.get("partition", ())):
        raise ValueError(
            "partition lists rows of X, some of which a study would test on; expected test=(X, y) beside it"
        )
    tables, sources, tested = _tables(home, X, y, dataset, test, test_rows)
    varied = _varied(tables, levels)
    if compare is not None and compare not in varied:
        raise ValueError(
            f"compare is {compare!r}; expected a setting that varies: {', '.join(varied) or 'none does'}"
        )
    refuse_useless(home, tables.values(), tested, test_rows, levels)
    owners = _owner_columns(levels)
    about = {
        label: {
            "source": source_of(sources.get(label, {})),
            "digest": kept.digest,
            "rows": kept.rows,
            "columns": kept.columns,
            OWNERS: [name for name in owners if name in kept.names and len(levels["partition"]) > 1],
        }
        for label, kept in tables.items()
    }
    cells = tuple({cell.key: cell for cell in _cells(tables, tested, levels, test_rows)}.values())
    entries = {"name": name, "compare": compare, "metric": metric, "greater_is_better": greater_is_better,
               "test_rows": test_rows}  # fmt: skip
    recipe = toml_of(entries, list(sources.values()), asked)
    plan = Study(home, name, varied, cells, compare, metric, about, greater_is_better, recipe=recipe)
    plan.refuse_impossible(metric)
    return plan


def refuse_out_of_reach(engine: Any, folder: Any) -> None:
    """Refuse a study without a folder on a cluster: its rows would be on this machine only."""
    if folder is None and isinstance(engine, RayEngine) and engine.joins:
        raise ValueError(
            "folder is None; expected a folder that all machines of the cluster reach, such as a network drive: "
            "workers read the rows there. Ray that is started on this machine (no address) needs none"
        )


def _listed(dataset: Any) -> list[Any]:
    return [] if dataset is None else list(dataset) if isinstance(dataset, list | tuple) else [dataset]


def _tables(
    home: Path, X: Any, y: Any, dataset: Any, test: Any, test_rows: int | None
) -> tuple[dict[str, Kept], dict[str, dict[str, Any]], str | None]:
    """Write the tables to the folder; return them by what they are called, their entries of [data], and the key of
    the test rows if given.
    """
    if (X is None) != (y is None) or (X is None) == (dataset is None):
        raise TypeError("study() takes X and y, or else dataset; expected one of the two")
    tables: dict[str, Kept] = {}
    sources: dict[str, dict[str, Any]] = {}
    if dataset is None:
        tables[IN_MEMORY] = keep(home, X, y)
    else:
        for number, item in enumerate(_listed(dataset), start=1):
            label, data = _data(item)
            if "test" in data:
                raise ValueError(
                    "test in [data] is not for studies, which test on rows of the table itself; give the rows of both "
                    "files to pb.study as X, y and test=(X, y)"
                )
            kept = keep(home, *config.load_data(data))
            if tables.get(label, kept) != kept:  # a file with another label column
                label = f"{label} ({number})"
            tables[label], sources[label] = kept, data
    if test_rows is not None:
        most = min(kept.rows for kept in tables.values()) - 1
        test_rows = whole("test_rows", test_rows, 1, most)
    if test is None:
        return tables, sources, None
    if len(tables) > 1 or test_rows is not None:
        raise ValueError("test is one table of rows; expected one dataset, and no test_rows beside it")
    rows = declarations(SimulationArguments)["test"].kind.check("test", test)
    return tables, sources, keep(home, *rows).key


def _data(dataset: Any) -> tuple[str, dict[str, Any]]:
    """Return what a dataset is called, and its entries as in [data] of a file."""
    if isinstance(dataset, Mapping):
        label = str(dataset.get("file", dataset.get("name", shown(dataset))))
        return label, dict(dataset)
    if not isinstance(dataset, str | Path):
        raise TypeError(
            f"dataset is {shown(dataset)}; expected a name, a file, or a table such as [data] of a file"
        )
    text = str(dataset)
    is_file = isinstance(dataset, Path) or "://" in text or bool(Path(text).suffix)
    return text, {"file": text} if is_file else {"name": text}


@dataclass(frozen=True)
class Level:
    """One value of a setting: what tables call it, and what is stored; None: it is the default."""

    label: Any
    stored: Any
    default: bool


def _levels(home: Path, name: str, value: Any) -> list[Level]:
    """Return the values of a setting, each checked."""
    declared = declarations(SimulationArguments)
    if name not in declared:
        raise TypeError(f"study() got an unexpected keyword argument {name!r}")
    setting = declared[name]
    values = several(name, value, setting)
    levels: dict[str, Level] = {}
    default = json.dumps(plain(name, setting.kind.check(name, setting.default)))
    for item in [value] if values is None else values:
        checked = _checked(name, item, setting, alone=values is None)
        if name == "topology" and is_name(checked):
            refuse_unknown(checked)
        stored = plain(name, checked)
        text = json.dumps(stored)
        label = label_of(item if isinstance(item, str | Path) else checked)
        if text not in levels and any(level.label == label for level in levels.values()):
            label = f"{label} ({len(levels) + 1})"
        levels.setdefault(text, Level(label, keep_value(home, stored), text == default))
    return list(levels.values())


def _checked(name: str, value: Any, setting: Setting, alone: bool) -> Any:
    """Return a checked value; where a list was taken for one value, the error says how to name several."""
    try:
        return setting.kind.check(name, value)
    except (ValueError, TypeError) as problem:
        if alone and isinstance(value, list | tuple):
            advice = (
                "a list is one value of it here; pb.each(…), in a file { each = […] }, names several values"
            )
            raise type(problem)(f"{problem}; {advice}") from None
        raise


def _varied(tables: Mapping[str, Kept], levels: Mapping[str, Sequence[Level]]) -> tuple[str, ...]:
    datasets = (DATASET,) if len(tables) > 1 else ()
    return (*datasets, *(name for name, values in levels.items() if len(values) > 1 and name != SEED))


def _cells(
    tables: Mapping[str, Kept],
    test: str | None,
    levels: Mapping[str, Sequence[Level]],
    test_rows: int | None,
) -> Iterator[StudyCell]:
    """Yield every cell: those of a dataset together, seeds innermost."""
    names = [*(name for name in levels if name != SEED), *([SEED] if SEED in levels else [])]
    owners = _owner_columns(levels)
    for label, kept in tables.items():
        for chosen in product(*(levels[name] for name in names)):
            by_name = dict(zip(names, chosen, strict=True))
            specification: dict[str, Any] = {
                "settings": {
                    name: level.stored
                    for name, level in by_name.items()
                    if not level.default or name == PEERS
                },
                "data": kept.key,
                "test": test_rows if test is None else test,
                "revision": STUDY_REVISION,
            }
            own = owner_column(by_name["partition"].stored) if "partition" in by_name else None
            if others := [name for name in owners if name in kept.names and name != own]:
                specification[OWNERS] = others
            labels = {DATASET: label, SEED: 0, **{name: level.label for name, level in by_name.items()}}
            yield StudyCell(key_of(specification), labels, specification)


def _owner_columns(levels: Mapping[str, Sequence[Level]]) -> list[str]:
    """Return the columns that name the owners of rows in some cells: they are features in none, so that all compare."""
    columns = (owner_column(level.stored) for level in levels.get("partition", ()))
    return [column for column in columns if column is not None]


def _sentence(absent: Mapping[str, str], count: int) -> str:
    """Return which cells are not done."""
    named = "; ".join(f"{cell} ({why})" for cell, why in list(absent.items())[:3])
    more = f"; and {len(absent) - 3} more" if len(absent) > 3 else ""
    return (
        f"{len(absent)} of {count} cells have no figures: {named}{more}. study.frame has the reason of each"
    )


class Lines:
    """Progress as plain lines on standard error: a line for each tenth of the work, with the time left.

    Time counts from the first result, which waits for workers to start and import.
    """

    def __init__(self, write: Callable[[str], object] | None = None) -> None:
        self._write = write or self._print
        self._first: tuple[int, float] | None = None

    def show(self, done: int, total: int) -> None:
        """Write a line if another tenth is done."""
        now = time.monotonic()
        began, then = self._first = self._first or (done, now)
        if done * PARTS // total > (done - 1) * PARTS // total:
            known = began < done < total
            left = f", {duration((now - then) / (done - began) * (total - done))} left" if known else ""
            self._write(f"{done:,} of {total:,} cells{left}")

    @staticmethod
    def _print(text: str) -> None:
        with contextlib.suppress(ValueError):  # standard error was closed
            print(text, file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Return a time in words: 40 s, 12 min, 3.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
