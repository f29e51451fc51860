"""The simulator: all peers at once, as [N, C, K], with the strategies that real peers run."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from peerbayes.data.arguments import about
from peerbayes.data.schema import Schema
from peerbayes.learning.state import Checkpoint
from peerbayes.learning.strategies import Strategy
from peerbayes.model import layout
from peerbayes.network import LossTrace
from peerbayes.privacy.accounting import Privacy
from peerbayes.simulation import drivers, result, starts
from peerbayes.simulation import evaluation as reference_models
from peerbayes.simulation.evaluation import Evaluation
from peerbayes.simulation.inputs import warn_untested
from peerbayes.simulation.live import LiveFile
from peerbayes.simulation.loop import Clock, Loop, Progress
from peerbayes.simulation.old_names import refuse_old_names, to_stored
from peerbayes.simulation.population import Population
from peerbayes.simulation.result import REFERENCES, Run
from peerbayes.simulation.settings import Asked
from peerbayes.simulation.view import Structure


@refuse_old_names
def simulate(
    X: Any,
    y: Any,
    *,
    family: str = "naive-bayes",
    kinds: Any = "auto",
    schema: Schema | None = None,
    peers: int = 50,
    rows_per_peer: Any = 50,
    topology: Any = "tree",
    partition: Any = "iid",
    strategy: str | Strategy = "exact",
    start: str = "uniform",
    rounds: int = 64,
    lr: float = 0.05,
    local_steps: int = 1,
    change_every: int | None = None,
    objective: str = "rows",
    test: tuple[Any, Any] | None = None,
    evaluate_every: int = 1,
    evaluate_rows: int | tuple[int, int] | None = None,
    seed: int = 0,
    clip: float | None = 5.0,
    message_loss: float | LossTrace = 0.0,
    message_delay: float = 0.0,
    peers_down: float = 0.0,
    secure_sum: bool = False,
    start_rounds: int = 32,
    privacy: Privacy | None = None,
    robust: str | None = None,
    attack: Any = None,
    references: bool = True,
    progress: Progress | None = None,
    checkpoint: str | Path | None = None,
    live: str | Path | None = None,
    device: str | None = None,
    dtype: str = "float64",
) -> Run:
    """Let peers learn one classifier over a network, and return the run with each peer's model and errors.

    X               the table: a DataFrame or an array [n, D]
    y               its labels [n]
    family          the model of a class: "naive-bayes", "qda", "lda", "tan", "kdb"; all take missing values
    kinds           which columns are discrete: "auto" (text, booleans and categoricals), "paper" (at most 10 distinct
                    values), "continuous", "discrete", one kind per column, or a mapping; see `Schema.infer`
    schema          columns and classes, instead of `kinds`, `clip` and inference from the rows; units are those of the
                    peers' rows
    peers           number of peers, at most the number of rows
    rows_per_peer   rows of each peer, one number or one per peer; None: all rows, shared out evenly
    topology        the network: a name ("tree", "ring", "tree+80", …; see `topologies.NAMES`), a networkx graph, a
                    matrix, a file of links, or a schedule that changes
    partition       which peer holds which rows: a name ("iid", "drift-y", "dirichlet-0.3", …; see `partitions`), or a
                    list of index arrays
    strategy        how peers learn: "exact", "relay", "auto" (chooses between these two), "crc" (the paper's),
                    "tracking", "local", "consensus-ml", "dsgd", or a strategy of your own
    start           the initial statistics of all peers: "uniform" (the paper's), "marginal" or "ml"
    rounds          rounds of messages, 64 as in the paper
    lr              the learning rate of RC, by which the start weighs m⁰ = m / (lr·n) rows; the paper's is 0.05. At
                    most 2: where rows carry no information, a step takes counts S to (1 − lr)·S + m_c/n, which diverges
                    above 2
    local_steps     steps on a peer's own rows between two messages
    change_every    rounds after which a random network is drawn again; None: never
    objective       "rows": every row has the same weight; "peers": every peer has
    test            rows and labels to test on; None: the rows that no peer holds. If peers hold all rows, a warning
                    says so, and test errors are NaN
    evaluate_every  rounds between evaluations; 0 evaluates at the end only
    evaluate_rows   training rows and test rows that peers are evaluated on, drawn at random, one number or two; None:
                    all, up to 8 million predictions of each kind (peers times rows)
    seed            seed of all randomness: partition, network and faults; one whole number
    clip            standardised values are held within ±clip; None: they are not
    message_loss    probability that a message is lost, or a `network.LossTrace` of the messages that are; the weight of
                    a lost one goes to the receiver itself
    message_delay   probability that a link lags: the message of the previous round arrives
    peers_down      probability that a peer is absent for a round: it neither sends, receives nor learns
    secure_sum      whether peers learn only the sum of their neighbours' messages: numbers are rounded to 2⁻³², a peer
                    that misses one message keeps its own, and every peer needs at least three neighbours
    start_rounds    rounds of accelerated gossip to agree on the "marginal" and "ml" starts; their bytes are counted
    privacy         `peerbayes.Privacy(epsilon=4.0)`: noise in everything that a peer sends, which bounds what anybody
                    can learn about one row; None: no noise. With a `schema`, its units are used as declared
    robust          the defence against false messages: None, "clip" (a neighbour moves a peer by at most a typical
                    distance) or "guard" (clip, and links to neighbours whose models fail on a peer's own rows are cut);
                    for the strategies exact and crc. Units then come from votes, and no peer counts for more than
                    four times the median of rows. See `combining`, `guard`, `moments` and `member_bounds`
    attack          peers that lie: an `Attack`, its kind ("flip"), or a table of its fields. Errors, references and the
                    history are then those of the honest peers and their rows. Before the first round attackers are
                    honest, unless the attack has a `report`; robust peers refuse impossible ones with a `FalseReport`
    references      whether RC and ML on the pooled rows, and peers on their own (strategy "local"), are computed too
    progress        called after every round with the number of rounds done and the total
    checkpoint      a file to resume from after a crash: on the same machine the same call ends with the same bits
    live            a folder that rounds are written to as the simulation runs: `peerbayes watch` shows them
    device          PyTorch's name of a device ("cuda"); None: NumPy
    dtype           "float64" or "float32"
    """
    settings, provenance = Asked.of(locals()), result.made()
    population = Population.of(settings, X, y, schema, test)
    if population.test_rows is None:
        warn_untested()
    begin, start_bytes = starts.agreed(settings, population)
    driver = drivers.build_driver(settings, population, begin)
    configuration = settings.configuration | {"strategy": driver.strategy.name}
    evaluation = Evaluation.of(settings, population)
    saved = None if checkpoint is None else _checkpoint(checkpoint, configuration, population, evaluation)
    clock = Clock()
    loop = Loop(
        driver, evaluation, clock, driver.begin(settings.place.put(begin)), population.sent + start_bytes
    )
    del begin  # statistics take most of a large network's memory
    if saved is not None:
        with about("checkpoint"):
            loop.resume(saved, population.hidden)
    live_file = None if live is None else _live(live, configuration, provenance, population)
    loop.go(settings.rounds, settings.evaluate_every, saved, live_file, progress)

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
    if references:
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
