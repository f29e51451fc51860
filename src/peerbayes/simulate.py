"""Driver 1: every peer at once, as [N, C, K]. The strategies are those a real peer runs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from peerbayes import layouts, versions
from peerbayes.arguments import about
from peerbayes.checkpoints import Checkpoint
from peerbayes.inputs import warn_untested
from peerbayes.live import LiveFile
from peerbayes.privacy.terms import Privacy
from peerbayes.runs import REFERENCES, Run
from peerbayes.schema import Schema
from peerbayes.simulation import drivers, starts
from peerbayes.simulation import references as compared
from peerbayes.simulation.asked import Asked
from peerbayes.simulation.clock import Clock, Progress
from peerbayes.simulation.course import Course
from peerbayes.simulation.judging import Judging
from peerbayes.simulation.population import Population
from peerbayes.strategies import Strategy
from peerbayes.views import Structure


def simulate(
    X: Any,
    y: Any,
    *,
    family: str = "naive-bayes",
    kinds: Any = "auto",
    schema: Schema | None = None,
    nodes: int = 50,
    rows_per_node: Any = 50,
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
    message_loss: float = 0.0,
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
    """Let `nodes` peers learn one classifier over a network, and say how each of them does.

    X               the table: a DataFrame or an array [n, D]
    y               its labels [n]
    family          what a class looks like: "naive-bayes", "qda", "lda", "tan", "kdb"; all take missing values
    kinds           which columns are discrete: "auto" (text, booleans and categoricals), "paper" (at most 10 distinct
                    values), "continuous", "discrete", one kind per column, or a mapping; see `Schema.infer`
    schema          what columns and classes are, instead of `kinds`, `clip` and what the rows show;
                    units are those of the peers' rows
    nodes           how many peers, at most as many as there are rows
    rows_per_node   rows of each peer, one number or one per peer; None: all rows, shared out evenly
    topology        who hears whom: a name ("tree", "ring", "tree+80", …; see `topologies.NAMES`), a networkx graph, a
                    matrix, a file of links, or a schedule that changes
    partition       which peer holds which rows: a name ("iid", "drift-y", "dirichlet-0.3", …; see `partitions`), or a
                    list of index arrays
    strategy        how peers learn: "exact", "relay", "auto" (chooses between these two), "crc" (the paper's),
                    "tracking", "local", "consensus-ml", "dsgd", or a strategy of your own
    start           the statistics that all begin with: "uniform" (the paper's), "marginal" or "ml"
    rounds          rounds of messages, 64 as in the paper
    lr              the learning rate of RC, by which the start weighs m⁰ = m / (lr·n) rows; the paper's is 0.05. At
                    most 2: where rows say nothing, a step takes counts S to (1 − lr)·S + m_c/n, and beyond 2 they swing
                    ever further
    local_steps     steps on a peer's own rows between two messages
    change_every    rounds after which a random network is drawn anew; None: it stays
    objective       "rows": every row counts the same; "peers": every peer does
    test            rows and labels to test on; without it, the rows that no peer holds. Where peers hold them all, a
                    warning says so, and test errors are NaN
    evaluate_every  rounds between evaluations; 0 evaluates at the end only
    evaluate_rows   training rows and test rows that peers are judged on, drawn at random, one number or two; None: all,
                    as long as that is at most 8 million judgements a kind (peers times rows)
    seed            of all randomness: partition, network and faults; one whole number, for one run
    clip            standardised values are held within ±clip; None: they are not
    message_loss    probability that a message is lost; its weight goes to the receiver itself
    message_delay   probability that a link lags: what arrives is the message of the round before
    peers_down      probability that a peer is away for a round: it neither hears nor learns
    secure_sum      whether neighbours learn only the sum of the messages that they hear: numbers are rounded to 2⁻³²,
                    a peer that misses one message keeps its own, and every peer needs three neighbours or more
    start_rounds    rounds of accelerated gossip that agree on the "marginal" and "ml" starts, counted in bytes
    privacy         `peerbayes.Privacy(epsilon=4.0)`: noise in whatever leaves a peer, so that what anybody can learn of
                    one row is bounded; None: none. With a `schema`, its units are taken as they are declared
    robust          what peers do about false messages: None, "clip" (each neighbour moves a peer by a middling distance
                    at most) or "guard" (clip, and links to neighbours whose models fail on a peer's own rows are cut);
                    for the strategies exact and crc. Units are then medians over peers, and none counts for more than
                    four middling ones. See `combining`, `guard` and `member_bounds`
    attack          peers that lie: an `Attack`, its kind ("flip"), or a table of its fields. Errors, references and the
                    history are then of the honest peers and their rows. Before the first round attackers are honest,
                    unless the attack has a `report`; robust peers refuse what cannot be true by a `FalseReport`
    references      whether RC and ML on the pooled rows, and peers alone (strategy "local"), are computed beside them
    progress        called after every round with the rounds done and the rounds in all
    checkpoint      a file to go on from after a crash: on the same machine the same call then ends with the same bits
    live            a folder that the rounds are written to as they come: `peerbayes watch` shows them
    device          PyTorch's name of a device ("cuda"); None: NumPy
    dtype           "float64" or "float32"
    """
    asked, made = Asked.of(locals()), versions.made()
    peers = Population.of(asked, X, y, schema, test)
    if peers.unseen is None:
        warn_untested()
    begin, start_bytes = starts.agreed(asked, peers)
    driver = drivers.chosen(asked, peers, begin)
    configuration = asked.configuration | {"strategy": driver.strategy.name}
    judging = Judging.of(asked, peers)
    saved = None if checkpoint is None else _checkpoint(checkpoint, configuration, peers, judging)
    clock = Clock()
    course = Course(driver, judging, clock, driver.begin(asked.place.put(begin)), peers.sent + start_bytes)
    del begin  # a large network's memory is its statistics
    if saved is not None:
        with about("checkpoint"):
            course.resume(saved, peers.hidden)
    watched = None if live is None else _live(live, configuration, made, peers)
    course.go(asked.rounds, asked.evaluate_every, saved, watched, progress)

    stats, records, rejected = course.stats(), np.concatenate(course.records), course.rejected
    of_weights = driver.strategy.of_weights
    del course, driver  # all peers' states
    outcomes = {"peers": judging.outcome(stats, of_weights)}
    clock.add("evaluation")
    run = Run(
        configuration,
        peers.schema,
        layouts.without_guards(peers.family),
        stats,
        records,
        dict.fromkeys(REFERENCES, math.nan),
        peers.held.sizes,
        of_weights,
        clock.seconds,
        peers.links,
        outcomes,
        made,
        np.zeros((0, 5)) if peers.hidden is None else peers.hidden.spent(),
        peers.attackers,
        rejected,
    )
    if references:
        errors = compared.alone(run, asked, peers, judging)
        pooled = compared.Pooled.of(peers, y)
        del peers, judging  # the others need room
        more, predicted = pooled.learned(asked.start, asked.lr, asked.rounds)
        run = replace(run, references=run.references | errors | more, outcomes=outcomes | predicted)
        clock.add("references")
    if watched is not None:
        watched.close()
    return run


def _checkpoint(
    path: str | Path, configuration: dict[str, Any], peers: Population, judging: Judging
) -> Checkpoint:
    """The checkpoint of these settings and of all rows that they are about."""
    held = peers.held
    return Checkpoint.of(
        path, configuration, held.rows, held.labels, held.row_weights, held.sizes, judging.test_rows
    )


def _live(
    folder: str | Path, configuration: dict[str, Any], made: dict[str, str], peers: Population
) -> LiveFile:
    """What is written for whoever watches."""
    seen = Structure.of(peers.schema, peers.family)
    return LiveFile(Path(folder), configuration, made, peers.held.sizes, peers.links, seen)
