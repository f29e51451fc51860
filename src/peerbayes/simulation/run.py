"""The simulator: all peers at once, as [N, C, K], with the strategies that real peers run."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from peerbayes import network as topologies
from peerbayes.data.arguments import about
from peerbayes.data.declarations import described_by
from peerbayes.data.doctor.quick import warn_of_data
from peerbayes.data.infer import infer_classes
from peerbayes.learning import planning
from peerbayes.learning.corrections import Linked
from peerbayes.learning.few_bytes import exchanges_of
from peerbayes.learning.robust.invariants import REASONS
from peerbayes.learning.selection import (
    HELD_OUT,
    HeldOut,
    Selection,
    incomplete,
    is_check,
    scaling_sentence,
    scaling_sums,
    summed,
    too_few,
)
from peerbayes.learning.state import Checkpoint
from peerbayes.model import layout
from peerbayes.model.candidates import AUTO
from peerbayes.model.devices import fetch
from peerbayes.model.scaling import Scaling
from peerbayes.simulation import drivers, result
from peerbayes.simulation import evaluation as reference_models
from peerbayes.simulation.chosen_family import ChosenFamily, chosen_family
from peerbayes.simulation.evaluation import Evaluation
from peerbayes.simulation.events import Callbacks, RunInfo
from peerbayes.simulation.faults import Faults
from peerbayes.simulation.histograms import Histograms
from peerbayes.simulation.old_names import to_stored
from peerbayes.simulation.owners import Owners, owners_in
from peerbayes.simulation.population import Population, sum_bytes, warn_untested
from peerbayes.simulation.private import PrivateRows
from peerbayes.simulation.provenance import Provenance, asked_of, data_of, machine
from peerbayes.simulation.records import COLUMNS
from peerbayes.simulation.result import REFERENCES, Run
from peerbayes.simulation.rounds import Watched
from peerbayes.simulation.saved_rows import RunRows
from peerbayes.simulation.scoring import Scoring
from peerbayes.simulation.settings import Progress, SimulationArguments, SimulationSettings
from peerbayes.simulation.view import LiveFile, Structure

QUICK_WORK = 1e9  # products of rows, statistics and rounds: RC takes a second or two

# --- the time that a simulation spends


class Clock:
    """Seconds by activity."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def add(self, activity: str) -> None:
        """Add the time since the last call to an activity."""
        now = time.perf_counter()
        self.seconds[activity] = self.seconds.get(activity, 0.0) + now - self._last
        self._last = now

    @property
    def of_rounds(self) -> float:
        """Seconds that rounds have taken, without evaluation."""
        return sum(self.seconds.get(activity, 0.0) for activity in ("rounds", "selection"))


# --- the round that all peers keep, by their held-out rows


@dataclass
class Selector:
    """Sums what all peers tell of their held-out rows, and keeps the models of the best round."""

    held_out: HeldOut
    patience: int | None
    faults: Faults
    exchanges: int
    links: Any
    """[N, N] of a fixed network; sums go along its spanning tree."""
    selection: Selection
    reason: str = ""
    """Why no round is selected; empty: one is."""
    scaling: Scaling | None = None
    """How probabilities follow from the models of the round kept, once that is known."""

    def check(self, round_index: int, stats: Any) -> tuple[bool, np.ndarray]:
        """Check models S [N, C, K] after a round; return whether all peers stop, and the bytes that each sent."""
        if not self.selection.lasts:
            return False, np.zeros(len(stats))
        if (gone := self.faults.gone(round_index * self.exchanges)).size:
            self._end(incomplete(round_index, [f"peer {peer}" for peer in gone[:3]]))
            return False, np.zeros(len(stats))
        total = summed(self.held_out.losses(stats))
        if reason := too_few(total):
            self._end(reason)
        else:
            self.selection = self.selection.after(round_index, total, stats)
        return self.selection.stops(self.patience), sum_bytes(self.links, total.size)

    def fit_scaling(self) -> np.ndarray:
        """Fit the scaling of the models that are kept; return the bytes that each peer sent: [N]."""
        fit, sent = scaling_sums(self.held_out, self.selection.stats), np.zeros(self.links.shape[0])
        try:
            _, terms = next(fit)
            while True:
                total = summed(terms)
                sent += sum_bytes(self.links, total.size + 1)  # a bound goes ahead of the numbers
                _, terms = fit.send(total)
        except StopIteration as end:
            self.scaling = end.value
        return sent

    def sentence(self, round_index: int) -> str:
        """Return in words which round is kept, and how probabilities follow from its models."""
        if self.scaling is None:
            return self.reason or self.selection.sentence(round_index)
        return f"{self.selection.sentence(round_index)}; {scaling_sentence(self.scaling)}"

    def _end(self, reason: str) -> None:
        self.reason, self.selection = reason, self.selection.ended()


