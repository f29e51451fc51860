"""One peer's side of the choice of a round: exact sums over the tree while the rounds go on, and what if one fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from peerbayes.errors import NeedsPerson
from peerbayes.learning.local_rows import LocalRows
from peerbayes.learning.selection import (
    HeldOut,
    Selection,
    incomplete,
    is_check,
    scaling_sentence,
    scaling_sums,
    too_few,
)
from peerbayes.model.scaling import Scaling
from peerbayes.peer.agreement.summary import Sums
from peerbayes.peer.agreement.tree_sums import Phase, SumIncomplete, TreeSums, pooled
from peerbayes.peer.protocol.session import Session

# A sum waits so many deadlines of a round for all peers: those far away may be a few rounds behind.
DEADLINES = 4


class Selecting:
    """Checks the models of all peers after some rounds, and remembers this peer's model of the best one."""

    def __init__(
        self, session: Session, sums: Callable[[], TreeSums], held_out: HeldOut, start: np.ndarray
    ) -> None:
        self._session, self._sums, self._held_out = session, sums, held_out
        self.selection = Selection.begin(start)
        self.phases: list[str] = []
        """The names of sums after the last round, which neighbours may still need."""
        self.reason = ""
        """Why no round is selected, or no scaling fitted; empty: they are."""
        self.scaling: Scaling | None = None
        """How probabilities follow from the models of the round kept, once that is known."""
        self.likelihood: np.ndarray | None = None
        """YᵀΦ of all peers' training rows [C, K], by which the model describes the classes, once that is known."""

    async def _total(self, phase: Phase, local: Any) -> Any:
        """Return a sum over all peers, which may not take long."""
        self.phases.append(phase.name)
        return await self._sums().total(phase, local, DEADLINES * self._session.terms.limits.deadline)

    async def check(self, stats: np.ndarray) -> bool:
        """Check the model S [C, K] of the last round, if that is due; return whether all peers stop."""
        session, terms = self._session, self._session.terms
        exchanges = terms.message_rounds // terms.rounds
        round_index, exchange = divmod(session.round_index, exchanges)
        if exchange or not round_index or not is_check(round_index, terms.rounds) or not self.selection.lasts:
            return False
        local = (await asyncio.to_thread(self._held_out.losses, stats[None]))[0]
        phase = Phase(f"held-out {round_index}", Sums.named("loss", "rows"))
        mine = Sums(
            {name: Fraction(float(value)) for name, value in zip(("loss", "rows"), local, strict=True)}
        )
        self.phases.clear()  # whoever tells of this round has all earlier sums
        try:
            sums = await self._total(phase, mine)
        except (SumIncomplete, NeedsPerson) as error:
            names = error.names if isinstance(error, SumIncomplete) else ()
            return self._end(incomplete(round_index, names or [f"everybody ({error})"]))
        total = np.array([float(sums["loss"]), float(sums["rows"])])
        if reason := too_few(total):
            return self._end(reason)
        self.selection = self.selection.after(round_index, total, stats)
        session.emit("checked", round=round_index, loss=total[0] / total[1], kept=int(self.selection.kept[0]))
        return self.selection.stops(terms.patience)

    async def fit_scaling(self) -> None:
        """Fit the scaling of all peers' models of the round kept, where one is."""
        if not (self.selection.lasts and self.selection.kept[0]):
            return
        fit = scaling_sums(self._held_out, np.asarray(self.selection.stats)[None])
        try:
            name, terms = next(fit)
            while True:
                name, terms = fit.send(await pooled(name, terms[0], self._total))
        except StopIteration as end:
            self.scaling = end.value
        except (SumIncomplete, NeedsPerson) as error:
            self.reason = f"probabilities are not scaled: {error}"
            self._session.emit("not selected", reason=self.reason)

    async def sum_statistics(self, rows: LocalRows, model: np.ndarray) -> None:
        """Add up YᵀΦ of all peers' rows, missing values completed by each peer's own model S [C, K]."""
        if not self.selection.lasts:
            return
        whole = not rows.incomplete.any()
        local = await asyncio.to_thread(lambda: rows.statistics() if whole else rows.expected(model[None]))
        try:
            self.likelihood = await pooled("statistics of rows", local[0], self._total)
        except (SumIncomplete, NeedsPerson) as error:
            self._session.emit("not selected", reason=f"classes are described by the model: {error}")

    def _end(self, reason: str) -> bool:
        self.reason, self.selection = reason, self.selection.ended()
        self._session.emit("not selected", reason=reason)
        return False

    def model(self, stats: np.ndarray) -> np.ndarray:
        """Return S [C, K] of the round kept, or that of the last round, `stats`."""
        return np.asarray(self.selection.stats) if self.selection.lasts and self.selection.kept[0] else stats

    def sentence(self) -> str:
        """Return in words which round is kept, and where all stopped."""
        if not self.selection.lasts:
            return self.reason or "the last round is kept: a sum over all peers could not be completed"
        exchanges = self._session.terms.message_rounds // self._session.terms.rounds
        kept = self.selection.sentence(self._session.round_index // exchanges)
        return f"{kept}; {self.reason if self.scaling is None else scaling_sentence(self.scaling)}"
