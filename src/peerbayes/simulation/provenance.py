"""What made a run: its data, what was asked, what was chosen for it, and the machine."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from peerbayes import network
from peerbayes.data.arguments import shown
from peerbayes.data.declarations import declarations
from peerbayes.data.digest import table_digest
from peerbayes.data.schema import Schema
from peerbayes.data.table import Table
from peerbayes.errors import ConfigurationError
from peerbayes.learning.robust.attacks import Attack
from peerbayes.privacy.accounting import Privacy
from peerbayes.simulation.places import Places, first_there, from_folder, places_of
from peerbayes.simulation.settings import SimulationArguments

IN_MEMORY = "a table in memory"

# Arguments that say where and how to look on, and do not change what is learned.
NOT_ASKED = ("checkpoint", "live", "progress", "callbacks")

# Arguments whose texts may be paths of files, and of which files.
WITH_FILES = {"topology": "links", "faults": "faults", "message_loss": "lost messages"}

FILE = "$file"  # begins what an argument that names a file is written as
ARRAYS = "asked "  # begins the names of arrays that belong to arguments

CREDENTIALS = re.compile(r"(?<=://)[^/@]*@")  # of a database's URL


@dataclass(frozen=True)
class Provenance:
    """What made a run. Runs that were saved by earlier versions have none: nothing is known of them."""

    data: dict[str, Any] = field(default_factory=dict)
    """The source of the rows, their digest, rows, columns and classes; `test` has the same of test rows passed."""
    asked: dict[str, Any] = field(default_factory=dict)
    """The arguments as they were passed, and only those: see `written`."""
    arrays: dict[str, np.ndarray] = field(default_factory=dict, repr=False)
    """The arrays among them: links, rows of peers, lost messages."""
    chosen: dict[str, Any] = field(default_factory=dict)
    """What was chosen for the settings left open: strategy, family, start, …"""
    machine: dict[str, Any] = field(default_factory=dict)
    """Processor, cores, threads, the kernels of BLAS, and the operating system; no name of a host or a user."""
    places: Places = field(default_factory=dict, repr=False, compare=False)
    """Where the files that it names are on this machine; a saved run has their paths from its folder."""

    @property
    def source(self) -> str:
        """Where the rows are from, in words; "" where nothing is known."""
        source = self.data.get("source", {})
        if "name" in source:
            return f"the dataset {source['name']}"
        if "query" in source:
            return f"{source['file']}, {source['query']}"
        return str(source.get("file", IN_MEMORY if self.data else ""))

    @classmethod
    def restored(
        cls,
        header: Mapping[str, Any],
        arrays: Mapping[str, np.ndarray],
        relative_paths: Mapping[str, str],
        folder: Path,
    ) -> Provenance:
        """Return what `header` wrote, with its arrays among those of the run's file, and where its files are."""
        asked_arrays = {name: array for name, array in arrays.items() if name.startswith(ARRAYS)}
        return cls(
            **header, arrays=asked_arrays, places=from_folder(_files_of(header), relative_paths, folder)
        )

    def located(self, named: Any) -> Provenance:
        """Return the same with the places of the files that `named` names: the source of rows, or arguments."""
        names = list(_files_of(named))
        return replace(self, places={**self.places, **places_of(names)}) if names else self

    def header(self) -> dict[str, Any]:
        """Return what a run's file has of it, beside the arrays."""
        return {"data": self.data, "asked": self.asked, "chosen": self.chosen, "machine": self.machine}


def _files_of(value: Any) -> Iterator[str]:
    """Yield the files that entries of [data] name, `file` and `test`, and arguments as they are written."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            if key in ("file", "test", FILE) and isinstance(entry, str):
                yield entry
            else:
                yield from _files_of(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from _files_of(entry)


def data_of(X: Any, y: Any, classes: int, test: tuple[Any, Any] | None) -> dict[str, Any]:
    """Return what is known of rows that were passed: X with labels y, and rows to test on."""
    known = {"source": {}, **described(X, y), "classes": classes}
    return known if test is None else {**known, "test": described(*test)}


def described(X: Any, y: Any) -> dict[str, Any]:
    """Return the digest of rows and labels, and how many rows and columns there are."""
    table = Table.of(X)
    return {"digest": table_digest(table, y), "rows": table.rows, "columns": len(table.names)}


def source_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of [data] as a run's file may have them: without the credentials of a database."""
    return {
        name: CREDENTIALS.sub("", value) if name == "file" else value
        for name, value in data.items()
        if name != "digest"
    }


def machine() -> dict[str, Any]:
    """Return the machine that computes: whatever may change the last bits of a result."""
    from threadpoolctl import threadpool_info

    libraries = threadpool_info()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    kernels = sorted({library["architecture"] for library in libraries if "architecture" in library})
    return {
        "processor": _processor(),
        "cores": usable,
        "threads": max((library["num_threads"] for library in libraries), default=1),
        "blas": ", ".join(kernels) or "–",
        "system": f"{platform.system()} {platform.machine()}",
    }


def _processor() -> str:
    """Return the model of the processor."""
    try:
        described = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        described = ""
    model = re.search(r"^model name\s*:\s*(.+)$", described, re.MULTILINE)
    return model[1].strip() if model else platform.processor() or platform.machine()


# --- arguments as a file can hold them
# Plain values are written as they are. Others are tables of one entry, whose name begins with $: {"$links": …}.


