"""The agreement before the first round: sums over the spanning tree, and releases that are stored before they leave."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from peerbayes.errors import PeerbayesError, PeerError
from peerbayes.peer import tasks
from peerbayes.peer.agreement.agreed_figures import (
    KEPT,
    agreed_figures,
    private_figures,
    refuse_findings,
)
from peerbayes.peer.agreement.agreed_figures import KEY as FIGURES_KEY
from peerbayes.peer.agreement.negotiate import Agreed, agree
from peerbayes.peer.agreement.private_agreement import agree_privately
from peerbayes.peer.agreement.terms import NO_FIGURES
from peerbayes.peer.agreement.tree_sums import Gone, MemberGone, Phase, TreeSums
from peerbayes.peer.agreement.votes import Voter
from peerbayes.peer.agreement.warm import EarlierModel
from peerbayes.peer.learning.learner import Broadcaster
from peerbayes.peer.learning.masks import (
    PHASE,
    Masked,
    Masker,
    MaskKeys,
    new_key,
    own_key,
    shared_sources,
    verified,
)
from peerbayes.peer.protocol.session import Session
from peerbayes.peer.state.ledger import Ledger
from peerbayes.privacy.noise import Source


class AgreementRunner:
    """Computes everything that the rounds need, from this peer's rows and the sums over all peers."""

    def __init__(
        self, session: Session, ledger: Ledger, source: Source, earlier: EarlierModel | None = None
    ) -> None:
        self._session, self._ledger, self._source, self._earlier = session, ledger, source, earlier
        self._store, self._transport = session.store, session.transport

    @cached_property
    def sums(self) -> TreeSums:
        """Return the sums over the spanning tree; the roster must be closed."""
        session = self._session
        return TreeSums(session.name, session.roster, self._store, session.changes, self._departed)

    async def run(self, frame: pd.DataFrame, labels: np.ndarray) -> Agreed:
        """Agree with all other members. Where that fails, they are told why before this peer stops."""
        try:
            agreed = await self._with_keys(await self._of_rows(frame, labels))
            return await self._with_figures(agreed, frame, labels)
        except MemberGone:
            await self._leave()
            raise
        except PeerbayesError:
            await self.sums.drain(tasks.DRAIN)
            # The next start may bring other rows.
            await self._session.room.until("forget", self._store.forget_agreement)
            raise

    async def _of_rows(self, frame: pd.DataFrame, labels: np.ndarray) -> Agreed:
        name, terms, roster = self._session.name, self._session.terms, self._session.roster
        if terms.privacy.epsilon is None:
            voter = Voter(name, roster, self._transport.vouch, self._transport.vouched)
            return await agree(
                name, frame, labels, terms, roster, self._total, self.sums.exchange, voter, self._earlier
            )
        return await agree_privately(name, frame, labels, terms, roster, self._total, self._buy, self._source)

    async def _with_figures(self, agreed: Agreed, frame: pd.DataFrame, labels: np.ndarray) -> Agreed:
        """Add figures of all sites' tables, where the agreement asks for them; findings may stop the run."""
        session, terms = self._session, agreed.named or self._session.terms
        if terms.figures == NO_FIGURES:
            return agreed
        room, schema = session.room, agreed.schema
        if terms.privacy.epsilon is None:
            voter = Voter(session.name, session.roster, self._transport.vouch, self._transport.vouched)
            secret = await room.until("keys", lambda: self._store.secret(FIGURES_KEY, new_key))
            figures = await agreed_figures(voter, secret, frame, labels, schema, terms, self._total)
        else:
            figures = await private_figures(
                frame, labels, schema, terms, agreed.peers, self._total, self._buy, self._source
            )
        content = figures.to_json()
        if self._store.value(KEPT) != content:  # once, and not at every start
            for sentence in figures.warnings:
                session.emit("finding", sentence=sentence)
            await room.until("figures", lambda: self._store.keep(KEPT, content))
        refuse_findings(figures)
        return replace(agreed, figures=figures)

    async def _with_keys(self, agreed: Agreed) -> Agreed:
        """Add the keys between neighbours where messages are masked or noise is shared."""
        privacy = self._session.terms.privacy
        if not (privacy.secure_sum or privacy.edge_noise):
            return agreed
        masker, keys = await self._keys()
        if agreed.private is not None and privacy.edge_noise:
            agreed.private.shared = shared_sources(masker, keys, self._session.roster)
        if privacy.secure_sum:
            assert isinstance(agreed.learner, Broadcaster)
            learner = Masked.of(agreed.learner, masker, keys, self._session.roster)
            agreed = replace(agreed, learner=learner)
        return agreed

    async def _keys(self) -> tuple[Masker, dict[str, bytes]]:
        """Return this peer's key, and the verified public keys of all members."""
        session = self._session
        room = session.room
        private = await room.until("keys", lambda: self._store.secret("private mask key", new_key))
        signed_key = own_key(private, session.roster, session.name, self._transport.vouch)
        keys: MaskKeys = await self._total(
            Phase(PHASE, MaskKeys.parse, lambda message: len(message.by_member)), signed_key
        )
        masker = Masker(session.name, private, session.roster.network, session.roster.run)
        if self._store.value("mask keys") != keys.digest:  # certificates may be renewed in a run; keys stay
            verified(keys, session.roster, self._transport.vouched)
            await room.until(
                "keys", lambda: self._store.claim({"mask keys": (keys.digest, "other mask keys")})
            )
        return masker, keys.public

    async def _total(self, phase: Phase, contribution: Any) -> Any:
        self._session.step = f"agreeing on {phase.name}"
        self._session.emit("agreeing", phase=phase.name)
        return await self.sums.total(phase, contribution)

    def _departed(self) -> Gone:
        """Return the members that will never contribute. Others may still hear a neighbour that this peer does not."""
        session = self._session
        linked, revoked = session.roster.neighbours(session.name), set(session.roster.revoked)
        leavers = {
            name for name in linked if session.neighbour(name).left and session.neighbour(name).note == "left"
        }
        return Gone(set(linked) - set(session.neighbours), revoked | leavers)

    async def _leave(self) -> None:
        """Tell the neighbours why this peer cannot go on, so that they do not wait for it."""
        session = self._session

        async def tell(name: str) -> None:
            roster = session.request(name, "roster", body=session.signed)
            with contextlib.suppress(PeerError):
                for request in (roster, session.request(name, "leave")):
                    await session.ask(name, request, tasks.LEAVE)

        await asyncio.gather(*map(tell, session.neighbours))

    async def _buy(self, name: str, cost: float, make: Callable[[], np.ndarray]) -> np.ndarray:
        """Return a release before the first round: stored before it is sent, and sent again after a restart."""
        is_new = all(entry["name"] != name for entry in self._store.releases())

        def buy() -> np.ndarray:
            values = self._store.bought(name, cost, make)
            if is_new:
                self._ledger.enter(name)
                self._session.stored = self._store.stored()
            return values

        return await self._session.room.until("release", buy)
