"""The evaluation of the final model at all sites, after the last round: each site's own model on its held-out rows.

    sites         every site's statement, vouched for: its figures with its name, or that it is anonymous, or has none
    site scores   the sums of all sites' rows, errors, losses and counts of scores, masked: see `masked_sums`

Anonymous sites are in the sums only, and only where three or more of them are: of one, the difference between the sums
and the sites with a name would be its figure, and of two, each would know the other's. Of three, two that put theirs
together know the third's. Where a statement is missing, or not vouched for, nothing is summed: who passes statements on
could otherwise leave out all but its own friends'. Whoever vanishes is waited for as long as where a round is selected;
then there is no table of all sites, and the model stays what it is.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import numpy as np

from peerbayes.errors import NeedsPerson, RefusedMessage
from peerbayes.learning import site_scores
from peerbayes.learning.metrics import LARGEST_LOSS
from peerbayes.learning.selection import HeldOut
from peerbayes.learning.site_scores import MOST_ROWS, SiteScores
from peerbayes.model.scaling import Scaling
from peerbayes.peer.agreement import masked_sums
from peerbayes.peer.agreement.masked_sums import (
    Statements,
    masked_sum,
    statement,
    usable_key,
    vouched_statements,
)
from peerbayes.peer.agreement.negotiate import Agreed
from peerbayes.peer.agreement.tree_sums import Phase, SumIncomplete, TreeSums
from peerbayes.peer.learning import selecting
from peerbayes.peer.learning.held_out import Evaluator
from peerbayes.peer.learning.masks import new_key, public_key
from peerbayes.peer.protocol.session import Session
from peerbayes.peer.state.peer_settings import ANONYMOUS, NAMED, NOT_SHARED, SHARES

SITES, SCORES = "sites", "site scores"  # phases
KEPT = "site figures"  # key in the state of the table, which `status` reads
OWN = "own site figures"  # key in the state of this site's part: a mask is used for the same words only
KEY = "sites key"  # of the secret in the state

NO_ROWS = "no rows"
FALSE = "false"  # a statement that is not the site's, or that no rows have


class Statement(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a site says of its held-out rows; numbers are 0 where it tells nothing of them."""

    shares: str
    """One of the values of `share_figures`, or that it has no held-out rows."""
    key: bytes = b""
    """Public, for masks; of sites that take part in the sums."""
    rows: int = 0
    unknown: int = 0
    wrong: int = 0
    loss: float = 0.0
    brier: float = 0.0
    calibration: float = 0.0
    auc: float | None = None

    @classmethod
    def of(cls, scores: SiteScores, shares: str, key: bytes) -> Statement:
        """Return a site's statement, by what its owner shares."""
        if not scores.tested:
            return cls(NO_ROWS)
        if shares == NOT_SHARED:
            return cls(NOT_SHARED)
        if shares == ANONYMOUS:
            return cls(ANONYMOUS, key)
        numbers = scores.loss, scores.brier, scores.figures["calibration"] or 0.0
        return cls(NAMED, key, scores.rows, scores.unknown, scores.wrong, *numbers, scores.auc)

    @classmethod
    def parse(cls, content: bytes | None) -> Statement | None:
        """Return a statement from outside; None: it cannot be read, or no rows have it."""
        try:
            said = None if content is None else _statements.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError):
            return None
        return said if said is not None and said.is_possible else None

    @property
    def is_possible(self) -> bool:
        """Whether some rows have these figures; that they are the site's rows nobody can check."""
        shares = (0.0 if self.auc is None else self.auc, self.calibration)
        numbers = self.loss, self.brier, *shares
        return (
            all(math.isfinite(number) for number in numbers)
            and self.shares in (*SHARES, NO_ROWS)
            and (self.shares not in (NAMED, ANONYMOUS) or usable_key(self.key))
            and 0 <= self.wrong <= self.rows <= MOST_ROWS
            and 0 <= self.unknown <= MOST_ROWS
            and 0 <= self.loss <= self.rows * LARGEST_LOSS
            and 0 <= self.brier <= 2.0 * self.rows
            and all(0.0 <= share <= 1.0 for share in shares)
        )

    @property
    def figures(self) -> dict[str, Any]:
        """Return the figures of a table."""
        return _figures(self.rows, self.unknown, self.wrong, self.loss, self.brier) | (
            {"auc": self.auc, "calibration": self.calibration if self.rows else None}
        )


