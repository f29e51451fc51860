"""Checks of each argument of `simulate`: converted to a plain value, or refused by its name before any work starts.

Rows and the network are checked when they are read: see `drawn`. Combinations of settings are checked by `asked`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from peerbayes import partitions, topologies
from peerbayes.arguments import LARGEST_SEED, about, flag, number, one_of, path, refusal, share, whole
from peerbayes.attacks import Attack
from peerbayes.calibration import STARTS
from peerbayes.defence import ROBUST
from peerbayes.errors import PartitionError, SchemaError, TopologyError
from peerbayes.inference import check_kinds
from peerbayes.layouts import known as known_families
from peerbayes.places import PRECISIONS, Place
from peerbayes.privacy.terms import Privacy
from peerbayes.schema import Schema
from peerbayes.strategies import STRATEGIES
from peerbayes.tables import Table
from peerbayes.topologies.networks import MOST_NODES

# Where rows carry no information, a step of RC takes a class count from S_c to (1 − lr)·S_c + m_c/n. For lr above 2
# that diverges, whatever the rows are. A step below the rounding of float64 is lost in S.
SMALLEST_LR, LARGEST_LR = 2.0**-52, 2.0

# As in an agreement of real peers: more than anyone would wait for.
MOST_ROUNDS = 2**31 - 1

# Attributes that a driver needs of every strategy; `takes_old` only where messages are late.
OF_STRATEGIES = ("name", "mixing", "of_weights", "begin", "message", "step", "read")

# Mixing weights that a strategy may name; "none": it sends nothing.
MIXINGS = ("neighbour_mean", "closed_mean", "metropolis", "stable", "none")

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


def _rows_per_node(value: Any) -> Any:
    """Return a checked number; the length of a list is checked with the number of nodes."""
    if value is None or isinstance(value, list | tuple) or np.ndim(value):
        return value
    return whole("rows_per_node", value, 1, advice=", one for each node, or None", error=PartitionError)


def check_sizes(rows_per_node: Any, nodes: int, partition: Any) -> None:
    """Refuse numbers of rows that do not fit the nodes; a partition that lists rows does not use them."""
    if rows_per_node is not None and not isinstance(partition, list | tuple):
        partitions.sizes_asked(rows_per_node, nodes)


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
        return one_of("strategy", value, (*STRATEGIES, "relay", "auto"), or_value)
    if not (isinstance(value.mixing, str) and callable(getattr(topologies, value.mixing, None))):
        one_of("strategy: its mixing", value.mixing, MIXINGS)
    if not isinstance(value.name, str):
        raise refusal("strategy: its name", value.name, "a text")
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
    "nodes": lambda value: whole("nodes", value, 1, MOST_NODES, error=PartitionError),
    "rows_per_node": _rows_per_node,
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
    "message_loss": lambda value: share("message_loss", value),
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
