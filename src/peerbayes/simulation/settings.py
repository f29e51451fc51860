"""The settings of a simulation: checked one by one and together."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from peerbayes import network
from peerbayes.data.arguments import LARGEST_SEED, about, flag, number, one_of, path, refusal, share, whole
from peerbayes.data.infer import check_kinds
from peerbayes.data.schema import Schema
from peerbayes.data.table import Table
from peerbayes.errors import PartitionError, SchemaError, TopologyError
from peerbayes.learning import planning
from peerbayes.learning.robust.attacks import Attack
from peerbayes.learning.strategies import MIXINGS, Declaration, Strategy
from peerbayes.model.calibration import STARTS
from peerbayes.model.devices import PRECISIONS, Place
from peerbayes.model.layout import known as known_families
from peerbayes.network.topologies import MOST_NODES
from peerbayes.privacy.accounting import Privacy
from peerbayes.simulation import partitions, private
from peerbayes.simulation.rounds import ROBUST

# --- checks of each argument of `simulate`: converted to a plain value, or refused by its name before any work starts
# Rows and the network are checked when they are read: see `drawn`. Combinations of settings are checked by `asked`.

# Where rows carry no information, a step of RC takes a class count from S_c to (1 − lr)·S_c + m_c/n. For lr above 2
# that diverges, whatever the rows are. A step below the rounding of float64 is lost in S.
SMALLEST_LR, LARGEST_LR = 2.0**-52, 2.0

# As in an agreement of real peers: more than anyone would wait for.
MOST_ROUNDS = 2**31 - 1

# Attributes that a driver needs of every strategy; `takes_old` only where messages are late.
OF_STRATEGIES = ("name", "mixing", "of_weights", "begin", "message", "step", "read")

LOSS_EXPECTED = "a probability from 0 to below 1, or a LossTrace"

Check = Callable[[Any], Any]


def checked(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `simulate` as plain values; those without a check stay as they are."""
    return {name: CHECKS[name](value) if name in CHECKS else value for name, value in arguments.items()}


def as_json(value: Any) -> Any:
    """Return a setting as JSON can hold it: plain values and tuples of them, for others the name of the type."""
    plain = all(
        isinstance(item, str | int | float | None)
        for item in (value if isinstance(value, tuple) else (value,))
    )
    return value if plain else type(value).__name__


# --- numbers -----------------------------------------------------------------------------------------------


def _rounds(name: str, least: int) -> Check:
    return lambda value: whole(name, value, least, MOST_ROUNDS)


def _rows_per_peer(value: Any) -> Any:
    """Return a checked number; the length of a list is checked with the number of peers."""
    if value is None or isinstance(value, list | tuple) or np.ndim(value):
        return value
    return whole("rows_per_peer", value, 1, advice=", one for each peer, or None", error=PartitionError)


def check_sizes(rows_per_peer: Any, peers: int, partition: Any) -> None:
    """Refuse numbers of rows that do not fit the peers; a partition that lists rows does not use them."""
    if rows_per_peer is not None and not isinstance(partition, list | tuple):
        partitions.sizes_asked(rows_per_peer, peers)


def _evaluate_rows(value: Any) -> Any:
    """Return one number, or a pair for training and test rows; None: all rows."""
    if isinstance(value, list | tuple):
        if len(value) != 2:
            raise refusal("evaluate_rows", value, "one number, or two: of training rows and of test rows")
        return tuple(_evaluate_rows(count) for count in value)
    return None if value is None else whole("evaluate_rows", value, 1, advice=", or None for all rows")


def both(evaluate_rows: int | tuple[int | None, int | None] | None) -> tuple[int | None, int | None]:
    """Return the numbers of training rows and test rows that models are evaluated on."""
    return evaluate_rows if isinstance(evaluate_rows, tuple) else (evaluate_rows, evaluate_rows)


def _seed(value: Any) -> int:
    if isinstance(value, list | tuple | set | range) or np.ndim(value):
        raise refusal("seed", value, "one whole number: a run has one seed, so call once for each of them")
    return whole("seed", value, 0, LARGEST_SEED)


def _lr(value: Any) -> float:
    expected = (
        "a positive number up to 2 (the paper's is 0.05): larger steps diverge, and those below 2⁻⁵² are lost in "
        "rounding"
    )
    return number("lr", value, expected, least=SMALLEST_LR, most=LARGEST_LR)


