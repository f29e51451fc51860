"""The blocklist: neighbours whose messages are no longer accepted."""

from __future__ import annotations

from collections.abc import Iterator

from peerbayes.peers.errors import RefusedMessage
from peerbayes.peers.inbox import Inbox
from peerbayes.peers.standing import Standing

STRUCK_OFF, TWO_STORIES = "struck off", "two stories"  # reasons


class Parted:
    """Names of blocked neighbours, and the reason for each."""

    def __init__(self, standing: Standing, inbox: Inbox) -> None:
        self._standing, self._inbox = standing, inbox
        self._reasons: dict[str, str] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._reasons

    def __iter__(self) -> Iterator[str]:
        return iter(self._reasons)

    def add(self, name: str, reason: str, why: str) -> None:
        """Block a neighbour permanently; its requests are refused with the reason."""
        if name in self._reasons:
            return
        self._reasons[name] = reason
        neighbour_state = self._standing.line(name)
        neighbour_state.left, neighbour_state.note = True, f"{reason}: {why}"
        self._inbox.drop(name)
        self._standing.tell("parted", neighbour=name, reason=reason, why=why)
        self._standing.news.tell()

    def strike_off(self, names: tuple[str, ...]) -> None:
        """Block the neighbours whose models failed the guard."""
        for name in names:
            self.add(name, STRUCK_OFF, "its models fail on this peer's rows")

    def refuse(self, caller: str) -> None:
        """Refuse a blocked caller."""
        why, detail = self._reasons.get(caller), f"{self._standing.name} hears {caller} no more"
        if why == TWO_STORIES:
            raise RefusedMessage("two stories", detail)
        if why is not None:
            raise RefusedMessage("struck off", detail)
