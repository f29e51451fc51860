"""A study as a TOML file: read, checked at once, and refused by line.

[study]
name = "Strategies on trees and rings"
compare = "strategy"       # the setting that tables compare
metric = "test_error"      # the figure that they compare

[data]
name = ["digits", "wine"]  # one dataset or several; or file, as for `peerbayes simulate`

[simulation]               # any argument of peerbayes.simulate, each one value or several
strategy = ["exact", "crc"]
topology = ["tree", "ring"]
seed = [0, 1, 2, 3, 4]
rows_per_peer = { each = [20, 50] }   # where a list may be one value of a setting
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, TypedDict

from peerbayes.data.declarations import (
    Setting,
    anything,
    choice,
    declarations,
    optional,
    read_value,
    real_number,
    text_value,
    true_or_false,
    whole_number,
)
from peerbayes.errors import ConfigurationError, PeerbayesError
from peerbayes.experiments import paper_tables
from peerbayes.experiments.comparison import CONFIDENCE, TESTS
from peerbayes.experiments.levels import Each, several
from peerbayes.simulation import config


class StudyEntries(TypedDict, total=False):
    """The entries of [study]."""

    # fmt: off
    name: Annotated[str, Setting(
        None, text_value("a name"), "what tables call the study; by default the file's name without .toml")]
    compare: Annotated[str | None, Setting(
        None, optional(text_value("a setting that varies")),
        "the setting whose values tables compare; None: the first that varies")]
    metric: Annotated[str, Setting(
        "test_error", text_value("a figure of a run's summary"), "the figure that tables compare")]
    baseline: Annotated[Any, Setting(
        None, optional(anything("a value of the setting that is compared", str, int, float)),
        "the value with which all others are compared; None: the best")]
    test: Annotated[str, Setting(
        "t", choice(tuple(TESTS)), 'the test of paired differences: "t", "sign-flip" or "wilcoxon"')]
    confidence: Annotated[float, Setting(
        CONFIDENCE, real_number("a share between 0 and 1", above=0.0, below=1.0),
        "the confidence of intervals; tests are at 1 minus this")]
    greater_is_better: Annotated[bool | None, Setting(
        None, anything("true or false", bool),
        "whether more of the metric is better; None: as is known of it")]
    learners: Annotated[list[str] | None, Setting(
        None, optional(anything("a list of learners, such as rc, ml and those of baselines", list)),
        "which learners are compared as well; None: those that `baselines` names")]
    spread_over_peers: Annotated[bool, Setting(
        False, true_or_false(),
        "whether tables have the standard deviation over peers in brackets")]
    test_rows: Annotated[int | None, Setting(
        None, optional(whole_number(1)),
        "rows for tests, the same in all cells of a seed; None: a fifth, at most 5,000")]
    # fmt: on


ENTRIES = declarations(StudyEntries)

# The entries that are fields of their own; others are options of the comparison.
FIRST = ("name", "compare", "metric", "greater_is_better", "test_rows", "spread_over_peers")


@dataclass(frozen=True)
class StudyFile:
    """What a file asks for."""

    name: str
    compare: str | None
    metric: str
    greater_is_better: bool | None
    test_rows: int | None
    spread_over_peers: bool
    options: dict[str, Any]
    """Of the comparison: baseline, test, confidence and learners."""
    datasets: list[dict[str, Any]]
    settings: dict[str, Any]


def read(path: Path, changes: tuple[str, ...] = ()) -> StudyFile:
    """Read a TOML file and apply `key=value` changes to its simulations."""
    file = config.opened(path)
    if {"title", "kind"} <= file.content.keys():
        number = path.stem.lstrip("0") if path.stem in paper_tables.numbers() else "TABLE"
        raise ConfigurationError(
            f"{path} is a table of the paper, not a study with [study] and [simulation]; compute it with: peerbayes "
            f"reproduce {number}"
        )
    file.settings({}, "not a section", further=("study", "data", "simulation"))
    entries = file.settings(ENTRIES, "not an entry of [study]", "study")
    chosen = {name: entries.get(name, setting.default) for name, setting in ENTRIES.items()}
    chosen["name"] = chosen["name"] or path.stem
    data, settings = config.sections(file, read_several)
    datasets = [config.located(entries_of, path.parent) for entries_of in _every(data)]
    for dataset in datasets:
        config.check_data(file, dataset)
    first = {name: chosen.pop(name) for name in FIRST}
    return StudyFile(
        **first,
        options=chosen,
        datasets=datasets,
        settings=settings | config.parse_changes(changes, read_several),
    )


def read_several(
    setting: Setting, name: str, value: Any, where: str, error: type[PeerbayesError] = ConfigurationError
) -> Any:
    """Return a setting's value, or all that it has, from what stands in a file; an error begins with `where`."""
    try:
        values = several(name, value, setting)
    except ValueError as problem:
        raise error(f"{where}{problem}") from problem
    if values is not None:
        return Each(tuple(read_value(setting, name, item, where, error) for item in values))
    try:
        return read_value(setting, name, value, where, error)
    except error as problem:
        if isinstance(value, list):
            raise error(f"{problem}; {name} = {{ each = […] }} names several values") from problem
        raise


def _every(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of [data] once for each dataset."""
    values = [value.values if isinstance(value, Each) else (value,) for value in data.values()]
    return [dict(zip(data, chosen, strict=True)) for chosen in product(*values)]
