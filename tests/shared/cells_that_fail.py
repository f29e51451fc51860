"""What a sweep's workers may be given to compute. A module of its own, since every worker imports it."""

import os
import signal
from pathlib import Path
from typing import Any


def dying(specification: dict[str, Any]) -> dict[str, Any]:
    """Die once, and then compute."""
    mark = Path(specification["mark"])
    if specification["dies"] and not mark.exists():
        mark.write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    return {"twice": 2 * specification["number"]}


def always_dying(specification: dict[str, Any]) -> dict[str, Any]:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("killed")


def failing(specification: dict[str, Any]) -> dict[str, Any]:
    raise ValueError("this cell makes no sense")
