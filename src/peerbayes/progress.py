"""How calibration goes on, for people."""

from __future__ import annotations

import sys
from typing import Any


class Progress:
    """Prints a line per iteration to standard error, and passes it on."""

    def __init__(self, iterations: int, callback: Any) -> None:
        self.iterations, self.callback = iterations, callback

    def __call__(self, iteration: int, soft_error: float, error: float) -> object:
        line = f"iteration {iteration:>4}/{self.iterations}  soft error {soft_error:.4f}  error {error:.4f}"
        print(line, file=sys.stderr)
        return None if self.callback is None else self.callback(iteration, soft_error, error)