_statements = msgspec.msgpack.Decoder(Statement)


def _figures(rows: int, unknown: int, wrong: int, loss: float, brier: float) -> dict[str, Any]:
    tested = rows + unknown
    return {
        "rows": tested,
        "error": (wrong + unknown) / tested if tested else None,
        "log_loss": loss / rows if rows else None,
        "auc": None,
        "brier": brier / rows if rows else None,
        "calibration": None,
    }


class SiteEvaluation:
    """One peer's side of the evaluation of all sites."""

    def __init__(self, session: Session, sums: Callable[[], TreeSums], shares: str) -> None:
        self._session, self._sums, self._shares = session, sums, shares
        self._store = session.store
        self.phases: list[str] = []
        """The names of sums that neighbours may still need."""

    async def run(
        self, agreed: Agreed, evaluator: Evaluator, stats: np.ndarray, scaling: Scaling | None
    ) -> dict[str, Any]:
        """Evaluate this peer's model S [C, K], and return the table of all sites; it is kept in the state."""
        session, classes = self._session, len(agreed.schema.classes)
        session.step = "evaluating all sites"
        own = await self._own(agreed, evaluator, stats, scaling)
        try:
            table = await self._table(own, classes)
        except (SumIncomplete, NeedsPerson, RefusedMessage) as error:
            name, said = session.name, Statement.of(own, self._shares, b"")
            note = f"the figures of all sites are not known: {error}"
            table = {"sites": _rows({name: said}), "all": None, "anonymous": None, "notes": [note]}
        for note in table["notes"]:
            session.emit("sites", note=note)
        await session.room.until("sites", lambda: self._store.keep(KEPT, json.dumps(table)))
        return table

    async def _own(
        self, agreed: Agreed, evaluator: Evaluator, stats: np.ndarray, scaling: Scaling | None
    ) -> SiteScores:
        """Return this site's scores, computed once: a second start adds the same words under the same masks."""

        def compute() -> SiteScores:
            tested = HeldOut((evaluator.held_out,), agreed.of_weights).logits(stats[None])[0]
            return SiteScores.of(*tested, scaling, evaluator.unknown)

        if (kept := self._store.value(OWN)) is None:
            scores = await asyncio.to_thread(compute)
            packed = base64.b64encode(scores.words.astype("<i8").tobytes()).decode()
            kept = json.dumps({"words": packed, "auc": scores.auc})
            await self._session.room.until("sites", partial(self._store.keep, OWN, kept))
        content = json.loads(kept)
        words = np.frombuffer(base64.b64decode(content["words"]), dtype="<i8")
        return replace(SiteScores.of_words(words, len(agreed.schema.classes)), auc=content["auc"])

    async def _table(self, own: SiteScores, classes: int) -> dict[str, Any]:
        session, roster = self._session, self._session.roster
        secret = await session.room.until("keys", lambda: self._store.secret(KEY, new_key))
        content = _encoder.encode(Statement.of(own, self._shares, public_key(secret)))
        proof = session.transport.vouch(statement(roster, SITES, session.name, content))
        phase = Phase(SITES, Statements.parse, lambda message: len(message.by_member))
        told = await self._total(phase, Statements({session.name: (content, proof)}))
        contents = vouched_statements(told, roster, SITES, session.transport.vouched)
        said = {name: Statement.parse(content) for name, content in contents.items()}
        unheard = [name for name, content in contents.items() if content is None]
        keys, notes = summed_sites(said, unheard)
        words, sums = own.words if session.name in keys else np.zeros_like(own.words), None
        if keys:
            try:
                sums = await masked_sum(session.name, words, secret, keys, roster, SCORES, self._total)
            except (SumIncomplete, NeedsPerson, RefusedMessage) as error:
                notes.append(f"sites without a name, and the AUC of all sites, are not known: {error}")
        return table_of(said, keys, sums, classes, notes)

    async def _total(self, phase: Phase, local: Any) -> Any:
        """Return a sum over all sites, which may not take long."""
        self.phases.append(phase.name)
        deadline = self._session.terms.limits.deadline
        return await self._sums().total(phase, local, selecting.DEADLINES * deadline)


