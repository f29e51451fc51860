"""Checkpoints of long simulations: a killed one resumes where it was and, on one machine, ends with the same bits."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from peerbayes.data import files
from peerbayes.errors import ConfigurationError
from peerbayes.model.devices import fetch

# Seconds between two writes: writing a large network's state takes a moment.
PAUSE = 1.0


@dataclass
class Checkpoint:
    """One file that is replaced atomically. `key` identifies the simulation it belongs to."""

    path: Path
    key: str
    written: float = field(default=-PAUSE)

    @classmethod
    def of(cls, path: str | Path, configuration: dict[str, Any], *arrays: Any) -> Checkpoint:
        """Return the checkpoint of a configuration and its data."""
        digest = hashlib.sha256(json.dumps(configuration, sort_keys=True).encode())
        for array in arrays_of(arrays):
            digest.update(np.ascontiguousarray(array).data)
        return cls(Path(path), digest.hexdigest())

    def resume(self, state: Any, sent: np.ndarray) -> tuple[int, Any, np.ndarray, list[np.ndarray]]:
        """Return the rounds done, the state after them, bytes sent and the history; `state` is that of a new run."""
        if not self.path.exists():
            return 0, state, sent, []
        header, arrays = files.unpack(self.path.read_bytes(), self.path)
        if header.get("key") != self.key:
            raise ConfigurationError(
                f"{self.path} is the checkpoint of another simulation (other settings or other rows); "
                "delete it, or name another file"
            )
        leaves = [_like(arrays[f"state {index}"], leaf) for index, leaf in enumerate(arrays_of(state))]
        return (
            int(header["turn"]),
            restored(state, iter(leaves)),
            arrays["sent"],
            [arrays["records"]] if arrays["records"].size else [],
        )

    def keep(self, round_index: int, state: Any, sent: np.ndarray, records: list[np.ndarray]) -> None:
        """Write the state after a round, unless the last write was a moment ago."""
        if time.monotonic() - self.written < PAUSE:
            return
        arrays = {f"state {index}": fetch(leaf) for index, leaf in enumerate(arrays_of(state))}
        arrays |= {"sent": sent, "records": np.concatenate(records) if records else np.zeros((0, 8))}
        files.write(
            self.path, files.pack({"kind": "checkpoint", "key": self.key, "turn": round_index}, arrays)
        )
        self.written = time.monotonic()

    def remove(self) -> None:
        """Delete the file, once the simulation is done."""
        self.path.unlink(missing_ok=True)


def _like(array: np.ndarray, like: Any) -> Any:
    """Return numbers from a file as an array with the library, precision and device of `like`."""
    xp = array_namespace(like)
    return xp.asarray(array, dtype=like.dtype, device=device(like))


def arrays_of(state: Any) -> list[Any]:
    """Return the arrays of a state, those of nested tuples in order."""
    return [array for inner in state for array in arrays_of(inner)] if isinstance(state, tuple) else [state]


def restored(state: Any, arrays: Iterator[Any]) -> Any:
    """Return a state with the same structure and these arrays."""
    if not isinstance(state, tuple):
        return next(arrays)
    inside = [restored(inner, arrays) for inner in state]
    return type(state)(*inside) if hasattr(state, "_fields") else tuple(inside)