# --- the loop over the rounds of a simulation, and its history


@dataclass
class Loop:
    """The state of all peers during the rounds, and the history so far."""

    driver: drivers.Driver
    evaluation: Evaluation
    clock: Clock
    state: Any
    """The driver's state of all peers."""
    sent: np.ndarray
    """[N] bytes sent so far."""
    selector: Selector | None = None
    """Which round is kept, by held-out rows; None: the last."""
    done: int = 0
    """Rounds done."""
    records: list[np.ndarray] = field(default_factory=list)
    """The history, an [N, 8] for each evaluated round."""
    seconds: list[float] | None = field(default_factory=list)
    """Seconds of the rounds until each evaluated round; None: a killed run did some of them."""

    def resume(self, saved: Checkpoint, hidden: PrivateRows | None) -> None:
        """Resume from a checkpoint, if a killed run left one."""
        self.done, self._stored, self.sent, self.records = saved.resume(self._stored, self.sent)
        if self.done:
            self.seconds = None
        if hidden is not None:
            hidden.calls += self.done

    def go(
        self,
        rounds: int,
        evaluate_every: int,
        saved: Checkpoint | None = None,
        live_file: LiveFile | None = None,
        progress: Progress | None = None,
        callbacks: Callbacks | None = None,
    ) -> None:
        """Run all remaining rounds."""
        if live_file is not None and self.records:
            live_file.add(np.concatenate(self.records))
        if callbacks:
            earlier = np.concatenate(self.records) if self.records else np.zeros((0, len(COLUMNS)))
            for record in earlier.reshape(-1, len(self.sent), len(COLUMNS)):
                callbacks.evaluated(record)
            self.clock.add("callbacks")
        for round_index in range(self.done + 1, rounds + 1):
            self._advance(round_index)
            ended = self._select(rounds) or round_index == rounds
            if ended or (evaluate_every and round_index % evaluate_every == 0):
                self._evaluate(ended)
                if live_file is not None:
                    live_file.add(self.records[-1], self.seconds[-1] if self.seconds else None)
                if callbacks:
                    callbacks.evaluated(self.records[-1], self.clock.of_rounds)
                    self.clock.add("callbacks")
            if live_file is not None:
                live_file.note_round(round_index)
            if saved is not None:
                saved.keep(round_index, self._stored, self.sent, self.records)
                self.clock.add("checkpoints")
            if progress is not None:
                progress(round_index, rounds)
            self.clock.add("evaluation")  # with what watches: the next round begins here
            if ended:
                break
        if saved is not None:
            saved.remove()

    def stats(self) -> np.ndarray:
        """Return each peer's model, of the last round or of the one kept: [N, C, K]."""
        stats = np.require(fetch(self._model()), dtype=np.float64, requirements=("C", "W"))
        self.clock.add("rounds")
        return stats

    @property
    def _stored(self) -> Any:
        """What a checkpoint stores: the driver's state, and which round is kept so far."""
        return self.state if self.selector is None else (self.state, self.selector.selection)

    @_stored.setter
    def _stored(self, stored: Any) -> None:
        if self.selector is None:
            self.state = stored
        else:
            self.state, self.selector.selection = stored

    def _model(self) -> Any:
        if self.selector is None or not self.selector.selection.lasts:
            return self.driver.read(self.state)
        return self.selector.selection.stats

    def _select(self, rounds: int) -> bool:
        """Check the models of a round by held-out rows where it is due; return whether all peers stop."""
        if self.selector is None or not is_check(self.done, rounds):
            return False
        stops, sent = self.selector.check(self.done, self.driver.read(self.state))
        self.sent = self.sent + sent
        if (stops or self.done == rounds) and self.selector.selection.lasts:
            self.sent = self.sent + self.selector.fit_scaling()
        self.clock.add("selection")
        return stops

    @property
    def rejected(self) -> dict[str, int]:
        """Rejected messages by reason; empty where nothing was checked."""
        state = self.state.state if isinstance(self.state, Linked) else self.state
        if not isinstance(state, Watched):
            return {}
        return dict(zip(REASONS, state.rejected.astype(int).tolist(), strict=True))

    def _advance(self, round_index: int) -> None:
        exchanges = exchanges_of(self.driver.strategy)
        for exchange in range(exchanges * (round_index - 1) + 1, exchanges * round_index + 1):
            self.state, sent = self.driver.advance(self.state, exchange)
            self.sent = self.sent + sent
        self.done = round_index
        self.clock.add("rounds")

    def _evaluate(self, ended: bool) -> None:
        stats, of_weights = self.driver.read(self.state), self.driver.strategy.of_weights
        if ended and self.selector is not None:
            stats, scaling = self._model(), self.selector.scaling
        else:
            scaling = None
        if self.seconds is not None:
            self.seconds.append(self.clock.of_rounds)
        self.records.append(self.evaluation.record(self.done, stats, of_weights, self.sent, scaling))
        self.clock.add("evaluation")


