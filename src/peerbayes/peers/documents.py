"""Documents that peers exchange and keep: JSON in one form only, and files that only their owner can read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def canonical(value: Any) -> bytes:
    """Return plain values as canonical JSON: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")


def private(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read; refuse to write over another."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise
