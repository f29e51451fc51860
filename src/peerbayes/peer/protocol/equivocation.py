"""Members that tell different neighbours different things: how it is found out, and what follows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product

from peerbayes.errors import RefusedMessage
from peerbayes.peer.protocol.mailboxes import Inbox
from peerbayes.peer.protocol.session import Session
from peerbayes.peer.protocol.wire import MOST_STATEMENTS, Reply, Statement

# --- detect equivocation: neighbours sign what they send to everybody, so two different messages in one round are found
# Every message that goes to all neighbours alike comes with a signature of (run, round, digest). With its next
# request a peer passes on the signatures of common neighbours; two digests of one peer and round, both signed by it,
# prove that it equivocated. Peers without a common neighbour cannot compare: a tree has none.

REMEMBERED = 4  # rounds around the current one whose statements are compared

Signed = Callable[[Statement], bool]  # whether a statement is signed by its author


@dataclass
class Statements:
    """Statements of the last rounds, one for each neighbour and round."""

    signed: Signed
    _statements: dict[tuple[str, int], Statement] = field(default_factory=dict)
    _first_hand: set[tuple[str, int]] = field(default_factory=set)

    def heard(self, statement: Statement) -> tuple[Statement, Statement] | None:
        """Add a verified statement that came with a message; return two contradictory statements, or None."""
        key = statement.name, statement.round_index
        earlier = self._statements.get(key)
        self._statements[key] = statement
        self._first_hand.add(key)
        if earlier is None or earlier.digest == statement.digest or not self.signed(earlier):
            return None
        return earlier, statement

    def passed_on(
        self, statement: Statement, by: str, round_index: int
    ) -> tuple[Statement, Statement] | None:
        """Add a statement passed on by another peer, at this peer's round; return two contradictory ones, or None."""
        key = statement.name, statement.round_index
        if abs(statement.round_index - round_index) > REMEMBERED:
            return None
        earlier = self._statements.setdefault(key, statement)
        if earlier.digest == statement.digest:
            return None
        if not self.signed(statement):
            raise RefusedMessage(
                "false witness",
                f"{by} passed on a statement of {statement.name} in round {statement.round_index} with a wrong "
                "signature",
            )
        if key not in self._first_hand and not self.signed(earlier):
            self._statements[key] = statement  # it was passed on by somebody else, and never verified
            return None
        return earlier, statement

    def of(self, names: Iterable[str], rounds: Iterable[int]) -> tuple[Statement, ...]:
        """Return the statements of these peers in some rounds that this peer received first-hand."""
        keys = product(names, rounds)
        return tuple(self._statements[key] for key in keys if key in self._first_hand)[:MOST_STATEMENTS]

    def forget(self, round_index: int) -> None:
        """Forget rounds long before this one."""
        for key in [key for key in self._statements if key[1] < round_index - REMEMBERED]:
            self._first_hand.discard(key)
            del self._statements[key]


# --- the blocklist: neighbours whose messages are no longer accepted

STRUCK_OFF, TWO_STORIES = "struck off", "two stories"  # reasons


@dataclass(eq=False)
class Blocklist:
    """Names of blocked neighbours, and the reason for each."""

    session: Session
    inbox: Inbox
    _reasons: dict[str, str] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self._reasons

    def __iter__(self) -> Iterator[str]:
        return iter(self._reasons)

    def add(self, name: str, reason: str, why: str) -> None:
        """Block a neighbour permanently; its requests are refused with the reason."""
        if name in self._reasons:
            return
        self._reasons[name] = reason
        neighbour_state = self.session.neighbour(name)
        neighbour_state.left, neighbour_state.note = True, f"{reason}: {why}"
        self.inbox.drop(name)
        self.session.emit("parted", neighbour=name, reason=reason, why=why)
        self.session.changes.notify()

    def strike_off(self, names: tuple[str, ...]) -> None:
        """Block the neighbours whose models failed the guard."""
        for name in names:
            self.add(name, STRUCK_OFF, "its models fail on this peer's rows")

    def refuse(self, caller: str) -> None:
        """Refuse a blocked caller."""
        why, detail = self._reasons.get(caller), f"{self.session.name} hears {caller} no more"
        if why == TWO_STORIES:
            raise RefusedMessage("two stories", detail)
        if why is not None:
            raise RefusedMessage("struck off", detail)


