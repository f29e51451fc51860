"""Rosters in pieces: one of thousands of members is larger than a message may be.

A request names the roster by its digest (nothing: whichever the other has) and where the piece starts; the reply has
the piece and the size of the whole. The authority's signature, checked once all pieces are there, covers them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from peerbayes.errors import RefusedMessage
from peerbayes.peer.identity.roster import LARGEST
from peerbayes.peer.protocol.wire import Reply

PIECE = 32 << 10  # bytes: fits into every reply, however small messages were agreed to be
LARGEST_OFFERED = (
    256 << 10
)  # bytes of a roster that is sent along unasked; a larger one is asked for in pieces


def piece_of(signed: bytes, start: int) -> bytes:
    """Return the piece of a signed roster that starts at a byte."""
    return signed[start : start + PIECE]


@dataclass(eq=False)
class RosterPieces:
    """The pieces of a neighbour's roster that have come so far: at most `LARGEST` bytes of each neighbour."""

    digest: str = ""
    """Which roster it is; empty: nothing has come yet."""
    pieces: list[bytes] = field(default_factory=list)
    start: int = 0
    """Where the next piece starts."""

    def add(self, reply: Reply) -> bytes | None:
        """Add a reply's piece; return the whole roster if it was the last one."""
        size = reply.shape[0] if len(reply.shape) == 1 else 0
        if not len(reply.body) <= size <= LARGEST:
            self.clear()
            raise RefusedMessage(
                "wrong shape", f"a piece of {len(reply.body)} bytes of a roster of {size}; at most {LARGEST}"
            )
        if reply.round_index != self.start or not reply.body:
            self.clear()
            raise RefusedMessage("wrong message", f"a piece from byte {reply.round_index}, not {self.start}")
        self.digest = self.digest or reply.roster_digest.hex()
        self.pieces.append(reply.body)
        self.start += len(reply.body)
        if self.start < size:
            return None
        signed = b"".join(self.pieces)
        self.clear()
        return signed

    def clear(self) -> None:
        """Forget all pieces: the next request is for the first one."""
        self.digest, self.start = "", 0
        self.pieces.clear()
