"""What is known of a study before any cell is computed: values that no cell can use, and figures that none can have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from peerbayes.data.declarations import declarations
from peerbayes.errors import PeerbayesError
from peerbayes.experiments.directions import LEARNERS, column_of
from peerbayes.experiments.levels import read_back
from peerbayes.experiments.spool import Kept, table_of, value_of
from peerbayes.experiments.study_cells import split, tested_rows
from peerbayes.network.topologies import FIXED, adjacency
from peerbayes.simulation import result
from peerbayes.simulation.baselines import NAMES, learners_of
from peerbayes.simulation.owners import Owners, with_peers
from peerbayes.simulation.partitions import dealt_sizes, enough, owner_column
from peerbayes.simulation.scores import BUILT_IN, ERROR, PEERS
from peerbayes.simulation.settings import SimulationArguments

Level = Any  # a `study_plan.Level`

# --- values with which no rows can be dealt, or no network made

OF_PEERS = ("peers", "rows_per_peer", "partition", "topology")

# Nodes up to which networks without randomness are made to see whether they fit.
FEW_NODES = 1000


def refuse_useless(
    home: Path,
    tables: Iterable[Kept],
    test: str | None,
    test_rows: int | None,
    levels: Mapping[str, Sequence[Level]],
) -> None:
    """Refuse values with which every cell would be refused: its rows cannot be dealt to peers, or no network fits them.

    test  the key of the test rows, if they are a table of their own
    """
    declared = declarations(SimulationArguments)
    names = [name for name in OF_PEERS if name in levels]
    values = [
        [read_back(name, value_of(home, level.stored), declared[name]) for level in levels[name]]
        for name in names
    ]
    seeds = [level.stored for level in levels.get("seed", ())] or [0]
    reasons: dict[tuple[str, int], str] = {}
    usable: set[tuple[str, int]] = set()
    problems = []
    for table in (_Rows(str(home), kept, test, test_rows, seeds) for kept in tables):
        for chosen in product(*(range(len(of_name)) for of_name in values)):
            arguments = {name: of_name[i] for name, of_name, i in zip(names, values, chosen, strict=True)}
            named = list(zip(names, chosen, strict=True))
            problems.append(table.problem(arguments))
            if problems[-1]:
                reasons |= {key: problems[-1] for key in named if key not in reasons}
            else:
                usable.update(named)
    if all(problems):
        raise ValueError(problems[0])
    for (name, index), reason in reasons.items():
        if (name, index) not in usable:
            raise ValueError(f"no cell can use {name} {levels[name][index].label}: {reason}")


@dataclass(frozen=True)
class _Rows:
    """The rows of a table that peers may hold."""

    home: str
    kept: Kept
    test: str | None
    test_rows: int | None
    seeds: Sequence[int]

    def problem(self, arguments: Mapping[str, Any]) -> str:
        """Return why no cell with these settings can be computed; empty: none is known."""
        declared = declarations(SimulationArguments)
        given = {"rows_per_peer": declared["rows_per_peer"].default, "topology": "", **with_peers(arguments)}
        peers, partition = given.get("peers", declared["peers"].default), given.get("partition")
        try:
            if (column := owner_column(partition)) is not None:
                Owners.of(table_of(self.home, self.kept.key)[0].native, column)
                return ""
            if not isinstance(given["topology"], str) or (given["topology"] in FIXED and peers <= FEW_NODES):
                adjacency(given["topology"], peers, np.random.default_rng(0))
        except PeerbayesError as problem:
            return str(problem)
        if isinstance(partition, list | tuple):
            return ""
        refused = ""
        for rows in self._counts():
            try:
                dealt_sizes(given["rows_per_peer"], enough(peers, rows), rows)
                return ""
            except PeerbayesError as problem:
                refused = str(problem)
        return refused

    def _counts(self) -> Iterable[int]:
        """Yield how many rows are offered to peers: first the fewest that may be, then those of each seed."""
        if self.test is not None:
            yield self.kept.rows
            return
        yield self.kept.rows - tested_rows(self.kept.rows, self.test_rows)
        labels = table_of(self.home, self.kept.key)[1]
        for seed in self.seeds:
            yield split(labels, seed, self.test_rows).train.size


# --- figures that no cell can have

# Figures of `Run.summary` that are no metrics, and of a study's frame beside it.
OTHERS = (
    "rounds", "peers", "train_error", "train_std", "test_std", *result.REFERENCES,
    *(f"{kind}_gap_{who}" for who in result.LEARNERS for kind in ("train", "test")), "disagreement", "bytes_per_peer",
    "messages_per_link", "floored", "epsilon", "attackers", "rejected", "vanished", "seconds",
)  # fmt: skip
SECONDS = "seconds_"  # of an activity


def figures(metrics: Iterable[str], baselines: Iterable[str]) -> list[str]:
    """Return the figures that runs with these metrics and baselines may have."""
    learners = dict.fromkeys((*LEARNERS, *(learner for name in baselines for learner in learners_of(name))))
    names = (ERROR, *metrics)
    of_peers = [column_of(PEERS, name) for name in names]
    return [
        *of_peers,
        *(f"{column}_std" for column in of_peers[1:]),  # that of the error is test_std
        *(column_of(learner, name) for learner in learners if learner != PEERS for name in names),
        *OTHERS,
    ]


def refuse_impossible(figure: str, metrics: Iterable[str], baselines: Iterable[str]) -> None:
    """Refuse a figure that no run can have which is asked for these metrics and baselines."""
    possible = figures(metrics, baselines)
    if figure in possible or (isinstance(figure, str) and figure.startswith(SECONDS)):
        return
    if figure in figures(BUILT_IN, NAMES):
        raise ValueError(
            f"metric is {figure!r}, which the metrics and baselines of this study do not ask for; name what it is of "
            f"among them, or expect another figure, such as {', '.join(possible[:3])}"
        )
    of_metric = column_of(PEERS, str(figure))
    close = [of_metric] if of_metric in possible else get_close_matches(str(figure), possible, 3)
    hint = f". Is it {' or '.join(close)}?" if close else ""
    raise ValueError(
        f"metric is {figure!r}; expected a figure of a run, such as {', '.join(possible[:3])}{hint}"
    )