# --- equivocation: neighbours compare what a member signed for each; two messages of one round are proof, and are kept


@dataclass(eq=False)
class Evidence:
    """Compares signed messages with those that other neighbours got, and keeps proofs of equivocation."""

    session: Session
    blocklist: Blocklist
    _passed_on: dict[str, int] = field(default_factory=dict)
    """The last round whose statements each neighbour got."""

    def __post_init__(self) -> None:
        self._statements = Statements(self._is_signed)

    def recall(self) -> None:
        """Part again, after a restart, with neighbours against which there is a proof."""
        for name in self._proofs():
            self.blocklist.add(name, TWO_STORIES, "")

    def hear(self, neighbour: str, round_index: int, reply: Reply) -> None:
        """Remember a neighbour's message of a round; refuse it where its signature or other peers contradict it."""
        statement = Statement(neighbour, round_index, reply.digest, reply.signature)
        if not self._is_signed(statement):
            raise RefusedMessage(
                "wrong signature", f"the message of round {round_index} is not signed by {neighbour}"
            )
        self._expose(self._statements.heard(statement))
        if neighbour in self.blocklist:
            raise RefusedMessage(
                "two stories", f"{neighbour} sent something else to another peer in round {round_index}"
            )

    def listen(self, caller: str, statements: tuple[Statement, ...]) -> None:
        """Compare the messages that a neighbour got from common neighbours with those that this peer got."""
        common = self._common(caller)
        for statement in statements:
            if statement.name in common:
                self._expose(self._statements.passed_on(statement, caller, self.session.round_index))

    def to_pass_on(self, neighbour: str) -> tuple[Statement, ...]:
        """Return what common neighbours signed in the rounds that this neighbour was told nothing of: mostly the last.

        Of a round whose message came ahead of time no request is sent, so there are more after catching up.
        """
        last = self.session.round_index
        first = max(self._passed_on.get(neighbour, 0) + 1, last - REMEMBERED, 1)
        return self._statements.of(sorted(self._common(neighbour)), range(first, last + 1))

    def passed_on(self, neighbour: str, statements: tuple[Statement, ...]) -> None:
        """Remember what a neighbour was told."""
        rounds = [statement.round_index for statement in statements]
        self._passed_on[neighbour] = max([self._passed_on.get(neighbour, 0), *rounds])

    def forget(self) -> None:
        """Forget old rounds."""
        self._statements.forget(self.session.round_index)

    def _is_signed(self, statement: Statement) -> bool:
        return self.session.transport.signed(
            statement.name, statement.signature, statement.content(self.session.roster.run)
        )

    def _common(self, neighbour: str) -> set[str]:
        """Return the neighbours of both this peer and a neighbour."""
        roster = self.session.roster
        return set(roster.neighbours(neighbour)) & set(roster.neighbours(self.session.name))

    def _proofs(self) -> dict[str, dict[str, object]]:
        return dict(json.loads(self.session.store.value(TWO_STORIES) or "{}"))

    def _expose(self, pair: tuple[Statement, Statement] | None) -> None:
        """Part with a neighbour that signed two messages of one round; keep the proof."""
        if pair is None or pair[0].name in self.blocklist:
            return
        name, round_index = pair[0].name, pair[0].round_index
        proofs = self._proofs()
        proofs[name] = {
            "run": self.session.roster.run, "round": round_index,
            "signed": [{"digest": signed.digest.hex(), "signature": signed.signature.hex()} for signed in pair],
        }  # fmt: skip
        self.session.store.keep(TWO_STORIES, json.dumps(proofs))
        for signed in pair:  # nothing is sent, but readers of the log must see it
            self.session.audit.add(name, f"{TWO_STORIES} of round {round_index}, not sent", 0, signed.digest)
        digests = " and ".join(signed.digest.hex()[:12] for signed in pair)
        self.blocklist.add(name, TWO_STORIES, f"it signed two messages of round {round_index}: {digests}")
