"""Progress of calibration on standard error."""

from __future__ import annotations

import sys
from typing import Any


class Progress:
    """A callback that prints each iteration to standard error, and calls the user's callback."""

    def __init__(self, iterations: int, callback: Any) -> None:
        self.iterations, self.callback = iterations, callback

    def __call__(self, iteration: int, soft_error: float, error: float) -> object:
        message = (
            f"iteration {iteration:>4}/{self.iterations}  soft error {soft_error:.4f}  error {error:.4f}"
        )
        print(message, file=sys.stderr)
        return None if self.callback is None else self.callback(iteration, soft_error, error)
