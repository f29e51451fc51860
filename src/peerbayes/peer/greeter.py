"""What a peer answers whose run does not go on here: while it is checked, and while it leaves."""

from __future__ import annotations

import contextlib
from typing import Any

from peerbayes.errors import RefusedMessage
from peerbayes.peer.protocol import wire
from peerbayes.peer.protocol.server import Server
from peerbayes.peer.protocol.session import Session


class _Nothing:
    """A stand-in for the components that a peer that does not run lacks: sums, messages, evidence."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *_: Any, **__: Any) -> None:
        return None


class Greeter(Server):
    """Answers as a peer whose run has not begun, and stores nothing."""

    def __init__(self, session: Session) -> None:
        nothing: Any = _Nothing()
        super().__init__(session, *[nothing] * 6)

    async def answer(self, caller: str, content: bytes) -> bytes:
        """Return the reply to a neighbour's request; a roster and a leave must be sent again, to a peer that runs."""
        with contextlib.suppress(RefusedMessage):  # the answer says why
            request = wire.request_in(content, self.session.versions)
            if request.kind in ("leave", "roster"):
                reason = "its run does not go on here now; say it again later"
                return wire.encode(self.reply(request, "not yet", reason=reason))
        return await super().answer(caller, content)
