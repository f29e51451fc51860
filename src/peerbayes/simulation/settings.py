"""The settings of a simulation: declared, checked one by one and together."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, TypedDict

import numpy as np

from peerbayes import network
from peerbayes.data.arguments import LARGEST_SEED, about, number, one_of, path, refusal, whole
from peerbayes.data.declarations import (
    Kind,
    Setting,
    anything,
    checked,
    choice,
    declarations,
    optional,
    probability,
    real_number,
    true_or_false,
    whole_number,
    writable,
)
from peerbayes.data.infer import check_kinds
from peerbayes.data.schema import Schema
from peerbayes.data.table import Table
from peerbayes.errors import PartitionError, TopologyError
from peerbayes.learning import combinations, planning
from peerbayes.learning import shared_settings as shared
from peerbayes.learning.combinations import Combination
from peerbayes.learning.few_bytes import exchange_count
from peerbayes.learning.robust.attacks import Attack
from peerbayes.learning.selection import HELD_OUT
from peerbayes.learning.strategies import MIXINGS, Declaration, Strategy
from peerbayes.model.devices import PRECISIONS, Device
from peerbayes.network.fault_kinds import FAULTS_EXPECTED, faults_of, trace_of
from peerbayes.network.topologies import MOST_NODES
from peerbayes.privacy.accounting import Privacy
from peerbayes.simulation import baselines, partitions, scores
from peerbayes.simulation.events import CALLBACKS, checked_callbacks
from peerbayes.simulation.faults import Faults
from peerbayes.simulation.old_names import refuse_old
from peerbayes.simulation.owners import with_peers
from peerbayes.simulation.rounds import ROBUST

# --- checks: converted to a plain value, or refused by name before any work starts
# Rows and the network are checked when they are read: see `population`. Combinations are checked by
# `SimulationSettings`.

Progress = Callable[[int, int], object]  # called with the rounds done and the total

# Attributes that a driver needs of every strategy; `takes_old` only where messages are late.
OF_STRATEGIES = ("name", "mixing", "of_weights", "begin", "message", "step", "read")

# Settings that stored runs and checkpoints did not have at first: at their defaults they are left out of files.
ADDED = ("messages", "exchanges", "faults", "penalty", "hold_out", "select", "patience", "structure")
COMPARED = ("metrics", "baselines")  # as `ADDED`; files have the names of their entries

LOSS_EXPECTED = (
    "a probability from 0 to below 1, or a LossTrace, or the path of its CSV file, or a list of paths"
)


def as_json(value: Any) -> Any:
    """Return a setting as JSON can hold it: plain values and tuples of them, for others the name of the type."""
    plain = all(
        isinstance(item, str | int | float | None)
        for item in (value if isinstance(value, tuple) else (value,))
    )
    return value if plain else type(value).__name__


def check_sizes(rows_per_peer: Any, peers: int, partition: Any) -> None:
    """Refuse numbers of rows that do not fit the peers; a partition that lists rows does not use them."""
    listed = isinstance(partition, list | tuple) or partitions.owner_column(partition) is not None
    if rows_per_peer is not None and not listed:
        partitions.sizes_asked(rows_per_peer, peers)


def both(evaluate_rows: int | tuple[int | None, int | None] | None) -> tuple[int | None, int | None]:
    """Return the numbers of training rows and test rows that models are evaluated on."""
    return evaluate_rows if isinstance(evaluate_rows, tuple) else (evaluate_rows, evaluate_rows)


def _rows_per_peer(name: str, value: Any) -> Any:
    """Return a checked number; the length of a list is checked with the number of peers."""
    if isinstance(value, list | tuple) or np.ndim(value):
        return value
    return whole(name, value, 1, advice=", one for each peer", error=PartitionError)


def _evaluate_rows(name: str, value: Any) -> Any:
    """Return one number, or a pair for training and test rows; None: all rows."""
    if isinstance(value, list | tuple):
        if len(value) != 2:
            raise refusal(name, value, "one number, or two: of training rows and of test rows")
        return tuple(_evaluate_rows(name, count) for count in value)
    return None if value is None else whole(name, value, 1)


def _seed(name: str, value: Any) -> int:
    if isinstance(value, list | tuple | set | range) or np.ndim(value):
        raise refusal(name, value, "one whole number: a run has one seed, so call once for each of them")
    return whole(name, value, 0, LARGEST_SEED)


def _strategy(name: str, value: Any) -> Any:
    if isinstance(value, str | type) or not all(hasattr(value, attribute) for attribute in OF_STRATEGIES):
        or_value = f", or a strategy of your own: a value with {', '.join(OF_STRATEGIES)}"
        chosen = one_of(name, value, planning.choices(), or_value)
        planning.load(chosen)  # an outside package's: its declaration is needed
        return chosen
    if not (isinstance(value.mixing, str) and callable(getattr(network, value.mixing, None))):
        one_of("strategy: its mixing", value.mixing, MIXINGS)
    if not isinstance(value.name, str):
        raise refusal("strategy: its name", value.name, "a text")
    if not isinstance(planning.declaration_of(value), Declaration):
        raise refusal("strategy: its declaration", value.declaration, "a Declaration", TypeError)
    if planning.declaration_of(value).over_tree:
        raise refusal("strategy: its declaration", value.declaration, "over_tree only for a registered name")
    return value


def _kinds(name: str, value: Any) -> Any:
    check_kinds(value)
    return value


def _partition(name: str, value: Any) -> Any:
    """Return a checked name; lists are checked with the rows."""
    if not isinstance(value, list | tuple):
        partitions.parsed(value)
    return value


def _robust(name: str, value: Any) -> str | None:
    if value is not None and not (isinstance(value, str) and value in ROBUST):
        raise refusal(name, value, "None, 'clip' or 'guard'")
    return value


def _dtype(name: str, value: Any) -> str:
    """Return the name of a precision, also of a NumPy type."""
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.floating)):
        value = np.dtype(value).name
    return one_of(name, value, PRECISIONS)


def _of_type(kind: type, expected: str) -> Kind:
    """Return the kind of values of a type, or None."""

    def check(name: str, value: Any) -> Any:
        if value is not None and not isinstance(value, kind):
            raise refusal(name, value, expected, TypeError)
        return value

    return Kind(check, expected, optional=True)


def _test(name: str, value: Any) -> tuple[Any, Any] | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise refusal(name, value, TEST, TypeError)
    with about(name):
        rows, shape = Table.of(value[0]).rows, np.shape(value[1])
    if rows == 0 or shape != (rows,):
        raise ValueError(
            f"{name} holds {rows} rows, and labels of shape {shape}; expected at least one row, and a label for each"
        )
    return value[0], value[1]


def _progress(name: str, value: Any) -> Any:
    if value is None:
        return None
    fits = callable(value)
    if fits:
        try:
            inspect.signature(value).bind(1, 2)
        except TypeError:
            fits = False
        except ValueError:  # functions written in C may have no signature; no class written in C takes rounds
            fits = not isinstance(value, type)
    if not fits:
        raise refusal(name, value, PROGRESS, TypeError)
    return value


def _path(expected: str, fits: Callable[[Path], bool]) -> Kind:
    """Return the kind of paths that fit, or None."""

    def check(name: str, value: Any) -> Path | None:
        if value is None:
            return None
        location = path(name, value, expected)
        try:
            if fits(location):
                return location
        except OSError:  # a name that is too long
            pass
        raise refusal(name, str(location), expected)

    return Kind(check, expected, optional=True)


def _privacy(terms: dict[str, Any]) -> Privacy:
    """Return `privacy = { epsilon = 4.0 }` of a file as a `Privacy`."""
    names = tuple(declarations(Privacy))
    try:
        for name in terms:
            one_of("a term", name, names)
        return Privacy(**terms)
    except (TypeError, ValueError) as error:
        raise ValueError(f"privacy: {error}; it holds any of {', '.join(names)}") from error


def _message_loss(name: str, value: Any) -> Any:
    """Return a probability, or a trace; one that is named by paths is read."""
    if isinstance(value, network.LossTrace):
        return value
    if isinstance(value, str | Path) or (isinstance(value, list | tuple) and value):
        with about(name):
            return trace_of(value)
    return number(name, value, LOSS_EXPECTED, least=0.0, below=1.0)


def _faults(name: str, value: Any) -> tuple[network.Fault | network.LossTrace, ...] | None:
    with about(name):
        return faults_of(value) or None


def _attack(_: str, value: Any) -> Attack | None:
    return None if value is None else Attack.of(value)


TEST = "rows and their labels, (X, y), or None"
PROGRESS = "a function of the rounds done and the rounds in all"
CHECKPOINT = _path(
    "the path of a file, in a folder that exists", lambda file: not file.is_dir() and file.parent.is_dir()
)
LIVE = _path(
    "the path of a folder, which is made where it is missing",
    lambda folder: next(above.is_dir() for above in (folder, *folder.parents) if above.exists()),
)
PRIVACY = "a peerbayes.Privacy, for instance Privacy(epsilon=4.0), in a file { epsilon = 4.0 }, or None"

EVALUATE_EVERY = Setting(1, whole_number(0), "rounds between evaluations; 0 evaluates at the end only")


# --- the declarations: those that `simulate` and `simulate_shards` take, and those of `simulate` only
# fmt: off


class CommonArguments(TypedDict, total=False):
    """The settings of every simulation, in one process or in shards."""

    family: Annotated[str, shared.FAMILY]
    kinds: Annotated[Any, Setting(
        "auto", Kind(_kinds, "a kind, a list with one per column, or a table", (str, list, dict)),
        'which columns are discrete: "auto" (text, booleans and categoricals), "paper" (at most 10 distinct values), '
        '"continuous", "discrete", "binned", "supervised", …, one kind per column, or a mapping; see `Schema.infer`')]
    schema: Annotated[Schema | None, Setting(
        None, _of_type(Schema, "a Schema, for instance Schema.load(path)"),
        "columns and classes, instead of `kinds`, `clip` and inference from the rows; units are those of the peers' "
        "rows")]
    peers: Annotated[int, Setting(
        50, whole_number(1, MOST_NODES, PartitionError), "number of peers, at most the number of rows",
        "Left out, it is what a graph, a file of links, a list of rows or a column of owners says, otherwise 50")]
    rows_per_peer: Annotated[Any, Setting(
        50, optional(Kind(_rows_per_peer, "a whole number of 1 or more, one for each peer", (int, list))),
        "rows of each peer, one number or one per peer; None: all rows, shared out evenly")]
    topology: Annotated[Any, Setting(
        "tree", anything("the name of a topology, or the path of a file of links", str),
        'the network: a name ("tree", "ring", "tree+80", …; see `topologies.NAMES`), a networkx graph, a matrix, a '
        "file of links, or a schedule that changes")]
    partition: Annotated[Any, Setting(
        "iid", Kind(_partition, "the name of a partition", (str,)),
        'which peer holds which rows: a name ("iid", "drift-y", "dirichlet-0.3", …; see `partitions`), a list of '
        'index arrays, or "column:NAME": the column NAME of X names the owner of each row, a peer each, and is no '
        "feature; rows without an owner are test rows")]
    strategy: Annotated[str | Strategy, replace(
        shared.STRATEGY, kind=replace(shared.STRATEGY.kind, check=_strategy),
        help=f"{shared.STRATEGY.help}, or a strategy of your own")]
    structure: Annotated[tuple[tuple[str, str], ...] | None, shared.STRUCTURE]
    start: Annotated[str, shared.START]
    rounds: Annotated[int, shared.ROUNDS]
    lr: Annotated[float, shared.LR]
    local_steps: Annotated[int, shared.LOCAL_STEPS]
    messages: Annotated[str, shared.MESSAGES]
    exchanges: Annotated[int | None, shared.EXCHANGES]
    penalty: Annotated[str, shared.PENALTY]
    objective: Annotated[str, Setting(
        "rows", choice(("rows", "peers")), '"rows": every row has the same weight; "peers": every peer has')]
    test: Annotated[tuple[Any, Any] | None, Setting(
        None, Kind(_test, TEST, optional=True), "rows and labels to test on; None: the rows that no peer holds",
        "If peers hold all rows, a warning says so, and test errors are NaN")]
    evaluate_rows: Annotated[int | tuple[int | None, int | None] | None, Setting(
        None, optional(Kind(_evaluate_rows, "a whole number of 1 or more", (int, list)), "for all rows"),
        "training rows and test rows that peers are evaluated on, drawn at random, one number or two; None: all, up to "
        "8 million predictions of each kind (peers times rows)")]
    seed: Annotated[int, Setting(
        0, Kind(_seed, "a whole number of 0 or more", (int,)),
        "seed of all randomness: partition, network and faults; one whole number")]
    clip: Annotated[float | None, shared.CLIP]
    dtype: Annotated[str, Setting(
        "float64", replace(choice(PRECISIONS), check=_dtype), '"float64" or "float32"')]
    progress: Annotated[Progress | None, Setting(
        None, Kind(_progress, PROGRESS, optional=True),
        "called after every round with the number of rounds done and the total")]
    callbacks: Annotated[tuple[Any, ...] | list[Any], Setting(
        (), Kind(checked_callbacks, CALLBACKS),
        "called with the figures of each evaluated round, some also at the start and the end: functions of a round and "
        "its figures, or objects such as those of `peerbayes.callbacks`", "They change nothing")]


class SimulationArguments(CommonArguments, total=False):
    """The settings of `simulate`."""

    evaluate_every: Annotated[int, EVALUATE_EVERY]
    change_every: Annotated[int | None, Setting(
        None, optional(whole_number(1, error=TopologyError)),
        "rounds after which a random network is drawn again; None: never")]
    message_loss: Annotated[float | network.LossTrace, Setting(
        0.0, Kind(_message_loss, LOSS_EXPECTED, (float, int, str, list)),
        "probability that a message is lost, each independently of all others and in one direction; or the messages "
        "that are lost: a `network.LossTrace`, or the path of its CSV file, or a list of paths",
        "The weight of a lost message goes to the receiver itself. Other faults: see `faults`")]
    message_delay: Annotated[float, Setting(
        0.0, probability(), "probability that a link lags: the message of the previous round arrives")]
    peers_down: Annotated[float, Setting(
        0.0, probability(), "probability that a peer is absent for a round: it neither sends, receives nor learns")]
    faults: Annotated[Any, Setting(
        None, Kind(_faults, FAULTS_EXPECTED, (list, str), optional=True),
        "how the network fails, unknown to the peers beforehand: a list of `network.Loss`, `Bursts`, `Flapping`, "
        "`Away`, `DeadLinks` and `LossTrace`, or tables of their fields with their `kind`, or the path of a TOML file "
        "of [[faults]]; None: it does not",
        "Peers that do not come back count in errors until they vanish, then no more. Rounds are those of messages: "
        "each of several `exchanges` is one")]
    secure_sum: Annotated[bool, shared.SECURE_SUM]
    start_rounds: Annotated[int | None, Setting(
        None, optional(whole_number(0, shared.MOST_ROUNDS), "for a sum"),
        'rounds of accelerated gossip to agree on the "marginal" and "ml" starts; None: a sum along a spanning tree, '
        "as real peers have it, or 32 rounds where links change and no tree stays. Bytes are counted")]
    privacy: Annotated[Privacy | None, Setting(
        None, replace(_of_type(Privacy, PRIVACY), types=(dict,), read=_privacy),
        "`peerbayes.Privacy(epsilon=4.0)`: noise in everything that a peer sends, which bounds what anybody can learn "
        "about one row; None: no noise", "With a `schema`, its units are used as declared")]
    robust: Annotated[str | None, Setting(
        None, Kind(_robust, "None, 'clip' or 'guard'", (str,), optional=True),
        'the defence against false messages: None, "clip" (a neighbour moves a peer by at most a typical distance) or '
        '"guard" (clip, and links to neighbours whose models fail on a peer\'s own rows are cut)',
        "For the strategies exact and crc. Units then come from votes, and no peer counts for more than four times the "
        "median of rows. See `peerbayes.learning.robust`")]
    attack: Annotated[Any, Setting(
        None, Kind(_attack, "its kind, or a table of its fields", (str, dict), optional=True),
        'peers that lie: an `Attack`, its kind ("flip"), or a table of its fields',
        "Errors, references and the history are then those of the honest peers and their rows. Before the first round "
        "attackers are honest, unless the attack has a `report`; robust peers refuse impossible ones with a "
        "`FalseReport`")]
    hold_out: Annotated[float, Setting(
        0.0, real_number("a share from 0 to below 1", least=0.0, below=1.0),
        "share of each peer's rows that it does not learn from, drawn at random: select \"held-out\" uses them")]
    select: Annotated[str, shared.SELECT]
    patience: Annotated[int | None, shared.PATIENCE]
    references: Annotated[bool, Setting(
        True, replace(true_or_false(), types=()),
        'whether RC and ML on the pooled rows, and peers on their own (strategy "local"), are computed too')]
    metrics: Annotated[Any, Setting(
        tuple(scores.BUILT_IN), Kind(scores.metrics_of, scores.METRICS_IN_FILES, (list, str)),
        "metrics of peers, alone, pooled and of baselines on the same test rows at the end, beside the error: any of "
        f"{', '.join(scores.BUILT_IN)}, names of scikit-learn's scorers, scorers, or a mapping from names to scorers",
        "See `run.scores`; of very many peers, some are evaluated by them, evenly spaced")]
    baselines: Annotated[Any, Setting(
        (), Kind(baselines.baselines_of, baselines.IN_FILES, (list, str)),
        f"other methods on the same rows: any of {', '.join(baselines.NAMES)}, or classifiers of scikit-learn, which "
        "learn from all rows in one place and from each peer's alone",
        "Softmax regression and FedAvg choose their steps by whole trial runs, which takes many times as long as the "
        "run itself. The majority class is always there")]
    checkpoint: Annotated[str | Path | None, Setting(
        None, CHECKPOINT,
        "a file to resume from after a crash: on the same machine the same call ends with the same bits")]
    live: Annotated[str | Path | None, Setting(
        None, LIVE,
        "a folder that rounds are written to as the simulation runs: `peerbayes watch` shows them")]
    device: Annotated[str | None, Setting(
        None, Kind(lambda _, value: Device(value).name, "the name of a device", (str,), optional=True),
        'PyTorch\'s name of a device ("cuda"); None: NumPy')]


# fmt: on


# --- the settings of a simulation, and which of them do not go together


class SimulationSettings(SimpleNamespace):
    """The settings of a simulation as attributes: checked, plain, with defaults; a `TypeError` for unknown names."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        refuse_old(arguments)
        for name in arguments:
            if name not in declarations(SimulationArguments):
                raise TypeError(f"simulate() got an unexpected keyword argument {name!r}")
        super().__init__(**checked(SimulationArguments, with_peers(arguments)))
        self._refuse_combinations()

    def changed(self, **changes: Any) -> SimulationSettings:
        """Return the settings with some of them changed, and checked again."""
        names = declarations(SimulationArguments)
        return SimulationSettings({name: getattr(self, name) for name in names} | changes)

    def _refuse_combinations(self) -> None:
        """Refuse settings that do not go together before any work starts."""
        check_sizes(self.rows_per_peer, self.peers, self.partition)
        if (
            self.message_delay
            and not isinstance(self.strategy, str)
            and not hasattr(self.strategy, "takes_old")
        ):
            raise refusal(
                "strategy",
                self.strategy,
                "one with an attribute takes_old, which says whether it uses late messages, or no message_delay",
            )
        liars = () if self.attack is None else self.attack.attackers(self.peers, self.seed)
        if np.union1d(self.network_faults.gone(self.message_rounds), liars).size == self.peers:
            raise ValueError(
                "faults: no peer is left at the end that does not lie; expected one or more that come back or stay"
                if len(liars) else
                "faults: no peer is left at the end; expected one or more that come back or stay"
            )  # fmt: skip
        if self.select == HELD_OUT and not self.hold_out:
            raise refusal("hold_out", self.hold_out, "a share of rows above 0, which select 'held-out' needs")
        self.refuse()

    def refuse(self, **facts: Any) -> None:
        """Refuse settings that do not go together, by the facts known so far: see `combinations`."""
        combinations.refuse(replace(self.combination, **facts))

    @property
    def exchange_count(self) -> int:
        """Exchanges of messages in a round; faults count them as rounds."""
        return exchange_count(self.messages, self.exchanges)

    @property
    def combination(self) -> Combination:
        """The settings that rules relate to each other."""
        return Combination(
            strategy=self.strategy,
            family=self.family,
            start=self.start,
            local_steps=self.local_steps,
            objective=self.objective,
            robust=self.robust,
            secure_sum=self.secure_sum,
            epsilon=None if self.privacy is None else self.privacy.epsilon,
            edge_noise=0.0 if self.privacy is None else self.privacy.edge_noise,
            attack=self.attack is not None,
            report=None if self.attack is None else self.attack.report,
            device=self.device,
            dtype=self.dtype,
            messages=self.messages,
            exchanges=self.exchanges,
            select=self.select,
            structure=self.structure is not None,
            baselines=tuple(entry.name for entry in self.baselines if entry.name in baselines.OVER_NETWORK),
        )

    @property
    def configuration(self) -> dict[str, Any]:
        """All settings as JSON can hold them; privacy and attack with all fields, those added later if they are set."""
        configuration = {
            name: as_json(getattr(self, name))
            for name, setting in writable(SimulationArguments).items()
            if name not in (*ADDED, *COMPARED)
            or getattr(self, name) != setting.kind.check(name, setting.default)
        }
        if self.privacy is not None:
            configuration["privacy"] = asdict(self.privacy)
        if isinstance(self.message_loss, network.LossTrace):
            configuration["message_loss"] = str(self.message_loss)
        if self.faults:
            configuration["faults"] = "; ".join(map(str, self.faults))
        if self.attack is not None:
            configuration["attack"] = str(self.attack)
        for name in COMPARED:
            if name in configuration:
                configuration[name] = tuple(entry.name for entry in getattr(self, name))
        return configuration

    @property
    def message_rounds(self) -> int:
        """Rounds of messages: those of learning times the exchanges of messages in each."""
        return self.rounds * self.combination.exchange_count

    @cached_property
    def network_faults(self) -> Faults:
        """Lost and late messages, and peers that are away."""
        return Faults.of(self.message_loss, self.message_delay, self.seed, self.faults or (), self.peers)

    @cached_property
    def array_device(self) -> Device:
        """Device and precision of arrays."""
        return Device(self.device, self.dtype)

    @property
    def checks_messages(self) -> bool:
        """Whether messages may be false, so that receivers check them."""
        return self.robust is not None or self.attack is not None

    @property
    def checks_reports(self) -> bool:
        """Whether reports before the first round may be false, or are checked against the bounds of members."""
        false = self.attack is not None and self.attack.report is not None
        return self.privacy is None and (self.robust is not None or false)

    @property
    def judged_rows(self) -> tuple[int | None, int | None]:
        """The number of training rows and test rows that peers are evaluated on; None: see `metrics.drawn`."""
        return both(self.evaluate_rows)
