"""What neighbours signed, compared with what they told others; two stories of one round are proof, and are kept."""

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
    """This peer's witnesses, and the proofs that they led to."""

    def __init__(
        self, standing: Standing, store: Store, transport: Transport, audit: AuditLog, parted: Parted
    ) -> None:
        self._standing, self._store, self._transport, self._audit = standing, store, transport, audit
        self._parted = parted
        self._witnesses = Witnesses(self._is_signed)

    def recall(self) -> None:
        """Part again with those that were found out before a restart."""
        for name in self._proofs():
            self._parted.add(name, TWO_STORIES, "")

    def hear(self, neighbour: str, turn: int, reply: Reply) -> None:
        """Remember what a neighbour said to all, if it signed that and said nothing else to others."""
        said = Said(neighbour, turn, reply.digest, reply.signature)
        if not self._is_signed(said):
            raise RefusedMessage(
                "wrong signature", f"the message of round {turn} is not signed by {neighbour}"
            )
        self._expose(self._witnesses.heard(said))
        if neighbour in self._parted:
            raise RefusedMessage(
                "two stories", f"{neighbour} said something else to another peer in round {turn}"
            )

    def listen(self, caller: str, told: tuple[Said, ...]) -> None:
        """Compare what a neighbour was told with what this peer was."""
        both = self._common(caller)
        for said in told:
            if said.name in both:
                self._expose(self._witnesses.told(said, caller, self._standing.turn))

    def to_pass_on(self, neighbour: str) -> tuple[Said, ...]:
        """What neighbours of both said in the last round."""
        return self._witnesses.of(sorted(self._common(neighbour)), self._standing.turn)

    def forget(self) -> None:
        """Let go of rounds of long ago."""
        self._witnesses.forget(self._standing.turn)

    def _is_signed(self, said: Said) -> bool:
        return self._transport.signed(said.name, said.signature, said.content(self._standing.roster.run))

    def _common(self, neighbour: str) -> set[str]:
        """Who is a neighbour of both."""
        roster = self._standing.roster
        return set(roster.neighbours(neighbour)) & set(roster.neighbours(self._standing.name))

    def _proofs(self) -> dict[str, dict[str, object]]:
        return dict(json.loads(self._store.told(TWO_STORIES) or "{}"))

    def _expose(self, pair: tuple[Said, Said] | None) -> None:
        """Part with a neighbour that signed two messages of one round; keep the proof."""
        if pair is None or pair[0].name in self._parted:
            return
        name, turn = pair[0].name, pair[0].turn
        proofs = self._proofs()
        proofs[name] = {
            "run": self._standing.roster.run, "round": turn,
            "signed": [{"digest": each.digest.hex(), "signature": each.signature.hex()} for each in pair],
        }  # fmt: skip
        self._store.keep(TWO_STORIES, json.dumps(proofs))
        for each in pair:  # nothing leaves, but whoever reads the log must find it
            self._audit.add(name, f"{TWO_STORIES} of round {turn}, not sent", 0, each.digest)
        digests = " and ".join(each.digest.hex()[:12] for each in pair)
        self._parted.add(name, TWO_STORIES, f"it signed two messages of round {turn}: {digests}")
