"""The messages that peers have missed, from their folders: a trace that a simulation can replay."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from peerbayes.data.files import printable
from peerbayes.errors import PeerError
from peerbayes.network import LossTrace
from peerbayes.peer.state.folder import Home
from peerbayes.peer.state.store import Store


class Missed(NamedTuple):
    """What some peers of a network have missed."""

    trace: LossTrace
    names: tuple[str, ...]  # [N] of all members, in the roster's order: the numbers of nodes in the trace
    rounds: dict[str, int]  # of the peers whose folders were read: the last round of each


def missed_messages(homes: Iterable[Home]) -> Missed:
    """Return what the peers of these folders have missed, one folder or several of the same network."""
    names: tuple[str, ...] = ()
    histories: dict[str, list[dict]] = {}
    first = None
    for home in homes:
        name, roster = home.settings().name, home.roster()
        members = tuple(member.name for member in roster.members)
        if first is None:
            first, names = roster, members
        if (roster.network, members) != (first.network, names):
            raise PeerError(
                f"{home.folder} is a peer's of {printable(roster.network)} with {len(members)} members, the first "
                f"folder's network is {printable(first.network)} with {len(names)}; expected folders of one network, "
                "with the same roster"
            )
        if name in histories:
            raise PeerError(
                f"{home.folder} is the folder of {printable(name)}, as another one is; expected one of them"
            )
        store = Store(home.state_path, readonly=True)
        try:
            histories[name] = store.history()
        finally:
            store.close()
    rounds = {
        name: max((entry["round"] for entry in history), default=0) for name, history in histories.items()
    }
    return Missed(LossTrace.recorded(histories, names), names, rounds)