# --- a simulation from its arguments to its result


@described_by(SimulationArguments)
def simulate(X: Any, y: Any, **arguments: Unpack[SimulationArguments]) -> Run:
    """Let peers learn one classifier over a network, and return the run with each peer's model and errors.

    X               the table: a DataFrame or an array [n, D]
    y               its labels [n]
    """
    table, call = X, SimulationArguments(**arguments)
    X, owners = owners_in(X, arguments)
    if owners is not None:
        arguments["peers"], arguments["test"] = len(owners.names), owners.features(arguments.get("test"))
        owners.warn_of_single_rows(stacklevel=2)
    settings, provenance = SimulationSettings(arguments), result.made()
    with Callbacks(settings.callbacks) as callbacks:
        run = _simulated(settings, provenance, X, y, owners, callbacks)
        source = _provenance(table, y, call, settings.configuration, run)
        run = replace(run, provenance=source, rows=RunRows(table, y, call.get("test")))
        callbacks.end(run)
    return run


def _simulated(
    settings: SimulationSettings,
    provenance: dict[str, str],
    X: Any,
    y: Any,
    owners: Owners | None,
    callbacks: Callbacks,
) -> Run:
    """Return the finished run; `callbacks` see its start and its rounds."""
    provenance |= {} if owners is None else {"owners": owners.sentence}
    owned = None if owners is None else owners.parts
    chosen = (
        chosen_family(settings, X, y, owned)
        if settings.family == AUTO
        else ChosenFamily(settings, parts=owned)
    )
    settings, family_choice, parts, choice_bytes = chosen
    population = Population.of(settings, X, y, parts)
    if settings.schema is None:
        classes, labels = infer_classes(y)
        warn_of_data(
            population.table, population.schema.columns, settings.kinds, labels, classes, stacklevel=3
        )
    if population.test_rows is None:
        warn_untested(stacklevel=3)
    begin, start_bytes = drivers.agreed_start(settings, population)
    plan = drivers.plan_of(settings, population, begin)
    driver = drivers.build_driver(plan, settings, population, begin)
    provenance |= {"choice": plan.reason} if plan.reason else {}
    provenance |= {} if family_choice is None else {"family choice": family_choice.reason}
    configuration = settings.configuration | {"strategy": driver.strategy.name}
    evaluation = Evaluation.of(settings, population)
    saved = None
    if settings.checkpoint is not None:
        saved = _checkpoint(settings.checkpoint, configuration, population, evaluation)
    callbacks.begin(RunInfo(configuration, provenance, population.schema, population.held.sizes))
    clock = Clock()
    loop = Loop(
        driver,
        evaluation,
        clock,
        driver.begin(settings.array_device.put(begin)),
        population.sent + start_bytes + choice_bytes,
        _selector(settings, population, begin),
    )
    del begin  # statistics take most of a large network's memory
    if saved is not None:
        with about("checkpoint"):
            loop.resume(saved, population.hidden)
    live_file = None
    if settings.live is not None:
        live_file = _live(settings.live, configuration, provenance, population, settings.references)
    pooled_results = None
    if live_file is not None and settings.references and _quickly_pooled(settings, population):
        # Somebody watches: RC and ML come first, so that the curves can be compared with them.
        pooled_results = _pooled(settings, population, y)
        live_file.add_references(pooled_results[0])
        clock.add("references")
    loop.go(settings.rounds, settings.evaluate_every, saved, live_file, settings.progress, callbacks)

    seconds_by_round = np.array(loop.seconds or ())
    stats, records, rejected = loop.stats(), np.concatenate(loop.records), loop.rejected
    if loop.selector is not None:
        provenance |= {"selection": loop.selector.sentence(loop.done)}
    scaling = None if loop.selector is None else loop.selector.scaling
    of_weights = driver.strategy.of_weights
    del loop, driver  # all peers' states
    scoring = Scoring(settings, population, evaluation)
    outcomes = {"peers": scoring.peers(stats, of_weights, scaling, records[-population.peer_count :])}
    if scaling is not None:
        outcomes["unscaled"] = evaluation.outcome(stats, of_weights)
    site_scores = reference_models.site_scores(population.held_out, stats, scaling)
    of_rows = (None, None) if of_weights else reference_models.statistics_of_rows(population)
    held, schema = population.held, population.schema
    honest = np.flatnonzero(population.from_honest)
    histograms = None if of_rows[1] is None else Histograms.of(held, schema, honest, of_rows[1])
    del held
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
        of_rows[0],
        of_rows[1],
        scaling,
        family_choice,
        site_scores,
        seconds_by_round=seconds_by_round,
        histograms=histograms,
    )
    if settings.references:
        run = _with_references(run, settings, scoring, y, pooled_results)
        clock.add("references")
    if settings.baselines:
        scoring.baselines()
        clock.add("baselines")
    run = replace(run, scored=scoring.result)
    if live_file is not None:
        live_file.close()
    return run