_encoder = msgspec.msgpack.Encoder()


def summed_sites(
    said: Mapping[str, Statement | None], unheard: Sequence[str] = ()
) -> tuple[dict[str, bytes], list[str]]:
    """Return the public keys of the sites whose numbers are added up, in order, and sentences on whose are not.

    unheard  sites of which nothing came that they vouched for: somebody on the way may have left it out
    """
    notes, least = [], masked_sums.FEWEST
    if false := [name for name, statement in said.items() if statement is None and name not in unheard]:
        notes.append(f"what {_names(false)} said of its rows cannot be true: left out")
    if unheard:
        notes.append(
            f"nothing came of {_names(unheard)} that it vouched for, so nothing is added up: sites without a name, and "
            "the AUC of all sites, are not known"
        )
        return {}, notes
    kept = {name: statement for name, statement in said.items() if statement is not None}
    anonymous = [name for name, statement in kept.items() if statement.shares == ANONYMOUS]
    if 0 < len(anonymous) < least:
        sites = "1 site is" if len(anonymous) == 1 else f"{len(anonymous)} sites are"
        notes.append(
            f"{sites} anonymous, and left out: {least} or more together hide each other's figures, fewer do not"
        )
        anonymous = []
    summed = {
        name: statement.key
        for name, statement in kept.items()
        if statement.shares == NAMED or name in anonymous
    }
    if 0 < len(summed) < least:
        notes.append(
            f"the AUC of all sites is not known: {len(summed)} share their figures, and counts of scores are added up "
            f"for {least} or more, so that they are not those of one"
        )
        summed = {}
    return summed, notes


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def table_of(
    said: Mapping[str, Statement | None],
    keys: Mapping[str, bytes],
    sums: np.ndarray | None,
    classes: int,
    notes: list[str],
) -> dict[str, Any]:
    """Return the table of all sites, from their statements and the sums [words]; None: there are no sums."""
    named = [one for one in said.values() if one is not None and one.shares == NAMED]
    rows, unknown, wrong = (
        sum(getattr(one, field) for one in named) for field in ("rows", "unknown", "wrong")
    )
    loss, brier = (math.fsum(getattr(one, field) for one in named) for field in ("loss", "brier"))
    together: dict[str, Any] | None = None
    if rows + unknown:
        together = _figures(rows, unknown, wrong, loss, brier)
    anonymous = None
    hidden = len(keys) - len(named) if keys else 0
    if sums is not None:
        try:
            scores = SiteScores.of_words(sums, classes)
            rest = scores.rows - rows, scores.unknown - unknown, scores.wrong - wrong
            beyond = scores.loss - loss, scores.brier - brier
            if not _possible(rest, beyond, hidden):
                raise ValueError("they are not those that sites told, and of others")
            together = site_scores.figures_of_all(scores)
            if hidden:
                figures = _figures(*rest, max(0.0, beyond[0]), max(0.0, beyond[1]))
                anonymous = {"sites": hidden, **figures}
        except ValueError as error:
            notes.append(
                f"the sums of all sites cannot be right: {error}. Somebody's part is false, and they are left out"
            )
    return {"sites": _rows(said), "all": together, "anonymous": anonymous, "notes": notes}


def _possible(rest: tuple[int, int, int], beyond: tuple[float, float], hidden: int) -> bool:
    """Return whether what is left of the sums can be that of so many anonymous sites; of none, it is nothing."""
    rows, unknown, wrong = rest
    if not hidden:
        return not any(rest) and all(abs(number) < 1e-6 for number in beyond)
    return min(rest) >= 0 and wrong <= rows and unknown >= 0 and min(beyond) > -1e-6


def _rows(said: Mapping[str, Statement | None]) -> list[dict[str, Any]]:
    rows = []
    for name, one in said.items():
        shares = FALSE if one is None else one.shares
        rows.append({"name": name, "shares": shares, **(one.figures if one and shares == NAMED else {})})
    return rows
