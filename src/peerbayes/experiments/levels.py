"""The values that a setting has in a study, and every value as plain text: hashed, stored, and read by any worker.

A list varies a setting: `topology=["tree", "ring"]`. Where a list may be one value of a setting, it is one value, and
`each` names several: `rows_per_peer=each(20, 50)`, in a file `{ each = [20, 50] }`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from peerbayes import network
from peerbayes.data.arguments import shown
from peerbayes.data.declarations import Setting
from peerbayes.data.files import text_of
from peerbayes.data.registry import Registry
from peerbayes.data.schema import Schema
from peerbayes.errors import TopologyError
from peerbayes.experiments import stored_sklearn
from peerbayes.learning import planning
from peerbayes.model.families import FAMILIES
from peerbayes.network.topologies import FILE_ENDINGS, TOPOLOGIES
from peerbayes.simulation.baselines import Baseline
from peerbayes.simulation.scores import Metric

# --- which values a setting has


@dataclass(frozen=True)
class Each:
    """Several values of a setting."""

    values: tuple[Any, ...]


def each(*values: Any) -> Each:
    """Return several values of a setting, of which a study runs each: needed where a list may be one value.

    values  the values, one by one
    """
    return Each(values)


def several(name: str, value: Any, setting: Setting) -> list[Any] | None:
    """Return the values of a setting that varies; None: it has this one value.

    A list, a tuple, a range or a one-dimensional array varies it. A list is one value of settings that may be lists, as
    their declaration says, and so is a list of lists or arrays: rows of peers, or a matrix.
    """
    if isinstance(value, Each):
        values = list(value.values)
    elif isinstance(value, Mapping) and set(value) == {"each"} and isinstance(value["each"], list | tuple):
        values = list(value["each"])  # of a file
    elif list in setting.kind.types or not (
        isinstance(value, list | tuple | range) or (isinstance(value, np.ndarray) and value.ndim == 1)
    ):
        return None
    else:
        values = value.tolist() if isinstance(value, np.ndarray) else list(value)
        if any(isinstance(item, list | tuple | np.ndarray) for item in values):
            return None
    if not values:
        raise ValueError(f"{name} has no values; expected at least one")
    return values


def may_be_list(setting: Setting) -> bool:
    """Return whether a list is one value of a setting."""
    return list in setting.kind.types


# --- values as JSON, and back
# Numbers, texts, None and lists of them are themselves. All others are a table of one key, which says how to read it.

FIELDS, PAIRS, SCHEMA, LINKS, TRACE = "fields", "pairs", "schema", "links", "trace"
OF_FIELDS = ("privacy", "attack", "faults")  # settings whose values are read from tables of their fields
REGISTRIES: dict[str, Registry[Any]] = {
    "family": FAMILIES,
    "strategy": planning.registry(),
    "topology": TOPOLOGIES,
}
CANNOT = "a study stores its settings and hands them to other processes, which it cannot with this one"


def plain(name: str, value: Any) -> Any:
    """Return a checked value of a setting as JSON can hold it, files by their content; refuse what it cannot hold."""
    if name in stored_sklearn.SETTINGS:
        try:
            return stored_sklearn.SETTINGS[name][0](value)
        except stored_sklearn.NotPlain as problem:
            raise TypeError(f"{name}: {problem}; {CANNOT}. {_instead(name)}") from problem
    if name == "topology" and not is_name(value):
        return {LINKS: _links(value)}
    if isinstance(value, str) and name in REGISTRIES:
        _refuse_local(name, value)
    if isinstance(value, Schema):
        return {SCHEMA: value.to_json()}
    if isinstance(value, network.LossTrace):
        return {TRACE: sorted(map(list, value.messages))}
    if is_dataclass(value) and not isinstance(value, type) and name in OF_FIELDS:
        return {FIELDS: {**_kind(value), **{key: plain(name, item) for key, item in asdict(value).items()}}}
    if isinstance(value, Mapping):
        return {PAIRS: [[plain(name, key), plain(name, item)] for key, item in value.items()]}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(name, item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(f"{name} is {shown(value)}; {CANNOT}. {_instead(name)}")


def read_back(name: str, stored: Any, setting: Setting) -> Any:
    """Return the value that `plain` stored, as `simulate` takes it."""
    if name in stored_sklearn.SETTINGS:
        return stored_sklearn.SETTINGS[name][1](stored)
    if isinstance(stored, list):
        return [read_back(name, item, setting) for item in stored]
    if not isinstance(stored, dict):
        return stored
    [(kind, content)] = stored.items()
    if kind == SCHEMA:
        return Schema.from_json(content)
    if kind == TRACE:
        return network.LossTrace(frozenset(tuple(message) for message in content))
    if kind == LINKS:
        return _matrix(content)
    if kind == PAIRS:
        return {key: read_back(name, item, setting) for key, item in content}
    table = {key: read_back(name, item, setting) for key, item in content.items()}
    return setting.kind.read(table)


def _kind(value: Any) -> dict[str, str]:
    """Return the kind of a fault, by which a table of its fields is read."""
    named = getattr(type(value), "kind", None)
    return {"kind": named} if isinstance(named, str) and "kind" not in {f.name for f in fields(value)} else {}


def is_name(value: Any) -> bool:
    """Return whether a topology is a name, and no file of links."""
    return isinstance(value, str) and not value.endswith(FILE_ENDINGS)


def _links(topology: Any) -> dict[str, Any]:
    """Return the nodes and the links of a graph, a matrix or a file; schedules are refused."""
    if isinstance(topology, network.Schedule):
        if not topology.static:
            raise TypeError(f"topology is {shown(topology)}; {CANNOT}. {_instead('topology')}")
        topology = topology.at(1)
    matrix = network.adjacency(topology, _nodes(topology), np.random.default_rng(0))
    nodes = matrix.shape[0]
    return {"nodes": nodes, "pairs": network.pairs(matrix).tolist()}


def _nodes(topology: Any) -> int:
    """Return the number of nodes of a graph, a matrix or a file; every node of a connected network has a link."""
    if isinstance(topology, str | Path):
        text = re.sub(r"#.*", "", text_of(Path(topology), TopologyError))
        return 1 + max(map(int, re.findall(r"\b\d{1,9}\b", text)), default=1)
    shape = getattr(topology, "shape", None)
    return int(shape[0]) if shape else len(topology)


def _matrix(content: dict[str, Any]) -> sparse.csr_array:
    """Return the matrix of stored links."""
    pairs = np.array(content["pairs"], dtype=np.int64).reshape(-1, 2)
    nodes = int(content["nodes"])
    both = np.concatenate([pairs, pairs[:, ::-1]])
    return sparse.csr_array((np.ones(len(both)), (both[:, 0], both[:, 1])), shape=(nodes, nodes))


def _refuse_local(name: str, value: str) -> None:
    """Refuse a name that was set in this process only: workers would not know it."""
    registry = REGISTRIES[name]
    if value in registry.data and value not in registry.built_in:
        raise TypeError(f"{name} is {value!r}, a name of this process only; {CANNOT}. {_instead(name)}")


def _instead(name: str) -> str:
    """Return what to do about a value that cannot be stored."""
    if name in ("strategy", "family"):
        return "Install it as a package of its own (docs/howto/package.md), and give its name"
    if name == "topology":
        return (
            "Expected a name, a graph, a matrix or a file of links; a random network changes by change_every"
        )
    if name == "baselines":
        return (
            "Expected names, and estimators of scikit-learn itself whose parameters are numbers, texts, lists or other "
            "such estimators; simulate takes others, for one run"
        )
    if name == "metrics":
        return "Expected names, and scorers that make_scorer made of functions of sklearn.metrics"
    return f"Call simulate with {name} for one run"


# --- what tables and figures call a value


def label_of(value: Any) -> Any:
    """Return a value as frames show it: numbers and texts as they are, others in words."""
    if value is None:
        return "none"
    if isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple | list) and not value:
        return "none"
    if isinstance(value, tuple | list) and all(isinstance(item, Metric | Baseline) for item in value):
        return ", ".join(map(stored_sklearn.label, value))
    if isinstance(value, tuple | list) and all(isinstance(item, str | int | float | None) for item in value):
        return ", ".join(str(item) for item in value)
    if isinstance(value, tuple | list) and all(is_dataclass(item) for item in value):
        return "; ".join(map(str, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    if is_dataclass(value) and not isinstance(value, Schema) and type(value).__str__ is object.__str__:
        return ", ".join(
            f"{field.name} {getattr(value, field.name)}"
            for index, field in enumerate(fields(value))
            if index == 0 or getattr(value, field.name) != field.default
        )
    if is_dataclass(value) and not isinstance(value, Schema):
        return str(value)
    stored = json.dumps(
        plain("topology" if hasattr(value, "is_directed") or sparse.issparse(value) else "", value)
    )
    return f"{type(value).__name__} {hashlib.sha256(stored.encode()).hexdigest()[:6]}"
