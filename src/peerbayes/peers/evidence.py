"""Equivocation: neighbours compare what a member signed for each; two messages of one round are proof, and are kept."""

from __future__ import annotations

import json

from peerbayes.peers.audit import AuditLog
from peerbayes.peers.errors import RefusedMessage
from peerbayes.peers.parted import TWO_STORIES, Parted
from peerbayes.peers.standing import Standing
from peerbayes.peers.store import Store
from peerbayes.peers.transport import Transport
from peerbayes.peers.wire import Reply, Said
from peerbayes.peers.witnesses import Witnesses


class Evidence:
    """Compares signed messages with those that other neighbours got, and keeps proofs of equivocation."""

    def __init__(
        self, standing: Standing, store: Store, transport: Transport, audit: AuditLog, parted: Parted
    ) -> None:
        self._standing, self._store, self._transport, self._audit = standing, store, transport, audit
        self._parted = parted
        self._witnesses = Witnesses(self._is_signed)

    def recall(self) -> None:
        """Part again, after a restart, with neighbours against which there is a proof."""
        for name in self._proofs():
            self._parted.add(name, TWO_STORIES, "")

    def hear(self, neighbour: str, round_index: int, reply: Reply) -> None:
        """Remember a neighbour's message of a round; refuse it where its signature or other peers contradict it."""
        statement = Said(neighbour, round_index, reply.digest, reply.signature)
        if not self._is_signed(statement):
            raise RefusedMessage(
                "wrong signature", f"the message of round {round_index} is not signed by {neighbour}"
            )
        self._expose(self._witnesses.heard(statement))
        if neighbour in self._parted:
            raise RefusedMessage(
                "two stories", f"{neighbour} sent something else to another peer in round {round_index}"
            )

    def listen(self, caller: str, statements: tuple[Said, ...]) -> None:
        """Compare the messages that a neighbour got from common neighbours with those that this peer got."""
        common = self._common(caller)
        for statement in statements:
            if statement.name in common:
                self._expose(self._witnesses.told(statement, caller, self._standing.turn))

    def to_pass_on(self, neighbour: str) -> tuple[Said, ...]:
        """Return what common neighbours signed in the last round."""
        return self._witnesses.of(sorted(self._common(neighbour)), self._standing.turn)

    def forget(self) -> None:
        """Forget old rounds."""
        self._witnesses.forget(self._standing.turn)

    def _is_signed(self, statement: Said) -> bool:
        return self._transport.signed(
            statement.name, statement.signature, statement.content(self._standing.roster.run)
        )

    def _common(self, neighbour: str) -> set[str]:
        """Return the neighbours of both this peer and a neighbour."""
        roster = self._standing.roster
        return set(roster.neighbours(neighbour)) & set(roster.neighbours(self._standing.name))

    def _proofs(self) -> dict[str, dict[str, object]]:
        return dict(json.loads(self._store.told(TWO_STORIES) or "{}"))

    def _expose(self, pair: tuple[Said, Said] | None) -> None:
        """Part with a neighbour that signed two messages of one round; keep the proof."""
        if pair is None or pair[0].name in self._parted:
            return
        name, round_index = pair[0].name, pair[0].turn
        proofs = self._proofs()
        proofs[name] = {
            "run": self._standing.roster.run, "round": round_index,
            "signed": [{"digest": signed.digest.hex(), "signature": signed.signature.hex()} for signed in pair],
        }  # fmt: skip
        self._store.keep(TWO_STORIES, json.dumps(proofs))
        for signed in pair:  # nothing is sent, but readers of the log must see it
            self._audit.add(name, f"{TWO_STORIES} of round {round_index}, not sent", 0, signed.digest)
        digests = " and ".join(signed.digest.hex()[:12] for signed in pair)
        self._parted.add(name, TWO_STORIES, f"it signed two messages of round {round_index}: {digests}")