# --- names -------------------------------------------------------------------------------------------------


def _strategy(value: Any) -> Any:
    if isinstance(value, str | type) or not all(hasattr(value, name) for name in OF_STRATEGIES):
        or_value = f", or a strategy of your own: a value with {', '.join(OF_STRATEGIES)}"
        name = one_of("strategy", value, planning.choices(), or_value)
        planning.load(name)  # an outside package's: its declaration is needed
        return name
    if not (isinstance(value.mixing, str) and callable(getattr(network, value.mixing, None))):
        one_of("strategy: its mixing", value.mixing, MIXINGS)
    if not isinstance(value.name, str):
        raise refusal("strategy: its name", value.name, "a text")
    if not isinstance(planning.declaration_of(value), Declaration):
        raise refusal("strategy: its declaration", value.declaration, "a Declaration", TypeError)
    if planning.declaration_of(value).over_tree:
        raise refusal("strategy: its declaration", value.declaration, "over_tree only for a registered name")
    return value


def _kinds(value: Any) -> Any:
    check_kinds(value)
    return value


def _partition(value: Any) -> Any:
    """Return a checked name; lists are checked with the rows."""
    if not isinstance(value, list | tuple):
        partitions.parsed(value)
    return value


def _robust(value: Any) -> str | None:
    if value is not None and not (isinstance(value, str) and value in ROBUST):
        raise refusal("robust", value, "None, 'clip' or 'guard'")
    return value


def _dtype(value: Any) -> str:
    """Return the name of a precision, also of a NumPy type."""
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.floating)):
        value = np.dtype(value).name
    return one_of("dtype", value, PRECISIONS)


# --- values of a type --------------------------------------------------------------------------------------


def _optional(name: str, kind: type, expected: str) -> Check:
    def check(value: Any) -> Any:
        if value is not None and not isinstance(value, kind):
            raise refusal(name, value, expected, TypeError)
        return value

    return check


def _test(value: Any) -> tuple[Any, Any] | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise refusal("test", value, "rows and their labels, (X, y), or None", TypeError)
    with about("test"):
        rows, shape = Table.of(value[0]).rows, np.shape(value[1])
    if rows == 0 or shape != (rows,):
        raise ValueError(
            f"test holds {rows} rows, and labels of shape {shape}; expected at least one row, and a label for each"
        )
    return value[0], value[1]


def _progress(value: Any) -> Any:
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
        raise refusal("progress", value, "a function of the rounds done and the rounds in all", TypeError)
    return value


# --- paths -------------------------------------------------------------------------------------------------


def _checkpoint(value: Any) -> Path | None:
    if value is None:
        return None
    expected = "the path of a file, in a folder that exists"
    file = path("checkpoint", value, expected)
    try:
        fits = not file.is_dir() and file.parent.is_dir()
    except OSError:  # a name that is too long
        fits = False
    if not fits:
        raise refusal("checkpoint", str(file), expected)
    return file


def _live(value: Any) -> Path | None:
    if value is None:
        return None
    expected = "the path of a folder, which is made where it is missing"
    folder = path("live", value, expected)
    try:
        fits = next(above.is_dir() for above in (folder, *folder.parents) if above.exists())
    except OSError:
        fits = False
    if not fits:
        raise refusal("live", str(folder), expected)
    return folder


