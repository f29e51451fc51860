"""A long simulation's state on disk: a killed one goes on where it was, and on one machine ends with the same bits."""

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

from peerbayes import files
from peerbayes.errors import ConfigurationError
from peerbayes.places import fetch

# Seconds between two writes: writing a large network's state takes a moment.
PAUSE = 1.0


@dataclass
class Checkpoint:
    """One file that is replaced whole. `key` says which simulation it belongs to."""

    path: Path
    key: str
    written: float = field(default=-PAUSE)

    @classmethod
    def of(cls, path: str | Path, configuration: dict[str, Any], *arrays: Any) -> Checkpoint:
        """The checkpoint of a configuration and its data."""
        digest = hashlib.sha256(json.dumps(configuration, sort_keys=True).encode())
        for array in parts_of(arrays):
            digest.update(np.ascontiguousarray(array).data)
        return cls(Path(path), digest.hexdigest())

    def resume(self, state: Any, sent: np.ndarray) -> tuple[int, Any, np.ndarray, list[np.ndarray]]:
        """Rounds done, the state after them, bytes sent and the history; `state` is what a new run starts with."""
        if not self.path.exists():
            return 0, state, sent, []
        header, arrays = files.unpack(self.path.read_bytes(), self.path)
        if header.get("key") != self.key:
            raise ConfigurationError(
                f"{self.path} is the checkpoint of another simulation (other settings or other rows); "
                "delete it, or name another file"
            )
        parts = [_like(arrays[f"state {place}"], part) for place, part in enumerate(parts_of(state))]
        return (
            int(header["turn"]),
            restored(state, iter(parts)),
            arrays["sent"],
            [arrays["records"]] if arrays["records"].size else [],
        )

    def keep(self, turn: int, state: Any, sent: np.ndarray, records: list[np.ndarray]) -> None:
        """Write the state after a round, unless the last write was a moment ago."""
        if time.monotonic() - self.written < PAUSE:
            return
        arrays = {f"state {place}": fetch(part) for place, part in enumerate(parts_of(state))}
        arrays |= {"sent": sent, "records": np.concatenate(records) if records else np.zeros((0, 8))}
        files.write(self.path, files.pack({"kind": "checkpoint", "key": self.key, "turn": turn}, arrays))
        self.written = time.monotonic()

    def remove(self) -> None:
        """The simulation is done."""
        self.path.unlink(missing_ok=True)


def _like(array: np.ndarray, part: Any) -> Any:
    """Numbers from a file as an array of the library, precision and device of `part`."""
    xp = array_namespace(part)
    return xp.asarray(array, dtype=part.dtype, device=device(part))


def parts_of(state: Any) -> list[Any]:
    """The arrays of a state, tuples in it one after the other."""
    return [part for inner in state for part in parts_of(inner)] if isinstance(state, tuple) else [state]


def restored(state: Any, parts: Iterator[Any]) -> Any:
    """A state of the same shape, with these arrays."""
    if not isinstance(state, tuple):
        return next(parts)
    inside = [restored(inner, parts) for inner in state]
    return type(state)(*inside) if hasattr(state, "_fields") else tuple(inside)
