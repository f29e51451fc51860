"""The rounds of a simulation, and what is kept of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from peerbayes.checkpoints import Checkpoint
from peerbayes.defence import Watched
from peerbayes.invariants import REASONS
from peerbayes.live import LiveFile
from peerbayes.places import fetch
from peerbayes.privacy.simulated import PrivateRows
from peerbayes.simulation.clock import Clock, Progress
from peerbayes.simulation.drivers import Driver
from peerbayes.simulation.judging import Judging


@dataclass
class Course:
    """All peers on their way: where they are, and what was seen of them so far."""

    driver: Driver
    judging: Judging
    clock: Clock
    state: Any
    """The driver's, of all peers."""
    sent: np.ndarray
    """[N] bytes."""
    done: int = 0
    """Rounds."""
    records: list[np.ndarray] = field(default_factory=list)
    """The history, an [N, 8] for each evaluated round."""

    def resume(self, saved: Checkpoint, hidden: PrivateRows | None) -> None:
        """Go on where a killed run was, if one left something."""
        self.done, self.state, self.sent, self.records = saved.resume(self.state, self.sent)
        if hidden is not None:
            hidden.calls += self.done

    def go(
        self,
        rounds: int,
        evaluate_every: int,
        saved: Checkpoint | None = None,
        watched: LiveFile | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Through all rounds that are left."""
        if watched is not None and self.records:
            watched.add(np.concatenate(self.records))
        for turn in range(self.done + 1, rounds + 1):
            self._advance(turn)
            if turn == rounds or (evaluate_every and turn % evaluate_every == 0):
                self._evaluate()
                if watched is not None:
                    watched.add(self.records[-1])
            if watched is not None:
                watched.turn(turn)
            if saved is not None:
                saved.keep(turn, self.state, self.sent, self.records)
                self.clock.add("checkpoints")
            if progress is not None:
                progress(turn, rounds)
        if saved is not None:
            saved.remove()

    def stats(self) -> np.ndarray:
        """What each peer would predict with: [N, C, K]."""
        found = np.asarray(fetch(self.driver.read(self.state)), dtype=np.float64)
        self.clock.add("rounds")
        return found

    @property
    def rejected(self) -> dict[str, int]:
        """Messages that receivers refused, by what they broke; empty where nothing was checked."""
        if not isinstance(self.state, Watched):
            return {}
        return dict(zip(REASONS, self.state.rejected.astype(int).tolist(), strict=True))

    def _advance(self, turn: int) -> None:
        self.state, more = self.driver.advance(self.state, turn)
        self.sent = self.sent + more
        self.done = turn
        self.clock.add("rounds")

    def _evaluate(self) -> None:
        now = self.driver.read(self.state)
        self.records.append(self.judging.record(self.done, now, self.driver.strategy.of_weights, self.sent))
        self.clock.add("evaluation")
