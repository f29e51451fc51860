"""Messages that a peer sent, according to its audit log: the last entries, and bytes by round."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from peerbayes.peers.audit import Tail
from peerbayes.peers.errors import PeerError

MOST_ENTRIES = 200  # entries shown


@dataclass
class Sent:
    """A growing audit log."""

    tail: Tail
    last: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=MOST_ENTRIES))
    total: int = 0
    problem: str = ""
    """Why the log cannot be trusted; empty while its hash chain is intact."""
    _bytes_by_round: Counter[int] = field(default_factory=Counter)

    def read(self) -> bool:
        """Read new entries; return whether there were any, or a problem."""
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
        kind, _, round_text = entry["what"].rpartition(" ")  # "round 3", "masked round 3", "private round 3"
        has_round = kind.rpartition(" ")[2] == "round" and round_text.isdigit()
        self._bytes_by_round[int(round_text) if has_round else 0] += entry["bytes"]

    def by_round(self, rounds: np.ndarray) -> np.ndarray:
        """Return bytes sent up to each round, including those before the first round: [T] -> [T]."""
        logged_rounds = np.array(sorted(self._bytes_by_round), dtype=np.int64)
        sums = np.concatenate(
            [[0.0], np.cumsum([self._bytes_by_round[round_index] for round_index in logged_rounds.tolist()])]
        )
        return sums[np.searchsorted(logged_rounds, rounds, side="right")]