CHECKS: dict[str, Check] = {
    "family": lambda value: one_of("family", value, known_families()),
    "kinds": _kinds,
    "schema": _optional("schema", Schema, "a Schema, for instance Schema.load(path)"),
    "peers": lambda value: whole("peers", value, 1, MOST_NODES, error=PartitionError),
    "rows_per_peer": _rows_per_peer,
    "partition": _partition,
    "strategy": _strategy,
    "start": lambda value: one_of("start", value, STARTS),
    "rounds": _rounds("rounds", 1),
    "lr": _lr,
    "local_steps": _rounds("local_steps", 1),
    "change_every": lambda value: (
        None if value is None else whole("change_every", value, 1, advice=", or None", error=TopologyError)
    ),
    "objective": lambda value: one_of("objective", value, ("rows", "peers")),
    "test": _test,
    "evaluate_every": lambda value: whole("evaluate_every", value, 0),
    "evaluate_rows": _evaluate_rows,
    "seed": _seed,
    "clip": lambda value: (
        None
        if value is None
        else number("clip", value, "a positive number, or None for no clipping", above=0.0, error=SchemaError)
    ),
    "message_loss": lambda value: (
        value if isinstance(value, network.LossTrace) else share("message_loss", value, LOSS_EXPECTED)
    ),
    "message_delay": lambda value: share("message_delay", value),
    "peers_down": lambda value: share("peers_down", value),
    "secure_sum": lambda value: flag("secure_sum", value),
    "start_rounds": _rounds("start_rounds", 0),
    "privacy": _optional(
        "privacy", Privacy, "a peerbayes.Privacy, for instance Privacy(epsilon=4.0), or None"
    ),
    "robust": _robust,
    "attack": Attack.of,
    "references": lambda value: flag("references", value),
    "progress": _progress,
    "checkpoint": _checkpoint,
    "live": _live,
    "device": lambda value: Place(value).device,
    "dtype": _dtype,
}
"""The check of each argument; X, y and topology are checked when they are read."""


# --- the settings of a simulation, and which of them do not go together


@dataclass(frozen=True, eq=False)
class Asked:
    """The settings that a run records, in the order of `simulate`, which explains them."""

    family: str
    kinds: Any
    peers: int
    rows_per_peer: Any
    topology: Any
    partition: Any
    strategy: str | Strategy
    start: str
    rounds: int
    lr: float
    local_steps: int
    change_every: int | None
    objective: str
    evaluate_every: int
    evaluate_rows: int | tuple[int, int] | None
    seed: int
    clip: float | None
    message_loss: float | network.LossTrace
    message_delay: float
    peers_down: float
    secure_sum: bool
    start_rounds: int
    privacy: Privacy | None
    robust: str | None
    attack: Attack | None
    device: str | None
    dtype: str

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Asked:
        """Return the settings among the arguments of `simulate`, after checking all arguments."""
        plain = checked(arguments)
        return cls(**{setting.name: plain[setting.name] for setting in fields(cls)})

    def __post_init__(self) -> None:
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
        if self.privacy is not None:
            private.refuse(
                self.privacy, self.strategy, self.family, self.local_steps, self.objective, self.device, self.dtype,
                self.robust,
            )  # fmt: skip
        self._check_robust()
        if self.secure_sum and self.checks_messages:
            raise ValueError(
                "secure_sum hides single messages, which robust checks and attack forges; choose one of them"
            )

    @property
    def configuration(self) -> dict[str, Any]:
        """All settings as JSON can hold them; privacy and attack with all fields."""
        configuration: dict[str, Any] = {}
        for setting in fields(self):
            configuration[setting.name] = as_json(getattr(self, setting.name))
        if self.privacy is not None:
            configuration["privacy"] = asdict(self.privacy)
        if isinstance(self.message_loss, network.LossTrace):
            configuration["message_loss"] = str(self.message_loss)
        if self.attack is not None:
            configuration["attack"] = str(self.attack)
        return configuration

    @cached_property
    def place(self) -> Place:
        """Device and precision of arrays."""
        return Place(self.device, self.dtype)

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
    def lossy(self) -> bool:
        """Whether messages or peers may be missing."""
        return bool(self.message_loss or self.message_delay or self.peers_down)

    @property
    def judged_rows(self) -> tuple[int | None, int | None]:
        """The number of training rows and test rows that peers are evaluated on; None: see `metrics.drawn`."""
        return both(self.evaluate_rows)

    def _check_robust(self) -> None:
        if not self.checks_messages:
            return
        name = planning.name_of(self.strategy)
        if not planning.declaration_of(self.strategy).judged:
            judged = planning.names(lambda declaration: declaration.judged)
            raise ValueError(
                f"strategy is {name!r}; robust combining and attacks are for {' and '.join(judged)}, whose messages "
                "are a peer's own statistics"
            )
        if self.privacy is not None and self.attack is not None and self.attack.report is not None:
            raise ValueError(
                f"privacy and an attack with report={self.attack.report!r}; private peers report only noisy values: "
                "leave the report out"
            )
        if self.message_delay and planning.takes_old(self.strategy):
            raise ValueError(
                f"message_delay is above 0; with robust or attack {name} takes no messages of the previous round"
            )
