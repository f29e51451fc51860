"""What left a peer's machine, as its audit log has it: the last lines, and bytes by round."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from peerbayes.peers.audit import Tail
from peerbayes.peers.errors import PeerError

LINES = 200  # that are shown


@dataclass
class Sent:
    """An audit log as it grows."""

    tail: Tail
    last: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=LINES))
    total: int = 0
    problem: str = ""
    """Why it cannot be trusted; empty: every line fits to the one before."""
    _of_round: Counter[int] = field(default_factory=Counter)

    def read(self) -> bool:
        """Take what is new; whether there was anything."""
        before = self.tail.count, self.problem
        if not self.problem:
            try:
                for entry in self.tail.read():
                    self._add(entry)
            except PeerError as error:
                self.problem = str(error)
        return (self.tail.count, self.problem) != before

    def _add(self, entry: dict[str, Any]) -> None:
        self.last.append({"number": self.tail.count, **entry})
        self.total += entry["bytes"]
        before, _, turn = entry["what"].rpartition(" ")  # "round 3", "masked round 3", "private round 3"
        of_round = before.rpartition(" ")[2] == "round" and turn.isdigit()
        self._of_round[int(turn) if of_round else 0] += entry["bytes"]

    def by_round(self, rounds: np.ndarray) -> np.ndarray:
        """Bytes of messages up to each round, agreeing before the first included: [T] -> [T]."""
        turns = np.array(sorted(self._of_round), dtype=np.int64)
        sums = np.concatenate([[0.0], np.cumsum([self._of_round[turn] for turn in turns.tolist()])])
        return sums[np.searchsorted(turns, rounds, side="right")]
