"""The rounds of a simulation, from the first to the last, and what the time was spent on."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from peerbayes.learning.robust.invariants import REASONS
from peerbayes.learning.state import Checkpoint
from peerbayes.model.devices import fetch
from peerbayes.simulation.drivers import Driver
from peerbayes.simulation.evaluation import Evaluation
from peerbayes.simulation.live import LiveFile
from peerbayes.simulation.private import PrivateRows
from peerbayes.simulation.rounds import Watched
from peerbayes.simulation.settings import Progress

# --- progress and time of a simulation


class Clock:
    """Seconds by activity."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def add(self, activity: str) -> None:
        """Add the time since the last call to an activity."""
        now = time.perf_counter()
        self.seconds[activity] = self.seconds.get(activity, 0.0) + now - self._last
        self._last = now


# --- the loop over the rounds of a simulation, and its history


@dataclass
class Loop:
    """The state of all peers during the rounds, and the history so far."""

    driver: Driver
    evaluation: Evaluation
    clock: Clock
    state: Any
    """The driver's state of all peers."""
    sent: np.ndarray
    """[N] bytes sent so far."""
    done: int = 0
    """Rounds done."""
    records: list[np.ndarray] = field(default_factory=list)
    """The history, an [N, 8] for each evaluated round."""

    def resume(self, saved: Checkpoint, hidden: PrivateRows | None) -> None:
        """Resume from a checkpoint, if a killed run left one."""
        self.done, self.state, self.sent, self.records = saved.resume(self.state, self.sent)
        if hidden is not None:
            hidden.calls += self.done

    def go(
        self,
        rounds: int,
        evaluate_every: int,
        saved: Checkpoint | None = None,
        live_file: LiveFile | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Run all remaining rounds."""
        if live_file is not None and self.records:
            live_file.add(np.concatenate(self.records))
        for round_index in range(self.done + 1, rounds + 1):
            self._advance(round_index)
            if round_index == rounds or (evaluate_every and round_index % evaluate_every == 0):
                self._evaluate()
                if live_file is not None:
                    live_file.add(self.records[-1])
            if live_file is not None:
                live_file.note_round(round_index)
            if saved is not None:
                saved.keep(round_index, self.state, self.sent, self.records)
                self.clock.add("checkpoints")
            if progress is not None:
                progress(round_index, rounds)
        if saved is not None:
            saved.remove()

    def stats(self) -> np.ndarray:
        """Return each peer's model: [N, C, K]."""
        stats = np.asarray(fetch(self.driver.read(self.state)), dtype=np.float64)
        self.clock.add("rounds")
        return stats

    @property
    def rejected(self) -> dict[str, int]:
        """Rejected messages by reason; empty where nothing was checked."""
        if not isinstance(self.state, Watched):
            return {}
        return dict(zip(REASONS, self.state.rejected.astype(int).tolist(), strict=True))

    def _advance(self, round_index: int) -> None:
        self.state, sent = self.driver.advance(self.state, round_index)
        self.sent = self.sent + sent
        self.done = round_index
        self.clock.add("rounds")

    def _evaluate(self) -> None:
        stats = self.driver.read(self.state)
        self.records.append(
            self.evaluation.record(self.done, stats, self.driver.strategy.of_weights, self.sent)
        )
        self.clock.add("evaluation")