def _with_references(
    run: Run,
    settings: SimulationSettings,
    scoring: Scoring,
    y: Any,
    early: reference_models.Learned | None,
) -> Run:
    """Return a run with the errors of peers alone and of RC and ML on the pooled rows, whose scores are collected.

    `early` has the figures of the pooled rows where they were computed before the first round.
    """
    population, evaluation = scoring.population, scoring.evaluation
    if planning.silent(run.configuration["strategy"]):
        errors, of_peers = reference_models.own_errors(run.records, evaluation, population.peer_count), None
    else:
        errors, of_peers = reference_models.local_errors(scoring.local, evaluation)
    scoring.alone(of_peers)
    pooled_errors, predicted, posteriors = early or _pooled(settings, population, y)
    scoring.pooled(posteriors)
    references = run.references | errors | pooled_errors
    return replace(run, references=references, outcomes=run.outcomes | predicted)


def _provenance(
    X: Any, y: Any, arguments: Mapping[str, Any], asked: Mapping[str, Any], run: Run
) -> Provenance:
    """Return what made a run from a table and arguments; `asked` are its settings before anything was chosen."""
    data = data_of(X, y, len(run.schema.classes), arguments.get("test"))
    changed = {name: value for name, value in run.configuration.items() if value != asked.get(name)}
    chosen = {name: list(value) if isinstance(value, tuple) else value for name, value in changed.items()}
    written, arrays = asked_of(arguments)
    return Provenance(data, written, arrays, chosen, machine()).located(written)


def _selector(settings: SimulationSettings, population: Population, start: np.ndarray) -> Selector | None:
    """Return what selects a round of models like S⁰ [N, C, K]; None: the last one is kept."""
    if population.held_out is None or settings.select != HELD_OUT:
        return None
    links = topologies.without_absences(population.network).at(1)
    return Selector(
        population.held_out, settings.patience, settings.network_faults, settings.exchange_count, links,
        Selection.begin(settings.array_device.put(start)),
    )  # fmt: skip


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


def _pooled(settings: SimulationSettings, population: Population, y: Any) -> reference_models.Learned:
    """Return the figures of RC and ML on the pooled rows."""
    pooled = reference_models.Pooled.of(population, y)
    return pooled.learned(settings.start, settings.lr, settings.rounds)


def _quickly_pooled(settings: SimulationSettings, population: Population) -> bool:
    """Return whether RC on the pooled rows takes a moment, so that a run that is watched need not wait for it."""
    numbers = population.held.classes * population.family.size
    return int(population.held.sizes.sum()) * numbers * settings.rounds <= QUICK_WORK


def _live(
    folder: str | Path,
    configuration: dict[str, Any],
    provenance: dict[str, str],
    population: Population,
    references: bool,
) -> LiveFile:
    """Return the live file of a simulation."""
    network_structure = Structure.of(population.schema, population.family)
    return LiveFile(
        Path(folder), configuration, provenance, population.held.sizes, population.links, network_structure,
        references,
    )  # fmt: skip