def asked_of(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the arguments of a simulation as JSON can hold them, and the arrays that they refer to."""
    arrays: dict[str, np.ndarray] = {}
    asked = {name: written(name, value, arrays) for name, value in arguments.items() if name not in NOT_ASKED}
    return asked, arrays


def written(name: str, value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Return an argument as JSON can hold it; arrays are added to `arrays`. {"$cannot": what}: nothing can hold it."""
    if name == "test":
        return value if value is None else {"$test": Table.of(value[0]).rows}
    if isinstance(value, Schema):
        return {"$schema": value.to_json()}
    if isinstance(value, Privacy | Attack):
        return asdict(value)
    if name == "topology" and not isinstance(value, str | Path):
        return _network(value, arrays)
    if name == "partition" and isinstance(value, list | tuple):
        parts = [np.asarray(part, dtype=np.int64) for part in value]
        return _kept(arrays, "$rows", np.concatenate(parts), sizes=np.array([part.size for part in parts]))
    if name == "dtype" and not isinstance(value, str):
        return np.dtype(value).name
    return _plain(value, name, arrays)


def _plain(value: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    """Return a value and whatever it holds as plain values."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if name in WITH_FILES and isinstance(value, str | Path) and Path(value).is_file():
        return {FILE: str(value), "sha256": file_digest(Path(value))}
    if isinstance(value, network.LossTrace):
        return _kept(arrays, "$trace", np.array(sorted(value.messages)).reshape(-1, 3))
    if isinstance(value, network.Fault):
        fields = {key: getattr(value, key) for key in declarations(type(value))}
        return {
            "kind": value.kind,
            **_plain({k: v for k, v in fields.items() if v is not None}, name, arrays),
        }
    if isinstance(value, list | tuple):
        return [_plain(entry, name, arrays) for entry in value]
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: _plain(entry, name, arrays) for key, entry in value.items()}
        return {"$pairs": [_plain(pair, name, arrays) for pair in value.items()]}
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return {"$cannot": f"a {type(value).__name__}"}


def _network(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Return a graph, a matrix or a fixed schedule as its links."""
    if isinstance(value, network.Changing):
        return {"$changing": asdict(value)}
    if isinstance(value, network.Schedule) and not isinstance(value, network.Static):
        return {"$cannot": f"a {type(value).__name__}"}
    if isinstance(value, network.Static):
        matrix = value.matrix
    else:
        count = value.number_of_nodes() if hasattr(value, "is_directed") else np.shape(value)[0]
        matrix = network.adjacency(value, count, np.random.default_rng(0))
    pairs = network.pairs(matrix)
    return {**_kept(arrays, "$links", np.asarray(pairs)), "peers": int(matrix.shape[0])}


def _kept(
    arrays: dict[str, np.ndarray], kind: str, array: np.ndarray, **others: np.ndarray
) -> dict[str, str]:
    """Add arrays under a new key, and return the entry that refers to them."""
    key = f"{ARRAYS}{len(arrays)}"
    arrays[key] = array
    arrays |= {f"{key} {name}": other for name, other in others.items()}
    return {kind: key}


def file_digest(path: Path) -> str:
    """Return the sha256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def arguments_of(provenance: Provenance) -> dict[str, Any]:
    """Return the arguments of a run's simulation, but for rows to test on; refuse those that no file can hold."""
    arguments = {
        name: _read(name, value, provenance) for name, value in provenance.asked.items() if name != "test"
    }
    if isinstance(arguments.get("privacy"), dict):
        arguments["privacy"] = declarations(SimulationArguments)["privacy"].kind.read(arguments["privacy"])
    return arguments


def _read(name: str, value: Any, provenance: Provenance) -> Any:
    """Return an argument from what `written` made of it."""
    arrays = provenance.arrays
    if isinstance(value, list):
        return [_read(name, entry, provenance) for entry in value]
    if not isinstance(value, dict):
        return value
    kind: str = next(iter(value), "")
    if not kind.startswith("$"):
        return {key: _read(name, inside, provenance) for key, inside in value.items()}
    entry: Any = value[kind]
    if kind == "$cannot":
        raise ConfigurationError(
            f"{name} was {entry}, which no file can hold: this run can be made again only in Python, by the same call"
        )
    if kind == FILE:
        return _unchanged(name, entry, value["sha256"], provenance.places)
    if kind == "$schema":
        return Schema.from_json(entry)
    if kind == "$changing":
        return network.Changing(**entry)
    if kind == "$pairs":
        return {key: _read(name, inside, provenance) for key, inside in entry}
    array = arrays[entry].astype(np.int64)
    if kind == "$trace":
        return network.LossTrace(frozenset(map(tuple, array.tolist())))
    if kind == "$rows":
        sizes = arrays[f"{entry} sizes"].astype(np.int64)
        return np.split(array, np.cumsum(sizes)[:-1])
    if kind == "$links":
        matrix = sparse.coo_array((np.ones(len(array)), array.reshape(-1, 2).T), shape=(value["peers"],) * 2)
        return sparse.csr_array(matrix + matrix.T)
    raise ConfigurationError(f"{name} is {shown(value)}, which a newer peerbayes wrote; update this one")


def _unchanged(name: str, file: str, digest: str, places: Places) -> str:
    """Return the path of a file that is the one a run was made with, where the run had it or here."""
    path = first_there([places.get(file, file), file])
    if path is None:
        raise ConfigurationError(
            f"{file}, the file of {WITH_FILES[name]} that {name} names, is not here; put it into the run's "
            "folder, or run where it is"
        )
    if file_digest(Path(path)) != digest:
        raise ConfigurationError(
            f"{path}, the file of {WITH_FILES[name]} that {name} names, has changed since the run; expected sha256 "
            f"{digest}"
        )
    return path
