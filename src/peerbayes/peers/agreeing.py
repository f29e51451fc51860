"""How a peer comes to the agreement: what others are asked for goes over the tree, and what it buys is stored first."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from peerbayes.errors import PeerbayesError
from peerbayes.peers import patience, wire
from peerbayes.peers.agreement import Agreed, agree
from peerbayes.peers.edge_noise import shared_sources
from peerbayes.peers.errors import PeerError
from peerbayes.peers.learner import Broadcaster
from peerbayes.peers.ledger import Ledger
from peerbayes.peers.mask_keys import PHASE, MaskKeys, own_key, verified
from peerbayes.peers.masked import Masked
from peerbayes.peers.masks import Masker, new_key
from peerbayes.peers.medians import Voter
from peerbayes.peers.pooling import Phase
from peerbayes.peers.private import agree_privately
from peerbayes.peers.standing import Standing
from peerbayes.peers.store import Store
from peerbayes.peers.sums import Gone, MemberGone, TreeSums
from peerbayes.peers.transport import Transport
from peerbayes.privacy.sampling import Source


class Agreeing:
    """Everything that the rounds need, from this peer's rows and everybody's sums."""

    def __init__(
        self, standing: Standing, store: Store, ledger: Ledger, transport: Transport, source: Source
    ) -> None:
        self._standing, self._store, self._ledger = standing, store, ledger
        self._transport, self._source = transport, source

    @cached_property
    def sums(self) -> TreeSums:
        """What is agreed on by sums, once the roster is closed."""
        return TreeSums(self._standing.name, self._standing.roster, self._store, self._standing.news)

    async def run(self, frame: pd.DataFrame, labels: np.ndarray) -> Agreed:
        """Once all the others are there. Where it fails, they hear why before this peer stops."""
        try:
            return await self._with_keys(await self._of_rows(frame, labels))
        except MemberGone:
            await self._leave()
            raise
        except PeerbayesError:
            await self.sums.drain(patience.DRAIN)
            # The next start may bring other rows.
            await self._standing.room.until("forget", self._store.forget_agreement)
            raise

    async def _of_rows(self, frame: pd.DataFrame, labels: np.ndarray) -> Agreed:
        name, terms, roster = self._standing.name, self._standing.terms, self._standing.roster
        if terms.privacy.epsilon is None:
            voter = Voter(name, roster, self._transport.vouch, self._transport.vouched)
            return await agree(name, frame, labels, terms, roster, self._total, self._exchange, voter)
        return await agree_privately(
            name, frame, labels, terms, roster, self._total, self._bought, self._source
        )

    async def _with_keys(self, agreed: Agreed) -> Agreed:
        """The same, with keys between neighbours where messages are masked or noise is shared."""
        privacy = self._standing.terms.privacy
        if not (privacy.secure_sum or privacy.edge_noise):
            return agreed
        masker, keys = await self._keys()
        if agreed.private is not None and privacy.edge_noise:
            agreed.private.shared = shared_sources(masker, keys, self._standing.roster)
        if privacy.secure_sum:
            assert isinstance(agreed.learner, Broadcaster)
            learner = Masked.of(agreed.learner, agreed.plausible, masker, keys, self._standing.roster)
            agreed = replace(agreed, learner=learner)
        return agreed

    async def _keys(self) -> tuple[Masker, dict[str, bytes]]:
        """This peer's key, and everybody's public ones, once each is known to be its owner's."""
        standing = self._standing
        room = standing.room
        private = await room.until("keys", lambda: self._store.secret("private mask key", new_key))
        own = own_key(private, standing.roster, standing.name, self._transport.vouch)
        keys: MaskKeys = await self._total(Phase(PHASE, MaskKeys.parse, lambda part: len(part.held)), own)
        masker = Masker(standing.name, private, standing.roster.network, standing.roster.run)
        if self._store.told("mask keys") != keys.digest:  # certificates may be renewed in a run; keys stay
            verified(keys, standing.roster, self._transport.vouched)
            await room.until(
                "keys", lambda: self._store.claim({"mask keys": (keys.digest, "other mask keys")})
            )
        return masker, keys.public

    async def _total(self, phase: Phase, own: Any) -> Any:
        self._standing.step = f"agreeing on {phase.name}"
        self._standing.tell("agreeing", phase=phase.name)
        return await self.sums.total(phase, own, self._gone)

    async def _exchange(self, own: np.ndarray, check: Callable[[np.ndarray], None]) -> dict[str, np.ndarray]:
        return await self.sums.exchange(own, check, self._gone)

    def _gone(self) -> Gone:
        """Who will never say what it has. A neighbour that is heard no more may still be heard by others."""
        standing = self._standing
        linked, revoked = standing.roster.neighbours(standing.name), set(standing.roster.revoked)
        left = {name for name in linked if standing.line(name).left and standing.line(name).note == "left"}
        return Gone(set(linked) - set(standing.neighbours), revoked | left)

    async def _leave(self) -> None:
        """Tell the neighbours why this peer cannot go on, so that they do not wait either."""
        standing = self._standing
        last = standing.request("roster", body=standing.own.signed), standing.request("leave")

        async def tell(name: str) -> None:
            with contextlib.suppress(PeerError):
                for asked in last:
                    await self._transport.ask(name, wire.encode(asked), patience.FAREWELL)

        await asyncio.gather(*map(tell, standing.neighbours))

    async def _bought(self, name: str, cost: float, make: Callable[[], np.ndarray]) -> np.ndarray:
        """A release before the first round: stored before it is sent, and told again after a restart."""
        made = []

        def noted() -> np.ndarray:
            made.append(name)
            return make()

        def bought() -> np.ndarray:
            values = self._store.bought(name, cost, noted)
            if made:
                self._ledger.enter(name)
                self._standing.stored = self._store.stored()
            return values

        return await self._standing.room.until("release", bought)
