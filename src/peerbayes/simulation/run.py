"""The simulator: all peers at once, as [N, C, K], with the strategies that real peers run."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from peerbayes.data.arguments import about
from peerbayes.data.declarations import described_by
from peerbayes.learning.state import Checkpoint
from peerbayes.model import layout
from peerbayes.simulation import drivers, result
from peerbayes.simulation import evaluation as reference_models
from peerbayes.simulation.evaluation import Evaluation
from peerbayes.simulation.inputs import warn_untested
from peerbayes.simulation.live import LiveFile
from peerbayes.simulation.loop import Clock, Loop
from peerbayes.simulation.old_names import to_stored
from peerbayes.simulation.population import Population
from peerbayes.simulation.result import REFERENCES, Run
from peerbayes.simulation.settings import SimulationArguments, SimulationSettings
from peerbayes.simulation.view import Structure


@described_by(SimulationArguments)
def simulate(X: Any, y: Any, **arguments: Unpack[SimulationArguments]) -> Run:
    """Let peers learn one classifier over a network, and return the run with each peer's model and errors.

    X               the table: a DataFrame or an array [n, D]
    y               its labels [n]
    """
    settings, provenance = SimulationSettings(arguments), result.made()
    population = Population.of(settings, X, y)
    if population.test_rows is None:
        warn_untested()
    begin, start_bytes = drivers.agreed_start(settings, population)
    driver = drivers.build_driver(settings, population, begin)
    configuration = settings.configuration | {"strategy": driver.strategy.name}
    evaluation = Evaluation.of(settings, population)
    saved = None
    if settings.checkpoint is not None:
        saved = _checkpoint(settings.checkpoint, configuration, population, evaluation)
    clock = Clock()
    loop = Loop(
        driver,
        evaluation,
        clock,
        driver.begin(settings.array_device.put(begin)),
        population.sent + start_bytes,
    )
    del begin  # statistics take most of a large network's memory
    if saved is not None:
        with about("checkpoint"):
            loop.resume(saved, population.hidden)
    live_file = None
    if settings.live is not None:
        live_file = _live(settings.live, configuration, provenance, population)
    loop.go(settings.rounds, settings.evaluate_every, saved, live_file, settings.progress)

    stats, records, rejected = loop.stats(), np.concatenate(loop.records), loop.rejected
    of_weights = driver.strategy.of_weights
    del loop, driver  # all peers' states
    outcomes = {"peers": evaluation.outcome(stats, of_weights)}
    clock.add("evaluation")
    run = Run(
        configuration,
        population.schema,
        layout.without_guards(population.family),
        stats,
        records,
        dict.fromkeys(REFERENCES, math.nan),
        population.held.sizes,
        of_weights,
        clock.seconds,
        population.links,
        outcomes,
        provenance,
        np.zeros((0, 5)) if population.hidden is None else population.hidden.spent(),
        population.attackers,
        rejected,
    )
    if settings.references:
        errors = reference_models.local_errors(run, settings, population, evaluation)
        pooled = reference_models.Pooled.of(population, y)
        del population, evaluation  # frees memory for the pooled learners
        pooled_errors, predicted = pooled.learned(settings.start, settings.lr, settings.rounds)
        run = replace(run, references=run.references | errors | pooled_errors, outcomes=outcomes | predicted)
        clock.add("references")
    if live_file is not None:
        live_file.close()
    return run


def _checkpoint(
    path: str | Path, configuration: dict[str, Any], population: Population, evaluation: Evaluation
) -> Checkpoint:
    """Return the checkpoint of these settings and all rows; its key is made of the stored names of settings."""
    local = population.held
    return Checkpoint.of(
        path,
        to_stored(configuration),
        local.rows,
        local.labels,
        local.row_weights,
        local.sizes,
        evaluation.test_rows,
    )


def _live(
    folder: str | Path, configuration: dict[str, Any], provenance: dict[str, str], population: Population
) -> LiveFile:
    """Return the live file of a simulation."""
    network_structure = Structure.of(population.schema, population.family)
    return LiveFile(
        Path(folder), configuration, provenance, population.held.sizes, population.links, network_structure
    )
